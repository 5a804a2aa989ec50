"""A folder of captures as one view: JSON, text and Markdown."""

from __future__ import annotations

from trnprof.analyzers.ranks import AlignedCollectives, PairBalance, RankRow, RankSpread, RankView
from trnprof.findings import DataQuality, Finding
from trnprof.render.anatomy import PART_NAMES, AnatomyView
from trnprof.render.findings import findings_text
from trnprof.render.parts_table import PART_HEADERS, part_cells, time_cell, unit_for
from trnprof.render.quality import quality_lines
from trnprof.render.steps import step_title, steps_text
from trnprof.render.text import duration, percent, printable, rate, table, wrapped

TABLE_ABOVE_CORES = 4
"""Captures with more cores than this together are one table instead of a page for each core."""

_ROWS_IN_TEXT = 140
_PAIRS_SHOWN = 3
_FINDINGS_SHOWN = 5
_OPERATIONS_SHOWN = 3
_UNBALANCED = 0.05
"""Pairs that differ by less are not worth a line."""


def ranks_json(view: RankView, *, full: bool) -> dict[str, object]:
    """`result.ranks`: what differs between the cores listed in `result.cores`, and collectives by rank."""
    document: dict[str, object] = {
        "core_count": len(view.rows),
        "empty_inputs": [capture.input for capture in view.empty[: None if full else 8]],
        "window_ns": _spread_json(view.window),
        "parts_ns": {name: _spread_json(spread) for name, spread in view.parts.items()},
        "pairs": [_pair_json(pair) for pair in (view.pairs if full else view.pairs[:_PAIRS_SHOWN])],
        "collectives": None if view.collectives is None else _collectives_json(view.collectives, full=full),
    }
    return document


def _spread_json(spread: RankSpread | None) -> dict[str, object] | None:
    if spread is None:
        return None
    return {
        "median": spread.median_ns,
        "min": spread.min_ns,
        "max": spread.max_ns,
        "max_rank": spread.max_rank,
        "max_input": spread.max_input,
        "max_core": spread.max_core,
    }


def _pair_json(pair: PairBalance) -> dict[str, object]:
    return dict(vars(pair)) | {"imbalance": round(pair.imbalance, 6)}


def _collectives_json(found: AlignedCollectives, *, full: bool) -> dict[str, object]:
    if found.refused is not None:
        return {"refused": printable(found.refused, 400)}
    ranks = sorted(found.ranks, key=lambda rank: (-rank.waiting_ns, rank.input))
    document: dict[str, object] = {
        "aligned_on": "ends",
        "replica_groups": found.grouped,
        "transfer_ns": sum(rank.transfer_ns for rank in ranks),
        "waiting_ns": sum(rank.waiting_ns for rank in ranks),
        "ranks": [dict(vars(rank)) for rank in (ranks if full else ranks[:_PAIRS_SHOWN])],
        "operations": [
            dict(vars(operation)) | {"operation": printable(operation.operation)}
            for operation in (found.operations if full else found.operations[:_OPERATIONS_SHOWN])
        ],
    }
    hidden = [] if full else ranks[_PAIRS_SHOWN:]
    if hidden:
        document["ranks_rest"] = {
            "count": len(hidden),
            "transfer_ns": sum(rank.transfer_ns for rank in hidden),
            "waiting_ns": sum(rank.waiting_ns for rank in hidden),
        }
    return document


def ranks_table(
    view: RankView,
    views: list[AnatomyView],
    quality: tuple[DataQuality, ...],
    findings: tuple[Finding, ...],
) -> str:
    """The report of many cores for a terminal of 80 columns: a table instead of a page for each."""
    first = views[0]
    kinds = sorted({str(each.anatomy.provenance) for each in views})
    facts = [f"{len(views)} captures" if len(views) > 1 else printable(first.path), first.format]
    facts += [first.instance_type or first.anatomy.hardware, f"provenance {', '.join(kinds)}"]
    blocks = ["  ·  ".join(printable(fact) for fact in facts), quality_lines(quality)]
    if len(views) == 1 and first.only_step is not None:
        blocks.append(step_title(first.only_step.window, first.step_count))
    elif len(views) == 1 and first.steps:
        blocks.append(steps_text(first.steps, first.step_count))
    blocks.append(ranks_text(view, [each.path for each in views]))
    blocks += _findings(findings)
    bandwidth = first.anatomy.bandwidth
    blocks.append(wrapped(f"floors: ÷ {rate(bandwidth.bytes_per_s)} [{bandwidth.source}]", indent="  ", first=""))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _findings(findings: tuple[Finding, ...]) -> list[str]:
    """The capture where each code's ceiling is highest, and how many captures have it."""
    worst: dict[str, Finding] = {}
    counts: dict[str, int] = {}
    for finding in findings:
        worst.setdefault(finding.code, finding)
        counts[finding.code] = counts.get(finding.code, 0) + 1
    if not worst:
        return []
    found = [f"{code} {count} times" for code, count in sorted(counts.items()) if count > 1]
    blocks = [findings_text(tuple(worst.values())[:_FINDINGS_SHOWN])]
    if found:
        blocks.append(
            wrapped(
                f"in all: {', '.join(found)}; each is shown where its ceiling is highest", indent="    ", first="  "
            )
        )
    return blocks


