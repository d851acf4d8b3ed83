"""Position in a file that all ranks share (``MPI.File.Read_shared``).

The position is a number in memory of the first rank, which the other ranks open through ``/proc``. If a rank cannot open it
(on another host, or in another sandbox), the number is in a hidden file beside the file. The hidden file is made when it is
first needed, and deleted when the file is closed; after a crash it may remain. The number is changed under a lock of the system.
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
# Path of the memory, the token behind the number in this memory, and the first position.
Offer = tuple[Optional[str], bytes, int]


class SharedPosition:
    """The position, in the process of one rank. Thread-safe."""

    def __init__(self, beside: Any, offer: Offer) -> None:
        """Opens the memory that the first rank offers; see `offered`."""
        path, self._token, self.first = offer
        self._beside = os.fspath(beside)
        self._mutex = threading.Lock()
        self._descriptor: Optional[int] = None
        self._hidden: Optional[str] = None
        with contextlib.suppress(OSError):
            if path is not None:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                # On another host, the path may name any file.
                if os.pread(self._descriptor, _TOKEN, _NUMBER) != self._token:
                    self._leave()

    @property
    def is_reached(self) -> bool:
        """Whether this rank could open the memory."""
        return self._descriptor is not None

    def hide(self) -> None:
        """Uses the hidden file from now on, because a rank could not open the memory. Called by all ranks, or by none."""
        self._leave()
        folder, name = os.path.split(os.path.abspath(os.fsdecode(self._beside)))
        self._hidden = os.path.join(folder, f".{name}.{self._token.hex()}.position")

    def get(self) -> int:
        """Returns the position."""
        return self.move(lambda position: position)

    def move(self, to: Callable[[int], int]) -> int:
        """Sets the position to ``to(position)``; returns the old position."""
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
        """Closes this rank's descriptor; other ranks may still use the position."""
        self._leave()

    def delete(self) -> None:
        """Deletes the hidden file, if there is one. Called after all ranks have closed it."""
        if self._hidden is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._hidden)

    def _leave(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def offered(first: int) -> tuple[Offer, Optional[int]]:
    """Makes the memory; returns the data that other ranks need to open it, and its descriptor, which has to stay open until
    they have opened the memory."""
    token = os.urandom(_TOKEN)
    try:
        descriptor = os.memfd_create("hotlease-position", os.MFD_CLOEXEC)
    except OSError:
        return (None, token, first), None
    os.pwrite(descriptor, first.to_bytes(_NUMBER, "little") + token, 0)
    return (f"/proc/{os.getpid()}/fd/{descriptor}", token, first), descriptor
