"""The operators of the vector, scalar and gpsimd engines: arithmetic in float32 (or float64), bits and integers exactly.

Names are the language's (nl.add, np.add, 'add'); their meaning: aws-neuron/aws-neuron-sdk nki/api/nki.api.shared.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Operator = Callable[[Any, Any], Any]

_ALIAS = {
    "max": "maximum",
    "min": "minimum",
    "mult": "multiply",
    "sub": "subtract",
    "true_divide": "divide",
    "amax": "maximum",
    "amin": "minimum",
    "sum": "add",
    "prod": "multiply",
    "remainder": "mod",
    "pow": "power",
    "greater_than": "greater",
    "less_than": "less",
    "absolute": "abs",
    "shift_left": "left_shift",
    "shift_right": "right_shift",
    "logical_shift_left": "left_shift",
    "logical_shift_right": "right_shift",
    "arithmetic_shift_left": "left_shift",
    "bitwise_not": "invert",
    "bitwise_invert": "invert",
    "all": "logical_and",
    "any": "logical_or",
    "average": "mean",
    "identity": "copy",
    "elementwise_mul": "multiply",
}


def canonical(name: str) -> str:
    """One name an operator."""
    return _ALIAS.get(name, name)


def _truth(function: Operator) -> Operator:
    """A comparison's result is 1.0 or 0.0, in the type that was compared."""

    def compare(x: Any, y: Any) -> Any:
        result = np.asarray(function(x, y))
        kind = np.result_type(x, y)
        return result.astype(kind if kind.kind == "f" else np.float32)

    return compare


def _abs_max(x: Any, y: Any) -> Any:
    """The operand of larger magnitude, signed; y on a tie."""
    return np.where(np.abs(x) > np.abs(y), x, y)


def _abs_min(x: Any, y: Any) -> Any:
    return np.where(np.abs(x) < np.abs(y), x, y)


ARITHMETIC: dict[str, Operator] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "floor_divide": np.floor_divide,
    "abs_max": _abs_max,
    "abs_min": _abs_min,
    "equal": _truth(np.equal),
    "not_equal": _truth(np.not_equal),
    "less": _truth(np.less),
    "less_equal": _truth(np.less_equal),
    "greater": _truth(np.greater),
    "greater_equal": _truth(np.greater_equal),
    "logical_and": _truth(np.logical_and),
    "logical_or": _truth(np.logical_or),
    "logical_xor": _truth(np.logical_xor),
    "bypass": lambda x, y: x,
}
"""Binary operators on floats."""

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "negative": np.negative,
    "logical_not": lambda x: (x == 0).astype(x.dtype),
    "copy": lambda x: x,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "sign": np.sign,
    "exp": np.exp,
}
"""Operators whose second operand means nothing."""

BITS = frozenset(
    {
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "invert",
        "left_shift",
        "right_shift",
        "arithmetic_shift_right",
    }
)
"""Operators on bit patterns: integers in, integers out."""

COMMUTES = frozenset({"add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"})


class UnknownOperatorError(ValueError):
    """An op argument that no engine has."""

    reason = "unsupported"


def is_bitwise(name: str) -> bool:
    """Does it treat its operands as bit patterns?"""
    return canonical(name) in BITS


def apply(name: str, x: Any, y: Any) -> Any:
    """x <op> y on floats; a unary operator ignores y."""
    known = canonical(name)
    binary = ARITHMETIC.get(known)
    if binary is not None:
        return binary(x, y)
    unary = UNARY.get(known)
    if unary is None:
        raise UnknownOperatorError(f"no engine has the operator {name!r}")
    return unary(x)


