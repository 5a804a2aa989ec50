"""Run a kernel's body, or one instruction, on values."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from trnprof.nki.modules import install_nki_modules
from trnprof.nki.trace import KernelError
from trnprof.nki.values.run import ValueRun, compute

SECOND = "import numpy as np\nimport nki, nki.isa as nisa, nki.language as nl, nki.collectives as ncc\n"
FIRST = (
    "import numpy as np\nfrom neuronxcc import nki\nimport neuronxcc.nki.isa as nisa, neuronxcc.nki.language as nl\n"
)
FILE = "values_kernel.py"


def run(body: str, *arrays: Any, head: str = SECOND, target: str = "trn2", **options: Any) -> ValueRun:
    """Run a kernel of arguments a, b, c, e, ... (d is free for a destination) whose body is `body`; options as compute() takes them."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    names = ", ".join("abcefgh"[: len(arrays)])
    source = f"{head}@nki.jit\ndef kernel({names}):\n{lines}\n"
    with install_nki_modules(target):
        module = sys.modules["values_kernel"] = ModuleType("values_kernel")
        linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
        exec(compile(source, FILE, "exec"), vars(module))
        return compute(vars(module)["kernel"], arrays, target=target, **options)


def result(body: str, *arrays: Any, **options: Any) -> np.ndarray:
    """The first output of rank 0."""
    return run(body, *arrays, **options).outputs[0][0].array


def refusal(body: str, *arrays: Any, **options: Any) -> KernelError:
    """The error that the kernel ends with."""
    with pytest.raises(KernelError) as caught:
        run(body, *arrays, **options)
    return caught.value


def instruction(call: str, outputs: dict[str, np.ndarray | tuple[tuple[int, ...], str]], **inputs: Any) -> Any:
    """Run `call` on SBUF tiles named as inputs and outputs say; returns the outputs as float64, a tuple if several.

    outputs: name -> (shape, type), or an array that the tile starts from. Names that start with p_ are in PSUM, where only a
    shape and type can be given. Options of run() go in capitals: TARGET="trn3".
    """
    options = {name.lower(): inputs.pop(name) for name in list(inputs) if name.isupper()}
    arrays, lines, names = [], [], []
    for name, value in [*inputs.items(), *outputs.items()]:
        assert name == "d" or name not in "abcefgh", "a name of the kernel's arguments"
        if isinstance(value, tuple):
            where = "nl.psum" if name.startswith("p_") else "nl.sbuf"
            lines.append(f"{name} = nl.ndarray({value[0]}, dtype=nl.{value[1]}, buffer={where})")
            continue
        letter = "abcefgh"[len(arrays)]
        arrays.append(np.asarray(value))
        lines += [
            f"{name} = nl.ndarray({letter}.shape, dtype={letter}.dtype, buffer=nl.sbuf)",
            f"nisa.dma_copy(dst={name}, src={letter})",
        ]
    lines.append(f"nisa.{call}")
    for name in outputs:
        names.append(f"{name}_out")
        source = name
        if name.startswith("p_"):
            source = f"{name}_copy"
            lines.append(f"{source} = nl.ndarray({name}.shape, dtype={name}.dtype, buffer=nl.sbuf)")
            lines.append(f"nisa.tensor_copy(dst={source}, src={name})")
        lines.append(f"{name}_out = nl.ndarray({name}.shape, dtype={name}.dtype, buffer=nl.shared_hbm)")
        lines.append(f"nisa.dma_copy(dst={name}_out, src={source})")
    lines.append(f"return {', '.join(names)}")
    found = [output.array for output in run("\n".join(lines), *arrays, **options).outputs[0]]
    plain = [array if array.dtype.names else array.astype(np.float64) for array in found[: len(outputs)]]
    return plain[0] if len(plain) == 1 else tuple(plain)


def f32(*rows: Any) -> np.ndarray:
    """Rows as a float32 array of two dimensions."""
    return np.array(rows, np.float32)
