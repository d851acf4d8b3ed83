"""`hotlease.Executor` and its futures."""

from __future__ import annotations

import itertools
import os
import sys
import time

from hotlease import _bases, _core, _modules, _open, _platform
from hotlease.errors import NotRunning, Refused

# Every program that makes an executor waits for these imports: rarely needed modules are imported inside functions.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.context import BaseContext
    from typing import Any, Optional, TypeVar, Union

    from typing_extensions import Unpack

    from hotlease._options import ExecutorOptions, OptionArguments
    from hotlease._showing import Part, Pieces
    from hotlease._starting import ColdStart
    from hotlease._task_options import Options
    from hotlease._timing import Timing

    T = TypeVar("T")

# Environment variable with the modules that workers import before they run tasks.
_IMPORTS = "HOTLEASE_PYTHON_IMPORTS"
# Environment variable with the number of tasks after which a worker ends.
_TASKS_MAX = "HOTLEASE_PYTHON_TASKS_MAX"
# Environment variable that makes a worker send the output of tasks; its value is the level of the log records to send.
_OUTPUT = "HOTLEASE_PYTHON_OUTPUT"
_WARNING = 30  # default level of the root logger
# Default number of tasks whose times are kept.
_TIMED = 10_000
# Defaults of the options `at_least` (workers) and `patience` (seconds).
_AT_LEAST, _PATIENCE = 1, 10.0


class Future(_core.Task, _bases.Future["T"]):
    """The result of a task, once the task has ended. Made by `Executor.submit`.

    A `concurrent.futures.Future` that can also be awaited.
    """

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        if sys.version_info >= (3, 12):
            return asyncio.wrap_future(self).__await__()
        from hotlease import _awaiting

        return _awaiting.awaitable(self).__await__()

    @property
    def timing(self) -> Optional[Timing]:
        """Seconds of each phase so far; `None` unless the executor times tasks: ``Executor(timing=True)``."""
        from hotlease import _timing

        row = self._times()
        return None if row is None else _timing.timing(row)

    def __repr__(self) -> str:
        state = self._state.lower()
        if state == "finished":
            error = self.exception()
            state = f"raised {type(error).__name__}" if error else f"returned {type(self.result()).__name__}"
        return f"<hotlease.Future at {id(self):#x}: {state}>"


