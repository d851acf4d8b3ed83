"""Base classes from `concurrent.futures`, replaced by stand-ins until `concurrent.futures` is imported.

This import (with `logging` and its dependencies) takes four times as long as everything else until a program's first
result, and a program that uses classes of `concurrent.futures` imports it itself. Until then, stand-in classes here are
the bases. When `concurrent.futures` is imported, and before any importer gets it, the bases of the derived classes are
changed from the stand-ins to the real classes.
"""

from __future__ import annotations

import sys

_MODULE = "concurrent.futures._base"

TYPE_CHECKING = False


def is_future(value: object) -> bool:
    """Whether a value is a future of `concurrent.futures` or of this package. Imports nothing."""
    real = getattr(sys.modules.get(_MODULE), "Future", Future)
    return isinstance(value, (Future, real))


if TYPE_CHECKING or _MODULE in sys.modules:
    from concurrent.futures import BrokenExecutor as BrokenExecutor, Executor as Executor, Future as Future

    def settle() -> None:
        """Call this after deriving from the classes here: another thread may just have imported the real classes."""

else:
    from hotlease._hook import Hook

    class BrokenExecutor(RuntimeError):
        """Stand-in for `concurrent.futures.BrokenExecutor`."""

    class Executor:
        """Stand-in for `concurrent.futures.Executor`."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.shutdown(wait=True)
            return False

    class Future:
        """Stand-in for `concurrent.futures.Future`."""

        __class_getitem__ = classmethod(type(list[int]))

    _STANDING = (BrokenExecutor, Executor, Future)

    def _derive(module):
        for standing in _STANDING:
            real = getattr(module, standing.__name__)
            for ours in standing.__subclasses__():
                ours.__bases__ = tuple(real if base is standing else base for base in ours.__bases__)

    def settle():
        """Call this after deriving from the classes here: another thread may just have imported the real classes."""
        if _MODULE in sys.modules and any(standing.__subclasses__() for standing in _STANDING):
            # This import waits until the other thread has finished its import.
            from concurrent.futures import _base

            _derive(_base)

    Hook(_MODULE, _derive)
