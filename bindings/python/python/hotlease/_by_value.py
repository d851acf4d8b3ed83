"""Pickling by value: functions, classes and modules that the receiver cannot import, with everything that they need.

The pickler is derived from cloudpickle's. Unlike in cloudpickle, classes and globals are definitions, and the receiver
keeps one object of each: see `hotlease._known`. Imported only when a value does not pickle otherwise.
"""

from __future__ import annotations

import abc
import functools
import io
import sys
import types

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

# The part of cloudpickle that decides what is sent by name, and that takes functions and classes apart.
from cloudpickle import cloudpickle as _internals

from hotlease import _bases, _core, _known, _mapped, _modules, _source
from hotlease._hashes import blake2b
from hotlease._remote import result

try:
    # The function's place in versions of cloudpickle before 3.
    from cloudpickle.cloudpickle_fast import _dynamic_class_reduce  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    from cloudpickle.cloudpickle import _dynamic_class_reduce  # type: ignore[import-untyped,unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pickle import PickleBuffer
    from typing import Any, Optional

    from hotlease._known import Definition, Name

_PROTOCOL = 5
_VERSION_BYTES = 16
# Values of these types cannot be changed in place: it makes no difference whether two globals have one object or equal copies.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_Cached = type(functools.cache(len))


def dumps(
    value: Any,
    callback: Optional[Callable[[PickleBuffer], object]] = None,
    *,
    is_current: bool = True,
    of_function: bool = False,
    gathers: bool = False,
    is_guarded: bool = False,
) -> bytes:
    """Pickles a value.

    Parameters
    ----------
    callback
        Gets large buffers, which are then not in the pickle.
    is_current
        Whether definitions in the pickle replace earlier definitions of the receiver; definitions in results do not.
    of_function
        Whether the receiver keeps the value as the function of tasks.
    gathers
        Whether futures are replaced by the results of their tasks.
    is_guarded
        Whether the receiver reads the pickle as untrusted: see `hotlease._guarded`.
    """
    file = io.BytesIO()
    _Values(file, callback, is_current, of_function, gathers, is_guarded).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined,unused-ignore]
    """Pickles functions, classes and modules by value: the part that values and definitions have in common."""

    # Names of the definitions that contain the one in this pickle, from the outermost on; the last name is its own.
    _within: tuple[Name, ...] = ()

    def __init__(self, file: io.BytesIO, callback: Any, found: dict[Name, Any], is_current: bool) -> None:
        super().__init__(file, _PROTOCOL, buffer_callback=callback)
        self._is_current = is_current
        # Objects of the definitions that are needed.
        self._found = found

    @abc.abstractmethod
    def _reference(self, name: Name) -> tuple[Any, ...]:
        """Returns the reduced form that stands for a definition in the pickle."""

    @abc.abstractmethod
    def _start(self, names: Iterable[Name]) -> tuple[Any, ...]:
        """Returns the last arguments of `_known.function`, for a function that needs these globals."""

    def reducer_override(self, object: Any) -> Any:
        kind = type(object)
        if kind is types.FunctionType:
            return self._function(object)
        if issubclass(kind, type):
            return self._class(object)
        if kind is types.ModuleType:
            key = _key(vars(object))
            if _known.KEY in vars(object) or (key == object.__name__ and _modules.is_absent(key)):
                return self._named(("module", key), object)
            return super().reducer_override(object)
        if kind is types.CodeType:
            return _code(object)
        if kind is _Cached:
            return self._cached(object)
        if kind is functools.cached_property:
            # The lock, which cached properties have in older versions of Python, is left out.
            return _known.cached_property, (object.func, object.attrname)
        if issubclass(kind, io.TextIOWrapper) and object not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            # cloudpickle would send the content of a file that is open for reading, as another kind of object.
            raise TypeError(f"cannot pickle an open file ({getattr(object, 'name', kind)}): pass its path, or what it contains")
        if self._is_current and kind.__module__ == "numpy":
            return _mapped.reduce(object)
        if self._is_current and _is_proxy(object):
            from hotlease import _shared_key

            return _shared_key.reduce(object)
        return super().reducer_override(object)

    def _named(self, name: Name, object: Any) -> Any:
        self._found[name] = object
        return self._reference(name)

    def _function(self, function: types.FunctionType) -> Any:
        if _goes_by_name(function):
            return NotImplemented
        name = _own_name(function, function.__globals__)
        if name is not None and name not in self._within:
            return self._named(name, function)
        # In a definition, methods are pickled with their class; elsewhere a method is found through its class.
        owner = None if self._within else _owner(function)
        if owner is not None:
            return getattr, (owner, function.__name__)
        registry = getattr(function, "registry", None)
        if isinstance(registry, types.MappingProxyType) and hasattr(function, "dispatch"):
            others = [(kind, made) for kind, made in registry.items() if kind is not object]
            return _known.dispatching, (registry[object], others)
        _, (code, _, _, _, cells), (attributes, slots), *_ = self._dynamic_function_reduce(function)
        key, slots = _key(function.__globals__), dict(slots)
        used = slots.pop("__globals__")
        names = [("global", key, each) for each in used]
        self._found.update(zip(names, used.values()))
        about = {each: function.__globals__[each] for each in _ABOUT if each in function.__globals__}
        arguments = (key, about, code, cells, *self._start(names))
        return _known.function, arguments, (attributes, slots), None, None, _known.fill

    def _class(self, kind: type) -> Any:
        if kind.__module__ in ("builtins", "types") or _goes_by_name(kind):
            return super().reducer_override(kind)
        name = ("class", _internals._get_or_create_tracker_id(kind))
        if name in self._within[-1:]:
            return _dynamic_class_reduce(kind)
        return self._named(name, kind)

    def _cached(self, function: Any) -> Any:
        found = _internals._lookup_module_and_qualname(function)
        if found is not None and not _modules.is_by_value(function.__module__):
            return NotImplemented
        wrapped = function.__wrapped__
        name = _own_name(function, getattr(wrapped, "__globals__", {}))
        if name is not None and name not in self._within:
            return self._named(name, function)
        return _known.cached, (wrapped, function.cache_parameters())


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """Returns the reduced form of code, with the name of its file for tracebacks: cloudpickle 3.1.3 omits the name."""
    make, arguments = _internals._code_reduce(code)
    given = list(arguments)
    if code.co_filename not in given and _NO_FILE in given:
        given[given.index(_NO_FILE)] = code.co_filename
    return make, tuple(given)


