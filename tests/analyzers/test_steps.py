"""Several steps in one capture: cut at their boundaries, partial ones in no mean (cases C4 and C5)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyzers.test_account_fold import PROFILES
from tests.timelines import core_profile
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.steps import (
    StepAnatomy,
    choose_steps,
    measure_steps,
    profile_of_step,
    step_windows,
    summarize_steps,
)
from trnprof.errors import UsageError
from trnprof.hardware import Bandwidth, load_hardware
from trnprof.profile import Profile, Step
from trnprof.readers.explorer_batches import ExplorerBatches
from trnprof.streamed import account_batches
from trnprof.writers.explorer_parquet import write_explorer_parquet

BANDWIDTH = Bandwidth(10**9, "1 byte a ns", "user")


def row(start: int, end: int, engine: str = "vector", opcode: str = "COPY", bytes_moved: int = 0) -> tuple:  # type: ignore[type-arg]
    return ((start, end), engine, opcode, 0, True, None, 0, None, bytes_moved)


def steps_at(*bounds: tuple[int, int | None]) -> tuple[Step, ...]:
    return tuple(Step(index=place, start_ts=start, end_ts=end) for place, (start, end) in enumerate(bounds))


def measured(profile: Profile) -> tuple[StepAnatomy, ...]:
    return measure_steps(profile, "trn2", BANDWIDTH, choose_steps(profile.metadata, None))


def test_c4_three_steps_and_a_cut_one_is_in_no_mean() -> None:
    """Steps [0,100) [100,200) [200,300), each full of work: 3 whole steps; the capture ends at 250: the third is cut."""
    marks = steps_at((0, 100), (100, 200), (200, 300))
    work = [row(0, 80), row(100, 200), row(200, 300)]
    whole = summarize_steps(measured(core_profile((0, 300), instructions=work, steps=marks)))
    assert (whole.step_count, whole.whole_count) == (3, 3)
    cut = measured(core_profile((0, 250), instructions=work, steps=marks))
    assert [step.window.cut for step in cut] == [None, None, "ends"]
    assert [step.anatomy.cores[0].window_ns for step in cut] == [100, 100, 50]
    summary = summarize_steps(cut)
    assert (summary.step_count, summary.whole_count) == (3, 2)
    busy = summary.cores[0].parts["busy_beyond_floor"]
    assert busy is not None and (busy.total_ns, busy.min_ns, busy.max_ns, busy.max_step) == (180, 80, 100, 2)


def test_c5_an_event_across_the_boundary_is_cut_there() -> None:
    """DVE[90,130) over steps [0,100) [100,200): 10 ns to the first, 30 to the second; it is counted once."""
    profile = core_profile((0, 200), instructions=[row(90, 130, bytes_moved=5)], steps=steps_at((0, 100), (100, 200)))
    first, second = (step.anatomy.cores[0] for step in measured(profile))
    assert (first.engines["vector"].active_ns, second.engines["vector"].active_ns) == (10, 30)
    assert (first.engines["vector"].instruction_count, second.engines["vector"].instruction_count) == (1, 0)
    assert (first.clipped_count, second.clipped_count) == (1, 1)
    assert first.hbm is not None and first.hbm.read_bytes == 5
    assert second.hbm is None or second.hbm.total_bytes() == 0


def test_a_first_step_begins_outside_and_one_has_no_end() -> None:
    profile = core_profile((10, 100), instructions=[row(10, 90)], steps=steps_at((0, 50), (50, None)))
    windows = step_windows(profile.metadata)
    assert [(w.number, w.start_ts, w.end_ts, w.cut) for w in windows] == [(1, 10, 50, "begins"), (2, 50, 100, "ends")]
    assert summarize_steps(measured(profile)).cores == ()


def test_a_step_that_is_not_there_is_a_usage_error() -> None:
    marked = core_profile((0, 200), steps=steps_at((0, 100), (100, 200))).metadata
    assert choose_steps(marked, 2)[0].start_ts == 100
    with pytest.raises(UsageError, match="no step 3: the capture has 1 to 2"):
        choose_steps(marked, 3)
    with pytest.raises(UsageError, match="marks no steps"):
        choose_steps(core_profile((0, 10)).metadata, None)


BOUNDS = st.lists(st.integers(-5, 65), min_size=2, max_size=5, unique=True).map(sorted)


@given(profile=PROFILES, bounds=BOUNDS, batch_rows=st.sampled_from([1, 2, 100]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_steps_in_batches_are_the_steps(profile: Profile, bounds: list[int], batch_rows: int, tmp_path: Path) -> None:
    """Read whole and in batches; contiguous steps over the whole window share out its time and its counts."""
    marks = steps_at(*pairwise(bounds))
    marked = replace(profile, metadata=replace(profile.metadata, steps=marks))
    windows = step_windows(marked.metadata)
    whole = measure_steps(marked, "trn2", BANDWIDTH, windows)
    assert [step.window for step in whole] == list(windows)
    write_explorer_parquet(marked, tmp_path / "profile", overwrite=True)
    batches = ExplorerBatches(tmp_path / "profile", batch_rows=batch_rows)
    assert account_batches(batches, load_hardware("trn2"), BANDWIDTH, windows).steps == whole
    for step in whole:
        for core in step.anatomy.cores:
            assert core.parts.total_ns() == core.window_ns == step.window.end_ts - step.window.start_ts


@given(profile=PROFILES, cut=st.integers(1, 59))
@settings(max_examples=60, deadline=None)
def test_two_steps_share_out_the_window(profile: Profile, cut: int) -> None:
    marks = steps_at((0, cut), (cut, 60))
    steps = measured(replace(profile, metadata=replace(profile.metadata, steps=marks)))
    whole = measure_anatomy(profile, "trn2", BANDWIDTH)
    assert profile.instructions is not None
    for place, core in enumerate(whole.cores):
        for name, account in core.engines.items():
            assert sum(step.anatomy.cores[place].engines[name].active_ns for step in steps) == account.active_ns
        begun = profile.core_rows("instructions", core.core)
        assert begun is not None
        inside = sum(0 <= start < 60 for start in begun["start_ts"].to_pylist())
        counted = sum(
            account.instruction_count for step in steps for account in step.anatomy.cores[place].engines.values()
        )
        assert counted == inside


def test_a_step_s_own_tables_have_what_overlaps_it() -> None:
    profile = core_profile(
        (0, 200), instructions=[row(0, 10), row(90, 130), row(150, 160)], steps=steps_at((0, 100), (100, 200))
    )
    second = profile_of_step(profile, step_windows(profile.metadata)[1])
    assert second.instructions is not None and second.instructions["start_ts"].to_pylist() == [90, 150]
    assert (second.metadata.cores[0].window_start_ts, second.metadata.cores[0].window_end_ts) == (100, 200)