def apply_integers(name: str, x: Any, y: Any, kind: np.dtype[Any]) -> Any:
    """x <op> y on the integers of `kind`, wrapping around; shifts are logical unless named arithmetic."""
    known = canonical(name)
    unsigned = np.dtype(f"u{kind.itemsize}")
    left = np.asarray(x).astype(kind)
    if known == "invert":
        return ~left
    right = np.asarray(y).astype(kind)
    if known == "bitwise_and":
        return left & right
    if known == "bitwise_or":
        return left | right
    if known == "bitwise_xor":
        return left ^ right
    bits = kind.itemsize * 8
    if known in ("left_shift", "right_shift", "arithmetic_shift_right"):
        count = right.astype(np.int64)
        inside = (count >= 0) & (count < bits)
        count = np.where(inside, count, 0)
        if known == "arithmetic_shift_right":
            return np.where(inside, left >> count.astype(kind), np.where(left < 0, -1, 0)).astype(kind)
        pattern = left.view(unsigned) if left.ndim else left.astype(unsigned)
        shifted = pattern << count.astype(unsigned) if known == "left_shift" else pattern >> count.astype(unsigned)
        return np.where(inside, shifted, 0).astype(unsigned).view(kind)
    if known in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        return getattr(np, known)(left, right).astype(kind)
    if known in ("logical_and", "logical_or", "logical_xor"):
        return getattr(np, known)(left != 0, right != 0).astype(kind)
    if known == "logical_not":
        return (left == 0).astype(kind)
    if known in ("add", "subtract", "multiply"):
        wide = getattr(np, known)(left.astype(np.int64), right.astype(np.int64))
        return wide.astype(kind)
    if known in ("maximum", "minimum"):
        return getattr(np, known)(left, right)
    if known in ("divide", "floor_divide", "mod", "fmod"):
        safe = np.where(right == 0, 1, right)
        whole = {"divide": np.floor_divide, "floor_divide": np.floor_divide, "mod": np.mod, "fmod": np.fmod}[known]
        return np.where(right == 0, 0, whole(left, safe)).astype(kind)
    if known == "power":
        return np.power(left.astype(np.float64), right.astype(np.float64)).astype(np.int64).astype(kind)
    if known in ("abs", "square", "negative", "copy", "bypass", "sign", "relu"):
        return left if known == "bypass" else UNARY[known](left).astype(kind)
    raise UnknownOperatorError(f"the operator {name!r} has no meaning for integers")


REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}

IDENTITY = {
    "add": 0.0,
    "subtract": 0.0,
    "multiply": 1.0,
    "maximum": -np.inf,
    "minimum": np.inf,
    "logical_and": 1.0,
    "logical_or": 0.0,
    "logical_xor": 0.0,
    "abs_max": 0.0,
    "abs_min": np.inf,
    "mean": 0.0,
}
"""What an accumulator register holds after a reset."""


def reduce(name: str, values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """`values` reduced over `axes` (kept, of size 1) in their own type."""
    known = canonical(name)
    if known == "mean":
        return np.mean(values, axis=axes, keepdims=True, dtype=values.dtype)
    if known in ("abs_max", "abs_min"):
        size = np.abs(values)
        return (size.max if known == "abs_max" else size.min)(axis=axes, keepdims=True)
    function = REDUCTIONS.get(known)
    if function is None:
        raise UnknownOperatorError(f"{name!r} is no operator to reduce with")
    if known == "subtract":  # the first element minus all the others
        ordered = np.moveaxis(values, axes, range(-len(axes), 0))
        flat = ordered.reshape(*ordered.shape[: values.ndim - len(axes)], -1)
        result = flat[..., 0] - flat[..., 1:].sum(axis=-1, dtype=values.dtype)
        return np.expand_dims(result, axes)
    if known in ("logical_and", "logical_or", "logical_xor"):
        result = values != 0
        for axis in axes:
            result = function.reduce(result, axis=axis, keepdims=True)
        return result.astype(values.dtype)
    result = values
    if known in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        for axis in axes:
            result = function.reduce(result, axis=axis, keepdims=True)
        return result
    return function.reduce(values, axis=axes, keepdims=True, dtype=values.dtype)
