"""Comparisons: nothing against itself, the difference of two anatomies otherwise, and the users' cases."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faulty_profiles import FAULTS, clean_step
from tests.timelines import timeline
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.data_quality import assess_data_quality, is_incomplete
from trnprof.analyzers.diff import PARTS, CaptureCosts, Diff, RowChange, Scope, compare, costs_for_diff, row_changes
from trnprof.analyzers.verdict import Outcome
from trnprof.demo import published_step
from trnprof.errors import InputDataError
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.profile import Profile, make_table
from trnprof.readers import read_profile

TRN2 = load_hardware("trn2")
REAL = ["baseline_bf16_s1024", "baseline_fp32_s1024", "fused_bf16_s512", "fused_fp32_s1024", "moe_megakernel"]


def costs(profile: Profile, label: str = "capture") -> CaptureCosts:
    anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2))
    incomplete = is_incomplete(assess_data_quality(profile, anatomy))
    return costs_for_diff(profile, anatomy, TRN2, label=label, incomplete=incomplete)


def diff(before: Profile, after: Profile, **options: object) -> Diff:
    return compare([costs(before, "a")], [costs(after, "b")], bar_share=0.02, **options)  # type: ignore[arg-type]


def check(before: CaptureCosts, after: CaptureCosts, result: Diff) -> None:
    """Every figure is the difference of the two anatomies, and every group sums to figures of them."""
    for core in result.cores:
        first, second = before.anatomy.cores[core.core], after.anatomy.cores[core.core]
        assert core.window_ns.delta == second.window_ns - first.window_ns
        for part in PARTS:
            a, b = getattr(first.parts, f"{part}_ns"), getattr(second.parts, f"{part}_ns")
            assert core.parts_ns[part].delta == (None if a is None or b is None else b - a)
        if None not in (first.parts.memory_floor_ns, second.parts.memory_floor_ns):
            assert sum(core.parts_ns[part].delta or 0 for part in PARTS) == core.window_ns.delta
        for engine, change in core.engines_ns.items():
            assert change.delta == second.engines[engine].active_ns - first.engines[engine].active_ns

        def sums(group: str, core=core) -> tuple[int, int]:  # type: ignore[no-untyped-def]
            rows = core.groups[group]
            return sum(row.before for row in rows), sum(row.after for row in rows)

        busy = [sum(e.active_ns for e in account.engines.values()) for account in (first, second)]
        blocked = [sum(e.blocked_ns for e in account.engines.values()) for account in (first, second)]
        waits = [account.parts.in_kernel_wait_ns for account in (first, second)]
        assert sums("opcode") == (busy[0] + blocked[0], busy[1] + blocked[1])
        assert sums("wait") == tuple(waits)
        assert sums("line") == sums("layer") == (busy[0] + waits[0], busy[1] + waits[1])
        if core.groups["queue"] is not None:
            assert first.dma is not None and second.dma is not None
            assert sums("queue") == (first.dma.data_ns, second.dma.data_ns)


@pytest.mark.parametrize("file", ["neuron_profile.json.gz", "step.ntff"])
def test_real_captures_against_themselves_and_each_other(captures: Path, file: str) -> None:
    """diff A A is all zero; diff A B is anatomy(B) - anatomy(A), part by part; diff B A is its negative."""
    names = [name for name in REAL if (captures / name / file).exists()]
    assert len(names) >= 4
    found = {name: costs(read_profile(captures / name / file), name) for name in names}
    for first, second in itertools.product(names, names):
        result = compare([found[first]], [found[second]], bar_share=0.02)
        check(found[first], found[second], result)
        back = compare([found[second]], [found[first]], bar_share=0.02)
        for core, other in zip(result.cores, back.cores, strict=True):
            assert all((core.parts_ns[p].delta or 0) == -(other.parts_ns[p].delta or 0) for p in PARTS)
        if first == second:
            assert_nothing(result)


def assert_nothing(result: Diff) -> None:
    assert result.verdict.outcome is Outcome.SAME and result.configuration == ()
    for core in result.cores:
        changes = (
            core.window_ns,
            *core.parts_ns.values(),
            *core.engines_ns.values(),
            *core.instruction_counts.values(),
        )
        assert {change.delta for change in changes} <= {0, None}
        assert {change.delta for change in (*core.hbm_bytes.values(), core.dma_bytes)} <= {0, None}
        for rows in core.groups.values():
            assert rows is None or all(row.delta == 0 and row.state == "same" for row in rows)


@pytest.mark.parametrize("profile", [published_step(), clean_step()], ids=["published", "clean"])
def test_nothing_against_itself(profile: Profile) -> None:
    result = diff(profile, profile)
    assert_nothing(result)
    check(costs(profile), costs(profile), result)


@pytest.mark.parametrize("code", ["DMA001", "HBM001", "WAIT001", "CC001", "LNC001", "IDLE001"])
def test_a_fault_against_the_clean_step(code: str) -> None:
    before, after = costs(clean_step()), costs(FAULTS[code](clean_step()))
    check(before, after, compare([before], [after], bar_share=0.02))


def test_spills_are_compared() -> None:
    """The spilling step saves and reloads 655,360 B a core more."""
    (core, _) = diff(clean_step(), FAULTS["HBM001"](clean_step())).cores
    assert (core.hbm_bytes["spill_save"].before, core.hbm_bytes["spill_save"].delta) == (0, 5 * 131_072)
    assert core.hbm_bytes["spill_reload"].delta == 5 * 131_072


# --- the users' cases -------------------------------------------------------------------------------------------------


def calls(gap: int, *, tail: bool) -> Profile:
    """Six calls of 1,000,000 ns with `gap` between them, and after the last one where `tail`."""
    spans = [(k * (1_000_000 + gap), k * (1_000_000 + gap) + 1_000_000) for k in range(6)]
    end = spans[-1][1] + (gap if tail else 0)
    return timeline((0, end), instructions=[("PE", a, b) for a, b in spans], kernels=spans)


@pytest.mark.parametrize(("tail", "overhead", "total"), [(False, 0, 835_000), (True, 167_000, 1_002_000)])
def test_c7_a_host_gap_is_no_kernel_s_regression(tail: bool, overhead: int, total: int) -> None:
    """Gaps of 13,000 and 180,000 ns: +835,000 idle and nothing in kernels; a sixth gap is +167,000 overhead."""
    (core,) = diff(calls(13_000, tail=tail), calls(180_000, tail=tail)).cores
    assert core.parts_ns["idle"].delta == 835_000 and core.parts_ns["runtime_overhead"].delta == overhead
    assert core.window_ns.delta == total
    assert core.groups["kernel"] is not None and [row.delta for row in core.groups["kernel"]] == [0]


def steps(*windows_us: int) -> list[CaptureCosts]:
    return [costs(timeline((0, us * 1000), instructions=[("PE", 0, us * 1000)]), f"{us}") for us in windows_us]


def test_g1_several_captures_a_side() -> None:
    """p50 6,931 to 6,949 us: +18 us in the captures that are shown, +0.26 %, real, below the bar."""
    result = compare(steps(6929, 6931, 6931, 6932, 6932), steps(6947, 6947, 6949, 6949, 6953), bar_share=0.02)
    assert result.verdict.outcome is Outcome.REAL_BELOW_BAR
    assert round(100 * result.verdict.change_share, 2) == 0.26
    assert (result.before_label, result.after_label) == ("6931", "6949")
    assert result.cores[0].window_ns.delta == 18_000


def with_kernels(name: str, length: int) -> Profile:
    return dataclasses.replace(
        timeline((0, 100), instructions=[("PE", 0, 100)]),
        kernels=make_table(
            "kernels",
            {"start_ts": [0], "end_ts": [length], "name": pa.array([name], pa.string()), "pcore_idx": [0]},
        ),
    )


def test_g2_names_with_hashes_are_one_row() -> None:
    """fusion.12_a1b2 (50) and fusion.12_c3d4 (40): one row of -10, not -50 and +40."""
    (core,) = diff(with_kernels("fusion.12_a1b2", 50), with_kernels("fusion.12_c3d4", 40)).cores
    assert core.groups["kernel"] == (RowChange("fusion.12_c3d4", "renamed", 50, 40, ("fusion.12_a1b2",)),)


def test_rows_without_a_partner() -> None:
    rows = row_changes({"mlp": 50, "same": 1}, {"attention": 70, "same": 1})
    assert [(row.name, row.state, row.delta) for row in rows] == [
        ("attention", "new", 70),
        ("mlp", "gone", -50),
        ("same", "same", 0),
    ]


def test_b9_lost_records_are_said() -> None:
    whole = timeline((0, 100), instructions=[("PE", 0, 100)])
    lossy = timeline((0, 100), instructions=[("PE", 0, 100)], dropped_record_count=1_200)
    assert diff(whole, lossy).incomplete == ("b",) and diff(whole, whole).incomplete == ()


# --- configurations ---------------------------------------------------------------------------------------------------


def test_configurations_come_first() -> None:
    """Another instance, runtime, batch and core count make the comparison doubtful; another NEFF and compiler do not."""
    base = clean_step()
    other = dataclasses.replace(
        base,
        metadata=dataclasses.replace(
            base.metadata,
            instance_type="trn2.3xlarge",
            neff_uuid="b",
            versions={"compiler": "2.28.0", "runtime": "2.33.0 (abc)"},
            summary={"inputs_outputs_weights_size_bytes": 1},
            cores=base.metadata.cores[:1],
            execution_index=1,
        ),
    )
    base = dataclasses.replace(base, metadata=dataclasses.replace(base.metadata, neff_uuid="a"))
    result = diff(base, other)
    doubtful = {entry.field: (entry.before, entry.after) for entry in result.configuration if not entry.expected}
    assert doubtful == {
        "instance type": ("trn2.48xlarge", "trn2.3xlarge"),
        "runtime": ("2.32.0", "2.33.0"),
        "size of inputs, outputs and weights": (doubtful["size of inputs, outputs and weights"][0], "1"),
        "physical cores": ("2", "1"),
        "first execution": ("False", "True"),
    }
    assert {entry.field for entry in result.configuration if entry.expected} == {"NEFF", "compiler"}
    assert [entry.expected for entry in result.configuration] == sorted(
        entry.expected for entry in result.configuration
    )
    assert result.cores_before_only == (1,) and [core.core for core in result.cores] == [0]


def test_a_version_s_commit_is_no_difference() -> None:
    """The same runtime as the NTFF and as the vendor's JSON print it."""
    first = dataclasses.replace(
        clean_step(), metadata=dataclasses.replace(clean_step().metadata, versions={"runtime": "2.30.51 (faafe)"})
    )
    second = dataclasses.replace(
        first, metadata=dataclasses.replace(first.metadata, versions={"runtime": "2.30.51 (faafe26f04)"})
    )
    assert diff(first, second).configuration == ()


