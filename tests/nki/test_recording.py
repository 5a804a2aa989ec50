"""What running a kernel records: operations of both generations, launches, device loops, lifetimes, failures with lines."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from trnprof.nki.counting import count_dma
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.operations.table import TABLE, OutsideKernelError
from trnprof.nki.recording import ComputeRecord, DmaRecord, Indirection, Recording, TensorSpec
from trnprof.nki.trace import KernelError, trace

SECOND = "import nki, nki.isa as nisa, nki.language as nl, nki.collectives as ncc\n"
FIRST = "from neuronxcc import nki\nimport neuronxcc.nki.isa as nisa, neuronxcc.nki.language as nl, neuronxcc.nki.compiler as ncc\n"
A = TensorSpec((128, 512), "float32", "a")


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    with install_nki_modules():
        yield


def load(source: str, name: str = "kernel") -> Any:
    """The function `name` of a module text, compiled under a user's file name."""
    import linecache

    module = sys.modules["user_module"] = ModuleType("user_module")
    linecache.cache["user.py"] = (len(source), None, source.splitlines(keepends=True), "user.py")
    exec(compile(source, "user.py", "exec"), vars(module))
    return vars(module)[name]


def run(body: str, *args: Any, head: str = SECOND, **options: Any) -> Recording:
    """Record a kernel of arguments a, b, ... whose body is `body`."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    names = ", ".join("abcdef"[: len(args)])
    return trace(load(f"{head}@nki.jit\ndef kernel({names}):\n{lines}\n"), args, **options)


def ops(recording: Recording, program: int = 0) -> list[str]:
    return [event.op for event in recording.programs[program].events]


# The language


ISA = [
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dma_compute",
    "dma_copy",
    "dma_transpose",
    "dropout",
    "exponential",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nonzero_with_count",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
]
LANGUAGE = [
    "abs",
    "abs_max",
    "abs_min",
    "add",
    "all",
    "arctan",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "ceil",
    "copy",
    "cos",
    "divide",
    "dropout",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "floor",
    "fmod",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "ndarray",
    "negative",
    "not_equal",
    "ones",
    "power",
    "prod",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "shared_constant",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "transpose",
    "trunc",
    "var",
    "where",
    "zeros",
    "zeros_like",
]
COLLECTIVES = [
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]
BESIDE = [
    "NKIObject",
    "NkiTensor",
    "affine_range",
    "arange",
    "average",
    "bfloat16",
    "bool_",
    "bypass",
    "device_print",
    "ds",
    "dynamic_range",
    "float16",
    "float32",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "fori_loop",
    "hbm",
    "int16",
    "int32",
    "int8",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "mgrid",
    "no_reorder",
    "num_programs",
    "par_dim",
    "prelu",
    "private_hbm",
    "program_id",
    "program_ndim",
    "psum",
    "sbuf",
    "sequential_range",
    "shared_hbm",
    "spmd_dim",
    "static_range",
    "tfloat32",
    "tile_size",
    "uint16",
    "uint32",
    "uint8",
    "while_loop",
]


def test_every_documented_name_is_known() -> None:
    """Names of aws-neuron-sdk nki/api/nki (2026-08) and of the first generation."""
    from trnprof.nki.modules import UnknownName

    for module, names in (("isa", ISA), ("language", LANGUAGE), ("collectives", COLLECTIVES)):
        assert [name for name in names if (module, name) not in TABLE] == []
    for root in ("nki", "neuronxcc.nki"):
        isa, language = sys.modules[f"{root}.isa"], sys.modules[f"{root}.language"]
        enums = {
            "engine.sync",
            "reduce_cmd.load_reduce",
            "dge_mode.hwdge",
            "oob_mode.skip",
            "matmul_perf_mode.double_row",
        }
        enums |= {"nc_version.gen4", "dma_engine.gpsimd_dma"}
        for name in enums:
            kind, _, member = name.partition(".")
            assert getattr(getattr(isa, kind), member).name == member
        assert isa.vector_engine is isa.engine.vector
        assert [name for name in BESIDE if isinstance(getattr(language, name), UnknownName)] == []


@pytest.mark.parametrize("name", sorted(name for module, name in TABLE if module == "isa"))
def test_every_instruction_records_its_operands(name: str) -> None:
    """Each isa entry called with tensors for all its tensor arguments: reads and writes are what the table says."""
    entry = TABLE["isa", name]
    tensors = {*entry.reads, *entry.writes}
    given = []
    for parameter in entry.second.names:
        if parameter in tensors and parameter in ("srcs", "dsts"):
            given.append(f"{parameter}=[tile, other]")
        elif parameter in tensors:
            given.append(f"{parameter}=tile")
        elif parameter in entry.second.required:
            given.append({"op": "op=nl.add", "axis": "axis=1", "x": "x=1"}.get(parameter, f"{parameter}=1"))
    call = f"nisa.{name}({', '.join(given)})"
    body = (
        f"tile = nl.ndarray((128, 64), nl.float32, nl.sbuf)\nother = nl.ndarray((128, 64), nl.float32, nl.sbuf)\n{call}"
    )
    recording = run(body)
    events = recording.programs[0].events
    if name == "register_alloc":
        assert events == ()
        return
    (record,) = [event for event in events if event.op == name]
    assert record.site.line == 6
    accesses = [*getattr(record, "reads", ()), *getattr(record, "writes", ())]
    assert all(access.memory == "sbuf" for access in accesses)
    if isinstance(record, ComputeRecord):
        assert record.engines
        assert len(record.writes) >= len([p for p in entry.writes if p in entry.second.required and p != "dsts"])


def test_an_unknown_call_is_a_value_with_its_line() -> None:
    recording = run("t = nl.ndarray((128, 4), nl.float32, nl.sbuf)\nnisa.teleport(dst=t, src=a)\nnl.frobnicate(t)", A)
    first, second = recording.programs[0].unmodelled
    assert (first.op, first.site.line, len(first.tensors)) == ("teleport", 5, 2)
    assert (second.op, second.module, second.site.line) == ("frobnicate", "language", 6)


def test_one_copy_in_four_spellings_counts_the_same() -> None:
    """nki-samples#134, #122: nl.load of either generation, dma_copy by keyword and by position."""
    tile = "t = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)\n"
    spellings = [
        run("t = nl.load(a)", A, head=FIRST),
        run("t = nl.load(a)", A),
        run(tile + "nisa.dma_copy(dst=t, src=a)", A),
        run(tile + "nisa.dma_copy(t, a)", A),
    ]
    counts = {count_dma(recording.programs[0].dma[0]) for recording in spellings}
    assert len(counts) == 1
    assert counts.pop().hbm_read_bytes == 262_144


