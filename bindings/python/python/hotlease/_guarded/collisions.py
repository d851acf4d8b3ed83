"""Unpickling of results with many keys, whose hashes code in a sandbox can choose.

Hashes of texts and bytes are secret, but hashes of numbers and tuples are not. A new key is compared with all earlier
keys of the same hash. So the time for such keys grows with the square of their number, and meanwhile nothing else of the
program runs. Here keys are counted by their hashes before they are added. This needs the unpickler that is written in
Python: it is slower, but calls methods to add keys.
"""

from __future__ import annotations

import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    class _Base(pickle.Unpickler):
        """The unpickler written in Python: its operations, and its values above the last mark and below it."""

        dispatch: dict[int, Any]
        stack: list[Any]
        metastack: list[list[Any]]
else:
    _Base = pickle._Unpickler

# Largest number of keys of a result whose hashes are not counted.
KEYS_MAX = 100
# Largest number of keys of one dict or set that have the same hash.
_SAME_MAX = 64


class Unpickler(_Base):
    """Unpickler that raises an error if too many keys have the same hash."""

    dispatch = dict(_Base.dispatch)

    def __init__(self, file: Any, *, buffers: Any = None) -> None:
        super().__init__(file, buffers=buffers)
        # By address of a dict or set: the object itself, so that its address is not reused, and for each hash the number
        # of its keys.
        self._counts: dict[int, tuple[Any, dict[int, int]]] = {}

    def _admit(self, to: Any, keys: Iterable[Any]) -> None:
        counts = self._counts.setdefault(id(to), (to, {}))[1]
        for key in keys:
            of_key = hash(key)
            counts[of_key] = counts.get(of_key, 0) + 1
            if counts[of_key] > _SAME_MAX:
                raise pickle.UnpicklingError(f"it has more than {_SAME_MAX} keys with the same hash")

    def _set_item(self) -> None:
        self._admit(self.stack[-3], self.stack[-2:-1])
        _Base.dispatch[pickle.SETITEM[0]](self)

    def _set_items(self) -> None:
        # The stack has the values above the mark; the dict is the last value below it.
        self._admit(self.metastack[-1][-1], self.stack[::2])
        _Base.dispatch[pickle.SETITEMS[0]](self)

    def _add_items(self) -> None:
        self._admit(self.metastack[-1][-1], self.stack)
        _Base.dispatch[pickle.ADDITEMS[0]](self)

    def _make_frozen_set(self) -> None:
        items = self.stack
        self._admit(items, items)
        _Base.dispatch[pickle.FROZENSET[0]](self)

    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.ADDITEMS[0]] = _add_items
    dispatch[pickle.FROZENSET[0]] = _make_frozen_set
