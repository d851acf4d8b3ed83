"""Collectives with neighbours: the communicator's topology says which ranks a rank sends to, and which it receives from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Optional, Protocol, TypeVar

from hotlease._names import counted
from hotlease.MPI import _objects
from hotlease.MPI._comm import DUPLICATE, Comm, Intracomm
from hotlease.MPI._constants import PROC_NULL
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._native import BufferBytes, Datatype, Request, memory

# Classes of objects that name a datatype.
_TYPES = (Datatype, str)


class _Spec:
    """A buffer argument in mpi4py's forms: memory, counts, displacements, datatypes."""

    def __init__(self, given: Any) -> None:
        items = list(given) if isinstance(given, (list, tuple)) else [given]
        self.memory: Any = items.pop(0)
        self.types: Any = None
        self.counts: Any = None
        self.places: Any = None
        if len(items) > 1 or items and isinstance(items[0], _TYPES):
            self.types = items.pop()
        if len(items) == 1 and isinstance(items[0], tuple) and len(items[0]) == 2:
            items = list(items[0])
        if len(items) > 2:
            raise ValueError("[array, type], [array, count, type] or [array, counts, displacements, type]")
        if items:
            self.counts, self.places = (*items, None)[:2]

    def equal(self, blocks: int, is_written: bool) -> list[BufferBytes]:
        """Returns blocks of equal length, one after another in memory; a count is the length of each block."""
        if self.memory is None or blocks == 0:
            return [BufferBytes(None, is_written)] * blocks
        if self.counts is not None:
            each, first = int(self.counts), int(self.places or 0)
        else:
            each, rest = divmod(self._elements(), blocks)
            first = 0
            if rest:
                raise ValueError(f"{counted(self._elements(), 'element')}, which are not {counted(blocks, 'equal block')}, one for each neighbour")
        return self._blocks([each] * blocks, [first + each * index for index in range(blocks)], is_written)

    def separate(self, blocks: int, is_written: bool) -> list[BufferBytes]:
        """Returns blocks with separate counts and displacements; without displacements, blocks follow each other."""
        if self.memory is None:
            return [BufferBytes(None, is_written)] * blocks
        if self.counts is None:
            each, rest = divmod(self._elements(), max(blocks, 1))
            counts = [each + (index < rest) for index in range(blocks)]
        else:
            counts = self._each(self.counts, blocks, "count")
        if self.places is None:
            places = [sum(counts[:index]) for index in range(blocks)]
        else:
            places = self._each(self.places, blocks, "displacement")
        return self._blocks(counts, places, is_written)

    def typed(self, blocks: int, is_written: bool) -> list[BufferBytes]:
        """Returns blocks with separate datatypes, at offsets in bytes."""
        if self.memory is None:
            return [BufferBytes(None, is_written)] * blocks
        counts, places = self._each(self.counts, blocks, "count"), self._each(self.places, blocks, "displacement")
        if self.types is None or isinstance(self.types, _TYPES) or len(self.types) != blocks:
            raise ValueError(f"[array, counts, displacements, types], with {counted(blocks, 'type')}, one for each neighbour")
        view = memoryview(memory(self.memory))
        return [BufferBytes([view[place:], count, kind], is_written) for count, place, kind in zip(counts, places, self.types)]

    def _elements(self) -> int:
        whole = BufferBytes([self.memory, self.types] if self.types is not None else self.memory, False)
        kind = Datatype.fromcode(self.types) if isinstance(self.types, str) else self.types
        return len(memoryview(whole)) // max(memoryview(self.memory).itemsize if kind is None else kind.size, 1)

    def _blocks(self, counts: list[int], places: list[int], is_written: bool) -> list[BufferBytes]:
        return [BufferBytes([self.memory, (count, place), self.types], is_written) for count, place in zip(counts, places)]

    @staticmethod
    def _each(given: Any, blocks: int, what: str) -> list[int]:
        numbers = [] if given is None else list(map(int, given))
        if len(numbers) != blocks:
            raise ValueError(f"{counted(len(numbers), what)} for {counted(blocks, 'neighbour')}")
        return numbers


class Topology(Protocol):
    """Relations among the ranks of a communicator."""

    def edges_of(self, rank: int) -> tuple[list[int], list[int]]:
        """Returns the ranks that a rank receives from, and the ranks that it sends to, in the order of blocks."""


T = TypeVar("T", bound=Topology)


