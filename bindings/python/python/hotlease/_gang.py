"""`hotlease.Gang` and `hotlease.spmd`: functions that run on several workers at the same time, and send each other messages."""

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

from hotlease import _core, _programs, _remote, _seat
from hotlease._executor import Executor, _executors
from hotlease.errors import DeadlineExceeded, ExecutorBroken, LeaseEnded, TaskError, WorkerDied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future

    from hotlease._showing import Part

P = ParamSpec("P")
R = TypeVar("R")
# What becomes of a rank: a future with a result, or what it raised.
Ended = Union["Future[Any]", BaseException]

# How long ranks may go on after another one has failed: they are told within two seconds, unless they never ask.
_GRACE = 5.0
# How long ranks may wait for each other when a call begins.
_JOIN = 15.0
# How long it may take to end a lease.
_KILL = 30.0
# Of a gang that has lost workers.
_NOT_WHOLE = (WorkerDied, DeadlineExceeded, LeaseEnded, ExecutorBroken)
# Of `MPI.Exception`: somebody else has failed, who has the reason.
_OF_OTHERS = ("MemberLost", "MemberLeft", "Outcast", "Broken")


class Gang:
    """Workers that run a function at the same time, one rank each: all of them, or none.

    They are leased when it is made, and given back by `shutdown`, at the end of a ``with`` block, or at the end of the program. In the function,
    ``MPI.COMM_WORLD`` of ``from hotlease import MPI`` has these ranks, and so has `hotlease.communicator`. Calls run one after the other, by the
    same workers, each with a communicator of its own, over connections that stay. Thread safe.

    Parameters
    ----------
    ranks
        How many workers, each with a core of its own, on one host or several.
    timeout
        Seconds that each call has. Then its workers are killed, and it raises `DeadlineExceeded`.
    address
        The IP address of this host at which its workers' hosts reach this program: ranks find each other at a port of it, which lets in nobody
        else. Default: that from which this host reaches the manager; 127.0.0.1 on the platform of this machine.
    manager, memory, gpus, patience, output, environment, variables, options
        As of `Executor`. `patience` is how long to wait for all workers to be free at once; no part of them is held meanwhile.

    Raises
    ------
    hotlease.Refused
        If so many workers are not free in time, or never; with how many there are.

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
        memory: Optional[int] = None,
        gpus: Optional[int] = None,
        patience: float = 10.0,
        output: Union[bool, Callable[[Part], object]] = True,
        environment: Union[str, os.PathLike[str], None] = None,
        variables: Optional[dict[str, str]] = None,
        **options: Any,
    ) -> None:
        # These take longer to import than all of this package, and only a gang needs them.
        from concurrent.futures import ThreadPoolExecutor

        from hotlease._rendezvous import Rendezvous, own_address

        if ranks <= 0:
            raise ValueError("ranks must be greater than 0")
        self._process = os.getpid()
        self._size, self._manager = ranks, manager or os.environ.get("HOTLEASE_MANAGER")
        self._identity, self._runtime_dir = options.get("identity"), options.get("runtime_dir")
        # By which its lease is found where it has to end at once.
        self._label = options["label"] = f"{options.get('label') or 'gang'} {uuid.uuid4().hex[:12]}"
        options.update(timeout=timeout, manager=manager, memory=memory, gpus=gpus, patience=patience)
        options.update(output=output, environment=environment, variables=variables)
        self._options = options
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
        """How many there are."""
        return self._size

    def __repr__(self) -> str:
        return f"<hotlease.Gang: {self._size} ranks, {len(self._pending)} calls pending>"

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[list[R]]:
        """Schedules ``fn(*args, **kwargs)`` on all ranks. Its future has their results, in the order of ranks.

        Once a rank has failed, the others' next message or collective raises ``MPI.Exception``; those that go on for five seconds are killed. The
        future raises what the first one raised, with ``hotlease_rank`` as an attribute; of a worker that died, `WorkerDied`.
        """
        fn = getattr(fn, "_hotlease_spmd", fn)
        if os.getpid() != self._process:
            raise RuntimeError("this process was forked after the gang was made, which is its parent's: make one here")
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = self._calls.submit(self._call, fn, args, kwargs)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def run(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> list[R]:
        """The same, and waits. Ctrl-C ends the call, as `cancel` does."""
        future = self.submit(fn, *args, **kwargs)
        try:
            return future.result()
        except BaseException:
            if not future.done() and not future.cancel():
                with contextlib.suppress(TaskError):
                    self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the call that is running: its workers are killed, and its future raises `concurrent.futures.CancelledError`. Those that wait
        run with other workers. One that has not begun is cancelled by its future.
        """
        with self._lock:
            if self._is_running:
                self._is_cancelled = True
                self._kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls, and gives the workers back when all have ended.

        Parameters
        ----------
        wait
            Whether to return only then.
        cancel_futures
            Whether to cancel those that have not begun.
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
        executor = Executor(self._size, at_least=self._size, **self._options)
        if not _core._has_network(executor):
            executor.shutdown()
            raise ValueError(
                "ranks find each other over a network, and the sandboxes of this lease have none; ask for it (network=True), "
                "or lease workers of kind process (sandbox=\"process\")"
            )
        # At the program's end it is for the gang to shut it down, after its last call.
        _executors.discard(executor)
        return executor

    def _give_back(self, wait: bool = True) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait)

    def _kill(self) -> None:
        """Ends the lease now, and with it what its workers do: another program says so, as an operator would."""
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
                # It may have ended just now.
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
            # It has a state of its own, which each call gets afresh.
            fn, args = _remote.call, (fn, *args)
        if self._task is None or self._task.__wrapped__ is not fn:
            self._task = _seat.Task(fn)
        if self._executor is None:
            self._executor = self._lease()
        with self._lock:
            self._is_running = True
        try:
            ended = self._run(self._executor, self._task, args, kwargs)
            if any(_is_of_comm(each, "NotTogether") for each in ended.values()) and not self._is_cancelled:
                # No function was called: all begin together, or none. With workers that have just been leased they meet.
                self._give_back()
                self._executor = self._lease()
                ended = self._run(self._executor, self._task, args, kwargs)
        except BaseException:
            # Those that were told wait for the others, but not for ever.
            with contextlib.suppress(TaskError):
                self._kill()
            self._give_back(wait=False)
            raise
        finally:
            with self._lock:
                was_cancelled, self._is_cancelled, self._is_running = self._is_cancelled, False, False
        if any(isinstance(each, _NOT_WHOLE) for each in ended.values()) or was_cancelled:
            # A gang is whole: another one for the next call, rather than this one while workers are replaced.
            self._give_back()
        if was_cancelled and any(isinstance(each, LeaseEnded) for each in ended.values()):
            from concurrent.futures import CancelledError

            raise CancelledError("the call was cancelled, and its workers killed")
        return _results(ended, self._size)

    def _run(
        self, executor: Executor, task: _seat.Task, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int, Ended]:
        """What became of each rank, in the order in which they ended.

        Its workers are idle, and each task waits for the others before it begins: so each goes to a worker of its own, the same one in each call, as
        an executor sends a task to the first with the least to do. Where a worker dies just then, two would be on one, and end when nobody comes
        for a while.
        """
        name = uuid.uuid4().hex
        told: queue.SimpleQueue[int] = queue.SimpleQueue()
        futures = []
        for rank in range(self._size):
            seat = (self._label, name, self._size, rank, self._rendezvous.address, self._rendezvous.secret, _JOIN)
            futures.append(executor.submit(task, seat, *args, **kwargs))
            futures[rank].add_done_callback(functools.partial(_tell, told, rank))
        ended: dict[int, Ended] = {}
        until = None
        while len(ended) < self._size:
            try:
                rank = told.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                # Some go on regardless.
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


