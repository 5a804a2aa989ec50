"""The cases that users of DMA predictions meet: section F of the case list, one test each, answers by arithmetic.

Sources of the figures are named in each test; byte and descriptor counts follow from the shapes alone.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.nki.running import FIRST_GENERATION, HEADER, by_code, predict


def test_f1_four_partitions_use_one_engine(tmp_path: Path) -> None:
    # Vendor's DMA overview, example 1: 32 KiB on one engine, 1,416 ns = 23.1 B/ns.
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(a):
    t = nl.ndarray((4, 4096), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
""", "a=4x4096:bfloat16")  # fmt: skip
    (line,) = result.prediction.predicted.lines
    assert (line.bytes, line.descriptor_count, line.element_bytes.median) == (32_768, 4, 8_192)
    assert (line.partition_count, line.engine_count) == (4, 1)
    assert line.time_ns.low <= 1_416 <= line.time_ns.high
    (finding,) = by_code(result)["DMA002"]
    assert finding.evidence["message"] == "4 of 128 partitions, so 1 of 16 DMA engines work"
    assert finding.evidence["source"] == "kernel.py:9"
    assert finding.cost_ns is not None and finding.cost_ns > 1_000


def test_f2_the_same_bytes_on_all_engines(tmp_path: Path) -> None:
    # Example 2: 97 ns each; 83 ns as one 2-KiB packet an engine, 139 ns as 8 packets of 256 B.
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(a):
    t = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
""", "a=128x128:bfloat16")  # fmt: skip
    (line,) = result.prediction.predicted.lines
    assert (line.bytes, line.descriptor_count, line.element_bytes.median) == (32_768, 128, 256)
    assert (line.partition_count, line.engine_count) == (128, 16)
    assert line.bytes // line.engine_count == 2_048
    assert line.time_ns.low <= 97 <= line.time_ns.high
    (finding,) = by_code(result)["DMA001"]
    assert "256 B/partition" in str(finding.evidence["message"]) and "2 KiB" in str(finding.evidence["message"])


def test_f3_shifted_convolution_windows(tmp_path: Path) -> None:
    source = (
        FIRST_GENERATION
        + """
@nki.jit
def k(x):
    for i in range(3):
        for j in range(3):
            t = nl.load(x[:, i:i + 30, j:j + 14])
"""
    )
    result = predict(tmp_path, source, "x=128x32x16:float32")
    (line,) = result.prediction.predicted.lines
    assert (line.dma_count, line.descriptor_count, line.bytes) == (9, 34_560, 1_935_360)
    assert line.descriptor_count // line.dma_count == 3_840
    assert line.element_bytes.median == 56
    findings = by_code(result)
    assert findings["DMA003"][0].evidence["descriptor_count"] == 34_560
    assert findings["DMA006"][0].evidence["reload_factor"] == pytest.approx(1_935_360 / 262_144, abs=1e-3)
    whole = predict(tmp_path, FIRST_GENERATION + "@nki.jit\ndef k(x):\n    t = nl.load(x)\n", "x=128x32x16:float32")
    (line,) = whole.prediction.predicted.lines
    assert (line.descriptor_count, line.element_bytes.median, line.bytes) == (128, 2_048, 262_144)
    assert round(1_935_360 / line.bytes, 2) == 7.38


def test_f4_a_loop_of_copies(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(ah):
    sb = nl.ndarray((128, 2, 512), dtype=ah.dtype, buffer=nl.sbuf)
    for m in range(2):
        nisa.dma_copy(dst=sb[:, m, :], src=ah[m, :, :])
""", "ah=2x128x512:float16")  # fmt: skip
    (line,) = result.prediction.predicted.lines
    assert (line.dma_count, line.descriptor_count, line.element_bytes.median) == (2, 256, 1_024)
    assert line.bytes == 262_144


def test_f5_sixteen_million_element_copies(tmp_path: Path) -> None:
    # aws-neuron-sdk#980: "queue8 size(16777216) too large" at load. No per-iteration simulation: under 2 s.
    source = (
        HEADER
        + """
@nki.jit
def k(a):
    t = nl.ndarray((1, 16777216), dtype=a.dtype, buffer=nl.sbuf)
    for i in nl.static_range(16777216):
        nisa.dma_copy(dst=t[0:1, nl.ds(i, 1)], src=a[0:1, nl.ds(i, 1)], dge_mode=nisa.dge_mode.none)
"""
    )
    started = time.monotonic()
    result = predict(tmp_path, source, "a=1x16777216:float32")
    assert time.monotonic() - started < 4  # 2 s on an idle machine; the tests' machine is shared
    total = result.prediction.predicted.total
    assert total is not None
    assert (total.dma_count, total.descriptor_count, total.hbm_read_bytes) == (1 << 24, 1 << 24, 64 << 20)
    (finding,) = by_code(result)["DMA008"]
    assert finding.evidence["descriptor_count"] == 1 << 24
    assert "DGE" in finding.advice and "coalesce" in finding.advice


