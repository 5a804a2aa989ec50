"""How many kernels of a public repository's checkout compute what that repository's own references say.

    python tests/nki/agreement.py CHECKOUT --path PACKAGES [--cases N] [--timeout S] [--only TEXT] [--jobs N] [--verbose]
        [--rows FILE.jsonl] [--table FILE.md]

CHECKOUT is a clone of aws-neuron/nki-library (each integration test makes the inputs, names the reference function beside
the kernel, and states the tolerance) or of aws-neuron/nki-samples (the tutorials' own drivers). PACKAGES is a folder of
installed packages with torch (and scipy), which those references need. Nothing of either repository is kept; every kernel is
run in a child process with limits. With --rows the outcome of each case is kept as it comes, and test files that are in there
already are not run again, so that a run may be made in pieces; --table writes all of it as Markdown. --cap T=256 makes the
tests' own parameters of that name no larger, where all of a kernel's cases are too large; the table says so.

A kernel agrees if every one of its cases does. Memory that nothing wrote reads as NaN; where a case reads some and then
differs, it is run again with zeros there, as on the repository's own runs, and marked. A case whose inputs its own test
cannot make here is "no inputs", one that takes more time or memory than it may is "unfinished": both are listed with their
reason and not counted; a kernel with nothing but unfinished cases does not agree. The exit code is 0 if nine in ten kernels
with inputs agree.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.nki import coverage  # noqa: E402
from tests.nki.coverage import NoInputsError  # noqa: E402
from tests.nki.sample_references import CONTRIBUTED, DisagreementError, run_sample_case  # noqa: E402
from trnprof.nki.dtypes import DTYPES  # noqa: E402

FILE_TIMEOUT_S = 3600
READS_UNWRITTEN = "reads memory that nothing wrote"
"""Among a case's figures: it agrees if that memory holds zeros."""
GOAL = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--cases", type=int, default=2, help="parameter sets per test function, small ones first")
    parser.add_argument("--timeout", type=int, default=180, help="seconds a case may take, its reference included")
    parser.add_argument("--only", default="", help="only test files or kernels whose name holds this text")
    parser.add_argument("--function", default="", help="only test functions whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--memory", type=int, default=10, help="GiB of a child, its reference and framework included")
    parser.add_argument("--path", action="append", default=[], help="folder of installed packages (torch, scipy)")
    parser.add_argument(
        "--cap", action="append", default=[], metavar="NAME=N", help="largest value of a test's parameter"
    )
    parser.add_argument("--rows", type=Path, help="outcomes so far as JSON lines: added to, and not run again")
    parser.add_argument("--table", type=Path, help="write the outcome of each kernel as a Markdown table")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if options.child:
        sys.path.extend(options.path)
        return run_child(checkout, options)
    work = samples(checkout) if coverage.is_samples(checkout) else coverage.library_tests(checkout)
    work = [item for item in work if options.only in item]
    if not work:
        print(f"nothing to run in {checkout}: is it a checkout of nki-library or nki-samples?", file=sys.stderr)
        return 66
    started = time.monotonic()
    rows = [json.loads(line) for line in _lines(options.rows)]
    done = {row["item"] for row in rows}
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(functools.partial(run_file, options, checkout), [one for one in work if one not in done]):
            rows += found
            if options.rows:
                with options.rows.open("a") as kept:
                    kept.writelines(json.dumps(row) + "\n" for row in found)
    if options.table:
        options.table.write_text(table(rows))
    return report(rows, time.monotonic() - started)


def _lines(path: Path | None) -> list[str]:
    return path.read_text().splitlines() if path and path.exists() else []


