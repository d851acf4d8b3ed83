"""What is done once a module is imported, which others may do or not."""

from __future__ import annotations

import sys

# As type checkers know it: `typing` takes as long to import as all that a worker imports.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Hook:
    """Finds a module as others would, and calls something with it when it has been executed: before whoever imports it goes on.

    Not called where it is imported already, or just now by another thread.
    """

    def __init__(self, name: str, then: Callable[[Any], object]) -> None:
        self._name = name
        self._then = then
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As of all finders."""
        if name != self._name:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path[:] if finder is not self)
        spec: Any = next((spec for spec in found if spec is not None), None)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def _executed(self, module: Any) -> None:
        # Once: it is executed again where somebody has removed it from `sys.modules`.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


class _Loader:
    """In the place of a module's own until it executes the module."""

    def __init__(self, own: Any, hook: Hook) -> None:
        self._own = own
        self._hook = hook

    def create_module(self, spec: Any) -> Any:
        """As of all loaders."""
        return self._own.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """As of all loaders."""
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        self._hook._executed(module)

    def __getattr__(self, name: str) -> Any:
        # For who finds the module without importing it: its source, its resources.
        return getattr(self._own, name)
