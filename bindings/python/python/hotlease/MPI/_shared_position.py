"""Position in a file that all ranks share (``MPI.File.Read_shared``).

It is a number in memory of the first rank, which the others open through ``/proc``. If one of them cannot (it is on another
host, or in another sandbox), the number is in a hidden file beside the file, which is made when it is first needed and deleted
when the file is closed; a crash may leave it. Both are changed under a lock of the system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from typing import Any, Optional

_NUMBER = 8
_TOKEN = 16
# Path of the memory, what it holds behind the number, and the first position.
Offer = tuple[Optional[str], bytes, int]


class SharedPosition:
    """The position, of one rank's file. Thread-safe."""

    def __init__(self, beside: Any, offer: Offer) -> None:
        """Reaches what the first rank offers; see `offered`."""
        path, self._token, self.first = offer
        self._beside = os.fspath(beside)
        self._mutex = threading.Lock()
        self._descriptor: Optional[int] = None
        self._hidden: Optional[str] = None
        with contextlib.suppress(OSError):
            if path is not None:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                # On another host, this may be any file.
                if os.pread(self._descriptor, _TOKEN, _NUMBER) != self._token:
                    self._leave()

    @property
    def is_reached(self) -> bool:
        """Whether this rank reaches the memory."""
        return self._descriptor is not None

    def hide(self) -> None:
        """Goes on with a file: a rank does not reach the memory. Called by all ranks, or by none."""
        self._leave()
        folder, name = os.path.split(os.path.abspath(os.fsdecode(self._beside)))
        self._hidden = os.path.join(folder, f".{name}.{self._token.hex()}.position")

    def get(self) -> int:
        """Returns the position."""
        return self.move(lambda position: position)

    def move(self, to: Callable[[int], int]) -> int:
        """Sets the position to ``to(position)``; returns the position from before."""
        with self._mutex:
            if self._descriptor is None:
                self._descriptor = os.open(self._hidden or "", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                known = os.pread(self._descriptor, _NUMBER, 0)
                position = int.from_bytes(known, "little") if known else self.first
                os.pwrite(self._descriptor, to(position).to_bytes(_NUMBER, "little"), 0)
                return position
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes it; other ranks may still use theirs."""
        self._leave()

    def delete(self) -> None:
        """Deletes the hidden file, if there is one, after all ranks have closed theirs."""
        if self._hidden is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._hidden)

    def _leave(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def offered(first: int) -> tuple[Offer, Optional[int]]:
    """Makes the memory; returns what other ranks need to reach it, and its descriptor, which has to stay open until they
    have."""
    token = os.urandom(_TOKEN)
    try:
        descriptor = os.memfd_create("hotlease-position", os.MFD_CLOEXEC)
    except OSError:
        return (None, token, first), None
    os.pwrite(descriptor, first.to_bytes(_NUMBER, "little") + token, 0)
    return (f"/proc/{os.getpid()}/fd/{descriptor}", token, first), descriptor