def test_first_generation_instructions_return_tiles() -> None:
    recording = run(
        """
x = nl.load(a[0:128, 0:128])
s = nl.ndarray((nl.par_dim(128), 128), dtype=nl.float32, buffer=nl.sbuf)
s[...] = nisa.activation(op=nl.exp, data=x, bias=nisa.tensor_reduce(op=nl.max, data=x, axis=1, negate=True), scale=1.0)
p = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
for k in nl.affine_range(4):
    p += nisa.nc_matmul(stationary=s, moving=x)
y = nisa.tensor_copy(p, dtype=nl.bfloat16)
assert y.shape == (128, 128) and y.dtype == nl.bfloat16 and nisa.bn_stats(data=x).shape == (128, 6)
""",
        A,
        head=FIRST,
    )
    events = {event.op: event for event in recording.programs[0].events if isinstance(event, ComputeRecord)}
    assert ops(recording) == ["load", "tensor_reduce", "activation", *["nc_matmul"] * 4, "tensor_copy", "bn_stats"]
    assert [access.name for access in events["activation"].writes] == ["s"]  # the assignment redirects the result
    assert dict(events["nc_matmul"].attributes)["accumulate"] is True
    assert [access.name for access in events["nc_matmul"].writes] == ["p"]


def test_operators_on_tiles_are_instructions() -> None:
    recording = run("x = nl.load(a)\ny = x * 2.0 + x\nz = nl.where(y > 0, y, x)\nw = nl.softmax(z, axis=1)", A)
    assert ops(recording) == [
        "load", "multiply", "add", "greater", "where", "tensor_reduce", "activation_reduce", "tensor_scalar"
    ]  # fmt: skip


