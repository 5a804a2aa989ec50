"""Small schedules by hand, and laws that every schedule keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nki.timing.kernels import by_hand, programs, scheduled
from trnprof.errors import InconsistencyError
from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.nki.timing.formulas import CostModel
from trnprof.nki.timing.model import model_program
from trnprof.nki.timing.program import DMA, ORDER, RESULT, MachineProgram
from trnprof.nki.timing.schedule import Order, Schedule
from trnprof.nki.timing.work import Work
from trnprof.profile import ENGINES

REDUCE = Work("tensor_reduce", elements=512)
MATMUL = Work("nc_matmul", 512, 128, 128)
COPY = Work("tensor_copy", elements=512, in_psum=True)
COSTS = CostModel(load_instruction_costs("trn2"), Case.MID)
SIGNAL_PS = 12_000
VECTOR_START_PS, SCALAR_START_PS = 23_000, 22_000


def test_independent_instructions_start_an_issue_time_apart() -> None:
    found = scheduled(by_hand([("vector", REDUCE, {}), ("vector", REDUCE, {})]))
    cost = COSTS.cost("vector", REDUCE)
    assert found.start_ps.tolist() == [0, cost.issue_ps]  # 570 cycles = 593.75 ns
    assert found.end_ps.tolist() == [cost.latency_ps, cost.issue_ps + cost.latency_ps]


def test_a_dependent_instruction_waits_for_the_result_and_its_semaphore() -> None:
    found = scheduled(by_hand([("vector", REDUCE, {}), ("vector", REDUCE, {0: RESULT})]))
    assert found.start_ps[1] == COSTS.cost("vector", REDUCE).latency_ps + SIGNAL_PS + VECTOR_START_PS
    assert found.waited_for.tolist() == [-1, 0]


def test_overwriting_on_one_engine_waits_for_nothing() -> None:
    found = scheduled(by_hand([("vector", REDUCE, {}), ("vector", REDUCE, {0: ORDER})]))
    assert found.start_ps[1] == COSTS.cost("vector", REDUCE).issue_ps


def test_two_engines_run_side_by_side() -> None:
    found = scheduled(by_hand([("vector", REDUCE, {}), ("scalar", COPY, {}), ("scalar", COPY, {0: RESULT})]))
    assert found.start_ps.tolist()[:2] == [0, 0]
    assert found.start_ps[2] == max(
        COSTS.cost("scalar", COPY).issue_ps,
        COSTS.cost("vector", REDUCE).latency_ps + SIGNAL_PS + SCALAR_START_PS,
    )


def test_a_dma_by_hand() -> None:
    # 8 packets of 4,096 B on each engine: at 23 B/ns 178.1 ns each; trigger to first packet 1,340 ns; then the 4-byte
    # semaphore packet (8.1 ns) and 350 ns until the semaphore has its 16 increments; the waiting engine starts 23 ns later.
    found = scheduled(by_hand([("sync", 8, {}), ("vector", REDUCE, {0: RESULT})]))
    data = 8 * 4096 / 23 * 1000
    done = 1_340_000 + data + 8_147 + 350_000
    assert found.issued_ps[0] == 541_000
    assert found.end_ps[0] == pytest.approx(done, abs=20)
    assert found.start_ps[1] == pytest.approx(done + VECTOR_START_PS, abs=20)


def test_dmas_share_the_engines_first_come_first_served() -> None:
    one = scheduled(by_hand([("sync", 8, {})])).end_ps[0]
    two = scheduled(by_hand([("sync", 8, {}), ("sync", 8, {})]))
    work = two.queues[0].work_ps[0, 0] + two.queues[0].semaphore_ps[0, 0]
    # The second is triggered 541 ns later, but its packets wait for the first one's.
    assert two.end_ps.tolist() == [one, one + work]


def test_an_address_from_sbuf_is_computed_before_the_trigger() -> None:
    program = by_hand([("gpsimd", 8, {}), ("gpsimd", 8, {})])
    program.dmas.is_dynamic[1] = True
    found = scheduled(program)
    # No software DMA is triggered earlier than 1,290 ns; 582 ns a trigger, and 650 ns before the one with an address.
    assert found.start_ps.tolist() == [1_290_000, 1_872_000]
    assert found.array_start_ps.tolist() == [1_290_000, 2_522_000]
    assert found.issued_ps[1] == 2_522_000 + 50_000


def test_weights_load_behind_the_product_before() -> None:
    found = scheduled(by_hand([("tensor", MATMUL, {})] * 3))
    cost = COSTS.cost("tensor", MATMUL)
    assert found.array_start_ps[0] == cost.setup_ps
    assert np.diff(found.array_start_ps).tolist() == np.diff(found.issued_ps).tolist()
    assert found.array_start_ps[1] == found.issued_ps[0]  # no gap between columns


def test_the_first_ready_instruction_in_program_order_goes_first() -> None:
    slow = ("sync", 8, {})
    late = ("vector", REDUCE, {0: RESULT})
    free = ("vector", REDUCE, {})
    program = by_hand([slow, late, free])
    assert scheduled(program).start_ps[2] == 0
    in_order = scheduled(program, order=Order.PROGRAM)
    assert in_order.start_ps[2] == in_order.start_ps[1] + COSTS.cost("vector", REDUCE).issue_ps


def test_nests_follow_each_other_on_an_engine() -> None:
    program = by_hand([("sync", 8, {}), ("vector", REDUCE, {0: RESULT}), ("vector", REDUCE, {})])
    program.nest[2] = 1
    found = scheduled(program, order=Order.NESTS)
    assert found.start_ps[2] > found.start_ps[1]


def test_a_circle_is_an_inconsistency() -> None:
    with pytest.raises(InconsistencyError, match="circle"):
        scheduled(by_hand([("vector", REDUCE, {1: RESULT}), ("scalar", COPY, {0: RESULT})]))


def assert_lawful(found: Schedule) -> None:
    """No engine begins an instruction before the one before was issued; everyone waits for what it must wait for."""
    program = found.program
    for engine in range(len(ENGINES)):
        rows = np.flatnonzero(found.engine == engine)
        rows = rows[np.argsort(found.start_ps[rows], kind="stable")]
        begin = np.where(program.kind[rows] == DMA, found.start_ps[rows], found.array_start_ps[rows])
        assert np.all(begin[1:] >= found.issued_ps[rows][:-1] - (program.kind[rows][:-1] == DMA) * 10**9)
        # In flight at once: what is issued one after the other, never more than the pipeline holds (5 here).
        ends = found.end_ps[rows]
        for place in range(len(rows) - 6):
            if program.kind[rows[place]] != DMA:
                assert found.start_ps[rows[place + 6]] >= min(ends[place], found.issued_ps[rows[place]])
    signal = COSTS.costs.ps("fixed.semaphore_signal_ns", found.case)
    for number in range(len(program)):
        for place in range(program.dependency_first[number], program.dependency_first[number + 1]):
            other = program.dependency[place]
            if program.dependency_kind[place] == RESULT:
                sent = 0 if program.kind[other] == DMA else signal
                assert found.start_ps[number] >= found.end_ps[other] + sent
            else:
                assert found.start_ps[number] >= found.start_ps[other]
    assert np.all(found.end_ps >= found.issued_ps - 10**6)
    assert np.all(found.start_ps >= 0)


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(list(Case)), st.sampled_from(list(Order)))
def test_laws(program: MachineProgram, case: Case, order: Order) -> None:
    assert_lawful(scheduled(program, case, order))


@settings(max_examples=30, deadline=None)
@given(programs())
def test_the_range_is_a_range(program: MachineProgram) -> None:
    found = model_program(program)
    total = found.total_ns
    assert 0 < total.low <= total.mid <= total.high
    for core in found.cores:
        for time in (*core.parts_ns.values(), *core.engine_active_ns.values(), core.data_ns):
            assert 0 <= time.low <= time.mid <= time.high
        # The parts of each schedule add up to it; the middle ones are the middle schedule's.
        assert sum(time.mid for time in core.parts_ns.values()) == pytest.approx(found.laid_out_ns.mid, abs=1)


@settings(max_examples=40, deadline=None)
@given(programs(), st.data())
def test_leaving_the_last_instruction_out_does_not_make_it_longer(program: MachineProgram, data: st.DataObject) -> None:
    """List schedules have anomalies: with one less to do an order may come out that is a little longer, at most by the
    longest instruction."""
    count = len(program)
    if count < 2:
        return
    first = int(program.dependency_first[count - 1])
    shorter = MachineProgram(
        **{
            name: getattr(program, name)[: count - 1]
            for name in (
                "kind", "core", "engine", "work", "opcode", "source", "dma", "hbm_read_bytes", "hbm_write_bytes",
                "sbuf_bytes", "macs", "is_transpose", "table", "times", "nest", "partner",
            )
        },
        dependency_first=program.dependency_first[:count],
        dependency=program.dependency[:first],
        dependency_kind=program.dependency_kind[:first],
        **{name: getattr(program, name) for name in ("generation", "core_count", "works", "opcodes", "sources", "functions", "dmas", "tables", "kernels")},
    )  # fmt: skip
    whole, part = scheduled(program, Case.LOW), scheduled(shorter, Case.LOW)
    longest = int((whole.end_ps - whole.start_ps).max())
    assert part.end_of_body_ps <= whole.end_of_body_ps + longest


def test_a_hundred_thousand_instructions_in_seconds() -> None:
    """About 1.5 s on the machine of CI; a bound that only a change of the order of growth breaks."""
    import time

    operations = [
        (
            "vector" if number % 2 else "scalar",
            REDUCE if number % 2 else COPY,
            {number - 3: RESULT} if number > 2 else {},
        )
        for number in range(100_000)
    ]
    program = by_hand(operations)  # type: ignore[arg-type]
    begin = time.process_time()
    scheduled(program)
    assert time.process_time() - begin < 15