def ranks_text(view: RankView, paths: list[str]) -> str:
    """One row a core, then the spread of each part, pairs out of balance, and collectives.

    paths: the inputs' names, which stand below the table where the captures have no ranks.
    """
    unit = unit_for(row.account.window_ns for row in view.rows)
    ranked = bool(view.rows) and all(row.rank is not None for row in view.rows)
    rows = [
        [_label(row, ranked), str(row.account.core), *part_cells(row.account.window_ns, row.account.parts, unit)]
        for row in view.rows
    ]
    hidden = len(rows) - len(rows[:_ROWS_IN_TEXT])
    shown = rows[:_ROWS_IN_TEXT]
    if hidden:
        shown.append([f"+{hidden}", "", *([""] * len(PART_HEADERS))])
    spreads = [view.window, *(view.parts[name] for name in PART_NAMES)]
    for word in ("min", "median", "max"):
        values = [None if spread is None else getattr(spread, f"{word}_ns") for spread in spreads]
        shown.append([word, "", *(time_cell(value, unit) for value in values)])
    shown.append(["max of", "", *("" if spread is None else _place(spread, ranked) for spread in spreads)])
    first = "rank" if ranked else "input"
    blocks = [f"{len(view.rows)} cores, {unit.name}", table([first, "core", *PART_HEADERS], shown, left=1)]
    if not ranked:
        named = sorted({row.input for row in view.rows})
        blocks.append("\n".join(f"  input {place}: {printable(paths[place], 66)}" for place in named[:40]))
    blocks.append(_pairs_text(view.pairs, ranked))
    if ranked and view.collectives is not None:
        blocks.append(_collectives_text(view.collectives))
    return "\n".join(block for block in blocks if block)


def _label(row: RankRow, ranked: bool) -> str:
    return str(row.rank if ranked else row.input)


def _place(spread: RankSpread, ranked: bool) -> str:
    return f"{spread.max_rank if ranked else spread.max_input}/{spread.max_core}"


def _pairs_text(pairs: tuple[PairBalance, ...], ranked: bool) -> str:
    found = [pair for pair in pairs if pair.imbalance >= _UNBALANCED]
    if not found:
        return ""
    lines = [f"{len(found)} of {len(pairs)} pairs are out of balance by 5 % of the busier core's work or more:"]
    for pair in found[:_PAIRS_SHOWN]:
        name = f"rank {pair.rank}" if ranked else f"input {pair.input}"
        lines.append(
            f"  {name}: core {pair.most_core} works {duration(pair.most_work_ns)}, core {pair.least_core} "
            f"{duration(pair.least_work_ns)} ({100 * pair.imbalance:.1f} % less)"
        )
    return "\n".join(lines)


def _collectives_text(found: AlignedCollectives) -> str:
    if found.refused is not None:
        return wrapped(f"collectives across ranks: {printable(found.refused, 400)}", indent="  ", first="")
    total = sum(rank.total_ns for rank in found.ranks)
    waiting = sum(rank.waiting_ns for rank in found.ranks)
    groups = "by replica group" if found.grouped else "all ranks taken to be in every call"
    lines = [
        wrapped(
            f"collectives, aligned on their ends ({groups}): {duration(total)} over all ranks, of which "
            f"{duration(waiting)} ({percent(waiting, total)}) is waiting for the rank that comes last",
            indent="  ",
            first="",
        )
    ]
    rows = [
        [
            printable(operation.operation, 20),
            str(operation.call_count),
            duration(operation.median_ns),
            duration(operation.max_ns),
            f"rank {operation.max_rank}",
            percent(operation.waiting_ns, operation.waiting_ns + operation.transfer_ns),
        ]
        for operation in found.operations[:_OPERATIONS_SHOWN]
    ]
    lines.append(table(["operation", "calls", "median", "max", "max of", "waiting"], rows))
    late = sorted(found.ranks, key=lambda rank: (-rank.late_count, rank.input))[:_PAIRS_SHOWN]
    lines.append(
        "  last most often: "
        + ", ".join(f"rank {rank.rank} ({rank.late_count} of {rank.call_count})" for rank in late if rank.late_count)
    )
    return "\n".join(lines)


def ranks_markdown(view: RankView) -> list[str]:
    """The rows as lines of a Markdown table, in nanoseconds."""
    lines = ["| rank | input | core | " + " | ".join(PART_HEADERS) + " |", "|---:|---:|---:|" + "---:|" * 7]
    for row in view.rows[:_ROWS_IN_TEXT]:
        values = [row.account.window_ns, *vars(row.account.parts).values()]
        cells = " | ".join("not captured" if value is None else f"{value:,}" for value in values)
        lines.append(f"| {'' if row.rank is None else row.rank} | {row.input} | {row.account.core} | {cells} |")
    return [*lines, ""]
