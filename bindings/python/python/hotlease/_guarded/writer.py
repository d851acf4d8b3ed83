"""Pickles that a worker writes for a program that reads results as untrusted."""

from __future__ import annotations

import io
import pickle

from hotlease._guarded import arrays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Returns how a value is pickled."""
        return arrays.reduce(value)


def dumps(value: Any, buffers: Optional[list[pickle.PickleBuffer]] = None) -> bytes:
    """Pickles a result or an exception; large buffers are added to the list."""
    callback = None if buffers is None else buffers.append
    file = io.BytesIO()
    try:
        _Pickler(file, 5, buffer_callback=callback).dump(value)
        return file.getvalue()
    except Exception:
        # The value contains functions or classes of the client's __main__, for example.
        from hotlease import _by_value

        if buffers:
            buffers.clear()
        return _by_value.dumps(value, callback, is_current=False, is_guarded=True)
