"""Preparation of workers for calls that other libraries make: `hotlease._remote.Preparation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from hotlease import _by_value, _modules, _pickles
from hotlease._remote import Preparation

# Used again if equal: an executor remembers functions by identity, and most calls of a program have equal preparations.
_last = Preparation(None, None)


def preparation(initializer: Optional[Callable[..., object]] = None, initargs: tuple[Any, ...] = ()) -> Preparation:
    """Returns the preparation of workers: the program's working directory, and the pickled initializer if there is one."""
    global _last
    pickled = None
    if initializer is not None:
        if not callable(initializer):
            raise TypeError("initializer must be a callable")
        pickled = _by_value.dumps(_pickles.on_path((initializer, tuple(initargs))))
    made = Preparation(_modules.directory(), pickled)
    if vars(made) != vars(_last):
        _last = made
    return _last
