"""`hotlease.Gang` and `hotlease.spmd`: functions that run on several workers at the same time, and send each other
messages."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import threading
import time
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any, Generic, Optional, ParamSpec, TypeVar, Union, overload

from hotlease import _core, _open, _programs, _remote, _seat
from hotlease._executor import Executor
from hotlease._names import counted
from hotlease.errors import DeadlineExceeded, ExecutorBroken, LeaseEnded, TaskError, WorkerDied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Unpack

    from hotlease._options import ExecutorOptions, OptionArguments

P = ParamSpec("P")
R = TypeVar("R")
# End of a rank: a future with a result, or the exception that the rank raised.
RankEnd = Union["Future[Any]", BaseException]

# Seconds that ranks may go on after another rank has failed. A rank that communicates learns of the failure within two
# seconds.
_GRACE = 5.0
# Seconds that ranks may wait for each other when a call starts.
_JOIN = 15.0
# Time limit in seconds of a command that ends a lease.
_KILL = 30.0
# Errors of a gang that has lost workers.
_NOT_WHOLE = (WorkerDied, DeadlineExceeded, LeaseEnded, ExecutorBroken)
# Kinds of `MPI.Exception` that follow from the failure of another rank: the other rank's error is the reason.
_OF_OTHERS = ("MemberLost", "MemberLeft", "Outcast", "CollectiveFailed")


class Gang:
    """A group of workers that run a function at the same time, one rank each: all of them, or none.

    The workers are leased when the gang is made, and released by `shutdown`, at the end of a ``with`` block, or at the
    end of the program. In the function, these ranks are in ``MPI.COMM_WORLD`` (``from hotlease import MPI``), and in
    `hotlease.communicator`. Calls run one after the other on the same workers. Each call has a new communicator, over
    connections that stay open. Thread-safe.

    Parameters
    ----------
    ranks
        Number of workers, each with its own core, on one host or several.
    timeout
        Time limit of each call in seconds. At the limit the workers are killed, and the call raises `DeadlineExceeded`.
    address
        IP address of this host at which the workers' hosts reach this program: ranks find each other at a port of this
        address, which admits no other process. Default: the address from which this host reaches the manager; 127.0.0.1
        on the platform of this node.
    manager, environment
        As for `Executor`.
    options, named
        As for `Executor`. ``patience``: seconds to wait until all workers are free at once; meanwhile the gang holds none
        of them. ``at_least`` is the number of ranks.

    Raises
    ------
    hotlease.Refused
        If fewer workers than `ranks` become free in time, or fewer exist; the message says how many there are.

    Examples
    --------
    >>> def ring():
    ...     from hotlease import MPI
    ...     world = MPI.COMM_WORLD
    ...     return world.sendrecv(world.rank, (world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
    >>> with hotlease.Gang(2) as gang:
    ...     print(gang.run(ring))
    [1, 0]
    """

    def __init__(
        self,
        ranks: int,
        *,
        timeout: Optional[float] = None,
        address: Optional[str] = None,
        manager: Optional[str] = None,
        environment: Union[str, os.PathLike[str], None] = None,
        options: Optional[ExecutorOptions] = None,
        **named: Unpack[OptionArguments],
    ) -> None:
        # These imports take longer than all of this package, and only a gang needs them.
        from concurrent.futures import ThreadPoolExecutor
        from dataclasses import replace

        from hotlease._options import collected
        from hotlease._rendezvous import Rendezvous, own_address

        if ranks <= 0:
            raise ValueError("ranks must be greater than 0")
        self._process = os.getpid()
        self._size, self._manager = ranks, manager or os.environ.get("HOTLEASE_MANAGER")
        options = collected(type(self), options, named)
        self._identity, self._runtime_dir = options.identity, options.runtime_dir
        if options.cluster is not None:
            self._manager, self._identity = options.cluster.manager, options.cluster.identity
        if not self._manager and self._runtime_dir is None:
            self._manager = _core._job_managers()
        # Label of the gang's lease, by which `_kill` finds the lease.
        self._label = f"{options.label or 'gang'} {uuid.uuid4().hex[:12]}"
        self._options = replace(options, label=self._label, at_least=ranks, lends=False)
        self._given_manager, self._environment, self._timeout = manager, environment, timeout
        self._lock = threading.Lock()
        self._is_running = self._is_cancelled = self._is_shut_down = False
        self._pending: set[Future[Any]] = set()
        self._task: Optional[_seat.Task] = None
        self._executor: Optional[Executor] = self._lease()
        try:
            self._rendezvous = Rendezvous(address or own_address(self._manager))
        except BaseException:
            self._give_back()
            raise
        self._calls = ThreadPoolExecutor(1, "hotlease-gang")
        _end_with_the_program()
        _gangs.add(self)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self._size

    def __repr__(self) -> str:
        return f"<hotlease.Gang: {counted(self._size, 'rank')}, {counted(len(self._pending), 'call')} pending>"

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[list[R]]:
        """Schedules ``fn(*args, **kwargs)`` on all ranks. The future has the results of all ranks, in the order of ranks.

        After a rank has failed, the next message or collective of each other rank raises ``MPI.Exception``; ranks that
        still run five seconds later are killed. The future raises the exception of the first rank that failed, with
        ``hotlease_rank`` as an attribute; if a worker died, it raises `WorkerDied`.
        """
        fn = getattr(fn, "_hotlease_spmd", fn)
        if os.getpid() != self._process:
            raise RuntimeError("the gang belongs to the parent of this forked process: make another one here")
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = self._calls.submit(self._call, fn, args, kwargs)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def run(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> list[R]:
        """Runs ``fn(*args, **kwargs)`` on all ranks, and waits. Ctrl-C ends the call, as `cancel` does."""
        future = self.submit(fn, *args, **kwargs)
        try:
            return future.result()
        except BaseException:
            if not future.done() and not future.cancel():
                with contextlib.suppress(TaskError):
                    self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the running call: its workers are killed, and its future raises `concurrent.futures.CancelledError`.
        Waiting calls run on other workers. To cancel a call that has not started, cancel its future.
        """
        with self._lock:
            if self._is_running:
                self._is_cancelled = True
                self._kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stops accepting calls, and releases the workers when all calls have ended.

        Parameters
        ----------
        wait
            Whether to return only after the release.
        cancel_futures
            Whether to cancel calls that have not started.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            is_first = not self._is_shut_down
            self._is_shut_down = True
        if cancel_futures:
            for future in list(self._pending):
                future.cancel()
        if is_first:
            self._calls.submit(self._end)
        self._calls.shutdown(wait)

    def _lease(self) -> Executor:
        executor = Executor(
            self._size,
            manager=self._given_manager,
            environment=self._environment,
            timeout=self._timeout,
            options=self._options,
        )
        if not _core._has_network(executor):
            executor.shutdown()
            raise ValueError(
                "ranks find each other over a network, and the sandboxes of this lease have none; ask for it (network=True), "
                "or lease workers of kind process (sandbox=\"process\")"
            )
        # At the end of the program the gang shuts the executor down, after the gang's last call.
        _open.executors.discard(executor)
        return executor

    def _give_back(self, wait: bool = True) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait)

    def _kill(self) -> None:
        """Ends the lease and its workers now: runs `hotlease leases --release`, as an operator would."""
        import subprocess

        given = {"HOTLEASE_MANAGER": self._manager, "HOTLEASE_IDENTITY": self._identity, "HOTLEASE_RUNTIME_DIR": self._runtime_dir}
        environment = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
        run = functools.partial(subprocess.run, env=environment, capture_output=True, text=True, timeout=_KILL)
        try:
            command = [_programs.find("hotlease"), "--json", "leases"]
            listed = run(command)
            if listed.returncode != 0:
                raise OSError(listed.stderr.strip())
            leases = [lease for lease in map(json.loads, listed.stdout.splitlines()) if lease["label"] == self._label]
            for lease in leases:
                # This may fail, because the lease may have ended just now.
                run([*command, "--release", lease["id"]])
        except (OSError, subprocess.TimeoutExpired) as error:
            advice = f"see `hotlease leases`, where its label is {self._label!r}"
            raise TaskError(f"the workers of a gang cannot be ended: {error}; {advice}", True) from error

    def _end(self) -> None:
        try:
            self._give_back()
        finally:
            self._rendezvous.close()

    def _call(self, fn: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[R]:
        if not isinstance(fn, (types.FunctionType, types.BuiltinFunctionType)):
            # An object with state: sent as an argument, so that each call gets a fresh copy.
            fn, args = _remote.call, (fn, *args)
        if self._task is None or self._task.__wrapped__ is not fn:
            self._task = _seat.Task(fn)
        if self._executor is None:
            self._executor = self._lease()
        with self._lock:
            self._is_running = True
        try:
            ended = self._run(self._executor, self._task, args, kwargs)
            if any(_is_of_comm(each, "RendezvousRefused") for each in ended.values()) and not self._is_cancelled:
                # No function was called: all ranks start together, or none. The second attempt gets new workers, because
                # old workers may have been unable to reach each other.
                self._give_back()
                self._executor = self._lease()
                ended = self._run(self._executor, self._task, args, kwargs)
        except BaseException:
            # Otherwise ranks that were started would wait up to `_JOIN` seconds for the other ranks.
            with contextlib.suppress(TaskError):
                self._kill()
            self._give_back(wait=False)
            raise
        finally:
            with self._lock:
                was_cancelled, self._is_cancelled, self._is_running = self._is_cancelled, False, False
        if any(isinstance(each, _NOT_WHOLE) for each in ended.values()) or was_cancelled:
            # The next call gets a new lease of all workers, and does not wait until lost workers of this lease are replaced.
            self._give_back()
        if was_cancelled and any(isinstance(each, LeaseEnded) for each in ended.values()):
            from concurrent.futures import CancelledError

            raise CancelledError("the call was cancelled, and its workers killed")
        return _results(ended, self._size)

    def _run(
        self, executor: Executor, task: _seat.Task, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int, RankEnd]:
        """Runs a call; returns the end of each rank, in the order in which the ranks ended.

        An executor sends a task to the first worker with the fewest tasks. The workers are idle, and tasks wait for one
        another before they start. So each rank has a separate worker, and the same worker in each call. If a worker dies
        just then, two tasks may be on one worker; they end when not all ranks join within the time limit.
        """
        name = uuid.uuid4().hex
        told: queue.SimpleQueue[int] = queue.SimpleQueue()
        futures = []
        for rank in range(self._size):
            seat = (self._label, name, self._size, rank, self._rendezvous.address, self._rendezvous.secret, _JOIN)
            futures.append(executor.submit(task, seat, *args, **kwargs))
            futures[rank].add_done_callback(functools.partial(_tell, told, rank))
        ended: dict[int, RankEnd] = {}
        until = None
        while len(ended) < self._size:
            try:
                rank = told.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                # Some ranks have not stopped.
                until = None
                self._kill()
                continue
            error = futures[rank].exception()
            ended[rank] = futures[rank] if error is None else error
            if error is not None and not any(isinstance(each, BaseException) for each in list(ended.values())[:-1]):
                until = time.monotonic() + _GRACE
        return ended


def _tell(told: queue.SimpleQueue[int], rank: int, _: Future[Any]) -> None:
    told.put(rank)


def _results(ended: dict[int, RankEnd], size: int) -> list[Any]:
    raised, results = [], {}
    for rank, each in ended.items():
        if isinstance(each, BaseException):
            raised.append((rank, each))
        else:
            results[rank] = each.result()
    if not raised:
        return [results[rank] for rank in range(size)]
    # A rank that was killed is the reason why other ranks raised exceptions, even if another rank ended first.
    rank, error = min(raised, key=lambda each: _distance_to_cause(each[1]))
    _name(error, rank, size)
    raise error


def _distance_to_cause(error: BaseException) -> int:
    """Returns 0 for an error that is a cause; the number is higher if the error more likely follows from another error."""
    if _is_of_comm(error, *_OF_OTHERS):
        return 2
    if isinstance(error, LeaseEnded):
        return 3
    return 0 if isinstance(error, (WorkerDied, DeadlineExceeded)) else 1


def _is_of_comm(what: object, *kinds: str) -> bool:
    """Whether an error is an `MPI.Exception` of one of these kinds; does not import MPI."""
    return type(what).__module__ == "hotlease.MPI._errors" and getattr(what, "kind", None) in kinds


def _name(error: BaseException, rank: int, size: int) -> None:
    """Adds the rank to an error."""
    where = f"rank {rank} of {size}"
    try:
        error.hotlease_rank = rank  # type: ignore[attr-defined]
    except AttributeError:
        pass
    if isinstance(error, TaskError) and error.args:
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])
    from hotlease import _outcomes

    if isinstance(error.__cause__, _outcomes.RemoteTraceback):
        error.__cause__ = _outcomes.RemoteTraceback(f"{where}:\n{error.__cause__.text}")


