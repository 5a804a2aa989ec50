"""Which kernels a file holds and what each needs, told from its syntax tree: nothing of the file runs.

A kernel is a function decorated with nki.jit or one of its siblings, or wrapped by a call of it; a plain function that
moves data with nki operations and that no other kernel of the file calls (older NKI left the decorator to the caller);
or a host function that launches `kernel[grid](...)`.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError

MAX_SOURCE_BYTES = 8 << 20
"""A kernel file is source somebody wrote; the largest public one has 0.3 MB."""

JIT_NAMES = frozenset({"jit", "baremetal", "benchmark", "profile", "trace", "simulate_kernel", "nki_jit", "spmd_jit"})
"""Decorators that make a kernel (the last parts of their dotted names)."""

MOVES_DATA = frozenset(
    {
        "nki.language.load", "nki.language.store", "nki.language.load_transpose2d", "nki.language.atomic_rmw",
        "nki.isa.dma_copy", "nki.isa.dma_transpose", "nki.isa.dma_compute", "nki.isa.dma_gather_transpose",
        "nki.isa.sendrecv",
    }
)  # fmt: skip
"""Operations that move data by DMA, by the name they have in the second generation's modules."""


_LITERAL_TYPES = frozenset(
    {"int", "float", "bool", "str", "tuple", "list", "dict", "Tuple", "List", "Dict", "Sequence"}
)
_ANNOTATION_FILLERS = frozenset({"Optional", "Union", "None", "typing", "Any", "object"})


class KernelKind(StrEnum):
    """How a kernel is written."""

    JIT = "jit"
    PLAIN = "plain"
    HOST = "host"


