"""The model against real captures: the constants hold in captures they were not read off, the timeline fits its range."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.bench.nki_model import ATTENTION, Measured, model_case, off, part_of, ranked_pairs
from tests.nki.timing.kernels import record
from tests.nki.timing.test_costs import latency_ns
from trnprof.analyzers.anatomy import Anatomy, measure_anatomy
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.intervals import union
from trnprof.nki.static_rings import without_dge
from trnprof.nki.timing.model import KernelModel, model_recording
from trnprof.nki.timing.work import Work
from trnprof.profile import WAIT_OPCODES, Profile, int64_of
from trnprof.readers import read_profile

FITTED = ("fused_fp32_s1024", "baseline_fp32_s1024")
"""What the constants were read off; the others check them."""

NAMES = ("baseline_fp32_s512", "baseline_fp32_s1024", "baseline_bf16_s1024")
NAMES += ("fused_fp32_s512", "fused_fp32_s1024", "fused_bf16_s512")

WINDOW_NS = 4096 / 1.2


@dataclass(frozen=True)
class Captured:
    """One capture beside the model of our kernel that computes the same."""

    case: Measured
    profile: Profile
    anatomy: Anatomy
    model: KernelModel

    @property
    def body(self) -> tuple[int, int]:
        core = self.anatomy.cores[0]
        return core.body_start_ts, core.body_end_ts

    def rows(self) -> list[dict[str, object]]:
        """Core 0's instructions; core 1 idles in all of these captures."""
        assert self.profile.instructions is not None
        return [row for row in self.profile.instructions.to_pylist() if row["pcore_idx"] == 0]


@pytest.fixture(scope="module")
def captured(captures: Path) -> dict[str, Captured]:
    found = {}
    for name in NAMES:
        case = next(case for case in ATTENTION if case.name == name.replace("_", " "))
        profile = read_profile(captures / name / "neuron_profile.json.gz")
        anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, load_hardware("trn2")))
        found[name] = Captured(case, profile, anatomy, model_case(case))
    return found


def test_the_bench_states_what_the_captures_say(captured: dict[str, Captured]) -> None:
    for name, one in captured.items():
        start, end = one.body
        assert end - start == one.case.measured_ns, name
        for engine in ("tensor", "vector", "scalar"):
            # The model has no DRAIN: the runtime's end of a body, 42 to 66 ns an engine.
            rests = {*WAIT_OPCODES, "DRAIN"}
            work = [row for row in one.rows() if row["engine"] == engine and row["opcode"] not in rests]
            active = union(*(np.array([row[key] for row in work]) for key in ("start_ts", "end_ts"))).clip(start, end)
            assert active.length() == one.case.parts_ns[engine], (name, engine)
        core = one.anatomy.cores[0]
        assert core.parts.in_kernel_wait_ns + core.parts.idle_ns == one.case.parts_ns["still"], name
        assert core.dma is not None
        assert core.dma.data_ns == one.case.parts_ns["data"], name


def test_every_body_lies_in_its_range(captured: dict[str, Captured]) -> None:
    for name, one in captured.items():
        total = one.model.total_ns
        assert total.low <= one.case.measured_ns <= total.high, name
        # A third below at most: the compiler spreads the unfused kernels' loops over nests of its own.
        assert -33 <= off(one.case.measured_ns, total.mid) <= 15, name


def test_variants_rank_right(captured: dict[str, Captured]) -> None:
    pairs = ranked_pairs({name: (one.case, one.model.total_ns) for name, one in captured.items()})
    assert len(pairs) >= 13
    assert all(right for _, _, right in pairs), pairs


def test_bytes_are_the_captures(captured: dict[str, Captured]) -> None:
    for name, one in captured.items():
        hbm = one.anatomy.cores[0].hbm
        assert hbm is not None
        core = one.model.cores[0]
        assert (core.hbm_read_bytes, core.hbm_write_bytes) == (hbm.read_bytes, hbm.write_bytes), name


def test_the_tensor_engine_does_what_the_capture_shows(captured: dict[str, Captured]) -> None:
    for name, one in captured.items():
        measured = sum(row["opcode"] == "MATMUL" for row in one.rows())
        instructions = one.model.profile().instructions
        assert instructions is not None
        modelled = instructions["opcode"].to_pylist().count("MATMUL")
        assert abs(modelled - measured) <= max(4, 0.02 * measured), (name, modelled, measured)
        assert abs(off(one.case.parts_ns["tensor"], part_of(one.model, "tensor").mid)) <= 14, name
        assert abs(off(one.case.parts_ns["vector"], part_of(one.model, "vector").mid)) <= 16, name


_SOURCE = re.compile(r"src=\w+@0x[0-9a-f]+\[[\d,]+\]\[([\d,]+)\]")
"""src=fp32@0x31ff8[1,1,1,1][512,1,1,1]: dtype, address, strides, sizes."""


