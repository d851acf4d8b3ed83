"""Modules that workers cannot import, and the import path that workers were given."""

from __future__ import annotations

import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Optional

_MAINS = ("__main__", "__mp_main__")
# Packages that every worker has, in any folder of the program's import path or outside it.
_OF_WORKERS = ("cloudpickle", "hotlease")

# For each module that was looked at, by name: whether workers cannot import it.
_looked: dict[str, bool] = {}
# `dump_arguments` reads the next three variables without a call. A module that is sent by value is in one of the two sets.
# Number of modules that were looked at.
looked = 0
# Names of loaded modules that workers cannot import.
absent_names: set[str] = set()
# Modules that the program has registered with cloudpickle to be sent by value.
registered: set[str] = set()
# Import path with which all workers were started; None: there are no workers, or they were started with several paths.
given: Optional[list[str]] = None
_is_any_given = False
# Folders of the import path that sandboxes do not show.
_hidden: set[str] = set()


def absent() -> set[str]:
    """Returns the names of loaded modules that no import finds: they were made at run time, or loaded from a file outside
    the import path."""
    global looked, registered
    if len(sys.modules) != looked:
        for name, module in list(sys.modules.items()):
            if name not in _looked:
                _looked[name] = not _is_importable(name, module)
                if _looked[name]:
                    absent_names.add(name)
        for name in _looked.keys() - sys.modules.keys():
            del _looked[name]
            absent_names.discard(name)
        looked = len(_looked)
        cloudpickle: Any = sys.modules.get("cloudpickle.cloudpickle")
        if cloudpickle is not None:
            registered = cloudpickle._PICKLE_BY_VALUE_MODULES
    return absent_names


def by_value() -> set[str]:
    """Returns the names of loaded modules whose functions and classes are sent by value, in addition to `__main__`."""
    names = absent()
    return names | registered if registered else names


def are_named_in(data: bytes) -> bool:
    """Whether a pickle contains names of modules that are sent by value."""
    return any(name.encode() in data for name in by_value())


def is_by_value(name: Optional[str]) -> bool:
    """Whether functions and classes of a module are sent by value."""
    return name is None or name in _MAINS or is_absent(name)


def is_absent(name: str) -> bool:
    """Whether a module or its package is sent by value."""
    names = by_value()
    if not names:
        return False
    while name not in names:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return False
    return True


def _is_importable(name: str, module: Any) -> bool:
    top = name.partition(".")[0]
    if top in _OF_WORKERS:
        return True
    if top != name:
        # A package makes some of its modules when it is imported: workers that import it have them, too.
        parent = sys.modules.get(top)
        return parent is None or not _looked.get(top, not _is_importable(top, parent))
    if name in _MAINS or type(module) is not types.ModuleType:
        return True
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return getattr(module, "__file__", None) is not None or name in sys.builtin_module_names
    origin = spec.origin
    if origin is None or not os.path.isabs(origin):
        # Built in, frozen, or a package without files of its own.
        return True
    folder = os.path.dirname(origin)
    if spec.submodule_search_locations is not None:
        folder = os.path.dirname(folder)
    if folder in _hidden:
        return False
    if folder in sys.path or folder in _absolute_path():
        return True
    return _is_found(name, origin)


def _is_found(name: str, origin: str) -> bool:
    # Searches as an import does, with the finders that packages have installed. This is slower than comparing folders.
    for finder in sys.meta_path:
        try:
            found = finder.find_spec(name, None)
        except Exception:
            continue
        if found is not None:
            return found.origin == origin
    return False


def hide(folders: Iterable[str]) -> Optional[str]:
    """Notes folders of the import path that workers do not see. Functions and classes of modules there are sent by value.
    Returns a warning if the program has imported modules from these folders, or if its own folder is one of them."""
    global looked
    new = set(folders) - _hidden
    if not new:
        return None
    _hidden.update(new)
    _looked.clear()
    absent_names.clear()
    looked = 0
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    used = {os.path.dirname(file) for file in files if isinstance(file, str)} | set(_absolute_path()[:1])
    named = sorted(new & used)
    if not named:
        return None
    return (
        f"functions do not see {', '.join(named)}: a sandbox shows no home folders, no folders that contain one, and no folders "
        "of all users (like /tmp); to tenants other than the agent's user it shows only the folders that the site allows. "
        "Functions and classes of modules there are sent by value; modules that only tasks import from there are not found. "
        "Move the program to a folder of its own, or let the lease declare the folder: ExecutorOptions(mounts=[...])"
    )


def give_path() -> list[str]:
    """Returns the import path with which workers are started, and records it, so that later changes are noticed."""
    global given, _is_any_given
    given = list(sys.path) if not _is_any_given or given == sys.path else None
    _is_any_given = True
    return _absolute_path()


def directory() -> Optional[str]:
    """Returns the current folder, or `None` if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _absolute_path() -> list[str]:
    """Returns the import path as absolute folders. If the current folder was removed, omits folders relative to it."""
    here = directory() or ""
    folders = [os.path.join(here, folder) for folder in sys.path]
    return [os.path.abspath(folder) for folder in folders if os.path.isabs(folder)]


def changed_path() -> Optional[tuple[str, ...]]:
    """Returns the import path if it differs from the path with which workers were started, else `None`."""
    if given == sys.path or not _is_any_given:
        return None
    return tuple(_absolute_path())


# Set by workers that run from a packed environment: they keep its import path, and append the program's own folders.
has_own_path = False


def follow(path: tuple[str, ...]) -> None:
    """Takes over the program's import path, in a worker."""
    mine = set(path)
    if has_own_path:
        new = sys.path + [folder for folder in path if folder not in sys.path and os.path.isdir(folder) and is_own(folder)]
    else:
        new = [*path, *(folder for folder in sys.path if folder not in mine)]
    if new != sys.path:
        sys.path[:] = new


def is_own(folder: str) -> bool:
    """Whether a folder of the import path belongs to the program, and not to its interpreter."""
    library = os.path.dirname(os.__file__)
    in_library = os.path.commonpath([library, folder]) == library
    return not in_library and os.path.basename(folder) not in ("site-packages", "dist-packages") and not folder.endswith(".zip")


def on_path(path: tuple[str, ...], value: Any) -> Any:
    """Returns `value`, which was unpickled after the worker had taken over the program's import path."""
    return value


class OnPath:
    """A value that is unpickled with the program's import path."""

    def __init__(self, path: tuple[str, ...], value: Any) -> None:
        self._path = path
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        # Arguments are unpickled in order: the path is set before the value is unpickled.
        return on_path, (_Path(self._path), self._value)


class _Path:
    def __init__(self, path: tuple[str, ...]) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return follow, (self._path,)
