"""An anatomy as JSON, text and Markdown. One source: everything printed is taken from `AnatomyView`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trnprof.analyzers.anatomy import SHORT_INSTRUCTION_NS, Anatomy, CoreAnatomy, Gap
from trnprof.analyzers.data_quality import is_incomplete
from trnprof.analyzers.steps import StepAnatomy
from trnprof.findings import DataQuality, Finding
from trnprof.profile import ENGINES
from trnprof.render.findings import findings_markdown, findings_text
from trnprof.render.quality import quality_lines, quality_markdown
from trnprof.render.steps import step_title, steps_json, steps_markdown, steps_text
from trnprof.render.text import WIDTH, bar, byte_count, duration, percent, printable, rate, table, wrapped

PART_NAMES = {
    "runtime_overhead": "runtime overhead",
    "memory_floor": "memory floor",
    "busy_beyond_floor": "busy beyond floor",
    "in_kernel_wait": "in-kernel wait",
    "exposed_collective": "exposed collective",
    "idle": "idle",
}

_PRODUCERS_SHOWN = 5

_RESULT_BYTES = 5_600
"""What `result` may take of the 8 KiB that an answer has by default; inputs, data quality and findings take the rest."""

_CONTRACT_KEYS = (
    "input",
    "core",
    "window_ns",
    "parts_ns",
    "engines",
    "dma",
    "hbm",
    "semaphore_update_count",
)
"""What a caller may rely on for every core that is listed (DESIGN.md section 5)."""

_CONTRACT_INNER_KEYS = {
    "engines": ("active_ns", "instruction_count"),
    "dma": ("packet_count", "bytes", "active_ns"),
    "hbm": ("read_bytes", "write_bytes"),
}


@dataclass(frozen=True)
class AnatomyView:
    """One capture's account and what is said around it."""

    path: str
    format: str
    instance_type: str | None
    anatomy: Anatomy
    data_quality: tuple[DataQuality, ...]
    findings: tuple[Finding, ...] = ()
    steps: tuple[StepAnatomy, ...] = ()
    """The steps asked for; of a single one `anatomy` is its account."""
    step_count: int = 0
    """How many the capture marks."""
    rank: int | None = None

    @property
    def only_step(self) -> StepAnatomy | None:
        """The step that the account is of, where it is of one."""
        if len(self.steps) == 1 and self.steps[0].anatomy == self.anatomy:
            return self.steps[0]
        return None


def parts_ns(core: CoreAnatomy) -> dict[str, int | None]:
    """The six parts by their JSON keys."""
    return {name: getattr(core.parts, f"{name}_ns") for name in PART_NAMES}


def bounds_of(core: CoreAnatomy, incomplete: bool) -> dict[str, str]:
    """Which parts are bounds, and of which side; the others are exact."""
    bounds: dict[str, str] = {}
    if core.hbm is not None and core.hbm.kind == "lower-bound":
        bounds |= {"memory_floor": "lower", "busy_beyond_floor": "upper"}
    if core.parts.memory_floor_ns is None:
        bounds |= {"busy_beyond_floor": "upper"}
    if incomplete:
        bounds |= {"memory_floor": "lower", "busy_beyond_floor": "lower", "in_kernel_wait": "upper", "idle": "upper"}
    return bounds


def core_json(core: CoreAnatomy, *, input_index: int, incomplete: bool, full: bool) -> dict[str, object]:
    """One core's entry of `result.cores[]`."""
    shown = core.wait_producers if full else core.wait_producers[:_PRODUCERS_SHOWN]
    rest = core.wait_producers[len(shown) :]
    producers: list[dict[str, object]] = [
        {"producer": printable(entry.producer), "wait_ns": entry.wait_ns, "wait_count": entry.wait_count}
        for entry in shown
    ]
    if rest:
        producers.append(
            {
                "producer": f"rest ({len(rest)})",
                "wait_ns": sum(entry.wait_ns for entry in rest),
                "wait_count": sum(entry.wait_count for entry in rest),
            }
        )
    return {
        "input": input_index,
        "core": core.core,
        "subgraph": printable(core.subgraph),
        "window_ns": core.window_ns,
        "body_ns": [core.body_start_ts, core.body_end_ts],
        "parts_ns": parts_ns(core),
        "bounds": bounds_of(core, incomplete),
        "work_ns": {"total": core.work.total_ns()} | {k.removesuffix("_ns"): v for k, v in vars(core.work).items()},
        "engines": {
            name: {
                "active_ns": account.active_ns,
                "instruction_count": account.instruction_count,
                "alone_ns": account.alone_ns,
                "blocked_ns": account.blocked_ns,
                "short_instruction_count": account.short_instruction_count,
                "working_instruction_count": account.working_instruction_count,
            }
            for name, account in core.engines.items()
        },
        "dma": None if core.dma is None else dict(vars(core.dma)),
        "hbm": None if core.hbm is None else dict(vars(core.hbm)),
        "collectives": None
        if core.collectives is None
        else dict(vars(core.collectives)) | {"exposed_per_call_ns": core.collectives.exposed_per_call_ns()},
        "throttle": None if core.throttle is None else dict(vars(core.throttle)),
        "semaphore_update_count": core.semaphore_update_count,
        "wait_producers": producers,
        "gap_count": core.gap_count,
        "longest_gaps": [_gap_json(gap) for gap in core.longest_gaps],
    }


