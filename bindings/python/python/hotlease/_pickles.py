"""Pickling of functions, arguments and results."""

from __future__ import annotations

import pickle
import sys
import types

from hotlease import _core, _mapped, _modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable, Optional, Union

    # Options that a function declares for its tasks: idempotent, retries, priority, memo.
    Declared = tuple[Optional[bool], Optional[int], Optional[int], Union[bool, str, None]]

_PROTOCOL = 5
# A larger function probably carries data by mistake.
_LARGE_FUNCTION = 1 << 20
# Types of default arguments that cannot change.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType)


def describe(function: Any) -> tuple[Optional[bytes], int, str, Optional[Declared]]:
    """Describes how a callable is sent. Returns its pickle (None: it is sent as an argument), whether the pickle may
    differ at the next submission (0: no), its name (empty: the task has the name of the function that it calls), and the
    options that it declares for its tasks (idempotent, retries, priority, memo)."""
    declared = getattr(function, "_hotlease_declared", None)
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    name = "" if _is_wrapper(function) else str(getattr(function, "__qualname__", None) or type(function).__qualname__)
    if declared is None and not _is_plain(function):
        return None, 1, name, None
    changes = 0
    data = _by_reference(function)
    if data is None:
        from hotlease import _by_value

        data = _by_value.dumps(on_path(function), of_function=True)
        changes = int(not _is_constant(getattr(function, "__wrapped__", function)))
    if len(data) > _LARGE_FUNCTION and name:
        import warnings

        warnings.warn(
            f"{function!r} carries {len(data)} bytes of data (in its closure, its defaults or globals of __main__), which "
            "each worker is sent; pass them as an argument instead",
            stacklevel=3,
        )
    return data, changes, name, declared


def content(function: Any) -> bytes:
    """Hashes the content of a function that is known here: its code, and everything that is sent with it by value."""
    from hotlease import _meaning, _remote

    if getattr(function, "_hotlease_declared", None) is None and not _is_plain(function):
        # The function is sent as an argument of `_remote.call`, and is hashed with the arguments.
        function = _remote.call
    return _meaning.of_function(function)


def content_of_arguments(args: tuple[Any, ...], kwargs: Optional[dict[str, Any]]) -> Optional[bytes]:
    """Hashes arguments that are not plain. Returns `None` if the hash of their pickle is to be used instead."""
    from hotlease import _meaning

    return _meaning.of_arguments(args, kwargs)


def _is_wrapper(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    if module != "hotlease._remote" and module != "dask.local":
        return False
    from hotlease import _names

    return _names.is_wrapper(function)


def _is_plain(function: Any) -> bool:
    if isinstance(function, (types.FunctionType, type)):
        return True
    return isinstance(function, types.BuiltinFunctionType) and isinstance(
        function.__self__, (types.ModuleType, type(None))
    )


def _by_reference(function: Any) -> Optional[bytes]:
    if _modules.is_by_value(getattr(function, "__module__", None)):
        return None
    try:
        return pickle.dumps(on_path(function), _PROTOCOL)
    except Exception:
        # A local function, a lambda, or a function that a decorator has replaced: it is sent by value.
        return None


def _is_constant(function: Any) -> bool:
    """Whether a function that is sent by value has an equal pickle each time. The pickle contains the current values of
    closure and globals, which may differ at the next submission."""
    if not isinstance(function, types.FunctionType) or function.__closure__:
        return False
    if "." in function.__qualname__.rpartition("<locals>.")[2] or _is_annotated_by_value(function):
        # The function is sent with a class, whose attributes may differ at the next submission.
        return False
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not all(isinstance(value, _ATOMS) for value in held):
        return False
    reads = (function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__)
    return all(isinstance(value, types.ModuleType) for value in reads)


def _is_annotated_by_value(function: types.FunctionType) -> bool:
    try:
        text = repr(function.__annotations__)
    except Exception:
        # An annotation uses a name that has no value yet.
        return True
    return "__main__" in text or any(name in text for name in _modules.by_value())


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the names of globals that the code and its nested functions may read, and also the names of their
    attributes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def dump_arguments(
    args: Any, kwargs: Optional[dict[str, Any]], alone: bool = False
) -> tuple[bytes, list[memoryview]]:
    """Pickles `args` and `kwargs`, or `args` alone; returns the pickle and its buffers."""
    buffers: list[pickle.PickleBuffer] = []
    what = args if alone else (args, kwargs)
    if sys.path != _modules.given:
        what = on_path(what)
    try:
        data = pickle.dumps(what, _PROTOCOL, buffer_callback=buffers.append)
        # `_by_value` has to pickle objects of __main__, which is another module in workers; arrays mapped from a file,
        # which are not copied; and proxies of managers, which are sent with the path of the socket for their key.
        by_value = b"__main__" in data or b"memmap" in data
        by_value = by_value or "multiprocessing.managers" in sys.modules and b"multiprocessing.managers" in data
    except Exception:
        by_value = True
    if len(sys.modules) != _modules.looked or _modules.absent_names or _modules.registered:
        by_value = by_value or _modules.are_named_in(data)
    if not by_value:
        views = [buffer.raw() for buffer in buffers]
        if "mmap" not in sys.modules or not any(map(_mapped.is_mapped, views)):
            return data, views
    from hotlease import _by_value

    buffers.clear()
    gathers = not alone and _core._gather_anew()
    data = _by_value.dumps(what, buffers.append, gathers=gathers)
    return data, [buffer.raw() for buffer in buffers]


def dump_kept(args: tuple[Any, ...]) -> bytes:
    """Pickles positional arguments that a worker keeps; their buffers are in the pickle."""
    what = (args, None)
    data, buffers = dump_arguments(what, None, alone=True)
    if not buffers:
        return data
    from hotlease import _by_value

    return _by_value.dumps(on_path(what))


def on_path(value: Any) -> Any:
    """Wraps the value so that it is unpickled with the program's import path, if this path has changed."""
    path = _modules.changed_path()
    return value if path is None else _modules.OnPath(path, value)


def load_result(data: bytes, buffers: list[Any]) -> Any:
    """Unpickles a result."""
    try:
        return pickle.loads(data, buffers=buffers)
    except BaseException as error:
        from hotlease._outcomes import unreadable

        raise unreadable(error, "the function") from error