def _columns(row: dict[str, object]) -> int:
    """Elements of a partition that an instruction reads."""
    source = _SOURCE.search(str(row["operands"]))
    assert source is not None, row["operands"]
    return int(np.prod([int(size) for size in source.group(1).split(",")]))


def test_instructions_take_what_the_constants_say(captured: dict[str, Captured]) -> None:
    """In the captures that the constants were not read off: medians by opcode and size inside the bracket, and close to mid."""
    checked = 0
    for name, one in captured.items():
        if name in FITTED:
            continue
        times: dict[tuple[str, str, int], list[int]] = {}
        for row in one.rows():
            if row["opcode"] in ("TENSOR_REDUCE", "ACTIVATE") and row["engine"] in ("vector", "scalar"):
                key = (str(row["engine"]), str(row["opcode"]), _columns(row))
                times.setdefault(key, []).append(int(str(row["end_ts"])) - int(str(row["start_ts"])))
        for (engine, opcode, columns), found in times.items():
            instruction = "tensor_reduce" if opcode == "TENSOR_REDUCE" else "activation"
            work = Work(instruction, elements=columns, pointer=opcode == "ACTIVATE")
            median = float(np.median(found))
            assert latency_ns(engine, work, Case.LOW) - 3 <= median <= latency_ns(engine, work, Case.HIGH) + 3, (
                name,
                opcode,
                columns,
            )
            assert latency_ns(engine, work) == pytest.approx(median, rel=0.06), (name, opcode, columns)
            checked += len(found)
    assert checked >= 80


def test_triggering_a_dma_takes_what_the_constants_say(captured: dict[str, Captured]) -> None:
    costs = load_instruction_costs("trn2")
    hardware, software = costs["dma.hwdge_issue_ns"], costs["dma.swdge_trigger_ns"]
    for name, one in captured.items():
        for engine, bracket in (("sync", hardware), ("scalar", hardware), ("gpsimd", software)):
            found = [
                int(str(row["end_ts"])) - int(str(row["start_ts"]))
                for row in one.rows()
                if row["engine"] == engine and row["opcode"] == "DMA_DIRECT2D"
            ]
            if found:
                assert bracket.low <= np.median(found) <= bracket.high, (name, engine)
                assert min(found) >= bracket.low, (name, engine)


def test_the_limit_follows_how_busy_the_window_before_was(captured: dict[str, Captured]) -> None:
    """The model's rule on every window of every capture: full rate where the window before was at least 3/8 busy."""
    threshold = load_instruction_costs("trn2")["throttle.threshold"].mid
    windows = {True: 0, False: 0}
    for name, one in captured.items():
        levels = one.profile.throttle
        assert levels is not None
        starts, lengths = int64_of(levels["timestamp"]), int64_of(levels["duration"])
        at_full = np.array(levels["k"].to_pylist()) == np.array(levels["n"].to_pylist())
        # Every level lasts whole windows, but for the one that the capture's end cuts.
        assert np.allclose(lengths[:-1] / WINDOW_NS, np.round(lengths[:-1] / WINDOW_NS), atol=0.002), name
        busy = _busy_share(one, starts, lengths, at_full)
        for window in range(min(busy), max(busy) + 2):
            middle = starts[0] + (window + 1.5) * WINDOW_NS
            inside = (starts <= middle) & (middle < starts + lengths)
            full = bool(at_full[inside].any())
            assert full == (busy.get(window, 0.0) >= threshold), (name, window, busy.get(window))
            windows[full] += 1
    assert windows[True] >= 40
    assert windows[False] >= 40


def _busy_share(one: Captured, starts: np.ndarray, lengths: np.ndarray, at_full: np.ndarray) -> dict[int, float]:
    """By window (0 begins at the first level): full-rate time of its matmuls' columns over the window's length."""
    drain = load_instruction_costs("trn2").engines["tensor"].constants["latency_overhead"].mid / 2.4
    share: dict[int, float] = {}
    for row in one.rows():
        if row["opcode"] != "MATMUL":
            continue
        moving = str(row["operands"]).split("src=")[1]
        cycles = _columns(row) * (2 if moving.startswith("fp32") else 1)
        end = int(str(row["end_ts"])) - drain
        full = at_full[(starts <= end) & (end < starts + lengths)].any()
        start = end - cycles / 2.4 * (1 if full else 2)
        first, last = (start - starts[0]) / WINDOW_NS, (end - starts[0]) / WINDOW_NS
        for window in range(int(np.floor(first)), int(np.floor(last)) + 1):
            part = (min(last, window + 1) - max(first, window)) / (last - first)
            share[window] = share.get(window, 0.0) + part * cycles / 2.4 / WINDOW_NS
    return share