class Topocomm(Intracomm, Generic[T]):
    """A communicator whose ranks have neighbours: ranks that a rank receives from, and ranks that it sends to."""

    __slots__ = ("_line", "_topology")
    # Communicator that only the calls below use, so that a program's receives of any tag do not match the messages of
    # these calls. Made at the first call.
    _line: Intracomm
    # Missing in an object that a program has made from another communicator.
    _topology: T

    @property
    def _known(self) -> T:
        try:
            return self._topology
        except AttributeError:
            text = "this communicator has no topology: Create_cart, Create_graph and Create_dist_graph make some that have"
            raise Failure(text, "Arguments") from None

    def _copy(self, other: Comm) -> None:
        if isinstance(other, Topocomm) and hasattr(other, "_topology"):
            self._topology = other._topology
        super()._copy(other)

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        """Ranks that this rank receives from, and ranks that it sends to, in the order of blocks."""
        return self._known.edges_of(self.rank)

    @property
    def inedges(self) -> list[int]:
        """Ranks that this rank receives from."""
        return self.inoutedges[0]

    @property
    def outedges(self) -> list[int]:
        """Ranks that this rank sends to."""
        return self.inoutedges[1]

    @property
    def degrees(self) -> tuple[int, int]:
        """Number of ranks that this rank receives from, and number of ranks that it sends to."""
        sources, destinations = self.inoutedges
        return len(sources), len(destinations)

    @property
    def indegree(self) -> int:
        """Number of ranks that this rank receives from."""
        return self.degrees[0]

    @property
    def outdegree(self) -> int:
        """Number of ranks that this rank sends to."""
        return self.degrees[1]

    def _tags(self, count: int) -> tuple[list[int], list[int]]:
        """Returns the tags of the received and of the sent blocks. With equal tags, blocks between two ranks arrive in the
        order of the lists."""
        return [0] * count, [0] * count

    def _connected(self) -> Intracomm:
        try:
            return self._line
        except AttributeError:
            # Made without waiting for the other members.
            self._line = Intracomm(self._create(list(range(self.size)), DUPLICATE))
            return self._line

    def Free(self) -> None:
        """Finishes the communicator: this object becomes ``COMM_NULL``."""
        try:
            line = self._line
        except AttributeError:
            pass
        else:
            del self._line
            line.Free()
        super().Free()

    Disconnect = free = Free

    def _exchange(self, given: Sequence[BufferBytes], room: Sequence[BufferBytes]) -> Request:
        """Starts to send a block to each neighbour, and to receive a block from each."""
        sources, destinations = self.inoutedges
        line = self._connected()
        tags, sent_tags = self._tags(max(len(sources), len(destinations)))
        coming = [(block, source, tag) for block, source, tag in zip(room, sources, tags) if source != PROC_NULL]
        requests = [line.Irecv(*each) for each in coming]
        requests += [
            line.Isend(block, to, tag) for block, to, tag in zip(given, destinations, sent_tags) if to != PROC_NULL
        ]
        return Request._joined(requests, [block for block, _, _ in coming])

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts to send one block to all neighbours, and to receive one from each; received blocks have equal lengths."""
        sources, destinations = self.degrees
        return self._exchange([BufferBytes(sendbuf, False)] * destinations, _Spec(recvbuf).equal(sources, True))

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts to send one block to all neighbours, and to receive one from each; received blocks may differ in length."""
        sources, destinations = self.degrees
        return self._exchange([BufferBytes(sendbuf, False)] * destinations, _Spec(recvbuf).separate(sources, True))

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts to send a different block to each neighbour, and to receive one from each; all blocks have one length."""
        sources, destinations = self.degrees
        return self._exchange(_Spec(sendbuf).equal(destinations, False), _Spec(recvbuf).equal(sources, True))

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts to send a different block to each neighbour, and to receive one from each; blocks may differ in length."""
        sources, destinations = self.degrees
        return self._exchange(_Spec(sendbuf).separate(destinations, False), _Spec(recvbuf).separate(sources, True))

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts to send a different block to each neighbour, and to receive one from each. Each block has a datatype of its
        own, and an offset in bytes."""
        sources, destinations = self.degrees
        return self._exchange(_Spec(sendbuf).typed(destinations, False), _Spec(recvbuf).typed(sources, True))

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends one block to all neighbours, and receives one from each; received blocks have equal lengths."""
        self.Ineighbor_allgather(sendbuf, recvbuf).Wait()

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends one block to all neighbours, and receives one from each; received blocks may differ in length."""
        self.Ineighbor_allgatherv(sendbuf, recvbuf).Wait()

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends a different block to each neighbour, and receives one from each; all blocks have one length."""
        self.Ineighbor_alltoall(sendbuf, recvbuf).Wait()

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends a different block to each neighbour, and receives one from each; blocks may differ in length."""
        self.Ineighbor_alltoallv(sendbuf, recvbuf).Wait()

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends a different block to each neighbour, and receives a block from each. Each block has a datatype of its own, and an
        offset in bytes."""
        self.Ineighbor_alltoallw(sendbuf, recvbuf).Wait()

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Sends an object to all neighbours; returns the objects of all neighbours that send to this rank."""
        return self._exchange_objects([sendobj] * self.outdegree)

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Sends one object to each neighbour; returns the objects that neighbours send to this rank."""
        objects = list(sendobj)
        if len(objects) != self.outdegree:
            raise ValueError(f"{counted(len(objects), 'object')} for {counted(self.outdegree, 'neighbour')}")
        return self._exchange_objects(objects)

    def _exchange_objects(self, objects: list[Any]) -> list[Any]:
        sources, destinations = self.inoutedges
        line = self._connected()
        tags, sent_tags = self._tags(max(len(sources), len(destinations)))
        given = _objects.Given(objects)
        requests = [
            line.Isend(part, to, tag) for part, to, tag in zip(given.parts, destinations, sent_tags) if to != PROC_NULL
        ]
        received = [self._object(line, source, tag) for source, tag in zip(sources, tags)]
        Request.Waitall(requests)
        given.check()
        for source, data in zip(sources, received):
            if data is not None and len(data) == 0:
                raise Failure(f"rank {source} could not pickle what it gives; it has the exception", "Arguments")
        return [None if data is None else _objects.loads(data) for data in received]

    @staticmethod
    def _object(line: Intracomm, source: int, tag: int) -> Optional[Any]:
        return None if source == PROC_NULL else line._recv(source, tag, None)
