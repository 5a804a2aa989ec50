"""The time law and the sums, on recordings made of hand-written records: answers by arithmetic."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.analyzers.dma_prediction import predict_dma
from trnprof.analyzers.predicted_dma import ElementBytes, PredictedDma, TimeRange
from trnprof.hardware.dma_model import DmaModel, load_dma_model
from trnprof.nki.recording import (
    Access,
    Allocation,
    DmaRecord,
    Frame,
    Loop,
    LoopSpan,
    Memory,
    ProgramTrace,
    Recording,
    Site,
    Unmodelled,
)

MODEL = load_dma_model("trn2")
SITE = Site((Frame("kernel.py", 12, "load_tile"), Frame("main.py", 40, "kernel")))


def site(line: int) -> Site:
    return Site((Frame("kernel.py", line, "kernel"),))


def load(
    partitions: int = 128,
    columns: int = 512,
    *,
    mode: str = "hwdge",
    row_elements: int | None = None,
    itemsize: int = 4,
    where: Site = SITE,
    loops: tuple[LoopSpan, ...] = (),
    loop_step: int = 0,
    sequence: int = 0,
) -> DmaRecord:
    """A load of [partitions, columns] from the first columns of a wider matrix in storage 0 to SBUF storage 1."""
    dtype = {4: "float32", 2: "bfloat16"}[itemsize]
    wide = row_elements or columns
    hbm = Access(
        storage=0,
        name="x",
        memory=Memory.HBM,
        dtype=dtype,
        itemsize=itemsize,
        shape=(partitions, columns),
        offset=0,
        pattern=((wide, partitions), (1, columns)),
        loop_steps=(loop_step,) * len(loops),
    )
    sbuf = Access(
        storage=1,
        name="t",
        memory=Memory.SBUF,
        dtype=dtype,
        itemsize=itemsize,
        shape=(partitions, columns),
        offset=0,
        pattern=((65536, partitions), (1, columns)),
        partition_elements=65536,
        loop_steps=(0,) * len(loops),
    )
    return DmaRecord(
        sequence=sequence,
        op="dma_copy",
        module="isa",
        site=where,
        loops=loops,
        reads=(hbm,),
        write=sbuf,
        dge_mode=mode,
        assumed_mode=mode if mode != "unknown" else "hwdge",
    )


def recording(*programs: list, lnc: int = 1, stands_for: int = 1) -> Recording:
    allocations = (
        Allocation(storage=0, name="x", memory=Memory.HBM, dtype="float32", shape=(4096, 4096), site=None, kind="argument", byte_count=64 << 20),
        Allocation(storage=1, name="t", memory=Memory.SBUF, dtype="float32", shape=(128, 512), site=SITE, kind="tensor", partition_count=128, bytes_per_partition=2048),
    )  # fmt: skip
    return Recording(
        programs=tuple(
            ProgramTrace(
                kernel="k",
                program_id=(number,),
                grid=(len(programs),),
                events=tuple(events),
                allocations=allocations,
                sbuf_peak_bytes_per_partition=2048,
                psum_peak_bytes_per_partition=0,
                stands_for=stands_for,
            )
            for number, events in enumerate(programs)
        ),
        target="trn2",
        lnc=lnc,
        exact=False,
    )


def predict(*programs: list, model: DmaModel = MODEL, lnc: int = 1, stands_for: int = 1) -> PredictedDma:
    return predict_dma(
        recording(*programs, lnc=lnc, stands_for=stands_for),
        model,
        sbuf_bytes_per_partition=229_376,
        psum_bytes_per_partition=16_384,
    )


def test_one_dma_by_the_law() -> None:
    # 128 rows of 2,048 B, 8 an engine: 8 x (8 + 2048/27.2) = 666.4 ns; + 340 issue; + 1,300 start + one semaphore packet.
    predicted = predict([load()])
    (line,) = predicted.lines
    data_ns = 8 * (8 + 2048 / 27.2)
    # The distinct 262,144 B at 435 GB/s take 602.6 ns, which is less than the engines' 666.4.
    assert line.time_ns == TimeRange(round(data_ns), round(data_ns + 340), round(1300 + data_ns + 8 + 4 / 27.2))
    assert predicted.total is not None and predicted.total.time_ns == line.time_ns
    assert line.element_bytes == ElementBytes(2048, 2048, 2048)
    assert (line.descriptor_count, line.partition_count, line.engine_count) == (128, 128, 16)
    assert line.efficiency == pytest.approx(262_144 / 435e9 * 1e9 / line.time_ns.mid, abs=1e-4)
    assert line.called_from == ("main.py:40",)


def test_the_hbm_bandwidth_of_a_core_bounds_the_middle() -> None:
    # 64 DMAs of 128 x 8 KiB: engines need 64 x 8 x 309.2 ns = 158.3 us, HBM 64 MiB / 368 GB/s = 182.4 us, with issue 180.1.
    predicted = predict([load(columns=2048, sequence=i) for i in range(64)])
    assert predicted.total is not None
    assert predicted.hbm_time_ns == round((64 << 20) / 368e9 * 1e9)
    assert predicted.total.time_ns.mid == predicted.hbm_time_ns
    assert predicted.total.time_ns.low < predicted.total.time_ns.mid


def test_a_pair_runs_side_by_side_and_a_grid_one_after_the_other() -> None:
    alone = predict([load()]).total
    pair = predict([load()], [load()], lnc=2).total
    grid = predict([load()], [load()]).total
    sampled = predict([load()], stands_for=10).total
    assert alone is not None and pair is not None and grid is not None and sampled is not None
    assert pair.hbm_read_bytes == grid.hbm_read_bytes == 2 * alone.hbm_read_bytes
    assert pair.time_ns == alone.time_ns
    assert grid.time_ns == TimeRange(2 * alone.time_ns.low, 2 * alone.time_ns.mid, 2 * alone.time_ns.high)
    assert (sampled.hbm_read_bytes, sampled.time_ns.mid) == (10 * alone.hbm_read_bytes, 10 * alone.time_ns.mid)


def test_an_unknown_mode_widens_the_range_and_says_so() -> None:
    named = predict([load(columns=64, mode="hwdge")])
    assumed = predict([load(columns=64, mode="unknown")])
    assert not named.lines[0].mode_is_assumed and assumed.lines[0].mode_is_assumed
    assert assumed.lines[0].mode == "hwdge"
    assert assumed.lines[0].time_ns.mid == named.lines[0].time_ns.mid
    # Software DGE joins the contiguous 256-B rows: one 2-KiB packet an engine instead of eight.
    assert named.lines[0].time_ns.low == round(8 * (8 + 256 / 27.2))
    assert assumed.lines[0].time_ns.low == round(8 + 2048 / 27.2)
    assert any(entry.code == "dge-mode" for entry in assumed.assumptions)
    assert not any(entry.code == "dge-mode" for entry in named.assumptions)


def test_lines_add_up_to_the_total() -> None:
    events = [load(where=site(1 + i % 3), columns=64 << (i % 3), sequence=i) for i in range(9)]
    predicted = predict(events)
    total = predicted.total
    assert total is not None and len(predicted.lines) == 3
    for name in ("dma_count", "descriptor_count", "hbm_read_bytes", "hbm_write_bytes"):
        assert sum(getattr(line, name) for line in predicted.lines) == getattr(total, name)
    assert [line.time_ns.mid for line in predicted.lines] == sorted(
        (line.time_ns.mid for line in predicted.lines), reverse=True
    )


def span(count: int | None, bound: str = "") -> LoopSpan:
    return LoopSpan(Loop(1, "dynamic_range" if count is None else "affine_range", SITE, count, bound), 0, count)


def test_a_repeated_record_counts_for_each_iteration() -> None:
    predicted = predict([load(loops=(span(1000),))])
    assert predicted.total is not None
    assert (predicted.total.dma_count, predicted.total.hbm_read_bytes) == (1000, 262_144_000)
    assert predicted.lines[0].reload_factor == 1000.0
    moving = predict([load(loops=(span(10),), loop_step=128 * 512)])
    assert moving.lines[0].reload_factor == 1.0


def test_unknown_trips_are_terms_and_never_a_total() -> None:
    predicted = predict([load(sequence=0), load(loops=(span(None, "n_reg"),), sequence=1)])
    assert predicted.total is None
    assert [(term.times, term.traffic.hbm_read_bytes) for term in predicted.terms] == [
        ((), 262_144),
        (("n_reg",), 262_144),
    ]
    only = predict([load(loops=(span(None, "n_reg"),))])
    assert only.total is None and [term.times for term in only.terms] == [("n_reg",)]
    assert [entry.text for entry in only.assumptions if entry.code == "trip-count-unknown"]


def test_a_kernel_without_dmas_is_nothing_not_an_error() -> None:
    predicted = predict([])
    assert predicted.total is not None and predicted.total.dma_count == 0
    assert predicted.total.time_ns == TimeRange(0, 0, 0)
    assert predicted.lines == ()


def test_unmodelled_calls_are_listed_with_their_count() -> None:
    call = Unmodelled(
        sequence=0, op="teleport", module="isa", site=site(3), loops=(span(7),), reason="not in the table"
    )
    predicted = predict([call])
    assert [(entry.source, entry.operation, entry.count) for entry in predicted.unmodelled] == [
        ("kernel.py:3", "isa.teleport", 7)
    ]


def test_every_constant_is_printed_with_the_result() -> None:
    assert {constant.name for constant in predict([load()]).constants} == set(MODEL.constants)


@given(
    st.integers(1, 128),
    st.integers(1, 8192),
    st.sampled_from(["hwdge", "swdge", "none", "unknown"]),
    st.integers(1, 50),
)
def test_laws(partitions: int, columns: int, mode: str, repeats: int) -> None:
    record = load(partitions, columns, mode=mode)
    once, many = (
        predict([record]).total,
        predict([dataclasses.replace(record, sequence=i) for i in range(repeats)]).total,
    )
    assert once is not None and many is not None
    assert 0 < once.time_ns.low <= once.time_ns.mid <= once.time_ns.high
    assert many.time_ns.low >= once.time_ns.low
    # High is without any overlap, so it is linear but for the rounding to whole ns.
    assert abs(many.time_ns.high - repeats * once.time_ns.high) <= repeats
    assert once.hbm_read_bytes == partitions * columns * 4
    # No DMA beats its distinct bytes at the engines' peak.
    assert once.time_ns.low >= int(once.hbm_read_bytes / 435e9 * 1e9)


@given(st.floats(0, 5000), st.floats(0, 5000))
def test_a_dearer_issue_never_makes_it_faster(first: float, second: float) -> None:
    def with_issue(value: float) -> DmaModel:
        constant = dataclasses.replace(MODEL.constants["issue_ns"], value=value)
        return DmaModel("trn2", MODEL.constants | {"issue_ns": constant})

    cheap, dear = sorted((first, second))
    one = predict([load()], model=with_issue(cheap)).total
    other = predict([load()], model=with_issue(dear)).total
    assert one is not None and other is not None
    assert one.time_ns.mid <= other.time_ns.mid
    assert one.time_ns.low == other.time_ns.low
