"""How many kernels of a public repository's checkout run to their end under the NKI front end, and why the others do not.

    python tests/nki/coverage.py CHECKOUT [--cases N] [--timeout S] [--only TEXT] [--jobs N] [--verbose]

CHECKOUT is a clone of aws-neuron/nki-library (its own integration tests generate the inputs) or of aws-neuron/nki-samples
(the tutorials' drivers state the shapes). Nothing of either is kept. Every kernel is run in a child process with limits.
A test that cannot make inputs without torch is "no inputs"; it is listed and not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MEMORY_BYTES = 12 << 30
FILE_TIMEOUT_S = 1500


class NoInputsError(Exception):
    """The repository's own code could not make the inputs here."""


# The parent: one child a test file (or a tutorial kernel), two at a time.


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--cases", type=int, default=3, help="parameter sets per test function, small ones first")
    parser.add_argument("--timeout", type=int, default=60, help="seconds a case may take")
    parser.add_argument("--only", default="", help="only test files or kernels whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--path", default="", help="folder of installed packages to import from too (one with torch)")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if options.child:
        if options.path:
            sys.path.append(options.path)
        return run_child(checkout, options.child, options.cases, options.timeout, options.verbose)
    work = samples(checkout) if is_samples(checkout) else library_tests(checkout)
    work = [item for item in work if options.only in item]
    if not work:
        print(f"nothing to run in {checkout}: is it a checkout of nki-library or nki-samples?", file=sys.stderr)
        return 66
    started = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(functools.partial(run_file, options, checkout), work))
    return report([case for cases in results for case in cases], time.monotonic() - started)


def run_file(options: argparse.Namespace, checkout: Path, item: str) -> list[dict[str, Any]]:
    """Run one child; its results as rows, or one row that says how it died."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as results:
        command = [sys.executable, __file__, str(checkout), "--child", item]
        command += ["--cases", str(options.cases), "--timeout", str(options.timeout)]
        command += ["--path", options.path] if options.path else []
        command += ["--verbose"] if options.verbose else []
        environment = {**os.environ, "COVERAGE_RESULTS": results.name, "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=FILE_TIMEOUT_S)
            trouble = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            if options.verbose:
                sys.stderr.write(done.stderr)
        except subprocess.TimeoutExpired:
            trouble = [f"file took more than {FILE_TIMEOUT_S} s"]
        rows = [json.loads(line) for line in results.read().splitlines()]
    if trouble or not rows:
        rows.append({"kernel": item, "case": "", "status": "no inputs", "reason": (trouble or ["no test found"])[0]})
    print(f"{item}: {dict(Counter(row['status'] for row in rows))}", file=sys.stderr)
    return rows


def report(rows: list[dict[str, Any]], seconds: float) -> int:
    """The counts and every failure with its reason."""
    kernels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kernels[row["kernel"]].append(row)
    ran = {name for name, cases in kernels.items() if any(case["status"] == "ran" for case in cases)}
    with_inputs = {name for name, cases in kernels.items() if any(case["status"] != "no inputs" for case in cases)}
    cases = [row for row in rows if row["status"] != "no inputs"]
    passed = [row for row in cases if row["status"] == "ran"]
    for status in ("failed", "no inputs"):
        grouped = Counter((row["kernel"], row["reason"]) for row in rows if row["status"] == status)
        for (kernel, reason), count in sorted(grouped.items()):
            print(f"{status:9} {kernel} ({count}): {reason}")
    unknown = Counter(name for row in passed for name in row.get("unmodelled", []))
    print(f"unmodelled calls: {dict(unknown) or 'none'}")
    print(f"cases   : {len(passed)} of {len(cases)} that had inputs ran ({len(rows) - len(cases)} had none)")
    share = 100 * len(ran) / max(len(with_inputs), 1)
    print(f"kernels : {len(ran)} of {len(with_inputs)} that had inputs ran ({share:.1f} %), {seconds:.0f} s")
    return 0 if share >= 95 else 1


# The child.


def run_child(checkout: Path, item: str, cases: int, timeout: int, verbose: bool) -> int:
    """Run one test file's (or tutorial's) kernels, one JSON line a case into COVERAGE_RESULTS."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = Path(os.environ["COVERAGE_RESULTS"])
    signal.signal(signal.SIGALRM, _out_of_time)
    runner = run_sample if is_samples(checkout) else run_library_file
    with out.open("w") as results:
        for row in runner(checkout, item, cases, timeout, verbose):
            results.write(json.dumps(row) + "\n")
            results.flush()
    return 0


