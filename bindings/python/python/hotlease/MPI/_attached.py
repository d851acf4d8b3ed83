"""Memory that ranks attach to a window after it was made (``MPI.Win.Create_dynamic``).

Other ranks access a public copy of each region (see `_window_copies`). The copy is an anonymous file of the region's owner;
another rank maps it at the first access. Each owner has a table of its regions in memory that all ranks map; callers lock the
table.
"""

from __future__ import annotations

import bisect
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._native import memory
from hotlease.MPI._window_copies import ProgramMemory

# Number of changes of a table, and number of its regions.
_HEAD = struct.Struct("<2Q")
_REGION = struct.Struct("<5Q")
# Number of regions that a rank may attach at a time.
REGIONS_MAX = 1024
TABLE_BYTES = _HEAD.size + REGIONS_MAX * _REGION.size


class Region(NamedTuple):
    """Attached memory of a rank, as the rank's table describes it."""

    address: int
    size: int
    # Descriptor of the public copy in the owner's process. The inode shows whether the descriptor still is of this file.
    descriptor: int
    inode: int
    # Number that no other region of this rank has had.
    number: int


class _Table(NamedTuple):
    changes: int
    addresses: list[int]
    # In the order of their addresses.
    regions: list[Region]


class Attachments:
    """Regions of all ranks of a window, in one rank's process."""

    def __init__(self, tables: list[memory], processes: list[int], rank: int) -> None:
        self._tables, self._processes, self._rank = tables, processes, rank
        # Regions of this rank by address, and their memory.
        self._own: dict[int, tuple[Region, ProgramMemory]] = {}
        self._known = [_Table(0, [], [])] * len(tables)
        # Public copies by rank and number.
        self._copies: dict[tuple[int, int], memoryview] = {}

    def own(self) -> Iterator[ProgramMemory]:
        """Yields the attached memory of this rank."""
        return (given for _, given in self._own.values())

    def attach(self, given: ProgramMemory) -> None:
        """Adds memory of this rank, and makes a public copy of it."""
        address, size = given.own.address, len(given.own)
        if size == 0:
            return
        for region, _ in self._own.values():
            if address < region.address + region.size and region.address < address + size:
                raise Failure(f"{size} bytes at {address:#x} are attached already, or a part of them", "Attachment")
        if len(self._own) == REGIONS_MAX:
            raise Failure(f"{REGIONS_MAX} regions are attached, which is the limit: detach one, or attach fewer that are larger", "Attachment")
        descriptor = -1
        try:
            descriptor = os.memfd_create("hotlease-attached", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
            copy = memoryview(mmap.mmap(descriptor, size))
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise Failure(f"no memory for a copy of {size} bytes, which other ranks access: {error}", "Attachment") from error
        given.publish(memory(copy))
        changes, _ = _HEAD.unpack_from(self._tables[self._rank])
        region = Region(address, size, descriptor, os.fstat(descriptor).st_ino, changes + 1)
        self._own[address] = region, given
        self._copies[self._rank, region.number] = copy
        self._write(changes + 1)

    def attached(self, given: Any) -> Optional[ProgramMemory]:
        """Returns the attached memory that begins at the address of ``given``; None if ``given`` has no bytes."""
        room = memory.frombuffer(given, readonly=True)
        if len(room) == 0:
            return None
        if room.address not in self._own:
            raise Failure(f"no memory that begins at {room.address:#x} is attached", "Attachment")
        return self._own[room.address][1]

    def detach(self, attached: ProgramMemory) -> None:
        """Removes memory of this rank."""
        region, _ = self._own.pop(attached.own.address)
        changes, _ = _HEAD.unpack_from(self._tables[self._rank])
        self._write(changes + 1)
        del self._copies[self._rank, region.number]
        os.close(region.descriptor)

    def _write(self, changes: int) -> None:
        table = self._tables[self._rank]
        for index, (region, _) in enumerate(self._own.values()):
            _REGION.pack_into(table, _HEAD.size + index * _REGION.size, *region)
        _HEAD.pack_into(table, 0, changes, len(self._own))

    def find(self, rank: int, address: int, size: int) -> memoryview:
        """Returns the public copy of ``size`` bytes at an address of a rank."""
        if size == 0:
            return memoryview(bytearray())
        table = self._regions(rank)
        index = bisect.bisect_right(table.addresses, address) - 1
        region = table.regions[index] if index >= 0 else None
        if region is None or address + size > region.address + region.size:
            raise Failure(f"rank {rank} has not attached the {size} bytes at {address:#x}, or not as one region", "NotAttached")
        begin = address - region.address
        return self._copy(rank, region)[begin : begin + size]

    def _regions(self, rank: int) -> _Table:
        """Returns the regions of a rank, read anew if the rank's table has changed."""
        table = memoryview(self._tables[rank])
        changes, count = _HEAD.unpack_from(table)
        if changes != self._known[rank].changes:
            end = _HEAD.size + min(count, REGIONS_MAX) * _REGION.size
            regions = sorted(map(Region._make, _REGION.iter_unpack(table[_HEAD.size : end])))
            self._known[rank] = _Table(changes, [region.address for region in regions], regions)
            there = {region.number for region in regions}
            for key in [key for key in self._copies if key[0] == rank and key[1] not in there]:
                del self._copies[key]
        return self._known[rank]

    def _copy(self, rank: int, region: Region) -> memoryview:
        copy = self._copies.get((rank, region.number))
        if copy is None:
            copy = self._copies[rank, region.number] = self._mapped(rank, region)
        return copy

    def _mapped(self, rank: int, region: Region) -> memoryview:
        descriptor = -1
        try:
            descriptor = os.open(f"/proc/{self._processes[rank]}/fd/{region.descriptor}", os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(descriptor).st_ino != region.inode:
                raise FileNotFoundError("its process has ended")
            return memoryview(mmap.mmap(descriptor, region.size))
        except (OSError, ValueError) as error:
            raise Failure(f"memory that rank {rank} has attached cannot be reached: {error}", "LocalFailure") from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        """Releases the public copies of this rank's memory."""
        for region, _ in self._own.values():
            os.close(region.descriptor)
        self._own.clear()
        self._copies.clear()
