"""An executor under Parsl's own kernel: ``Config(executors=[hotlease.parsl.HotleaseExecutor()])``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from typing import Any, Optional

from parsl.executors.base import ParslExecutor
from parsl.executors.errors import BadStateException, InvalidResourceSpecification
from parsl.monitoring.radios.filesystem import FilesystemRadio

from hotlease._executor import Executor
from hotlease.errors import LeaseEnded, WorkerDied

_log = logging.getLogger(__name__)


class HotleaseExecutor(ParslExecutor):
    """Runs Parsl's apps in leased workers.

    It has neither a provider nor blocks: a lease takes their place, and its workers are replaced as they die.

    Parameters
    ----------
    label
        Its name among the executors of the configuration.
    max_workers
        Worker processes at most. Default: one for each core of this process.
    storage_access
        Parsl's staging providers. Default: Parsl's.
    working_dir
        Where files are staged to. Default: Parsl's.
    remote_monitoring_radio
        How tasks report to Parsl's monitoring. Default: through files in the run directory.
    options
        More of `hotlease.Executor`'s: ``manager``, ``timeout``, ``memory``, ``gpus``, ``idempotent``, ``initializer``.
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
        # Of executor that it makes.
        self.kind: type[Executor] = Executor
        self._options = options
        self._executor: Optional[Executor] = None
        self._bad_state: Optional[BaseException] = None

    def __repr__(self) -> str:
        return f"HotleaseExecutor(label={self.label!r}, max_workers={self.max_workers!r})"

    def start(self) -> None:
        """Takes the lease; nothing where that was done.

        Raises
        ------
        hotlease.Error
            If no worker can be had.
        """
        if self._executor is not None:
            return
        super().start()
        self._bad_state = None
        self._executor = self.kind(self.max_workers, **self._options)

    @property
    def started(self) -> Optional[Executor]:
        """The executor beneath, between `start` and `shutdown`."""
        return self._executor

    def submit(
        self, func: Callable[..., Any], resource_specification: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Runs an app's function in a worker.

        Raises
        ------
        parsl.executors.errors.InvalidResourceSpecification
            If resources are asked for: those of workers are the executor's.
        parsl.executors.errors.BadStateException
            If the executor lost its workers before and gets no others.
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
            future = self._executor.submit(func, *args, **kwargs)
        except BrokenExecutor as error:
            self._remember(error)
            raise BadStateException(self, error) from error  # type: ignore[no-untyped-call,unused-ignore]
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._remember(error)

    def _remember(self, error: BaseException) -> None:
        # A worker's death is its task's alone.
        if isinstance(error, (BrokenExecutor, LeaseEnded)) and not isinstance(error, WorkerDied):
            if self._bad_state is None:
                _log.error("the executor %s has no workers and gets no others: %s", self.label, error)
            self._bad_state = error

    @property
    def bad_state_is_set(self) -> bool:
        """Whether the executor lost its workers and gets no others."""
        return self._bad_state is not None

    @property
    def executor_exception(self) -> Optional[BaseException]:
        """Why."""
        return self._bad_state

    def outstanding(self) -> int:
        """Tasks that wait and that run."""
        return 0 if self._executor is None else self._executor._pending()

    @property
    def connected_workers(self) -> int:
        """Workers that there are."""
        return 0 if self._executor is None else self._executor._slots()

    def monitor_resources(self) -> bool:
        """Whether Parsl's monitoring can watch tasks: yes, each worker is a process and runs one at a time."""
        return True

    def shutdown(self, block: bool = True) -> None:
        """Gives the workers back when all tasks are done.

        Parameters
        ----------
        block
            Whether to return only then.
        """
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=block)
        super().shutdown()
