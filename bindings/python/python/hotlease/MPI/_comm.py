"""Communicators: calls that send objects, and calls that make other communicators. Calls on buffers are in the
extension module."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Optional, TypeVar, Union

from hotlease.MPI import _handles, _objects
from hotlease.MPI._constants import ANY_SOURCE, ANY_TAG, COMM_TYPE_SHARED, CONGRUENT, IDENT, PROC_NULL, SIMILAR
from hotlease.MPI._constants import APPNUM, IO, TAG_UB, UNDEFINED, UNEQUAL, UNIVERSE_SIZE, WTIME_IS_GLOBAL
from hotlease.MPI._constants import SUM as _SUM
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._errors import Missing
from hotlease.MPI._groups import Group, members_of
from hotlease.MPI._native import Bytes, Collectives, Handle, Op, Request, Status
from hotlease.MPI._persistent import PersistentCalls
from hotlease.MPI._topology_calls import TopologyCalls

C = TypeVar("C", bound="Comm")
Operator = Union[Op, Callable[[Any, Any], Any]]

# Names of mpi4py that hotlease lacks, and what to use instead.
_ELSEWHERE = {
    "Spawn": "`hotlease comm run` for more processes, and Comm.Grow to take them in",
    "Spawn_multiple": "`hotlease comm run` for more processes, and Comm.Grow to take them in",
    "Accept": "MPI.join under a name",
    "Connect": "MPI.join under a name",
    "Create_intercomm": "one communicator of all, and Split",
    "Set_group": "Create_group",
    "Revoke": "Shrink, which works in every state of the communicator",
}


# Tag with which `Idup` makes communicators: a program's tags are lower.
DUPLICATE = 1 << 31


class Message:
    """A message that ``Mprobe`` has matched; it is received only through this object."""

    def __init__(self, data: Optional[Bytes], status: Status) -> None:
        self._data, self._status = data, status

    def __bool__(self) -> bool:
        return self is not MESSAGE_NULL

    def Recv(self, buf: Any, status: Optional[Status] = None) -> None:
        """Copies the message into a buffer."""
        room = None if self._data is None else self._data._copy_to(buf)
        if self._data is not None and room is not None:
            raise Failure(f"the message has {len(self._data)} bytes, the memory to receive it {room}", "Truncated")
        self._tell(status)

    def recv(self, status: Optional[Status] = None) -> Any:
        """Returns the object in the message."""
        self._tell(status)
        return None if self._data is None else _objects.loads(self._data)

    def _tell(self, status: Optional[Status]) -> None:
        if status is not None:
            status._copy_of(self._status)


MESSAGE_NULL = Message(None, Status())
MESSAGE_NO_PROC = Message(None, Status())
MESSAGE_NO_PROC._status.source = PROC_NULL
"""Message of ``PROC_NULL``."""


class Comm(TopologyCalls, PersistentCalls, Collectives):
    """A group of processes that send each other messages. They are addressed by their ranks, from 0.

    Upper-case calls send the memory of buffers without a copy: an array, ``[array, MPI.DOUBLE]``, ``[array, count,
    type]``, ``[array, counts, displacements, type]``. Lower-case calls send any object, pickled. Any thread may make
    any call; while a call waits, other threads run, and Ctrl-C ends the wait. If a member fails, calls that involve the
    member raise ``MPI.Exception`` within two seconds.
    """

    __slots__ = ("_attributes", "_errhandler", "_info", "_name")
    _attributes: dict[int, Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return False
        return self._handle == other._handle or not self and not other

    def __hash__(self) -> int:
        return hash(self._handle) if self else 0

    def __bool__(self) -> bool:
        return not self._handle.is_null()

    def __repr__(self) -> str:
        return "MPI.COMM_NULL" if not self else f"<{type(self).__name__} {self.Get_name()!r}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _ELSEWHERE:
            raise Missing(f"hotlease has no Comm.{name}: use {_ELSEWHERE[name]}")
        if name.endswith("_init"):
            raise Missing(f"hotlease has no Comm.{name}: begin it anew each time, by I{name[:-5].lower()}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Messages

    Rsend = Collectives.Send
    Irsend = Collectives.Isend
    probe = Collectives.Probe
    iprobe = Collectives.Iprobe

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends a copy, without waiting."""
        self.Ibsend(buf, dest, tag).Free()

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object; returns when the object is on its way. A large object is sent only when its receiver asks for
        it, and the call waits until then."""
        self.Send(_objects.pickle.dumps(obj), dest, tag)

    rsend = send

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends; returns when a receive has asked for the message."""
        self.Issend(buf, dest, tag).Wait()

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object; returns when a receive has asked for it."""
        self.issend(obj, dest, tag).Wait()

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Starts to send an object; the send ends when a receive has asked for it."""
        return self.Issend(_objects.pickle.dumps(obj), dest, tag)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object, without waiting."""
        self.isend(obj, dest, tag).Free()

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Starts to send an object; the program may change the object at once."""
        return self.Isend(_objects.pickle.dumps(obj), dest, tag)

    ibsend = irsend = isend

    def recv(
        self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Optional[Status] = None
    ) -> Any:
        """Receives an object of any size. ``buf`` is accepted for compatibility, and not used."""
        data = self._recv(source, tag, status)
        return None if data is None else _objects.loads(data)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive an object of any size: ``request.wait()`` returns it."""
        return self._irecv(source, tag, _objects.loads)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Optional[Status] = None,
    ) -> Any:
        """Sends an object and receives an object at the same time: two members can call it with each other, and all
        members in a ring."""
        request = self.irecv(None, source, recvtag)
        try:
            self.send(sendobj, dest, sendtag)
        except BaseException:
            request.Cancel()
            raise
        return request.wait(status)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Optional[Status] = None) -> Message:
        """Waits for a message and matches it, so that no other thread gets the message."""
        known = Status()
        data = self._recv(source, tag, known)
        if status is not None:
            status._copy_of(known)
        return MESSAGE_NO_PROC if data is None else Message(data, known)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Optional[Status] = None) -> Optional[Message]:
        """Matches a message as ``Mprobe`` does, if a message has arrived; else returns None."""
        if source == PROC_NULL:
            return self.Mprobe(source, tag, status)
        known = Status()
        data = self._recv_now(source, tag, known)
        if data is None:
            return None
        if status is not None:
            status._copy_of(known)
        return Message(data, known)

    mprobe, improbe = Mprobe, Improbe

    # Collectives of objects

    barrier = Collectives.Barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Returns the root's object, at all ranks."""
        return _objects.bcast(self, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> Optional[list[Any]]:
        """Returns the objects of all ranks at the root; None at other ranks."""
        return _objects.gather(self, sendobj, root)

    def scatter(self, sendobj: Optional[Sequence[Any]], root: int = 0) -> Any:
        """Returns object ``i`` of the root at rank ``i``."""
        return _objects.scatter(self, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Returns the objects of all ranks, at all ranks."""
        return _objects.allgather(self, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Returns object ``i`` of each rank at rank ``i``."""
        return _objects.alltoall(self, sendobj)

    def reduce(self, sendobj: Any, op: Operator = _SUM, root: int = 0) -> Any:
        """Reduces all objects with ``op`` in rank order. The root computes and returns the result; None at other ranks."""
        objects = _objects.gather(self, sendobj, root)
        return None if objects is None else functools.reduce(op, objects)

    def allreduce(self, sendobj: Any, op: Operator = _SUM) -> Any:
        """Reduces all objects with ``op`` in rank order. Each rank computes the result: for arrays, ``Allreduce`` is faster."""
        return functools.reduce(op, _objects.allgather(self, sendobj))

    def scan(self, sendobj: Any, op: Operator = _SUM) -> Any:
        """Reduces the objects of ranks 0 to this rank with ``op``."""
        return functools.reduce(op, _objects.allgather(self, sendobj)[: self.rank + 1])

    def exscan(self, sendobj: Any, op: Operator = _SUM) -> Any:
        """Reduces the objects of the ranks before this rank with ``op``; None at rank 0."""
        before = _objects.allgather(self, sendobj)[: self.rank]
        return functools.reduce(op, before) if before else None

    # Communicators

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Makes a communicator of the members with the same colour, ordered by key; returns ``COMM_NULL`` if the colour
        is ``MPI.UNDEFINED``."""
        if color != UNDEFINED and color < 0:
            raise ValueError(f"a colour of {color}; it is 0 or more, or MPI.UNDEFINED")
        handle = self._split(None if color == UNDEFINED else color, key)
        return COMM_NULL if handle is None else Intracomm(handle)

    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> Comm:
        """Makes a communicator of this node's members (``COMM_TYPE_SHARED``); returns ``COMM_NULL`` for ``UNDEFINED``."""
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise ValueError(f"a split type of {split_type}; it is MPI.COMM_TYPE_SHARED or MPI.UNDEFINED; by any colour: Split")
        machines = self.allgather(_machine())
        return self.Split(UNDEFINED if split_type == UNDEFINED else machines.index(machines[self.rank]), key)

    def Dup(self, info: object = None) -> Intracomm:
        """Makes a communicator of the same members; it does not receive messages of this communicator."""
        return self._duplicate(self._dup())

    Clone = Dup_with_info = Dup

    def Idup(self, info: object = None) -> tuple[Intracomm, Request]:
        """Makes a communicator as ``Dup`` does, without waiting for the other members; the request has already ended."""
        return self._duplicate(self._create(list(range(self.size)), DUPLICATE)), self.Isend(b"", PROC_NULL)

    Idup_with_info = Idup

    def _duplicate(self, handle: Handle) -> Intracomm:
        made = (type(self) if isinstance(self, Intracomm) else Intracomm)(handle)
        made._copy(self)
        return made

    def _copy(self, other: Comm) -> None:
        """Copies the original's error handler, hints and attributes to a duplicate."""
        self._errhandler, self._info = other.Get_errhandler(), other.Get_info()
        self._attributes = _handles.copied(other, other._known_attributes())

    def Get_group(self) -> Group:
        """Returns the group of the members."""
        return Group(members_of(self))

    @property
    def group(self) -> Group:
        """Group of the members."""
        return self.Get_group()

    def Create(self, group: Group) -> Comm:
        """Makes a communicator of a group's members. All members of this communicator call it. A member gets
        ``COMM_NULL`` if the group that it passes does not contain it."""
        rank = group.Get_rank()
        first = group.Translate_ranks([0], self.Get_group())[0] if rank != UNDEFINED else 0
        return self.Split(UNDEFINED if rank == UNDEFINED else first, rank)

    def Create_group(self, group: Group, tag: int = 0) -> Comm:
        """Makes a communicator of a group's members, and only they call it; returns ``COMM_NULL`` to other processes."""
        if group.Get_rank() == UNDEFINED:
            return COMM_NULL
        ranks = group.Translate_ranks(None, self.Get_group())
        if UNDEFINED in ranks:
            raise Failure("the group has members that this communicator lacks", "Group")
        return Intracomm(self._create(ranks, tag))

    def Shrink(self) -> Comm:
        """Makes a communicator of the remaining members, over new connections. All remaining members call it, also
        members that got no error."""
        return Intracomm(self._shrink())

    def Grow(self, joining: int) -> Comm:
        """Makes a communicator of the present members, which keep their ranks, and ``joining`` new members. All present
        members call it. New members call ``MPI.join`` with the same name, ``newcomer=True`` and the new size.
        """
        return Intracomm(self._grow(joining))

    def Agree(self, flag: int) -> int:
        """Returns the bits that are set in the flags of all members."""
        return int(functools.reduce(lambda x, y: x & y, self.allgather(flag)))

    def Free(self) -> None:
        """Finishes the communicator: this object becomes ``COMM_NULL``. If no other communicator uses its connections,
        waits until other members have read what was sent."""
        for keyval in list(self._known_attributes()):
            self.Delete_attr(keyval)
        self._handle.end(False)

    Disconnect = free = Free

    def Abort(self, errorcode: int = 1) -> NoReturn:
        """Ends this process at once; the other members get the message that this member aborted."""
        self._handle.end(True)
        os._exit(errorcode & 0xFF)

    @classmethod
    def Get_parent(cls) -> Comm:
        """Returns ``COMM_NULL``: no process was spawned by another process."""
        return COMM_NULL

    # Queries

    def Get_name(self) -> str:
        """Returns the name that was set last, or else the name by which the communicator was joined."""
        try:
            return str(self._name)
        except AttributeError:
            return self._joined_by()

    def Set_name(self, name: str) -> None:
        """Sets the name, for this object only."""
        self._name = name

    @property
    def name(self) -> str:
        """The name that was set last, or else the name by which the communicator was joined."""
        return self.Get_name()

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def Compare(self, comm: Comm) -> int:
        """Returns ``IDENT`` for the same communicator, ``CONGRUENT`` for the same members in the same order, ``SIMILAR``
        for the same members in another order, else ``UNEQUAL``."""
        if self == comm:
            return IDENT
        how = self.Get_group().Compare(comm.Get_group())
        return {IDENT: CONGRUENT, SIMILAR: SIMILAR}.get(how, UNEQUAL)

    def Is_inter(self) -> bool:
        """Returns false: there are no communicators between two groups."""
        return False

    def Is_intra(self) -> bool:
        """Returns true."""
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    # Attributes, hints and handlers of errors

    def _known_attributes(self) -> dict[int, Any]:
        try:
            return self._attributes
        except AttributeError:
            self._attributes = {}
            return self._attributes

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        """Returns a key for attributes. A duplicate gets the attribute if ``copy_fn`` is true, or the result of ``copy_fn`` for
        communicator, key and attribute if it is a function. ``delete_fn`` is called when an attribute is removed."""
        return _handles.create_keyval(copy_fn, delete_fn)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Releases a key."""
        return _handles.free_keyval(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Sets an attribute."""
        _handles.keyval(keyval)
        if keyval in self._known_attributes():
            self.Delete_attr(keyval)
        self._known_attributes()[keyval] = attrval

    def Get_attr(self, keyval: int) -> Any:
        """Returns an attribute, or None; for ``MPI.TAG_UB``, the highest tag."""
        predefined = {TAG_UB: 2**31 - 1, IO: self.rank, WTIME_IS_GLOBAL: 0, UNIVERSE_SIZE: self.size, APPNUM: 0}
        return predefined.get(keyval, self._known_attributes().get(keyval))

    def Delete_attr(self, keyval: int) -> None:
        """Removes an attribute."""
        _handles.deleted(self, keyval, self._known_attributes().pop(keyval, None))

    def Get_errhandler(self) -> _handles.Errhandler:
        """Returns the handler that was set, by default ``ERRORS_RETURN``."""
        return getattr(self, "_errhandler", _handles.ERRORS_RETURN)

    def Set_errhandler(self, errhandler: _handles.Errhandler) -> None:
        """Records a handler. Errors are always raised as ``MPI.Exception``."""
        self._errhandler = errhandler

    def Get_info(self) -> _handles.Info:
        """Returns the hints that were set."""
        return _handles.Info(getattr(self, "_info", None))

    def Set_info(self, info: _handles.Info) -> None:
        """Records hints."""
        self._info = _handles.Info(info)

    @property
    def info(self) -> _handles.Info:
        """Hints that were set."""
        return self.Get_info()

    @info.setter
    def info(self, info: _handles.Info) -> None:
        self.Set_info(info)


class Intracomm(Comm):
    """A communicator within one group. hotlease has no communicators between groups."""

    __slots__ = ()


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{os.uname().nodename} {file.read()}"
    except OSError:
        return os.uname().nodename


COMM_NULL = Comm(Handle.null())
COMM_SELF = Intracomm(Handle.own())
COMM_WORLD = Intracomm(Handle.world())
