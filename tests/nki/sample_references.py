"""nki-samples' kernels: the inputs and the tolerances of their own drivers, and the references that those compare with.

References that stand as functions in the checkout are taken from there; what a driver writes inline (a product, a sum, a
pooling) is computed here with NumPy or, where the driver does, with torch.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

TUTORIALS = "src/nki_samples/tutorials"
BF16 = ml_dtypes.bfloat16


class DisagreementError(Exception):
    """The kernel ran, and its values are not the reference's."""


@dataclass(frozen=True)
class SampleCase:
    """One kernel: its file, its arguments, and what its driver expects."""

    file: str
    arguments: list[Any]
    expected: Callable[[], np.ndarray]
    rtol: float
    atol: float
    target: str = "trn2"


def function_of(path: Path, *names: str) -> dict[str, Any]:
    """Functions of a file without running the rest of it."""
    tree = ast.parse(path.read_text())
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.FunctionDef) and (not names or node.name in names))
    ]
    kept = [node for node in kept if not _imports_neuron(node)]
    space: dict[str, Any] = {"np": np}
    exec(compile(ast.Module(kept, []), str(path), "exec"), space)
    return space


def _imports_neuron(node: ast.stmt) -> bool:
    text = ast.unparse(node)
    return isinstance(node, ast.Import | ast.ImportFrom) and any(
        word in text for word in ("torch_xla", "torch_neuronx", "neuronxcc", "nki", "attention_kernels", "mamba_nki")
    )


def sample_case(checkout: Path, item: str) -> SampleCase:
    """The case of one kernel of coverage.samples()."""
    generator = np.random.default_rng(0)
    folder = checkout / TUTORIALS
    name = item.rpartition(":")[2]

    def uniform(*shape: int, dtype: Any = BF16) -> np.ndarray:
        return generator.random(shape).astype(dtype)

    def wide(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float32)

    if name.startswith("nki_matmul_"):
        file = f"{TUTORIALS}/matrix_multiplication/matrix_multiplication_nki_kernels.py"
        small = name == "nki_matmul_basic_"
        left, right = (uniform(64, 128), uniform(128, 512)) if small else (uniform(4096, 1024), uniform(1024, 2048))
        transposed = np.ascontiguousarray(left.T)
        return SampleCase(file, [transposed, right], lambda: (wide(left) @ wide(right)).astype(BF16), 1e-2, 1e-4)
    if name.startswith("nki_tensor_add"):
        files = {
            "nki_tensor_add": "tensor_addition_nki_kernels.py",
            "spmd:nki_tensor_add": "spmd_tensor_addition_nki_kernels.py",
            "nki_tensor_add_nc2": "spmd_multiple_nc_tensor_addition_nki_kernels.py",
        }
        shape = (512, 2048) if item.endswith("nc2") else (256, 1024)
        a, b = uniform(*shape), uniform(*shape)
        return SampleCase(f"{TUTORIALS}/tensor_addition/{files[item]}", [a, b], lambda: a + b, 1e-2, 1e-4)
    if name == "tensor_avgpool_kernel":
        image = np.arange(72).reshape(2, 6, 6).astype(BF16)
        file = f"{TUTORIALS}/average_pool2d/average_pool2d_nki_kernels.py"
        pooled = wide(image).reshape(2, 3, 2, 3, 2).mean(axis=(2, 4)).astype(BF16)
        return SampleCase(file, [image, 2], lambda: pooled, 0.0, 0.0)
    if name == "tensor_transpose2D_kernel_":
        matrix = np.arange(60, dtype=np.int8).reshape(5, 12)
        file = f"{TUTORIALS}/transpose2d/transpose2d_nki_kernels.py"
        turned = matrix.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12)
        return SampleCase(file, [matrix, (3, 4)], lambda: turned, 0.0, 0.0)
    if name.startswith("mamba"):
        return _mamba(folder)
    if name.startswith("attn_fwd"):
        reference = function_of(folder / "attention_fwd_performance/test_attention.py", "numpy_attention")
        length = 128 if name in ("attn_fwd_v1", "attn_fwd_v2") else 4096
        q, k, v = (((generator.random((128, length)) - 0.5) * 2).astype(np.float32) for _ in range(3))
        file = f"{TUTORIALS}/attention_fwd_performance/attention_kernels.py"
        return SampleCase(file, [q, k, v], lambda: reference["numpy_attention"](q, k, v), 1e-5, 1e-2)
    if name.startswith("kernel_"):
        return _microscaled(folder, name)
    return _contributed(name, generator)


def _mamba(folder: Path) -> SampleCase:
    import torch

    reference = function_of(folder / "fused_mamba/mamba_torch.py", "associative_scan", "mamba_layer")
    delta = u = np.ones((1, 256, 512), np.float32)
    a = -np.ones((256, 16), np.float32)
    b = c = np.ones((1, 16, 512), np.float32)

    def expected() -> np.ndarray:
        tensors = [torch.from_numpy(array) for array in (delta, a, b, u, c)]
        return reference["mamba_layer"](*tensors).numpy()

    file = f"{TUTORIALS}/fused_mamba/mamba_nki_kernels.py"
    return SampleCase(file, [delta, u.copy(), a, b, c.copy()], expected, 1e-2, 1e-2)


