"""An executor under Parsl's own kernel: ``Config(executors=[hotlease.parsl.HotleaseExecutor()])``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from typing import Any, Optional

from parsl.executors.base import ParslExecutor
from parsl.executors.errors import BadStateException, InvalidResourceSpecification
from parsl.monitoring.radios.filesystem import FilesystemRadio

from hotlease import _core
from hotlease._executor import Executor
from hotlease._options import OptionArguments, collected
from hotlease._outcomes import was_not_sent
from hotlease.errors import WorkerDied
from hotlease.parsl.apps import RAISED, raising
from hotlease.parsl.futures import not_serialized

_log = logging.getLogger(__name__)


class HotleaseExecutor(ParslExecutor):
    """Runs Parsl's apps in leased workers.

    It has neither a provider nor blocks: a lease takes their place, and workers that die are replaced.

    Parameters
    ----------
    label
        Name among the executors of the configuration.
    max_workers
        Limit of the worker processes. Default: one for each core of this process.
    storage_access
        Parsl's staging providers. Default: Parsl's.
    working_dir
        Directory that files are staged to. Default: Parsl's.
    remote_monitoring_radio
        Channel by which tasks report to Parsl's monitoring. Default: files in the run directory.
    options
        Parameters of `hotlease.Executor`, such as ``manager``, ``timeout`` and ``initializer``, and options of
        `hotlease.ExecutorOptions`, such as ``memory``, ``gpus`` and ``idempotent``.
    """

    def __init__(
        self,
        label: str = "hotlease",
        max_workers: Optional[int] = None,
        *,
        storage_access: Optional[list[Any]] = None,
        working_dir: Optional[str] = None,
        remote_monitoring_radio: Optional[Any] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.label = label
        self.max_workers = max_workers
        self.storage_access = storage_access
        self.working_dir = working_dir
        self.remote_monitoring_radio = remote_monitoring_radio or FilesystemRadio()
        # Class of the executor that `start` makes.
        self.kind: type[Executor] = Executor
        self._options = options
        self._executor: Optional[Executor] = None
        self._bad_state: Optional[BaseException] = None

    def __repr__(self) -> str:
        return f"HotleaseExecutor(label={self.label!r}, max_workers={self.max_workers!r})"

    def start(self) -> None:
        """Takes the lease; does nothing if that was done.

        Raises
        ------
        hotlease.Error
            If no worker is available.
        """
        if self._executor is not None:
            return
        super().start()
        self._bad_state = None
        given = dict(self._options)
        named = {name: given.pop(name) for name in self._options if name in OptionArguments.__annotations__}
        options = collected(self.kind, given.pop("options", None), named)
        if not options.trust_results:
            options = replace(options, result_classes=[*options.result_classes, *RAISED])
        self._executor = self.kind(self.max_workers, options=options, **given)

    @property
    def started(self) -> Optional[Executor]:
        """The underlying executor, between `start` and `shutdown`."""
        return self._executor

    def submit(
        self, func: Callable[..., Any], resource_specification: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Runs an app's function in a worker.

        Raises
        ------
        parsl.executors.errors.InvalidResourceSpecification
            If resources are asked for: a task has the resources of its worker, set in the executor.
        parsl.executors.errors.BadStateException
            If the executor has lost its workers and gets no others.
        parsl.serialize.errors.SerializationError
            If an argument does not pickle.
        """
        if resource_specification:
            raise InvalidResourceSpecification(
                set(resource_specification),
                "Tasks have the resources of their worker, which are options of HotleaseExecutor: memory, gpus.",
            )
        if self._bad_state is not None:
            raise BadStateException(self, self._bad_state)  # type: ignore[no-untyped-call,unused-ignore]
        if self._executor is None:
            raise RuntimeError(f"the executor {self.label} was not started, or has been shut down")
        try:
            if self._executor._result_classes is not None and _core._is_confined(self._executor):
                future: Future[Any] = self._executor.submit(raising, func, *args, **kwargs)
            else:
                future = self._executor.submit(func, *args, **kwargs)
        except BrokenExecutor as error:
            self._remember(error)
            raise BadStateException(self, error) from error  # type: ignore[no-untyped-call,unused-ignore]
        why = future.exception() if future.done() and not future.cancelled() else None
        if why is not None and was_not_sent(why):
            raise not_serialized(getattr(func, "__name__", "app"), why) from why
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._remember(error)

    def _remember(self, error: BaseException) -> None:
        # The death of a worker concerns only its task.
        if isinstance(error, BrokenExecutor) and not isinstance(error, WorkerDied):
            if self._bad_state is None:
                _log.error("the executor %s has no workers and gets no others: %s", self.label, error)
            self._bad_state = error

    @property
    def bad_state_is_set(self) -> bool:
        """Whether the executor lost its workers and gets no others."""
        return self._bad_state is not None

    @property
    def executor_exception(self) -> Optional[BaseException]:
        """Error by which the executor lost its workers."""
        return self._bad_state

    def outstanding(self) -> int:
        """Returns the number of tasks that wait or run."""
        return 0 if self._executor is None else self._executor._pending()

    @property
    def connected_workers(self) -> int:
        """Number of workers."""
        return 0 if self._executor is None else self._executor._slots()

    def monitor_resources(self) -> bool:
        """Whether Parsl's monitoring can watch tasks: yes, each worker is a process and runs one at a time."""
        return True

    def shutdown(self, block: bool = True) -> None:
        """Releases the workers when all tasks have ended.

        Parameters
        ----------
        block
            Whether to return only after that.
        """
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=block)
        super().shutdown()
