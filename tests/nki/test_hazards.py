"""What fails on the device, found before it runs: sections D4, K1 and the fences of the case list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nki.running import FIRST_GENERATION, HEADER, by_code, predict
from trnprof.nki.hazard_codes import HAZARD_CODES

MATMULS = HEADER + """
@nki.jit
def k(a, b):
    psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    x = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray((128, 256), dtype=b.dtype, buffer=nl.sbuf)
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    nisa.dma_copy(dst=y, src=b)
{body}
    nisa.tensor_copy(dst=out, src=psum)
"""  # fmt: skip


def matmuls(folder: Path, body: str) -> list:
    source = MATMULS.replace("{body}", body)
    return by_code(predict(folder, source, "a=128x128:bfloat16", "b=128x256:bfloat16")).get("HAZ002", [])


@pytest.mark.parametrize("rounds", [2, 4, 5000])
def test_k1_two_interleaved_accumulations_in_one_psum_tile(tmp_path: Path, rounds: int) -> None:
    (finding,) = matmuls(tmp_path, """
    for i in nl.affine_range(ROUNDS):
        nisa.nc_matmul(dst=psum[:, 0:256], stationary=x, moving=y)
        nisa.nc_matmul(dst=psum[:, 256:512], stationary=x, moving=y)
""".replace("ROUNDS", str(rounds)))  # fmt: skip
    assert {finding.evidence["source"], finding.evidence["other_source"]} == {"kernel.py:16", "kernel.py:17"}
    assert "PSUM tile of its own" in finding.advice


def test_k1_in_the_first_generations_spelling(tmp_path: Path) -> None:
    result = predict(tmp_path, FIRST_GENERATION + """
@nki.jit
def k(a, b):
    psum = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
    x, y = nl.load(a), nl.load(b)
    for i in nl.affine_range(4):
        psum[:, 0:256] += nisa.nc_matmul(x, y)
        psum[:, 256:512] += nisa.nc_matmul(x, y)
    out = nl.copy(psum)
""", "a=128x128:bfloat16", "b=128x256:bfloat16")  # fmt: skip
    assert len(by_code(result)["HAZ002"]) == 1


def test_k1_through_an_inner_loop(tmp_path: Path) -> None:
    (finding,) = matmuls(tmp_path, """
    for i in nl.affine_range(4):
        for j in nl.affine_range(2):
            nisa.nc_matmul(dst=psum[:, nl.ds(j * 256, 256)], stationary=x, moving=y)
""")  # fmt: skip
    assert finding.evidence["source"] == "kernel.py:17"


@pytest.mark.parametrize(
    "body",
    [
        # one group after the other
        """
    for j in nl.affine_range(2):
        for i in nl.affine_range(4):
            nisa.nc_matmul(dst=psum[:, nl.ds(j * 256, 256)], stationary=x, moving=y)
""",
        # read out before the next round
        """
    for i in nl.affine_range(4):
        nisa.nc_matmul(dst=psum[:, 0:256], stationary=x, moving=y)
        nisa.tensor_copy(dst=out[:, 0:256], src=psum[:, 0:256])
        nisa.nc_matmul(dst=psum[:, 256:512], stationary=x, moving=y)
        nisa.tensor_copy(dst=out[:, 256:512], src=psum[:, 256:512])
""",
        # a tile each
        """
    other = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(4):
        nisa.nc_matmul(dst=psum[:, 0:256], stationary=x, moving=y)
        nisa.nc_matmul(dst=other[:, 256:512], stationary=x, moving=y)
