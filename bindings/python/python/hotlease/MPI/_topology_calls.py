"""Calls of a communicator that give its ranks neighbours. The modules behind these calls are imported when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotlease.MPI._constants import UNDEFINED


class TopologyCalls:
    """Part of ``MPI.Comm``."""

    __slots__ = ()

    def Create_cart(self: Any, dims: Sequence[int], periods: Any = None, reorder: bool = False) -> Any:
        """Makes a communicator whose ranks are in a grid of sizes ``dims``; ``periods``: whether each dimension wraps around.
        Ranks beyond the grid get ``COMM_NULL``."""
        from hotlease.MPI import _topology

        return _topology.create_cart(self, dims, periods)

    def Cart_map(self: Any, dims: Sequence[int], periods: Any = None) -> int:
        """Returns the rank that this process would have in a grid, or ``UNDEFINED``."""
        from hotlease.MPI import _topology

        return _topology.cart_map(self, dims)

    def Create_graph(self: Any, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        """Makes a communicator whose ranks have neighbours: the neighbours of rank ``r`` are ``edges[index[r - 1]:index[r]]``.
        Ranks beyond the index get ``COMM_NULL``."""
        from hotlease.MPI import _graphs

        return _graphs.create_graph(self, index, edges)

    def Graph_map(self: Any, index: Sequence[int], edges: Sequence[int]) -> int:
        """Returns the rank that this process would have in a graph, or ``UNDEFINED``."""
        from hotlease.MPI import _graphs

        return _graphs.graph_map(self, index, edges)

    def Create_dist_graph_adjacent(
        self: Any,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Any = None,
        destweights: Any = None,
        info: object = None,
        reorder: bool = False,
    ) -> Any:
        """Makes a communicator in which this rank receives from ``sources`` and sends to ``destinations``."""
        from hotlease.MPI import _graphs

        return _graphs.create_adjacent(self, sources, destinations, sourceweights, destweights)

    def Create_dist_graph(
        self: Any,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Any = None,
        info: object = None,
        reorder: bool = False,
    ) -> Any:
        """Makes a communicator with the edges that all ranks give. ``degrees`` has the number of edges that begin at each rank
        of ``sources``; ``destinations`` has the ends of all these edges in order."""
        from hotlease.MPI import _graphs

        return _graphs.create_distributed(self, sources, degrees, destinations, weights)

    def Get_topology(self) -> int:
        """Returns ``CART`` for a grid, ``GRAPH`` or ``DIST_GRAPH`` for a graph, else ``UNDEFINED``."""
        return UNDEFINED

    @property
    def topology(self) -> int:
        """``CART`` for a grid, ``GRAPH`` or ``DIST_GRAPH`` for a graph, else ``UNDEFINED``."""
        return self.Get_topology()

    @property
    def is_topo(self) -> bool:
        """Whether the ranks have neighbours."""
        return self.Get_topology() != UNDEFINED