def test_a_masked_load_moves_what_the_mask_holds() -> None:
    body = """
i = nl.mgrid[0:128, 0:512]
for t in nl.affine_range(2):
    x = nl.load(a[t * 128 + i.p, i.x], mask=(t * 128 + i.p < 200))
    nl.store(b[t * 128 + i.p, i.x], x, mask=(t * 128 + i.p < 200))
"""
    recording = run(body, TensorSpec((200, 512), "float32"), TensorSpec((200, 512), "float32"), head=FIRST)
    dmas = recording.programs[0].dma
    assert [count_dma(record).partition_count for record in dmas] == [128, 128, 72, 72]
    assert sum(record.write.byte_count for record in dmas) == 2 * 200 * 2048


def test_identity_constants_come_once_a_dtype() -> None:
    """nki-dma: 64 KiB for 4-byte, 32 KiB for 2-byte transposes of the tensor engine, in every program."""
    recording = run(
        """
for dtype in (nl.float32, nl.bfloat16, nl.float32):
    for i in range(3):
        t = nl.ndarray((128, 128), dtype, nl.sbuf)
        p = nl.ndarray((128, 128), dtype, nl.psum)
        nisa.nc_transpose(dst=p, data=t)
small = nl.ndarray((32, 32), nl.float32, nl.sbuf)
nisa.nc_transpose(dst=small, data=small)
"""
    )
    implicit = [record for record in recording.programs[0].dma if record.implicit]
    assert [record.write.byte_count for record in implicit] == [65_536, 32_768]
    assert all(record.loops == () and record.execution_count == 1 for record in implicit)


def test_a_stored_copy_casts_before_the_dma() -> None:
    """The bf16 baseline captures store 256-B rows without a casting DMA, the fused ones cast 512 to 256 B."""
    copied = "t = nl.load(a)\ny = nisa.tensor_copy(t, dtype=nl.float32)\nnl.store(b, y)"
    scaled = "t = nl.load(a)\ny = nisa.tensor_scalar(data=t, op0=nl.multiply, operand0=2.0)\nnl.store(b, y)"
    out = TensorSpec((128, 512), "bfloat16")
    stores = [run(body, A, out, head=FIRST).programs[0].dma[-1] for body in (copied, scaled)]
    assert [record.cast_before for record in stores] == [True, False]
    assert [count_dma(record).cast for record in stores] == [False, True]


# Indirect addresses and device loops


def test_indices_from_the_device_leave_the_geometry() -> None:
    body = """
idx = nl.ndarray((64, 1), nl.int32, nl.sbuf)
nisa.dma_copy(dst=idx, src=b)
t = nl.ndarray((64, 512), nl.float32, nl.sbuf)
nisa.dma_copy(dst=t, src=a.ap([[512, 64], [1, 512]], vector_offset=idx, indirect_dim=0))
nisa.dma_copy(dst=t, src=a.vector_select(0, idx))
reg = nisa.register_alloc()
nisa.register_load(reg, idx[0:1, 0:1])
nisa.dma_copy(dst=t[0:1, :], src=a[reg])
nisa.dma_copy(dst=t, src=a[nl.ds(reg * 2, 64), :])
"""
    gathers = run(body, A, TensorSpec((64, 1), "int32")).programs[0].dma[1:]
    kinds = [record.reads[0].indirection for record in gathers]
    assert kinds == [Indirection.GATHER, Indirection.GATHER, Indirection.DYNAMIC_START, Indirection.DYNAMIC_START]
    assert gathers[0].assumed_mode == "swdge" and gathers[0].index is not None
    assert [count_dma(record).descriptor_count for record in gathers] == [64, 64, 1, 64]


