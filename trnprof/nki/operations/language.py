"""nki.language on tiles: arithmetic, functions, reductions, products. Each is taken as the one instruction it lowers to."""

from __future__ import annotations

from typing import Any

from trnprof.nki.dtypes import DTYPES, DType
from trnprof.nki.index_tensors import IndexTensor, Mask
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.operations.compute import load_identity, reduced_shape
from trnprof.nki.operations.table import TABLE, Bound, Operation, call, compute, define, new_tensor
from trnprof.nki.recorder import Recorder
from trnprof.nki.recording import Memory
from trnprof.nki.tensor import Tensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum

BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "abs_max",
    "abs_min",
    "power",
    "fmod",
    "mod",
    "floor_divide",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "logical_and",
    "logical_or",
    "logical_xor",
    "arithmetic_shift_right",
    "logical_shift_right",
]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
VECTOR_UNARY = [
    "abs",
    "negative",
    "square",
    "invert",
    "logical_not",
    "reciprocal",
    "rsqrt",
    "copy",
    "ceil",
    "floor",
    "trunc",
    "sign",
    "bypass",
]
ACTIVATIONS = [
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh_dx",
    "silu",
    "silu_dx",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "sin",
    "cos",
    "tan",
    "arctan",
    "log1p",
    "expm1",
    "sinh",
    "cosh",
    "tanh_dx",
    "sigmoid_dx",
    "relu_dx",
    "leaky_relu",
    "prelu",
]
REDUCTIONS = ["sum", "max", "min", "mean", "prod", "var", "all", "any", "average"]


def _wider(bound: Bound) -> tuple[tuple[int, ...], DType, MemoryRegion]:
    """NumPy's broadcast of the tensor arguments; the larger float's dtype."""
    tensors = [value for value in (bound["x"], bound.get("y")) if isinstance(value, Tensor)]
    shape = tensors[0].shape
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        shape = broadcast_shape(shape, tensor.shape)
        if tensor.dtype.itemsize > dtype.itemsize:
            dtype = tensor.dtype
    return shape, dtype, SBUF


def broadcast_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's rule."""
    rank = max(len(left), len(right))
    left, right = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    shape = []
    for a, b in zip(left, right, strict=True):
        if a != b and a != 1 and b != 1:
            raise ValueError(f"tiles of shapes {left} and {right} do not broadcast")
        shape.append(max(a, b) if min(a, b) > 0 else 0)
    return tuple(shape)