def run_file(options: argparse.Namespace, checkout: Path, item: str) -> list[dict[str, Any]]:
    """Run one child; its results as rows, and one more that says how it died if it did."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as results:
        command = [sys.executable, __file__, str(checkout), "--child", item, "--cases", str(options.cases)]
        command += ["--timeout", str(options.timeout), "--function", options.function]
        command += ["--memory", str(options.memory)]
        command += [part for folder in options.path for part in ("--path", folder)]
        command += [part for cap in options.cap for part in ("--cap", cap)]
        command += ["--verbose"] if options.verbose else []
        environment = {**os.environ, "AGREEMENT_RESULTS": results.name, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
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
    return [{"item": item, **row} for row in rows]


def counted(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The cases of each kernel that decide whether it agrees."""
    kernels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] not in ("no inputs", "unfinished"):
            kernels[row["kernel"]].append(row)
    for row in rows:  # a kernel that finished no case at all does not agree
        if row["status"] == "unfinished" and not kernels.get(row["kernel"]):
            kernels[row["kernel"]].append(row)
    return kernels


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: kernel, cases that ran, cases that agree, cases left for size, worst reason otherwise."""
    lines = ["| kernel | cases run | agree | left for size | otherwise |", "|---|--:|--:|--:|---|"]
    kernels = counted(rows)
    for name in sorted(kernels):
        ran = [case for case in kernels[name] if case["status"] != "unfinished"]
        left = [row for row in rows if row["kernel"] == name and row["status"] == "unfinished"]
        reasons = [case["reason"] for case in ran if case["status"] != "agrees"] or [row["reason"] for row in left][:1]
        if any(READS_UNWRITTEN in case.get("figures", ()) for case in ran):
            reasons.append(f"{READS_UNWRITTEN}: agrees with zeros there")
        cuts = sorted({cut for case in ran for cut in case.get("cut", ())})
        if cuts:
            reasons.append(f"cut for size: {', '.join(cuts)}")
        agree = sum(case["status"] == "agrees" for case in ran)
        reason = "; ".join(dict.fromkeys(reasons)).replace("|", "\\|")
        lines.append(f"| {name} | {len(ran)} | {agree} | {len(left) or ''} | {reason[:300]} |")
    return "\n".join(lines) + "\n"


def report(rows: list[dict[str, Any]], seconds: float) -> int:
    """The counts, and everything that does not agree with its reason."""
    kernels = counted(rows)
    agreeing = [name for name, cases in kernels.items() if all(case["status"] == "agrees" for case in cases)]
    cases = [row for row in rows if row["status"] not in ("no inputs", "unfinished")]
    passed = [row for row in cases if row["status"] == "agrees"]
    for row in sorted(rows, key=lambda row: (row["status"], row["kernel"], row["case"])):
        if row["status"] in ("differs", "failed", "unfinished"):
            print(f"{row['status']:9} {row['kernel']} {row['case'][:160]}: {row['reason']}")
    grouped = Counter((row["kernel"], row["reason"]) for row in rows if row["status"] == "no inputs")
    for (kernel, reason), count in sorted(grouped.items()):
        print(f"no inputs {kernel} ({count}): {reason}")
    for name in sorted(agreeing):
        marked = sum(READS_UNWRITTEN in case.get("figures", ()) for case in kernels[name])
        print(f"agrees    {name} ({len(kernels[name])}{f', {marked} with unwritten memory as 0' if marked else ''})")
    print(
        f"cases   : {len(passed)} of {len(cases)} that had inputs agree ({len(rows) - len(cases)} had none or did not finish)"
    )
    share = len(agreeing) / max(len(kernels), 1)
    print(f"kernels : {len(agreeing)} of {len(kernels)} that had inputs agree ({100 * share:.1f} %), {seconds:.0f} s")
    return 0 if share >= GOAL else 1


# The child.


def run_child(checkout: Path, options: argparse.Namespace) -> int:
    """Run one test file's (or tutorial's) kernels, one JSON line a case into AGREEMENT_RESULTS."""
    out = Path(os.environ["AGREEMENT_RESULTS"])
    resource.setrlimit(resource.RLIMIT_AS, (options.memory << 30, options.memory << 30))
    signal.signal(signal.SIGALRM, _out_of_time)
    runner = run_sample if coverage.is_samples(checkout) else run_library_file
    with out.open("w") as results:
        for row in runner(checkout, options):
            results.write(json.dumps(row) + "\n")
            results.flush()
    return 0


def _out_of_time(*_: object) -> None:
    raise TimeoutError("out of time")


def attempt(run: Callable[[], Any], options: argparse.Namespace) -> dict[str, Any]:
    """Status and reason of one case."""
    from trnprof.nki.trace import KernelError

    signal.alarm(options.timeout)
    started = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            figures = run()
        return {"status": "agrees", "reason": "", "figures": figures, "seconds": round(time.monotonic() - started, 2)}
    except KernelError as error:
        if options.verbose:
            traceback.print_exc()
        cause = error.__cause__
        if cause is not None and is_too_large(cause):
            return {"status": "unfinished", "reason": f"{type(cause).__name__}: {cause}"[:200]}
        if isinstance(cause, NoInputsError):
            return {"status": "no inputs", "reason": str(cause)}
        return {"status": "failed", "reason": f"{error.path}: {error.message}"[:400]}
    except DisagreementError as error:
        return {"status": "differs", "reason": str(error)[:400]}
    except (Exception, SystemExit) as error:
        if options.verbose:
            traceback.print_exc()
        reason = str(error) if isinstance(error, NoInputsError) else f"{type(error).__name__}: {error}"
        return {"status": "unfinished" if is_too_large(error) else "no inputs", "reason": reason[:300]}
    finally:
        signal.alarm(0)


def is_too_large(error: BaseException) -> bool:
    """Out of time or memory, also while the test made its inputs? torch has no MemoryError of its own."""
    inner = error.__cause__ if isinstance(error, NoInputsError) and error.__cause__ else error
    return isinstance(inner, TimeoutError | MemoryError) or "can't allocate memory" in str(inner)


# aws-neuron/nki-library


def run_library_file(checkout: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every test function of one module, up to `cases` parameter sets each."""
    from trnprof.nki.modules import install_nki_modules

    item = options.child
    sys.path[:0] = [str(checkout), str(checkout / "src")]
    for name in [name for name in sys.modules if name == "test" or name.startswith("test.")]:
        del sys.modules[name]  # the standard library's own tests
    with install_nki_modules("trn2"):
        install_element_types()
        coverage.install_stand_ins()
        install_casts()
        try:
            module = importlib.import_module(item)
        except Exception as error:
            if options.verbose:
                traceback.print_exc()
            reason = f"import: {type(error).__name__}: {error}"
            yield {"kernel": item, "case": "", "status": "no inputs", "reason": reason}
            return
        caps = {name: int(most) for name, _, most in (cap.partition("=") for cap in options.cap)}
        for function, owner in coverage.test_functions(module):
            if options.function not in function.__name__:
                continue
            for label, parameters in coverage.parameter_sets(function, owner, options.cases):
                captured: list[str] = []
                outcome: dict[str, Any] = {}
                parameters, cut = capped(parameters, caps)
                for platform in ("TRN2", "TRN3"):
                    run = functools.partial(run_case, function, owner, parameters, captured, platform)
                    outcome = attempt(run, options)
                    if outcome["status"] != "no inputs" or "TRN3" not in outcome["reason"].upper():
                        break
                kernel = captured[0] if captured else f"{item.rpartition('.')[2]}::{function.__name__}"
                if not captured:  # whatever the reason, the test named no kernel
                    outcome["status"] = "no inputs"
                yield {"kernel": kernel, "case": f"{function.__name__}[{label}]", "cut": sorted(cut), **outcome}


