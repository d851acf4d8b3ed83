"""Persistent requests: messages that are sent or received again and again with the same arguments (``MPI.Prequest``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

from hotlease.MPI._constants import ANY_SOURCE, ANY_TAG
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._native import BufferBytes, Request


class Prequest(Request):
    """A message that each ``Start`` sends or receives again; ``Comm.Send_init`` and similar calls make it.

    A program waits for it like for any request; after that, and until the next ``Start``, it is a request that has ended.
    """

    # Starts the operation. None: the object is REQUEST_NULL.
    _begin: Optional[Callable[[], Request]] = None

    @classmethod
    def _of(cls, begin: Callable[[], Request]) -> Prequest:
        made = cls()
        made._begin = begin
        return made

    def Start(self) -> None:
        """Starts the operation, which must not be under way."""
        if self._begin is None:
            raise Failure("this is MPI.REQUEST_NULL: no request, or one that was freed", "Request")
        if super().__bool__():
            raise Failure("the request was started before, and was not waited for since", "Request")
        self._renew(self._begin())

    @staticmethod
    def Startall(requests: Iterable[Prequest]) -> None:
        """Starts several operations."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Releases the request: this object becomes ``REQUEST_NULL``. An operation that was started continues."""
        super().Free()
        self._begin = None

    def __bool__(self) -> bool:
        return self._begin is not None

    def __eq__(self, other: object) -> bool:
        return self is other or not self and isinstance(other, Request) and not other

    def __ne__(self, other: object) -> bool:
        # Defined because the base class has a __ne__ of its own.
        return not self == other

    __hash__ = Request.__hash__

    def __repr__(self) -> str:
        state = "null" if not self else "pending" if super().__bool__() else "inactive"
        return f"Prequest({state})"


def _checked(buf: Any, is_written: bool) -> Any:
    """Checks a buffer argument; returns it, or a copy if it is a list, which the program may change later."""
    BufferBytes(buf, is_written)
    return list(buf) if isinstance(buf, list) else buf


class PersistentCalls:
    """Part of ``MPI.Comm``: calls that prepare messages. ``Prequest.Start`` sends or receives them."""

    __slots__ = ()

    def Send_init(self: Any, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepares a send."""
        given = _checked(buf, False)
        return Prequest._of(lambda: self.Isend(given, dest, tag))

    def Rsend_init(self: Any, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepares a send."""
        prepared: Prequest = self.Send_init(buf, dest, tag)
        return prepared

    def Ssend_init(self: Any, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepares a send that ends when a receive has asked for the message."""
        given = _checked(buf, False)
        return Prequest._of(lambda: self.Issend(given, dest, tag))

    def Bsend_init(self: Any, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepares a send of a copy, which is made at each start."""
        given = _checked(buf, False)
        return Prequest._of(lambda: self.Ibsend(given, dest, tag))

    def Recv_init(self: Any, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Prepares a receive."""
        room = _checked(buf, True)
        return Prequest._of(lambda: self.Irecv(room, source, tag))
