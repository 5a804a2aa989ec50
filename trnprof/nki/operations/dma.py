"""Data movement by the DMA engines: nl.load/store of the first generation, nisa.dma_* of the second."""

from __future__ import annotations

from typing import Any

from trnprof.nki.dtypes import as_dtype
from trnprof.nki.indexing import masked
from trnprof.nki.objects import MemoryRegion, dge_mode
from trnprof.nki.operations.table import (
    INSTRUCTION,
    Bound,
    Operation,
    define,
    engine_name,
    new_tensor,
    op_name,
    tensors_in,
)
from trnprof.nki.recorder import Recorder
from trnprof.nki.recording import DmaRecord, Indirection
from trnprof.nki.strides import product
from trnprof.nki.tensor import Tensor

_MODES = {0: "unknown", 1: "swdge", 2: "hwdge", 3: "none"}


def _mode(value: Any) -> str:
    """The mode's name; older kernels write the enum's integer."""
    if value is None:
        return "unknown"
    return _MODES.get(value, str(value)) if isinstance(value, int) else dge_mode(getattr(value, "value", value)).name


def record_dma(
    recorder: Recorder,
    operation: Operation,
    bound: Bound,
    destination: Tensor,
    sources: list[Tensor],
    *,
    transpose: bool = False,
    reduce_op: str | None = None,
    read_back: bool = False,
) -> dict[str, Any]:
    """Record one DMA. `read_back`: the destination is read, modified and written."""
    mask = bound.get("mask")
    mode = _mode(bound.get("dge_mode"))
    parts = [masked(source, mask) for source in sources]
    target = masked(destination, mask)
    if not transpose:
        parts = [_fitted(recorder, operation, part, target) for part in parts]
    indirect = [view.indirection for view in (*parts, target) if view.indirection is not None]
    index = next((one.index for one in indirect if one.kind is Indirection.GATHER), None)
    if index is None:
        index = next((one.index for one in indirect if isinstance(one.index, Tensor)), None)
    if mode == "hwdge" and any(part.dtype != target.dtype for part in parts):
        recorder.note(
            "dtype-mismatch-hwdge",
            f"{operation.name} with hardware DGE needs one dtype: {parts[0].dtype} to {target.dtype}",
        )
    reads = [recorder.access(part) for part in parts]
    if read_back:
        reads.append(recorder.access(target))
    target.storage.writer = operation.name
    # What is known of an integer tensor's contents goes with a copy of all of it: a loop bound on its way to a register.
    whole = len(parts) == 1 and _is_whole(parts[0]) and _is_whole(target) and reduce_op is None and not transpose
    target.storage.values = parts[0].storage.values if whole else None
    fields: dict[str, Any] = {
        "op": operation.name,
        "module": operation.module,
        "name": bound.get("name"),
        "reads": tuple(reads),
        "write": recorder.access(target, write=True),
        "dge_mode": mode,
        "engine": engine_name(bound.get("engine")),
        "transpose": transpose,
        "reduce_op": reduce_op,
        "index": recorder.access(index) if isinstance(index, Tensor) else None,
    }
    return recorder.emit(DmaRecord, fields)


def _is_whole(view: Tensor) -> bool:
    return view.size == product(view.storage.shape) and view.is_contiguous() and not view.is_indirect()


def _fitted(recorder: Recorder, operation: Operation, source: Tensor, target: Tensor) -> Tensor:
    """The source as large as the destination: a smaller one is broadcast; a mismatch is noted and counted as written."""
    if source.size == target.size:
        return source
    try:
        return source.broadcast_to(target.shape)
    except ValueError:
        recorder.note(
            "size-mismatch", f"{operation.name} moves {source.shape} to {target.shape}: the element counts differ"
        )
        return source


