"""Open executors, which are shut down before the program ends, and the notice that an executor waits for workers."""

from __future__ import annotations

import os
import sys
import threading
import weakref

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotlease._executor import Executor

# Seconds of waiting for workers before the notice is written.
_TELL_AFTER_S = 1.0

executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_is_registered = False


def remember(executor: Executor) -> None:
    """Notes an executor that has been opened."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        # As concurrent.futures does: the function is called before the interpreter waits for its threads, while threads
        # can still be started.
        threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
        # A forked child must not shut down its parent's executors, or close their progress bars.
        os.register_at_fork(after_in_child=executors.clear)
    executors.add(executor)


class announced:
    """Says on standard error that a program waits for workers, and why, if the block takes more than a second."""

    def __init__(self, patience: float, why: str) -> None:
        text = f"hotlease: waits up to {patience:g} s for a worker: {why}\n"
        self._timer = threading.Timer(_TELL_AFTER_S, lambda: sys.stderr.write(text)) if why else None

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _at_exit() -> None:
    # A program that Ctrl-C ends does not wait for its tasks. An interactive interpreter does, even after an earlier Ctrl-C.
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
