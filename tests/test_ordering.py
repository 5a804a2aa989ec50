"""Rows of several sources in one order of time: nothing lost, nothing early, ties in the sources' order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnprof import ordering
from trnprof.events import Events
from trnprof.ordering import END_OF_TIME, Chunk, DiskSort, in_order
from trnprof.prefetch import prefetched
from trnprof.readers.assembly import Window
from trnprof.readers.table_facts import ChunkFacts, TableFacts, plan

ROWS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0, 1])), max_size=30)


def events(rows: list[tuple[int, int]]) -> Events:
    """(start, a number that tells rows apart)."""
    return Events(
        {"start": np.array([r[0] for r in rows], np.int64), "number": np.array([r[1] for r in rows], np.int16)}
    )


def chunks(rows: list[tuple[int, int]], size: int) -> Iterator[Chunk]:
    """Rows (start, core), cut into chunks, each with the least start of what follows."""
    numbered = [(start, core, number) for number, (start, core) in enumerate(rows)]
    for first in range(0, max(len(rows), 1), size):
        part, later = numbered[first : first + size], numbered[first + size :]
        yield Chunk(
            {core: events([(s, n) for s, c, n in part if c == core]) for core in (0, 1)},
            min((start for start, _, _ in later), default=END_OF_TIME),
        )


@given(tables=st.lists(ROWS, min_size=1, max_size=3), size=st.integers(1, 7), batch_rows=st.sampled_from([1, 5, 1000]))
@settings(max_examples=150, deadline=None)
def test_every_row_comes_once_and_never_early(tables: list[list[tuple[int, int]]], size: int, batch_rows: int) -> None:
    sources = [(f"table {place}", chunks(rows, size)) for place, rows in enumerate(tables)]
    taken: dict[tuple[str, int], list[tuple[int, int]]] = {}
    last = -END_OF_TIME
    batches = list(in_order(sources, batch_rows=batch_rows))
    for until, batch in batches:
        for table, cores in batch.items():
            for core, rows in cores.items():
                assert len(rows) and last <= rows.start.min() and rows.start.max() < until
                taken.setdefault((table, core), []).extend(
                    zip(rows.start.tolist(), rows["number"].tolist(), strict=True)
                )
        last = until
    assert batches[-1][0] == END_OF_TIME
    for place, rows in enumerate(tables):
        for core in (0, 1):
            own = [(start, number) for number, (start, c) in enumerate(rows) if c == core]
            assert taken.get((f"table {place}", core), []) == sorted(own), "ties in the table's order"


@given(rows=ROWS, run_rows=st.sampled_from([1, 4, 1000]), size=st.integers(1, 5))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_sorted_on_disk(rows: list[tuple[int, int]], run_rows: int, size: int, tmp_path: Path) -> None:
    held, ordering.RUN_ROWS = ordering.RUN_ROWS, run_rows
    try:
        runs = DiskSort(tmp_path, "table")
        for chunk in chunks(rows, size):
            runs.add(chunk.rows)
        sources = runs.sources(chunk_rows=size)
        taken: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        for _, batch in in_order([("table", source) for source in sources], batch_rows=3):
            for core, found in batch.get("table", {}).items():
                taken[core] += zip(found.start.tolist(), found["number"].tolist(), strict=True)
    finally:
        ordering.RUN_ROWS = held
    for core in (0, 1):
        assert taken[core] == sorted((start, number) for number, (start, c) in enumerate(rows) if c == core)


def facts_of(groups: list[list[dict[int, tuple[int, int, int]]]]) -> TableFacts:
    found = TableFacts(hull=Window(0, 1))
    found.chunks = [ChunkFacts(number, spans) for number, group in enumerate(groups) for spans in group]
    return found


def test_plans() -> None:
    """In order: one cursor. Core by core: one for each. Shuffled: on disk."""
    in_time = facts_of([[{0: (5, 10 * k, 10 * k + 9), 1: (5, 10 * k, 10 * k + 9)}] for k in range(20)])
    (cursor,) = plan(in_time, held_rows=20) or ()
    assert cursor.core is None and cursor.later_ts[:2] == (10, 20) and cursor.later_ts[-1] == END_OF_TIME
    by_core = facts_of([[{core: (10, 10 * k, 10 * k + 9)}] for core in (0, 1) for k in range(20)])
    cursors = plan(by_core, held_rows=20)
    assert cursors is not None and [cursor.core for cursor in cursors] == [0, 1]
    assert cursors[0].owned | cursors[1].owned == frozenset(range(40)) and not cursors[0].owned & cursors[1].owned
    shuffled = facts_of([[{0: (10, 0, 1000)}] for _ in range(20)])
    assert plan(shuffled, held_rows=20) is None
    assert plan(shuffled, held_rows=1000) is not None


def test_what_is_made_ahead_is_the_same_and_so_are_its_errors() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the end")

    found: list[object] = []
    try:
        for item in prefetched(items()):
            found += [item]
    except ValueError as error:
        found += [str(error)]
    assert found == [0, 1, 2, 3, 4, "the end"]


def test_a_caller_that_stops_stops_what_is_made_ahead() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.append(True)

    made = prefetched(items())
    assert next(made) == 0
    made.close()  # type: ignore[attr-defined]
    import gc

    gc.collect()
    assert closed == [True]
