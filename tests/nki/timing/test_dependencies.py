"""Who waits for whom, against comparing every access with every earlier one."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.nki.timing import dependencies
from trnprof.nki.timing.dependencies import MemoryReuse, StorageHistory
from trnprof.nki.timing.regions import Region

REGIONS = st.builds(
    lambda row, rows, column, columns, pitch: Region(pitch, row, row + rows, column, column + columns),
    st.integers(0, 12),
    st.integers(1, 8),
    st.integers(0, 40),
    st.integers(1, 24),
    st.sampled_from([64, 64, 64, 128]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), REGIONS), max_size=25), st.sampled_from([1, 2, 32]))
def test_every_conflict_is_ordered(accesses: list[tuple[bool, Region]], most: int) -> None:
    """Of two accesses that share a byte, one of them a write, the later waits for the earlier: directly, or through
    accesses in between. And nobody waits without sharing a byte with whom it waits for, unless many were joined."""
    reached: dict[int, set[int]] = {}

    def join(operations: list[int]) -> int:
        number = 1000 + len(reached)
        reached[number] = set(operations).union(*(reached[other] for other in operations))
        return number

    history = StorageHistory(join)
    with mock.patch.object(dependencies, "MAX_AWAITED", most):
        for number, (is_write, region) in enumerate(accesses):
            direct = history.write(region, number) if is_write else (history.read(region, number),)
            waits_for = {other for found in direct for other in found}
            assert all(len(found) <= most + 1 for found in direct)
            for other in waits_for:
                if other < 1000:
                    assert region.overlaps(accesses[other][1])
                    assert is_write or accesses[other][0]
            reached[number] = waits_for.union(*(reached[other] for other in waits_for))
            for other, (other_writes, other_region) in enumerate(accesses[:number]):
                if (is_write or other_writes) and region.overlaps(other_region):
                    assert other in reached[number], (number, other)


def never(operations: list[int]) -> int:
    raise AssertionError(operations)


def test_a_tile_written_again_and_again_waits_for_the_last_time_only() -> None:
    history, tile = StorageHistory(never), Region(512, 0, 128, 0, 512)
    assert history.write(tile, 0) == ([], [])
    assert history.read(tile, 1) == [0]
    assert history.write(tile, 2) == ([1], [0])
    assert history.write(tile, 3) == ([], [2])
    assert history.read(tile, 4) == [3]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=30))
def test_memory_in_use_never_exceeds_the_capacity(storages: list[tuple[int, int]]) -> None:
    """Storages live one after the other, each retired after `stay` more were made; what is given out again was retired."""
    capacity = 100
    reuse = MemoryReuse(capacity)
    alive: list[tuple[int, int, int]] = []  # retires after, bytes, number
    retired_bytes = used = 0
    for number, (size, stay) in enumerate(storages):
        for entry in [entry for entry in alive if entry[0] <= number]:
            alive.remove(entry)
            reuse.retire(entry[1], [entry[2]])
            retired_bytes += entry[1]
        taken = reuse.allocate(size)
        assert all(tenant.users[0] < number for tenant in taken)
        fresh = min(capacity - used, size)
        used += fresh
        # Whatever is not fresh came from retired memory, as far as there was any.
        assert (size > fresh and retired_bytes > 0) == bool(taken)
        retired_bytes = max(0, retired_bytes - (size - fresh))
        alive.append((number + 1 + stay, size, number))
