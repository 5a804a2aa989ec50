"""Which machine instruction an operation of the language becomes, and which engines may run it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from trnprof.nki.operations.language import ACTIVATIONS, BINARY, COMPARISONS, REDUCTIONS, VECTOR_UNARY
from trnprof.nki.recording import Access, ComputeRecord, Memory
from trnprof.nki.timing.work import Work

_PARTITIONS = 128
WIDE_STRIDE_BYTES = 16
"""An innermost stride above this halves the bandwidth of SBUF and PSUM."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One operation as the machine gets it."""

    opcode: str
    """As the vendor's profiler prints it where a capture has shown it; else the operation's name in capitals."""
    engines: tuple[str, ...]
    """The engines that may run it; the first one unless balancing is allowed."""
    work: Work
    is_balanced: bool = False
    """The compiler may put it on any of `engines`: copies out of PSUM go to whichever has less to do."""
    is_transpose: bool = False
    macs: int = 0
    """Multiply-accumulates of one machine instruction of it; tensor engine only."""
    table: str = ""
    """The activation function whose table the scalar engine needs; empty: none."""


_INSTRUCTION_OF = (
    dict.fromkeys(ACTIVATIONS, "activation")
    | dict.fromkeys(VECTOR_UNARY, "tensor_scalar")
    | dict.fromkeys(REDUCTIONS, "tensor_reduce")
    | dict.fromkeys(("zeros", "ones", "full", "zeros_like", "memset"), "memset")
    | dict.fromkeys(("copy", "tensor_copy", "bypass"), "tensor_copy")
    | dict.fromkeys(("tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"), "tensor_copy_dynamic")
    | dict.fromkeys(("register_alloc", "register_move", "register_load", "register_store"), "register")
    | dict.fromkeys(("where", "tensor_copy_predicated"), "tensor_copy_predicated")
    | {"reciprocal": "reciprocal", "activate2": "activation", "loop_reduce": "tensor_tensor"}
)
"""Operations whose instruction has another name."""

_OPCODE_OF = {
    "activation": "ACTIVATE",
    "activation_reduce": "ACTIVATE",
    "tensor_reduce": "TENSOR_REDUCE",
    "tensor_scalar": "TENSOR_SCALAR",
    "tensor_tensor": "TENSOR_TENSOR",
    "reciprocal": "RECIPROCAL",
    "memset": "MEMSET",
    "affine_select": "AFFINE_SELECT",
    "nc_matmul": "MATMUL",
    "nc_matmul_mx": "MATMUL",
    "nc_transpose_tensor": "MATMUL",
    "nc_transpose_vector": "TRANSPOSE",
    "register": "TENSOR_LOAD",
}
"""Mnemonics that a capture or a NEFF has shown."""

_IDENTITIES = frozenset({"copy", "identity", "bypass"})
"""Activation functions that need no table of their own."""

_BINARY = frozenset((*BINARY, *COMPARISONS))


def machine_of(record: ComputeRecord, known: frozenset[str]) -> Machine:
    """The machine instruction of a compute record.

    known: instructions that the cost table has; an operation beyond them is `unknown`, its bracket stated there.
    """
    attributes = dict(record.attributes)
    if record.op in ("nc_matmul", "nc_matmul_mx"):
        return _matmul(record, attributes)
    if record.op == "nc_transpose":
        return _transpose(record)
    name = _instruction(record, attributes)
    if name not in known:
        name = "unknown"
    elements, partitions = _size(record)
    accesses = (*record.reads, *record.writes)
    work = Work(
        name,
        elements=elements,
        partitions=partitions,
        itemsize=max((access.itemsize for access in accesses), default=4),
        in_psum=any(access.memory is Memory.PSUM for access in accesses),
        contiguous=all(_is_contiguous(access) for access in accesses),
        wide_stride=any(_innermost_stride(access) > WIDE_STRIDE_BYTES for access in accesses),
        pointer=_has_pointer(record, elements),
        groups=_groups(record, attributes),
    )
    engines = _engines(record, work)
    return Machine(
        _opcode(record, name),
        engines,
        work,
        is_balanced=record.engine == "unknown" and name == "tensor_copy" and len(engines) > 1,
        table=_table(record, attributes) if engines[0] == "scalar" else "",
    )


def _instruction(record: ComputeRecord, attributes: dict[str, object]) -> str:
    name = _INSTRUCTION_OF.get(record.op, record.op)
    if record.op in _BINARY:
        wide = [access for access in record.reads if per_partition(access) > 1]
        name = "tensor_tensor" if len(record.reads) > 1 and len(wide) != 1 else "tensor_scalar"
    if name == "activation" and (attributes.get("reduce_op") is not None or len(record.writes) > 1):
        name = "activation_reduce"
    return name


