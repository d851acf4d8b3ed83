"""Functions that run in workers, which know them by name."""

from __future__ import annotations

import sys

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


# Globals of the program's `__main__` that an initializer has set in this worker, by name.
_prepared: dict[str, Any] = {}


def prepare(function: Callable[..., Any], /, *args: Any) -> None:
    """Calls an initializer, and drops its result.

    An initializer of the program's `__main__` comes by value, and so do the functions of later tasks: each brings its own
    globals, as they are in the program. Those that the initializer sets are this worker's from now on, for all of them.
    """
    variables = _own_globals(function)
    before = dict(variables)
    function(*args)
    changed = {name: value for name, value in variables.items() if name not in before or before[name] is not value}
    if changed:
        _prepared.update(changed)
        _keep_prepared()


def _own_globals(function: Any) -> dict[str, Any]:
    """Returns the globals of a function that came by value; empty: it did not, or has none."""
    while not hasattr(function, "__globals__"):
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            inner = getattr(type(function), "__call__", None)
        if inner is None or inner is function:
            return {}
        function = inner
    module = sys.modules.get(function.__module__)
    variables: dict[str, Any] = function.__globals__
    return {} if module is not None and vars(module) is variables else variables


def _keep_prepared() -> None:
    """Has functions that come by value from now on use the initializer's globals instead of their own of these names."""
    from functools import wraps

    # The module that has it in versions before 3; later ones have it in another, and here by `__getattr__`.
    from cloudpickle import cloudpickle_fast  # type: ignore[import-untyped,unused-ignore]

    usual = cloudpickle_fast._function_setstate
    if hasattr(usual, "__wrapped__"):
        return

    # With the original's name, so that functions in results are pickled as before.
    @wraps(usual)
    def set_state(function: Any, state: Any) -> Any:
        done = usual(function, state)
        if function.__module__ == "__main__":
            function.__globals__.update(_prepared)
        return done

    for module in (cloudpickle_fast, sys.modules[usual.__module__]):
        vars(module)["_function_setstate"] = set_state