def _is_proxy(object: Any) -> bool:
    """Whether an object is a proxy for an object in a manager of `multiprocessing`; false in workers."""
    kind = getattr(sys.modules.get("multiprocessing.managers"), "BaseProxy", None)
    return kind is not None and isinstance(object, kind) and not _known.is_worker()


_NO_FILE = "<dynamic-code>"
# Attributes of a module that its functions need for imports.
_ABOUT = ("__package__", "__name__", "__path__", "__file__")


def _goes_by_name(object: Any) -> bool:
    return bool(_internals._should_pickle_by_reference(object)) and not _modules.is_by_value(object.__module__)


def _own_name(function: Any, its: dict[str, Any]) -> Optional[Name]:
    """Returns the name of a function that is a global, else `None`. It may be a global of the module of its code or, if
    a decorator made it as a wrapper, of the module in its `__module__`."""
    name = str(function.__qualname__)
    for each in (its, _globals_of_module(function.__module__)):
        if each.get(name) is function:
            return "global", _key(each), name
    return None


def _owner(function: types.FunctionType) -> Optional[type]:
    """Returns the class of a method; `None` if the function is no method."""
    first, *rest = function.__qualname__.split(".")
    found: Any = function.__globals__.get(first)
    for name in rest[:-1]:
        found = getattr(found, name, None)
    return found if rest and isinstance(found, type) and vars(found).get(rest[-1]) is function else None


def _globals_of_module(name: Optional[str]) -> dict[str, Any]:
    module: Any = _known._namespaces.get(name or "")
    if module is None and not _known.is_worker():
        module = sys.modules.get(name or "")
    return {} if module is None else vars(module)


def _key(its: dict[str, Any]) -> str:
    """Returns the name of a namespace: the name of the module, if `its` are the globals of a module."""
    key: Optional[str] = its.get(_known.KEY)
    if key is None:
        name = str(its.get("__name__"))
        module = sys.modules.get(name)
        key = name if module is not None and vars(module) is its else f"{name}@{id(its):x}"
    return key


class _Values(_Pickler):
    """Pickles a value, with the definitions that it needs."""

    def __init__(
        self, file: io.BytesIO, callback: Any, is_current: bool, of_function: bool, gathers: bool, is_guarded: bool
    ) -> None:
        super().__init__(file, callback, {}, is_current)
        self._flags = (is_current, of_function)
        self._gathers = gathers
        self._is_guarded = is_guarded
        self._made = _Definitions(self._found, is_current)
        self._sent: set[Name] = set()

    def reducer_override(self, object: Any) -> Any:
        if self._gathers and _bases.is_future(object) and not isinstance(object, _core.Task):
            return result, (_core._gather(object),)
        if self._is_guarded:
            from hotlease._guarded import arrays

            reduced = arrays.reduce(object)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(object)

    def _reference(self, name: Name) -> tuple[Any, ...]:
        return _known.get, (name, self._unsent((name,)), *self._flags)

    def _start(self, names: Iterable[Name]) -> tuple[Any, ...]:
        return self._unsent(names), *self._flags

    def _unsent(self, names: Iterable[Name]) -> tuple[Definition, ...]:
        """Returns the definitions of names, and all definitions that these need, except definitions already in this pickle."""
        unsent, need = [], list(names)
        for name in need:
            if name not in self._sent:
                self._sent.add(name)
                made = self._made.of(name)
                unsent.append(made)
                need.extend(made[3])
        return tuple(unsent)