def _microscaled(folder: Path, name: str) -> SampleCase:
    from trnprof.nki.dtypes import DTYPES

    np.random.seed(0)
    tools = types.SimpleNamespace(**function_of(folder / "mxfp-matmul/mx_cpu_utils.py"))
    file, kind = f"{TUTORIALS}/mxfp-matmul/mx_kernels.py", ml_dtypes.float8_e5m2
    packed = DTYPES["float8_e5m2_x4"]
    if name == "kernel_copy_strided_quantize_matmul_mx":
        stationary, *_ = tools.generate_stabilized_mx_data(kind, (512, 128))
        moving, *_ = tools.generate_stabilized_mx_data(kind, (512, 512))
        arguments = [stationary.astype(BF16), moving.astype(BF16), packed, True]
        return SampleCase(file, arguments, lambda: stationary.T @ moving, 5e-2, 5e-2, "trn3")
    _, _, left, left_scale = tools.generate_stabilized_mx_data(kind, (128, 512))
    numbers, _, right, right_scale = tools.generate_stabilized_mx_data(kind, (128, 2048))
    if name == "kernel_offline_quantized_mx_matmul":
        arguments = [left, left_scale, right, right_scale, packed]
        return SampleCase(
            file,
            arguments,
            lambda: tools.nc_matmul_mx_golden(left, right, left_scale, right_scale, kind, kind),
            5e-2,
            5e-2,
            "trn3",
        )

    def expected() -> np.ndarray:
        data, scale = tools.quantize_mx_golden(numbers, kind)
        return tools.nc_matmul_mx_golden(left, data, left_scale, scale, kind, kind)

    return SampleCase(file, [left, left_scale, numbers.astype(BF16), packed, packed], expected, 5e-2, 5e-2, "trn3")


CONTRIBUTED = {
    "interpolate_bilinear_2x_fwd": "interpolate_bilinear_fwd.py",
    "interpolate_trilinear_2x_fwd": "interpolate_trilinear_fwd.py",
    "matmul": "matmul.py",
    "max_pooling_2d_stride_1": "maxpooling.py",
}


def _contributed(name: str, generator: np.random.Generator) -> SampleCase:
    import torch

    file = f"contributed/{CONTRIBUTED[name]}"
    if name == "matmul":
        a, b = (generator.random((1024, size)).astype(np.float16) for size in (4096, 2048))
        product = lambda: (a.astype(np.float32).T @ b.astype(np.float32)).astype(np.float16)  # noqa: E731
        return SampleCase(file, [a, b], product, 1e-2, 1e-4)
    if name == "max_pooling_2d_stride_1":
        image = generator.random((448, 448)).astype(np.float32)
        pool = torch.nn.functional.max_pool2d
        return SampleCase(
            file,
            [image, 3],
            lambda: pool(torch.from_numpy(image)[None, None], kernel_size=3, stride=1, padding=0).numpy()[0, 0],
            1.3e-6,
            1e-5,
        )
    mode = "bilinear" if "bilinear" in name else "trilinear"
    shape = (2, 64, 128, 128) if mode == "bilinear" else (2, 64, 23, 23, 23)
    image = generator.random(shape).astype(np.float32)
    return SampleCase(
        file,
        [image],
        lambda: torch.nn.functional.interpolate(torch.from_numpy(image), scale_factor=2, mode=mode).numpy(),
        1e-2,
        1e-4,
    )


def run_sample_case(checkout: Path, item: str) -> dict[str, float]:
    """Compute one kernel and compare. Raises DisagreementError or KernelError."""
    from trnprof.nki.discovery import KernelKind, find_kernels, parse_source, read_source
    from trnprof.nki.loader import KernelLoader, find_callable
    from trnprof.nki.modules import install_nki_modules
    from trnprof.nki.values.run import compute

    case = sample_case(checkout, item)
    with install_nki_modules(case.target):
        loader = KernelLoader(checkout / case.file)
        loader.install()
        kernel = find_callable(loader.load(), item.rpartition(":")[2])
        name = item.rpartition(":")[2]
        path = checkout / case.file
        kinds = {one.name: one.kind for one in find_kernels(parse_source(read_source(path), path))}
        run = compute(kernel, case.arguments, target=case.target, is_host=kinds.get(name) is KernelKind.HOST)
    actual = run.outputs[0][0].array.astype(np.float32)
    expected = np.asarray(case.expected()).astype(np.float32)
    if actual.size != expected.size:
        raise DisagreementError(f"shape {actual.shape} against the reference's {expected.shape}")
    actual = actual.reshape(expected.shape)
    difference = np.abs(actual - expected)
    bad = ~(difference <= case.atol + case.rtol * np.abs(expected))
    worst = float(difference.max() / max(np.abs(expected).max(), 1e-30))
    if bad.any():
        first = tuple(int(part) for part in np.argwhere(bad)[0])
        raise DisagreementError(
            f"worst {worst:.3g} of the largest value (rtol {case.rtol:g}, atol {case.atol:g}); {int(bad.sum())} of {bad.size} "
            f"differ, first at {list(first)}: {actual[first]} against {expected[first]}"
        )
    return {"out": worst}
