"""The scalar engine's functions, as the mathematics that its piecewise polynomials approximate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from trnprof.nki.values.alu import UNARY, UnknownOperatorError, canonical

VALID_RANGE = {
    "sin": (-math.pi, math.pi),
    "cos": (-math.pi, math.pi),
    "arctan": (-math.pi / 2, math.pi / 2),
    "log": (2.0**-64, 2.0**64),
    "sqrt": (0.0, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (-(2.0**42), 2.0**42),
}
"""Inputs for which the scalar engine's result means anything (nki.api.shared.rst); outside it extrapolates."""

_STEP = 1 / 512
_LAST = 6.0
"""erf(6) differs from 1 by less than 2e-17."""


@cache
def _erf_table() -> tuple[np.ndarray, np.ndarray]:
    """erf and its derivative on a grid of 1/512: cubic Hermite interpolation between them is good to 2e-13."""
    grid = np.arange(int(_LAST / _STEP) + 2) * _STEP
    return np.array([math.erf(x) for x in grid]), 2 / math.sqrt(math.pi) * np.exp(-(grid**2))


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, in the type of x."""
    value, slope = _erf_table()
    size = np.minimum(np.abs(x.astype(np.float64)), _LAST)
    size = np.where(np.isnan(size), 0.0, size)
    at = (size / _STEP).astype(np.int64)
    t = size / _STEP - at
    rise = value[at + 1] - value[at]
    # p(t) = f0 + t*(h f0' + t*(3r - 2h f0' - h f1' + t*(h f0' + h f1' - 2r)))
    a, b = slope[at] * _STEP, slope[at + 1] * _STEP
    result = value[at] + t * (a + t * (3 * rise - 2 * a - b + t * (a + b - 2 * rise)))
    signed = np.copysign(result, x)
    return np.where(np.isnan(x), np.nan, signed).astype(x.dtype)


def _sigmoid(x: Any) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_ROOT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_SIGMOID_SCALE = 1.702


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + erf(x * x.dtype.type(_ROOT_HALF)))


def _gelu_dx(x: Any) -> Any:
    density = np.exp(-0.5 * x * x) / x.dtype.type(math.sqrt(2 * math.pi))
    return 0.5 * (1 + erf(x * x.dtype.type(_ROOT_HALF))) + x * density


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(x.dtype.type(_TANH_SCALE) * (x + x.dtype.type(_CUBIC) * x**3)))


def _gelu_tanh_dx(x: Any) -> Any:
    inner = np.tanh(x.dtype.type(_TANH_SCALE) * (x + x.dtype.type(_CUBIC) * x**3))
    slope = x.dtype.type(_TANH_SCALE) * (1 + x.dtype.type(3 * _CUBIC) * x * x)
    return 0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * slope


def _gelu_sigmoid(x: Any) -> Any:
    return x * _sigmoid(x.dtype.type(_SIGMOID_SCALE) * x)


def _gelu_sigmoid_dx(x: Any) -> Any:
    s = _sigmoid(x.dtype.type(_SIGMOID_SCALE) * x)
    return s + x.dtype.type(_SIGMOID_SCALE) * x * s * (1 - s)


def _silu_dx(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _mish(x: Any) -> Any:
    return x * np.tanh(_softplus(x))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **UNARY,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "tanh_dx": lambda x: 1 - np.tanh(x) ** 2,
    "sigmoid": _sigmoid,
    "sigmoid_dx": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
    "relu_dx": lambda x: (x > 0).astype(x.dtype),
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_tanh_dx": _gelu_tanh_dx,
    "gelu_apprx_sigmoid": _gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": _silu_dx,
    "softplus": _softplus,
    "mish": _mish,
    "erf": erf,
    "erf_dx": lambda x: x.dtype.type(2 / math.sqrt(math.pi)) * np.exp(-x * x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arctan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "bypass": lambda x: x,
    "is_finite": lambda x: np.isfinite(x).astype(x.dtype),
}


def activate(name: str, x: np.ndarray, slope: Any = 0.0) -> np.ndarray:
    """The function `name` of x, in the type of x. slope: of prelu and leaky_relu for negative inputs."""
    known = canonical(name)
    if known in ("prelu", "leaky_relu", "lrelu"):
        return np.where(x >= 0, x, x * slope).astype(x.dtype)
    function = FUNCTIONS.get(known)
    if function is None:
        raise UnknownOperatorError(f"the scalar engine has no function {name!r}")
    return function(x)
