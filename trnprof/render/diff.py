"""A comparison as JSON, text and Markdown: configurations first, then the verdict, then what moved."""

from __future__ import annotations

from collections.abc import Callable

from trnprof.analyzers.account_sets import NOT_ATTRIBUTED
from trnprof.analyzers.diff import GROUPS, Change, CoreDiff, Diff, RowChange, ScopeDiff
from trnprof.analyzers.source_cost import RUNTIME
from trnprof.analyzers.verdict import Verdict
from trnprof.findings import DataQuality
from trnprof.render.anatomy import PART_NAMES
from trnprof.render.envelope import ANSWER_BYTES, Report, envelope_json, with_short_head
from trnprof.render.markdown import escaped
from trnprof.render.quality import quality_lines, quality_markdown
from trnprof.render.text import byte_count, duration, printable, table, wrapped

Row = dict[str, object]

_TEXT_ROWS = 6

HBM_NAMES = {
    "read": "HBM read",
    "write": "HBM written",
    "undirected": "HBM, direction unknown",
    "spill_save": "spills saved",
    "spill_reload": "spills reloaded",
}


def change_json(change: Change) -> Row:
    """before, after, delta."""
    return {"before": change.before, "after": change.after, "delta": change.delta}


def diff_json(diff: Diff, *, rows: int | None, cores: int | None = None) -> Row:
    """The `result` of trnprof.diff/1; rows: of each group (None: all), cores: how many are listed."""
    result: Row = {
        "configuration": [
            {
                "field": entry.field,
                "before": printable(entry.before),
                "after": printable(entry.after),
                "expected": entry.expected,
            }
            for entry in diff.configuration
        ],
        "verdict": verdict_json(diff.verdict),
        "steps_ns": {"before": list(diff.before_steps_ns), "after": list(diff.after_steps_ns)},
        "compared": {"before": printable(diff.before_label), "after": printable(diff.after_label)},
        "scope": None if diff.scope is None else _scope_json(diff.scope),
        "incomplete": [printable(label) for label in diff.incomplete],
        "cores": [_core_json(core, rows) for core in diff.cores[:cores]],
    }
    if diff.cores_before_only or diff.cores_after_only:
        result["cores_before_only"] = list(diff.cores_before_only)
        result["cores_after_only"] = list(diff.cores_after_only)
    hidden = len(diff.cores) - len(diff.cores[:cores])
    if hidden:
        result["cores_rest"] = {"count": hidden, "see": "--full lists every core"}
    return result


def verdict_json(verdict: Verdict) -> Row:
    """Shares to six decimals."""
    interval = verdict.interval_share
    return {
        "outcome": str(verdict.outcome),
        "before_ns": round(verdict.before_ns),
        "after_ns": round(verdict.after_ns),
        "change_share": round(verdict.change_share, 6),
        "interval_share": None if interval is None else [round(interval[0], 6), round(interval[1], 6)],
        "bar_share": verdict.bar_share,
        "before_count": verdict.before_count,
        "after_count": verdict.after_count,
        "paired": verdict.paired,
        "method": verdict.method,
    }


def _scope_json(scope: ScopeDiff) -> Row:
    return {
        "kind": scope.scope.kind,
        "name": printable(scope.scope.name),
        "names_before": [printable(name) for name in scope.names_before],
        "names_after": [printable(name) for name in scope.names_after],
        "verdict": verdict_json(scope.verdict),
        "scope_delta_ns": round(scope.scope_delta_ns),
        "step_delta_ns": round(scope.step_delta_ns),
        "contradicts_step": scope.contradicts_step,
    }


def _core_json(core: CoreDiff, rows: int | None) -> Row:
    groups = {name: None if found is None else _rows_json(found, rows) for name, found in core.groups.items()}
    return {
        "core": core.core,
        "window_ns": change_json(core.window_ns),
        "parts_ns": {name: change_json(change) for name, change in core.parts_ns.items()},
        "engines": {
            name: {
                "active_ns": change_json(change),
                "instruction_count": change_json(core.instruction_counts[name]),
            }
            for name, change in core.engines_ns.items()
        },
        "hbm_bytes": {name: change_json(change) for name, change in core.hbm_bytes.items()},
        "dma_bytes": change_json(core.dma_bytes),
        "rows": groups,
    }


