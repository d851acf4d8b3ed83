"""The executor that a program keeps where it names none: one, so that the program's parts do not take each other's workers."""

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
    """The program's, made when it is first asked for; its workers are given back when the program ends."""
    global _kept
    with _lock:
        # The child of a fork has its parent's, which it cannot use.
        if _kept is None or _kept[0] != os.getpid():
            _kept = os.getpid(), Executor()
        return _kept[1]


def forget(broken: Executor) -> None:
    """Has another one made when it is asked for again."""
    global _kept
    with _lock:
        if _kept is not None and _kept[1] is broken:
            _kept = None


def is_worker() -> bool:
    """Whether this process is a worker: what it submitted would wait for the slot that it runs on."""
    return "hotlease._slot" in sys.modules