def _elementwise(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """Tiles make an instruction; numbers and index tensors are the host's arithmetic."""
    x, y = bound.get("x"), bound.get("y")
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        return host_value(operation.name, x, y)
    result = compute(recorder, operation, bound)
    if operation.name in COMPARISONS and isinstance(result, Tensor):
        result.predicate = True
    return result


def host_value(name: str, x: Any, y: Any) -> Any:
    """nl.add(1, 2), nl.less(i, n), nl.logical_and(mask, mask)."""
    import operator

    import numpy as np

    if isinstance(x, IndexTensor | Mask) or isinstance(y, IndexTensor | Mask):
        table = {
            "add": operator.add,
            "subtract": operator.sub,
            "multiply": operator.mul,
            "equal": operator.eq,
            "not_equal": operator.ne,
            "less": operator.lt,
            "less_equal": operator.le,
            "greater": operator.gt,
            "greater_equal": operator.ge,
            "logical_and": operator.and_,
            "bitwise_and": operator.and_,
            "logical_or": operator.or_,
            "floor_divide": operator.floordiv,
            "mod": operator.mod,
        }
        if name not in table:
            raise TypeError(f"nl.{name} of index tensors is not supported")
        return table[name](x, y)
    function = getattr(np, name, None)
    if function is None:
        raise TypeError(f"nl.{name} needs a tile, got {type(x).__name__}")
    found = function(x) if y is None else function(x, y)
    return found.item() if isinstance(found, np.generic) else found


for _name in BINARY + COMPARISONS:
    define(
        "language",
        _name,
        "x, y, dtype=",
        first="x, y, *, dtype=, mask=",
        reads="x y",
        engines="vector gpsimd",
        result=_wider,
        run=_elementwise,
    )
for _name in VECTOR_UNARY:
    define(
        "language",
        _name,
        "x, dtype=",
        first="x, *, dtype=, mask=",
        reads="x",
        engines="vector scalar gpsimd",
        result=_wider,
        run=_elementwise,
    )
for _name in ACTIVATIONS:
    define(
        "language",
        _name,
        "x, dtype=",
        first="x, *, dtype=, mask=",
        reads="x",
        engines="scalar",
        result=_wider,
        run=_elementwise,
    )


def _reduce_run(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    if not isinstance(bound["x"], Tensor):
        import builtins

        function = getattr(builtins, operation.name)
        rest = [bound["axis"]] if bound.get("axis") is not None else []
        return function(bound["x"], *rest)
    return compute(recorder, operation, bound)


for _name in REDUCTIONS:
    define(
        "language",
        _name,
        "x, axis=, dtype=, keepdims=",
        first="x, axis=, *, dtype=, mask=, keepdims=",
        reads="x",
        engines="vector",
        result=lambda bound: (
            reduced_shape(bound["x"].shape, bound["axis"], bool(bound.get("keepdims", False))),
            bound["x"].dtype,
            SBUF,
        ),
        run=_reduce_run,
    )


def _softmax(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """Maximum, exponential with its sum, scaling."""
    x = bound["x"]
    axis = bound.get("axis", -1)
    largest = call("isa", "tensor_reduce", op="max", data=x, axis=axis, keepdims=True)
    total = new_tensor(recorder, largest.shape, "float32", name="sum", kind="result")
    powers = compute(
        recorder, TABLE["isa", "activation_reduce"], {"op": "exp", "data": x, "bias": largest, "reduce_res": total}
    )
    return compute(recorder, TABLE["isa", "tensor_scalar"], {"data": powers, "op0": "divide", "operand0": total})


def _rms_norm(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """Sum of squares, 1/sqrt, two multiplications."""
    x, w = bound["x"], bound["w"]
    total = call("isa", "tensor_reduce", op="square_sum", data=x, axis=bound["axis"], keepdims=True)
    scale = compute(recorder, TABLE["isa", "activation"], {"op": "rsqrt", "data": total})
    scaled = compute(recorder, TABLE["isa", "tensor_scalar"], {"data": x, "op0": "multiply", "operand0": scale})
    if not isinstance(w, Tensor):
        return scaled
    return compute(recorder, TABLE["isa", "tensor_tensor"], {"data1": scaled, "data2": w, "op": "multiply"})


def _matmul(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """x @ y: transposes x first unless it comes transposed; the product lands in PSUM."""
    x, y = bound["x"], bound["y"]
    if not bound.get("transpose_x"):
        load_identity(recorder, x.dtype)
        turned = compute(recorder, TABLE["isa", "nc_transpose"], {"data": x, "engine": "tensor"})
        x = compute(recorder, TABLE["isa", "tensor_copy"], {"src": turned, "dtype": x.dtype})
    return compute(recorder, TABLE["isa", "nc_matmul"], {"stationary": x, "moving": y}, op="nc_matmul")


def _transpose(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    x = bound["x"]
    if not isinstance(x, Tensor):
        raise TypeError("nl.transpose needs a tile")
    return call("isa", "nc_transpose", data=x)


def _where(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    tensors = [value for value in (bound["x"], bound["y"], bound["condition"]) if isinstance(value, Tensor)]
    shape = tensors[0].shape
    for tensor in tensors[1:]:
        shape = broadcast_shape(shape, tensor.shape)
    destination = new_tensor(recorder, shape, bound.get("dtype") or tensors[0].dtype, name="where", kind="result")
    compute(recorder, operation, {**bound, "dst": destination})
    return destination


def _broadcast_to(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    x = bound["x"]
    if isinstance(x, IndexTensor):
        return x.broadcast_to(tuple(int(size) for size in bound["shape"]))
    shape = tuple(int(size) for size in bound["shape"])
    if x.storage.memory is not Memory.HBM and shape and x.shape and shape[0] != x.shape[0]:
        # Across partitions it is data movement: a matrix product with ones, or a shuffle.
        destination = new_tensor(recorder, shape, bound.get("dtype") or x.dtype, name="broadcast_to", kind="result")
        compute(recorder, operation, {"dst": destination, "x": x})
        return destination
    return x.broadcast_to(shape)


def _expand_dims(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    axis = bound["axis"]
    x = bound["x"]
    if isinstance(x, IndexTensor):
        return x.expand_dims(int(axis))
    return x.expand_dim(int(axis))


def _gather(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    indices = bound["indices"]
    destination = new_tensor(recorder, indices.shape, bound["data"].dtype, name="gather_flattened", kind="result")
    compute(recorder, operation, {"dst": destination, "data": bound["data"], "indices": indices})
    return destination


def _loop_reduce(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    """First generation: a value accumulated over the named loops."""
    return compute(recorder, operation, {"x": bound["x"], "op": bound.get("op")})


define("language", "softmax", "x, axis=, dtype=, compute_dtype=, mask=", run=_softmax, reads="x")
define("language", "rms_norm", "x, w, axis, n=, epsilon=, dtype=, compute_dtype=, mask=", run=_rms_norm, reads="x w")
define("language", "matmul", "x, y, transpose_x=, mask=", run=_matmul, reads="x y")
define("language", "transpose", "x, dtype=, mask=", run=_transpose, reads="x")
define(
    "language",
    "where",
    "condition, x, y, dtype=, mask=",
    run=_where,
    reads="condition x y",
    writes="dst",
    engines="vector",
)
define("language", "broadcast_to", "x, shape, dtype=", run=_broadcast_to, reads="x", writes="dst", engines="gpsimd")
define("language", "expand_dims", "x, axis", run=_expand_dims)
define(
    "language",
    "gather_flattened",
    "data, indices, axis=, dtype=, mask=",
    run=_gather,
    reads="data indices",
    writes="dst",
    engines="gpsimd",
)
define(
    "language",
    "loop_reduce",
    "x, op, loop_indices=, dtype=, mask=",
    run=_loop_reduce,
    reads="x",
    engines="vector",
    result=lambda bound: (bound["x"].shape, DTYPES[bound["x"].dtype], SBUF),
)
define(
    "language",
    "dropout",
    "x, rate, dtype=, mask=",
    reads="x rate",
    engines="vector",
    result=lambda bound: (bound["x"].shape, bound["x"].dtype, SBUF),
)


def _operator(name: str, reverse: bool = False) -> Any:
    """A Python operator on tiles."""

    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, Tensor | int | float):
            if not hasattr(other, "dtype") or not hasattr(other, "item"):
                return NotImplemented
            other = other.item()  # a NumPy scalar: np.float32(2) is no float
        if reverse:
            return call("language", name, other, self)
        return call("language", name, self, other)

    return method


def install_operators() -> None:
    """Give Tensor its operators: tile + tile, tile * 2, tile < tile, tile += tile."""
    from trnprof.nki.operations.assignment import accumulate

    names = {
        "add": "add",
        "sub": "subtract",
        "mul": "multiply",
        "truediv": "divide",
        "mod": "mod",
        "pow": "power",
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
        "lshift": "left_shift",
        "rshift": "right_shift",
    }
    for python, name in names.items():
        setattr(Tensor, f"__{python}__", _operator(name))
        setattr(Tensor, f"__r{python}__", _operator(name, reverse=True))
    for python, name in {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}.items():
        setattr(Tensor, f"__{python}__", _operator(name))
    setattr(Tensor, "__iadd__", accumulate)  # noqa: B010 - the class is typed without it
    setattr(Tensor, "__neg__", lambda self: call("language", "negative", self))  # noqa: B010
    setattr(Tensor, "__abs__", lambda self: call("language", "abs", self))  # noqa: B010
    setattr(Tensor, "__invert__", lambda self: call("language", "invert", self))  # noqa: B010


install_operators()
