"""A scheduler for Dask: ``dask.compute(..., scheduler=hotlease.dask.get)``.

>>> import dask, hotlease.dask
>>> dask.delayed(sum)([1, 2]).compute(scheduler=hotlease.dask.get)
3
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future
from typing import Any, Optional

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hotlease import _kept, _known
from hotlease._executor import Executor
from hotlease._outcomes import exception_of
from hotlease._preparing import preparation
from hotlease._remote import Preparation
from hotlease.errors import WorkerDied

try:
    import dask.base  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from dask.local import get_async, get_sync  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from dask.optimization import cull, fuse  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from dask.utils import ensure_dict  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError as error:
    raise ImportError("hotlease.dask needs Dask: pip install dask") from error

__all__ = ["get"]

# Number of tasks sent ahead to each worker, so that no worker waits while results are handled here.
_AHEAD = 2


def get(
    dsk: Mapping[Any, Any],
    keys: Any,
    num_workers: Optional[int] = None,
    pool: Optional[Executor] = None,
    optimize_graph: bool = True,
    chunksize: Optional[int] = None,
    initializer: Optional[Callable[[], object]] = None,
    func_loads: Optional[Callable[[Any], Any]] = None,
    func_dumps: Optional[Callable[[Any], Any]] = None,
    **of_dask: Any,
) -> Any:
    """Computes keys of a graph in leased workers. Called by Dask.

    Results that other tasks need are returned to the program, and sent again.

    Parameters
    ----------
    dsk
        The graph.
    keys
        A key, or lists of keys.
    num_workers
        Largest number of tasks at the same time. Default: two for each worker of the executor.
    pool
        Executor to use. Default: ``pool`` of ``dask.config``, else the program's default executor, which is kept from one
        call to the next.
    optimize_graph
        Whether chains of tasks without branches are fused into one.
    chunksize
        Number of tasks that are sent together. Default: ``chunksize`` of ``dask.config``, else 1.
    initializer
        Called in each worker before the first task of the call, unless it was the last initializer there. With a
        `pool`, only the pool's own initializer is called, and this argument is ignored with a warning. Default:
        ``multiprocessing.initializer`` of ``dask.config``, else none.
    func_loads, func_dumps
        Functions that unpickle and pickle tasks and results. Without them, hotlease's own pickling is used, which copies
        large arrays once. Default: the functions in ``dask.config``, else none.
    """
    graph = ensure_dict(dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dsk)
    graph, dependencies = cull(graph, keys)  # type: ignore[no-untyped-call,unused-ignore]
    if optimize_graph:
        # Keys are not renamed: an alias would be an additional task.
        graph, dependencies = fuse(graph, keys, dependencies, rename_keys=False)  # type: ignore[no-untyped-call,unused-ignore]
    if _known.is_worker():
        # A worker that waited for tasks would occupy the slot that they need.
        return get_sync(graph, keys, **of_dask)  # type: ignore[no-untyped-call,unused-ignore]
    pool = pool or dask.config.get("pool", None)
    initializer = initializer or dask.config.get("multiprocessing.initializer", None)
    if pool is not None and initializer is not None:
        text = "the initializer is ignored, because a pool was given: hotlease.Executor(initializer=...) has its own"
        warnings.warn(text, stacklevel=2)
        initializer = None
    loads, dumps = func_loads or dask.config.get("func_loads", None), func_dumps or dask.config.get("func_dumps", None)
    if loads or dumps:
        of_dask.update(loads=loads or cloudpickle.loads, dumps=dumps or cloudpickle.dumps)
    executor = pool or _kept.executor()
    if not isinstance(executor, Executor):
        raise TypeError(f"the pool of hotlease.dask.get is a hotlease.Executor, not {type(executor).__name__}")
    num_workers = num_workers or dask.config.get("num_workers", None)
    tasks = _Tasks(executor, preparation(initializer))
    try:
        return get_async(  # type: ignore[no-untyped-call,unused-ignore]
            tasks.submit,
            num_workers or _AHEAD * executor._slots(),
            graph,
            keys,
            get_id=os.getpid,
            pack_exception=_packed,
            raise_exception=functools.partial(_raise, executor),
            chunksize=chunksize,
            **of_dask,
        )
    except BaseException as error:
        tasks.cancel()
        if isinstance(error, BrokenExecutor) and not isinstance(error, WorkerDied):
            _kept.forget(executor)
        raise


class _Tasks:
    """Tasks of one call, recorded so that tasks that have not started can be cancelled when the call fails."""

    def __init__(self, executor: Executor, prepared: Preparation) -> None:
        self._executor = executor
        self._prepared = prepared
        self._sent: set[Future[Any]] = set()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(self._prepared, function, *args)
        self._sent.add(future)
        future.add_done_callback(self._sent.discard)
        return future

    def cancel(self) -> None:
        for future in list(self._sent):
            future.cancel()


def _packed(error: BaseException, dumps: Callable[[Any], Any]) -> Any:
    # This runs in a worker, and describes the exception as the worker describes exceptions of other tasks.
    worker: Any = sys.modules["hotlease._slot"]
    return dumps((worker.describe(error), None))


def _raise(executor: Executor, described: tuple[bytes, Optional[bytes], bytes], nothing: None) -> None:
    traceback, pickled, text = described
    raise exception_of(executor, traceback.decode(errors="replace"), pickled, text.decode(errors="replace"))


# Available by name, too: dask.config.set(scheduler="hotlease").
dask.base.named_schedulers["hotlease"] = get