def capped(value: Any, caps: dict[str, int]) -> tuple[Any, set[str]]:
    """A copy in which the integers of those names are no larger, also in what it holds; and "T 4096 to 256" of what was cut."""
    cut: set[str] = set()

    def walk(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: smaller(key, item) for key, item in one.items()}
        if dataclasses.is_dataclass(one) and isinstance(getattr(one, "tensors", None), dict):  # a range test's case
            return dataclasses.replace(one, tensors=walk(one.tensors))  # type: ignore[type-var]
        return one

    def smaller(name: Any, item: Any) -> Any:
        if type(item) is int and item > caps.get(str(name), item):
            cut.add(f"{name} {item} to {caps[str(name)]}")
            return caps[str(name)]
        return walk(item)

    return (walk(value), cut) if caps else (value, cut)


def run_case(function: Any, owner: Any, parameters: dict[str, Any], captured: list[str], platform: str) -> Any:
    """Let the test make its inputs, compute the kernel that it names, and compare as the repository does."""
    import numpy as np

    from trnprof.nki.trace import KernelError
    from trnprof.nki.values.run import compute

    random.seed(0)
    np.random.seed(0)
    resolve_packed_types()
    arguments, manager = coverage.kernel_arguments(function, owner, parameters, platform)
    kernel = arguments.kernel_func
    captured.append(coverage.kernel_name(kernel))
    ranks = arguments.inference_args.collective_ranks

    def inputs_of(rank: int) -> dict[str, Any]:
        given = arguments.kernel_input
        given = given.for_rank(rank) if hasattr(given, "for_rank") else given
        return {key.removesuffix(".must_alias_input"): own_copy(value) for key, value in (given or {}).items()}

    def computed(zeroed: bool, precise: bool = True) -> tuple[bool, Any]:
        run = compute(
            kernel,
            [],
            inputs_of(0),
            lnc=arguments.compiler_input.logical_nc_config,
            target=str(arguments.compiler_input.platform_target.get_compile_target()),
            ranks=ranks,
            arguments_of_rank=lambda rank: ([], inputs_of(rank)),
            zeroed=zeroed,
            precise=precise,
        )
        return any(note.code == "unwritten-read" for note in run.notes), run

    def attempt_with(zeroed: bool) -> dict[str, float]:
        reads_unwritten, run = computed(zeroed)
        try:
            return compare_library(arguments, run)
        except DisagreementError as error:
            if reads_unwritten and not zeroed:
                # `trnprof nki run` reports those reads; the repository's own runs get away with them.
                return {**attempt_with(True), READS_UNWRITTEN: 1.0}
            with contextlib.suppress(KernelError):
                try:
                    compare_library(arguments, computed(zeroed, precise=False)[1])
                except DisagreementError:
                    raise error from None
                raise DisagreementError(f"{error}; with float64 everywhere it agrees") from None
            raise

    try:
        inspect.signature(getattr(kernel, "function", kernel)).bind(**inputs_of(0))
    except TypeError as error:
        raise NoInputsError(f"the test's arguments are not the kernel's: {error}") from error
    try:
        return attempt_with(False)
    except KernelError as error:
        if coverage.expects_rejection(function, manager) and error.reason == "assertion":
            raise NoInputsError("the kernel refuses these inputs, as its test expects") from error
        raise


