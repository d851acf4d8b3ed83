"""Communicators whose ranks are the nodes of a graph (``MPI.Graphcomm``, ``MPI.Distgraphcomm``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from hotlease.MPI._comm import COMM_NULL, Comm
from hotlease.MPI._constants import DIST_GRAPH, GRAPH, UNDEFINED, UNWEIGHTED
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._neighbours import Topocomm


def _argument_error(text: str) -> Failure:
    return Failure(text, "Arguments")


class Adjacency(NamedTuple):
    """Neighbours of all ranks: the neighbours of rank ``r`` are ``edges[ends[r - 1]:ends[r]]``."""

    ends: list[int]
    edges: list[int]

    @classmethod
    def of(cls, index: Sequence[int], edges: Sequence[int]) -> Adjacency:
        """Checks the lists; an index may begin with 0, as in other libraries."""
        ends, nodes = list(map(int, index)), list(map(int, edges))
        if len(ends) > 1 and ends[0] == 0 and ends[-1] == len(nodes):
            ends = ends[1:]
        if not ends or any(end < 0 for end in ends) or sorted(ends) != ends or ends[-1] != len(nodes):
            raise _argument_error(f"an index of {ends} for {len(nodes)} edges")
        if not all(0 <= node < len(ends) for node in nodes):
            raise _argument_error(f"edges to {nodes} in a graph of {len(ends)} nodes")
        return cls(ends, nodes)

    def of_rank(self, rank: int) -> list[int]:
        """Returns the neighbours of a rank."""
        if not 0 <= rank < len(self.ends):
            raise Failure(f"there is no rank {rank} in a graph of {len(self.ends)}", "NoSuchRank")
        return self.edges[self.ends[rank - 1] if rank else 0 : self.ends[rank]]

    def edges_of(self, rank: int) -> tuple[list[int], list[int]]:
        """Returns the neighbours of a rank twice: it receives from and sends to the same ranks."""
        return self.of_rank(rank), self.of_rank(rank)


class Graphcomm(Topocomm[Adjacency]):
    """A communicator with a graph whose edges are all known at all ranks; ``Create_graph`` makes it."""

    __slots__ = ()

    def Get_topology(self) -> int:
        """Returns ``GRAPH``."""
        return GRAPH

    def Get_dims(self) -> tuple[int, int]:
        """Returns the number of nodes and of edges."""
        return len(self._known.ends), len(self._known.edges)

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Returns the index and the edges."""
        return list(self._known.ends), list(self._known.edges)

    def Get_neighbors_count(self, rank: int) -> int:
        """Returns the number of a rank's neighbours."""
        return len(self._known.of_rank(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        """Returns a rank's neighbours."""
        return self._known.of_rank(rank)

    dims = property(Get_dims)
    topo = property(Get_topo)

    @property
    def nnodes(self) -> int:
        """Number of nodes."""
        return self.Get_dims()[0]

    @property
    def nedges(self) -> int:
        """Number of edges."""
        return self.Get_dims()[1]

    @property
    def index(self) -> list[int]:
        """Ends of each node's neighbours among the edges."""
        return self.Get_topo()[0]

    @property
    def edges(self) -> list[int]:
        """Neighbours of all nodes."""
        return self.Get_topo()[1]

    @property
    def nneighbors(self) -> int:
        """Number of this rank's neighbours."""
        return self.Get_neighbors_count(self.rank)

    @property
    def neighbors(self) -> list[int]:
        """Neighbours of this rank."""
        return self.Get_neighbors(self.rank)


class Neighbours(NamedTuple):
    """Ranks that this rank receives from, ranks that it sends to, and the weights of these edges (None: no weights)."""

    sources: list[int]
    destinations: list[int]
    weights: Optional[tuple[list[int], list[int]]]

    def edges_of(self, rank: int) -> tuple[list[int], list[int]]:
        """Returns the ranks that this rank receives from, and the ranks that it sends to. Ignores ``rank``: no edges of other
        ranks are known here."""
        return list(self.sources), list(self.destinations)


class Distgraphcomm(Topocomm[Neighbours]):
    """A communicator with a graph; at each rank only the rank's own edges are known. ``Create_dist_graph`` and
    ``Create_dist_graph_adjacent`` make it."""

    __slots__ = ()

    def Get_topology(self) -> int:
        """Returns ``DIST_GRAPH``."""
        return DIST_GRAPH

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Returns the number of ranks that this rank receives from, the number of ranks that it sends to, and whether edges
        have weights."""
        return *self.degrees, self._known.weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], Optional[tuple[list[int], list[int]]]]:
        """Returns the ranks that this rank receives from, the ranks that it sends to, and the weights of these edges or None."""
        weights = self._known.weights
        return *self.inoutedges, None if weights is None else (list(weights[0]), list(weights[1]))


def create_graph(comm: Comm, index: Sequence[int], edges: Sequence[int]) -> Comm:
    adjacency = Adjacency.of(index, edges)
    nodes, rank = len(adjacency.ends), comm.rank
    if nodes > comm.size:
        raise _argument_error(f"a graph of {nodes} nodes, of {comm.size} ranks")
    part = comm.Split(0 if rank < nodes else UNDEFINED, rank)
    if part == COMM_NULL:
        return COMM_NULL
    made = Graphcomm(part)
    made._topology = adjacency
    return made


def graph_map(comm: Comm, index: Sequence[int], edges: Sequence[int]) -> int:
    return comm.rank if comm.rank < len(Adjacency.of(index, edges).ends) else UNDEFINED


def _ranks(comm: Comm, given: Sequence[int]) -> list[int]:
    ranks = list(map(int, given))
    if not all(0 <= rank < comm.size for rank in ranks):
        raise Failure(f"edges of {ranks} among {comm.size} ranks", "NoSuchRank")
    return ranks


def _weights(given: Any, edges: list[int]) -> Optional[list[int]]:
    """Returns the weights of edges, or None if there are no weights. ``UNWEIGHTED`` and ``WEIGHTS_EMPTY`` are numbers."""
    if given is None or isinstance(given, int) and given == UNWEIGHTED:
        return None
    weights = [] if isinstance(given, int) else list(map(int, given))
    if len(weights) != len(edges) or any(weight < 0 for weight in weights):
        raise _argument_error(f"weights of {weights} for {len(edges)} edges")
    return weights


def _made(comm: Comm, neighbours: Neighbours) -> Distgraphcomm:
    made = Distgraphcomm(comm.Split(0, comm.rank))
    made._topology = neighbours
    return made


def create_adjacent(comm: Comm, sources: Sequence[int], destinations: Sequence[int], of_sources: Any, of_destinations: Any) -> Distgraphcomm:
    before, behind = _ranks(comm, sources), _ranks(comm, destinations)
    one, other = _weights(of_sources, before), _weights(of_destinations, behind)
    weights = None if one is None or other is None else (one, other)
    return _made(comm, Neighbours(before, behind, weights))


def create_distributed(
    comm: Comm, sources: Sequence[int], degrees: Sequence[int], destinations: Sequence[int], weights: Any
) -> Distgraphcomm:
    nodes, ends, counts = _ranks(comm, sources), _ranks(comm, destinations), list(map(int, degrees))
    if len(nodes) != len(counts) or any(count < 0 for count in counts) or sum(counts) != len(ends):
        raise _argument_error(f"{counts} edges of {len(nodes)} nodes, and {len(ends)} destinations")
    heavy = _weights(weights, ends)
    begins = [node for node, count in zip(nodes, counts) for _ in range(count)]
    own = list(zip(begins, ends, heavy or [1] * len(ends)))
    given: list[Any] = comm.allgather((own, heavy is not None))
    edges = [edge for some, _ in given for edge in some]
    into = [(begin, weight) for begin, end, weight in edges if end == comm.rank]
    out = [(end, weight) for begin, end, weight in edges if begin == comm.rank]
    has_weights = all(is_heavy for some, is_heavy in given if some) and any(is_heavy for _, is_heavy in given)
    weighted = ([weight for _, weight in into], [weight for _, weight in out]) if has_weights else None
    return _made(comm, Neighbours([rank for rank, _ in into], [rank for rank, _ in out], weighted))
