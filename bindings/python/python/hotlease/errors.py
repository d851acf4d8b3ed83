"""What can go wrong between a program and its workers.

What a task itself raises comes as it is, with the worker's traceback as its cause.
"""

from __future__ import annotations

from hotlease import _bases
from hotlease._bases import BrokenExecutor
from hotlease._core import Error as Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class TaskError(Error):
    """A task has no result, for a reason that is not its own.

    Attributes
    ----------
    ran
        Whether its function ran: ``True``, ``False``, or ``None`` where nobody can know.
    """

    def __init__(self, message: str = "", ran: Optional[bool] = None) -> None:
        super().__init__(message, ran)
        self.ran = ran

    def __str__(self) -> str:
        return str(self.args[0])


class FunctionFailed(TaskError):
    """A native function returned an error number of its own.

    Attributes
    ----------
    code
        The number.
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
    """A native function had a larger result than it was declared with; it ran.

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
    """The worker process died while it had the task. The executor goes on with another one.

    Attributes
    ----------
    cause
        Why, in words.
    exit_code
        Its exit status; negative: the signal that killed it; ``None``: neither is known.
    output
        The end of what it printed.
    deaths
        Workers that died of this task.
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

    Its cause (``__cause__``) is what the first one raised.

    Attributes
    ----------
    chain
        Names of the functions: its own, that of what it needs, and so on; the last one is that which failed.
    left_out
        How many are not named before the last one.
    """

    def __init__(
        self, message: str = "", ran: Optional[bool] = False, chain: tuple[str, ...] = (), left_out: int = 0
    ) -> None:
        Error.__init__(self, message, ran, chain, left_out)
        self.ran = ran
        self.chain = chain
        self.left_out = left_out


class OutcomeUnknown(TaskError):
    """Nobody is left who could say how the task ended."""


class DeadlineExceeded(TaskError, TimeoutError):
    """The task did not end within the executor's ``timeout``."""


class LeaseEnded(TaskError):
    """The workers were given back, or taken away."""


class ExecutorBroken(TaskError, BrokenExecutor):
    """The executor has no workers and gets no others."""


class NotRunning(TaskError):
    """No platform is there."""


class Refused(TaskError):
    """The platform refused: it has no free workers, for instance, or they cannot be started.

    Attributes
    ----------
    may_pass
        Whether it may be otherwise later: something becomes free, or comes back. Only that is waited for.
    """

    def __init__(self, message: str = "", ran: Optional[bool] = False, may_pass: bool = False) -> None:
        Error.__init__(self, message, ran, may_pass)
        self.ran = ran
        self.may_pass = may_pass


class OptionError(TaskError, ValueError):
    """An option makes no sense."""


class OverheadWarning(UserWarning):
    """The program's tasks take longer to submit than to run. Told once, after a thousand tasks and more."""


_bases.settle()
