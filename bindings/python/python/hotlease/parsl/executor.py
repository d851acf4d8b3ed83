"""An executor under Parsl's own kernel: ``Config(executors=[hotlease.parsl.HotleaseExecutor()])``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from dataclasses import replace
from typing import Any, Optional, Union

from parsl.executors.errors import BadStateException
from parsl.executors.status_handling import BlockProviderExecutor
from parsl.monitoring.radios.filesystem import FilesystemRadio

from hotlease import _core
from hotlease._executor import Executor
from hotlease._options import OptionArguments, collected
from hotlease._outcomes import was_not_sent
from hotlease.errors import WorkerDied
from hotlease.parsl import resources
from hotlease.parsl.apps import RAISED, raising
from hotlease.parsl.blocks import Blocks
from hotlease.parsl.futures import not_serialized

_log = logging.getLogger(__name__)


class HotleaseExecutor(BlockProviderExecutor):
    """Runs Parsl's apps in leased workers.

    Without a provider, the workers are on this host's platform or on a manager's nodes, and a worker that dies is replaced.
    With a provider, the workers are on the nodes of its blocks. Parsl's strategy starts and ends the blocks; tasks wait until
    a block has workers.

    Parameters
    ----------
    label
        Name of this executor in the configuration.
    max_workers
        Maximum number of worker processes. Default: one for each core of this process; with a provider, as many as
        ``max_blocks`` blocks have.
    provider
        Provider of Parsl that submits blocks, such as `parsl.providers.SlurmProvider`, with its ``init_blocks``,
        ``min_blocks`` and ``max_blocks``. On each node of a block, an agent joins a manager that this program starts. So the
        nodes must reach this host, and see the program's Python and home directory. Default: none.
    workers_per_node
        With a provider: number of workers on each node. Default: the provider's ``cores_per_node``, else the number of
        cores of this process.
    address
        With a provider: name or address at which the nodes reach this host. Default: the name of this host.
    block_error_handler
        With a provider: what happens if blocks fail, as for other executors of Parsl. Default: if all of the first blocks
        fail, all tasks fail.
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
        provider: Optional[Any] = None,
        workers_per_node: Optional[int] = None,
        address: Optional[str] = None,
        block_error_handler: Union[bool, Callable[..., None]] = True,
        storage_access: Optional[list[Any]] = None,
        working_dir: Optional[str] = None,
        remote_monitoring_radio: Optional[Any] = None,
        **options: Any,
    ) -> None:
        super().__init__(provider=provider, block_error_handler=block_error_handler)
        if provider is not None and {"manager", "identity", "cluster"} & set(options):
            raise TypeError("blocks of a provider have a manager of their own: give provider, or manager, identity or cluster")
        self.label = label
        self.max_workers = max_workers
        self.storage_access = storage_access
        self.working_dir = working_dir
        self.remote_monitoring_radio = remote_monitoring_radio or FilesystemRadio()
        # Class of the executor that `start` makes.
        self.kind: type[Executor] = Executor
        self._options = options
        self._executor: Optional[Executor] = None
        self._nodes_cores = workers_per_node or getattr(provider, "cores_per_node", None)
        self._address = address
        self._blocks: Optional[Blocks] = None
        self._bad_state: Optional[BaseException] = None

    def __repr__(self) -> str:
        provider = "" if self.provider is None else f", provider={self.provider!r}"
        return f"HotleaseExecutor(label={self.label!r}, max_workers={self.max_workers!r}{provider})"

    def start(self) -> None:
        """Takes the lease, unless it was taken before. With a provider, only starts the manager: blocks are submitted later.

        Raises
        ------
        hotlease.Error
            If no worker is available.
        """
        if self._executor is not None or self._blocks is not None:
            return
        super().start()  # type: ignore[no-untyped-call,unused-ignore]
        self._bad_state = None
        given = dict(self._options)
        named = {name: given.pop(name) for name in self._options if name in OptionArguments.__annotations__}
        options = collected(self.kind, given.pop("options", None), named)
        if not options.trust_results:
            options = replace(options, result_classes=[*options.result_classes, *RAISED])
        self._resources = options.memory, options.gpus
        provider = self.provider
        if provider is None:
            self._executor = self.kind(self.max_workers, options=options, **given)
            return
        workers = self.max_workers or max(1, provider.max_blocks * provider.nodes_per_block * int(self.workers_per_node))

        def make(manager: str, identity: str, patience: float) -> Executor:
            joined = replace(options, identity=identity, patience=patience)
            return self.kind(workers, manager=manager, options=joined, **given)

        gpus = getattr(provider, "gpus_per_node", None) or 0
        self._blocks = Blocks(make, self.set_bad_state_and_fail_all, self._nodes_cores, gpus, self._address)

    @property
    def started(self) -> Optional[Executor]:
        """The underlying executor; `None` before `start`, after `shutdown`, and with a provider until a block has workers."""
        return self._executor if self._blocks is None else self._blocks.executor

    @property
    def workers_per_node(self) -> Union[int, float]:
        """Number of workers on each node, for Parsl's strategy."""
        return self._nodes_cores or len(os.sched_getaffinity(0))

    def _get_launch_command(self, block_id: str) -> str:
        if self._blocks is None:
            raise RuntimeError(f"the executor {self.label} was not started, or has been shut down")
        return self._blocks.command

    def scale_in(self, blocks: int) -> list[str]:
        """Ends blocks; returns the identifiers of the ended blocks. Called by Parsl's strategy when no task waits or runs."""
        cancel = super().scale_in
        return cancel(blocks) if self._blocks is None else self._blocks.end(lambda: cancel(blocks))

    def set_bad_state_and_fail_all(self, exception: BaseException) -> None:
        """Makes all present and later tasks fail. Called by the handler of failed blocks."""
        self._bad_state = exception
        for task in list(self.tasks.values()):
            try:
                task.set_exception(BadStateException(self, exception))  # type: ignore[no-untyped-call,unused-ignore]
            except InvalidStateError:
                # The task has just ended.
                pass

    def submit(
        self, func: Callable[..., Any], resource_specification: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Runs an app's function in a worker.

        Raises
        ------
        parsl.executors.errors.InvalidResourceSpecification
            If the task asks for more than a worker has (``cores``: 1, ``memory`` in MiB, ``gpus``), or for another resource.
        parsl.executors.errors.BadStateException
            If the executor has lost its workers and cannot get new workers.
        parsl.serialize.errors.SerializationError
            If an argument does not pickle.
        """
        if resource_specification:
            resources.check(resource_specification, *self._resources)
        if self._bad_state is not None:
            raise BadStateException(self, self._bad_state)  # type: ignore[no-untyped-call,unused-ignore]
        if self._blocks is not None:
            task: Future[Any] = Future()
            key = id(task)
            self.tasks[key] = task
            task.add_done_callback(lambda _: self.tasks.pop(key, None))
            self._blocks.send(task, lambda executor: self._sent(executor, func, args, kwargs))
            return task
        if self._executor is None:
            raise RuntimeError(f"the executor {self.label} was not started, or has been shut down")
        try:
            future = self._sent(self._executor, func, args, kwargs)
        except BrokenExecutor as error:
            self._remember(error)
            raise BadStateException(self, error) from error  # type: ignore[no-untyped-call,unused-ignore]
        future.add_done_callback(self._ended)
        return future

    def _sent(
        self, executor: Executor, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        if executor._result_classes is not None and _core._is_confined(executor):
            future: Future[Any] = executor.submit(raising, func, *args, **kwargs)
        else:
            future = executor.submit(func, *args, **kwargs)
        why = future.exception() if future.done() and not future.cancelled() else None
        if why is not None and was_not_sent(why):
            raise not_serialized(getattr(func, "__name__", "app"), why) from why
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
        """Whether the executor lost its workers and cannot get new workers."""
        return self._bad_state is not None

    @property
    def executor_exception(self) -> Optional[BaseException]:
        """Error by which the executor lost its workers; `None` if it did not lose them."""
        return self._bad_state

    def outstanding(self) -> int:
        """Returns the number of tasks that wait or run."""
        if self._blocks is not None:
            return self._blocks.outstanding()
        return 0 if self._executor is None else self._executor._pending()

    @property
    def connected_workers(self) -> int:
        """Number of workers."""
        executor = self.started
        return 0 if executor is None else executor._slots()

    def monitor_resources(self) -> bool:
        """Returns `True`: Parsl's monitoring can watch tasks, because each worker is a process that runs one task at a time."""
        return True

    def shutdown(self, block: bool = True) -> None:
        """Releases the workers when all tasks have ended. Tasks for which no block has started are cancelled.

        Parameters
        ----------
        block
            Whether to return only after all tasks have ended.
        """
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.close(block)
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=block)
        super().shutdown()