def own_copy(value: Any) -> Any:
    """Arrays that the run may write without changing what the reference gets."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)([own_copy(item) for item in value])
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a torch tensor
        return value.detach().float().numpy() if "bfloat16" in str(value.dtype) else value.detach().numpy().copy()
    return value


def compare_library(arguments: Any, run: Any) -> dict[str, float]:
    """Each golden output against the kernel's, with the test's tolerance and the repository's own comparison."""
    params = arguments.validation_args
    if params is None:
        raise NoInputsError("the test validates nothing")
    golden = params.golden_output
    figures: dict[str, float] = {}
    for rank in range(len(run.outputs)):
        if hasattr(golden, "for_rank"):
            expected = golden.for_rank(rank)
        elif hasattr(golden, "golden"):
            expected = golden.golden
        else:
            expected = golden
        if expected is None:
            raise NoInputsError("the test validates nothing")
        if rank and not hasattr(golden, "for_rank"):
            break
        order = list(getattr(golden, "output_ndarray", None) or expected)
        for name, wanted in expected.items():
            output = output_named(name, order if name in order else list(expected), run.outputs[rank])
            figures[f"rank{rank}:{name}"] = compare_one(name, output, wanted, params)
    return figures


def output_named(name: str, names: list[str], outputs: Any) -> Any:
    """The kernel's output of a name; by position where the names are not the kernel's."""
    found = [output for output in outputs if output.name == name]
    if found:
        return found[0]
    returned = [output for output in outputs if not output.is_argument] or list(outputs)
    position = names.index(name)
    if position >= len(returned):
        raise DisagreementError(f"no output {name}; the kernel returned {[output.name for output in outputs]}")
    return returned[position]


def compare_one(name: str, output: Any, wanted: Any, params: Any) -> float:
    """Largest difference relative to the reference's largest magnitude. Raises DisagreementError."""
    import numpy as np

    from trnprof.nki.values.kinds import NUMPY

    comparators = importlib.import_module("test.integration.nkilib.utils.comparators")
    actual = output.array
    if hasattr(wanted, "validator"):
        log = io.StringIO()
        held = actual.astype(NUMPY[output.dtype]) if actual.dtype == np.float64 else actual  # float64 everywhere
        raw = np.ascontiguousarray(held).view(np.uint8).reshape(-1)
        if not wanted.validator(log).validate(raw):
            raise DisagreementError(
                f"{name}: its test's own validator refuses it: {' '.join(log.getvalue().split())[-200:]}"
            )
        return 0.0
    wanted = np.asarray(wanted)
    if output.missing is not None:  # the repository's runs start from zeroed buffers, and its references say so
        actual = np.where(output.missing, np.zeros((), actual.dtype), actual)
    if actual.dtype.names and not wanted.dtype.names and actual.shape == wanted.shape:
        actual = np.ascontiguousarray(actual).view(wanted.dtype)  # the test looks at the packed bits as another type
    left, right = as_float(actual), as_float(wanted)
    if actual.dtype == np.float16 and np.abs(right, where=np.isfinite(right), out=np.zeros_like(right)).max() > 65504:
        raise NoInputsError(
            f"{name}: the reference exceeds float16, which the test's output has: no device could agree"
        )
    if left.shape != right.shape:
        if left.size != right.size:
            raise DisagreementError(f"{name}: shape {left.shape} against the reference's {right.shape}")
        left = left.reshape(right.shape)
    rtol, atol = params.relative_accuracy, params.absolute_accuracy
    scale = float(np.max(np.abs(right), initial=0, where=np.isfinite(right))) or 1.0
    worst = float(np.max(np.abs(left - right), initial=0, where=np.isfinite(left) & np.isfinite(right))) / scale
    if not comparators.maxAllClose(left, right, rtol, atol):
        bad = ~(np.abs(left - right) <= atol + rtol * scale) & ~((left == right) | (np.isnan(left) & np.isnan(right)))
        first = [int(part) for part in np.argwhere(bad)[0]] if bad.any() else []
        raise DisagreementError(
            f"{name}: worst {worst:.3g} of the largest value (rtol {rtol:g}, atol {atol:g}); {int(bad.sum())} of {bad.size} "
            f"differ, first at {first}: {left[tuple(first)] if first else ''} against {right[tuple(first)] if first else ''}; "
            f"{int(np.isnan(left).sum())} NaN, {output.missing_count} never written"
        )
    return worst


