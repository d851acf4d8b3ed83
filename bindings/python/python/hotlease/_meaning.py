"""Hashes of the meaning of functions and arguments, for `memo` and checkpoints. They are equal in the next run of a
program, even if its code has moved.

The hashes do not depend on file names, line numbers or the order of sets.
"""

from __future__ import annotations

import enum
import functools
import sys
import types

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
from cloudpickle import cloudpickle as _internals

from hotlease import _bases, _core, _modules, _source
from hotlease._hashes import blake2b
from hotlease._remote import result

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pickle
    from typing import Any, Optional

    # Numbers of the objects that were met, by address; with the objects, so that their addresses are not reused.
    Met = dict[int, tuple[int, Any]]

_BYTES = 32
# Largest number of functions that wrap one another.
_WRAPPED_MAX = 100
_Cached = type(functools.cache(len))


def of_function(function: Any) -> bytes:
    """Hashes a function: its code, and everything that is sent with it by value."""
    if hasattr(function, "_hotlease_declared"):
        function = getattr(function, "__wrapped__", function)
    return _hash((sys.version_info[:2], function, _own(function), _defaults(function)), {})


def of_arguments(args: tuple[Any, ...], kwargs: Optional[dict[str, Any]]) -> Optional[bytes]:
    """Hashes arguments. Returns `None` if the hash of their pickle is to be used instead."""
    try:
        # The first argument may be a function of the program, if the function called is one of this package.
        own = _own(args[0]) if args and callable(args[0]) else ()
        return _hash((args, sorted((kwargs or {}).items()), own), {})
    except Exception:
        return None


def _own(function: Any) -> tuple[bytes, ...]:
    """Hashes a function's own code, and the code of each function that it wraps: these hashes identify a function that is
    sent by name. For a callable object, hashes the code of its class's ``__call__``."""
    codes: list[bytes] = []
    for _ in range(_WRAPPED_MAX):
        while isinstance(function, functools.partial):
            function = function.func
        if isinstance(function, type):
            return *codes, _source.of_class(function)
        function = getattr(function, "__func__", function)
        call = function if hasattr(function, "__code__") else getattr(type(function), "__call__", None)
        code = getattr(call, "__code__", None)
        if isinstance(code, types.CodeType):
            codes.append(_source.of_code(code))
        function = getattr(function, "__wrapped__", None)
        if function is None:
            break
    return tuple(codes)


def _defaults(function: Any) -> tuple[Any, ...]:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)


def _hash(value: Any, met: Met) -> bytes:
    hasher, of_buffers = blake2b(digest_size=_BYTES), blake2b(digest_size=_BYTES)
    file = types.SimpleNamespace(write=hasher.update)

    def add(buffer: pickle.PickleBuffer) -> None:
        data = buffer.raw()
        # The pickle does not always contain the buffer's length.
        of_buffers.update(len(data).to_bytes(8, "little"))
        of_buffers.update(data)

    _Pickler(file, add, met).dump(value)
    hasher.update(of_buffers.digest())
    return hasher.digest()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined,unused-ignore]
    """Pickles values. An object whose own pickle could differ in the next run is replaced by a description."""

    def __init__(self, file: Any, add: Any, met: Met) -> None:
        super().__init__(file, 5, buffer_callback=add)
        self._met = met

    def persistent_id(self, object: Any) -> Optional[tuple[Any, ...]]:
        """Returns the description of an object, or its number if it was met before; `None` if it is pickled as usual."""
        kind = type(object)
        describe = _DESCRIBED.get(kind)
        if describe is None:
            if not isinstance(object, type):
                return None
            describe = _Pickler._of_class
        known = self._met.get(id(object))
        if known is not None:
            return "met", known[0]
        self._met[id(object)] = len(self._met), object
        return describe(self, object)

    def reducer_override(self, object: Any) -> Any:
        if _bases.is_future(object) and not isinstance(object, _core.Task):
            # The future is hashed as its number; its result is hashed when the result is available.
            return result, (_core._gather(object),)
        return super().reducer_override(object)

    def _inner(self, value: Any) -> bytes:
        """Hashes a part of a value separately."""
        return _hash(value, dict(self._met))

    def _inner_or_kind(self, value: Any) -> Any:
        try:
            return self._inner(value)
        except Exception:
            # The value, for example a lock, does not pickle.
            return type(value).__qualname__

    def _of_set(self, object: Any) -> tuple[Any, ...]:
        return type(object).__name__, sorted(self._inner(each) for each in object)

    def _of_function(self, function: types.FunctionType) -> tuple[Any, ...]:
        if _internals._should_pickle_by_reference(function) and not _modules.is_by_value(function.__module__):
            return "function", function.__module__, function.__qualname__, _own(function)
        registry = getattr(function, "registry", None)
        if isinstance(registry, types.MappingProxyType) and hasattr(function, "dispatch"):
            return "dispatching", list(registry.items())
        its = function.__globals__
        used = [(name, its[name]) for name in sorted(_internals._extract_code_globals(function.__code__)) if name in its]
        cells = [_content(cell) for cell in function.__closure__ or ()]
        about = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        kept = (function.__defaults__, function.__kwdefaults__, cells, used, about)
        return "function", function.__qualname__, _source.of_code(function.__code__), kept

    def _of_class(self, kind: type) -> tuple[Any, ...]:
        name = (kind.__module__, kind.__qualname__)
        if kind.__module__ in ("builtins", "types"):
            return "class", name
        if _internals._should_pickle_by_reference(kind) and not _modules.is_by_value(kind.__module__):
            return "class", name
        if issubclass(kind, enum.Enum):
            members = [(each.name, each.value) for each in kind]
            return "enum", kind.__qualname__, kind.__bases__, members, _source.source(kind)
        parts = [(name, value) for name, value in sorted(vars(kind).items()) if name not in _source.UNIMPORTANT]
        return "class", kind.__qualname__, kind.__bases__, [(name, self._inner_or_kind(value)) for name, value in parts]

    def _of_module(self, module: types.ModuleType) -> tuple[Any, ...]:
        if not _modules.is_absent(module.__name__):
            return "module", module.__name__
        parts = [(name, value) for name, value in sorted(vars(module).items()) if not name.startswith("__")]
        return "module", module.__name__, [(name, self._inner_or_kind(value)) for name, value in parts]


def _content(cell: types.CellType) -> Any:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


_DESCRIBED: dict[type, Any] = {
    set: _Pickler._of_set,
    frozenset: _Pickler._of_set,
    types.FunctionType: _Pickler._of_function,
    types.ModuleType: _Pickler._of_module,
    types.CodeType: lambda pickler, code: ("code", _source.of_code(code)),
    _Cached: lambda pickler, function: ("cached", function.__wrapped__, function.cache_parameters()),
    functools.cached_property: lambda pickler, made: ("cached property", made.func),
    property: lambda pickler, made: ("property", made.fget, made.fset, made.fdel),
}
