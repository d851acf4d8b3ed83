"""Classes of `concurrent.futures` as bases of ours.

To import that (with `logging`, and what that needs) takes four times as long as all else until a program's first result, and who asks
for one of its classes has imported it. So until somebody has, classes here stand for them; when it is imported, before
anybody sees what it has, those that are derived from them are derived from the real ones instead.
"""

from __future__ import annotations

import sys

_MODULE = "concurrent.futures._base"

TYPE_CHECKING = False
if TYPE_CHECKING or _MODULE in sys.modules:
    from concurrent.futures import BrokenExecutor as BrokenExecutor, Executor as Executor, Future as Future

    def settle() -> None:
        """To be called when classes have been derived from those here: another thread may just have imported the real ones."""

else:
    from hotlease._hook import Hook

    class BrokenExecutor(RuntimeError):
        """Stands for that of `concurrent.futures`."""

    class Executor:
        """Stands for that of `concurrent.futures`."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.shutdown(wait=True)
            return False

    class Future:
        """Stands for that of `concurrent.futures`."""

        __class_getitem__ = classmethod(type(list[int]))

    _STANDING = (BrokenExecutor, Executor, Future)

    def _derive(module):
        for standing in _STANDING:
            real = getattr(module, standing.__name__)
            for ours in standing.__subclasses__():
                ours.__bases__ = tuple(real if base is standing else base for base in ours.__bases__)

    def settle():
        """As above."""
        if _MODULE in sys.modules and any(standing.__subclasses__() for standing in _STANDING):
            # Once that thread is ready.
            from concurrent.futures import _base

            _derive(_base)

    Hook(_MODULE, _derive)
