"""State of a worker: data that tasks left in its interpreter. It is saved when the lease ends, and restored by the next
lease with the same name of a state."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Optional

_functions: Optional[tuple[Callable[[], Any], Callable[[bytearray], object]]] = None
_UNREGISTERED = (
    "no module has called hotlease.state(save=..., restore=...) in this worker: call it at the top of one, "
    "and name that in ExecutorOptions(imports=[...])"
)


def state(*, save: Callable[[], Any], restore: Callable[[bytearray], object]) -> None:
    """Declares how the state that tasks leave in a worker is saved, and restored in another worker, for
    ``ExecutorOptions(state=NAME)``.

    Call it at the top of a module that workers import before their first task (``ExecutorOptions(imports=[MODULE])``). If it
    is called again, the last call applies. In other processes it has no effect.

    Parameters
    ----------
    save
        Called without arguments, between two tasks, when the worker is about to end. Returns bytes, or any object with
        a contiguous buffer, such as a numpy array. Its time limit is the agent's ``--swap-limit``, 2 s by default. If
        it raises, the worker and its state stay while the agent does not need the memory; then both are lost.
    restore
        Called with a `bytearray` of the saved bytes, before the first task. If it raises, the executor is not made, the
        error says why, and the state is kept.

    Examples
    --------
    >>> import pickle
    >>> counts = {}
    >>> hotlease.state(save=lambda: pickle.dumps(counts), restore=lambda saved: counts.update(pickle.loads(saved)))
    """
    global _functions
    for name, function in (("save", save), ("restore", restore)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    _functions = save, restore


# The functions below are for workers. Errors that are meant for the tenant are RuntimeErrors.


def check() -> None:
    """Raises an error if no functions were declared: nothing would be saved then."""
    if _functions is None:
        raise RuntimeError(_UNREGISTERED)


def save() -> memoryview:
    """Returns the bytes of the state."""
    if _functions is None:
        raise RuntimeError(_UNREGISTERED)
    function = _functions[0]
    try:
        view = memoryview(function())
        if not view.c_contiguous:
            raise TypeError("its result is not contiguous in memory, in the order of C")
        return view.cast("B") if view.nbytes else memoryview(b"")
    except BaseException as error:  # noqa: BLE001
        raise _raised("save", function, error) from error


def restore(saved: bytearray) -> None:
    """Passes the bytes of a state to the declared function."""
    if _functions is None:
        raise RuntimeError(_UNREGISTERED)
    function = _functions[1]
    try:
        function(saved)
    except BaseException as error:  # noqa: BLE001
        raise _raised("restore", function, error) from error


def _raised(which: str, function: Callable[..., object], error: BaseException) -> RuntimeError:
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return RuntimeError(f"the {which} function of its state, {name}, raised {type(error).__name__}: {error}")