def _out_of_time(*_: object) -> None:
    raise TimeoutError("out of time")


def attempt(run: Callable[[], Any], timeout: int, verbose: bool) -> dict[str, Any]:
    """Status, reason and unmodelled calls of one case."""
    from trnprof.nki.trace import KernelError

    signal.alarm(timeout)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            recording = run()
        unmodelled = sorted({f"{event.module}.{event.op}" for p in recording.programs for event in p.unmodelled})
        return {"status": "ran", "reason": "", "unmodelled": unmodelled, "events": len(recording.programs[0].events)}
    except KernelError as error:
        if verbose:
            traceback.print_exc()
        cause = error.__cause__
        if isinstance(cause, NoInputsError):
            return {"status": "no inputs", "reason": str(cause)}
        return {"status": "failed", "reason": f"{error.path}: {error.message}"[:400]}
    except NoInputsError as error:
        if verbose:
            traceback.print_exc()
        return {"status": "no inputs", "reason": str(error)[:300]}
    except (Exception, SystemExit) as error:
        if verbose:
            traceback.print_exc()
        return {"status": "no inputs", "reason": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.alarm(0)


# aws-neuron/nki-samples: shapes from the tutorials' drivers.


def is_samples(checkout: Path) -> bool:
    return (checkout / "src" / "nki_samples").is_dir()


def _sample_table() -> dict[str, tuple[str, list[Any], str]]:
    """kernel -> (file, arguments, target). A tuple of sizes with a dtype last is a tensor."""
    matmul = "matrix_multiplication/matrix_multiplication_nki_kernels.py"
    square = [(4096, 4096, "bfloat16"), (4096, 4096, "bfloat16")]
    table: dict[str, tuple[str, list[Any], str]] = {
        "nki_matmul_basic_": (matmul, [(128, 64, "bfloat16"), (128, 512, "bfloat16")], "trn2")
    }
    for name in ("tiled", "hoist_load", "block_free_dimension", "fully_optimized"):
        table[f"nki_matmul_{name}_"] = (matmul, square, "trn2")
    table["tensor_avgpool_kernel"] = (
        "average_pool2d/average_pool2d_nki_kernels.py",
        [(2, 6, 6, "bfloat16"), 2],
        "trn2",
    )
    table["tensor_transpose2D_kernel_"] = (
        "transpose2d/transpose2d_nki_kernels.py",
        [(5, 12, "int8"), [3, 4]],
        "trn2",
    )
    add = [(256, 1024, "bfloat16"), (256, 1024, "bfloat16")]
    wide = [(512, 2048, "bfloat16"), (512, 2048, "bfloat16")]
    table["nki_tensor_add"] = ("tensor_addition/tensor_addition_nki_kernels.py", add, "trn2")
    table["spmd:nki_tensor_add"] = ("tensor_addition/spmd_tensor_addition_nki_kernels.py", add, "trn2")
    table["nki_tensor_add_nc2"] = ("tensor_addition/spmd_multiple_nc_tensor_addition_nki_kernels.py", wide, "trn2")
    mamba = [(1, 256, 512, "float32"), (1, 256, 512, "float32"), (256, 16, "float32")]
    mamba += [(1, 16, 512, "float32"), (1, 16, 512, "float32")]
    for name in ("mamba_v1", "mamba_v2", "mamba_v3"):
        table[name] = ("fused_mamba/mamba_nki_kernels.py", mamba, "trn2")
    for version in ["1", "2", "3", "4", "5", "6", "7", "8", "8a", "9", "10", "11"]:
        length = 128 if version in ("1", "2") else 4096
        attention = "attention_fwd_performance/attention_kernels.py"
        table[f"attn_fwd_v{version}"] = (attention, [(128, length, "bfloat16")] * 3, "trn2")
    mx, x4 = "mxfp-matmul/mx_kernels.py", "float8_e5m2_x4"
    table["kernel_offline_quantized_mx_matmul"] = (
        mx,
        [(128, 128, x4), (16, 128, "uint8"), (128, 512, x4), (16, 512, "uint8"), x4],
        "trn3",
    )
    table["kernel_on_device_quantize_matmul_mx"] = (
        mx,
        [(128, 128, x4), (16, 128, "uint8"), (128, 2048, "bfloat16"), x4, x4],
        "trn3",
    )
    table["kernel_copy_strided_quantize_matmul_mx"] = (mx, [(512, 128, "bfloat16"), (512, 512, "bfloat16"), x4], "trn3")
    return table


def samples(checkout: Path) -> list[str]:
    """The tutorials' kernels, and any jit function of the tutorials that the table does not have."""
    import ast

    folder = checkout / "src" / "nki_samples" / "tutorials"
    table = _sample_table()
    known = {(file, name.rpartition(":")[2]) for name, (file, _, _) in table.items()}
    missing = []
    for path in sorted(folder.glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any("nki" in ast.unparse(d) for d in node.decorator_list):
                name = path.relative_to(folder).as_posix()
                host = any(file == name and f"{node.name}[" in path.read_text() for file, _ in known)
                if (name, node.name) not in known and not host:
                    launched = f"{node.name}(" in path.read_text().replace(f"def {node.name}(", "")
                    if not launched:
                        missing.append(f"?{name}:{node.name}")
    return [*table, *missing]


def run_sample(checkout: Path, item: str, cases: int, timeout: int, verbose: bool) -> Iterator[dict[str, Any]]:
    """One tutorial kernel."""
    from trnprof.nki.dtypes import DTYPES
    from trnprof.nki.loader import KernelLoader, find_callable
    from trnprof.nki.modules import install_nki_modules
    from trnprof.nki.recording import TensorSpec
    from trnprof.nki.trace import trace

    if item.startswith("?"):
        yield {"kernel": item, "case": "", "status": "no inputs", "reason": "no shapes known for it"}
        return
    file, arguments, target = _sample_table()[item]

    def argument(value: Any) -> Any:
        if isinstance(value, tuple):
            return TensorSpec(tuple(value[:-1]), value[-1])
        return DTYPES[value] if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    def run() -> Any:
        with install_nki_modules(target):
            loader = KernelLoader(checkout / "src" / "nki_samples" / "tutorials" / file)
            loader.install()
            kernel = find_callable(loader.load(), item.rpartition(":")[2])
            return trace(kernel, [argument(value) for value in arguments], target=target)

    yield {"kernel": item, "case": file, **attempt(run, timeout, verbose)}


# aws-neuron/nki-library: its integration tests call a framework with (kernel, inputs); ours records instead of compiling.


def library_tests(checkout: Path) -> list[str]:
    """Test files, as module names."""
    folder = checkout / "test" / "integration"
    return [
        path.relative_to(checkout).with_suffix("").as_posix().replace("/", ".")
        for path in sorted(folder.rglob("test_*.py"))
    ]


def run_library_file(checkout: Path, item: str, cases: int, timeout: int, verbose: bool) -> Iterator[dict[str, Any]]:
    """Every test function of one module, up to `cases` parameter sets each."""
    from trnprof.nki.modules import install_nki_modules

    sys.path[:0] = [str(checkout), str(checkout / "src")]
    for name in [name for name in sys.modules if name == "test" or name.startswith("test.")]:
        del sys.modules[name]  # the standard library's own tests
    with install_nki_modules("trn2"):
        install_stand_ins()
        try:
            module = importlib.import_module(item)
        except Exception as error:
            if verbose:
                traceback.print_exc()
            yield {
                "kernel": item,
                "case": "",
                "status": "no inputs",
                "reason": f"import: {type(error).__name__}: {error}",
            }
            return
        for function, owner in test_functions(module):
            for label, parameters in parameter_sets(function, owner, cases):
                captured: list[tuple[str, Any]] = []
                run = functools.partial(run_case, function, owner, parameters, captured)
                outcome = attempt(run, timeout, verbose)
                kernel = captured[0][0] if captured else f"{item.rpartition('.')[2]}::{function.__name__}"
                yield {"kernel": kernel, "case": f"{function.__name__}[{label}]", **outcome}


def test_functions(module: types.ModuleType) -> Iterator[tuple[Any, Any]]:
    """(function, class or None) of every test that the module itself defines."""
    for name, value in list(vars(module).items()):  # running a test may add to them
        if name.startswith("test_") and inspect.isfunction(value) and value.__module__ == module.__name__:
            yield value, None
        elif inspect.isclass(value) and name.startswith("Test") and value.__module__ == module.__name__:
            for method_name, method in inspect.getmembers(value, inspect.isfunction):
                if method_name.startswith("test_"):
                    yield method, value


def parameter_sets(function: Any, owner: Any, cases: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Up to `cases` parameter sets of a test function, small ones first: (label, arguments)."""
    marks = [*getattr(function, "pytestmark", []), *getattr(owner, "pytestmark", [])]
    if any(mark.name == "skip" for mark in marks):
        return
    axes: list[list[dict[str, Any]]] = []
    for mark in marks:
        if mark.name == "parametrize":
            axes.append(_parametrized(*mark.args[:2]))
        elif mark.name == "coverage_parametrize":
            axes.append(_covered(mark.kwargs))
    config = getattr(function, "range_test_config", None)
    if config is not None:
        axes.append(_ranged(config))
    combined = [
        {key: value for part in parts for key, value in part.items()}
        for parts in itertools.islice(itertools.product(*axes), 20000)
    ]
    combined.sort(key=_bulk)
    spread = [combined[(len(combined) - 1) * at // max(3 * cases, 1)] for at in range(cases)] if combined else []
    seen = []
    for parameters in spread:
        if parameters not in seen:
            seen.append(parameters)
            yield _label(parameters), parameters


def _label(parameters: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in parameters.items())[:200]


def _bulk(parameters: dict[str, Any]) -> float:
    """Roughly how much a parameter set makes: the product of its integers."""
    total = 1.0

    def walk(value: Any, depth: int = 0) -> None:
        nonlocal total
        if isinstance(value, bool) or depth > 3:
            return
        if isinstance(value, int):
            total *= max(abs(value), 1)
        elif isinstance(value, dict):
            for item in value.values():
                walk(item, depth + 1)
        elif isinstance(value, list | tuple):
            for item in value[:12]:
                walk(item, depth + 1)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            for item in vars(value).values():
                walk(item, depth + 1)

    walk(parameters)
    return total


def _parametrized(names: Any, values: Any) -> list[dict[str, Any]]:
    """pytest.mark.parametrize's arguments as dictionaries; entries marked skip or xfail are left out."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    result = []
    for value in values:
        if hasattr(value, "values") and hasattr(value, "marks"):
            if any(mark.name in ("skip", "xfail") for mark in value.marks):
                continue
            value = value.values if len(keys) > 1 else value.values[0]
        result.append(dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)))
    return result


def _covered(options: dict[str, Any]) -> list[dict[str, Any]]:
    """The repository's coverage_parametrize: combinations that its filter calls valid."""
    reserved = {"filter", "coverage", "enable_automatic_boundary_tests", "enable_invalid_combination_tests"}
    reserved |= {"n_tests_per_boundary_value", "max_invalid_tests", "filter_func"}
    values = {key: getattr(value, "values", value) for key, value in options.items() if key not in reserved}
    check = options.get("filter") or options.get("filter_func")
    chooser = random.Random(0)
    found: list[dict[str, Any]] = []
    for _ in range(4000):
        choice = {key: chooser.choice(list(items)) for key, items in values.items()}
        if check is not None:
            named = inspect.signature(check).parameters.values()
            everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in named)
            verdict = check(
                **(choice if everything else {parameter.name: choice.get(parameter.name) for parameter in named})
            )
            if getattr(verdict, "value", verdict) not in ("valid", True):
                continue
        if choice not in found:
            found.append(choice)
        if len(found) >= 60:
            break
    return [{**choice, "is_negative_test_case": False} for choice in found]


