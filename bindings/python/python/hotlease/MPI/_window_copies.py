"""Windows over memory that the program has made (``MPI.Win.Create``): MPI's separate memory model.

Other processes cannot access memory of the program, so they access a public copy of it, in memory that all ranks map. Calls that
begin or end an epoch of the owner synchronise the two: bytes that the owner has changed since the last such call are copied to
the public copy, all other bytes are copied from it. To find the bytes that the owner has changed, the bytes at the last such call
are kept.
"""

from __future__ import annotations

from typing import Any

from hotlease.MPI._constants import BOTTOM
from hotlease.MPI._native import memory


class ProgramMemory:
    """Memory of the program in a window, and its public copy."""

    def __init__(self, given: Any) -> None:
        is_nothing = given is None or given is BOTTOM
        # Kept alive, because the window uses the memory until the window is freed.
        self.own = memory.allocate(0) if is_nothing else memory.frombuffer(given)

    def publish(self, public: memory) -> None:
        """Copies the memory to its public copy for the first time."""
        self._public = public
        if len(self.own):
            memoryview(public)[:] = memoryview(self.own)
        self._before = bytearray(memoryview(self.own))

    def settle(self) -> None:
        """Synchronises memory and public copy. No accumulating call may run meanwhile."""
        if not self._before:
            return
        import numpy

        own, public, before = (numpy.frombuffer(memoryview(each), "u1") for each in (self.own, self._public, self._before))
        numpy.copyto(public, own, where=own != before)
        # `own` and `before` get the public copy as it is at one moment: other ranks may write to other places meanwhile.
        now = public.copy()
        own[:] = now
        before[:] = now
