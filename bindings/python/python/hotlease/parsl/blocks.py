"""Blocks of Parsl's providers: each block starts agents, which join a manager that this program starts."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from typing import Any, Optional

from hotlease._executor import Executor
from hotlease._own_manager import TENANT, OwnManager
from hotlease.errors import Refused

# Time for which an attempt to make the executor waits for workers.
_ATTEMPT_S = 5.0
_PAUSE_S = 0.3

# Script that runs on each node of a block. It is a file, because a provider's launcher may quote a command in any way.
_AGENT = r"""#!/bin/bash
# An agent of hotlease on this node, for a block of Parsl.
umask 077
dir=$(mktemp -d "${{TMPDIR:-/tmp}}/hotlease-XXXXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
# The agent gets the signals, too: it ends, and this waits for it.
trap : TERM INT HUP
cores={cores}
if [ "$cores" = all ]; then
    cores=$(nproc)
    [ "${{SLURM_CPUS_ON_NODE:-$cores}}" -ge "$cores" ] || cores=$SLURM_CPUS_ON_NODE
fi
{program} identity issue --dir {authority} --role agent --host "$(hostname)" --days 365 --out "$dir/identity" >/dev/null || exit 1
HOTLEASE_RUNTIME_DIR=$dir/run {program} agent --manager {manager} --listen 0.0.0.0:0 --identity "$dir/identity" \
    --cores "$cores" --tenant {tenant} --gpus {gpus} --drain-within 0s --in-memory
"""


class Blocks:
    """Tasks and workers of an executor whose nodes are in blocks. Made by `HotleaseExecutor.start`.

    Blocks may start at any time, or never: tasks wait here until the first block has workers. Thread-safe.

    Parameters
    ----------
    make
        Makes the executor. Its arguments are manager, identity and patience.
    fail
        Called with the reason if the executor cannot be made.
    cores, gpus
        Number on each node; `cores=None`: all cores that the node's job has.
    host
        Name or address at which the nodes reach this host.
    """

    def __init__(
        self,
        make: Callable[[str, str, float], Executor],
        fail: Callable[[BaseException], None],
        cores: Optional[int],
        gpus: int,
        host: Optional[str],
    ) -> None:
        self._make, self._fail = make, fail
        self._manager = OwnManager(host)
        script = self._manager.folder / "agent.sh"
        words = {"program": self._manager.program, "authority": self._manager.authority, "manager": self._manager.address}
        quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
        script.write_text(_AGENT.format(**quoted, tenant=TENANT, gpus=gpus, cores="all" if cores is None else cores))
        self.command = f"/bin/bash {shlex.quote(str(script))}"
        self._lock = threading.Lock()
        self._executor: Optional[Executor] = None
        # Executors that are shut down, but still have tasks.
        self._former: list[Executor] = []
        # Tasks that were submitted while there was no executor, each with the function that sends it.
        self._unsent: list[tuple[Future[Any], Callable[[Executor], None]]] = []
        self._opening: Optional[threading.Thread] = None
        self._closing, self._may_open = threading.Event(), threading.Event()
        self._may_open.set()

    @property
    def executor(self) -> Optional[Executor]:
        """The executor, once a block has workers."""
        return self._executor

    def outstanding(self) -> int:
        """Returns the number of tasks that wait or run."""
        with self._lock:
            self._former = [executor for executor in self._former if executor._pending()]
            executors = [*self._former, *([] if self._executor is None else [self._executor])]
            return len(self._unsent) + sum(executor._pending() for executor in executors)

    def send(self, task: Future[Any], submit: Callable[[Executor], Future[Any]]) -> None:
        """Submits a task as soon as there is an executor, and settles the future `task` when the task ends."""

        def sending(executor: Executor) -> None:
            try:
                sent = submit(executor)
            except BaseException as error:
                # The executor has lost its workers for good, or its blocks are being ended: the next executor, with workers of
                # later blocks, runs the task.
                if isinstance(error, BrokenExecutor) or self._executor is not executor:
                    self._again(executor, task, sending)
                else:
                    _settle(task, lambda: task.set_exception(error))
            else:
                sent.add_done_callback(lambda ended: _hand_on(ended, task))

        with self._lock:
            executor = self._executor
            if executor is None:
                self._unsent.append((task, sending))
                self._open()
        if executor is not None:
            sending(executor)

    def _again(self, broken: Executor, task: Future[Any], sending: Callable[[Executor], None]) -> None:
        with self._lock:
            if self._executor is broken:
                self._leave()
            self._unsent.append((task, sending))
            self._open()

    def _leave(self) -> None:
        """Shuts the executor down, so that it ends after its tasks. Called with the lock held."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
            self._former.append(executor)

    def end(self, blocks: Callable[[], list[str]]) -> list[str]:
        """Calls `blocks`, which ends some blocks, and returns its result. Tasks that are submitted from now on are not sent to
        workers of these blocks: they wait for an executor with workers in other blocks.
        """
        # The present executor is shut down, and no new executor is made before the blocks have been cancelled.
        self._may_open.clear()
        try:
            with self._lock:
                self._leave()
            return blocks()
        finally:
            self._may_open.set()

    def _open(self) -> None:
        """Starts the thread that makes the executor. Called with the lock held."""
        if self._opening is None and not self._closing.is_set():
            self._opening = threading.Thread(target=self._keep_opening, name="hotlease-blocks", daemon=True)
            self._opening.start()

    def _keep_opening(self) -> None:
        while not self._closing.is_set():
            self._may_open.wait()
            if self._closing.is_set():
                return
            try:
                made = self._make(self._manager.address, str(self._manager.client), _ATTEMPT_S)
            except Refused as refused:
                if not refused.may_pass:
                    return self._fail(refused)
                self._closing.wait(_PAUSE_S)
                continue
            except Exception as error:
                return self._fail(error)
            with self._lock:
                unsent, self._unsent = self._unsent, []
                self._executor, self._opening = made, None
            for _task, sending in unsent:
                sending(made)
            return

    def close(self, wait: bool) -> None:
        """Cancels the tasks that no block has got, releases the workers when the others have ended, and ends the manager."""
        self._closing.set()
        with self._lock:
            opening = self._opening
        if opening is not None and opening is not threading.current_thread():
            opening.join()
        with self._lock:
            unsent, self._unsent = self._unsent, []
        for task, _sending in unsent:
            task.cancel()
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
        self._manager.close()


def _hand_on(ended: Future[Any], task: Future[Any]) -> None:
    if ended.cancelled():
        task.cancel()
        return
    error = ended.exception()
    _settle(task, lambda: task.set_exception(error) if error is not None else task.set_result(ended.result()))


def _settle(task: Future[Any], settle: Callable[[], None]) -> None:
    try:
        settle()
    except InvalidStateError:
        # The task failed with all other tasks of its executor, or was cancelled.
        pass