class _Definitions:
    """Definitions for one pickle."""

    def __init__(self, found: dict[Name, Any], is_current: bool) -> None:
        self.found = found
        self.is_current = is_current
        self._made: dict[Name, Definition] = {}
        # `_shared`: names of globals that may be parts of other globals, by identity of their values.
        # `_keys`: namespaces whose globals were added.
        self._shared: dict[int, Name] = {}
        self._keys: set[str] = set()

    def of(self, name: Name, within: tuple[Name, ...] = ()) -> Definition:
        made = self._made.get(name)
        if made is None and not self.is_current:
            # The definition as it arrived: changes that tasks have made to the object are not sent.
            made = _known.definition(name)
        if made is None:
            object = self.found[name]
            key = name[1] if name[0] == "global" else getattr(object, "__module__", None)
            if key is not None and key not in self._keys:
                self._share(key, _globals(key, self.found))
            file = io.BytesIO()
            pickler = _Definition(file, name, object, self, within)
            pickler.dump(pickler.content())
            data = file.getvalue()
            hasher = blake2b(data, digest_size=_VERSION_BYTES)
            for version in pickler.versions:
                hasher.update(version)
            source = _source.source(object) if isinstance(object, (type, types.FunctionType)) else None
            made = (name, hasher.digest(), data, tuple(pickler.needs), source)
        self._made[name] = made
        return made

    def _share(self, key: str, its: dict[str, Any]) -> None:
        self._keys.add(key)
        for name, value in its.items():
            if not isinstance(value, _ATOMS) and not name.startswith("__"):
                self._shared.setdefault(id(value), ("global", key, name))

    def shared(self, object: Any) -> Optional[Name]:
        return self._shared.get(id(object))


def _globals(key: str, found: dict[Name, Any]) -> dict[str, Any]:
    if key in _known._namespaces:
        return vars(_known._namespaces[key])
    if key in sys.modules:
        return vars(sys.modules[key])
    # These are globals of no module: returns the globals that are used.
    return {name[2]: value for name, value in found.items() if name[0] == "global" and name[1] == key}


class _Definition(_Pickler):
    """Pickles the object of a definition."""

    def __init__(self, file: io.BytesIO, name: Name, object: Any, made: _Definitions, within: tuple[Name, ...]) -> None:
        super().__init__(file, None, made.found, made.is_current)
        self._object = object
        self._all = made
        self._within = (*within, name)
        self.needs: dict[Name, None] = {}
        # Versions of the globals that are parts of the object.
        self.versions: list[bytes] = []

    def content(self) -> Any:
        return self._parts() if self._within[-1][0] == "module" else self._object

    def _parts(self) -> None:
        # The content of a module is only its globals.
        key = self._within[-1][1]
        for name, value in vars(self._object).items():
            each = ("global", key, name)
            if name.startswith("__") or value is self._object:
                continue
            self._found[each] = value
            try:
                self._all.of(each, self._within)
            except Exception:
                # This global cannot be sent; a function that uses it raises an error.
                continue
            self.needs[each] = None

    def persistent_id(self, object: Any) -> Optional[Name]:
        name = self._all.shared(object)
        # If two globals contain each other, one global gets a copy of the other.
        if name is None or name in self._within:
            return None
        self._found[name] = object
        self._part(name)
        return name

    def reducer_override(self, object: Any) -> Any:
        if _bases.is_future(object):
            raise TypeError(
                "a future cannot be pickled: pass it as an argument of submit, whose task then gets its result"
            )
        return super().reducer_override(object)

    def _part(self, name: Name) -> None:
        self.needs[name] = None
        self.versions.append(self._all.of(name, self._within)[1])

    def _reference(self, name: Name) -> Any:
        if name[0] == "global":
            self._part(name)
        else:
            self.needs[name] = None
        return _known.resolve, (name,)

    def _start(self, names: Iterable[Name]) -> tuple[Any, ...]:
        self.needs.update(dict.fromkeys(names))
        return (), self._is_current, False