def as_float(array: Any) -> Any:
    """float32; packed types as their elements."""
    import numpy as np

    from trnprof.nki.values.kinds import NUMPY, PACKED, unpacked

    if array.dtype.names:
        name = array.dtype.names[0]
        if name in PACKED:
            parts = unpacked(np.ascontiguousarray(array).view(NUMPY[name]), name)
            return parts.reshape(*parts.shape[:-2], -1)
    return array.astype(np.float32)


def install_element_types() -> None:
    """NumPy understands the packed types by name: one field called like the type."""
    import numpy as np

    for name, kind in (
        ("float8_e4m3fn_x4", np.uint32),
        ("float8_e5m2_x4", np.uint32),
        ("float4_e2m1fn_x4", np.uint16),
    ):
        np.sctypeDict[name] = np.dtype([(name, kind)])


def install_casts() -> None:
    """neuron_dtypes.static_cast with values: packed types hold four elements of the last dimension."""
    import numpy as np

    from trnprof.nki.values.kinds import NUMPY, PACKED, packed, rounded, unpacked

    wanted_type = np.dtype

    def name_of(dtype: Any) -> str:
        names = getattr(dtype, "names", None)
        if names:
            return str(names[0])
        text = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
        return text.rpartition(".")[2]

    def static_cast(array: Any, dtype: Any) -> Any:
        array = np.asarray(array)
        name = name_of(dtype)
        source = array.dtype.names[0] if array.dtype.names else ""
        if source == name:
            return array
        if source in PACKED:
            parts = unpacked(np.ascontiguousarray(array).view(NUMPY[source]), source)
            array = parts.reshape(*array.shape[:-1], array.shape[-1] * 4)
        if name in PACKED:
            grouped = array.astype(np.float32).reshape(*array.shape[:-1], array.shape[-1] // 4, 4)
            return packed(grouped, name).view(np.sctypeDict[name])
        if name in NUMPY:
            kind = NUMPY[name]
            if array.dtype == kind:
                return array
            if array.dtype.kind in "iu" and kind.kind in "iu":
                return array.astype(kind)
            return rounded(array.astype(np.float32), name)
        return array.astype(wanted_type(dtype))

    for name in ("neuron_dtypes", "neuronxcc.starfish.support.dtype"):
        sys.modules[name].static_cast = static_cast  # type: ignore[attr-defined]


def resolve_packed_types() -> None:
    """The library knows packed types by NumPy types that only its runtime has; ours are records: where its own code takes
    a type as an argument, it gets the language's."""

    def as_language(value: Any) -> Any:
        names = getattr(value, "names", None)
        return DTYPES[names[0]] if names and names[0] in DTYPES else value

    for name, module in list(sys.modules.items()):
        if not name.startswith(("test.", "nkilib_src.")):
            continue
        for attribute in ("quantize_to_mx", "is_mx_quantize"):
            original = vars(module).get(attribute)
            if original is None or hasattr(original, "__wrapped__"):
                continue

            @functools.wraps(original)
            def adapted(*arguments: Any, original: Any = original, **named: Any) -> Any:
                return original(
                    *map(as_language, arguments), **{key: as_language(value) for key, value in named.items()}
                )

            setattr(module, attribute, adapted)


# aws-neuron/nki-samples


def samples(checkout: Path) -> list[str]:
    """The tutorials' kernels, and the contributed ones whose files hold a check of their own."""
    return [*(item for item in coverage.samples(checkout) if not item.startswith("?")), *CONTRIBUTED]


def run_sample(checkout: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One tutorial kernel against what its driver computes with NumPy or torch."""
    item = options.child
    yield {"kernel": item, "case": "", **attempt(lambda: run_sample_case(checkout, item), options)}


if __name__ == "__main__":
    sys.exit(main())
