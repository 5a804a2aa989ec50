"""A decode step out of modelled kernels: times add up, collectives stand between, streams count on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nki.timing.kernels import attention, example
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.errors import InputDataError, UsageError
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.nki.timing.model import KernelModel, model_recording
from trnprof.nki.timing.step import (
    Layout,
    StepCollective,
    collective_ns,
    model_step,
    step_range,
    step_traffic,
    tensor_parallel,
)
from trnprof.profile import Provenance, codes_of, int64_of
from trnprof.readers import read_profile
from trnprof.writers.explorer_parquet import write_explorer_parquet
from trnprof.writers.modelled_capture import write_modelled_capture

HIDDEN_BYTES = 8 * 4096 * 2


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> tuple[KernelModel, KernelModel]:
    folder = tmp_path_factory.mktemp("step")
    return (
        model_recording(attention(folder, "fused", 512)),
        model_recording(example("dma_streams.py", folder, "mixed_modes", {"a": ((128, 8192), "bfloat16")})),
    )


def test_collective_costs_by_hand() -> None:
    costs = load_instruction_costs("trn2")
    reduced = StepCollective("all_reduce", 569_000)
    assert collective_ns(reduced, costs, Case.MID) == 20_000 + 10_000  # 569,000 B at 56.9 B/ns
    assert collective_ns(reduced, costs, Case.LOW) == 12_000 + round(569_000 / 108)
    with pytest.raises(UsageError, match="known: all_reduce"):
        collective_ns(StepCollective("broadcast", 1), costs, Case.MID)


def test_times_add_up(kernels: tuple[KernelModel, KernelModel], tmp_path: Path) -> None:
    attend, mlp = kernels
    entries = [(attend, "attention", 3), (mlp, "mlp", 3)]
    layout = tensor_parallel(32, HIDDEN_BYTES, ["attention", "mlp"])
    profile = model_step(entries, layout=layout)
    one = collective_ns(StepCollective("all_reduce", HIDDEN_BYTES), load_instruction_costs("trn2"), Case.MID)
    expected = 3 * (attend.laid_out_ns.mid + mlp.laid_out_ns.mid) + 6 * one + 5 * 500
    window = profile.metadata.cores[0].window_end_ts
    assert window == pytest.approx(expected, abs=6)
    found = step_range(entries, layout=layout)
    assert found.low < found.mid < found.high
    assert found.mid == pytest.approx(window, abs=6)
    assert profile.metadata.provenance is Provenance.MODELLED
    account = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, load_hardware("trn2"))).cores[0]
    assert account.parts.total_ns() == window
    assert account.parts.exposed_collective_ns == 6 * one  # nothing hides them here
    assert account.collectives is not None
    assert account.collectives.count == 6
    assert account.hbm is not None
    assert account.hbm.total_bytes() == 3 * (851_968 + 262_144 + 2 * 128 * 8192 * 2)


def test_kernels_take_turns_and_streams_count_on(kernels: tuple[KernelModel, KernelModel]) -> None:
    attend, mlp = kernels
    profile = model_step([(attend, "attention", 2), (mlp, "mlp", 1)])
    assert profile.kernels is not None
    assert profile.kernels["name"].to_pylist() == ["attention", "mlp", "attention"]
    table = profile.instructions
    assert table is not None
    engine, _ = codes_of(table["engine"])
    for code in np.unique(engine):
        pcs = int64_of(table["pc"])[engine == code]
        assert pcs.tolist() == list(range(len(pcs)))
    names = set(table["kernel_instruction_name"].to_pylist())
    assert names & set(profile.sources["kernel_instruction_name"].to_pylist()) == names - {""}


def test_an_order_of_its_own(kernels: tuple[KernelModel, KernelModel]) -> None:
    attend, mlp = kernels
    entries = [(attend, "attention", 2), (mlp, "mlp", 1)]
    profile = model_step(entries, order=[0, 0, 1])
    assert profile.kernels is not None
    assert profile.kernels["name"].to_pylist() == ["attention", "attention", "mlp"]
    assert profile.metadata.cores[0].window_end_ts == model_step(entries).metadata.cores[0].window_end_ts
    for order, named in (([0, 1], "stands 1 times"), ([0, 0, 1, 1], "stands 2 times"), ([0, 0, 2], "entry 2 of 2")):
        with pytest.raises(UsageError, match=named):
            model_step(entries, order=order)


def test_it_is_read_like_a_capture(kernels: tuple[KernelModel, KernelModel], tmp_path: Path) -> None:
    attend, mlp = kernels
    profile = model_step([(attend, "attention", 2), (mlp, "mlp", 2)], layout=tensor_parallel(8, HIDDEN_BYTES, ["mlp"]))
    write_explorer_parquet(profile, tmp_path / "step")
    back = read_profile(tmp_path / "step")
    assert back.metadata.provenance is Provenance.MODELLED
    assert back.instructions.num_rows == profile.instructions.num_rows
    written = write_modelled_capture(profile, tmp_path / "step.ntff", "step")
    assert read_profile(written.ntff).instructions.num_rows == profile.instructions.num_rows


def test_traffic_by_role(kernels: tuple[KernelModel, KernelModel]) -> None:
    attend, mlp = kernels
    found = step_traffic(
        [(attend, "attention", 2), (mlp, "mlp", 3)], {"attention.k": "cache", "v": "cache", "a": "weights"}
    )
    assert found == {
        "activations": 2 * 2 * 262_144 + 3 * 128 * 8192 * 2,  # q and out; mlp's out
        "cache": 2 * 2 * 262_144,
        "weights": 3 * 128 * 8192 * 2,
    }


def test_alone_there_is_nobody_to_talk_to(kernels: tuple[KernelModel, KernelModel]) -> None:
    layout = Layout("one", 1, {"attention": StepCollective("all_reduce", 1 << 20)})
    profile = model_step([(kernels[0], "attention", 1)], layout=layout)
    assert profile.collectives is not None
    assert profile.collectives.num_rows == 0
    assert profile.metadata.cores[0].window_end_ts == pytest.approx(kernels[0].laid_out_ns.mid, abs=1)


def test_what_cannot_be_a_step(kernels: tuple[KernelModel, KernelModel], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one kernel"):
        model_step([])
    with pytest.raises(UsageError, match="runs 0 times"):
        model_step([(kernels[0], "attention", 0)])
    part = model_recording(attention(tmp_path, "fused", 4096, iterations=4))
    with pytest.raises(InputDataError, match="exact=True"):
        model_step([(part, "attention", 1)])