class Spmd(Generic[P, R]):
    """A function that runs on several ranks at the same time. Made by `spmd`.

    A call, and `submit`, run it on a gang; `local` runs it in this process, with the ``MPI.COMM_WORLD`` of this
    process.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, wrapped: Callable[P, R], ranks: int, gang: Optional[Gang]) -> None:
        if gang is None and ranks <= 0:
            raise ValueError("ranks must be greater than 0")
        self._ranks, self._gang = ranks, gang
        functools.update_wrapper(self, wrapped)
        self._hotlease_spmd = wrapped

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Runs the function on all ranks; returns their results in order. See `Gang.run`."""
        return self._used().run(self.__wrapped__, *args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[list[R]]:
        """Schedules the function on all ranks, without waiting. See `Gang.submit`."""
        return self._used().submit(self.__wrapped__, *args, **kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in this process, once."""
        return self.__wrapped__(*args, **kwargs)

    def _used(self) -> Gang:
        return _kept_gang(self._ranks) if self._gang is None else self._gang

    def __repr__(self) -> str:
        return f"<hotlease.spmd {self.__module__}.{self.__qualname__}: {counted(self._ranks, 'rank')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Spmd, (self.__wrapped__, self._ranks, None)


@overload
def spmd(wrapped: Callable[P, R], /, *, ranks: Optional[int] = None, gang: Optional[Gang] = None) -> Spmd[P, R]: ...


@overload
def spmd(
    *, ranks: Optional[int] = None, gang: Optional[Gang] = None
) -> Callable[[Callable[P, R]], Spmd[P, R]]: ...


def spmd(
    wrapped: Optional[Callable[P, R]] = None,
    /,
    *,
    ranks: Optional[int] = None,
    gang: Optional[Gang] = None,
) -> Union[Spmd[P, R], Callable[[Callable[P, R]], Spmd[P, R]]]:
    """Makes a function that runs on several workers at the same time; they are the ranks of ``MPI.COMM_WORLD``.

    Parameters
    ----------
    ranks
        Number of ranks. The function runs on a gang that the program keeps until a gang of another size is needed, or
        until the program ends.
    gang
        Gang to use instead.

    Examples
    --------
    >>> @hotlease.spmd(ranks=2)
    ... def total(n):
    ...     from hotlease import MPI
    ...     return MPI.COMM_WORLD.allreduce(n + MPI.COMM_WORLD.rank)
    >>> total(10)
    [21, 21]
    """
    if (ranks is None) == (gang is None):
        raise TypeError("spmd needs ranks=, or gang=")
    size = gang.ranks if gang is not None else (ranks or 0)
    if wrapped is not None:
        return Spmd(wrapped, size, gang)
    return lambda later: Spmd(later, size, gang)


# The gang that the program keeps, and the process that made it.
_kept: Optional[tuple[int, Gang]] = None
_keeping = threading.Lock()


def _kept_gang(ranks: int) -> Gang:
    global _kept
    with _keeping:
        if _kept is not None and (_kept[0] != os.getpid() or _kept[1].ranks != ranks):
            (process, other), _kept = _kept, None
            if process == os.getpid():
                # Frees workers that the new gang may need, after the calls of the other gang have ended.
                other.shutdown()
        if _kept is None:
            _kept = os.getpid(), Gang(ranks)
        return _kept[1]


_gangs: weakref.WeakSet[Gang] = weakref.WeakSet()


def _at_exit() -> None:
    for gang in list(_gangs):
        gang.shutdown()


def _begin_anew() -> None:
    """Forgets, in a forked child, the parent's gangs; replaces the lock, which another thread may have held."""
    global _keeping
    _keeping = threading.Lock()
    _gangs.clear()


os.register_at_fork(after_in_child=_begin_anew)


@functools.cache
def _end_with_the_program() -> None:
    # `_at_exit` runs before callbacks that were registered earlier. The module of thread pools has registered such a
    # callback at its import, which waits for the threads of pools.
    threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
