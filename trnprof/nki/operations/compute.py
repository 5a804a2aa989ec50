"""nki.isa: instructions of the tensor, vector, scalar and gpsimd engines.

Names, arguments, engines and limits: aws-neuron/aws-neuron-sdk nki/api/nki/isa (second generation) and the first
generation's documentation. `first` is given where the first generation returns a tile.
"""

from __future__ import annotations

from typing import Any

from trnprof.nki.dtypes import DTYPES, DType, as_dtype
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.operations.table import Bound, Operation, compute, define, engine_name
from trnprof.nki.recorder import Recorder
from trnprof.nki.recording import DmaRecord, Memory
from trnprof.nki.tensor import Tensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
Result = tuple[tuple[int, ...], DType, MemoryRegion]


def like(name: str) -> Any:
    """Shape and dtype of one argument, in SBUF."""

    def result(bound: Bound) -> Result:
        tensor = bound[name]
        return tensor.shape, tensor.dtype, SBUF

    return result


def column(name: str, count: int = 1, dtype: str | None = None) -> Any:
    """[partitions, count] beside one argument."""

    def result(bound: Bound) -> Result:
        tensor = bound[name]
        return (tensor.shape[0], count), tensor.dtype if dtype is None else DTYPES[dtype], SBUF

    return result


def _broadcast(bound: Bound) -> Result:
    """Two tiles: NumPy's broadcasting, first operand's dtype."""
    first, second = bound["data1"], bound["data2"]
    if not isinstance(second, Tensor):
        return first.shape, first.dtype, SBUF
    wide = first if first.size >= second.size else second
    return wide.shape, first.dtype, SBUF


def reduced_shape(shape: tuple[int, ...], axis: Any, keepdims: bool) -> tuple[int, ...]:
    """Shape after reducing `axis` (an integer or several); at least two dimensions remain on chip."""
    axes = {int(a) % len(shape) for a in (axis if isinstance(axis, list | tuple) else [axis])}
    if keepdims:
        return tuple(1 if dim in axes else size for dim, size in enumerate(shape))
    left = tuple(size for dim, size in enumerate(shape) if dim not in axes)
    return left if len(left) >= 2 else (*left, *([1] * (2 - len(left))))


def _reduced(bound: Bound) -> Result:
    data = bound["data"]
    return reduced_shape(data.shape, bound["axis"], bool(bound.get("keepdims", False))), data.dtype, SBUF


def _product(bound: Bound) -> Result:
    """[stationary free, moving free] in PSUM, float32 (a transpose keeps its dtype)."""
    stationary, moving = bound["stationary"], bound["moving"]
    rows = stationary.size // max(stationary.shape[0], 1)
    dtype = moving.dtype if bound.get("is_transpose") else DTYPES["float32"]
    return (rows, *moving.shape[1:]), dtype, PSUM


def _transposed(bound: Bound) -> Result:
    data = bound["data"]
    free = data.size // max(data.shape[0], 1)
    return (free, data.shape[0]), data.dtype, PSUM if _transposes_on_tensor(bound) else SBUF


def _shape_argument(bound: Bound) -> Result:
    return tuple(int(size) for size in bound["shape"]), as_dtype(bound["dtype"]), SBUF


def _iota(bound: Bound) -> Result:
    expression = bound["expr"]
    return tuple(expression.shape), as_dtype(bound.get("dtype") or "int32"), SBUF


def _transposes_on_tensor(bound: Bound) -> bool:
    """The vector engine transposes tiles up to 32 x 32; without an engine the compiler takes the tensor engine."""
    engine = engine_name(bound.get("engine"))
    if engine in ("tensor", "vector"):
        return engine == "tensor"
    destination = bound.get("dst")
    if isinstance(destination, Tensor) and destination.storage.memory is Memory.SBUF:
        return False
    data = bound["data"]
    return data.storage.memory is not Memory.PSUM