""",
        # one tile over several banks of 2 KiB, a bank each
        """
    wide = nl.ndarray((128, 2, 512), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(4):
        nisa.nc_matmul(dst=wide[:, 0, 0:256], stationary=x, moving=y)
        nisa.nc_matmul(dst=wide[:, 1, 0:256], stationary=x, moving=y)
""",
    ],
)
def test_k1_separate_groups_are_fine(tmp_path: Path, body: str) -> None:
    assert matmuls(tmp_path, body) == []


PAIR = HEADER + """
import nki.collectives as ncc
@nki.jit
def k(x):
    pid = nl.program_id(0)
    t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    sent = nl.ndarray((2, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    got = nl.ndarray((2, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=t, src=x[pid])
{body}
"""  # fmt: skip


def pair(folder: Path, body: str, lnc: int = 2) -> dict:
    return by_code(predict(folder, PAIR.replace("{body}", body), "x=2x128x512:float32", lnc=lnc))


def test_d4_an_extra_barrier_in_one_program(tmp_path: Path) -> None:
    found = pair(tmp_path, """
    nisa.core_barrier(sent, (0, 1))
    if pid == 0:
        nisa.core_barrier(got, (0, 1))
""")  # fmt: skip
    (finding,) = found["HAZ004"]
    assert finding.evidence["source"] == "kernel.py:17"
    assert finding.evidence["position"] == 2


def test_d4_an_extra_collective_before_the_others(tmp_path: Path) -> None:
    found = pair(tmp_path, """
    if pid == 1:
        ncc.all_reduce(srcs=[sent], dsts=[got], op=nl.add, replica_group=[[0, 1]])
    nisa.core_barrier(sent, (0, 1))
""")  # fmt: skip
    assert found["HAZ004"][0].evidence["source"] == "kernel.py:16"


def test_d4_loops_of_different_length_around_a_barrier(tmp_path: Path) -> None:
    found = pair(tmp_path, """
    for i in range(2 + pid):
        nisa.core_barrier(sent, (0, 1))
""")  # fmt: skip
    assert len(found["HAZ004"]) == 1


def test_d4_the_same_structure_is_fine(tmp_path: Path) -> None:
    found = pair(tmp_path, """
    for i in range(3):
        nisa.core_barrier(sent, (0, 1))
    if pid == 0:
        nisa.dma_copy(dst=got[0], src=t)
""")  # fmt: skip
    assert "HAZ004" not in found


def test_a_collective_that_reads_what_a_dma_just_wrote(tmp_path: Path) -> None:
    unfenced = """
    nisa.dma_copy(dst=sent[pid], src=t)
    ncc.all_reduce(srcs=[sent], dsts=[got], op=nl.add, replica_group=[[0, 1]])
"""
    (finding,) = pair(tmp_path, unfenced)["HAZ003"]
    assert (finding.evidence["source"], finding.evidence["other_source"]) == ("kernel.py:16", "kernel.py:15")
    fenced = unfenced.replace("    ncc.", "    nisa.core_barrier(sent, (0, 1))\n    ncc.")
    assert "HAZ003" not in pair(tmp_path, fenced)


def test_a_program_that_reads_what_the_other_wrote(tmp_path: Path) -> None:
    exchange = """
    nisa.dma_copy(dst=sent[pid], src=t)
    nisa.core_barrier(sent, (0, 1))
    nisa.dma_copy(dst=t, src=sent[1 - pid])
"""
    findings = pair(tmp_path, exchange)["HAZ005"]
    assert findings[0].evidence["source"] == "kernel.py:17"
    assert findings[0].evidence["other_source"] == "kernel.py:15"
    assert "HAZ005" not in pair(tmp_path, exchange.replace("1 - pid", "pid")), "its own half is its own"


def test_casts_and_modes(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    t = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge)
""", "x=128x512:float32")  # fmt: skip
    found = by_code(result)
    assert found["HAZ001"][0].evidence["message"] == "float32 to bfloat16 with dge_mode hwdge"
    assert "DMA004" in found


def test_a_transpose_by_dma(tmp_path: Path) -> None:
    result = predict(tmp_path, FIRST_GENERATION + """
@nki.jit
def k(x):
    t = nl.load_transpose2d(x)
""", "x=128x128:bfloat16")  # fmt: skip
    assert by_code(result)["DMA005"][0].evidence["bytes"] == 32_768


def test_memory_that_does_not_fit(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    t = nl.ndarray((128, 65536), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    out = nl.ndarray((128, 65536), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
""", "x=128x65536:float32")  # fmt: skip
    (finding,) = by_code(result)["HAZ006"]
    assert finding.evidence["peak_bytes_per_partition"] == 262_144
    assert finding.evidence["capacity_bytes_per_partition"] == 229_376
    assert result.prediction.findings[0].code == "HAZ006", "what fails comes before what costs"


def test_an_intermediate_through_hbm_is_no_reload(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    scratch = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.hbm)
    nisa.dma_copy(dst=t, src=x)
    for i in range(3):
        nisa.dma_copy(dst=scratch, src=t)
        nisa.dma_copy(dst=t, src=scratch)
""", "x=128x512:float32")  # fmt: skip
    found = by_code(result)
    (finding,) = found["DMA014"]
    assert (finding.evidence["written_bytes"], finding.evidence["read_bytes"]) == (3 * 262_144, 3 * 262_144)
    assert "DMA006" not in found


def test_a_broadcast_over_partitions(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x.ap(pattern=[[0, 128], [1, 512]], offset=0))
""", "x=1x512:float32")  # fmt: skip
    (finding,) = by_code(result)["DMA011"]
    assert (finding.evidence["bytes"], finding.evidence["distinct_bytes"]) == (262_144, 2_048)


@pytest.mark.parametrize(("rows", "lnc", "written"), [(256, 1, None), (300, 1, 256), (256, 2, None), (300, 2, 256)])
def test_an_output_that_no_tile_covers(tmp_path: Path, rows: int, lnc: int, written: int | None) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(rows // 128):
        t = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.sbuf)
        if nl.num_programs(0) == 1 or nl.program_id(0) == i % 2:
            nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128])
            nisa.dma_copy(dst=out[i * 128:(i + 1) * 128], src=t)
    return out
""", f"x={rows}x512:float32", lnc=lnc)  # fmt: skip
    found = by_code(result).get("HAZ008", [])
    assert [finding.evidence["written_bytes"] for finding in found] == ([] if written is None else [written * 512 * 4])


def test_limits_of_the_language_are_findings(tmp_path: Path) -> None:
    result = predict(tmp_path, HEADER + """
@nki.jit
def k(x):
    t = nl.ndarray((200, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
""", "x=200x512:float32")  # fmt: skip
    (finding,) = by_code(result)["HAZ009"]
    assert (finding.evidence["source"], finding.evidence["limit"]) == ("kernel.py:8", "partition-limit")


def test_every_finding_has_a_registered_code_and_every_code_a_text() -> None:
    for code, entry in HAZARD_CODES.items():
        assert code == entry.code
        assert all((entry.title, entry.cause, entry.evidence, entry.advice, entry.source))
