"""Pickling of objects, and collectives of objects: the lower-case calls.

A collective of objects is two collectives of bytes: the lengths, and the pickles. A pickle is never empty, so a rank that
cannot pickle its object sends no bytes. It still completes the collective, and raises its error at the end; the other
ranks then raise an error, too.
"""

from __future__ import annotations

import pickle as _pickle
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from hotlease._names import counted
from hotlease.MPI._errors import Exception as Failure

if TYPE_CHECKING:
    from hotlease.MPI._native import Collectives

# Bytes of the first message of a broadcast, with the length and the beginning of the pickle: a small object needs only
# this message.
_HEAD = 1024
_LENGTH = 8


class Pickle:
    """Pickling by lower-case calls, by default with Python's pickle in protocol 5.

    ``MPI.pickle.__init__(dumps, loads, protocol)`` sets other functions, for instance of cloudpickle, dill or json. A
    ``dumps`` of the program gets a protocol only if ``protocol`` is given; it may return bytes or text.
    """

    def __init__(
        self,
        dumps: Optional[Callable[..., Any]] = None,
        loads: Optional[Callable[..., Any]] = None,
        protocol: Optional[int] = None,
    ) -> None:
        self._dumps, self._loads = dumps or _pickle.dumps, loads or _pickle.loads
        self.PROTOCOL = 5 if protocol is None and self._dumps is _pickle.dumps else protocol

    def dumps(self, obj: Any) -> bytes:
        """Returns the bytes of an object."""
        data = self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)
        return data.encode() if isinstance(data, str) else data

    def loads(self, data: Any) -> Any:
        """Returns the object of pickled bytes."""
        return self._loads(data if self._loads is _pickle.loads else bytes(data))


pickle = Pickle()


def loads(data: Any) -> Any:
    """Unpickles with ``MPI.pickle`` as it is set when the message arrives. Returns None for a message without bytes: a
    pickle is never empty."""
    return pickle.loads(data) if len(data) else None


class Given:
    """Objects of this rank, pickled."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self.error: Optional[BaseException] = None
        try:
            self.parts = [pickle.dumps(each) for each in objects]
        except BaseException as error:
            self.error = error
            self.parts = [b""] * len(objects)
        self.sizes = array("q", map(len, self.parts))

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def _taken(whole: bytearray, sizes: Sequence[int], ranks: Sequence[int]) -> list[Any]:
    """Unpickles the objects of ``ranks``, whose pickles are one after another in ``whole``."""
    view = memoryview(whole)
    objects, start = [], 0
    for rank, size in zip(ranks, sizes):
        if size == 0:
            raise Failure(f"rank {rank} could not pickle what it gives; it has the exception", "Arguments")
        objects.append(pickle.loads(view[start : start + size]))
        start += size
    return objects


def bcast(comm: Collectives, obj: Any, root: int) -> Any:
    is_root = comm.rank == root
    head = bytearray(_HEAD)
    given = Given([obj] if is_root else [])
    data = given.parts[0] if is_root else b""
    if is_root:
        head[:_LENGTH] = len(data).to_bytes(_LENGTH, "little")
        head[_LENGTH : _LENGTH + len(data)] = data[: _HEAD - _LENGTH]
    comm.Bcast(head, root)
    size = int.from_bytes(head[:_LENGTH], "little")
    first = _HEAD - _LENGTH
    whole = bytearray(0 if is_root else size)
    if not is_root:
        whole[:first] = head[_LENGTH : _LENGTH + min(size, first)]
    if size > first:
        comm.Bcast(memoryview(data if is_root else whole)[first:], root)
    given.check()
    return obj if is_root else _taken(whole, [size], [root])[0]


def gather(comm: Collectives, obj: Any, root: int) -> Optional[list[Any]]:
    given = Given([obj])
    sizes = array("q", bytes(8 * comm.size)) if comm.rank == root else None
    comm.Gather(given.sizes, sizes, root)
    if sizes is None:
        comm.Gatherv(given.parts[0], None, root)
        given.check()
        return None
    whole = bytearray(sum(sizes))
    comm.Gatherv(given.parts[0], [whole, sizes], root)
    given.check()
    return _taken(whole, sizes, range(comm.size))


def scatter(comm: Collectives, objects: Optional[Sequence[Any]], root: int) -> Any:
    size = array("q", [0])
    if comm.rank != root:
        comm.Scatter(None, size, root)
        whole = bytearray(size[0])
        comm.Scatterv(None, whole, root)
        return _taken(whole, size, [root])[0]
    fits = objects is not None and len(objects) == comm.size
    given = Given(objects if objects is not None and fits else [None] * comm.size)
    if not fits:
        has = "nothing" if objects is None else counted(len(objects), "object")
        given.error = ValueError(f"the root gives {has} to scatter to {counted(comm.size, 'rank')}")
        given.parts = [b""] * comm.size
        given.sizes = array("q", bytes(8 * comm.size))
    comm.Scatter(given.sizes, size, root)
    whole = bytearray(size[0])
    comm.Scatterv([b"".join(given.parts), given.sizes], whole, root)
    given.check()
    return _taken(whole, size, [root])[0]


def allgather(comm: Collectives, obj: Any) -> list[Any]:
    given = Given([obj])
    sizes = array("q", bytes(8 * comm.size))
    comm.Allgather(given.sizes, sizes)
    whole = bytearray(sum(sizes))
    comm.Allgatherv(given.parts[0], [whole, sizes])
    given.check()
    return _taken(whole, sizes, range(comm.size))


def alltoall(comm: Collectives, objects: Sequence[Any]) -> list[Any]:
    if len(objects) != comm.size:
        raise ValueError(f"{counted(len(objects), 'object')} for {counted(comm.size, 'rank')}")
    given = Given(objects)
    sizes = array("q", bytes(8 * comm.size))
    comm.Alltoall(given.sizes, sizes)
    whole = bytearray(sum(sizes))
    comm.Alltoallv([b"".join(given.parts), given.sizes], [whole, sizes])
    given.check()
    return _taken(whole, sizes, range(comm.size))