def _nc_transpose(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """A tensor-engine transpose multiplies by an identity matrix, which the compiler loads from HBM once per dtype."""
    on_tensor = _transposes_on_tensor(bound)
    if on_tensor:
        load_identity(recorder, bound["data"].dtype)
    return compute(recorder, operation, {**bound, "engine": "tensor" if on_tensor else "vector"})


def load_identity(recorder: Recorder, dtype: DType) -> None:
    """128 x 128 of the transposed dtype's size: 64 KiB for 4-byte types, 32 KiB for 2-byte types, once a program."""
    from trnprof.nki.operations.table import new_tensor

    kind = {4: "float32", 2: "bfloat16", 1: "float8_e4m3"}.get(dtype.itemsize, "float32")
    size = DTYPES[kind].itemsize
    if size in recorder.identities:
        return
    recorder.identities.add(size)
    source = new_tensor(recorder, (128, 128), kind, MemoryRegion.private_hbm, name=f"identity_{kind}", kind="constant")
    target = new_tensor(recorder, (128, 128), kind, SBUF, name=f"identity_{kind}", kind="constant")
    with recorder.hoisted():
        fields = {
            "op": "identity_constant",
            "module": "compiler",
            "reads": (recorder.access(source),),
            "write": recorder.access(target, write=True),
            "implicit": "the identity matrix that tensor-engine transposes multiply by",
        }
        recorder.emit(DmaRecord, fields)


def _matmul_rule(recorder: Recorder, bound: Bound) -> None:
    stationary, moving = bound["stationary"], bound["moving"]
    if not isinstance(stationary, Tensor) or not isinstance(moving, Tensor):
        return
    if stationary.shape[0] != moving.shape[0]:
        recorder.note(
            "contraction-mismatch",
            f"nc_matmul contracts {stationary.shape[0]} partitions of stationary with {moving.shape[0]} of moving",
        )
    rows, columns = stationary.size // max(stationary.shape[0], 1), moving.size // max(moving.shape[0], 1)
    if stationary.shape[0] > 128 or rows > 128:
        recorder.note("tile-limit", f"nc_matmul stationary {stationary.shape}: at most 128 partitions and 128 free")
    if columns > 512 and moving.dtype.itemsize < 4 and "x4" not in moving.dtype:
        recorder.note("tile-limit", f"nc_matmul moving {moving.shape}: at most 512 free elements")


V, S, G, T = "vector", "scalar", "gpsimd", "tensor"
VG, VSG = "vector gpsimd", "vector scalar gpsimd"
_TAIL = "dtype=, mask=, engine="


def _isa(name: str, second: str, **entry: Any) -> None:
    entry.setdefault("writes", "dst")
    define("isa", name, second + ", name=", **entry)


_isa(
    "tensor_copy",
    "dst, src, engine=",
    first=f"src, *, {_TAIL}",
    reads="src",
    engines=VSG,
    result=like("src"),
)
_isa("memset", "dst, value, engine=", first=f"shape, value, {_TAIL}", engines=VG, result=_shape_argument)
_isa(
    "tensor_copy_predicated",
    "dst, src, predicate, reverse_pred=",
    first="src, dst, predicate, *, dtype=, mask=, reverse_pred=",
    reads="src predicate",
    engines=V,
)
_isa(
    "nc_matmul",
    "dst, stationary, moving, is_stationary_onezero=, is_moving_onezero=, is_transpose=, accumulate=, tile_position=, "
    "tile_size=, perf_mode=",
    first="stationary, moving, *, is_stationary_onezero=, is_moving_onezero=, mask=, is_transpose=, tile_position=, "
    "tile_size=, perf_mode=, psumAccumulateFlag=",
    reads="stationary moving",
    engines=T,
    result=_product,
    rule=_matmul_rule,
)
_isa(
    "nc_matmul_mx",
    "dst, stationary, moving, stationary_scale, moving_scale, tile_position=, tile_size=, accumulate=",
    reads="stationary moving stationary_scale moving_scale",
    engines=T,
    rule=_matmul_rule,
)
_isa(
    "nc_transpose",
    "dst, data, engine=",
    first="data, *, mask=, dtype=, engine=",
    reads="data",
    engines="tensor vector",
    result=_transposed,
    run=_nc_transpose,
)
_isa(
    "tensor_tensor",
    "dst, data1, data2, op, engine=",
    first=f"data1, data2, op, *, {_TAIL}",
    reads="data1 data2",
    engines=VG,
    result=_broadcast,
)
_isa(
    "tensor_scalar",
    "dst, data, op0, operand0, reverse0=, op1=, operand1=, reverse1=, engine=",
    first=f"data, op0, operand0, reverse0=, op1=, operand1=, reverse1=, *, {_TAIL}",
    reads="data operand0 operand1",
    engines=VSG,
    result=like("data"),
)
_isa(
    "tensor_reduce",
    "dst, op, data, axis, negate=, keepdims=",
    first="op, data, axis, *, mask=, dtype=, negate=, keepdims=",
    reads="data",
    engines=V,
    result=_reduced,
)
_isa(
    "tensor_partition_reduce",
    "dst, op, data",
    first="op, data, *, mask=, dtype=",
    reads="data",
    engines=G,
    result=lambda bound: ((1, *bound["data"].shape[1:]), bound["data"].dtype, SBUF),
)
_isa(
    "tensor_scalar_cumulative",
    "dst, src, op0, op1, imm0, imm1=, reduce_cmd=",
    reads="src imm0 imm1",
    engines=V,
)
_isa(
    "activation",
    "dst, op, data, bias=, scale=, reduce_op=, reduce_res=, reduce_cmd=",
    first="op, data, *, bias=, scale=, reduce_op=, reduce_res=, reduce_cmd=, mask=, dtype=",
    reads="data bias scale",
    writes="dst reduce_res",
    engines=S,
    result=like("data"),
)
_isa(
    "activation_reduce",
    "dst, op, data, reduce_op, reduce_res, bias=, scale=",
    first="op, data, *, reduce_op, reduce_res, bias=, scale=, mask=, dtype=",
    reads="data bias scale",
    writes="dst reduce_res",
    engines=S,
    result=like("data"),
)
_isa(
    "activate2",
    "dst, op, data, imm0, imm1, op0, op1, relu_param=, reverse0=, reverse1=, reduce_op=, reduce_res=, reduce_cmd=",
    reads="data imm0 imm1 relu_param",
    writes="dst reduce_res",
    engines=S,
)
_isa(
    "iota",
    "dst, pattern, offset=, channel_multiplier=",
    first="expr, dtype, *, mask=",
    engines=G,
    result=_iota,
)
_isa(
    "affine_select",
    "dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=, offset=",
    first="pred, on_true_tile, on_false_value, *, mask=, dtype=",
    reads="on_true_tile on_false_value",
    engines=G,
    result=like("on_true_tile"),
)
_isa(
    "local_gather",
    "dst, src_buffer, index, num_elem_per_idx=, num_valid_indices=",
    first="src_buffer, index, num_elem_per_idx=, num_valid_indices=, *, mask=",
    reads="src_buffer index",
    engines=G,
    result=lambda bound: (
        (bound["src_buffer"].shape[0], bound["index"].size // 8 * int(bound.get("num_elem_per_idx", 1))),
        bound["src_buffer"].dtype,
        SBUF,
    ),
)
_isa(
    "nc_n_gather",
    "dst, data, indices",
    first="data, indices, *, mask=, dtype=",
    reads="data indices",
    engines=G,
    result=lambda bound: (bound["indices"].shape, bound["data"].dtype, SBUF),
)
_isa(
    "bn_stats",
    "dst, data",
    first="data, *, mask=, dtype=",
    reads="data",
    engines=V,
    result=column("data", 6, "float32"),
)
_isa(
    "bn_aggr", "dst, data", first="data, *, mask=, dtype=", reads="data", engines=V, result=column("data", 2, "float32")
)
_isa(
    "tensor_tensor_scan",
    "dst, data0, data1, initial, op0, op1, reverse0=, reverse1=",
    first="data0, data1, initial, op0, op1, reverse0=, reverse1=, *, mask=, dtype=",
    reads="data0 data1 initial",
    engines=V,
    result=like("data0"),
)
_isa(
    "nc_stream_shuffle",
    "dst, src, shuffle_mask",
    first="src, dst, shuffle_mask, *, dtype=, mask=",
    reads="src",
    engines=V,
)
_isa("rng", "dst, engine=", first=f"shape, {_TAIL}", engines=VG, result=_shape_argument)
_isa(
    "dropout",
    "dst, data, prob",
    first="data, prob, *, mask=, dtype=",
    reads="data prob",
    engines=V,
    result=like("data"),
)
_isa("set_rng_seed", "src_seeds", reads="src_seeds", writes="", engines=V)
_isa("rand_set_state", "src_seeds, engine=", reads="src_seeds", writes="", engines=VG)
_isa("rand_get_state", "dst, engine=", engines=VG)
_isa("rand2", "dst, min, max", reads="min max", engines=V)
_isa(
    "exponential",
    "dst, src, max_value=, reduce_res=, reduce_cmd=, reduce_init=",
    reads="src max_value reduce_init",
    writes="dst reduce_res",
    engines=V,
)
_isa("reciprocal", "dst, data", first="data, *, dtype=, mask=", reads="data", engines=V, result=like("data"))
_isa("max8", "dst, src", first="src, *, mask=, dtype=", reads="src", engines=V, result=column("src", 8))
_isa(
    "sequence_bounds",
    "dst, segment_ids",
    first="segment_ids",
    reads="segment_ids",
    engines=G,
    result=lambda bound: (
        (bound["segment_ids"].shape[0], 2, *bound["segment_ids"].shape[1:]),
        bound["segment_ids"].dtype,
        SBUF,
    ),
)
_isa(
    "scalar_tensor_tensor",
    "dst, data, op0, operand0, op1, operand1, reverse0=, reverse1=",
    first="data, op0, operand0, op1, operand1, reverse0=, reverse1=, *, dtype=, mask=",
    reads="data operand0 operand1",
    engines=V,
    result=like("data"),
)
_isa(
    "tensor_scalar_reduce",
    "dst, data, op0, operand0, reduce_op, reduce_res=, reverse0=, reduce_cmd=, reduce_init=, reduce_res_negate=",
    first="data, op0, operand0, *, reduce_op, reduce_res, reverse0=, dtype=, mask=",
    reads="data operand0 reduce_init",
    writes="dst reduce_res",
    engines=V,
    result=like("data"),
)
_isa("quantize_mx", "dst, src, dst_scale", reads="src", writes="dst dst_scale", engines=V)
_isa(
    "range_select",
    "dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=, reduce_res=, reduce_op=, range_start=, "
    "on_false_value=",
    first="on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=, reduce_res=, reduce_op=, range_start=, "
    "on_false_value=, *, mask=, dtype=",
    reads="on_true_tile bound0 bound1",
    writes="dst reduce_res",
    engines=V,
    result=like("on_true_tile"),
)
_isa(
    "select_reduce",
    "dst, predicate, on_true, on_false, reduce_res=, reduce_cmd=, reduce_op=, reverse_pred=",
    reads="predicate on_true on_false",
    writes="dst reduce_res",
    engines=V,
)
_isa(
    "nc_find_index8",
    "dst, data, vals",
    first="data, vals, *, mask=, dtype=",
    reads="data vals",
    engines=V,
    result=column("data", 8, "uint32"),
)
_isa(
    "nc_match_replace8",
    "dst, data, vals, imm, dst_idx=",
    first="data, vals, imm, dst_idx=, *, mask=, dtype=",
    reads="data vals",
    writes="dst dst_idx",
    engines=V,
    result=like("data"),
)
_isa("nonzero_with_count", "dst, src, index_offset=, padding_val=", reads="src", engines=G)
_isa("topk", "val_dst, idx_dst, src, n", reads="src", writes="val_dst idx_dst", engines=G)
# First generation only: a source or destination placed by a register; the pattern is as the view's.
_isa(
    "tensor_copy_dynamic_src",
    "dst, src, engine=",
    first=f"src, *, {_TAIL}",
    reads="src",
    engines=VSG,
    result=like("src"),
)
_isa(
    "tensor_copy_dynamic_dst",
    "dst, src, engine=",
    first="dst, src, *, mask=, dtype=, engine=",
    reads="src",
    engines=VSG,
)
_isa(
    "builtin_custom_op",
    "function_name, lib_file_name, ulib_to_ucode_version, ulib_to_isa_version, srcs, dsts",
    reads="srcs",
    writes="dsts",
    engines=G,
)
