"""Functions that run in workers, which know them by name."""

from __future__ import annotations

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function that came with the arguments."""
    return function(*args, **kwargs)


def chunk(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """Calls the function with each of these arguments."""
    return [function(*args) for args in calls]


def result(number: int) -> Any:
    """Returns the result of another task that came with the same arguments."""
    return _core._result(number)


def value(of: Any) -> Any:
    """Returns the value that a future had when it became an argument."""
    return of


def prepare(function: Callable[..., Any], /, *args: Any) -> None:
    """Calls an initializer, and drops its result."""
    function(*args)
