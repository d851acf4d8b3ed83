"""Executors that are open: they are shut down before the program ends."""

from __future__ import annotations

import os
import sys
import threading
import weakref

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotlease._executor import Executor

executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_is_registered = False


def remember(executor: Executor) -> None:
    """Notes an executor that has been opened."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        # As concurrent.futures does: before the interpreter waits for its threads, while threads can still be started.
        threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
        # A child has no part in its parent's executors, nor in their progress bars.
        os.register_at_fork(after_in_child=executors.clear)
    executors.add(executor)


def _at_exit() -> None:
    # A program that Ctrl-C has ended does not wait for its tasks, but an interactive session that it once interrupted does.
    is_interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1")
    for executor in list(executors):
        try:
            if not is_interrupted:
                executor._shutdown(True, False)
        except KeyboardInterrupt:
            is_interrupted = True
        if is_interrupted:
            executor.kill_workers()
        executor._close_bar()
    _core._await_dropped()