def _ranged(config: Any) -> list[dict[str, Any]]:
    """The repository's range tests: its own harness makes the cases; those meant to fail are left out."""
    harness = importlib.import_module("test.utils.ranged_test_harness")
    random.seed(0)
    _, found = harness.RangeTestHarness(config).get_unique_test_cases()
    return [{"range_test_options": case} for case in found if not case.is_negative_test_case]


class Manager:
    """Stands where the repository's orchestrator compiles and runs: it keeps the kernel and its inputs."""

    def __init__(self) -> None:
        self.executed: list[Any] = []
        self.expects_rejection = False
        """The test means the kernel to refuse these inputs."""

    def execute(self, kernel_args: Any) -> None:
        """The only thing that tests ask of it."""
        self.executed.append(kernel_args)
        harness = importlib.import_module("test.utils.ranged_test_harness")
        self.expects_rejection = harness.is_in_negative_test_context()
        raise _Executed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Quiet()


class _Executed(BaseException):
    """The test has named its kernel; what follows would compare results."""


class Quiet:
    """Anything a test asks for that has no part in its inputs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Quiet()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Quiet()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def kernel_arguments(
    function: Any, owner: Any, parameters: dict[str, Any], platform: str = "TRN2"
) -> tuple[Any, Manager]:
    """Let the test make its inputs: the KernelArgs that it hands to the orchestrator. Raises NoInputsError."""
    common = importlib.import_module("test.utils.common_dataclasses")
    manager = Manager()
    given = dict(parameters)
    for name in inspect.signature(function).parameters:
        if name in given or name == "self":
            continue
        if name == "test_manager":
            given[name] = manager
        elif name == "platform_target":
            given[name] = common.Platforms[platform]
        elif inspect.signature(function).parameters[name].default is inspect.Parameter.empty:
            given[name] = Quiet()
    target = owner() if owner is not None else None
    if target is not None and hasattr(target, "setup_method"):
        target.setup_method()
    try:
        function(*([target] if target is not None else []), **given)
    except _Executed:
        pass
    except BaseException as error:
        raise NoInputsError(f"{type(error).__name__}: {error}") from error
    if not manager.executed:
        raise NoInputsError("the test runs no kernel")
    return manager.executed[0], manager


def expects_rejection(function: Any, manager: Manager) -> bool:
    """Does the test mean the kernel to refuse its inputs?"""
    return manager.expects_rejection or "pytest.raises" in inspect.getsource(function)


def run_case(function: Any, owner: Any, parameters: dict[str, Any], captured: list[tuple[str, Any]]) -> Any:
    """Let the test make its inputs, then trace the kernel it names."""
    from trnprof.nki.trace import KernelError, trace

    arguments, manager = kernel_arguments(function, owner, parameters)
    kernel = arguments.kernel_func
    captured.append((kernel_name(kernel), kernel))
    inputs = arguments.kernel_input
    if hasattr(inputs, "for_rank"):
        inputs = inputs.for_rank(0)
    platform = str(arguments.compiler_input.platform_target.get_compile_target())
    names = {key.removesuffix(".must_alias_input"): plain(value) for key, value in (inputs or {}).items()}
    try:
        return trace(kernel, [], names, lnc=arguments.compiler_input.logical_nc_config, target=platform)
    except KernelError as error:
        if expects_rejection(function, manager) and error.reason == "assertion":
            raise NoInputsError("the kernel refuses these inputs, as its test expects") from error
        raise


def kernel_name(kernel: Any) -> str:
    """module.function of what nki.jit wrapped."""
    function = getattr(kernel, "function", kernel)
    while isinstance(function, functools.partial):
        function = function.func
    return f"{getattr(function, '__module__', '?').rpartition('.')[2]}.{getattr(function, '__name__', '?')}"


def plain(value: Any) -> Any:
    """Arrays of the packed four-element types as tensors of that type."""
    import numpy as np

    from trnprof.nki.recording import TensorSpec

    if isinstance(value, np.ndarray) and value.dtype.names:
        return TensorSpec(value.shape, value.dtype.names[0])
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)([plain(item) for item in value])
    return value


# Stand-ins for what the repository's tests import and a recording does not need.


def install_stand_ins() -> None:
    """torch, scipy, boto3 and the like, where they are not installed, as permissive modules; neuron_dtypes as casts of numpy arrays."""
    import ml_dtypes
    import numpy as np

    from trnprof.nki.standins import STAND_IN_MODULES, StandInLoader

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            root = name.partition(".")[0]
            if root in stand_ins:
                return loader.spec(name)
            return None

    loader = StandInLoader()
    wanted = STAND_IN_MODULES | {"allpairspy", "pytest_html", "debugpy"}
    stand_ins = {name for name in wanted if importlib.util.find_spec(name) is None}
    sys.meta_path.insert(0, Finder())
    dtypes = types.ModuleType("neuron_dtypes")

    def packed(name: str, kind: Any) -> Any:
        return np.dtype([(name, kind)])

    table: dict[str, Any] = {
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3": ml_dtypes.float8_e4m3,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
        "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
        "tfloat32": np.float32,
        "float8_e4m3fn_x4": packed("float8_e4m3fn_x4", np.uint32),
        "float8_e5m2_x4": packed("float8_e5m2_x4", np.uint32),
        "float4_e2m1fn_x4": packed("float4_e2m1fn_x4", np.uint16),
    }

    def numpy_type(dtype: Any) -> Any:
        name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
        return table[name] if name in table else np.dtype(dtype if not isinstance(dtype, str) else str(dtype))

    def static_cast(array: Any, dtype: Any) -> Any:
        source, wanted = np.asarray(array), np.dtype(numpy_type(dtype))
        if bool(source.dtype.names) == bool(wanted.names):
            return source.astype(wanted)
        # Four elements of the last dimension are one packed element. No value of a packed tensor is ever used here.
        last = source.shape[-1] // 4 if wanted.names else source.shape[-1] * 4
        return np.zeros((*source.shape[:-1], last), wanted)

    def sizeinbytes(dtype: Any) -> int:
        return int(np.dtype(numpy_type(dtype)).itemsize)

    vars(dtypes).update(table)
    vars(dtypes).update(
        static_cast=static_cast,
        sizeinbytes=sizeinbytes,
        finfo=lambda dtype: ml_dtypes.finfo(numpy_type(dtype)),
        is_float_type=lambda dtype: "float" in str(numpy_type(dtype)),
        float32=np.float32,
        float16=np.float16,
    )
    sys.modules["neuron_dtypes"] = dtypes
    for name in ("zeros", "empty", "ones"):  # np.zeros(shape, dtype=nl.float8_e4m3fn_x4)
        plain_function = getattr(np, name)

        def made(
            shape: Any, dtype: Any = float, *args: Any, plain_function: Any = plain_function, **kwargs: Any
        ) -> Any:
            return plain_function(shape, numpy_type(dtype) if "_x4" in str(dtype) else dtype, *args, **kwargs)

        setattr(np, name, made)
    # The orchestrator itself compiles, copies to hosts and profiles: nothing of it is run.
    for name, attribute in (
        ("test.utils.test_orchestrator", "Orchestrator"),
        ("test.utils.host_management", "HostManager"),
    ):
        module = types.ModuleType(name)
        setattr(module, attribute, Manager)
        sys.modules[name] = module


if __name__ == "__main__":
    sys.exit(main())
