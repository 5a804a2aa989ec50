"""Predict one kernel for each value of one or more of its parameters, constants or locals: which tiling moves least.

Every point is a guarded run of its own; points that assert, do not fit into SBUF or PSUM, or fail, say why.
"""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from trnprof.errors import (
    InconsistencyError,
    InputDataError,
    InputMissingError,
    ToolMissingError,
    TrnprofError,
    UsageError,
)
from trnprof.nki.discovery import KernelSource
from trnprof.nki.guard import KernelRun, Limits, predict_guarded, stop_running
from trnprof.nki.hazard_codes import BREAKS
from trnprof.nki.inputs import check_literal, parse_tensor
from trnprof.nki.prediction_task import KernelPrediction
from trnprof.nki.rewriting import Rewrite, pick_assignment

MAX_POINTS = 512


@dataclass(frozen=True)
class SweptName:
    """One name and its values."""

    name: str
    values: tuple[str, ...]
    """Source texts of literals, in the order given; for a tensor parameter shapes like 128x512:bfloat16."""


@dataclass(frozen=True)
class SweepPoint:
    """One combination of values and what came of it."""

    values: tuple[tuple[str, str], ...]
    """(name, value) in the order of the sweeps."""
    prediction: KernelPrediction | None
    """None where the point is not feasible."""
    infeasible: str | None
    """Why it is not: an assertion's text, an overflow, or another failure; None where it is."""


@dataclass(frozen=True)
class Sweep:
    """All points, best first: feasible ones by mid time, then by bytes; the others after them in the order given."""

    names: tuple[str, ...]
    points: tuple[SweepPoint, ...]


def parse_sweeps(texts: Iterable[str]) -> tuple[SweptName, ...]:
    """--sweep NAME=a,b,c texts.

    Raises: UsageError for a text that does not parse, a name given twice, or more than MAX_POINTS combinations.
    """
    swept: list[SweptName] = []
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not values.strip() or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"--sweep {text!r}: write NAME=a,b,c, for example --sweep TILE=128,256,512")
        if any(known.name == name for known in swept):
            raise UsageError(f"--sweep {name}: given twice; list its values once")
        swept.append(SweptName(name, tuple(dict.fromkeys(_split_values(values, name)))))
    count = 1
    for one in swept:
        count *= len(one.values)
    if count > MAX_POINTS:
        raise UsageError(f"--sweep: {count:,} combinations, at most {MAX_POINTS} are run; sweep fewer values at a time")
    return tuple(swept)


def run_sweep(
    run: KernelRun,
    swept: tuple[SweptName, ...],
    *,
    kernel: KernelSource,
    tree: ast.Module,
    limits: Limits | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """Run every combination, several at a time.

    run: the kernel with its other inputs; kernel, tree: as discovery and the parser gave them, to tell parameters from
    assignments; jobs: processes at a time (default: the machine's cores); on_progress(done, total) after each point.
    Raises: UsageError if a name is neither a parameter nor assigned exactly once, or the arguments do not fit;
            InputDataError if every point fails with the same message.
    """
    plans = []
    for combination in itertools.product(*(one.values for one in swept)):
        values = tuple(zip((one.name for one in swept), combination, strict=True))
        plans.append((values, _with_values(run, values, kernel, tree)))
    points: dict[int, SweepPoint] = {}
    pool = ThreadPoolExecutor(max_workers=max(1, jobs or _cores()))
    try:
        waiting: dict[Future[SweepPoint], int] = {
            pool.submit(_run_point, values, planned, limits): number for number, (values, planned) in enumerate(plans)
        }
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                points[waiting.pop(future)] = future.result()
                on_progress(len(points), len(plans))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        stop_running()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    failures = {point.infeasible for point in points.values() if point.prediction is None}
    if len(failures) == 1 and all(point.prediction is None for point in points.values()) and len(points) > 1:
        # The same failure at every value is the kernel's, not a point's.
        raise InputDataError(f"every point fails alike: {failures.pop()}", path=run.kernel_file)
    ordered = sorted(points.items(), key=lambda entry: (*_rank(entry[1]), entry[0]))
    return Sweep(tuple(one.name for one in swept), tuple(point for _, point in ordered))


def _run_point(values: tuple[tuple[str, str], ...], run: KernelRun, limits: Limits | None) -> SweepPoint:
    try:
        prediction = predict_guarded(run, limits).prediction
    except (UsageError, InputMissingError, InconsistencyError, ToolMissingError):
        raise  # no property of the point: every other one would fail alike
    except TrnprofError as error:
        return SweepPoint(values, None, error.message)
    breaks = [finding for finding in prediction.findings if finding.code in BREAKS]
    if breaks:
        why = "; ".join(f"{finding.title}: {finding.evidence['message']}" for finding in breaks[:3])
        return SweepPoint(values, prediction, why)
    return SweepPoint(values, prediction, None)


def _rank(point: SweepPoint) -> tuple[int, int, int]:
    if point.infeasible is not None or point.prediction is None:
        return (1, 0, 0)
    total = point.prediction.predicted.total
    if total is None:  # unknown trip counts: rank by what one iteration of each costs
        terms = point.prediction.predicted.terms
        return (
            0,
            sum(term.traffic.time_ns.mid for term in terms),
            sum(term.traffic.hbm_read_bytes + term.traffic.hbm_write_bytes for term in terms),
        )
    return (0, total.time_ns.mid, total.hbm_read_bytes + total.hbm_write_bytes)


def _with_values(
    run: KernelRun, values: tuple[tuple[str, str], ...], kernel: KernelSource, tree: ast.Module
) -> KernelRun:
    """`run` with each name's value as an argument, a tensor, or a rewritten assignment."""
    parameters = {parameter.name for parameter in kernel.parameters}
    arguments, tensors, rewrites = dict(run.inputs.arguments), dict(run.inputs.tensors), list(run.rewrites)
    for name, value in values:
        if name in parameters and ":" in value and value[:1].isdigit():
            tensors[name] = parse_tensor(value, name)
            arguments.pop(name, None)
        elif name in parameters:
            check_literal(value, f"--sweep {name}")
            arguments[name] = value
            tensors.pop(name, None)
        else:
            assignment = pick_assignment(tree, name, kernel.name)
            try:
                ast.literal_eval(value)
            except (ValueError, SyntaxError, TypeError):
                raise UsageError(f"--sweep {name}: {value!r} is not a Python literal (4, 0.5, True, 'text')") from None
            rewrites.append(Rewrite(assignment.scope, assignment.name, value))
    return replace(run, inputs=replace(run.inputs, arguments=arguments, tensors=tensors), rewrites=tuple(rewrites))


def _split_values(text: str, name: str) -> list[str]:
    """Values at the commas outside brackets and quotes."""
    values, depth, quote, current = [], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            values.append(current.strip())
            current = ""
            continue
        current += char
    values.append(current.strip())
    if not all(values):
        raise UsageError(f"--sweep {name}={text}: a value is empty; write for example --sweep {name}=128,256,512")
    return values


def _cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
