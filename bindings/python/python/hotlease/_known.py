"""Functions, classes and globals of the program in a process that receives them. The receiver keeps one object of each.

A definition is the pickle of a class, or of a global of a module that workers cannot import, such as the program's
`__main__`. Each definition has a name (`Name`) and a version, which is a hash of its content. The sender
(`hotlease._by_value`) puts all definitions that a value needs in front of the value. A worker has one namespace for each
module that it cannot import. These rules apply to a definition that arrives:

- A definition that the worker already has in the same version changes nothing. So changes that tasks and initializers
  made to a class or a global remain, as in a program that runs in one process.
- A definition with another version replaces the earlier definition: a task sees classes and globals as they were when
  it was submitted. Functions that were loaded with the earlier definition are loaded again before they are called.
- Results define only what the receiver lacks. The program has all of its own objects: its classes and functions in
  results are the program's objects, and functions in results use the program's own globals.
"""

from __future__ import annotations

import builtins
import io
import pickle
import sys
import types
import weakref

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    # ("class", identifier), ("global", namespace, name) or ("module", namespace).
    Name = tuple[str, ...]
    # Module, qualified name and hash of the code, by which the program recognises its own class or function.
    Source = Optional[tuple[str, str, bytes]]
    # Name; version; pickle; names of all definitions that this definition needs; source.
    Definition = tuple[Name, bytes, bytes, tuple[Name, ...], Source]

# Global variable with the name of its namespace.
KEY = "__hotlease__"

_definitions: dict[Name, Definition] = {}
_namespaces: dict[str, types.ModuleType] = {}
# Definitions that have arrived, but are not loaded yet.
_pending: set[Name] = set()
# Definitions that functions were loaded with.
_loaded_with: set[Name] = set()
# Classes of the program, by the identifiers that the same classes had in an earlier run of the program.
_same: dict[str, type] = {}
# Classes that arrived last, kept alive: a class must exist while a pickle with its definition is loaded.
_kept: dict[Name, Any] = {}
_KEPT_MAX = 1024
# Weak references that remove the definitions of deleted classes.
_watches: dict[Name, weakref.ref[Any]] = {}
# Identifiers of the classes that arrived last under a name of the program's `__main__`.
_main_classes: dict[str, str] = {}
# Number of names of the program that were looked up in the worker's own `__main__`.
main_lookups = 0


def is_worker() -> bool:
    """Whether this process is a worker, whose own `__main__` is not the program's."""
    return "hotlease._slot" in sys.modules


def namespace(key: str) -> dict[str, Any]:
    """Returns the globals of a module of the program."""
    module: Any = _namespaces.get(key)
    if module is None and not is_worker():
        module = sys.modules.get(key)
    if module is None:
        module = _namespaces[key] = types.ModuleType(key.partition("@")[0])
        vars(module).update({KEY: key, "__builtins__": builtins})
    its: dict[str, Any] = vars(module)
    return its


def main_attribute(name: str) -> Any:
    """Returns a global of the program's `__main__`, for pickles by name that code in a worker makes and reads: those of
    `multiprocessing` in a task, or `pickle.dumps` of an object of the program. To be the `__getattr__` of the worker's own
    `__main__`.

    Raises
    ------
    AttributeError
        The worker has received no such function, class or global.
    """
    global main_lookups
    if not name.startswith("__"):
        main_lookups += 1
        kept = vars(_namespaces["__main__"]) if "__main__" in _namespaces else {}
        if name in kept:
            return kept[name]
        found = _class(_main_classes.get(name, ""))
        if found is not None:
            return found
    raise AttributeError(f"module '__main__' has no attribute {name!r}")


def definition(name: Name) -> Optional[Definition]:
    """Returns a definition as it arrived."""
    return _definitions.get(name)


def define(definitions: tuple[Definition, ...], is_current: bool, of_function: bool) -> None:
    """Adds definitions. `is_current`: the program sent them, so they replace earlier definitions. `of_function`: they
    belong to a function that is kept, and that must be loaded again when they are replaced."""
    arrived, is_stale = [], False
    for each in definitions:
        name, version = each[:2]
        known = _definitions.get(name)
        if known is not None and (name[0] != "class" or name in _pending or _keep(name)):
            if not is_current or known[1] == version:
                continue
            is_stale = is_stale or name in _loaded_with
        elif _is_own(each, is_current):
            continue
        _definitions[name] = each
        arrived.append(name)
    _pending.update(arrived)
    if is_stale:
        _loaded_with.clear()
        _core._forget_functions()
    if of_function:
        _loaded_with.update(each[0] for each in definitions)
    try:
        _load_all(arrived)
    except BaseException:
        # These definitions are forgotten, so that the next task that needs them loads them again, and gets the error,
        # too.
        for name in arrived:
            if name in _pending:
                _pending.discard(name)
                _definitions.pop(name, None)
        raise


def _load_all(names: list[Name]) -> None:
    later = []
    for name in names:
        if name in _pending:
            try:
                _load(name)
            except NameError:
                # Making a class runs code of its base classes, whose globals may not be loaded yet.
                later.append(name)
    for name in later:
        if name in _pending:
            _load(name)


