"""The prefix tree: runs of pages, with a recurrent snapshot at the end of a run.

A node holds the pages of a run of page hashes; its snapshot, if any, is the recurrent state after its last token. A
request can resume only where both are there, so matching ends at a snapshot (models without linear layers resume at any
page). A node's pages lie on the device or in host memory; what lies under a host node lies in host memory too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """One run of pages. The root has none."""

    parent: Node | None
    hashes: list[bytes]
    pages: list[int]
    """Ids in the device's pool, or in the host's where `on_host`; one for each hash."""
    on_host: bool = False
    snapshot: int | None = None
    """State slot on the device."""
    host_snapshot: int | None = None
    children: dict[bytes, Node] = field(default_factory=dict)
    """By the first hash of the child's run."""
    locks: int = 0
    """Requests that use this run's pages, those below it included."""
    pins: int = 0
    """Requests that are about to read this node's snapshot."""
    used: int = 0
    """Tick of the last match or insertion through this node."""
    consumed: int = 0
    """Tick at which the snapshot was taken or last resumed from."""
    sightings: int = 0
    """Prompts that wanted the snapshot: those that resumed from it, and those at whose branch point it was taken."""

    @property
    def has_snapshot(self) -> bool:
        """Is there a snapshot on the device or in host memory?"""
        return self.snapshot is not None or self.host_snapshot is not None

    def path(self) -> list[Node]:
        """Nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixTree:
    """Structure only: which runs there are. Who may be evicted is `eviction`'s business, pools are `prefix_cache`'s."""

    def __init__(self, *, needs_state: bool) -> None:
        self.root = Node(None, [], [])
        self.needs_state = needs_state
        self.tick = 0

    def __iter__(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def match(self, hashes: Sequence[bytes]) -> tuple[Node, int]:
        """(the deepest node from which a request with these page hashes can resume, or the root; pages in the tree).

        There may be more pages than can be resumed: an earlier prompt with the same beginning left no snapshot there.
        """
        node, at = self.root, 0
        best = self.root
        while at < len(hashes) and (child := node.children.get(hashes[at])) is not None:
            common = _common(child.hashes, hashes, at)
            at += common
            if common < len(child.hashes):
                if not self.needs_state:
                    best = self.split(child, common)
                break
            node = child
            if node.has_snapshot or not self.needs_state:
                best = node
        return best, at

    def touch(self, node: Node) -> None:
        """Mark the path to `node` as just used."""
        self.tick += 1
        for entry in node.path():
            entry.used = self.tick

    def descend(self, hashes: Sequence[bytes]) -> tuple[list[Node], int]:
        """(nodes that these hashes run through, splitting the last where they leave it; hashes covered)."""
        node, at, nodes = self.root, 0, []
        while at < len(hashes) and (child := node.children.get(hashes[at])) is not None:
            common = _common(child.hashes, hashes, at)
            if common < len(child.hashes):
                child = self.split(child, common)
            nodes.append(child)
            node, at = child, at + common
        return nodes, at

    def append(self, parent: Node, hashes: list[bytes], pages: list[int]) -> Node:
        """A new child that holds these pages."""
        child = Node(parent, hashes, pages, used=self.tick)
        parent.children[hashes[0]] = child
        return child

    def split(self, node: Node, count: int) -> Node:
        """Cut `node` after `count` pages: the returned upper part is new, the lower stays `node` with its snapshot."""
        assert node.parent is not None and 0 < count < len(node.hashes)
        upper = Node(
            node.parent, node.hashes[:count], node.pages[:count], on_host=node.on_host, locks=node.locks, used=node.used
        )
        node.parent.children[upper.hashes[0]] = upper
        node.parent, node.hashes, node.pages = upper, node.hashes[count:], node.pages[count:]
        upper.children[node.hashes[0]] = node
        return upper

    def remove(self, node: Node) -> None:
        """Take a childless node out."""
        assert node.parent is not None and not node.children
        del node.parent.children[node.hashes[0]]


def _common(run: list[bytes], hashes: Sequence[bytes], at: int) -> int:
    """Leading hashes that a run shares with hashes[at:]. Chained hashes agree up to some point and never after."""
    low, high = 0, min(len(run), len(hashes) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if run[middle - 1] == hashes[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
