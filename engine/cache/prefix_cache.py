"""Pages, state slots, the prefix tree and the host tier together: what the scheduler asks of memory.

Everything is decided here and carried out by the runner, in order: a copy is listed before the step that needs it, and a
freed page is written again only by a later step, so nothing has to wait for a step in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trnprof.engine.cache.eviction import POLICIES
from trnprof.engine.cache.pool import IdPool
from trnprof.engine.cache.tree import Node, PrefixTree
from trnprof.errors import InconsistencyError

RESERVED_SLOTS = 2
"""Slot 0 takes what padding writes, slot 1 is always zero."""
RESERVED_PAGES = 1


class CopyKind(StrEnum):
    """Between device and host memory."""

    PAGE_OUT = "page_out"
    PAGE_IN = "page_in"
    SLOT_OUT = "slot_out"
    SLOT_IN = "slot_in"


@dataclass(frozen=True)
class Copy:
    """One page or slot to copy before a step."""

    kind: CopyKind
    source: int
    target: int


@dataclass
class CacheCounters:
    """Since the start."""

    hits: int = 0
    misses: int = 0
    tokens_reused: int = 0
    snapshots_taken: int = 0
    snapshots_evicted: int = 0
    pages_evicted: int = 0
    pages_to_host: int = 0
    pages_from_host: int = 0
    host_pages_dropped: int = 0


@dataclass(frozen=True)
class Resume:
    """Where a request starts."""

    node: Node | None
    """Locked; None: nothing is resumed."""
    pages: list[int]
    """The node's, from the first token on."""
    slot: int | None
    """The snapshot to read."""
    shared_pages: int
    """Pages that the prompt has in common with the tree; beyond `pages`, only another prompt's snapshot is missing."""


