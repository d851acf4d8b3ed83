"""Functions and classes that the extension module calls by name."""

import sys
from threading import RLock as condition
from types import FunctionType

from hotlease._outcomes import call_back, dependency_error, failure, hint, not_sent, remote_exception
from hotlease._pickles import content, content_of_arguments, describe, dump_arguments, dump_kept, load_result
from hotlease._remote import call, prepare, result, value
from hotlease.errors import ExecutorBroken, OptionError, TaskError

__all__ = [
    "ExecutorBroken",
    "OptionError",
    "TaskError",
    "call",
    "call_back",
    "condition",
    "content",
    "content_of_arguments",
    "dependency_error",
    "describe",
    "dump_arguments",
    "dump_kept",
    "failure",
    "hint",
    "import_early",
    "load_result",
    "not_sent",
    "prepare",
    "remote_exception",
    "result",
    "value",
]


def import_early() -> None:
    """Imports `_by_value` if the program's __main__ has functions or classes, because the first task then needs it.

    Called while the lease is being taken. Programs without functions or classes of their own hardly ever need it.
    """
    for value in list(getattr(sys.modules.get("__main__"), "__dict__", {}).values()):
        # Attributes of other values are not read: a value may be a module that is imported when an attribute is read.
        kind = type(value)
        if (kind is FunctionType or kind is type) and value.__module__ == "__main__":
            try:
                from hotlease import _by_value  # noqa: F401
            except ImportError:
                # The first task that needs the module raises the error.
                pass
            return


def __getattr__(name: str) -> object:
    # Imported only for tasks that run a function through another function.
    if name == "name_of_call":
        from hotlease._names import of_call

        return of_call
    # Imported only for results from sandboxes.
    if name in ("read_result", "read_exception"):
        from hotlease._guarded import reader

        return getattr(reader, name)
    # Imported only after an error.
    if name in ("CancelledError", "TimeoutError"):
        import concurrent.futures

        return getattr(concurrent.futures, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