class Executor(_core.Client, _bases.Executor):
    """Runs tasks in leased worker processes, as `concurrent.futures.ProcessPoolExecutor` does in local processes.

    Without a manager, the executor uses the platform of this node. If none runs, it starts one (``hotlease up --detach``)
    and says so; this platform ends after ``$HOTLEASE_IDLE_LIMIT`` without leases (``10min`` by default, or ``never``).

    Parameters
    ----------
    max_workers
        Maximum number of worker processes; there are fewer if the platform has no more. Workers that other programs release are
        added in the first seconds, and later while more tasks wait than there are workers. Default: one for each core of this process. A string is taken as `manager`.
    mp_context
        Accepted from programs that pass a context of `multiprocessing`, but ignored: each worker is a new interpreter, as
        with ``spawn``.
    initializer, initargs
        Called in each worker before any task. If it raises, the executor is broken.
    max_tasks_per_child
        Number of tasks after which a worker is replaced. With this option, a worker gets no task while it runs another task.
        Default: workers live as long as the executor.
    manager
        ``https://HOST:PORT`` of a cluster's manager. Default: ``$HOTLEASE_MANAGER``, else the platform of this node.
    environment
        Hash or file of a packed environment (``hotlease env pack``): workers run its Python instead of this program's. It must
        have this program's versions of hotlease, cloudpickle and Python (except the last number). Workers append only the
        folders of the program's own modules to their import path, and only folders that exist there.
    timeout
        Time limit of each task in seconds. At the limit its worker is killed, and its future raises `DeadlineExceeded`. If the
        executor has lost all workers, tasks that have waited so long for a worker fail in this way, too. Default: no limit.
    options
        Options in one object, for several executors: `ExecutorOptions`.
    named
        Options of `ExecutorOptions` by name: ``Executor(memo=True, checkpoint="results")``. An option that `options` also
        sets is an error.

    Raises
    ------
    hotlease.Error
        If no worker is available.

    Examples
    --------
    >>> with hotlease.Executor() as executor:
    ...     print(executor.submit(pow, 2, 10).result())
    1024
    """

    # Class of the futures that `submit` returns.
    _future: type[Future[Any]] = Future

    def __init__(
        self,
        max_workers: Union[int, str, None] = None,
        mp_context: Optional[BaseContext] = None,
        initializer: Optional[Callable[..., object]] = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: Optional[int] = None,
        manager: Optional[str] = None,
        environment: Union[str, os.PathLike[str], None] = None,
        timeout: Optional[float] = None,
        options: Optional[ExecutorOptions] = None,
        **named: Unpack[OptionArguments],
    ) -> None:
        if named:
            # Imported only if needed: this import takes longer than everything else here.
            from hotlease._options import collected

            options = collected(type(self), options, named)
        asked: dict[str, Any] = {} if options is None else dict(vars(options))
        at_least, cluster, waits = asked.pop("at_least", _AT_LEAST), asked.pop("cluster", None), asked.pop("patience", None)
        patience = _PATIENCE if waits is None else waits
        if patience < 0:
            raise ValueError(f"patience must be a number of seconds from 0 on, not {patience}")
        max_pending, output, progress = asked.get("max_pending"), asked.pop("output", True), asked.pop("progress", False)
        state, timing = asked.get("state"), asked.pop("timing", False)
        trusts, classes = asked.pop("trust_results", False), asked.pop("result_classes", ())
        variables, imports = dict(asked.pop("variables", None) or {}), asked.pop("imports", ())
        self._cluster = cluster  # kept alive: when the object is deleted, its nodes are given back
        if cluster is not None:
            manager, max_workers = cluster._used(asked, manager, max_workers)
        if isinstance(max_workers, str):
            if manager is not None:
                raise TypeError("two managers were given")
            if max_workers.isdigit():
                raise TypeError(f"max_workers is a number: write Executor({max_workers}), not Executor({max_workers!r})")
            max_workers, manager = None, max_workers
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if at_least <= 0:
            raise ValueError("at_least must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if mp_context is not None and not hasattr(mp_context, "get_start_method"):
            raise TypeError("mp_context must be a context of multiprocessing")
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError("max_tasks_per_child must be an integer")
            if max_tasks_per_child <= 0:
                raise ValueError("max_tasks_per_child must be >= 1")
        if max_pending is not None and max_pending <= 0:
            raise ValueError("max_pending must be greater than 0")
        if not isinstance(output, bool) and not callable(output):
            raise TypeError("output must be a bool or a callable")
        if progress:
            from hotlease import _progress

            # Raises an error if tqdm is missing, before workers are leased.
            _progress.tqdm()
        if classes:
            from hotlease._guarded.reader import checked

            classes = checked(classes)
        # `None`: results are trusted.
        self._result_classes = None if trusts else tuple(classes)
        if state is not None:
            if max_workers not in (None, 1):
                raise ValueError("a state is that of one worker: max_workers must be 1")
            if max_tasks_per_child is not None:
                raise ValueError("a state is that of one worker, which max_tasks_per_child would replace")
            max_workers = 1
        for name, what in (("mounts", "directories"), ("storage", "places")):
            if isinstance(asked.get(name), str):
                raise TypeError(f"{name} is a list of {what}")
            asked[name] = list(asked.get(name, ()))
        asked.update(manager=manager, timeout=timeout, patience=patience, result_classes=self._result_classes)
        asked.update(workers=max_workers or len(os.sched_getaffinity(0)), at_least=at_least)
        asked["lends"] = asked.get("lends", True) and at_least == 1
        asked["timing"] = _TIMED if timing is True else int(timing)
        image = None if environment is None else _platform.image(environment)
        if output:
            asked["output"] = _shower(output)
            # Lowest level of the log records that workers send: the program's root level, if it has imported logging.
            root = getattr(sys.modules.get("logging"), "root", None)
            variables[_OUTPUT] = str(_WARNING if root is None else root.level)
        if max_tasks_per_child is not None:
            # The initializer counts as a task. A worker that ends after its last task cannot have one that was sent ahead.
            variables[_TASKS_MAX] = str(max_tasks_per_child + (initializer is not None))
            asked["depth"] = 1
        if imports:
            variables[_IMPORTS] = _platform.imports(imports)
        asked["python"] = _platform.interpreter(variables, image)
        asked = {name: value for name, value in asked.items() if value is not None}
        _bases.settle()
        prepared = None if initializer is None else (initializer, tuple(initargs))
        if cluster is not None:
            cluster._opened(lambda some: self._open(self._future, {**asked, "patience": some}, prepared), waits)
        elif manager is None and "runtime_dir" not in asked and _platform.may_start():
            self._open_here(asked, prepared, patience)
        else:
            self._open(self._future, asked, prepared)
        self._warn(_modules.hide(_core._hidden(self)))
        if trusts and _core._is_confined(self):
            import warnings

            text = "trust_results=True: results of this sandbox may run code of the sandbox here, with all rights of this program"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._bar = _progress.Bar(self) if progress else None
        _open.remember(self)

    def _warn(self, *texts: Optional[str]) -> None:
        for text in filter(None, [*texts, *self._warnings()]):
            import warnings

            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _open_here(
        self,
        options: dict[str, Any],
        prepared: Optional[tuple[Callable[..., object], tuple[Any, ...]]],
        patience: float,
    ) -> None:
        # The first try has no patience: otherwise it would also wait for a platform that is not running.
        why = ""
        try:
            return self._open(self._future, {**options, "patience": 0.0}, prepared)
        except NotRunning:
            _platform.start()
        except Refused as refused:
            if patience <= 0 or not refused.may_pass:
                raise
            why = str(refused)
        with _open.announced(patience, why):
            self._open(self._future, options, prepared)

    def __repr__(self) -> str:
        from hotlease._names import counted

        return f"<hotlease.Executor: {counted(self._slots(), 'worker')}, {counted(self._pending(), 'task')} pending>"

    def options(
        self,
        *,
        retries: Optional[int] = None,
        priority: Optional[int] = None,
        memo: Union[bool, str, None] = None,
        idempotent: Optional[bool] = None,
    ) -> Options:
        """Returns this executor with other options for its tasks: ``executor.options(retries=2).submit(fn, ...)``.

        If an option is `None`, the function's option (`hotlease.function`) applies, else the executor's. Options are not
        arguments of `submit`, because it passes all named arguments to the function.

        Parameters
        ----------
        retries
            How often a task is run again after it raised an exception. After the death of its worker, or at its
            deadline, it is run again only if it is idempotent.
        priority
            Higher priorities are sent to workers first. Default: 0.
        memo
            True: a task with the same function and arguments as an earlier task gets the earlier task's result. Functions of a
            library are the same if their code is; those of the program if the functions and globals of the program that they use
            are the same, too. Arguments are the same if their content is; the location of code and the order of sets make no
            difference. Equal tasks wait for a pending task; they run if it fails. A string: a name in place of all that.
        idempotent
            Whether the task may run again after its worker died.
        """
        from hotlease._task_options import Options

        return Options(self, _core.TaskOptions(retries=retries, priority=priority, memo=memo, idempotent=idempotent))

    def empty(self, shape: Union[int, Iterable[int]], dtype: Any = float) -> Any:
        """Makes an uninitialised numpy array in memory that workers share: tasks get it without a copy.

        The array is not copied if it has more than a few kilobytes, is the task's only large argument (the whole array, or
        a part that begins at its start), and no other task uses it at the same time. Otherwise it is copied like any array;
        it is always copied for other executors, and for tasks that may run again (`idempotent`, `retries`). The task cannot
        write to it. The program should not write to it before the task has ended, because the task would see the change.

        The memory returns to the pool when the array and all views of it are gone. Each array uses a file descriptor and
        one of the executor's 128 buffers; while all buffers are in use, large results are copied. Thread-safe.

        Parameters
        ----------
        shape
            As in `numpy.empty`.
        dtype
            As in `numpy.empty`, except types with Python objects.

        Raises
        ------
        TypeError
            If elements of this type cannot be shared.
        hotlease.Error
            If the memory is not available.

        Examples
        --------
        >>> with hotlease.Executor(1) as executor:
        ...     array = executor.empty(1_000_000)
        ...     array[:] = 1
        ...     print(executor.submit(numpy.sum, array).result())
        1000000.0
        """
        import math
        import operator
        from collections.abc import Iterable

        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"elements of type {kind} are Python objects, which workers cannot share")
        sizes = tuple(shape) if isinstance(shape, Iterable) else (operator.index(shape),)
        if any(size < 0 for size in sizes):
            raise ValueError("negative dimensions are not allowed")
        return numpy.ndarray(sizes, kind, buffer=self._memory(math.prod(sizes) * kind.itemsize))

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
        progress: bool = False,
    ) -> Iterator[T]:
        """Calls `fn` with each of the arguments; returns the results in order.

        All calls see the function, and the globals that it uses, as they are now. With `buffersize`, later calls may see them as
        they are then: with a `chunksize`, for an `fn` with a state of its own, and if a subclass has its own `submit`.

        Parameters
        ----------
        fn
            Takes as many arguments as there are iterables.
        timeout
            Seconds from now, after which the iterator raises `TimeoutError`.
        chunksize
            Number of calls in one task.
        buffersize
            Maximum number of tasks whose results were not yet taken from the iterator; the iterables are read as results are
            taken. Default: all tasks are submitted at once.
        progress
            Whether to show a bar of tqdm that counts results as they are taken.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        end = None if timeout is None else time.monotonic() + timeout
        bar = count = None
        if progress:
            from hotlease import _progress

            # Raises an error if tqdm is missing, before anything is submitted.
            bar, count = _progress.tqdm(), _progress.total(iterables)
        calls = zip(*iterables)
        results: Iterator[T]
        if chunksize == 1:
            results = self._map_each(fn, calls, end, buffersize)
        else:
            results = self._map_chunks(fn, calls, end, chunksize, buffersize)
        return results if bar is None else _progress.drawn(bar, results, count)

    def _map_each(
        self,
        fn: Callable[..., T],
        calls: Iterator[tuple[Any, ...]],
        end: Optional[float],
        buffersize: Optional[int],
    ) -> Iterator[T]:
        from hotlease._drawing import drawn

        # A function with globals is pickled once for all calls. A subclass with its own `submit` gets the function itself.
        settled = _core._settle(self, fn) if type(self).submit is Executor.submit else None
        if settled is None:
            return drawn((self.submit(fn, *args) for args in calls), end, buffersize)
        return drawn((_core._submit_settled(self, settled, *args) for args in calls), end, buffersize)

    def _map_chunks(
        self,
        fn: Callable[..., T],
        calls: Iterator[tuple[Any, ...]],
        end: Optional[float],
        chunksize: int,
        buffersize: Optional[int],
    ) -> Iterator[T]:
        from hotlease._drawing import drawn, each
        from hotlease._remote import chunk

        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        return each(drawn((self.submit(chunk, fn, some) for some in chunks), end, buffersize))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stops accepting tasks, and releases the workers when all tasks have ended.

        Parameters
        ----------
        wait
            Whether to return only after the release. Ctrl-C during this wait ends the executor at once, as `kill_workers` does.
        cancel_futures
            Whether to cancel tasks that were not sent to a worker yet.
        """
        try:
            self._shutdown(wait, cancel_futures)
        except KeyboardInterrupt:
            self.kill_workers()
            raise
        if wait:
            self._warn()
            self._close_bar()

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        # Ctrl-C in a terminal does not reach the workers, which are in separate sessions.
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.kill_workers()
        else:
            self.shutdown()

    def kill_workers(self) -> None:
        """Ends the executor at once: its workers are killed, running tasks raise `BrokenExecutor`, and waiting tasks are
        cancelled. Returns when the workers are gone.
        """
        _core._kill(self)
        self._close_bar()

    def terminate_workers(self) -> None:
        """The same as `kill_workers`: workers ignore SIGTERM."""
        self.kill_workers()

    def _close_bar(self) -> None:
        bar = getattr(self, "_bar", None)
        if bar is not None:
            bar.close()

    def cold_start(self) -> ColdStart:
        """Returns the time of each step of the executor's latest start, and why workers had to be started for it. Thread-safe.

        For an executor that has lost its lease and taken a new one, the latest start is that of the new lease.
        """
        from hotlease._starting import ColdStart

        seconds, warm, cold, why = _core._cold_start(self)
        return ColdStart._make((*seconds, warm, cold, why))

    def report(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes an HTML page about the last tasks that were submitted: what ran when on which worker, how long each
        phase took, how busy the workers were. The page loads nothing else. The executor must have been made with ``timing=True``.

        Raises
        ------
        RuntimeError
            If the executor does not time its tasks.
        """
        from hotlease import _report

        records = self._records()
        if records is None:
            raise RuntimeError("this executor does not time its tasks: Executor(timing=True)")
        _report.write(path, records, self._slots(), self._submitted())


def _shower(output: Union[bool, Callable[[Part], object]]) -> Callable[[str, int, Pieces, bool], None]:
    def show(function: str, worker: int, pieces: Pieces, is_untrusted: bool) -> None:
        # Imported here: tasks of most programs print nothing.
        from hotlease import _showing

        _showing.show(output, function, worker, pieces, is_untrusted)

    return show


_bases.settle()