def _rows_json(found: tuple[RowChange, ...], limit: int | None) -> list[Row]:
    shown, rest = _split(found, limit)
    entries: list[Row] = [
        {"name": printable(row.name), "state": row.state, "before": row.before, "after": row.after, "delta": row.delta}
        | ({"names_before": [printable(name) for name in row.names_before[:3]]} if row.names_before else {})
        for row in shown
    ]
    if rest is not None:
        entries.append(
            {"name": rest.name, "state": rest.state, "before": rest.before, "after": rest.after, "delta": rest.delta}
        )
    return entries


def _split(found: tuple[RowChange, ...], limit: int | None) -> tuple[tuple[RowChange, ...], RowChange | None]:
    """The rows with the largest changes, and one that sums the others; rows without a change are in that one."""
    if limit is None:
        return found, None
    shown = tuple(row for row in found[:limit] if row.delta)
    hidden = found[len(shown) :]
    if not hidden:
        return shown, None
    before, after = sum(row.before for row in hidden), sum(row.after for row in hidden)
    return shown, RowChange(f"rest ({len(hidden)})", "rest", before, after)


def diff_report(diff: Diff, make: Callable[[Row], Report], *, full: bool) -> Report:
    """The report with as many rows, then cores, as an answer has room for."""
    report = make(diff_json(diff, rows=None))
    if full:
        return report
    limits: list[tuple[int, int | None]] = [(rows, None) for rows in (8, 5, 3, 2, 1)]
    for rows, cores in [*limits, (0, None), (1, 2), (1, 1), (0, 1)]:
        report = with_short_head(make(diff_json(diff, rows=rows, cores=cores)))
        if len(envelope_json(report)) <= ANSWER_BYTES:
            break
    return report


# --- text -------------------------------------------------------------------------------------------------------------


def signed(ns: int | float | None) -> str:
    """A difference with its sign: +18.000 us, −3 ns, 0 ns."""
    if ns is None:
        return "n/a"
    return f"{'−' if ns < 0 else '+' if ns > 0 else ''}{duration(abs(round(ns)))}"


def _signed_bytes(count: int | None) -> str:
    if count is None:
        return "n/a"
    return f"{'−' if count < 0 else '+' if count > 0 else ''}{byte_count(abs(count))}"


def verdict_line(name: str, verdict: Verdict) -> str:
    """One sentence: the times, the change, the interval, the outcome and what it rests on."""
    interval = ""
    if verdict.interval_share is not None:
        low, high = (f"{100 * share:+.2f}" for share in verdict.interval_share)
        interval = f" (95 % interval {low} to {high} %)"
    counts = f"{verdict.before_count} + {verdict.after_count} captures{', paired' if verdict.paired else ''}"
    return (
        f"{name}: {duration(round(verdict.before_ns))} → {duration(round(verdict.after_ns))}, "
        f"{100 * verdict.change_share:+.2f} %{interval}: {verdict.outcome} "
        f"[bar {100 * verdict.bar_share:g} %; {counts}; {verdict.method}]"
    )


def scope_line(scope: ScopeDiff) -> str:
    """What the part won beside what the step got."""
    text = verdict_line(f"{scope.scope.kind} {printable(scope.scope.name, 60)}", scope.verdict)
    gained = f"; in it {signed(scope.scope_delta_ns)}, in the step {signed(scope.step_delta_ns)}"
    against = ". The part and the step moved against each other: judge the step" if scope.contradicts_step else ""
    return text + gained + against


def diff_text(diff: Diff, quality: tuple[DataQuality, ...]) -> str:
    """The report for a terminal of 80 columns: data quality and configurations above every number."""
    blocks = [quality_lines(quality), f"{printable(diff.before_label)} → {printable(diff.after_label)}"]
    blocks.append(_configuration_text(diff))
    lines = [wrapped(verdict_line("step", diff.verdict), indent="    ", first="  ")]
    if diff.scope is not None:
        lines.append(wrapped(scope_line(diff.scope), indent="    ", first="  "))
    if len(diff.before_steps_ns) > 1 or len(diff.after_steps_ns) > 1:
        lines.append("  below: the capture of median step time of each side")
    blocks.append("\n".join(lines))
    blocks += [_core_text(core) for core in diff.cores]
    for cores, side in ((diff.cores_before_only, "before"), (diff.cores_after_only, "after")):
        if cores:
            blocks.append(f"only {side}: core {', '.join(map(str, cores))}")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _configuration_text(diff: Diff) -> str:
    if not diff.configuration:
        return "  configurations: the same, as far as both captures tell"
    rows = [
        [
            ("· " if entry.expected else "! ") + printable(entry.field),
            printable(entry.before, 20),
            printable(entry.after, 20),
        ]
        for entry in diff.configuration
    ]
    return table(["configuration (! is doubtful)", "before", "after"], rows)


