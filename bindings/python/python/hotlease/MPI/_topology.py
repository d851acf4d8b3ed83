"""Cartesian communicators: ranks in a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional, Union

from hotlease.MPI._comm import COMM_NULL, Comm
from hotlease.MPI._constants import CART, PROC_NULL, UNDEFINED
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._neighbours import Topocomm


class Grid(NamedTuple):
    """Sizes of a grid's dimensions, and for each dimension whether it wraps around."""

    dims: list[int]
    periods: list[bool]

    def coordinates(self, rank: int) -> list[int]:
        """Returns the coordinates of a rank. From rank to rank, the last coordinate changes first."""
        place = []
        for size in reversed(self.dims):
            rank, coordinate = divmod(rank, size)
            place.append(coordinate)
        return place[::-1]

    def rank(self, coordinates: Sequence[int]) -> Optional[int]:
        """Returns the rank at coordinates; None if they are beyond an end of a dimension."""
        rank = 0
        for coordinate, size, goes_round in zip(coordinates, self.dims, self.periods):
            if not goes_round and not 0 <= coordinate < size:
                return None
            rank = rank * size + coordinate % size
        return rank

    def shift(self, rank: int, direction: int, disp: int) -> tuple[int, int]:
        """Returns the ranks ``disp`` places before and behind ``rank`` in a dimension; ``PROC_NULL`` beyond an end."""
        ends = []
        for step in (-disp, disp):
            place = self.coordinates(rank)
            place[direction] += step
            other = self.rank(place)
            ends.append(PROC_NULL if other is None else other)
        return ends[0], ends[1]

    def edges_of(self, rank: int) -> tuple[list[int], list[int]]:
        """Returns the ranks before and behind ``rank`` in each dimension, twice (to receive from, and to send to);
        ``PROC_NULL`` beyond an end."""
        edges = [other for direction in range(len(self.dims)) for other in self.shift(rank, direction, 1)]
        return edges, list(edges)


def _argument_error(text: str) -> Failure:
    return Failure(text, "Arguments")


class Cartcomm(Topocomm[Grid]):
    """A communicator whose ranks are in a grid; ``Create_cart`` makes it."""

    __slots__ = ()

    def _tags(self, count: int) -> tuple[list[int], list[int]]:
        # A block for the rank before this rank arrives there as the block from behind. The tags tell the two blocks apart
        # if the rank before and the rank behind are the same.
        return list(range(count)), [index ^ 1 for index in range(count)]

    def Get_topology(self) -> int:
        """Returns ``CART``."""
        return CART

    def Get_dim(self) -> int:
        """Returns the number of dimensions."""
        return len(self._known.dims)

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """Returns the sizes of the dimensions, whether each wraps around, and the coordinates of this rank."""
        return list(self.dims), list(self.periods), self.coords

    def Get_coords(self, rank: int) -> list[int]:
        """Returns the coordinates of a rank."""
        if not 0 <= rank < self.size:
            raise Failure(f"there is no rank {rank} in a communicator of {self.size}", "NoSuchRank")
        return self._known.coordinates(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Returns the rank at coordinates; a coordinate wraps around if its dimension does."""
        if len(coords) != self.Get_dim():
            raise _argument_error(f"{len(coords)} coordinates in {self.Get_dim()} dimensions")
        rank = self._known.rank(coords)
        if rank is None:
            raise _argument_error(f"{list(coords)} is outside of a grid of {self.dims}, which does not go round there")
        return rank

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Returns the ranks ``disp`` places before and behind this rank in a dimension; ``PROC_NULL`` beyond an end."""
        if not 0 <= direction < self.Get_dim():
            raise _argument_error(f"a direction of {direction} in {self.Get_dim()} dimensions")
        return self._known.shift(self.rank, direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Comm:
        """Makes a communicator of the ranks that differ from this rank only in the dimensions that remain."""
        grid = self._known
        if len(remain_dims) != len(grid.dims):
            raise _argument_error(f"{len(remain_dims)} values for {len(grid.dims)} dimensions")
        color = 0
        for coordinate, size, remains in zip(self.coords, grid.dims, remain_dims):
            color = color if remains else color * size + coordinate
        kept = [index for index, remains in enumerate(remain_dims) if remains]
        part = Grid([grid.dims[index] for index in kept], [grid.periods[index] for index in kept])
        return _made(self.Split(color, self.rank), part)

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return self.Get_dim()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.Get_dim()

    @property
    def topo(self) -> tuple[list[int], list[bool], list[int]]:
        """Sizes of the dimensions, whether each wraps around, and the coordinates of this rank."""
        return self.Get_topo()

    @property
    def dims(self) -> list[int]:
        """Sizes of the dimensions."""
        return list(self._known.dims)

    @property
    def periods(self) -> list[bool]:
        """For each dimension, whether it wraps around."""
        return list(self._known.periods)

    @property
    def coords(self) -> list[int]:
        """Coordinates of this rank."""
        return self._known.coordinates(self.rank)


def _made(comm: Comm, grid: Grid) -> Comm:
    if comm == COMM_NULL:
        return COMM_NULL
    made = Cartcomm(comm)
    made._topology = grid
    return made


def create_cart(comm: Comm, dims: Sequence[int], periods: Union[Sequence[bool], bool, None]) -> Comm:
    sizes = list(dims)
    rounds = [bool(periods)] * len(sizes) if periods is None or isinstance(periods, bool) else list(map(bool, periods))
    if len(rounds) != len(sizes) or min(sizes, default=1) < 1 or math.prod(sizes) > comm.size:
        raise _argument_error(f"a grid of {sizes}, going round {rounds}, of {comm.size} ranks")
    rank = comm.rank
    return _made(comm.Split(0 if rank < math.prod(sizes) else UNDEFINED, rank), Grid(sizes, rounds))


def cart_map(comm: Comm, dims: Sequence[int]) -> int:
    return comm.rank if comm.rank < math.prod(dims) else UNDEFINED


def _factors(number: int, count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to write a number as ``count`` factors, in descending order, of which none exceeds ``most``."""
    if count == 1:
        if number <= most:
            yield (number,)
        return
    for factor in range(min(number, most), 0, -1):
        if number % factor == 0 and factor**count >= number:
            for rest in _factors(number // factor, count - 1, factor):
                yield (factor, *rest)


def Compute_dims(nnodes: int, dims: Union[int, Sequence[int]]) -> list[int]:
    """Returns sizes of a grid for ``nnodes`` ranks. The chosen sizes are as close to each other as possible. If ``dims`` is a
    sequence, only sizes that are 0 in it are chosen; if it is the number of dimensions, all sizes are chosen."""
    given = [0] * dims if isinstance(dims, int) else list(dims)
    fixed = math.prod(size for size in given if size)
    if nnodes < 1 or any(size < 0 for size in given) or nnodes % fixed:
        raise _argument_error(f"{nnodes} ranks make no grid of {given}")
    free = given.count(0)
    if not free:
        if fixed != nnodes:
            raise _argument_error(f"{nnodes} ranks make no grid of {given}")
        return given
    rest = nnodes // fixed
    chosen: Any = iter(min(_factors(rest, free, rest), key=lambda sizes: (sizes[0] - sizes[-1], sizes)))
    return [size or next(chosen) for size in given]
