"""Groups: ordered sets of processes, from which communicators are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional, Union

from hotlease.MPI._constants import IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL
from hotlease.MPI._errors import Exception as Failure

if TYPE_CHECKING:
    from hotlease.MPI._native import Messages

# Identifier of the meeting of members, and the rank in it. This process has one name for all meetings.
Place = Union[tuple[bytes, int], str]
_SELF = "this process"


def members_of(comm: Messages) -> tuple[Place, ...]:
    """Returns the processes of a communicator, by rank."""
    met, ranks = comm._places()
    own = comm.Get_rank()
    return tuple(_SELF if rank == own else (bytes(met), place) for rank, place in enumerate(ranks))


class Group:
    """An ordered set of processes; ``Comm.Get_group`` returns the group of a communicator. Operations on groups are local.

    Communicators that ``Split``, ``Dup`` and ``Create`` make name processes as the original does. In a communicator of
    another meeting (``MPI.join``, ``Shrink``, ``Grow``, ``COMM_SELF``), only this process is known to be the same.
    """

    __slots__ = ("_members",)
    # None: the object is GROUP_NULL.
    _members: Optional[tuple[Place, ...]]

    def __init__(self, members: Union[Group, Sequence[Place], None] = None) -> None:
        known = members._members if isinstance(members, Group) else members
        self._members = None if known is None else tuple(known)

    def _known(self) -> tuple[Place, ...]:
        if self._members is None:
            raise Failure("this is MPI.GROUP_NULL: no group", "Group")
        return self._members

    def _at(self, rank: int) -> Place:
        if not 0 <= rank < self.Get_size():
            raise Failure(f"there is no rank {rank} in a group of {self.Get_size()}", "NoSuchRank")
        return self._known()[rank]

    def _chosen(self, ranks: Iterable[int]) -> list[Place]:
        chosen = [self._at(rank) for rank in ranks]
        if len(set(chosen)) < len(chosen):
            raise Failure("a rank is named twice", "NoSuchRank")
        return chosen

    def Get_size(self) -> int:
        """Returns the number of processes."""
        return len(self._known())

    def Get_rank(self) -> int:
        """Returns the rank of this process, or ``UNDEFINED``."""
        members = self._known()
        return members.index(_SELF) if _SELF in members else UNDEFINED

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.Get_size()

    @property
    def rank(self) -> int:
        """Rank of this process, or ``UNDEFINED``."""
        return self.Get_rank()

    def Translate_ranks(self, ranks: Optional[Sequence[int]] = None, group: Optional[Group] = None) -> list[int]:
        """Returns the ranks that processes of this group have in another group; ``UNDEFINED`` for processes that are not in
        it. ``ranks``: ranks of the processes in this group (default: all)."""
        other = {member: rank for rank, member in enumerate((self if group is None else group)._known())}
        ranks = range(self.Get_size()) if ranks is None else ranks
        return [PROC_NULL if rank == PROC_NULL else other.get(self._at(rank), UNDEFINED) for rank in ranks]

    def Compare(self, group: Group) -> int:
        """Returns ``IDENT`` for the same processes in the same order, ``SIMILAR`` in another order, else ``UNEQUAL``."""
        if self._known() == group._known():
            return IDENT
        return SIMILAR if set(self._known()) == set(group._known()) else UNEQUAL

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """Returns the processes of the first group, followed by further processes of the second group."""
        return cls(tuple(dict.fromkeys(group1._known() + group2._known())))

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """Returns the processes of the first group that are also in the second group."""
        return cls([member for member in group1._known() if member in group2._known()])

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """Returns the processes of the first group that are not in the second group."""
        return cls([member for member in group1._known() if member not in group2._known()])

    def Incl(self, ranks: Sequence[int]) -> Group:
        """Returns the processes with the given ranks, in the given order."""
        return Group(self._chosen(ranks))

    def Excl(self, ranks: Sequence[int]) -> Group:
        """Returns the processes except the processes with the given ranks."""
        left_out = set(self._chosen(ranks))
        return Group([member for member in self._known() if member not in left_out])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Returns the processes in ranges of ranks. A range is first rank, last rank, and step."""
        return self.Incl(_ranks_of(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Returns the processes that are in none of the ranges."""
        return self.Excl(_ranks_of(ranks))

    def Dup(self) -> Group:
        """Returns a copy of the group."""
        return Group(self._known())

    def Free(self) -> None:
        """Forgets the processes: this object becomes ``GROUP_NULL``."""
        self._members = None

    def __bool__(self) -> bool:
        return self._members is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._members == other._members

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "MPI.GROUP_NULL" if self._members is None else f"<Group of {len(self._members)}, rank {self.Get_rank()}>"


def _ranks_of(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    ranks: list[int] = []
    for first, last, step in ranges:
        ranks.extend(range(first, last + (1 if step > 0 else -1), step))
    return ranks


GROUP_NULL = Group()
GROUP_EMPTY = Group(())
