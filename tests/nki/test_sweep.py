"""Sweeps: every point a run of its own, ranked, and infeasible ones say why."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.nki.running import HEADER, children, kernel_run
from trnprof.errors import InputDataError, UsageError
from trnprof.nki.discovery import find_kernels, parse_source
from trnprof.nki.sweep import MAX_POINTS, Sweep, parse_sweeps, run_sweep

TILED = HEADER + """
TILE = 128
@nki.jit
def k(a, width=512):
    rows, columns = a.shape
    assert columns % width == 0, f"{columns} columns are no multiple of {width}"
    copies = 1
    buffers = nl.ndarray((TILE, copies, width), dtype=a.dtype, buffer=nl.sbuf)
    for i in range(rows // TILE):
        for j in range(columns // width):
            nisa.dma_copy(dst=buffers[:, 0, :], src=a[i * TILE:(i + 1) * TILE, j * width:(j + 1) * width])
"""  # fmt: skip


def sweep(folder: Path, *texts: str, source: str = TILED, jobs: int | None = None) -> Sweep:
    run = kernel_run(folder, source, "a=512x4096:float32")
    tree = parse_source(run.kernel_file.read_text(), run.kernel_file)
    progress: list[tuple[int, int]] = []
    result = run_sweep(
        run,
        parse_sweeps(texts),
        kernel=find_kernels(tree)[0],
        tree=tree,
        jobs=jobs,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert [done for done, _ in progress] == list(range(1, len(result.points) + 1))
    return result


def mid_times(result: Sweep) -> dict[tuple[str, ...], int]:
    return {
        tuple(value for _, value in point.values): point.prediction.predicted.total.time_ns.mid  # type: ignore[union-attr]
        for point in result.points
        if point.infeasible is None and point.prediction is not None
    }


def test_a_parameter_is_ranked_by_time(tmp_path: Path) -> None:
    result = sweep(tmp_path, "width=128,512,2048,1000")
    times = mid_times(result)
    # The same bytes in longer elements and fewer DMAs: 2,048 columns are best, 1,000 do not divide 4,096.
    assert [point.values[0][1] for point in result.points] == ["2048", "512", "128", "1000"]
    assert times[("2048",)] < times[("512",)] < times[("128",)]
    reads = {point.prediction.predicted.total.hbm_read_bytes for point in result.points[:3]}  # type: ignore[union-attr]
    assert reads == {512 * 4096 * 4}
    assert result.points[3].prediction is None
    assert "4096 columns are no multiple of 1000" in (result.points[3].infeasible or "")


def test_a_module_constant_and_a_local_together(tmp_path: Path) -> None:
    result = sweep(tmp_path, "TILE=64,128", "copies=1,100", jobs=2)
    assert result.names == ("TILE", "copies")
    found = {tuple(value for _, value in point.values): point.infeasible for point in result.points}
    assert found[("128", "1")] is None and found[("64", "1")] is None
    assert mid_times(result)[("128", "1")] < mid_times(result)[("64", "1")]
    # 100 buffers of 512 float32 are 204,800 B of a partition's 229,376: they fit. 200 do not.
    assert found[("128", "100")] is None
    (point,) = sweep(tmp_path, "copies=200").points
    assert point.infeasible == "SBUF overflow: 409,600 B of a partition live at once, 229,376 B are there"


def test_a_tensor_parameter_takes_shapes(tmp_path: Path) -> None:
    result = sweep(tmp_path, "a=128x512:float32,256x512:bfloat16")
    reads = [point.prediction.predicted.total.hbm_read_bytes for point in result.points]  # type: ignore[union-attr]
    assert sorted(reads) == [128 * 512 * 4, 256 * 512 * 2]


def test_values_may_hold_commas_in_brackets_and_quotes() -> None:
    (one,) = parse_sweeps(["mode=(1, 2),'a,b',None,4,4"])
    assert one.values == ("(1, 2)", "'a,b'", "None", "4")


@pytest.mark.parametrize("text", ["width", "width=", "=1,2", "width=1,,2", "wi-dth=1"])
def test_texts_that_do_not_parse(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sweeps([text])


def test_what_cannot_be_swept(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to sweep is called NOPE"):
        sweep(tmp_path, "NOPE=1,2")
    with pytest.raises(UsageError, match="not a Python literal"):
        sweep(tmp_path, "TILE=128,__import__('os')")
    with pytest.raises(UsageError, match="at most"):
        parse_sweeps([f"a={','.join(map(str, range(40)))}", f"b={','.join(map(str, range(40)))}"])
    assert MAX_POINTS < 1600


def test_a_mistake_that_is_no_points_own_stops_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing a required argument: 'more'"):
        sweep(tmp_path, "width=128,512", source=TILED.replace("def k(a, width=512)", "def k(a, more, width=512)"))


def test_a_file_that_fails_to_load_is_the_sweeps_error(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="every point fails alike: line 1: cannot import: no module 'not_there'"):
        sweep(tmp_path, "width=128,512", source="import not_there\n" + TILED)


def test_an_interrupted_sweep_leaves_no_process(tmp_path: Path) -> None:
    slow = TILED.replace("rows, columns = a.shape", "rows, columns = a.shape\n    while width != 512: pass")
    run = kernel_run(tmp_path, slow, "a=512x4096:float32")
    tree = parse_source(run.kernel_file.read_text(), run.kernel_file)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = children()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(
            run,
            parse_sweeps(["width=512,1024"]),
            kernel=find_kernels(tree)[0],
            tree=tree,
            jobs=2,
            on_progress=interrupt,
        )
    assert time.monotonic() - started < 20, "the point that would run for a minute was ended"
    assert children() <= before, "a child of the sweep is left"
