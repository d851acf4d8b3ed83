"""Exceptions of failed tasks, and callbacks of tasks that have ended."""

from __future__ import annotations

import pickle
import sys

from hotlease import errors
from hotlease.errors import DependencyError, TaskError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional


class RemoteTraceback(Exception):
    """Traceback of an exception in the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def call_back(function: Callable[[Any], Any], future: Any) -> None:
    """Calls a callback; logs an exception that it raises."""
    try:
        function(future)
    except Exception:
        import logging

        logging.getLogger("concurrent.futures").exception("exception calling callback for %r", future)


def not_sent(error: BaseException) -> BaseException:
    """Prepares the exception of a task that could not be sent."""
    try:
        error._hotlease_not_sent = True  # type: ignore[attr-defined]
    except AttributeError:
        # The exception's class allows no other attributes.
        pass
    if sys.version_info >= (3, 11):
        error.add_note("hotlease: the task could not be sent; its function did not run")
    return error


def was_not_sent(error: BaseException) -> bool:
    """Whether this is the exception of a task that could not be sent: mostly because an argument does not pickle."""
    return getattr(error, "_hotlease_not_sent", False) is True


def is_of_signal(error: BaseException) -> bool:
    """Whether a signal ended an unpickling (Ctrl-C, or a handler that exits), and not code that the pickle ran."""
    if isinstance(error, Exception):
        return False
    import opcode
    import signal

    handlers = [getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()]
    at = traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        at, traceback = traceback, traceback.tb_next
    # Python's own handler of Ctrl-C has no frame: its exception is raised between two instructions.
    if not isinstance(error, KeyboardInterrupt) or at is None:
        return False
    return at.tb_frame.f_code.co_code[at.tb_lasti] != opcode.opmap["RAISE_VARARGS"]


def unreadable(error: BaseException, function: str) -> BaseException:
    """Makes the exception of a task whose result cannot be read because of `error`. Raises `error` itself if a signal caused
    it, or if it already explains the problem (the result of a native function is not as declared)."""
    if isinstance(error, TaskError) or is_of_signal(error):
        raise error
    return TaskError(f"{function} ran, but its result does not unpickle here: {type(error).__name__}: {error}", True)


def exception_of(executor: Any, traceback: str, pickled: Optional[bytes], text: str) -> BaseException:
    """Makes the exception that a task of an executor raised."""
    from hotlease import _core

    classes = executor._result_classes
    if classes is None or not _core._is_confined(executor):
        return remote_exception(traceback, pickled, text)
    from hotlease._guarded.reader import read_exception

    return read_exception(traceback, pickled, text, classes)


def remote_exception(
    traceback: str, pickled: Optional[bytes], text: str, load: Callable[[bytes], Any] = pickle.loads
) -> BaseException:
    """Makes the exception that a task raised."""
    exception: Any = None
    if pickled is not None:
        try:
            exception = load(pickled)
        except BaseException as error:
            if is_of_signal(error):
                raise
            lines = traceback.strip().splitlines()
            text = f"{lines[-1] if lines else 'an exception'} (it does not unpickle here: {type(error).__name__}: {error})"
    raised: BaseException = (
        exception if isinstance(exception, BaseException) else TaskError(f"the function raised {text}", True)
    )
    raised.__cause__ = RemoteTraceback(traceback)
    return raised


def dependency_error(
    names: tuple[str, ...], between: int, root: Optional[str], cause: BaseException
) -> BaseException:
    """Makes the exception of a task that was not run because a task that it needs has no result."""
    from concurrent.futures import CancelledError

    needs = "".join(f", which needs {name}" for name in names[2:])
    first = root or "a future of another executor"
    text = f"{names[0]} was not run: it needs "
    if len(names) > 1:
        text += f"{names[1]}{needs}, which needs "
    if between:
        text += f"... ({between} more), which need "
    if isinstance(cause, CancelledError):
        text += f"{first}, which was cancelled"
    else:
        message = "".join(str(cause).strip().splitlines()[:1])
        text += f"{first}, which failed: {type(cause).__name__}" + (f": {message}" if message else "")
    error = DependencyError(text, False, (*names, first), between)
    error.__cause__ = cause
    return error


# By library: how a program gives each task more work, and the packages between the library and the program.
_MORE_WORK = {
    "joblib": ("with batches {times} times as large, for instance: Parallel(batch_size=)", {"joblib", "sklearn"}),
    "dask": ("with chunks or partitions {times} times as large, for instance, or compute(chunksize={times})", {"dask"}),
    "parsl": ("with apps that each do the work of {times}, for instance", {"parsl"}),
}


def hint(submitting_ns: int, running_ns: int) -> None:
    """Warns a program, once, that its tasks take longer to submit than to run. Both times are medians."""
    advice, between = "with map(..., chunksize={times}) for instance, or a function that takes a list", {"hotlease"}
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        package, _, rest = frame.f_globals.get("__name__", "").partition(".")
        if package not in between:
            break
        library = rest.partition(".")[0]
        if package == "hotlease" and library in _MORE_WORK:
            advice, others = _MORE_WORK[library]
            between = between | others
        level, frame = level + 1, frame.f_back
    import warnings

    times = min(1000, max(2, -(-10 * submitting_ns // running_ns)))
    warnings.warn(
        f"submitting a task takes {submitting_ns / 1000:.1f} us here, running it {running_ns / 1000:.1f} us: more work for each "
        f"task would be faster, {advice.format(times=times)}",
        errors.OverheadWarning,
        stacklevel=level,
    )


def failure(kind: str, text: str, fields: dict[str, Any]) -> BaseException:
    """Makes the exception for an error of the platform."""
    exception: BaseException = getattr(errors, kind)(text, **fields)
    return exception