LOOP = """
t = nl.ndarray((128, 512), nl.float32, nl.sbuf)
n_reg = nisa.register_alloc()
nisa.register_load(n_reg, b)
for i in nl.dynamic_range(n_reg):
    nisa.dma_copy(dst=t, src=a)
"""
COUNT = TensorSpec((1, 1), "int32")


def test_a_device_loop_is_neither_zero_nor_silently_one() -> None:
    unknown = run(LOOP, A, COUNT)
    (record,) = unknown.programs[0].dma
    assert record.unknown_trips == ("n_reg",) and record.execution_count == 1
    assert [note.code for note in unknown.notes] == ["trip-count-unknown"]
    assert "--trip n_reg=N" in unknown.notes[0].message
    known = run(LOOP, A, COUNT, trips={"n_reg": 7})
    assert known.programs[0].dma[0].execution_count == 7 and known.notes == ()
    by_values = run(LOOP, A, COUNT, values={"b": np.array([[9]])})
    assert by_values.programs[0].dma[0].execution_count == 9
    through_sbuf = LOOP.replace("(n_reg, b)", "(n_reg, c)").replace(
        "n_reg = ", "c = nl.ndarray((1, 1), nl.int32, nl.sbuf)\nnisa.dma_copy(dst=c, src=b)\nn_reg = "
    )
    assert run(through_sbuf, A, COUNT, values={"b": np.array([[9]])}).programs[0].dma[1].execution_count == 9


def test_a_trip_count_that_no_loop_takes_is_said() -> None:
    (unknown, unused) = run(LOOP, A, COUNT, trips={"n_rge": 7}).notes
    assert unknown.code == "trip-count-unknown"
    assert unused.message == "no loop is bound by 'n_rge'; those there: n_reg"


@pytest.mark.parametrize(
    ("loop", "times"),
    [
        ("for i in nl.dynamic_range(3):", 3),
        ("for i in nl.dynamic_range(nisa.register_alloc(0), nisa.register_alloc(512), 128):", 4),
        ("for i in nl.dynamic_range(2, 9, 3):", 3),
    ],
)
def test_device_loops_of_known_length(loop: str, times: int) -> None:
    body = f"t = nl.ndarray((128, 512), nl.float32, nl.sbuf)\n{loop}\n    nisa.dma_copy(dst=t, src=a)"
    assert run(body, A).programs[0].dma[0].execution_count == times


def test_while_and_fori_loops_run_their_body_once() -> None:
    body = """
t = nl.ndarray((128, 512), nl.float32, nl.sbuf)
flag = nisa.register_alloc(1)
while flag:
    nisa.dma_copy(dst=t, src=a)
    nisa.register_load(flag, t[0:1, 0:1])
def step(i):
    nisa.dma_copy(dst=t[0:1, :], src=a.ap([[512, 1], [1, 512]], scalar_offset=i, indirect_dim=0))
nl.fori_loop(0, 5, step)
"""
    first, second = run(body, A).programs[0].dma
    assert first.unknown_trips == ("flag",)
    assert second.execution_count == 5 and second.reads[0].indirection is Indirection.DYNAMIC_START


# Launches


