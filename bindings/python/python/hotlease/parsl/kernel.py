"""A dataflow kernel for Parsl's apps that leaves most of the work to the executor: arguments that are futures, retries and
failures.

Apps are tasks of `hotlease.Executor`, which tracks their dependencies in Rust. If Python code has to run after one step
of a task and before its next step (join apps, memoisation, staging from elsewhere, retry handlers, monitoring), the task
is passed to Parsl's own kernel, the base class of this kernel, and runs in the same workers.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future
from typing import Any, Optional, Union

import parsl
import parsl.config
from parsl.app.futures import DataFuture
from parsl.app.python import timeout
from parsl.config import Config
from parsl.data_provider.files import File
from parsl.dataflow.dependency_resolvers import DEEP_DEPENDENCY_RESOLVER, SHALLOW_DEPENDENCY_RESOLVER
from parsl.dataflow.dflow import DataFlowKernel, DataFlowKernelLoader
from parsl.errors import ConfigurationError
from parsl.executors import ThreadPoolExecutor

from hotlease import _core
from hotlease._executor import Executor
from hotlease.parsl.apps import App
from hotlease.parsl.executor import HotleaseExecutor
from hotlease.parsl.futures import AppFuture, Call

# Maximum number of apps in the kernel's table; a full table is emptied.
_APPS_MAX = 4096
# Code of Parsl's wrapper of an app with a walltime. Parsl makes a new wrapper for each call, always with this code.
_TIMED = timeout(len, 1.0).__code__
_STREAMS = ("stdout", "stderr")


class _AppExecutor(Executor):
    _future = AppFuture


class Kernel(DataFlowKernel):
    """Parsl's kernel; its tasks run in hotlease's dataflow kernel. Made by `load`.

    Parameters
    ----------
    config
        A configuration with one executor, a `HotleaseExecutor`.
    """

    def __init__(self, config: Config) -> None:
        self._executor = _only(config)
        self._executor.kind = _AppExecutor
        self.label: str = self._executor.label
        self._apps: dict[Any, App] = {}
        self._numbering = threading.RLock()
        resolver = config.dependency_resolver
        # Each of these settings needs Python code between two steps of one task.
        self._asks_python = bool(
            config.monitoring
            or config.retry_handler
            or not config.garbage_collect
            or resolver not in (None, SHALLOW_DEPENDENCY_RESOLVER, DEEP_DEPENDENCY_RESOLVER)
        )
        self._stages = self._executor.storage_access is not None
        # Parsl retries a task after any failure, including the death of its worker.
        self._asking = _core.TaskOptions(retries=config.retries, idempotent=config.retries > 0 or None)
        # Started first: if there are no workers, nothing else has to be undone.
        self._executor.start()
        try:
            super().__init__(config)
        except BaseException:
            self._executor.shutdown()
            raise

    def submit(
        self,
        func: Callable[..., Any],
        app_args: Sequence[Any],
        executors: Union[str, Sequence[str]] = "all",
        cache: bool = False,
        ignore_for_cache: Optional[Sequence[str]] = None,
        app_kwargs: dict[str, Any] = {},  # noqa: B006
        join: bool = False,
    ) -> Any:
        """Accepts an app's call. Called by apps."""
        future = None
        if not (cache or join or self._asks_python or self.cleanup_called) and self._is_mine(executors):
            future = self._take(func, app_args, app_kwargs)
        if future is not None:
            return future
        with self._numbering:
            return super().submit(
                func,
                app_args=app_args,
                executors=executors,
                cache=cache,
                ignore_for_cache=ignore_for_cache,
                app_kwargs=app_kwargs,
                join=join,
            )

    def _is_mine(self, executors: Union[str, Sequence[str]]) -> bool:
        if isinstance(executors, str):
            return executors.lower() == "all"
        return isinstance(executors, list) and executors == [self.label]

    def _take(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Optional[AppFuture]:
        """Submits a task to the executor and returns its future. Returns None if Parsl's own kernel has to run the task."""
        needs: list[weakref.ReferenceType[Future[Any]]] = []
        if not self._can_take(args, needs) or kwargs and not self._can_take_named(kwargs, needs):
            return None
        try:
            app = self._apps.get(func) or self._learn(func, kwargs)
        except Exception:
            # The error has to be reported by a future: Parsl's own kernel does that.
            return None
        executor = self._executor.started
        if executor is None:
            return None
        with self._numbering:
            number = self.task_count
            self.task_count += 1
        call = Call(self, number, app.__qualname__, needs or None)
        if kwargs:
            kwargs = self._directed(kwargs, call)
        try:
            future: Any = executor._submit_as(self._asking, app, *args, **kwargs)
        except (BrokenExecutor, RuntimeError):
            return None
        future._call = call
        if kwargs:
            self._promise_files(future, kwargs, call)
        return future  # type: ignore[no-any-return,unused-ignore]

    def _can_take(self, values: Sequence[Any], needs: list[weakref.ReferenceType[Future[Any]]]) -> bool:
        for value in values:
            if isinstance(value, Future):
                if isinstance(value, DataFuture) and not self._is_here(value.file_obj):
                    return False
                needs.append(weakref.ref(value))
            elif isinstance(value, File) and not self._is_here(value):
                return False
        return True

    def _can_take_named(
        self, kwargs: dict[str, Any], needs: list[weakref.ReferenceType[Future[Any]]]
    ) -> bool:
        if kwargs.get("parsl_resource_specification") or kwargs.get("_parsl_staging_inhibit"):
            return False
        inputs, outputs = kwargs.get("inputs", ()), kwargs.get("outputs", ())
        if not isinstance(inputs, (list, tuple)) or not isinstance(outputs, (list, tuple)):
            return False
        if not all(isinstance(file, File) and self._is_here(file) for file in outputs):
            return False
        if self.config.std_autopath is not None and parsl.AUTO_LOGNAME in map(kwargs.get, _STREAMS):
            return False
        return self._can_take(tuple(kwargs.values()), needs) and self._can_take(inputs, needs)

    def _is_here(self, file: File) -> bool:
        return file.scheme == "file" and not self._stages

    def _learn(self, func: Callable[..., Any], kwargs: dict[str, Any]) -> App:
        if kwargs.get("walltime") is not None and getattr(func, "__code__", None) is _TIMED:
            key: Any = (func.__wrapped__,)  # type: ignore[attr-defined,unused-ignore]
            return self._apps.get(key) or self._keep(key, App(key[0], is_timed=True))
        return self._keep(func, App(func))

    def _keep(self, key: Any, app: App) -> App:
        if len(self._apps) >= _APPS_MAX:
            self._apps.clear()
        self._apps[key] = app
        return app

    def _directed(self, kwargs: dict[str, Any], call: Call) -> dict[str, Any]:
        """Returns the arguments, with a file name wherever Parsl has to choose the file of an output stream."""
        for name in _STREAMS:
            stream = kwargs.get(name)
            if stream is None:
                continue
            if stream == parsl.AUTO_LOGNAME:
                record: Any = {"id": call.number, "func_name": call.name, "kwargs": kwargs}
                kwargs = {**kwargs, name: self.default_std_autopath(record, name)}  # type: ignore[no-untyped-call,unused-ignore]
            call.streams = {**call.streams, name: kwargs[name]}
        return kwargs

    def _promise_files(self, future: Any, kwargs: dict[str, Any], call: Call) -> None:
        if outputs := kwargs.get("outputs"):
            future._outputs = [DataFuture(future, file, tid=call.number) for file in outputs]
        for name in _STREAMS:
            if isinstance(file := kwargs.get(name), File):
                setattr(future, f"_{name}_future", DataFuture(future, file, tid=call.number))

    def wait_for_current_tasks(self) -> None:
        """Waits until all tasks have ended."""
        super().wait_for_current_tasks()
        pause = 0.001
        while self._executor.outstanding() > 0:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if exc_type is not None and self.config.exit_mode != "skip" and self._executor.started is not None:
            # As in Parsl, this does not wait for running tasks, which cannot be stopped.
            self._executor.started.shutdown(wait=False, cancel_futures=True)
        super().__exit__(exc_type, exc_value, traceback)  # type: ignore[no-untyped-call,unused-ignore]


def load(config: Optional[Config] = None, *, max_workers: Optional[int] = None, **options: Any) -> Kernel:
    """Loads a configuration, instead of ``parsl.load``: apps run in leased workers, as tasks of hotlease's own dataflow
    kernel.

    Parameters
    ----------
    config
        Parsl's configuration, which names one `HotleaseExecutor` or no executor.
    max_workers, options
        Options of the `HotleaseExecutor` that is made if `config` names no executor.

    Returns
    -------
    Kernel
        The kernel that ``parsl.dfk()`` returns from now on. Clean it up as usual, by ``with`` or ``cleanup()``.

    Raises
    ------
    parsl.errors.ConfigurationError
        If a configuration is loaded already, or `config` names other executors.
    hotlease.Error
        If no worker is available.
    """
    if DataFlowKernelLoader._dfk is not None:
        raise ConfigurationError("Config has already been loaded")
    config = copy.copy(config) if config is not None else Config()
    if len(config.executors) == 1 and config.executors[0] in _defaults:
        config._executors = (HotleaseExecutor(max_workers=max_workers, **options),)
    elif max_workers is not None or options:
        raise ConfigurationError("max_workers and options are for an executor that load makes, but the configuration names one")
    kernel = Kernel(config)
    DataFlowKernelLoader._dfk = kernel
    return kernel


def _only(config: Config) -> HotleaseExecutor:
    executors = config.executors
    if len(executors) == 1 and isinstance(executors[0], HotleaseExecutor):
        return executors[0]
    named = ", ".join(f"{executor.label} ({type(executor).__name__})" for executor in executors)
    raise ConfigurationError(
        f"hotlease.parsl.load runs all apps in the workers of one HotleaseExecutor, and the configuration has {named}: "
        "name no executor or such a one (and if you name none, import hotlease.parsl before you make the configuration); "
        "parsl.load(config) can have it beside others"
    )


# Executors that Parsl has put into configurations without executors.
_defaults: weakref.WeakSet[ThreadPoolExecutor] = weakref.WeakSet()


def _default() -> ThreadPoolExecutor:
    made = ThreadPoolExecutor()
    _defaults.add(made)
    return made


# Replaced, because nothing else distinguishes a default executor from an executor that the program has named.
setattr(parsl.config, "ThreadPoolExecutor", _default)  # noqa: B010
