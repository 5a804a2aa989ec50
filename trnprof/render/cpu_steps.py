"""A run on a CPU as JSON, text and Markdown."""

from __future__ import annotations

from trnprof.analyzers.cpu_steps import CpuAnatomy
from trnprof.render.markdown import escaped
from trnprof.render.text import bar, duration, percent, printable, table, wrapped

PART_NAMES = {
    "forward": "forward (model)",
    "sampling": "sampling",
    "drafting": "drafting (MTP)",
    "cache_copies": "cache: host copies",
    "preparation": "input preparation",
    "step_rest": "rest of the steps",
    "scheduling": "scheduling, exposed",
    "gap": "gap between steps",
}
"""In the order in which they are printed."""

_NOTE = (
    "A run of the bundled engine on this machine's CPU: its own parts, none of them a part of a step on a Trainium. "
    "Parts add up to the window exactly."
)


def cpu_steps_json(anatomy: CpuAnatomy) -> dict[str, object]:
    """The `result` of trnprof.anatomy/1 for a step log: no cores, but `cpu_steps`."""
    return {
        "cores": [],
        "cpu_steps": {
            "model": printable(anatomy.model),
            "provenance": str(anatomy.provenance),
            "window_ns": anatomy.window_ns,
            "parts_ns": {name: anatomy.parts_ns[name] for name in PART_NAMES},
            "hidden_scheduling_ns": anatomy.hidden_scheduling_ns,
            "operations": None
            if anatomy.operations is None
            else [vars(entry) | {"name": printable(entry.name)} for entry in anatomy.operations],
            "operations_ns": anatomy.operations_ns,
            "kinds": [vars(entry) for entry in anatomy.kinds],
            "cache": anatomy.cache,
            "steps_dropped": anatomy.steps_dropped,
        },
    }


def cpu_steps_text(path: str, anatomy: CpuAnatomy) -> str:
    """The same for a terminal."""
    window = anatomy.window_ns
    blocks = [
        f"{printable(path)}\n  {printable(anatomy.model)}, {anatomy.provenance}, window {duration(window)}",
        wrapped(_NOTE, indent="  "),
    ]
    rows = [
        [
            title,
            duration(anatomy.parts_ns[name]),
            percent(anatomy.parts_ns[name], window),
            bar(anatomy.parts_ns[name], window, 24),
        ]
        for name, title in PART_NAMES.items()
    ]
    lines = [f"  {title:<22}{time:>12}  {share:>7}  {drawn}".rstrip() for title, time, share, drawn in rows]
    lines.append(f"  {'window':<22}{duration(window):>12}")
    lines.append(f"  ({duration(anatomy.hidden_scheduling_ns)} more of scheduling ran while a step ran)")
    blocks.append("\n".join(lines))
    header = ["steps", "count", "median", "rows", "padded", "tokens in", "padded", "out"]
    kinds = [
        [
            printable(entry.kind, 16),
            f"{entry.step_count:,}",
            duration(entry.median_ns),
            f"{entry.row_count:,}",
            f"{entry.padded_row_count:,}",
            f"{entry.new_token_count:,}",
            f"{entry.padded_token_count:,}",
            f"{entry.output_token_count:,}",
        ]
        for entry in anatomy.kinds
    ]
    blocks.append(table(header, kinds))
    for entry in anatomy.kinds:
        if entry.drafted_token_count:
            shown = percent(entry.accepted_token_count, entry.drafted_token_count)
            blocks.append(
                f"  {entry.accepted_token_count:,} of {entry.drafted_token_count:,} drafts accepted ({shown})"
            )
    if anatomy.operations is not None and anatomy.operations_ns is not None:
        inside = sum(anatomy.operations_ns.values())
        operations = [
            [
                printable(entry.name, 24),
                f"{entry.call_count:,}",
                duration(entry.total_ns),
                percent(entry.total_ns, inside),
            ]
            for entry in anatomy.operations
        ]
        between = anatomy.operations_ns["between"]
        operations.append(["between kernels", "", duration(between), percent(between, inside)])
        blocks.append(table(["operation", "calls", "time", "share"], operations))
    else:
        blocks.append("  operations: not captured (record with `trnprof engine profile`)")
    blocks.append("  cache: " + ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in _told(anatomy)))
    if anatomy.steps_dropped:
        blocks.append(f"  {anatomy.steps_dropped:,} earlier steps were not kept")
    return "\n\n".join(_folded(block) for block in blocks) + "\n"


def cpu_steps_markdown(path: str, anatomy: CpuAnatomy) -> str:
    """The same as Markdown."""
    lines = [f"# {escaped(path)}", "", f"{escaped(anatomy.model)}, {anatomy.provenance}. {_NOTE}", ""]
    lines += ["| part | time | share |", "|---|---:|---:|"]
    for name, title in PART_NAMES.items():
        part = anatomy.parts_ns[name]
        lines.append(f"| {title} | {duration(part)} | {percent(part, anatomy.window_ns)} |")
    lines.append(f"| window | {duration(anatomy.window_ns)} | |")
    if anatomy.operations is not None:
        lines += ["", "| operation | calls | time |", "|---|---:|---:|"]
        lines += [f"| {escaped(e.name)} | {e.call_count:,} | {duration(e.total_ns)} |" for e in anatomy.operations]
    return "\n".join(lines) + "\n"


def _told(anatomy: CpuAnatomy) -> list[tuple[str, int]]:
    return [(name, value) for name, value in anatomy.cache.items() if value or name in ("cache_hits", "tokens_reused")]


def _folded(block: str) -> str:
    """A one-line block within the terminal's width."""
    return wrapped(block.strip(), indent="    ", first="  ") if "\n" not in block and block.startswith("  ") else block