def _is_own(each: Definition, is_current: bool) -> bool:
    """Whether this process has the defined object already, so that the definition is not needed."""
    name, source = each[0], each[4]
    if is_current and is_worker():
        return False
    if name[0] == "class":
        return _class(name[1]) is not None or _is_same_class(name[1], source)
    if name[0] == "module":
        return name[1] in _namespaces or (not is_worker() and name[1] in sys.modules)
    return name[2] in namespace(name[1])


def _class(identifier: str) -> Any:
    found = _same.get(identifier)
    if found is None and "cloudpickle" in sys.modules:
        from cloudpickle import cloudpickle  # type: ignore[import-untyped,unused-ignore]

        found = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identifier)
    return found


def _is_same_class(identifier: str, source: Source) -> bool:
    """Whether the program has a class with the source of a class that an earlier run of the program sent. If so, the
    program's class is used instead of the sent class from now on."""
    if source is None or is_worker():
        return False
    from hotlease import _source

    found: Any = sys.modules.get(source[0])
    for part in source[1].split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or _source.source(found) != source:
        return False
    _same[identifier] = found
    return True


def _load(name: Name) -> None:
    _pending.discard(name)
    try:
        value = _Unpickler(io.BytesIO(_definitions[name][2])).load()
    except BaseException:
        _pending.add(name)
        raise
    if name[0] == "global":
        namespace(name[1])[name[2]] = value
    elif name[0] == "class":
        _watches[name] = weakref.ref(value, lambda _: _drop(name))
        _keep(name)
        if value.__module__ == "__main__" and "." not in value.__qualname__:
            _main_classes[value.__qualname__] = name[1]


def _keep(name: Name) -> bool:
    """Keeps a class alive for a while; returns false if the class was deleted already."""
    kind = _class(name[1])
    if kind is None:
        return False
    _kept.pop(name, None)
    _kept[name] = kind
    if len(_kept) > _KEPT_MAX:
        del _kept[next(iter(_kept))]
    return True


def _drop(name: Name) -> None:
    _definitions.pop(name, None)
    _watches.pop(name, None)


def resolve(name: Name) -> Any:
    """Returns the object that was defined under a name."""
    if name in _pending:
        _load(name)
    if name[0] == "class":
        found = _class(name[1])
        if found is None and name in _definitions:
            # An outer call loads this class. It has stopped at the base class, whose attributes refer back to this class.
            # The base class itself exists by now, so this second load does not stop there.
            _load(name)
            found = _class(name[1])
        if found is None:
            raise pickle.UnpicklingError("a class came without its definition")
        return found
    if name[0] == "module":
        namespace(name[1])
        return _namespaces.get(name[1]) or sys.modules[name[1]]
    return namespace(name[1])[name[2]]


def get(name: Name, definitions: tuple[Definition, ...], is_current: bool, of_function: bool) -> Any:
    """Adds definitions, and returns the object that is defined under a name."""
    define(definitions, is_current, of_function)
    found = resolve(name)
    source = definitions[0][4] if definitions and definitions[0][0] == name else None
    if source is not None and isinstance(found, types.FunctionType) and name not in _definitions:
        from hotlease import _source

        if _source.source(found) != source:
            # The program now has a different function under this name: returns the function that was sent.
            return _Unpickler(io.BytesIO(definitions[0][2])).load()
    return found


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: Any) -> Any:
        """Returns a global of the program that is a part of another global."""
        return resolve(name)


def function(
    key: str,
    attributes: dict[str, Any],
    code: types.CodeType,
    cells: Optional[tuple[Any, ...]],
    definitions: tuple[Definition, ...],
    is_current: bool,
    of_function: bool,
) -> types.FunctionType:
    """Makes a function that uses the globals of its module, to be completed by `fill`."""
    its = namespace(key)
    if key in _namespaces:
        its.update(attributes)
    define(definitions, is_current, of_function)
    return types.FunctionType(code, its, None, None, cells)


def fill(made: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Completes a function."""
    attributes, slots = state
    vars(made).update(attributes)
    for cell, sent in zip(made.__closure__ or (), slots.pop("__closure__", None) or ()):
        try:
            cell.cell_contents = sent.cell_contents
        except ValueError:
            # Empty: the variable is not assigned yet.
            pass
    # Submodules that the function uses: they were imported when this list was unpickled.
    slots.pop("_cloudpickle_submodules", None)
    for name, value in slots.items():
        setattr(made, name, value)


def cached(wrapped: Any, parameters: dict[str, Any]) -> Any:
    """Makes a function of `functools.cache` or `lru_cache`."""
    import functools

    return functools.lru_cache(**parameters)(wrapped)


def dispatching(usual: Any, others: list[tuple[type, Any]]) -> Any:
    """Makes a function of `functools.singledispatch`."""
    import functools

    made = functools.singledispatch(usual)
    for kind, implementation in others:
        made.register(kind, implementation)
    return made


def cached_property(function: Any, name: Optional[str]) -> Any:
    """Makes a `functools.cached_property`."""
    import functools

    made: Any = functools.cached_property(function)
    made.attrname = name
    return made