class PrefixCache:
    """Memory of one engine. Ids are the runner's: page 0, slot 0 and slot 1 are reserved and never handed out."""

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        slots: int,
        needs_state: bool,
        policy: str = "stale-interior",
        host_pages: int = 0,
        host_snapshots: int = 0,
        enabled: bool = True,
    ) -> None:
        self.page_size, self.enabled, self.needs_state = page_size, enabled, needs_state
        self.pages = IdPool("page", RESERVED_PAGES, pages - RESERVED_PAGES)
        self.slots = IdPool("state slot", RESERVED_SLOTS, slots - RESERVED_SLOTS)
        self.host_pages = IdPool("host page", 0, host_pages)
        self.host_slots = IdPool("host slot", 0, host_snapshots if needs_state else 0)
        self.tree = PrefixTree(needs_state=needs_state)
        self.policy = POLICIES[policy]()
        self.counters = CacheCounters()
        self.copies: list[Copy] = []
        """Copies decided since the last step; the scheduler moves them into its plan."""
        self.cached_pages = self.cached_snapshots = 0
        """Pages and snapshots that the tree holds on the device."""

    # Memory

    def allocate_pages(self, count: int) -> list[int] | None:
        """`count` pages, evicting what is not in use; None if that is not enough."""
        while (taken := self.pages.allocate(count)) is None:
            if not self._evict_pages():
                return None
        return taken

    def allocate_slots(self, count: int) -> list[int] | None:
        """`count` state slots, evicting snapshots; None if that is not enough."""
        while (taken := self.slots.allocate(count)) is None:
            if not self._evict_snapshot():
                return None
        return taken

    def available_pages(self) -> int:
        """Pages that are free or that eviction could free."""
        return self.pages.free_count + sum(len(node.pages) for node in self.tree if not node.on_host and not node.locks)

    # The tree

    def resume(self, hashes: list[bytes]) -> Resume:
        """Lock the longest prefix that can be resumed. `unpin` its node once the step that reads it is planned."""
        if not self.enabled:
            return Resume(None, [], None, 0)
        node, shared = self.tree.match(hashes)
        while node.parent is not None:
            self._lock(node, 1)
            node.pins += 1
            if self._bring_in(node):
                self.tree.touch(node)
                node.consumed, node.sightings = self.tree.tick, node.sightings + 1
                pages = [page for entry in node.path() for page in entry.pages]
                self.counters.hits += 1
                self.counters.tokens_reused += len(pages) * self.page_size
                return Resume(node, pages, node.snapshot, shared)
            node.pins -= 1
            shallower = self._resumable_above(node)
            self.release(node)
            node = shallower
        self.counters.misses += 1
        return Resume(None, [], None, shared)

    def unpin(self, node: Node) -> None:
        """The step that reads the node's snapshot is planned: from now on the slot may be reused."""
        node.pins -= 1

    def release(self, node: Node) -> None:
        """Unlock what `resume` or `insert` locked."""
        self._lock(node, -1)
        self._prune(node)

    def insert(
        self, hashes: list[bytes], pages: list[int], snapshot: int | None, held: Node | None, *, sightings: int = 0
    ) -> tuple[Node, bool]:
        """Give the pages of these hashes (and the state slot after them) to the tree; returns (locked node, slot taken).

        `pages` is changed where the tree has a run already: the tree's pages are put in, the given ones freed. `held` is
        the node that the request had locked; the lock moves to the new one.
        """
        self.tree.tick += 1
        nodes, covered = self.tree.descend(hashes)
        at = 0
        for node in nodes:
            size = len(node.hashes)
            if node.on_host:  # what was just computed is what lies in host memory: the device's copy is free
                self.host_pages.release(node.pages)
                node.pages, node.on_host = pages[at : at + size], False
                self.cached_pages += size
            else:
                given = pages[at : at + size]
                self.pages.release([page for page, kept in zip(given, node.pages, strict=True) if page != kept])
                pages[at : at + size] = node.pages
            at += size
        node = nodes[-1] if nodes else self.tree.root
        if covered < len(hashes):
            node = self.tree.append(node, list(hashes[covered:]), list(pages[covered : len(hashes)]))
            self.cached_pages += len(node.pages)
        self._lock(node, 1)
        self.tree.touch(node)
        taken = snapshot is not None and node.snapshot is None
        if taken:
            node.snapshot, node.consumed, node.sightings = snapshot, self.tree.tick, sightings
            self.cached_snapshots += 1
            self.counters.snapshots_taken += 1
            if node.host_snapshot is not None:
                self.host_slots.release([node.host_snapshot])
                node.host_snapshot = None
        if held is not None:
            self.release(held)
        return node, taken

    def take_copies(self) -> list[Copy]:
        """The copies to make before the next step."""
        copies, self.copies = self.copies, []
        return copies

    # Accounts

    def check_idle(self) -> None:
        """With no request running everything is free or in the tree, and nothing is locked.

        Raises: InconsistencyError with the account that does not close.
        """
        pages = sum(len(node.pages) for node in self.tree if not node.on_host)
        snapshots = sum(1 for node in self.tree if node.snapshot is not None)
        for pool, held, counted in (
            (self.pages, pages, self.cached_pages),
            (self.slots, snapshots, self.cached_snapshots),
        ):
            if pool.free_count + held != pool.count:
                raise InconsistencyError(
                    f"{pool.name}s leaked: {pool.free_count} free + {held} cached of {pool.count} while idle"
                )
            if held != counted:
                raise InconsistencyError(f"{held} {pool.name}s are cached, {counted} were counted")
        locked = sum(1 for node in self.tree if node.locks or node.pins)
        if locked:
            raise InconsistencyError(f"{locked} cached runs are locked while idle")

    # Inside

    def _lock(self, node: Node, change: int) -> None:
        for entry in node.path():
            entry.locks += change
            if entry.locks < 0:
                raise InconsistencyError("a cached run was unlocked twice")

    def _resumable_above(self, node: Node) -> Node:
        above = node.parent
        while above is not None and above.parent is not None and self.needs_state and not above.has_snapshot:
            above = above.parent
        return above or self.tree.root

    def _bring_in(self, node: Node) -> bool:
        """Copy what the path to `node` has in host memory to the device; False (and nothing done) if it does not fit."""
        outside = [entry for entry in node.path() if entry.on_host]
        pages = self.allocate_pages(sum(len(entry.pages) for entry in outside))
        if pages is None:
            return False
        if self.needs_state and node.snapshot is None:
            slot = self.allocate_slots(1)
            if slot is None or node.host_snapshot is None:
                self.pages.release(pages)
                self.slots.release(slot or [])
                return False
            self.copies.append(Copy(CopyKind.SLOT_IN, node.host_snapshot, slot[0]))
            self.host_slots.release([node.host_snapshot])
            node.snapshot, node.host_snapshot = slot[0], None
            self.cached_snapshots += 1
        for entry in outside:
            new, pages = pages[: len(entry.pages)], pages[len(entry.pages) :]
            self.copies += [Copy(CopyKind.PAGE_IN, *pair) for pair in zip(entry.pages, new, strict=True)]
            self.host_pages.release(entry.pages)
            self.cached_pages += len(new)
            self.counters.pages_from_host += len(new)
            entry.pages, entry.on_host = new, False
        return True

    def _evict_snapshot(self) -> bool:
        candidates = [node for node in self.tree if node.snapshot is not None and not node.pins]
        if not candidates:
            return False
        victim = min(candidates, key=self.policy.snapshot_key)
        assert victim.snapshot is not None
        slot = victim.snapshot
        # What lies above a deeper snapshot is not worth host memory.
        if not victim.children and (place := self._host_place(self.host_slots, keep=victim)) is not None:
            self.copies.append(Copy(CopyKind.SLOT_OUT, slot, place))
            victim.host_snapshot = place
        else:
            self.counters.snapshots_evicted += 1
        victim.snapshot = None
        self.cached_snapshots -= 1
        self.slots.release([slot])
        self._prune(victim)
        return True

    def _evict_pages(self) -> bool:
        """Free the pages of one run that no request uses and under which no run is on the device."""
        candidates = [
            node
            for node in self.tree
            if not node.on_host and not node.locks and all(child.on_host for child in node.children.values())
        ]
        if not candidates:
            return False
        victim = min(candidates, key=self.policy.pages_key)
        victim.pins += 1  # making room in host memory may prune around it, but not it
        moved = self._move_out(victim)
        victim.pins -= 1
        if moved:
            self._prune(victim)
        else:
            self._drop(victim)
        return True

    def _move_out(self, node: Node) -> bool:
        """Copy a run (and its snapshot) to host memory; False if host memory has no place for it."""
        count = len(node.pages)
        if count > self.host_pages.count or (self.needs_state and not self.host_slots.count):
            return False
        while self.host_pages.free_count < count:
            if not self._drop_host(keep=node):
                return False
        if node.snapshot is not None:
            place = self._host_place(self.host_slots, keep=node)
            if place is None:
                return False
            self.copies.append(Copy(CopyKind.SLOT_OUT, node.snapshot, place))
            self.slots.release([node.snapshot])
            node.snapshot, node.host_snapshot = None, place
            self.cached_snapshots -= 1
        places = self.host_pages.allocate(count)
        if places is None:  # room was given up again by a snapshot's place
            return False
        self.copies += [Copy(CopyKind.PAGE_OUT, *pair) for pair in zip(node.pages, places, strict=True)]
        self.pages.release(node.pages)
        node.pages, node.on_host = places, True
        self.cached_pages -= count
        self.counters.pages_to_host += count
        return True

    def _host_place(self, pool: IdPool, keep: Node) -> int | None:
        while (place := pool.allocate(1)) is None:
            if not pool.count or not self._drop_host(keep=keep):
                return None
        return place[0]

    def _drop_host(self, keep: Node) -> bool:
        """Forget the least recently used childless run in host memory."""
        leaves = [
            node for node in self.tree if node.on_host and not node.children and not node.locks and node is not keep
        ]
        if not leaves:
            return False
        victim = min(leaves, key=self.policy.pages_key)
        self.counters.host_pages_dropped += len(victim.pages)
        self._drop(victim)
        return True

    def _drop(self, node: Node) -> None:
        """Forget an unlocked run and what lies under it, then what this leaves without a use."""
        for child in list(node.children.values()):
            self._drop_one(child)
        parent = node.parent
        self._drop_one(node)
        if parent is not None:
            self._prune(parent)

    def _drop_one(self, node: Node) -> None:
        for child in list(node.children.values()):
            self._drop_one(child)
        if node.locks or node.pins:
            raise InconsistencyError("a cached run in use was evicted")
        if node.on_host:
            self.host_pages.release(node.pages)
        else:
            self.pages.release(node.pages)
            self.cached_pages -= len(node.pages)
            self.counters.pages_evicted += len(node.pages)
        if node.snapshot is not None:
            self.slots.release([node.snapshot])
            self.cached_snapshots -= 1
            self.counters.snapshots_evicted += 1
        if node.host_snapshot is not None:
            self.host_slots.release([node.host_snapshot])
        self.tree.remove(node)

    def _prune(self, node: Node) -> None:
        """Free runs from which nobody can resume: at a leaf, without a snapshot, unlocked."""
        while self.needs_state and node.parent is not None:
            if node.children or node.locks or node.pins or node.has_snapshot:
                return
            parent = node.parent
            self._drop_one(node)
            node = parent
