"""Pickling of functions, arguments and results."""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types

from hotlease import _core
from hotlease._remote import result
from hotlease.errors import TaskError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable, Optional, Union

    # Options that a function declares for its tasks: idempotent, retries, priority, memo.
    Declared = tuple[Optional[bool], Optional[int], Optional[int], Union[bool, str, None]]

_PROTOCOL = 5
# A larger function probably carries data by mistake.
_LARGE_FUNCTION = 1 << 20
# Types whose values cannot change while they are a default.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType)


def _cloud_dumps(value: Any, callback: Optional[Callable[[pickle.PickleBuffer], Any]] = None) -> bytes:
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    data: bytes = cloudpickle.dumps(value, _PROTOCOL, buffer_callback=callback)
    return data


def describe(function: Any) -> tuple[Optional[bytes], int, str, Optional[Declared]]:
    """Describes how a callable is sent: its pickle (None: as an argument), 0 if that stays the same, its name, and the
    options that it declares for its tasks (idempotent, retries, priority, memo)."""
    declared = getattr(function, "_hotlease_declared", None)
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    name = str(getattr(function, "__qualname__", None) or type(function).__qualname__)
    if declared is None and not _is_plain(function):
        return None, 1, name, None
    changes = 0
    data = _by_reference(function)
    if data is None:
        data = _cloud_dumps(function)
        changes = int(not _is_constant(getattr(function, "__wrapped__", function)))
    if len(data) > _LARGE_FUNCTION:
        import warnings

        warnings.warn(
            f"{function!r} carries {len(data)} bytes of data (in its closure, its defaults or globals of __main__), which "
            "each worker is sent; pass them as an argument instead",
            stacklevel=3,
        )
    return data, changes, name, declared


def content(function: Any, data: bytes) -> bytes:
    """Hashes the content of a function, as far as it is in the function itself: its pickle, and its code."""
    # Imported here: it loads OpenSSL's library, which takes milliseconds.
    import hashlib

    hasher = hashlib.sha256(f"{sys.version_info[0]}.{sys.version_info[1]}".encode())
    hasher.update(len(data).to_bytes(8, "little") + data)
    function = getattr(function, "__wrapped__", function)
    if isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is not None:
        _hash_code(hasher, code)
        defaults = (getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None))
        hasher.update(_cloud_dumps(defaults))
    return hasher.digest()


def _hash_code(hasher: Any, code: types.CodeType) -> None:
    hasher.update(code.co_code)
    hasher.update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _hash_code(hasher, constant)
        elif isinstance(constant, frozenset):
            hasher.update(repr(sorted(map(repr, constant))).encode())
        else:
            hasher.update(repr(constant).encode())


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
        # Local, a lambda, or replaced by a decorator: sent by value.
        return None


def _is_constant(function: Any) -> bool:
    """Whether a function that is sent by value is pickled the same each time. It carries the current values of its
    closure and its globals, which may differ at the next submission."""
    if not isinstance(function, types.FunctionType) or function.__closure__:
        return False
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not all(isinstance(value, _ATOMS) for value in held):
        return False
    reads = (function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__)
    return all(isinstance(value, types.ModuleType) for value in reads)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the names of globals that the code may read, with those of nested functions; and the names of
    attributes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def dump_arguments(
    args: Any, kwargs: Optional[dict[str, Any]], alone: bool = False
) -> tuple[bytes, list[memoryview]]:
    """Pickles both, or the first one alone; returns the pickle and its buffers."""
    buffers: list[pickle.PickleBuffer] = []
    what = args if alone else (args, kwargs)
    try:
        data = pickle.dumps(what, _PROTOCOL, buffer_callback=buffers.append)
        by_value = b"__main__" in data
    except Exception:
        by_value = True
    if by_value:
        # Workers have another __main__, and some objects only cloudpickle can send.
        buffers.clear()
        if alone:
            data = _cloud_dumps(what, buffers.append)
        else:
            _core._gather_anew()
            data = _gathering_dumps(what, buffers.append)
    return data, [buffer.raw() for buffer in buffers]


def dump_kept(args: Any) -> bytes:
    """Pickles positional arguments that a worker keeps: with their buffers."""
    what = (args, None)
    try:
        data = pickle.dumps(what, _PROTOCOL)
        by_value = b"__main__" in data
    except Exception:
        by_value = True
    return _cloud_dumps(what) if by_value else data


_pickler: Any = None


def _gathering_dumps(value: Any, callback: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    """Pickles like cloudpickle, with placeholders for the results of futures of other executors."""
    global _pickler
    if _pickler is None:
        from concurrent.futures import Future

        import cloudpickle

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined,unused-ignore]
            def reducer_override(self, object: Any) -> Any:
                if isinstance(object, Future) and not isinstance(object, _core.Task):
                    return result, (_core._gather(object),)
                return super().reducer_override(object)

        _pickler = Pickler
    file = io.BytesIO()
    _pickler(file, _PROTOCOL, buffer_callback=callback).dump(value)
    return file.getvalue()


def load_result(data: bytes, buffers: list[Any]) -> Any:
    """Unpickles a result."""
    try:
        return pickle.loads(data, buffers=buffers)
    except TaskError:
        # Error of a native function: the result is not as declared.
        raise
    except Exception as error:
        text = f"the function ran, but its result does not unpickle here: {type(error).__name__}: {error}"
        raise TaskError(text, True) from error
