"""A backend of joblib: ``import hotlease.joblib``, then ``joblib.parallel_config(backend="hotlease")``.

>>> import joblib, hotlease.joblib
>>> with joblib.parallel_config(backend="hotlease"):
...     joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(n) for n in (-1, 2))
[1, 2]
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Future
from queue import SimpleQueue
from typing import Any, Optional

from hotlease import _kept, _known
from hotlease._executor import Executor
from hotlease._outcomes import call_back
from hotlease._preparing import preparation
from hotlease._remote import Preparation
from hotlease.errors import WorkerDied

try:
    from joblib.parallel import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        AutoBatchingMixin,
        FallbackToBackend,
        ParallelBackendBase,
        SequentialBackend,
        register_parallel_backend,
    )
except ImportError as error:
    raise ImportError("hotlease.joblib needs joblib: pip install joblib") from error

__all__ = ["HotleaseBackend"]

# Options that joblib passes to each backend, and that have no effect here. They concern joblib's choice of a backend, and
# arrays that other backends write to files for their workers.
_OF_JOBLIB = frozenset(("context", "max_nbytes", "mmap_mode", "prefer", "require", "temp_folder", "verbose"))


class HotleaseBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc,unused-ignore]
    """Runs joblib's batches in leased workers. Made by joblib, for ``backend="hotlease"``.

    Parameters
    ----------
    executor
        Executor of the batches: ``parallel_config(backend="hotlease", executor=...)``. Default: the program's default
        executor, which is kept from one call of ``Parallel`` to the next.
    initializer, initargs
        Called in each worker before the first batch of a call of ``Parallel``, unless it was the last
        initializer in that worker. ``Parallel`` takes both arguments, too. If the initializer raises, so does the call.
    """

    default_n_jobs = -1
    supports_retrieve_callback = True
    # A task costs microseconds, but joblib itself costs some hundred microseconds for each batch: batches have to be long.
    MIN_IDEAL_BATCH_DURATION = 0.02
    MAX_IDEAL_BATCH_DURATION = 0.2

    def __init__(
        self,
        executor: Optional[Executor] = None,
        initializer: Optional[Callable[..., object]] = None,
        initargs: tuple[Any, ...] = (),
        *,
        nesting_level: Optional[int] = None,
        inner_max_num_threads: Optional[int] = None,
        **others: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level)
        if inner_max_num_threads is not None:
            raise TypeError("inner_max_num_threads: joblib's backend hotlease takes none, because a worker has one core")
        _refuse(others)
        self._given = executor
        self._initializer = initializer, initargs
        self._preparations: weakref.WeakKeyDictionary[Any, Preparation] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._calls = 0
        self._batches: Optional[_Batches] = None

    def _executor(self) -> Executor:
        return self._given or _kept.executor()

    def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
        """Returns the requested number of jobs. A negative number is counted back from the number of workers: -1 is all."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        # A worker that waited for tasks would occupy the slot that they need.
        if n_jobs is None or _known.is_worker():
            return 1
        return n_jobs if n_jobs > 0 else max(self._executor()._slots() + 1 + n_jobs, 1)

    def configure(
        self,
        n_jobs: Optional[int] = 1,
        parallel: Any = None,
        initializer: Optional[Callable[..., object]] = None,
        initargs: tuple[Any, ...] = (),
        **others: Any,
    ) -> int:
        """Prepares the workers; returns the number of jobs."""
        _refuse(others.keys() - _OF_JOBLIB)
        if others.get("mmap_mode") in ("r+", "w+") and others.get("max_nbytes") is not None:
            raise ValueError(
                f"mmap_mode={others['mmap_mode']!r}: joblib's backend hotlease does not write arrays to files that tasks share; "
                "pass a numpy.memmap if tasks write to a shared array, or else max_nbytes=None"
            )
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        executor = self._executor()
        given = self._initializer if initializer is None else (initializer, initargs)
        self._preparations[parallel] = preparation(*given)
        with self._lock:
            # Calls of Parallel that overlap, because some return generators, share one backend.
            self._calls += 1
            if self._batches is None:
                self._batches = _Batches(executor)
            self._batches.at_once = n_jobs if n_jobs < executor._slots() else math.inf
        return n_jobs

    def submit(self, func: Any, callback: Optional[Callable[[Any], Any]] = None) -> None:
        """Sends a batch; `callback` gets the batch's future when the batch has ended."""
        with self._lock:
            batches = self._batches
        if batches is not None:
            prepared = self._preparations.get(getattr(callback, "parallel", self.parallel)) or preparation()
            batches.send((prepared, func), callback or (lambda future: None))

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Returns the result of a batch."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancels batches that do not run yet. Running batches continue to their end, which is not reported."""
        with self._lock:
            batches = self._batches
        if batches is not None:
            batches.cancel()

    def terminate(self) -> None:
        """Undoes `configure`. The workers are kept for the next call."""
        with self._lock:
            self._calls -= 1
            ended, self._batches = self._batches, self._batches if self._calls > 0 else None
        if ended is not None and self._batches is None:
            ended.end()
        self.reset_batch_stats()


