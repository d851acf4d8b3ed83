"""Functions that run in workers, to which they are known by their names."""

from __future__ import annotations

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls what came with the arguments."""
    return function(*args, **kwargs)


def chunk(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """Calls it with each of these arguments."""
    return [function(*args) for args in calls]


def result(number: int) -> Any:
    """The result of another task that came with the arguments in which this stands."""
    return _core._result(number)


def value(of: Any) -> Any:
    """What the result of a future was when it became an argument."""
    return of


def prepare(function: Callable[..., Any], /, *args: Any) -> None:
    """Calls an initializer, whose result nobody wants."""
    function(*args)