def _copy(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    source = bound["src"]
    destination = bound["dst"]
    reduce_op = bound.get("dst_rmw_op")
    record_dma(
        recorder,
        operation,
        bound,
        tensors_in(destination)[0],
        tensors_in(source),
        reduce_op=None if reduce_op is None else op_name(reduce_op),
        read_back=reduce_op is not None,
    )
    return INSTRUCTION


def _load(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    source = bound["src"]
    if not isinstance(source, Tensor):
        raise TypeError(f"{operation.name}() needs a tensor, got {type(source).__name__}")
    transpose = operation.name == "load_transpose2d"
    shape = source.shape[::-1] if transpose else source.shape
    if len(shape) == 1:
        shape = (*shape, 1)
    dtype = source.dtype if bound.get("dtype") is None else as_dtype(bound["dtype"])
    tile = new_tensor(recorder, shape, dtype, MemoryRegion.sbuf, name=operation.name, kind="result")
    target = tile if len(source.shape) != 1 else tile.reshape(source.shape[0])
    fields = record_dma(recorder, operation, bound, target, [source], transpose=transpose)
    tile.storage.producer = (fields, recorder.nest)
    return tile


def _store(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    value = bound["value"]
    if not isinstance(value, Tensor):
        value = new_tensor(
            recorder, bound["dst"].shape, bound["dst"].dtype, MemoryRegion.sbuf, name="constant", kind="result"
        )
    fields = record_dma(recorder, operation, bound, bound["dst"], [value])
    fields["cast_before"] = value.dtype != bound["dst"].dtype and value.storage.writer == "tensor_copy"
    return None


def _atomic(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    record_dma(
        recorder, operation, bound, bound["dst"], [bound["value"]], reduce_op=op_name(bound["op"]), read_back=True
    )
    return None


def _transpose(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    source = tensors_in(bound["src"])[0]
    destination = bound.get("dst")
    made = None
    if destination is None:
        order = [int(axis) for axis in bound.get("axes") or reversed(range(source.ndim))]
        made = new_tensor(
            recorder, [source.shape[axis] for axis in order], source.dtype, name="dma_transpose", kind="result"
        )
        destination = made
    record_dma(recorder, operation, bound, tensors_in(destination)[0], [source], transpose=True)
    return INSTRUCTION if made is None else made


def _compute(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """dst = reduce_op of the scaled sources. With indices it reads the destination back (a scatter that accumulates)."""
    destination, sources = bound["dst"], tensors_in(bound["srcs"])
    reduce_op = bound.get("reduce_op")
    if isinstance(reduce_op, list | tuple):  # older spelling: scales before the operator
        reduce_op = bound.get("scales")
    if len(sources) > 16:
        recorder.note("source-limit", f"dma_compute takes at most 16 sources, got {len(sources)}")
    record_dma(
        recorder,
        operation,
        bound,
        destination,
        sources,
        reduce_op=op_name(reduce_op) if reduce_op is not None else "add",
    )
    return INSTRUCTION


def _indirect_copy(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """Older spelling of a gather or scatter: the index vectors are arguments of their own."""
    from trnprof.nki.tensor import Indirect

    def placed(view: Tensor, index: Any) -> Tensor:
        if not isinstance(index, Tensor):
            return view
        return view._view(view.shape, view.strides, indirect=Indirect(Indirection.GATHER, index, axis=0))

    destination = placed(bound["dst"], bound.get("dst_idx"))
    source = placed(bound["src"], bound.get("src_idx", bound.get("idx")))
    if source.size != destination.size and source.indirection is not None:
        source = source._view((destination.shape[0], *source.shape[1:]), source.strides)
    record_dma(recorder, operation, bound, destination, [source])
    return INSTRUCTION


define(
    "isa",
    "dma_copy",
    "dst, src, priority=, oob_mode=, dge_mode=, engine=, name=, dst_rmw_op=, unique_indices=",
    run=_copy,
    reads="src",
    writes="dst",
)
define(
    "isa",
    "dma_copy_indirect",
    "dst, src, src_idx=, dst_idx=, oob_mode=, dge_mode=, name=",
    run=_indirect_copy,
    reads="src",
    writes="dst",
)
define(
    "isa",
    "dma_transpose",
    "dst, src, axes=, priority=, dge_mode=, oob_mode=, name=",
    first="src, axes=, *, mask=, dtype=",
    run=_transpose,
    reads="src",
    writes="dst",
)
define(
    "isa",
    "dma_compute",
    "dst, srcs, reduce_op=, scales=, unique_indices=, oob_mode=, name=, dge_mode=",
    run=_compute,
    reads="srcs",
    writes="dst",
)
define("language", "load", "src, dtype=", first="src, *, mask=, dtype=", run=_load, reads="src")
define("language", "load_transpose2d", "src, dtype=", first="src, *, mask=, dtype=", run=_load, reads="src")
define("language", "store", "dst, value", first="dst, value, *, mask=", run=_store, reads="value", writes="dst")
define(
    "language",
    "atomic_rmw",
    "dst, value, op",
    first="dst, value, op, *, mask=",
    run=_atomic,
    reads="value dst",
    writes="dst",
)