def _gap_json(gap: Gap) -> dict[str, object]:
    return dict(vars(gap)) | {"before": printable(gap.before), "after": printable(gap.after)}


def anatomy_json(views: list[AnatomyView], *, full: bool, ranks: dict[str, object] | None = None) -> dict[str, object]:
    """The `result` of trnprof.anatomy/1 for one capture or several.

    ranks: what compares the captures, where there are several.

    Without `full` it is kept small: with many cores first the gaps and most producers go, then all but the keys that a
    caller may rely on, then the last cores, whose parts one row sums.
    """
    cores = [
        core_json(core, input_index=index, incomplete=is_incomplete(view.data_quality), full=full)
        for index, view in enumerate(views)
        for core in view.anatomy.cores
    ]
    if any(view.rank is not None for view in views):
        for core in cores:
            core["rank"] = views[core["input"]].rank  # type: ignore[call-overload]
    result: dict[str, object] = {"cores": cores}
    if ranks is not None:
        result["ranks"] = ranks
    if len(views) == 1 and views[0].steps:
        result["steps"] = steps_json(views[0].steps, views[0].step_count, full=full)
    if len(views) == 1:
        anatomy = views[0].anatomy
        result["pair"] = None if anatomy.pair is None else dict(vars(anatomy.pair))
        result["needed_traffic"] = None if anatomy.needed is None else dict(vars(anatomy.needed))
    if full or _size(result) <= _RESULT_BYTES:
        return result
    for core in cores:
        core["longest_gaps"] = core["longest_gaps"][:1]  # type: ignore[index]
        core["wait_producers"] = core["wait_producers"][:1]  # type: ignore[index]
    if _size(result) <= _RESULT_BYTES:
        return result
    cores = [_contract_only(core) for core in cores]
    kept = len(cores)
    others = _size(result | {"cores": []})
    while kept > 1 and others + _size(cores[:kept]) > _RESULT_BYTES:
        kept -= 1
    result["cores"] = cores[:kept]
    if kept < len(cores):
        result["rest"] = _rest_json(cores[kept:])
    return result


def _contract_only(core: dict[str, object]) -> dict[str, object]:
    kept = {key: core[key] for key in (*_CONTRACT_KEYS, "rank") if key in core}
    for key, inner in _CONTRACT_INNER_KEYS.items():
        value = kept[key]
        if key == "engines" and isinstance(value, dict):
            kept[key] = {name: {name_: account[name_] for name_ in inner} for name, account in value.items()}
        elif isinstance(value, dict):
            kept[key] = {name: value[name] for name in inner}
    return kept


def _rest_json(cores: list[dict[str, object]]) -> dict[str, object]:
    """One row for cores that are not listed: their parts summed, part by part."""
    totals: dict[str, int] = dict.fromkeys(PART_NAMES, 0)
    windows: list[int] = []
    for core in cores:
        windows.append(core["window_ns"])  # type: ignore[arg-type]
        for name, value in core["parts_ns"].items():  # type: ignore[attr-defined]
            totals[name] += value or 0
    return {
        "core_count": len(cores),
        "window_ns": sum(windows),
        "window_min_ns": min(windows),
        "window_max_ns": max(windows),
        "parts_ns": totals,
        "see": "--full lists every core",
    }


def _size(document: object) -> int:
    return len(json.dumps(document, separators=(",", ":")))