@pytest.mark.parametrize("trips", [(), ("n_reg=5",)])
def test_f6_a_trip_count_that_only_the_device_knows(tmp_path: Path, trips: tuple[str, ...]) -> None:
    source = (
        HEADER
        + """
@nki.jit
def k(a, n):
    n_reg = nisa.register_alloc()
    nisa.register_load(n_reg, n)
    t = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
    for i in nl.dynamic_range(n_reg):
        nisa.dma_copy(dst=t, src=a)
"""
    )
    result = predict(tmp_path, source, "a=128x512:float32", "n=1x1:int32", trips=trips)
    predicted = result.prediction.predicted
    bytes_once = 128 * 512 * 4
    if trips:
        assert predicted.total is not None
        copies = [line for line in predicted.lines if line.tensors == ("a",)]
        assert sum(line.bytes for line in copies) == 6 * bytes_once
        return
    assert predicted.total is None, "never 0, never silently 1"
    (per_iteration,) = [term for term in predicted.terms if term.times]
    assert per_iteration.times == ("n_reg",)
    assert (per_iteration.traffic.dma_count, per_iteration.traffic.hbm_read_bytes) == (1, bytes_once)
    assert any(entry.code == "trip-count-unknown" and "--trip n_reg=N" in entry.text for entry in predicted.assumptions)


def test_f7_a_ragged_last_tile(tmp_path: Path) -> None:
    # Seed 002: 3088 x 2560 bf16 in 128-row tiles; padding to 3200 rows adds bytes and removes a shape.
    source = (
        HEADER
        + """
@nki.jit
def k(w):
    rows, columns = w.shape
    for i in range((rows + 127) // 128):
        height = min(128, rows - i * 128)
        t = nl.ndarray((128, columns), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t[0:height], src=w[i * 128:i * 128 + height])
"""
    )
    result = predict(tmp_path, source, "w=3088x2560:bfloat16")
    total = result.prediction.predicted.total
    assert total is not None and total.hbm_read_bytes == 15_810_560
    (finding,) = by_code(result)["DMA007"]
    evidence = finding.evidence
    assert (evidence["full_tile_count"], evidence["full_rows"]) == (24, 128)
    assert (evidence["tail_rows"], evidence["tail_engine_count"]) == (16, 2)
    assert (evidence["padding_bytes"], evidence["padded_bytes"]) == (573_440, 16_384_000)
    assert "bytes go up by 573,440 (3.63 %) and shapes go from 2 to 1" in str(evidence["message"])
    padded = predict(tmp_path, source, "w=3200x2560:bfloat16")
    assert padded.prediction.predicted.total.hbm_read_bytes == 16_384_000  # type: ignore[union-attr]
    assert "DMA007" not in by_code(padded)


def test_f8_boundary_traffic(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.dma_copy(dst=out, src=t)
    return out
""", "x=128x4096:bfloat16")  # fmt: skip
    (finding,) = by_code(result)["DMA009"]
    assert finding.title == "boundary traffic"
    assert finding.evidence["message"] == "1 MiB in + 1 MiB out that a fused producer/consumer would not pay"


def test_f8_boundary_of_dynamic_addresses(tmp_path: Path) -> None:
    """Two pages of 128 x 64 float32 out of a bank of 32 pass the boundary, 64 KiB, and the two indices; not the bank's 1 MiB."""
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(bank, slots):
    out = nl.ndarray((2, 128, 64), dtype=bank.dtype, buffer=nl.shared_hbm)
    places = nl.ndarray((1, 2), dtype=slots.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=places, src=slots)
    for row in range(2):
        t = nl.ndarray((128, 64), dtype=bank.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=bank.ap(pattern=[[64, 128], [1, 64]], scalar_offset=places.ap([[2, 1], [1, 1]], offset=row), indirect_dim=0))
        nisa.dma_copy(dst=out[row], src=t)
    return out
""", "bank=32x128x64:float32", "slots=1x2:int32")  # fmt: skip
    (finding,) = by_code(result)["DMA009"]
    assert (finding.evidence["input_bytes"], finding.evidence["output_bytes"]) == (65_536 + 8, 65_536)


F9_SPELLINGS = {
    "first generation": FIRST_GENERATION + """
@nki.jit
def k(x):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:512]
    t = nl.load(x[i_p, i_f])
    nl.store(out[i_p, i_f], value=t)
    return out
""",
    "second generation, keywords": HEADER + """
