"""Default executor of a program: one, so that parts of the program do not compete for workers."""

from __future__ import annotations

import os
import sys
import threading

from hotlease._executor import Executor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_kept: Optional[tuple[int, Executor]] = None
_lock = threading.Lock()


def executor() -> Executor:
    """Returns the program's executor, made on first use; its workers are released when the program ends."""
    global _kept
    with _lock:
        # The child of a fork has its parent's executor, which it cannot use.
        if _kept is None or _kept[0] != os.getpid():
            _kept = os.getpid(), Executor()
        return _kept[1]


def forget(broken: Executor) -> None:
    """Forgets a broken executor, so that the next use makes another one."""
    global _kept
    with _lock:
        if _kept is not None and _kept[1] is broken:
            _kept = None


def is_worker() -> bool:
    """Whether this process is a worker: tasks that it submitted would wait for the slot that it runs on."""
    return "hotlease._slot" in sys.modules
