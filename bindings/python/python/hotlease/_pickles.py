"""How functions, arguments and results become bytes, and come back from them."""

from __future__ import annotations

import pickle
import types
import warnings
from typing import Any, Callable, Optional

from hotlease.errors import TaskError

_PROTOCOL = 5
# A function of more is likely to carry data that it was not meant to.
_LARGE_FUNCTION = 1 << 20
# What cannot change while a closure or a default has it.
_ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
)


def _cloud_dumps(value: Any, callback: Optional[Callable[[pickle.PickleBuffer], Any]] = None) -> bytes:
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    data: bytes = cloudpickle.dumps(value, _PROTOCOL, buffer_callback=callback)
    return data


def describe(function: Any) -> tuple[Optional[bytes], int, Optional[bool]]:
    """How a callable is sent: its pickle (None: as an argument), 0 if that stays the same, whether it is idempotent."""
    idempotent = getattr(function, "_hotlease_idempotent", None)
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    if idempotent is None and not _is_plain(function):
        return None, 1, None
    changes = 0
    data = _by_reference(function)
    if data is None:
        data = _cloud_dumps(function)
        changes = int(not _is_constant(getattr(function, "__wrapped__", function)))
    if len(data) > _LARGE_FUNCTION:
        warnings.warn(
            f"{function!r} carries {len(data)} bytes of data (in its closure, its defaults or globals of __main__), which "
            "each worker is sent; pass them as an argument instead",
            stacklevel=3,
        )
    return data, changes, idempotent


def _is_plain(function: Any) -> bool:
    if isinstance(function, (types.FunctionType, type)):
        return True
    return isinstance(function, types.BuiltinFunctionType) and isinstance(
        function.__self__, (types.ModuleType, type(None))
    )


def _by_reference(function: Any) -> Optional[bytes]:
    if getattr(function, "__module__", None) in (None, "__main__", "__mp_main__"):
        return None
    try:
        return pickle.dumps(function, _PROTOCOL)
    except Exception:
        # Local, a lambda, replaced by a decorator: by value, then.
        return None


def _is_constant(function: Any) -> bool:
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    held.extend(getattr(function, "__defaults__", None) or ())
    held.extend((getattr(function, "__kwdefaults__", None) or {}).values())
    return all(isinstance(value, _ATOMS) for value in held)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def dump_arguments(args: tuple[Any, ...], kwargs: Optional[dict[str, Any]]) -> tuple[bytes, list[memoryview]]:
    """A pickle, and its buffers."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps((args, kwargs), _PROTOCOL, buffer_callback=buffers.append)
        by_value = b"__main__" in data
    except Exception:
        by_value = True
    if by_value:
        # Workers have another __main__, and some things only cloudpickle can send.
        buffers.clear()
        data = _cloud_dumps((args, kwargs), buffers.append)
    return data, [buffer.raw() for buffer in buffers]


def load_result(data: bytes, buffers: list[Any]) -> Any:
    """The result from its pickle."""
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        text = f"the function ran, but its result does not unpickle here: {type(error).__name__}: {error}"
        raise TaskError(text, True) from error