def _core_text(core: CoreDiff) -> str:
    rows = [
        [PART_NAMES[name], duration(change.before), duration(change.after), signed(change.delta)]
        for name, change in core.parts_ns.items()
    ]
    window = core.window_ns
    rows.append(["= window", duration(window.before), duration(window.after), signed(window.delta)])
    sections = [table([f"core {core.core}", "before", "after", "change"], rows)]
    engines = [
        [f"{name} active", duration(change.before), duration(change.after), signed(change.delta)]
        for name, change in core.engines_ns.items()
    ]
    for name, change in (*core.hbm_bytes.items(), ("dma", core.dma_bytes)):
        shown = [byte_count(change.before), byte_count(change.after), _signed_bytes(change.delta)]
        engines.append([HBM_NAMES.get(name, "DMA packets"), *shown])
    sections.append(table(["engines and bytes", "before", "after", "change"], engines))
    for group, meaning in GROUPS.items():
        found = core.groups[group]
        # A table without any name is no table: the share without names is in `trnprof breakdown`.
        if found is not None and any(row.name not in (NOT_ATTRIBUTED, RUNTIME) for row in found):
            sections.append(_group_text(meaning.removesuffix(", ns"), found))
    return "\n\n".join(section for section in sections if section)


_STATE = {"same": "", "rest": "", "renamed": " (renamed)", "new": " (new)", "gone": " (gone)"}


def _group_text(meaning: str, found: tuple[RowChange, ...]) -> str:
    shown, rest = _split(found, _TEXT_ROWS)
    if not shown:
        return f"  {meaning}: no change"
    rows = [
        [printable(row.name, 36) + _STATE[row.state], duration(row.before), duration(row.after), signed(row.delta)]
        for row in (*shown, *((rest,) if rest is not None else ()))
    ]
    return table([printable(meaning, 44), "before", "after", "change"], rows)


def diff_markdown(diff: Diff, quality: tuple[DataQuality, ...]) -> str:
    """The same as Markdown tables."""
    lines = [f"# {escaped(diff.before_label)} → {escaped(diff.after_label)}", "", *quality_markdown(quality)]
    if diff.configuration:
        lines += ["| configuration | before | after | expected |", "|---|---|---|---|"]
        lines += [
            f"| {escaped(entry.field)} | {escaped(entry.before)} | {escaped(entry.after)} | {'yes' if entry.expected else 'no'} |"
            for entry in diff.configuration
        ]
        lines.append("")
    lines += [escaped(verdict_line("step", diff.verdict)), ""]
    if diff.scope is not None:
        lines += [escaped(scope_line(diff.scope)), ""]
    for core in diff.cores:
        lines += [f"## Core {core.core}", "", "| part | before ns | after ns | change ns |", "|---|---:|---:|---:|"]
        for name, change in (*core.parts_ns.items(), ("window", core.window_ns)):
            cells = ["n/a" if value is None else f"{value:,}" for value in (change.before, change.after, change.delta)]
            lines.append(f"| {PART_NAMES.get(name, name)} | {' | '.join(cells)} |")
        lines.append("")
        for group, meaning in GROUPS.items():
            found = core.groups[group]
            shown, rest = _split(found or (), _TEXT_ROWS)
            if shown:
                lines += [f"| {escaped(meaning)} | before | after | change |", "|---|---:|---:|---:|"]
                lines += [
                    f"| {escaped(row.name)}{_STATE[row.state]} | {row.before:,} | {row.after:,} | {row.delta:+,} |"
                    for row in (*shown, *((rest,) if rest is not None else ()))
                ]
                lines.append("")
    return "\n".join(lines).rstrip() + "\n"
