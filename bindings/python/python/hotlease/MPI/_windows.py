"""Windows: memory of each rank that other ranks of the node read and write without the rank's help (``MPI.Win``).

The memory is one anonymous file of the first rank, which all ranks map. Ranks open the file through ``/proc``, where the kernel
checks their rights; no file name can remain after a crash. Locks are the system's locks on single bytes behind the end of
the file, so a lock ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Optional

from hotlease.MPI import _handles
from hotlease.MPI._accumulating import accumulated
from hotlease.MPI._attached import TABLE_BYTES, Attachments
from hotlease.MPI._comm import COMM_SELF, Comm, Intracomm
from hotlease.MPI._constants import LOCK_EXCLUSIVE, LOCK_SHARED, NO_OP, PROC_NULL, REPLACE, SUM
from hotlease.MPI._constants import WIN_BASE, WIN_CREATE_FLAVOR, WIN_DISP_UNIT
from hotlease.MPI._constants import WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_CREATE, WIN_FLAVOR_DYNAMIC, WIN_FLAVOR_SHARED, WIN_MODEL
from hotlease.MPI._constants import WIN_SEPARATE, WIN_SIZE, WIN_UNIFIED
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._groups import Group
from hotlease.MPI._native import BufferBytes, Datatype, Op, Request, memory
from hotlease.MPI._window_copies import ProgramMemory

# Alignment of the ranks' parts, a cache line; not used if the parts must follow one another without gaps.
_APART = 64
# Place of the first lock: behind any memory.
_LOCKS = 1 << 60


def _argument_error(text: str) -> Failure:
    return Failure(text, "Arguments")


def _map_memory(comm: Intracomm, sizes: list[int], apart: int) -> tuple[int, mmap.mmap, list[int]]:
    """Returns a descriptor of the memory of all ranks, the memory, and the offset of each rank's part."""
    rooms = [-(-size // apart) * apart for size in sizes]
    starts = [0, *itertools.accumulate(rooms)]
    total = max(starts[-1], 1)
    own, failed = -1, None
    try:
        if comm.rank == 0:
            own = os.memfd_create("hotlease-window", os.MFD_CLOEXEC)
            os.ftruncate(own, total)
            os.posix_fallocate(own, 0, total)
    except OSError as error:
        failed = error
    path, failed = comm.bcast((f"/proc/{os.getpid()}/fd/{own}", failed) if comm.rank == 0 else None)
    descriptor, whole = -1, None
    try:
        if failed is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            whole = mmap.mmap(descriptor, total)
    except OSError as error:
        failed = error
    errors = [error for error in comm.allgather(failed) if error is not None]
    if own >= 0:
        os.close(own)
    if errors or whole is None:
        if descriptor >= 0:
            os.close(descriptor)
        raise Failure(f"no memory of {total} bytes that these ranks share: {errors[0]}; a window is of one node and user", "LocalFailure")
    return descriptor, whole, starts[:-1]


class Win:
    """Memory of each rank that all ranks access; ``Allocate``, ``Allocate_shared``, ``Create`` and ``Create_dynamic`` make it.

    All ranks call these four, ``Fence`` and ``Free``. An access is done when its call returns; epochs (``Fence``, ``Lock``,
    ``Start``) order the accesses of different ranks. In windows of ``Create`` and ``Create_dynamic``, ranks access copies.
    """

    def __init__(self, win: Optional[Win] = None) -> None:
        """Makes another reference to a window; without ``win``, makes ``WIN_NULL``."""
        self.__dict__ = win.__dict__ if win is not None else {"_comm": None}

    # None: the object is WIN_NULL.
    _comm: Optional[Intracomm]
    _descriptor: int
    _parts: list[memory]
    _units: list[int]
    _flavor: int
    # Memory of the program that was passed to `Create`.
    _own: Optional[ProgramMemory] = None
    # Memory that ranks have attached to a window of `Create_dynamic`; the window's parts are the ranks' tables.
    _attached: Optional[Attachments] = None
    _name: str
    _mutex: threading.RLock
    # Ranks of the epochs of `Post` and `Start`.
    _posted: Sequence[int]
    _started: Sequence[int]

    @classmethod
    def _make(cls, size: int, unit: int, comm: Comm, flavor: int, own_memory: Optional[ProgramMemory] = None) -> Win:
        win = cls()
        own = comm.Idup()[0]
        given: list[Any] = own.allgather((size, unit))
        try:
            if any(size < 0 or unit < 1 for size, unit in given):
                raise _argument_error(f"sizes and units of {given}")
            sizes = [size for size, _ in given]
            apart = 1 if flavor == WIN_FLAVOR_SHARED else _APART
            win._descriptor, whole, starts = _map_memory(own, sizes, apart)
        except BaseException:
            own.Free()
            raise
        view = memoryview(whole)
        win._parts = [memory(view[start : start + size]) for start, size in zip(starts, sizes)]
        win._units = [unit for _, unit in given]
        win._flavor, win._name, win._mutex = flavor, "", threading.RLock()
        win._posted = win._started = ()
        win._own = own_memory
        if own_memory is not None:
            own_memory.publish(win._parts[own.rank])
            # Other ranks would read zeros before the memory is published.
            own.Barrier()
        win._comm = own
        return win

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Comm = COMM_SELF) -> Win:
        """Makes a window with ``size`` bytes at this rank; displacements count units of ``disp_unit`` bytes."""
        return cls._make(size, disp_unit, comm, WIN_FLAVOR_ALLOCATE)

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Comm = COMM_SELF) -> Win:
        """Makes a window as ``Allocate`` does; the ranks' parts follow one another in memory without gaps."""
        return cls._make(size, disp_unit, comm, WIN_FLAVOR_SHARED)

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: Any = None, comm: Comm = COMM_SELF) -> Win:
        """Makes a window over a buffer of the program (None: no memory).

        Its model is ``WIN_SEPARATE``: other ranks access a copy. Changes become visible, in both directions, at this rank's next
        ``Fence``, ``Post``, ``Wait``, ``Sync``, or ``Lock`` or ``Unlock`` of its own memory. Each of these calls compares all of
        the memory: windows of ``Allocate`` need no copies.
        """
        given = ProgramMemory(memory)
        return cls._make(len(given.own), disp_unit, comm, WIN_FLAVOR_CREATE, given)

    @classmethod
    def Create_dynamic(cls, info: Any = None, comm: Comm = COMM_SELF) -> Win:
        """Makes a window to which each rank attaches memory of the program (``Attach``). Displacements are addresses at the
        target (``MPI.Get_address``). Its model is ``WIN_SEPARATE``, as with ``Create``: other ranks access copies."""
        win = cls._make(TABLE_BYTES, 1, comm, WIN_FLAVOR_DYNAMIC)
        win._attached = Attachments(win._parts, win._ranks.allgather(os.getpid()), win._ranks.rank)
        return win

    def _attachments(self) -> Attachments:
        self._ranks  # noqa: B018
        if self._attached is None:
            raise Failure("memory is attached to windows of MPI.Win.Create_dynamic only", "Flavor")
        return self._attached

    def Attach(self, memory: Any) -> None:
        """Attaches a buffer of the program: other ranks may access it from then on. A rank may have at most 1024 attached
        buffers at a time, and they must not overlap."""
        attachments, given = self._attachments(), ProgramMemory(memory)
        with self._locked(self._table(self._ranks.rank)):
            attachments.attach(given)

    def Detach(self, memory: Any) -> None:
        """Detaches a buffer. After that it contains what other ranks have written to it."""
        attachments = self._attachments()
        attached = attachments.attached(memory)
        if attached is not None:
            self._settle()
            with self._locked(self._table(self._ranks.rank)):
                attachments.detach(attached)

    @property
    def _ranks(self) -> Intracomm:
        if self._comm is None:
            raise Failure("this is MPI.WIN_NULL: no window, or one that was freed", "Window")
        return self._comm

    def Free(self) -> None:
        """Releases the window at all ranks: this object becomes ``WIN_NULL``. Arrays over its memory remain valid."""
        self._ranks.Barrier()
        self._settle()
        os.close(self._descriptor)
        if self._attached is not None:
            self._attached.close()
        self._ranks.Free()
        self._parts, self._own, self._attached, self._comm = [], None, None, None

    def __bool__(self) -> bool:
        return self._comm is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Win) and (self.__dict__ is other.__dict__ or not self and not other)

    __hash__ = None  # type: ignore[assignment]

    # The memory

    def tomemory(self) -> memory:
        """Returns this rank's memory; empty memory for a window of ``Create_dynamic``."""
        part = self._parts[self._ranks.rank]
        if self._attached is not None:
            return memory.allocate(0)
        return part if self._own is None else self._own.own

    def Shared_query(self, rank: int) -> tuple[memory, int]:
        """Returns the memory of a rank and its unit; for ``PROC_NULL``, the memory of the first rank that has any."""
        if self.model != WIN_UNIFIED:
            text = "a window over memory of the program is shared by no other rank: MPI.Win.Allocate_shared makes one that is"
            raise Failure(text, "Flavor")
        if rank == PROC_NULL:
            rank = next((rank for rank, part in enumerate(self._parts) if len(part)), 0)
        return self._parts[self._at(rank)], self._units[rank]

    def Get_attr(self, keyval: int) -> Any:
        """Returns one of ``WIN_BASE``, ``WIN_SIZE``, ``WIN_DISP_UNIT``, ``WIN_CREATE_FLAVOR``, ``WIN_MODEL``."""
        own = self.tomemory()
        base = own.address if self._attached is None else 0
        known = {WIN_BASE: base, WIN_SIZE: len(own), WIN_DISP_UNIT: self._units[self._ranks.rank]}
        return {**known, WIN_CREATE_FLAVOR: self._flavor, WIN_MODEL: self.model}.get(keyval)

    @property
    def attrs(self) -> tuple[int, int, int]:
        """Address, size and unit of this rank's memory."""
        return self.Get_attr(WIN_BASE), self.Get_attr(WIN_SIZE), self.Get_attr(WIN_DISP_UNIT)

    @property
    def flavor(self) -> int:
        """``WIN_FLAVOR_ALLOCATE``, ``WIN_FLAVOR_SHARED``, ``WIN_FLAVOR_CREATE`` or ``WIN_FLAVOR_DYNAMIC``."""
        return self._flavor

    @property
    def model(self) -> int:
        """``WIN_UNIFIED``: other ranks write directly to this rank's memory; ``WIN_SEPARATE`` for ``Create`` and
        ``Create_dynamic``: they write to a copy."""
        return WIN_UNIFIED if self._own is None and self._attached is None else WIN_SEPARATE

    def Get_group(self) -> Group:
        """Returns the group of the ranks."""
        return self._ranks.Get_group()

    group = property(Get_group)

    def Get_name(self) -> str:
        """Returns the name that was set."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Sets a name."""
        self._name = name

    name = property(Get_name, Set_name)

    def Get_info(self) -> _handles.Info:
        """Returns empty hints."""
        return _handles.Info()

    def Set_info(self, info: _handles.Info) -> None:
        """Does nothing."""

    def Get_errhandler(self) -> _handles.Errhandler:
        """Returns ``ERRORS_RETURN``: errors are always raised."""
        return _handles.ERRORS_RETURN

    def Set_errhandler(self, errhandler: _handles.Errhandler) -> None:
        """Does nothing: errors are always raised."""

    # Epochs

    def _at(self, rank: int) -> int:
        if not 0 <= rank < self._ranks.size:
            raise Failure(f"there is no rank {rank} in a window of {self._ranks.size}", "NoSuchRank")
        return rank

    def _settle(self, rank: Optional[int] = None) -> None:
        """Synchronises memory of the program with its copy. If `rank` is given, does so only at this rank."""
        if self.model == WIN_SEPARATE and rank in (None, self._ranks.rank):
            with self._atomic(self._ranks.rank):
                for each in self._program_memory():
                    each.settle()

    def _program_memory(self) -> Iterable[ProgramMemory]:
        if self._attached is not None:
            return self._attached.own()
        return () if self._own is None else (self._own,)

    def Fence(self, assertion: int = 0) -> None:
        """Waits until all ranks have called ``Fence``. After that, accesses from before the call are done at all ranks."""
        self._ranks.Barrier()
        if self.model == WIN_SEPARATE:
            self._settle()
            self._ranks.Barrier()

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Locks a rank's memory: exclusively, or with ``LOCK_SHARED`` together with other ranks. Waits while another rank
        holds a lock that excludes this lock."""
        how = fcntl.LOCK_SH if lock_type == LOCK_SHARED else fcntl.LOCK_EX
        fcntl.lockf(self._descriptor, how, 1, _LOCKS + 2 * self._at(rank))
        self._settle(rank)

    def Unlock(self, rank: int) -> None:
        """Ends the epoch of ``Lock``."""
        self._settle(rank)
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _LOCKS + 2 * self._at(rank))

    def Lock_all(self, assertion: int = 0) -> None:
        """Locks the memory of all ranks with ``LOCK_SHARED``."""
        for rank in range(self._ranks.size):
            self.Lock(rank, LOCK_SHARED)

    def Unlock_all(self) -> None:
        """Ends the epoch of ``Lock_all``."""
        for rank in range(self._ranks.size):
            self.Unlock(rank)

    def Post(self, group: Group, assertion: int = 0) -> None:
        """Lets the ranks of a group access this rank's memory (``Start``), until ``Wait``."""
        self._settle()
        self._posted = self._others(group)
        for rank in self._posted:
            self._ranks.isend("post", rank, 0).Free()

    def Start(self, group: Group, assertion: int = 0) -> None:
        """Waits until the ranks of a group let this rank access their memory (``Post``)."""
        self._started = self._others(group)
        for rank in self._started:
            self._ranks.recv(source=rank, tag=0)

    def Complete(self) -> None:
        """Ends the epoch of ``Start``."""
        started, self._started = self._started, ()
        for rank in started:
            self._ranks.isend("complete", rank, 1).Free()

    def Wait(self) -> None:
        """Waits until all ranks of the group of ``Post`` have called ``Complete``."""
        posted, self._posted = self._posted, ()
        for rank in posted:
            self._ranks.recv(source=rank, tag=1)
        self._settle()

    def Test(self) -> bool:
        """Whether ``Wait`` would return at once; if so, does what ``Wait`` does."""
        if not all(self._ranks.iprobe(rank, 1) for rank in self._posted):
            return False
        self.Wait()
        return True

    def _others(self, group: Group) -> list[int]:
        return [self._at(rank) for rank in group.Translate_ranks(None, self.Get_group())]

    def Sync(self) -> None:
        """Synchronises memory of the program with the copy that other ranks access."""
        self._settle()

    def Flush(self, rank: int) -> None:
        """Does what ``Sync`` does, if ``rank`` is this rank. Nothing else is needed: an access is done when its call returns."""
        self._settle(rank)

    def Flush_all(self) -> None:
        """Does what ``Flush`` does, for all ranks."""
        self._settle()

    Flush_local, Flush_local_all = Flush, Flush_all

    # Accesses

    @contextmanager
    def _locked(self, place: int, how: int = fcntl.LOCK_EX) -> Iterator[None]:
        with self._mutex:
            fcntl.lockf(self._descriptor, how, 1, place)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)

    def _atomic(self, rank: int) -> AbstractContextManager[None]:
        """Excludes accumulating calls of other ranks on a rank's memory."""
        return self._locked(_LOCKS + 2 * rank + 1)

    def _table(self, rank: int) -> int:
        """Returns the place of the lock of a rank's table of attached memory."""
        return _LOCKS + 2 * self._ranks.size + rank

    def _places(self, length: int, rank: int, target: Any) -> list[tuple[int, int]]:
        """Returns offset and length of each run of bytes that `target` names in a rank's memory; `length`: sum of lengths."""
        place, count, datatype = 0, None, None
        if isinstance(target, (list, tuple)):
            place, count, datatype = (*target, None, None, None)[:3]
        elif target is not None:
            place = target
        start, room = int(place or 0) * self._units[rank], len(self._parts[rank]) if self._attached is None else 1 << 64
        if datatype is None:
            runs = [(start, length)]
        else:
            kind = Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype
            runs = kind._runs(length // max(kind.size, 1) if count is None else int(count), start)
        if sum(run for _, run in runs) != length or start < 0 or any(at + run > room for at, run in runs):
            raise _argument_error(f"{length} bytes at {target!r} of rank {rank}, which has {room} in the window")
        return runs

    def _parts_at(self, rank: int, places: list[tuple[int, int]]) -> list[memoryview]:
        """Returns the memory of a rank at places (offset and length), or the public copy of this memory."""
        if self._attached is not None:
            with self._locked(self._table(rank), fcntl.LOCK_SH):
                return [self._attached.find(rank, at, length) for at, length in places]
        part = memoryview(self._parts[rank])
        return [part[at : at + length] for at, length in places]

    def _move(self, local: BufferBytes, rank: int, target: Any, is_put: bool) -> int:
        view, done = memoryview(local), 0
        for there in self._parts_at(rank, self._places(len(view), rank, target)):
            length = len(there)
            here = view[done : done + length]
            if is_put:
                there[:] = here
            else:
                here[:] = there
            done += length
        return done

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Writes to a rank's memory. ``target``: a displacement, or a list of displacement, count and datatype."""
        if target_rank != PROC_NULL:
            self._move(BufferBytes(origin, False), self._at(target_rank), target, True)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Reads from a rank's memory."""
        if target_rank != PROC_NULL:
            local = BufferBytes(origin, True)
            self._move(local, self._at(target_rank), target, False)
            local.unpack()

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        """Reduces a rank's memory with this rank's elements; each element is updated atomically."""
        self.Get_accumulate(origin, None, target_rank, target, op)

    def Get_accumulate(self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        """Reads from a rank's memory, and reduces the memory with this rank's elements, in one atomic step."""
        if target_rank == PROC_NULL:
            return
        rank = self._at(target_rank)
        with self._atomic(rank):
            if op is NO_OP:
                return self.Get(result, rank, target)
            given = memoryview(BufferBytes(origin, False))
            before = bytearray(len(given))
            self._move(BufferBytes(before, True), rank, target, False)
            after = given if op is REPLACE else accumulated(origin, op, before, given)
            self._move(BufferBytes(after, False), rank, target, True)
        if result is not None:
            local = BufferBytes(result, True)
            memoryview(local)[:] = before
            local.unpack()

    def Fetch_and_op(self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Op = SUM) -> None:
        """Reads one element of a rank's memory, and reduces it with an element of this rank, in one atomic step."""
        self.Get_accumulate(origin, result, target_rank, target_disp, op)

    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        """Reads one element of a rank's memory, and replaces it if it equals ``compare``, in one atomic step."""
        if target_rank == PROC_NULL:
            return
        rank = self._at(target_rank)
        with self._atomic(rank):
            self.Get(result, rank, target_disp)
            if memoryview(BufferBytes(result, False)) == memoryview(BufferBytes(compare, False)):
                self.Put(origin, rank, target_disp)

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Writes to a rank's memory; the returned request has ended."""
        self.Put(origin, target_rank, target)
        return Request._ended(0)

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Reads from a rank's memory; the returned request has ended."""
        self.Get(origin, target_rank, target)
        return Request._ended(0)

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        """Reduces a rank's memory with this rank's elements; the returned request has ended."""
        self.Accumulate(origin, target_rank, target, op)
        return Request._ended(0)

    def Rget_accumulate(self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        """Reads from a rank's memory and reduces it; the returned request has ended."""
        self.Get_accumulate(origin, result, target_rank, target, op)
        return Request._ended(0)


WIN_NULL = Win()