def anatomy_text(view: AnatomyView) -> str:
    """The report for a terminal of 80 columns."""
    anatomy = view.anatomy
    facts = [view.format, view.instance_type or anatomy.hardware, f"provenance {anatomy.provenance}"]
    blocks = [f"{printable(view.path)}\n  {'  ·  '.join(printable(fact) for fact in facts)}"]
    blocks.append(quality_lines(view.data_quality))
    if view.only_step is not None:
        blocks.append(step_title(view.only_step.window, view.step_count))
    elif view.steps:
        blocks.append(steps_text(view.steps, view.step_count))
    for core in anatomy.cores:
        blocks.append(_core_text(core, view))
    if anatomy.pair is not None:
        blocks.append(
            f"the pair (information only): either core works {duration(anatomy.pair.either_works_ns)}, "
            f"both {duration(anatomy.pair.both_work_ns)}"
        )
    blocks.append(findings_text(view.findings))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _core_text(core: CoreAnatomy, view: AnatomyView) -> str:
    title = f"core {core.core}  ({printable(core.subgraph)})  window {duration(core.window_ns)}"
    if not core.event_count:
        return f"{title}\n  no events on this core"
    sections = [
        title + "\n" + _parts_text(core, is_incomplete(view.data_quality)),
        _floor_text(core, view.anatomy),
        _engines_text(core),
    ]
    if core.collectives is not None and core.collectives.count:
        per_call = duration(core.collectives.exposed_per_call_ns())
        sections.append(
            f"  collectives: {core.collectives.count}, in all {duration(core.collectives.total_ns)}, "
            f"exposed {duration(core.collectives.exposed_ns)} ({per_call} each)"
        )
    if core.wait_producers:
        sections.append(_producers_text(core))
    if core.longest_gaps:
        sections.append(_gaps_text(core))
    return "\n\n".join(sections)


_BOUND_SIGN = {"lower": "≥ ", "upper": "≤ "}


def _parts_text(core: CoreAnatomy, incomplete: bool) -> str:
    bounds = bounds_of(core, incomplete)
    lines = []
    for name, value in parts_ns(core).items():
        label, sign = PART_NAMES[name], _BOUND_SIGN.get(bounds.get(name, ""), "")
        if value is None:
            lines.append(f"  {label:<19}{'':<32}{'not captured' if core.hbm is None else 'not given':>14}")
            continue
        lines.append(
            f"  {label:<19}{bar(value, core.window_ns, 32)}{sign + duration(value):>14}"
            f"{percent(value, core.window_ns):>9}"
        )
    total = core.parts.total_ns()
    lines.append(f"  {'= window':<19}{'':<32}{duration(total):>14}{percent(total, core.window_ns):>9}")
    return "\n".join(lines)


def _floor_text(core: CoreAnatomy, anatomy: Anatomy) -> str:
    lines = []
    if core.hbm is not None and core.parts.memory_floor_ns is not None:
        moved = f"{byte_count(core.hbm.read_bytes)} read + {byte_count(core.hbm.write_bytes)} written"
        if core.hbm.undirected_bytes:
            moved += f" + {byte_count(core.hbm.undirected_bytes)} of unknown direction"
        ratio = ""
        if core.parts.memory_floor_ns:
            ratio = f"; the window is {core.window_ns / core.parts.memory_floor_ns:.2f} × the floor"
        lines.append(
            f"floor: HBM {moved} ({core.hbm.source}) ÷ {rate(anatomy.bandwidth.bytes_per_s)} "
            f"[{anatomy.bandwidth.source}]{ratio}"
        )
        if anatomy.needed is not None and core.hbm.total_bytes():
            lines.append(
                f"each needed byte once: {byte_count(anatomy.needed.needed_bytes)}, so the program moves "
                f"{anatomy.needed.moved_bytes / anatomy.needed.needed_bytes:.2f} × what it needs; "
                f"that floor is {duration(anatomy.needed.floor_ns)}"
            )
    work = core.work
    lines.append(
        f"work {duration(work.total_ns())} = data only {duration(work.data_only_ns)} + compute only "
        f"{duration(work.compute_only_ns)} + both {duration(work.both_ns)}"
    )
    if core.throttle is not None and core.throttle.throttled_ns:
        lines.append(
            f"throttled: {duration(core.throttle.throttled_ns)} in {core.throttle.interval_count} intervals, "
            f"down to {core.throttle.lowest_k}/{core.throttle.n} of full rate"
        )
    return "\n".join(wrapped(line, indent="    ", first="  ") for line in lines)