class Role(StrEnum):
    """What a parameter takes."""

    TENSOR = "tensor"
    ARGUMENT = "argument"
    OBJECT = "object"
    """An instance of a class of the kernel's own: it comes from an inputs file."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    annotation: str | None
    default: str | None
    """Source text; None: the caller must give it."""
    role: Role
    rank: int | None
    """Number of dimensions, where the body unpacks or indexes the shape."""

    @property
    def required(self) -> bool:
        """Is there no default?"""
        return self.default is None


@dataclass(frozen=True)
class KernelSource:
    """One kernel as its file shows it."""

    name: str
    kind: KernelKind
    line: int
    parameters: tuple[Parameter, ...]
    launches: tuple[str, ...]
    """Kernels that a host function launches."""

    def command(self, path: Path) -> str:
        """A command line that runs it; shapes are examples where only the rank is known."""
        words = ["trnprof dma-predict", str(path), "--kernel", self.name]
        required = [parameter for parameter in self.parameters if parameter.required]
        if any(parameter.role is Role.OBJECT for parameter in required):
            return " ".join([*words, "--inputs FILE.py"])
        return " ".join([*words, *(_example(parameter) for parameter in required)])


def read_source(path: Path) -> str:
    """The text of a kernel file.

    Raises: InputMissingError if it cannot be read; InputDataError if it is too large or not text.
    """
    try:
        if path.is_dir():
            raise InputMissingError("a folder; name the kernel file in it", path=path)
        with path.open("rb") as file:
            raw = file.read(MAX_SOURCE_BYTES + 1)
    except FileNotFoundError:
        raise InputMissingError("no such file; check the path", path=path) from None
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None
    except ValueError as error:  # a NUL in the name
        raise InputMissingError(f"not a file name ({error})", path=repr(str(path))) from None
    if len(raw) > MAX_SOURCE_BYTES:
        raise InputDataError(
            f"larger than {MAX_SOURCE_BYTES >> 20} MiB, which no kernel source is; name the .py file", path=path
        )
    if b"\0" in raw:
        raise InputDataError("holds NUL bytes, so it is no Python source; name the .py file of the kernel", path=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputDataError(
            f"not UTF-8 text (byte {error.start}); name the .py file of the kernel", path=path
        ) from None


def parse_source(source: str, path: Path) -> ast.Module:
    """The syntax tree of a kernel file.

    Raises: InputDataError with the line where it does not parse.
    """
    try:
        return ast.parse(source, filename=str(path))
    except SyntaxError as error:
        found = (error.text or "").strip()
        version = ".".join(map(str, sys.version_info[:2]))
        raise InputDataError(
            f"line {error.lineno or 0}: does not parse as Python {version} ({error.msg})"
            + (f": {_short(found)}" if found else "")
            + "; fix it, or run trnprof with the Python that the kernel is written for",
            path=path,
        ) from None
    except (RecursionError, MemoryError):
        raise InputDataError("nested too deeply to parse; split the expression", path=path) from None
    except ValueError as error:
        raise InputDataError(f"does not parse ({error})", path=path) from None


def find_kernels(tree: ast.Module) -> tuple[KernelSource, ...]:
    """The kernels of a file in the order of their lines: jit functions, then plain ones, then host functions."""
    names = ImportedNames(tree)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    jit = {
        name for name, node in functions.items() if any(names.is_jit(decorator) for decorator in node.decorator_list)
    }
    found = [_kernel(name, KernelKind.JIT, functions[name]) for name in functions if name in jit]
    for node in tree.body:  # kernel = nki.jit(function)
        wrapped = _wrapped_by_jit(node, names)
        if wrapped and wrapped[1] in functions:
            jit.add(wrapped[0])
            if wrapped[0] != wrapped[1]:
                jit.add(wrapped[1])
            found.append(_kernel(wrapped[0], KernelKind.JIT, functions[wrapped[1]]))

    calls = {name: _called_names(node) for name, node in functions.items()}
    moving = {name for name, node in functions.items() if _moves_data(node, names)}
    launches = {
        name: tuple(sorted(_launched(node, jit, names)))
        for name, node in functions.items()
        if name not in jit and name not in moving
    }
    helpers = _reached(jit | moving, calls)
    plain = [
        name
        for name in functions
        if name in moving and name not in jit and name not in helpers and not (jit and name.startswith("_"))
    ]
    # Without any jit or plain entry (mutually recursive helpers) every data-moving function may be one.
    found += [_kernel(name, KernelKind.PLAIN, functions[name]) for name in plain]
    if not found:
        found = [_kernel(name, KernelKind.PLAIN, functions[name]) for name in functions if name in moving]
    found += [
        _kernel(name, KernelKind.HOST, functions[name], launched)
        for name, launched in launches.items()
        if launched and not name.startswith("test") and name != "main"
    ]
    order = list(KernelKind)
    return tuple(sorted(found, key=lambda kernel: (order.index(kernel.kind), kernel.line)))


class ImportedNames:
    """What each name of a file stands for, as far as its imports say: `nl` is nki.language."""

    def __init__(self, tree: ast.Module) -> None:
        self.meaning: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.meaning[bound] = _modern(alias.name if alias.asname else bound)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.meaning[alias.asname or alias.name] = _modern(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.meaning[alias.asname or alias.name] = f".{node.module or ''}.{alias.name}"

    def dotted(self, node: ast.expr) -> str | None:
        """The full name of `nl.load`, with the first generation's modules named as the second's; None: not a name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return _modern(".".join([self.meaning.get(node.id, node.id), *reversed(parts)]))

    def is_jit(self, decorator: ast.expr) -> bool:
        """Is this a decorator that makes a kernel: nki.jit, nki.jit(mode=...), nki.benchmark(...)?"""
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = self.dotted(target)
        if name is None:
            return False
        package, _, last = name.rpartition(".")
        return last in JIT_NAMES and (
            package.split(".")[0] in ("nki", "torch_neuronx", "jax_neuronx", "") or last == "nki_jit"
        )


def _modern(name: str) -> str:
    return name.removeprefix("neuronxcc.") if name.startswith("neuronxcc.nki") else name


def _kernel(
    name: str, kind: KernelKind, node: ast.FunctionDef | ast.AsyncFunctionDef, launches: tuple[str, ...] = ()
) -> KernelSource:
    # What a host function hands to the kernels it launches is taken for a tensor.
    passed_on = {
        argument.id
        for call in ast.walk(node)
        if launches and isinstance(call, ast.Call) and _launch_target(call) in launches
        for argument in call.args
        if isinstance(argument, ast.Name)
    }
    return KernelSource(name, kind, node.lineno, _parameters(node, passed_on), launches)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, passed_on: set[str]) -> tuple[Parameter, ...]:
    positional = node.args.posonlyargs + node.args.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(node.args.defaults)) + list(node.args.defaults)
    pairs = list(zip(positional, defaults, strict=True)) + list(
        zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    )
    ranks = _ranks(node)
    used_as_tensor = _used_as_tensor(node) | passed_on
    result = []
    for argument, default in pairs:
        annotation = ast.unparse(argument.annotation) if argument.annotation else None
        lowered = (annotation or "").lower()
        words = set(re.findall(r"[A-Za-z_]\w*", annotation or "")) - _ANNOTATION_FILLERS
        if "tensor" in lowered or "ndarray" in lowered:
            role = Role.TENSOR
        elif (words and words <= _LITERAL_TYPES) or (isinstance(default, ast.Constant) and default.value is not None):
            role = Role.ARGUMENT
        elif words:
            role = Role.OBJECT
        else:
            role = Role.TENSOR if argument.arg in used_as_tensor else Role.UNKNOWN
        result.append(
            Parameter(
                argument.arg,
                annotation,
                ast.unparse(default) if default is not None else None,
                role,
                ranks.get(argument.arg) if role is not Role.ARGUMENT else None,
            )
        )
    return tuple(result)


