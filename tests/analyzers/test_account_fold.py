"""The fold gives one account however a capture is cut into batches: sparse, nested, touching, tied, empty intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timelines import core_profile
from trnprof.analyzers import waits
from trnprof.analyzers.account_fold import TABLES, body_of
from trnprof.analyzers.anatomy import Anatomy, AnatomyFold, core_events, measure_anatomy
from trnprof.analyzers.wait_labels import UNTRACED
from trnprof.events import Events, NameList
from trnprof.hardware import Bandwidth
from trnprof.ordering import END_OF_TIME
from trnprof.profile import Profile

BANDWIDTH = Bandwidth(10**9, "1 byte a ns", "user")
WINDOW = (0, 60)

# Times on a coarse and on a fine grid: ties and touching intervals are as common as sparse ones.
TIMES = st.integers(-6, 66) | st.integers(-1, 11).map(lambda tick: 6 * tick)
SPANS = st.tuples(TIMES, st.sampled_from([0, 0, 1, 2, 6, 12, 40])).map(lambda span: (span[0], span[0] + span[1]))
SEMAPHORES = st.sampled_from([None, 3, 5, 8, 2000])
INSTRUCTIONS = st.lists(
    st.tuples(
        SPANS,
        st.sampled_from(["tensor", "vector", "scalar", "sync"]),
        st.sampled_from(["MATMUL", "COPY", "DMA_DIRECT2D", "EVENT_SEMAPHORE", "EVENT_SEMAPHORE"]),
        st.sampled_from([0, 1]),  # core
        st.sampled_from([True, True, False]),  # emitted by the compiler
        SEMAPHORES,  # waits for
        st.integers(0, 30),  # evt_wait
        SEMAPHORES,  # updates
        st.sampled_from([0, 0, 5]),  # HBM bytes
    ),
    max_size=14,
)
PACKETS = st.lists(
    st.tuples(SPANS, st.sampled_from([4, 512]), st.sampled_from(["data", "hardware_dynamic"]), st.sampled_from([0, 1])),
    max_size=8,
)
UPDATES = st.lists(
    st.tuples(
        TIMES,
        st.sampled_from([3, 5, 8]),
        st.sampled_from(["3", "S[5] (Tensor)", "S[8] (qSyncDynamicHW)"]),
        st.sampled_from([None, "axi", "vector"]),
        st.sampled_from([0, 1]),
    ),
    max_size=8,
)
PROFILES = st.builds(
    core_profile,
    st.just(WINDOW),
    instructions=INSTRUCTIONS,
    packets=PACKETS,
    updates=UPDATES,
    collectives=st.lists(SPANS, max_size=4),
    kernels=st.lists(SPANS, max_size=3),
    throttle=st.lists(st.tuples(SPANS, st.sampled_from([4, 6, 8])), max_size=3),
    cores=st.sampled_from([1, 2, 2]),
)


def batches(
    profile: Profile, cuts: list[int], names: NameList
) -> list[tuple[int, dict[int, dict[str, Events | None]]]]:
    """The profile's rows by the cut before which they begin; the last batch has the rest."""
    whole = {core.core: core_events(profile, core.core, names) for core in profile.metadata.cores}
    found = []
    low = -(10**9)
    for cut in [*sorted(cuts), END_OF_TIME]:
        found.append(
            (
                cut,
                {
                    core: {
                        name: None if rows is None else rows.rows((rows.start >= low) & (rows.start < cut))
                        for name, rows in tables.items()
                    }
                    for core, tables in whole.items()
                },
            )
        )
        low = max(low, cut)
    return found


def in_batches(profile: Profile, cuts: list[int], *, reach_back_ns: int | None = None) -> Anatomy:
    names = NameList()
    whole = {core.core: core_events(profile, core.core, names) for core in profile.metadata.cores}
    bodies = {
        core.core: body_of(whole[core.core]["instructions"], (core.window_start_ts, core.window_end_ts))
        for core in profile.metadata.cores
    }
    fold = AnatomyFold(profile.metadata, "trn2", BANDWIDTH, names, bodies, reach_back_ns=reach_back_ns)
    for until, rows in batches(profile, cuts, names):
        fold.add(rows, until, final=until == END_OF_TIME)
    return fold.anatomy()


@given(profile=PROFILES, cuts=st.lists(st.integers(-8, 70), max_size=12), knows_reach=st.booleans())
@settings(max_examples=250, deadline=None)
def test_batches_give_the_whole_s_account(profile: Profile, cuts: list[int], knows_reach: bool) -> None:
    assert in_batches(profile, cuts, reach_back_ns=30 if knows_reach else None) == measure_anatomy(
        profile, "trn2", BANDWIDTH
    )


@given(profile=PROFILES)
@settings(max_examples=60, deadline=None)
def test_a_batch_a_nanosecond(profile: Profile) -> None:
    assert in_batches(profile, list(range(-8, 70)), reach_back_ns=30) == measure_anatomy(profile, "trn2", BANDWIDTH)


@given(profile=PROFILES, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_the_order_of_rows_never_shows(profile: Profile, seed: int) -> None:
    """Equal starts in any order, semaphore updates of one instant excepted: theirs is the device's."""
    random = np.random.default_rng(seed)

    def shuffled(table: pa.Table | None) -> pa.Table | None:
        return None if table is None else table.take(pa.array(random.permutation(len(table))))

    mixed = replace(
        profile,
        **{name: shuffled(table) for name, table in profile.tables() if name != "semaphores"},  # type: ignore[arg-type]
    )
    assert measure_anatomy(mixed, "trn2", BANDWIDTH) == measure_anatomy(profile, "trn2", BANDWIDTH)


def test_waits_that_cannot_be_kept_are_said_to_be_untraced(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """vector's wait is over at 10, but tensor's next instruction may have waited since 0: nobody is charged too early."""
    profile = core_profile(
        (0, 100),
        instructions=[
            ((0, 1), "tensor", "MATMUL", 0, True, None, 0, None, 0),
            ((1, 10), "vector", "EVENT_SEMAPHORE", 0, True, 5, 0, None, 0),
            ((20, 30), "vector", "EVENT_SEMAPHORE", 0, True, 5, 0, None, 0),
            ((90, 100), "tensor", "MATMUL", 0, True, 8, 80, None, 0),
        ],
        updates=[(10, 5, "5", "scalar", 0), (30, 5, "5", "scalar", 0)],
    )
    whole = measure_anatomy(profile, "trn2", BANDWIDTH)
    assert in_batches(profile, [15, 40, 60]) == whole
    monkeypatch.setattr(waits, "MAX_PENDING", 1)
    (core,) = in_batches(profile, [15, 40, 60]).cores
    assert core.parts == whole.cores[0].parts
    assert sum(entry.wait_ns for entry in core.wait_producers) == core.parts.in_kernel_wait_ns
    assert UNTRACED in {entry.producer for entry in core.wait_producers}


def test_a_window_of_a_century_is_summed_exactly() -> None:
    """2**61 ns (73 years), one row of 1 ns at its end: no float in between."""
    profile = core_profile(
        (0, 2**61),
        instructions=[
            ((0, 3), "tensor", "MATMUL", 0, True, None, 0, None, 0),
            ((2**61 - 1, 2**61), "tensor", "MATMUL", 0, True, None, 0, None, 0),
        ],
    )
    (core,) = measure_anatomy(profile, "trn2", BANDWIDTH).cores
    assert core.work.total_ns() == 4
    assert core.parts.idle_ns == 2**61 - 4


def test_every_table_is_read() -> None:
    assert set(TABLES) == set(core_events(core_profile((0, 1)), 0, NameList()))
