"""Default executor of a program. There is only one, so that parts of the program do not compete for workers."""

from __future__ import annotations

import os
import threading

from hotlease._executor import Executor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_kept: Optional[Executor] = None
_lock = threading.Lock()


def executor() -> Executor:
    """Returns the program's executor. It is made on first use, and its workers are released when the program ends."""
    global _kept
    with _lock:
        if _kept is None:
            _kept = Executor()
        return _kept


def forget(broken: Executor) -> None:
    """Forgets a broken executor, so that the next use makes another executor."""
    global _kept
    with _lock:
        if _kept is broken:
            _kept = None


def _begin_anew() -> None:
    """Forgets, in a forked child, the parent's executor, and the lock, which another thread may have held."""
    global _kept, _lock
    _kept, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