def _reached(roots: set[str], calls: dict[str, set[str]]) -> set[str]:
    """Functions that another function, called by a root, calls in the end."""
    reached: set[str] = set()
    pending = [called for root in roots for called in calls.get(root, set()) - {root}]
    while pending:
        name = pending.pop()
        if name in calls and name not in reached:
            reached.add(name)
            pending.extend(calls[name])
    return reached


def _ranks(function: ast.AST) -> dict[str, int]:
    """Dimensions of names whose shape the body unpacks (`d, s = q.shape`), else indexes (`q[i, j]`, `q.shape[2]`)."""
    unpacked: dict[str, int] = {}
    indexed: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and _shape_of(node.value):
            if not any(isinstance(element, ast.Starred) for element in node.targets[0].elts):
                unpacked.setdefault(_shape_of(node.value) or "", len(node.targets[0].elts))
        elif isinstance(node, ast.Subscript):
            shape_of = _shape_of(node.value)
            if shape_of and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                indexed[shape_of] = max(indexed.get(shape_of, 0), node.slice.value + 1)
            elif isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Tuple):
                indexed[node.value.id] = max(indexed.get(node.value.id, 0), len(node.slice.elts))
    return indexed | unpacked


def _shape_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and node.attr == "shape" and isinstance(node.value, ast.Name):
        return node.value.id
    return None


def _used_as_tensor(function: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in ("shape", "dtype", "ap", "reshape", "rearrange", "ndim", "buffer"):
                names.add(node.value.id)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            if isinstance(node.slice, ast.Tuple | ast.Slice):
                names.add(node.value.id)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("load", "store", "dma_copy", "load_transpose2d", "dma_transpose")
        ):
            given = [
                *node.args[:2],
                *(keyword.value for keyword in node.keywords if keyword.arg in ("dst", "src", "value")),
            ]
            names.update(value.id for value in given if isinstance(value, ast.Name))
    return names


def _wrapped_by_jit(node: ast.stmt, names: ImportedNames) -> tuple[str, str] | None:
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
        return None
    call = node.value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):  # nki.jit(mode=...)(function)
        inner = call.func.func
    elif isinstance(call, ast.Call):
        inner = call.func
    else:
        return None
    if call.args and isinstance(call.args[0], ast.Name) and names.is_jit(inner):
        return node.targets[0].id, call.args[0].id
    return None


def _called_names(function: ast.AST) -> set[str]:
    return {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def _moves_data(function: ast.AST, names: ImportedNames) -> bool:
    return any(
        isinstance(node, ast.Call) and (name := names.dotted(node.func)) is not None and name in MOVES_DATA
        for node in ast.walk(function)
    )


def _launched(function: ast.AST, jit: set[str], names: ImportedNames) -> set[str]:
    """Kernels that a host function launches: `kernel[grid](...)` or `kernel(...)` of a jit function."""
    launched: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        target = _launch_target(node)
        if target is None:
            continue
        meaning = names.meaning.get(target, "nki.")
        if target in jit or (isinstance(node.func, ast.Subscript) and not meaning.startswith("nki.")):
            launched.add(target)
    return launched


def _launch_target(call: ast.Call) -> str | None:
    """`kernel` in `kernel[grid](...)` and `kernel(...)`."""
    target = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return target.id if isinstance(target, ast.Name) else None


def _example(parameter: Parameter) -> str:
    if parameter.role is Role.ARGUMENT:
        value = {"int": "1", "float": "1.0", "bool": "True", "str": "'TEXT'"}.get(parameter.annotation or "", "VALUE")
        return f"--arg {parameter.name}={value}"
    if parameter.role is Role.UNKNOWN and parameter.rank is None:
        return f"--arg {parameter.name}=VALUE"
    dimensions = {1: "512", 2: "128x512", 3: "2x128x512", 4: "1x2x128x512"}.get(parameter.rank or 2)
    return f"--input {parameter.name}={dimensions or 'x'.join(['1'] * (parameter.rank or 2))}:bfloat16"


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