# --- scope ------------------------------------------------------------------------------------------------------------


def test_a_kernel_that_wins_alone_and_loses_in_the_step() -> None:
    """The kernel goes from 50 to 40 ns, the step from 100 to 120."""
    before, after = with_kernels("mlp_a1b2", 50), with_kernels("mlp_c3d4", 40)
    longer = dataclasses.replace(timeline((0, 120), instructions=[("PE", 0, 120)]), kernels=after.kernels)
    scope = diff(before, longer, scope=Scope("kernel", "mlp_a1b2")).scope
    assert scope is not None and scope.names_after == ("mlp_c3d4",)
    assert (scope.scope_delta_ns, scope.step_delta_ns, scope.contradicts_step) == (-10, 20, True)
    agreeing = diff(before, after, scope=Scope("kernel", "mlp")).scope
    assert agreeing is not None and not agreeing.contradicts_step


def test_a_scope_that_is_not_there() -> None:
    with pytest.raises(InputDataError, match=r"no kernel named 'conv'; there are: mlp"):
        diff(with_kernels("mlp", 50), with_kernels("mlp", 40), scope=Scope("kernel", "conv"))
    bare = dataclasses.replace(with_kernels("mlp", 50), kernels=None)
    with pytest.raises(InputDataError, match="no kernel is known in this capture"):
        diff(bare, bare, scope=Scope("kernel", "mlp"))
    with pytest.raises(InputDataError, match="takes no time"):
        diff(with_kernels("mlp", 0), with_kernels("mlp", 40), scope=Scope("kernel", "mlp"))


def test_a_line_as_scope() -> None:
    scope = diff(clean_step(), FAULTS["WAIT001"](clean_step()), scope=Scope("line", "layer.py:16")).scope
    assert scope is not None and scope.names_before == ("layer.py:16",)
