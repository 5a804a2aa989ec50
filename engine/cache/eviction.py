"""Which snapshot or run of pages goes first, behind one interface: the smallest key is evicted."""

from __future__ import annotations

from typing import Protocol

from trnprof.engine.cache.tree import Node


class EvictionPolicy(Protocol):
    """An order over what may be evicted."""

    def snapshot_key(self, node: Node) -> tuple[int, ...]:
        """Key of a node that holds a snapshot."""

    def pages_key(self, node: Node) -> tuple[int, ...]:
        """Key of a node whose pages may go."""


class LeastRecentlyUsed:
    """What no match has come through for longest."""

    def snapshot_key(self, node: Node) -> tuple[int, ...]:
        """See EvictionPolicy."""
        return (node.used,)

    def pages_key(self, node: Node) -> tuple[int, ...]:
        """See EvictionPolicy."""
        return (node.used,)


class StaleInteriorFirst:
    """Snapshots that a later turn has extended, and that nobody else resumes from, go before any other.

    A conversation's next turn resumes from its deepest snapshot; those above it only cost memory (seed 001: evicting them
    first gave +27% and 40% fewer prefilled tokens). One that several prompts wanted is a shared prefix, not stale.
    Among equals the one consumed longest ago goes: a match refreshes only the snapshot that it resumes from.
    """

    def snapshot_key(self, node: Node) -> tuple[int, ...]:
        """See EvictionPolicy."""
        stale = bool(node.children) and node.sightings <= 1
        return (not stale, node.consumed)

    def pages_key(self, node: Node) -> tuple[int, ...]:
        """See EvictionPolicy."""
        return (node.used,)


POLICIES: dict[str, type[LeastRecentlyUsed] | type[StaleInteriorFirst]] = {
    "lru": LeastRecentlyUsed,
    "stale-interior": StaleInteriorFirst,
}
