"""The account: it adds up on every timeline, equals a brute-force account, and gives the users' cases their answers.

Cases are named as in the collection of users' reports (C1: an issue that asked for overlap groups, and so on); each
expected value is checked by the arithmetic beside it.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timelines import ENGINE_OF, timeline
from trnprof.analyzers.anatomy import CoreAnatomy, duration_ns, measure_anatomy
from trnprof.analyzers.data_quality import assess_data_quality, is_incomplete
from trnprof.errors import InputDataError
from trnprof.hardware import Bandwidth, bandwidth_for, load_hardware
from trnprof.profile import Profile

GB_PER_S = 10**9
MEASURED = Bandwidth(336 * GB_PER_S, "test", "user")


def account(profile: Profile, bandwidth: Bandwidth = MEASURED) -> CoreAnatomy:
    (core,) = measure_anatomy(profile, "trn2", bandwidth).cores
    return core


def shares(core: CoreAnatomy) -> dict[str, int]:
    """work, collective, wait, idle, overhead: what the cases state."""
    return {
        "work": core.work.total_ns(),
        "collective": core.parts.exposed_collective_ns,
        "wait": core.parts.in_kernel_wait_ns,
        "idle": core.parts.idle_ns,
        "overhead": core.parts.runtime_overhead_ns,
    }


# --- against a brute-force account ----------------------------------------------------------------------------------

WINDOW = 60
spans = st.tuples(st.integers(-5, WINDOW + 5), st.integers(0, 25)).map(lambda p: (p[0], p[0] + p[1]))
engine_spans = st.tuples(st.sampled_from(sorted(ENGINE_OF)), spans).map(lambda p: (p[0], *p[1]))


@given(
    instructions=st.lists(engine_spans, max_size=8),
    waits=st.lists(engine_spans, max_size=5),
    packets=st.lists(
        st.tuples(spans, st.sampled_from([4, 512, 4096]), st.sampled_from(["data", "instruction", "hardware_dynamic"])),
        max_size=8,
    ),
    collectives=st.lists(spans, max_size=4),
    kernels=st.lists(spans, max_size=3),
    hbm_bytes=st.integers(0, 80),
)
@settings(max_examples=400, deadline=None)
def test_account_equals_brute_force(instructions, waits, packets, collectives, kernels, hbm_bytes) -> None:  # type: ignore[no-untyped-def]
    """Every nanosecond of the window is put in its part by hand; sparse, nested, touching, tied, empty intervals."""
    packets = sorted(packets)
    profile = timeline(
        (0, WINDOW),
        instructions=instructions,
        waits=waits,
        packets=[(*span, size) for span, size, _ in packets],
        packet_types=[kind for _, _, kind in packets],
        collectives=collectives,
        kernels=kernels,
        hbm_bytes=hbm_bytes,
    )
    core = account(profile, Bandwidth(GB_PER_S, "1 byte a ns", "user"))

    def covered(intervals) -> set[int]:  # type: ignore[no-untyped-def]
        return {t for a, b in intervals for t in range(max(a, 0), min(b, WINDOW))}

    rows = [(min(max(a, 0), WINDOW), min(max(b, 0), WINDOW)) for _, a, b in [*instructions, *waits]]
    body = set(range(min(a for a, _ in rows), max(b for _, b in rows))) if rows else set()
    compute = covered([(a, b) for _, a, b in instructions]) & body
    data = covered([span for span, size, kind in packets if size != 4 and kind != "instruction"]) & body
    work = compute | data
    collective = covered(collectives) & body
    held = covered([(a, b) for _, a, b in waits]) | covered(kernels)
    quiet = body - work - collective
    assert core.parts.runtime_overhead_ns == WINDOW - len(body)
    assert core.parts.exposed_collective_ns == len(collective - work)
    assert core.parts.in_kernel_wait_ns == len(quiet & held)
    assert core.parts.idle_ns == len(quiet - held)
    assert (core.work.data_only_ns, core.work.compute_only_ns, core.work.both_ns) == (
        len(data - compute),
        len(compute - data),
        len(data & compute),
    )
    if hbm_bytes <= len(work):
        assert core.parts.memory_floor_ns == hbm_bytes
        assert core.floor_above_work_ns == 0
    else:
        assert core.parts.memory_floor_ns is None
        assert core.floor_above_work_ns == hbm_bytes - len(work)
    assert core.parts.busy_beyond_floor_ns == len(work) - (core.parts.memory_floor_ns or 0)
    assert core.parts.total_ns() == WINDOW
    assert sum(entry.wait_ns for entry in core.wait_producers) == core.parts.in_kernel_wait_ns
    for name, short in {name: key for key, name in ENGINE_OF.items()}.items():
        active = covered([(a, b) for engine, a, b in instructions if engine == short])
        assert core.engines[name].active_ns == len(active)


# --- the users' cases -----------------------------------------------------------------------------------------------


def test_c1_overlap_of_compute_and_collective() -> None:
    """PE[0,60) DVE[40,100) CC[50,120) PE[140,150): work 110, exposed 20, idle 20; with DMA[110,130): data 20."""
    rows = [("PE", 0, 60), ("DVE", 40, 100), ("PE", 140, 150)]
    core = account(timeline((0, 150), instructions=rows, collectives=[(50, 120)]))
    assert shares(core) == {"work": 110, "collective": 20, "wait": 0, "idle": 20, "overhead": 0}
    assert core.collectives is not None and core.collectives.total_ns - core.collectives.exposed_ns == 50
    core = account(timeline((0, 150), instructions=rows, collectives=[(50, 120)], packets=[(110, 130, 4096)]))
    assert shares(core) == {"work": 130, "collective": 10, "wait": 0, "idle": 10, "overhead": 0}
    assert core.dma is not None and core.dma.data_ns == 20


def test_c2_waits_are_not_compute() -> None:
    """Kernel [0,100): DVE[0,40), SEM[40,90), DVE[90,100): compute 50, wait 50; with DMA[50,70): wait 30."""
    rows, waits = [("DVE", 0, 40), ("DVE", 90, 100)], [("DVE", 40, 90)]
    core = account(timeline((0, 100), instructions=rows, waits=waits, kernels=[(0, 100)]))
    assert shares(core) == {"work": 50, "collective": 0, "wait": 50, "idle": 0, "overhead": 0}
    for packets in ([(50, 70, 2048)], [(50, 70, 2048), (72, 73, 4)]):
        core = account(timeline((0, 100), instructions=rows, waits=waits, kernels=[(0, 100)], packets=packets))
        assert shares(core) == {"work": 70, "collective": 0, "wait": 30, "idle": 0, "overhead": 0}
        assert core.work.data_only_ns == 20


def test_c3_longest_gaps_can_be_checked_by_eye() -> None:
    """Gaps of 7, 30 and 20 ns: printed longest first, with their times and what stands around them."""
    rows = [("PE", 0, 10), ("DVE", 17, 20), ("PE", 50, 60), ("ACT", 80, 90)]
    core = account(timeline((0, 90), instructions=rows, waits=[("PE", 60, 75)]))
    assert [(gap.start_ts, gap.end_ts, gap.wait_ns) for gap in core.longest_gaps] == [
        (20, 50, 0),
        (60, 80, 15),
        (10, 17, 0),
    ]
    assert core.longest_gaps[0].before == "vector TENSOR_TENSOR" and core.longest_gaps[0].after == "tensor MATMUL"


def test_c6_no_step_marker_is_one_window() -> None:
    profile = timeline((0, 40), instructions=[("PE", 0, 40)])
    assert "DQ013" in {entry.code for entry in assess_data_quality(profile)}
    assert account(profile).work.total_ns() == 40


@pytest.mark.parametrize(("gap", "idle"), [(13_000, 65_000), (180_000, 900_000)])
def test_c7_a_host_gap_is_idle_not_kernel_time(gap: int, idle: int) -> None:
    """Six calls of 1,000,000 ns; 5 gaps inside the body are idle, a sixth after it is runtime overhead."""
    calls = [(k * (1_000_000 + gap), k * (1_000_000 + gap) + 1_000_000) for k in range(6)]
    end = calls[-1][1]
    rows = [("PE", a, b) for a, b in calls]
    core = account(timeline((0, end), instructions=rows))
    assert shares(core) == {"work": 6_000_000, "collective": 0, "wait": 0, "idle": idle, "overhead": 0}
    core = account(timeline((0, end + gap), instructions=rows))
    assert shares(core)["overhead"] == gap and shares(core)["idle"] == idle


def published_step(bandwidth: Bandwidth) -> CoreAnatomy:
    """C8: T = 24.2 ms; work 16.1 ms, waits 4.6, exposed collectives 2.8, idle 0.7; 2,038 MB."""
    ms = 1_000_000
    profile = timeline(
        (0, 242 * ms // 10),
        instructions=[("PE", 0, 161 * ms // 10), ("ACT", 242 * ms // 10 - 1, 242 * ms // 10)],
        waits=[("PE", 161 * ms // 10, 207 * ms // 10)],
        collectives=[(207 * ms // 10, 235 * ms // 10)],
        hbm_bytes=2_038_000_000,
    )
    return account(profile, bandwidth)


def test_c8_the_published_anatomy() -> None:
    core = published_step(MEASURED)
    assert core.parts.memory_floor_ns == 6_065_476
    # 1 ns of work closes the body after the idle time.
    assert core.parts.busy_beyond_floor_ns == 16_100_001 - 6_065_476
    assert (core.parts.in_kernel_wait_ns, core.parts.exposed_collective_ns) == (4_600_000, 2_800_000)
    assert core.parts.idle_ns == 699_999
    assert core.window_ns / core.parts.memory_floor_ns == pytest.approx(3.99, abs=0.005)


def test_e3_the_bandwidth_used_decides_the_floor_and_nothing_else() -> None:
    """2,038 MB at 362 and 336 GB/s: 5,629,834 and 6,065,476 ns; the other parts stay."""
    metadata = timeline((0, 1)).metadata
    table = load_hardware("trn2")
    spec = published_step(bandwidth_for(metadata, table, "spec"))
    measured = published_step(bandwidth_for(metadata, table, "measured"))
    assert (spec.parts.memory_floor_ns, measured.parts.memory_floor_ns) == (5_629_834, 6_065_476)
    assert spec.parts.busy_beyond_floor_ns == 10_470_167 and measured.parts.busy_beyond_floor_ns == 10_034_525
    assert shares(spec) == shares(measured)
    assert "362" in table["hbm.core_share_bytes_per_s"].source
    assert bandwidth_for(metadata, table, "measured").kind == "measured"


def test_a2_empty_cores_are_named_and_in_no_mean() -> None:
    """Core 0: PE[0,100) PE[150,250); cores 1-3 nothing: work 200 + idle 50, and with SEM[100,150) wait 50."""
    rows = [("PE", 0, 100), ("PE", 150, 250)]
    anatomy = measure_anatomy(timeline((0, 250), instructions=rows, cores=4), "trn2", MEASURED)
    assert shares(anatomy.cores[0]) == {"work": 200, "collective": 0, "wait": 0, "idle": 50, "overhead": 0}
    assert [core.event_count for core in anatomy.cores[1:]] == [0, 0, 0]
    quality = assess_data_quality(timeline((0, 250), instructions=rows, cores=4), anatomy)
    (empty,) = [entry for entry in quality if entry.code == "DQ003"]
    assert empty.count == 3 and "1-3" in empty.message
    profile = timeline((0, 250), instructions=rows, waits=[("DVE", 100, 150)])
    assert shares(account(profile)) == {"work": 200, "collective": 0, "wait": 50, "idle": 0, "overhead": 0}


def test_a5_first_execution_is_overhead_not_idle() -> None:
    """Window [0, 2,580,000), compiler instructions fill [1,000,000, 2,580,000), execution 1."""
    profile = timeline((0, 2_580_000), instructions=[("PE", 1_000_000, 2_580_000)], execution_index=1)
    assert shares(account(profile)) == {
        "work": 1_580_000,
        "collective": 0,
        "wait": 0,
        "idle": 0,
        "overhead": 1_000_000,
    }
    assert "DQ004" in {entry.code for entry in assess_data_quality(profile)}


def test_b7_overlapping_instructions_never_exceed_the_window() -> None:
    """PE A[0,1000) over B[50,60), C[60,70) in window [0,70): compute 70, A is clipped and counted as such."""
    profile = timeline((0, 70), instructions=[("PE", 0, 1000), ("PE", 50, 60), ("PE", 60, 70)])
    anatomy = measure_anatomy(profile, "trn2", MEASURED)
    assert anatomy.cores[0].work.compute_only_ns == 70
    (clipped,) = [entry for entry in assess_data_quality(profile, anatomy) if entry.code == "DQ012"]
    assert clipped.count == 1


def test_b8_overlapping_instructions_are_all_counted() -> None:
    """A[3000,6776), B[5000,7000) on one engine: two instructions, compute 4000 = T."""
    core = account(timeline((3000, 7000), instructions=[("PE", 3000, 6776), ("PE", 5000, 7000)]))
    assert core.engines["tensor"].instruction_count == 2
    assert core.engines["tensor"].active_ns == core.window_ns == 4000


def test_b9_dropped_events_make_bounds() -> None:
    """10,000 kept, 1,200 dropped: 1,200 of 11,200 = 10.7 % lost, said before any number."""
    rows = [("PE", 2 * k, 2 * k + 1) for k in range(10_000)]
    profile = timeline((0, 20_000), instructions=rows, dropped_record_count=1_200)
    quality = assess_data_quality(profile)
    (dropped,) = [entry for entry in quality if entry.code == "DQ001"]
    assert "1,200 of 11,200 = 10.7 % lost" in dropped.message
    assert is_incomplete(quality)


def test_b12_collectives_with_one_id_stay_apart() -> None:
    """PE[0,10), CC [10,20),[30,40),[50,60), PE[60,70): 3 collectives, exposed 30, work 20, idle 20."""
    profile = timeline(
        (0, 70), instructions=[("PE", 0, 10), ("PE", 60, 70)], collectives=[(10, 20), (30, 40), (50, 60)]
    )
    core = account(profile)
    assert shares(core) == {"work": 20, "collective": 30, "wait": 0, "idle": 20, "overhead": 0}
    assert core.collectives is not None and core.collectives.count == 3


def test_d1_a_pair_is_two_accounts() -> None:
    """One window [0,150); core 0 DVE[0,100), core 1 DVE[50,150): each 100 work + 50 overhead; either 150, both 50."""
    profile = timeline((0, 150), instructions=[("DVE", 0, 100), ("DVE", 50, 150)], cores=2, core_of=[0, 1])
    anatomy = measure_anatomy(profile, "trn2", MEASURED)
    for core in anatomy.cores:
        assert shares(core) == {"work": 100, "collective": 0, "wait": 0, "idle": 0, "overhead": 50}
    assert anatomy.pair is not None
    assert (anatomy.pair.either_works_ns, anatomy.pair.both_work_ns) == (150, 50)


def test_d6_exposed_time_per_collective() -> None:
    """125 collectives of 30 us, 7 us of each under work: 2,875 us exposed, 23.0 us a call."""
    us = 1000
    calls = [(k * 50 * us, k * 50 * us + 30 * us) for k in range(125)]
    rows = [("PE", a, a + 7 * us) for a, _ in calls] + [("PE", 125 * 50 * us - 1, 125 * 50 * us)]
    core = account(timeline((0, 125 * 50 * us), instructions=rows, collectives=calls))
    assert core.parts.exposed_collective_ns == 2_875 * us
    assert core.collectives is not None and core.collectives.exposed_per_call_ns() == 23 * us


def test_a_capture_without_a_window_is_an_error() -> None:
    with pytest.raises(InputDataError, match="no execution window"):
        measure_anatomy(timeline((5, 5)), "trn2", MEASURED)


@pytest.mark.parametrize(
    ("bytes_moved", "bytes_per_s", "expected"),
    [
        (2_038_000_000, 336 * GB_PER_S, 6_065_476),  # C8
        (2 * 2**20, 336 * GB_PER_S, 6_242),  # A6: 6,241.5 rounds up
        (2**20, 336 * GB_PER_S, 3_121),  # F12
        (0, 336 * GB_PER_S, 0),
    ],
)
def test_durations_round_to_the_nearest_nanosecond(bytes_moved: int, bytes_per_s: int, expected: int) -> None:
    assert duration_ns(bytes_moved, bytes_per_s) == expected