@nki.jit
def k(x):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.dma_copy(dst=out, src=t)
    return out
""",
    "second generation, positional": HEADER + """
@nki.jit
def k(x):
    out = nl.ndarray((128, 512), x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((nl.par_dim(128), 512), x.dtype, buffer=nl.sbuf)
    for _ in nl.affine_range(1):
        nisa.dma_copy(t[...], x[0:128, nl.ds(0, 512)])
        nisa.dma_copy(out, t)
    return out
""",
}  # fmt: skip


def test_f9_one_kernel_in_three_spellings(tmp_path: Path) -> None:
    totals = []
    for source in F9_SPELLINGS.values():
        total = predict(tmp_path, source, "x=128x512:float32").prediction.predicted.total
        assert total is not None
        totals.append(
            (total.dma_count, total.descriptor_count, total.hbm_read_bytes, total.hbm_write_bytes, total.time_ns)
        )
    assert totals[0][:4] == (2, 256, 262_144, 262_144)
    assert len(set(totals)) == 1


def test_f9_an_unknown_call_is_a_value_with_its_line(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(3):
        nisa.dma_teleport(dst=t, src=x)
""", "x=128x512:float32")  # fmt: skip
    (call,) = result.prediction.predicted.unmodelled
    assert (call.source, call.operation, call.count) == ("kernel.py:10", "isa.dma_teleport", 3)
    assert by_code(result)["DMA012"][0].evidence["source"] == "kernel.py:10"


def test_f10_without_sdk_and_frameworks_and_without_side_effects(tmp_path: Path) -> None:
    marker = tmp_path / "left-behind.txt"
    result = predict(tmp_path, f"""
import os
import torch, jax
import torch.nn as nn
import nki, nki.isa as nisa, nki.language as nl
os.environ["LEFT_BEHIND"] = "1"
open({str(marker)!r}, "w").write("x")
os.makedirs({str(tmp_path / "folder" / "deep")!r}, exist_ok=True)
x = torch.rand(3).to(torch.bfloat16)

class Driver(nn.Module):
    def forward(self, q):
        return k(q)

@nki.jit
def k(a):
    t = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
""", "a=128x512:float32")  # fmt: skip
    assert result.prediction.predicted.total.hbm_read_bytes == 262_144  # type: ignore[union-attr]
    assert result.prediction.predicted.stand_ins == ("jax", "torch")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.py"]
    import os

    assert "LEFT_BEHIND" not in os.environ


def test_f11_a_cast_has_two_sizes(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    out = nl.ndarray((128, 1024), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out
""", "x=128x1024:float32")  # fmt: skip
    total = result.prediction.predicted.total
    assert total is not None
    assert (total.hbm_read_bytes, total.hbm_write_bytes) == (524_288, 262_144)
    (finding,) = by_code(result)["DMA004"]
    assert (finding.evidence["read_bytes"], finding.evidence["write_bytes"]) == (524_288, 262_144)


def test_f12_a_pair_splits_the_work_and_each_core_has_its_own_bandwidth(tmp_path: Path) -> None:
    # Seed 004: 336 GB/s for each core of a busy pair: 1 MiB / 336 GB/s = 3,121 ns, not half of it.
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    half = nl.program_id(0)
    t = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[half])
""", "x=2x128x2048:float32", lnc=2)  # fmt: skip
    predicted = result.prediction.predicted
    assert [program.terms[0].traffic.hbm_read_bytes for program in predicted.programs] == [1 << 20, 1 << 20]
    assert [program.hbm_time_ns for program in predicted.programs] == [3_121, 3_121]
    assert predicted.total is not None
    assert predicted.total.hbm_read_bytes == 2 << 20
    assert predicted.hbm_time_ns == 3_121
    assert predicted.total.time_ns.low <= 3_121 <= predicted.total.time_ns.mid


def test_f13_small_data_dependent_gathers(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x, where):
    reg = nisa.register_alloc()
    t = nl.ndarray((1, 160000), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.static_range(10000):
        nisa.register_load(reg, where)
        nisa.dma_copy(dst=t[0:1, nl.ds(i * 16, 16)],
                      src=x.ap(pattern=[[16, 1], [1, 16]], offset=0, scalar_offset=reg, indirect_dim=0),
                      dge_mode=nisa.dge_mode.hwdge)
""", "x=10000x16:float32", "where=1x1:int32")  # fmt: skip
    (finding,) = by_code(result)["DMA010"]
    evidence = finding.evidence
    assert (evidence["transfer_count"], evidence["bytes"], evidence["average_bytes"]) == (10_000, 640_000, 64.0)
    assert evidence["loop"] == "kernel.py:10"
    assert "4 KiB" in finding.advice
