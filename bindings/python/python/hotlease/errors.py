"""Errors between a program and its workers.

An exception of the task itself is raised unchanged, with the worker's traceback as its cause.
"""

from __future__ import annotations

from hotlease import _bases
from hotlease._bases import BrokenExecutor
from hotlease._core import Error as Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class TaskError(Error):
    """A task has no result, for a reason outside the task.

    Attributes
    ----------
    ran
        Whether the task's function ran: ``True``, ``False``, or ``None`` if that cannot be known.
    """

    def __init__(self, message: str = "", ran: Optional[bool] = None) -> None:
        super().__init__(message, ran)
        self.ran = ran

    def __str__(self) -> str:
        return str(self.args[0])


class FunctionFailed(TaskError):
    """A native function returned an error number.

    Attributes
    ----------
    code
        The error number.
    message
        What the function wrote to its output, as text.
    """

    def __init__(
        self, text: str = "", ran: Optional[bool] = True, code: int = 0, message: str = ""
    ) -> None:
        Error.__init__(self, text, ran, code, message)
        self.ran = ran
        self.code = code
        self.message = message


class OutputTooLarge(TaskError):
    """A native function ran, but its result was larger than declared.

    Attributes
    ----------
    needed
        Bytes of the result.
    """

    def __init__(self, text: str = "", ran: Optional[bool] = True, needed: int = 0) -> None:
        Error.__init__(self, text, ran, needed)
        self.ran = ran
        self.needed = needed


class WorkerDied(TaskError, BrokenExecutor):
    """The worker process died during the task. The executor continues with another worker.

    Attributes
    ----------
    cause
        Reason of the death, in words.
    exit_code
        Exit status of the worker; if a signal killed it, the negated signal number; ``None`` if neither is known.
    output
        Last part of the worker's output.
    deaths
        Number of workers that died of this task.
    """

    def __init__(
        self,
        message: str = "",
        ran: Optional[bool] = None,
        cause: str = "",
        exit_code: Optional[int] = None,
        output: str = "",
        deaths: int = 0,
    ) -> None:
        Error.__init__(self, message, ran, cause, exit_code, output, deaths)
        self.ran = ran
        self.cause = cause
        self.exit_code = exit_code
        self.output = output
        self.deaths = deaths


class DependencyError(TaskError):
    """A task was not run, because a task that it needs failed, was cancelled, or was not run itself.

    ``__cause__`` is the exception of the first task that failed.

    Attributes
    ----------
    chain
        Names of functions: the task's function, the function of the task that it needs, and so on; the last name is
        that of the function that failed.
    left_out
        Number of names that ``chain`` omits before its last name.
    """

    def __init__(
        self, message: str = "", ran: Optional[bool] = False, chain: tuple[str, ...] = (), left_out: int = 0
    ) -> None:
        Error.__init__(self, message, ran, chain, left_out)
        self.ran = ran
        self.chain = chain
        self.left_out = left_out


class OutcomeUnknown(TaskError):
    """No process is left that could say how the task ended."""


class DeadlineExceeded(TaskError, TimeoutError):
    """The task did not end within the executor's ``timeout``."""


class LeaseEnded(TaskError, BrokenExecutor):
    """The workers were released, revoked, or killed by the program."""


class MemoryLost(TaskError):
    """Remote memory was taken back or closed, or its node is gone: its bytes are lost, for good."""


class ExecutorBroken(TaskError, BrokenExecutor):
    """The executor has no workers, and cannot get new workers."""


class NotRunning(TaskError):
    """No platform is running."""


class Refused(TaskError):
    """The platform refused: it has no free workers, for instance, or they cannot be started.

    Attributes
    ----------
    may_pass
        ``True`` if the request may succeed later, because resources become free or return. An executor waits only if
        it is ``True``.
    """

    def __init__(self, message: str = "", ran: Optional[bool] = False, may_pass: bool = False) -> None:
        Error.__init__(self, message, ran, may_pass)
        self.ran = ran
        self.may_pass = may_pass


class OptionError(TaskError, ValueError):
    """The value of an option is invalid."""


class ClusterError(TaskError):
    """A cluster of the program (`hotlease.Slurm`) does not work: the message says what failed, in the site's words."""

    def __init__(self, message: str = "", ran: Optional[bool] = False) -> None:
        super().__init__(message, ran)


class JobRejected(ClusterError):
    """The site does not accept the cluster's jobs."""


class JobEnded(ClusterError):
    """The cluster's job ended, and the cluster has no other job.

    Attributes
    ----------
    job
        Number of the job.
    state
        How the job ended: ``"failed"`` or ``"cancelled"``.
    """

    def __init__(self, message: str = "", ran: Optional[bool] = False, job: str = "", state: str = "failed") -> None:
        Error.__init__(self, message, ran, job, state)
        self.ran = ran
        self.job = job
        self.state = state


class OverheadWarning(UserWarning):
    """The program's tasks take longer to submit than to run. Warned once, after a thousand tasks or more."""


_bases.settle()
