"""Kernels given as text, recorded in this process, and their machine programs; programs made by hand and at random."""

from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from trnprof.hardware.dma_model import load_dma_model
from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.nki.loops import least_iterations
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.recording import Recording, TensorSpec
from trnprof.nki.timing.lowering import lower
from trnprof.nki.timing.program import (
    COMPUTE,
    DMA,
    DMA_ENGINE_COUNT,
    HWDGE,
    ORDER,
    RESULT,
    SWDGE,
    DmaTable,
    KernelSpan,
    MachineProgram,
)
from trnprof.nki.timing.schedule import Order, Schedule, schedule
from trnprof.nki.timing.work import Work
from trnprof.nki.trace import trace
from trnprof.profile import ENGINES

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"

SECOND = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
FIRST = "import neuronxcc.nki as nki\nimport neuronxcc.nki.isa as nisa\nimport neuronxcc.nki.language as nl\n"

_numbers = itertools.count()


def record(
    source: str,
    folder: Path,
    tensors: dict[str, tuple[tuple[int, ...], str]],
    *,
    kernel: str = "kernel",
    lnc: int = 1,
    exact: bool = True,
    target: str = "trn2",
    iterations: int | None = None,
    **arguments: object,
) -> Recording:
    """The recording of a kernel in `source`; tensors: (shape, dtype) by parameter.

    iterations: run so many of every loop, then multiply (what a kernel too large to lay out gets).
    """
    path = folder / f"kernel_{next(_numbers)}.py"
    path.write_text(source)
    with install_nki_modules(target):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules[path.stem] = module
        exec(compile(source, str(path), "exec"), module.__dict__)
        specs = {name: TensorSpec(shape, dtype, name) for name, (shape, dtype) in tensors.items()}
        token = least_iterations.set(iterations or 1)
        try:
            return trace(
                getattr(module, kernel),
                (),
                specs | arguments,
                lnc=lnc,
                exact=exact and iterations is None,
                target=target,
                worthwhile_operations=None if iterations is None else 0,
            )
        finally:
            least_iterations.reset(token)


def example(
    file: str, folder: Path, kernel: str, tensors: dict[str, tuple[tuple[int, ...], str]], **more: object
) -> Recording:
    """The recording of one of the examples."""
    return record((EXAMPLES / file).read_text(), folder, tensors, kernel=kernel, **more)  # type: ignore[arg-type]


def attention(folder: Path, kind: str, size: int, dtype: str = "float32", **more: object) -> Recording:
    """`fused` or `unfused` attention of the examples."""
    tensors = dict.fromkeys("qkv", ((128, size), dtype))
    return example("attention_phases.py", folder, f"{kind}_attention", tensors, **more)


def lowered(recording: Recording) -> MachineProgram:
    """Its machine program, on a trn2 core's memories."""
    return lower(recording, sbuf_bytes_per_partition=229_376, psum_bytes_per_partition=16_384)


def scheduled(program: MachineProgram, case: Case = Case.MID, order: Order = Order.FREE) -> Schedule:
    """Its schedule with the built-in constants."""
    costs, law = load_instruction_costs(program.generation), load_dma_model(program.generation)
    return schedule(program, costs, law, case, order=order)


def by_hand(
    operations: list[tuple[str, Work | int, dict[int, int]]], *, core_count: int = 1, cores: list[int] | None = None
) -> MachineProgram:
    """A program of (engine, work, {operation waited for: kind}); a number for work is a DMA of so many 4,096-byte packets
    on every engine."""
    works: list[Work] = []
    place: list[int] = []
    dmas: list[int] = []
    packets: list[int] = []
    for _, work, _ in operations:
        if isinstance(work, Work):
            works.append(work)
            place.append(len(works) - 1)
            dmas.append(-1)
        else:
            place.append(-1)
            dmas.append(len(packets))
            packets.append(work)
    count = len(operations)
    kinds = [COMPUTE if isinstance(work, Work) else DMA for _, work, _ in operations]
    modes = [SWDGE if engine == "gpsimd" else HWDGE for engine, work, _ in operations if not isinstance(work, Work)]
    spread = np.repeat(np.array(packets, np.int64)[:, None], DMA_ENGINE_COUNT, axis=1).reshape(-1, DMA_ENGINE_COUNT)
    depends = [found for _, _, found in operations]
    zeros = np.zeros(count, np.int64)
    return MachineProgram(
        generation="trn2",
        core_count=core_count,
        kind=np.array(kinds, np.int8),
        core=np.array(cores or [0] * count, np.int8),
        engine=np.array([ENGINES.index(engine) for engine, _, _ in operations], np.int8),
        work=np.array(place, np.int32),
        works=tuple(works),
        opcode=np.zeros(count, np.int16),
        opcodes=("COPY",),
        source=np.zeros(count, np.int32),
        sources=("kernel.py:1",),
        functions=("kernel",),
        dma=np.array(dmas, np.int32),
        dmas=DmaTable(
            mode=np.array(modes, np.int64),
            is_assumed=np.zeros(len(packets), np.bool_),
            packets=spread,
            engine_bytes=4096 * spread,
            hbm_bytes=4096 * spread.sum(axis=1),
            slowness=np.ones(len(packets)),
            semaphore_packets=np.full(len(packets), 16),
            is_dynamic=np.zeros(len(packets), np.bool_),
        ),
        hbm_read_bytes=zeros,
        hbm_write_bytes=zeros,
        sbuf_bytes=zeros,
        macs=zeros,
        is_transpose=np.zeros(count, np.bool_),
        table=np.full(count, -1, np.int16),
        tables=(),
        times=np.ones(count, np.int64),
        nest=np.zeros(count, np.int32),
        partner=np.full(count, -1, np.int32),
        dependency_first=np.concatenate(([0], np.cumsum([len(found) for found in depends]))).astype(np.int64),
        dependency=np.array([number for found in depends for number in found], np.int32),
        dependency_kind=np.array([kind for found in depends for kind in found.values()], np.int8),
        kernels=(KernelSpan("kernel", 0, 0, count),),
    )


@st.composite
def programs(draw: st.DrawFn, *, most: int = 30) -> MachineProgram:
    """Operations of any engine and size that wait for earlier ones, some only for their place on one engine."""
    operations: list[tuple[str, Work | int, dict[int, int]]] = []
    for number in range(draw(st.integers(1, most))):
        engine = draw(st.sampled_from(["tensor", "vector", "scalar", "gpsimd", "sync"]))
        work: Work | int
        if engine == "sync":
            work = draw(st.integers(1, 20))
        elif engine == "tensor":
            work = Work("nc_matmul", draw(st.integers(1, 512)), 128, draw(st.integers(1, 128)), draw(st.booleans()))
        else:
            name = "affine_select" if engine == "gpsimd" else "activation" if engine == "scalar" else "tensor_reduce"
            work = Work(name, elements=draw(st.integers(1, 1024)))
        waits = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        depends = {}
        for other in sorted(waits):
            same = operations[other][0] == engine and engine != "sync"
            depends[other] = draw(st.sampled_from([ORDER, RESULT])) if same else RESULT
        operations.append((engine, work, depends))
    return by_hand(operations)