def _opcode(record: ComputeRecord, name: str) -> str:
    if name in ("tensor_copy", "tensor_copy_dynamic"):
        kinds = {access.dtype for access in (*record.reads, *record.writes)}
        return "COPY" if len(kinds) <= 1 else "CAST"
    if name == "unknown":
        return record.op.upper()
    return _OPCODE_OF.get(name, name.upper())


def _matmul(record: ComputeRecord, attributes: dict[str, object]) -> Machine:
    stationary, moving = record.reads[0], record.reads[1]
    rows, columns = per_partition(stationary), per_partition(moving)
    if "double" in str(attributes.get("perf_mode", "")):
        rows, columns = -(-rows // 2), -(-columns // 2)  # two rows of K in one: [128, 2, N] streams N columns
    is_transpose = bool(attributes.get("is_transpose"))
    depth = partitions_of(moving)
    is_fp32 = record.op == "nc_matmul" and moving.itemsize == 4
    if is_transpose:
        work = Work("nc_transpose_tensor", columns, max(depth, columns), rows, is_fp32, moving.itemsize)
    else:
        work = Work(record.op, columns, depth, rows, is_fp32, moving.itemsize)
    return Machine("MATMUL", ("tensor",), work, is_transpose=is_transpose, macs=depth * rows * columns)


def _transpose(record: ComputeRecord) -> Machine:
    data = record.reads[0]
    free, partitions = per_partition(data), partitions_of(data)
    if record.engine == "vector":
        work = Work("nc_transpose_vector", free, partitions, itemsize=data.itemsize)
        return Machine("TRANSPOSE", ("vector",), work, is_transpose=True)
    # The data are the weights, and an identity of as many columns as the data has partitions streams past them.
    work = Work("nc_transpose_tensor", partitions, partitions, free, data.itemsize == 4, data.itemsize)
    return Machine("MATMUL", ("tensor",), work, is_transpose=True, macs=partitions * free * partitions)


def _engines(record: ComputeRecord, work: Work) -> tuple[str, ...]:
    if record.engine not in ("unknown", "dma", ""):
        return (record.engine,)
    able = [engine for engine in record.engines if engine in ("tensor", "vector", "scalar", "gpsimd", "sync")]
    if work.instruction in ("tensor_copy", "memset", "tensor_scalar") and "vector" in able:
        # Public captures put these on the vector and scalar engines; GpSimd cannot reach PSUM, and is slower.
        able = [engine for engine in able if engine != "gpsimd"]
    return tuple(able) or ("vector",)


def _table(record: ComputeRecord, attributes: dict[str, object]) -> str:
    function = str(attributes.get("op", record.op))
    return "" if function in _IDENTITIES or record.op in ("tensor_copy", "tensor_scalar") else function


def _groups(record: ComputeRecord, attributes: dict[str, object]) -> int:
    value = attributes.get("num_elem_per_idx") or attributes.get("n") or 1
    return max(int(value), 1) if isinstance(value, int) else 1


def _size(record: ComputeRecord) -> tuple[int, int]:
    """(elements per partition of the widest operand, partitions)."""
    accesses = (*record.reads, *record.writes)
    if not accesses:
        return 1, 1
    return max(per_partition(access) for access in accesses), max(partitions_of(access) for access in accesses)


def _has_pointer(record: ComputeRecord, elements: int) -> bool:
    return elements > 1 and any(per_partition(access) == 1 for access in record.reads[1:])


def partitions_of(access: Access) -> int:
    """Partitions that an operand touches; 1 in HBM."""
    if access.memory is Memory.HBM:
        return 1
    elements = max(access.partition_elements, 1)
    if _is_broadcast_over_partitions(access):
        return access.pattern[0][1]
    return max(prod(count for step, count in access.pattern if step >= elements), 1)


def _is_broadcast_over_partitions(access: Access) -> bool:
    """Does every partition read the same row? Its first dimension then has no step, and none moves to another partition."""
    elements = max(access.partition_elements, 1)
    pattern = access.pattern
    return (
        len(pattern) > 1
        and pattern[0][0] == 0
        and 1 < pattern[0][1] <= _PARTITIONS
        and not any(step >= elements and count > 1 for step, count in pattern)
    )


def per_partition(access: Access) -> int:
    """Elements of one partition that an operand touches, broadcasts counted each time."""
    return max(access.element_count // partitions_of(access), 1)


def _is_contiguous(access: Access) -> bool:
    """Does it run through its partition without a gap?"""
    if access.offsets is not None:
        return False
    elements = max(access.partition_elements, 1)
    span = 1
    for step, count in reversed(access.pattern[1:] if _is_broadcast_over_partitions(access) else access.pattern):
        if count == 1 or step >= elements:
            continue
        if step != span:
            return False
        span *= count
    return True


def _innermost_stride(access: Access) -> int:
    """Bytes from one element of a partition to the next."""
    elements = max(access.partition_elements, 1)
    steps = [step for step, count in access.pattern if count > 1 and step < elements]
    return steps[-1] * access.itemsize if steps else 0