def _results(ended: dict[int, Ended], size: int) -> list[Any]:
    raised, results = [], {}
    for rank, each in ended.items():
        if isinstance(each, BaseException):
            raised.append((rank, each))
        else:
            results[rank] = each.result()
    if not raised:
        return [results[rank] for rank in range(size)]
    # A rank that was killed is why others raised something, whoever was told first.
    rank, error = min(raised, key=lambda each: _is_of_others(each[1]))
    _name(error, rank, size)
    raise error


def _is_of_others(error: BaseException) -> int:
    """0 of a reason, more of what comes of one."""
    if _is_of_comm(error, *_OF_OTHERS):
        return 2
    if isinstance(error, LeaseEnded):
        return 3
    return 0 if isinstance(error, (WorkerDied, DeadlineExceeded)) else 1


def _is_of_comm(what: object, *kinds: str) -> bool:
    """Whether it is an `MPI.Exception` of such a kind; without importing that."""
    return type(what).__module__ == "hotlease.MPI._errors" and getattr(what, "kind", None) in kinds


def _name(error: BaseException, rank: int, size: int) -> None:
    """Says which rank it was."""
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

    Calling it, and `submit`, runs it on a gang; `local` here, where ``MPI.COMM_WORLD`` is what it is in this process.
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
        """Runs it on all ranks; their results in order. See `Gang.run`."""
        return self._used().run(self.__wrapped__, *args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[list[R]]:
        """The same, and does not wait. See `Gang.submit`."""
        return self._used().submit(self.__wrapped__, *args, **kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs it here, once."""
        return self.__wrapped__(*args, **kwargs)

    def _used(self) -> Gang:
        return _kept_gang(self._ranks) if self._gang is None else self._gang

    def __repr__(self) -> str:
        return f"<hotlease.spmd {self.__module__}.{self.__qualname__}: {self._ranks} ranks>"

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
    """Makes a function one that runs on several workers at the same time, and has them as ``MPI.COMM_WORLD``.

    Parameters
    ----------
    ranks
        On how many: a gang of the program, which it keeps until one of another size is asked for, or it ends.
    gang
        On this one instead.

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


# The gang that the program keeps, and in which process.
_kept: Optional[tuple[int, Gang]] = None
_keeping = threading.Lock()


def _kept_gang(ranks: int) -> Gang:
    global _kept
    with _keeping:
        if _kept is not None and (_kept[0] != os.getpid() or _kept[1].ranks != ranks):
            (process, other), _kept = _kept, None
            if process == os.getpid():
                # Its workers may be needed. Its calls end first.
                other.shutdown()
        if _kept is None:
            _kept = os.getpid(), Gang(ranks)
        return _kept[1]


_gangs: weakref.WeakSet[Gang] = weakref.WeakSet()


def _at_exit() -> None:
    for gang in list(_gangs):
        gang.shutdown()


@functools.cache
def _end_with_the_program() -> None:
    # Runs before what was registered before: that of pools, which waits for their threads, and was when they were imported.
    threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
