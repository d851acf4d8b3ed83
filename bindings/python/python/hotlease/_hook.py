"""Hook that calls a function at the first import of a module, if the module is ever imported."""

from __future__ import annotations

import sys

# Set by type checkers, not imported from `typing`: its import takes as long as all imports of a worker.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Hook:
    """Import hook: finds a module through the other finders, and calls a function after the module was executed, before
    the importer gets the module.

    The function is not called if the module is imported already, or if another thread is importing it.
    """

    def __init__(self, name: str, then: Callable[[Any], object]) -> None:
        self._name = name
        self._then = then
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Implements the protocol of finders."""
        if name != self._name:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path[:] if finder is not self)
        spec: Any = next((spec for spec in found if spec is not None), None)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def _executed(self, module: Any) -> None:
        # Called only once, although the module is executed again if it was removed from `sys.modules`.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


class _Loader:
    """Wraps the loader of a module until the module is executed."""

    def __init__(self, own: Any, hook: Hook) -> None:
        self._own = own
        self._hook = hook

    def create_module(self, spec: Any) -> Any:
        """Implements the protocol of loaders."""
        return self._own.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Implements the protocol of loaders."""
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        self._hook._executed(module)

    def __getattr__(self, name: str) -> Any:
        # For code that examines the module without importing it, such as its source or its resources.
        return getattr(self._own, name)