def test_a_pair_runs_the_kernel_as_two_programs() -> None:
    body = """
half = a.shape[0] // nl.num_programs(0)
t = nl.ndarray((half, 512), nl.float32, nl.sbuf)
nisa.dma_copy(dst=t, src=a[nl.program_id(0) * half:(nl.program_id(0) + 1) * half, :])
nisa.core_barrier(a, cores=(0, 1))
"""
    pair = run(body, A, lnc=2)
    assert [program.program_id for program in pair.programs] == [(0,), (1,)]
    assert [program.dma[0].reads[0].offset for program in pair.programs] == [0, 64 * 512]
    assert [program.sync[0].kind for program in pair.programs] == ["barrier", "barrier"]
    assert [program.grid for program in run(body, A).programs] == [()]
    host = SECOND + "@nki.jit\ndef inner(a):\n    t = nl.load(a)\ndef host(a):\n    inner[2](a)\n"
    launched = trace(load(host, "host"), [A])
    assert (launched.lnc, [program.grid for program in launched.programs]) == (2, [(2,), (2,)])


def test_grids_of_the_first_generation() -> None:
    body = "x = nl.load(a[nl.program_id(0) * 64 + nl.arange(64)[:, None], nl.program_id(1) * 256 + nl.arange(256)[None, :]])"
    recording = run(body, A, head=FIRST, grid=(2, 2))
    assert [program.dma[0].reads[0].offset for program in recording.programs] == [0, 256, 32_768, 33_024]


def test_a_host_function_launches_kernels() -> None:
    source = FIRST + (
        "@nki.jit\ndef inner(a):\n    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)\n    nl.store(out, nl.load(a))\n"
        "    return out\n"
        "def host(a):\n    b = inner[nl.spmd_dim(nl.nc(2), 2)](a)\n    return inner(b)\n"
    )
    recording = trace(load(source, "host"), [A])
    assert recording.lnc == 1
    assert [(program.kernel, program.grid) for program in recording.programs] == [("inner", (4,))] * 4 + [("inner", ())]
    assert recording.outputs == (("out", (128, 512), "float32"),)


def test_a_large_grid_is_sampled_and_says_so() -> None:
    recording = run("x = nl.load(a)", A, head=FIRST, grid=(1000,))
    assert [program.stands_for for program in recording.programs] == [1, 997, 1, 1]
    assert recording.notes[0].code == "grid-sampled"


def test_a_spec_is_another_tensor_wherever_it_stands_and_an_array_is_one() -> None:
    body = "x = nl.load(a)\ny = nl.load(b)"
    assert len(run(body, A, A).programs[0].allocations) == 4
    array = np.zeros((128, 512), np.float32)
    assert len(run(body, array, array).programs[0].allocations) == 3


def test_a_numpy_number_is_a_number() -> None:
    recording = run("assert b >= 3 and a.shape[1] // b == 128\nx = nl.load(a[0:b, :])", A, np.int64(4))
    assert recording.programs[0].dma[0].reads[0].shape == (4, 512)


def test_configuration_objects_carry_tensors() -> None:
    source = SECOND + (
        "from dataclasses import dataclass, field\nfrom enum import Enum\n"
        "class Kind(Enum):\n    A = 1\n"
        "@dataclass\nclass Config(nl.NKIObject):\n    weight: nl.ndarray\n    tile: int = 4\n    kind: Kind = Kind.A\n"
        "    extra: list = field(default_factory=list)\n    unset: int\n"
        "    def __post_init__(self):\n        self.twice = self.tile * 2\n"
        "@nki.jit\ndef kernel(config):\n    assert config.unset is None and config.twice == 6 and config.kind == Kind.A\n"
        "    t = nl.load(config.weight)\n"
    )
    kernel = load(source)
    config = kernel.function.__globals__["Config"](A, tile=3)
    (record,) = trace(kernel, [config]).programs[0].dma
    assert record.reads[0].name == "a" and isinstance(config.weight, TensorSpec)


# Memory


def test_peaks_are_what_lives_at_once() -> None:
    body = """
for i in range(4):
    x = nl.ndarray((128, 512), nl.float32, nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    y = nl.ndarray((128, 256), nl.float32, nl.sbuf)
    nisa.tensor_copy(dst=y, src=x[:, 0:256])
    p = nl.ndarray((128, 128), nl.float32, nl.psum)
    nisa.nc_matmul(dst=p, stationary=y[:, 0:128], moving=y[:, 0:128])
"""
    program = run(body, A).programs[0]
    assert program.sbuf_peak_bytes_per_partition == 2048 + 1024
    assert program.psum_peak_bytes_per_partition == 512