def test_handing_work_on_takes_what_the_constants_say(captured: dict[str, Captured]) -> None:
    """From an instruction's end to its semaphore's new value, and from there to the start of what waited for it."""
    costs = load_instruction_costs("trn2")
    signal = costs["fixed.semaphore_signal_ns"]
    for name, one in captured.items():
        signals, starts = _hand_offs(one)
        for engine in ("tensor", "vector", "scalar"):
            assert signal.low - 1 <= np.median(signals[engine]) <= signal.high, (name, engine)
        for engine in ("tensor", "vector", "scalar", "sync"):
            if engine in starts:
                expected = costs.engines[engine].constants["semaphore_start"].mid
                assert np.median(starts[engine]) == pytest.approx(expected, abs=2), (name, engine)


def test_addresses_of_dynamic_dmas_take_what_the_constants_say(captures: Path) -> None:
    """The expert layer's capture: 144 DMAs of an expert's weights, each behind a register load and three ALU instructions."""
    profile = read_profile(captures / "moe_megakernel" / "step.ntff")
    assert profile.instructions is not None
    rows = [row for row in profile.instructions.to_pylist() if row["pcore_idx"] == 0 and row["engine"] == "gpsimd"]
    starts = [row["start_ts"] for row in rows if row["opcode"] == "DMA_DIRECT2D"]
    pitch = np.diff(starts)
    assert len(starts) == 160
    costs = load_instruction_costs("trn2")
    issue, address = costs["dma.swdge_issue_ns"], costs["dma.dynamic_address_ns"]
    assert np.percentile(pitch, 10) >= issue.low + address.low
    assert np.median(pitch) == pytest.approx(issue.mid + address.mid, rel=0.01)
    assert np.percentile(pitch, 85) <= issue.high + address.high
    products = [
        row["end_ts"] - row["start_ts"] for row in profile.instructions.to_pylist() if row["opcode"] == "MATMUL"
    ]
    # 512 of the 768 have one column, and nothing holds their last cycles up.
    assert np.percentile(products, 50) == pytest.approx(latency_ns("tensor", Work("nc_matmul", 1, 128, 128)), abs=4)


RINGS = {"stream_256k_fd1k": 1000, "stream_256k_fd2k": 2000, "transpose_1024": 0}
"""Captures of kernels compiled with --disable-dge, by file; of the streams the columns that the source has for each."""


@pytest.mark.parametrize("name", RINGS)
def test_static_rings(public_captures: Path, tmp_path: Path, name: str) -> None:
    """Their own sources, on static rings: constants were read off the first and the last."""
    folder = public_captures / "asst4-trainium2" / "part1"
    profile = read_profile(folder / f"{name}.ntff")
    core = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, load_hardware("trn2"))).cores[0]
    source = (folder / "kernels.py").read_text().replace("FREE_DIM = 1000", f"FREE_DIM = {RINGS[name]}")
    kernel, tensors = "matrix_transpose", {"a_tensor": ((1024, 1024), "float32")}
    if RINGS[name]:
        kernel, tensors = "vector_add_stream", dict.fromkeys(("a_vec", "b_vec"), ((256_000,), "float32"))
    model = model_recording(without_dge(record(source, tmp_path, tensors, kernel=kernel)))
    assert core.hbm is not None
    assert model.cores[0].hbm_write_bytes == core.hbm.write_bytes
    measured = core.body_end_ts - core.body_start_ts
    assert -26 <= off(measured, model.total_ns.mid) <= 0
    # 8 MB of 512-byte rows, in and out: the transpose takes 5 % longer than high.
    assert model.total_ns.low <= measured <= 1.06 * model.total_ns.high


def _hand_offs(one: Captured) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Times by engine: end to signal, and signal to start where the engine had been free before the signal."""
    assert one.profile.semaphores is not None
    history: dict[int, list[tuple[int, int]]] = {}
    for row in one.profile.semaphores.to_pylist():
        if row["pcore_idx"] == 0:
            history.setdefault(row["semaphore_idx"], []).append((row["timestamp"], row["value"]))
    signals: dict[str, list[int]] = {}
    starts: dict[str, list[int]] = {}
    free: dict[str, int] = {}
    for row in one.rows():
        engine, start, end = str(row["engine"]), int(str(row["start_ts"])), int(str(row["end_ts"]))
        before = [update for update in history.get(_index(row["wait_semaphore_idx"]), []) if update[0] <= start]
        wanted = _index(row["wait_value"])
        if row["opcode"] not in WAIT_OPCODES and before and before[-1][1] >= wanted:
            reached = before[-1][0]
            for at, value in reversed(before):
                if value < wanted:
                    break
                reached = at
            if free.get(engine, 0) < reached:
                starts.setdefault(engine, []).append(start - reached)
        later = [at for at, _ in history.get(_index(row["update_semaphore_idx"]), []) if at >= end]
        if later:
            signals.setdefault(engine, []).append(min(later) - end)
        free[engine] = end
    return signals, starts


def _index(value: object) -> int:
    return -1 if value is None else int(str(value))