def _engines_text(core: CoreAnatomy) -> str:
    rows = []
    for name in ENGINES:
        account = core.engines[name]
        rows.append(
            [
                name,
                duration(account.active_ns),
                percent(account.active_ns, core.window_ns),
                duration(account.alone_ns),
                f"{account.instruction_count:,}",
                percent(account.short_instruction_count, account.working_instruction_count),
                duration(account.blocked_ns),
            ]
        )
    header = ["engine", "active", "of window", "alone", "instrs", f"<{SHORT_INSTRUCTION_NS} ns", "blocked"]
    text = table(header, rows)
    if core.dma is not None:
        text += "\n" + wrapped(
            f"dma: {core.dma.packet_count:,} packets, {byte_count(core.dma.bytes)}, active "
            f"{duration(core.dma.active_ns)}; of these {core.dma.data_packet_count:,} move tensor data, "
            f"{byte_count(core.dma.data_bytes)} in {duration(core.dma.data_ns)}",
            indent="    ",
            first="  ",
        )
    return text


def _producers_text(core: CoreAnatomy) -> str:
    shown = core.wait_producers[:_PRODUCERS_SHOWN]
    rows = [
        [
            printable(e.producer, 48),
            duration(e.wait_ns),
            percent(e.wait_ns, core.parts.in_kernel_wait_ns),
            str(e.wait_count),
        ]
        for e in shown
    ]
    rest = core.wait_producers[len(shown) :]
    if rest:
        wait = sum(entry.wait_ns for entry in rest)
        count = sum(entry.wait_count for entry in rest)
        rows.append([f"rest ({len(rest)})", duration(wait), percent(wait, core.parts.in_kernel_wait_ns), str(count)])
    return table(["waits ended by", "time", "of waits", "count"], rows)


def _gaps_text(core: CoreAnatomy) -> str:
    rows = [
        [
            f"{gap.start_ts:,} - {gap.end_ts:,}",
            duration(gap.end_ts - gap.start_ts),
            percent(gap.wait_ns, gap.end_ts - gap.start_ts),
        ]
        for gap in core.longest_gaps
    ]
    lines = table([f"longest of {core.gap_count:,} gaps, ns", "length", "waiting"], rows).split("\n")
    # The last column is cut to what the terminal has left.
    between = ["between", *(f"{gap.before} … {gap.after}" for gap in core.longest_gaps)]
    return "\n".join(
        f"{line}  {printable(what, WIDTH - len(line) - 2)}" for line, what in zip(lines, between, strict=True)
    )


def anatomy_markdown(view: AnatomyView) -> str:
    """The parts of each core as Markdown tables, data quality first."""
    lines = [f"# Anatomy of {_md(view.path)}", "", f"{_md(view.format)}, provenance {view.anatomy.provenance}", ""]
    lines += quality_markdown(view.data_quality)
    if view.only_step is not None:
        lines += [_md(step_title(view.only_step.window, view.step_count)), ""]
    elif view.steps:
        lines += steps_markdown(view.steps)
    for core in view.anatomy.cores:
        lines += [f"## Core {core.core} ({_md(core.subgraph)})", "", "| part | ns | of window |", "|---|---:|---:|"]
        for name, value in parts_ns(core).items():
            shown = "not captured" if value is None else f"{value:,}"
            share = "" if value is None else percent(value, core.window_ns)
            lines.append(f"| {PART_NAMES[name]} | {shown} | {share} |")
        lines += [f"| **window** | **{core.window_ns:,}** | 100.0 % |", ""]
        lines += ["| engine | active ns | instructions | alone ns | blocked ns |", "|---|---:|---:|---:|---:|"]
        for name, account in core.engines.items():
            lines.append(
                f"| {name} | {account.active_ns:,} | {account.instruction_count:,} | {account.alone_ns:,} "
                f"| {account.blocked_ns:,} |"
            )
        if core.wait_producers:
            lines += ["", "| waits ended by | ns | count |", "|---|---:|---:|"]
            lines += [f"| {_md(e.producer)} | {e.wait_ns:,} | {e.wait_count:,} |" for e in core.wait_producers]
        lines.append("")
    lines += findings_markdown(view.findings)
    bandwidth = view.anatomy.bandwidth
    lines.append(f"Bandwidth used: {rate(bandwidth.bytes_per_s)} ({_md(bandwidth.source)}).")
    return "\n".join(lines) + "\n"


def _md(text: object) -> str:
    from trnprof.render.markdown import escaped

    return escaped(text)