def test_placed_tensors_count_to_their_end() -> None:
    body = "t = nl.ndarray((128, 512), nl.float32, nl.sbuf, address=(0, 100_000))\nnisa.dma_copy(dst=t, src=a)"
    assert run(body, A).programs[0].sbuf_peak_bytes_per_partition == 102_048
    ring = "t = nl.ndarray((8, nl.par_dim(128), 512), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=1024, num_free_tiles=(2,)))\nfor i in range(8):\n    t[i] = nl.load(a)"
    assert run(ring, A, head=FIRST).programs[0].sbuf_peak_bytes_per_partition == 1024 + 2 * 2048


def test_blocks_of_the_first_generation_live_on_their_own() -> None:
    body = """
t = nl.ndarray((400, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.sbuf)
for i in nl.affine_range(400):
    t[i] = nl.load(a)
    nl.store(b, t[i])
"""
    for options in ({"exact": True}, {"worthwhile_operations": 0}):
        assert run(body, A, A, head=FIRST, **options).programs[0].sbuf_peak_bytes_per_partition == 2048


# Failures


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        (
            "x = 1\nassert a.shape[0] == 64, 'rows'",
            "assertion",
            "line 5 (in kernel): the kernel's own check fails: rows",
        ),
        (
            "t = nl.load(a)\nif t[0, 0] > 1:\n    pass",
            "device-value",
            "line 5 (in kernel): a Python condition needs the result of a comparison, which",
        ),
        (
            "reg = nisa.register_alloc(3)\nif reg:\n    pass",
            "device-value",
            "line 5 (in kernel): a Python condition needs the value of a register, which",
        ),
        (
            "for i in range(nisa.register_alloc(3)):\n    pass",
            "device-value",
            "line 4 (in kernel): the kernel's Python needs the value of a register, which",
        ),
        ("def f(n):\n    return f(n + 1)\nf(0)", "limit", "RecursionError"),
        ("t = a[:, 0:3].reshape((3, 128)).undefined", "exception", "line 4 (in kernel): "),
        ("import sys\nsys.exit(3)", "exception", "SystemExit: 3"),
        ("nisa.tensor_tensor(a)", "exception", "line 4 (in kernel): TypeError: tensor_tensor() needs"),
    ],
)
def test_failures_name_the_line(body: str, reason: str, text: str) -> None:
    with pytest.raises(KernelError) as caught:
        run(body, A)
    assert caught.value.reason == reason
    assert text in caught.value.message
    assert caught.value.path == "user.py"


def test_operations_belong_inside_kernels() -> None:
    import nki.isa as nisa  # type: ignore[import-not-found]

    with pytest.raises(OutsideKernelError, match=r"nki\.isa\.memset was called outside a kernel"):
        nisa.memset(dst=None, value=0)


def test_the_process_is_left_as_it_was() -> None:
    plain = dataclasses.dataclass
    for name in [name for name in sys.modules if name.partition(".")[0] in ("nki", "neuronxcc")]:
        assert name in sys.modules
    assert "range" not in vars(sys.modules[__name__])
    run("t = nl.load(a)", A)
    assert dataclasses.dataclass is plain
    assert "range" not in vars(sys.modules[__name__])


def test_sites_hold_the_inlined_calls() -> None:
    body = "def inner(x):\n    return nl.load(x)\ndef outer(x):\n    return inner(x)\nt = outer(a)"
    (record,) = run(body, A).programs[0].dma
    assert isinstance(record, DmaRecord)
    assert [(frame.function, frame.line) for frame in record.site.frames] == [("inner", 5), ("outer", 7), ("kernel", 8)]
