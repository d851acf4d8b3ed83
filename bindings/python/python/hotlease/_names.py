"""Texts in messages: the program's names for the functions of tasks, and numbers with nouns."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME_MAX = 100


def counted(number: int, what: str) -> str:
    """Returns a number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def is_wrapper(function: Any) -> bool:
    """Whether a function is not the program's own, and only calls a function of the program."""
    return getattr(function, "__module__", None) == "hotlease._remote" or _is_batch_of_dask(function)


def of_call(function: Any, arguments: tuple[Any, ...]) -> str:
    """Returns the name of the program's function that a call runs."""
    try:
        if _is_batch_of_dask(function):
            return str(sys.modules["dask.utils"].key_split(arguments[0][0][0]))
        if is_wrapper(function):
            return of_call(arguments[0], arguments[1:])
        return _of(function)[:_NAME_MAX]
    except Exception:
        # The attributes of a callable object may have any meaning.
        return type(function).__qualname__


def _is_batch_of_dask(function: Any) -> bool:
    where = getattr(function, "__module__", None), getattr(function, "__name__", None)
    return where == ("dask.local", "batch_execute_tasks")


def _of(function: Any) -> str:
    # A batch of joblib: functions with their arguments.
    batch = getattr(function, "items", None)
    if type(batch) is list and batch:
        function = batch[0][0]
    # A partial.
    function = getattr(function, "func", function)
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