class _Batches:
    """Batches that have not ended, and the thread that reports their ends to joblib.

    After each report joblib takes more tasks from the program's iterator. This may run any code, and may wait for space
    in the executor's queue, so the executor's own thread must not do it.
    """

    def __init__(self, executor: Executor) -> None:
        self.at_once: float = math.inf
        self._executor = executor
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Any, Callable[[Any], Any]]] = deque()
        self._sent: dict[Future[Any], Callable[[Any], Any]] = {}
        self._ended: SimpleQueue[Optional[Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._tell, name="hotlease.joblib", daemon=True).start()

    def send(self, batch: Any, callback: Callable[[Any], Any]) -> None:
        with self._lock:
            if len(self._sent) >= self.at_once:
                return self._waiting.append((batch, callback))
            # A placeholder, until there is a future.
            place: Future[Any] = Future()
            self._sent[place] = callback
        self._fill(place, batch, callback)

    def _fill(self, place: Future[Any], batch: Any, callback: Callable[[Any], Any]) -> None:
        try:
            future: Future[Any] = self._executor.submit(*batch)
        except BaseException as error:
            # Raised here, the exception would be lost if a background thread sends the batch.
            if isinstance(error, BrokenExecutor):
                _kept.forget(self._executor)
            place.set_exception(error)
            return self._ended.put(place)
        with self._lock:
            del self._sent[place]
            self._sent[future] = callback
        future.add_done_callback(self._ended.put)

    def _tell(self) -> None:
        for future in iter(self._ended.get, None):
            with self._lock:
                callback = self._sent.pop(future, None)
                following = self._waiting.popleft() if self._waiting else None
                if following is not None:
                    place: Future[Any] = Future()
                    self._sent[place] = following[1]
            if following is not None:
                self._fill(place, *following)
            if callback is not None:
                if not future.cancelled() and _is_broken(future.exception()):
                    _kept.forget(self._executor)
                call_back(callback, future)
            del future, callback, following

    def cancel(self) -> None:
        with self._lock:
            self._waiting = deque(waiting for waiting in self._waiting if not _is_aborted(waiting[1]))
            aborted = [future for future, callback in self._sent.items() if _is_aborted(callback)]
        for future in aborted:
            future.cancel()

    def end(self) -> None:
        self._ended.put(None)


def _refuse(names: Iterable[str]) -> None:
    for name in names:
        where = "; name it in parallel_config" if name == "executor" else ""
        raise TypeError(f"{name}: joblib's backend hotlease has the options executor, initializer and initargs{where}")


def _is_broken(error: Optional[BaseException]) -> bool:
    return isinstance(error, BrokenExecutor) and not isinstance(error, WorkerDied)


def _is_aborted(callback: Any) -> bool:
    # joblib tells a backend to abort, but not which call of Parallel. So this reads joblib's callback, which refers to
    # its call.
    return bool(getattr(getattr(callback, "parallel", None), "_aborting", True))


register_parallel_backend("hotlease", HotleaseBackend)
