"""An anatomy or a comparison as one HTML page to look at: every figure is the JSON report's."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from trnprof.analyzers.anatomy import SHORT_INSTRUCTION_NS
from trnprof.analyzers.bounds import BOUND_MEANING
from trnprof.analyzers.diff import GROUPS, Diff
from trnprof.analyzers.timeline import Timeline, draw_timeline
from trnprof.profile import ENGINES, Profile
from trnprof.render.anatomy import PART_NAMES, AnatomyView
from trnprof.render.diff import HBM_NAMES
from trnprof.render.envelope import Report, envelope_json
from trnprof.render.page import Node, json_for_script, page
from trnprof.render.text import printable

PART_ORDER = (
    "memory_floor",
    "busy_beyond_floor",
    "in_kernel_wait",
    "exposed_collective",
    "idle",
    "runtime_overhead",
)
"""From what no program can avoid to what none needs; the waterfall falls in this order."""

CORES_DRAWN = 8
"""Above this the longest windows get a card and a timeline, and all a row in the overview."""

MAX_COLUMNS = 8192
"""Columns of a timeline: eight to a pixel of a wide screen, so that one can zoom in."""

TIMELINE_BYTES = 2_000_000
"""All timelines of a page together, before base64."""

REPORT_BYTES = 3_000_000
"""Above this the page carries the lists that it prints the top of only as far as it prints them."""

ROWS_KEPT = 50
"""Rows of such a list, where the report is cut; more than any table of the page has."""

_SOURCE_NAMES = {
    "line": "source line",
    "layer": "layer",
    "kernel": "kernel",
    "instruction": "compiler instruction",
}


def anatomy_html(report: Report, views: list[AnatomyView], profiles: list[Profile]) -> str:
    """The page of one capture's anatomy or several's.

    report: the command's report with the full result and its details. profiles: the profile of each view, to draw.
    """
    document = json.loads(envelope_json(report))
    cores = [(profile, core) for profile, view in zip(profiles, views, strict=True) for core in view.anatomy.cores]
    shown = sorted(sorted(range(len(cores)), key=lambda index: -cores[index][1].window_ns)[:CORES_DRAWN])
    was_cut = _cut_to_size(document, shown)
    lane_count = 2 * len(ENGINES) + 10
    columns = min(MAX_COLUMNS, TIMELINE_BYTES // (lane_count * max(1, len(shown))))
    timelines = []
    for index in shown:
        profile, account = cores[index]
        core = profile.metadata.cores[account.core]
        mark = document["hardware"]["bandwidth_bytes_per_s"]
        timelines.append(_timeline_json(draw_timeline(profile, core, columns), profile, index, mark))
    result = Node(document, "").result
    details = document["result"]["details"]
    under_the_roof = [index for index in shown if details[index]["roofline"]["arithmetic_intensity"]]
    with_packets = [index for index in shown if (details[index]["dma_efficiency"] or {}).get("data_bytes")]
    return page(
        "anatomy.html.j2",
        document,
        title=f"Anatomy of {printable(views[0].path)}",
        data={"timelines": {"engines": list(ENGINES), "cores": timelines}},
        scripts=("timeline.js", "charts.js"),
        with_plotly=bool(under_the_roof or with_packets),
        context={
            "part_names": PART_NAMES,
            "part_order": PART_ORDER,
            "engine_names": ENGINES,
            "source_names": _SOURCE_NAMES,
            "bound_meaning": BOUND_MEANING,
            "short_ns": SHORT_INSTRUCTION_NS,
            "provenances": list(dict.fromkeys(str(view.anatomy.provenance) for view in views)),
            "shown": [(result.cores[index], result.details[index]) for index in shown],
            "detail_indices": shown,
            "roofline_indices": under_the_roof,
            "hidden_core_count": len(cores) - len(shown),
            "quality_groups": _quality_groups(Node(document, "")),
            "rows_kept": ROWS_KEPT if was_cut else None,
            "several_inputs": len(views) > 1,
            "longest_window_ns": max(core.window_ns for _, core in cores),
            "not_drawn": sum(core.event_count for _, core in cores),
        },
    )


def _quality_groups(report: Node) -> list[list[tuple[Node, int]]]:
    """Data-quality entries by code, the worst code first; of those that say the same the first, and how many there are."""
    codes: dict[str, dict[str, list[Node]]] = {}
    for entry in report.data_quality:
        codes.setdefault(entry.raw["code"], {}).setdefault(entry.raw["message"], []).append(entry)
    found = [[(same[0], len(same)) for same in messages.values()] for messages in codes.values()]
    rank = {severity: at for at, severity in enumerate(("error", "warning", "info"))}
    return sorted(found, key=lambda group: rank[group[0][0].raw["severity"]])


def diff_html(report: Report, diff: Diff) -> str:
    """The page of a comparison. report: the command's report with the full result."""
    document = json.loads(envelope_json(report))
    result = document["result"]
    changes = [abs(core["window_ns"]["delta"] or 0) for core in result["cores"]]
    shown = sorted(sorted(range(len(changes)), key=lambda index: -changes[index])[:CORES_DRAWN])
    was_cut = len(json_for_script(document)) > REPORT_BYTES
    if was_cut:
        result["cores"] = [result["cores"][index] for index in shown]
        shown = list(range(len(shown)))
        for core in result["cores"]:
            core["rows"] = {name: rows and rows[:ROWS_KEPT] for name, rows in core["rows"].items()}
    nodes = Node(document, "").result
    return page(
        "diff.html.j2",
        document,
        title=f"{printable(diff.before_label)} → {printable(diff.after_label)}",
        data={},
        scripts=(),
        with_plotly=False,
        context={
            "part_names": PART_NAMES,
            "part_order": PART_ORDER,
            "engine_names": ENGINES,
            "hbm_names": HBM_NAMES,
            "group_meaning": {name: meaning.removesuffix(", ns") for name, meaning in GROUPS.items()},
            "provenances": list(dict.fromkeys(entry.provenance for entry in report.inputs)),
            "short_names": _short_names(diff.before_label, diff.after_label),
            "result": nodes,
            "shown_cores": [nodes.cores[index] for index in shown],
            "only": {"before": diff.cores_before_only, "after": diff.cores_after_only},
            "hidden_core_count": len(diff.cores) - len(shown),
            "quality_groups": _quality_groups(Node(document, "")),
            "rows_kept": ROWS_KEPT if was_cut else None,
            "several_inputs": False,
        },
    )


def _short_names(before: str, after: str) -> list[str]:
    """The ends of two paths from where they differ: a/step.ntff and b/step.ntff, not step.ntff twice."""
    first, second = before.rstrip("/").split("/"), after.rstrip("/").split("/")
    kept = 1
    while kept < min(len(first), len(second)) and first[-kept:] == second[-kept:]:
        kept += 1
    return [printable("/".join(parts[-kept:]), 60) for parts in (first, second)]


def _cut_to_size(document: dict[str, Any], shown: list[int]) -> bool:
    """Keep a large report's page small: rows that the page does not print go, and so do the details of cores not drawn.

    Returns whether anything went.
    """
    if len(json_for_script(document)) <= REPORT_BYTES:
        return False
    result = document["result"]
    for index, (core, detail) in enumerate(zip(result["cores"], result["details"], strict=True)):
        core["wait_producers"] = core["wait_producers"][:ROWS_KEPT]
        if index not in shown:
            result["details"][index] = {"input": detail["input"], "core": detail["core"]}
            continue
        for rows in (detail["opcodes"], (detail["sources"] or {}).get("rows")):
            del (rows or [])[ROWS_KEPT:]
        dma = detail["dma_efficiency"] or {}
        for name in ("queues", "engines", "sources"):
            del (dma.get(name) or [])[ROWS_KEPT:]
    if len(json_for_script(document)) > REPORT_BYTES:
        kept = ("input", "core", "subgraph", "window_ns", "parts_ns")
        for index, core in enumerate(result["cores"]):
            if index not in shown:
                result["cores"][index] = {key: core[key] for key in kept}
    document["data_quality"] = document["data_quality"][:ROWS_KEPT]
    document["findings"] = document["findings"][:ROWS_KEPT]
    return True


def _timeline_json(timeline: Timeline, profile: Profile, report_index: int, mark_bytes_per_s: int) -> dict[str, object]:
    width = np.diff(timeline.edge_ts)
    rate = None
    if timeline.data_bytes is not None:
        bytes_per_s = timeline.data_bytes / width * 1e9
        scale = max(float(bytes_per_s.max()), 1.1 * mark_bytes_per_s)
        rate = {
            "scale_bytes_per_s": round(scale),
            "mark_bytes_per_s": mark_bytes_per_s,
            "data": _shares(bytes_per_s / scale),
        }
    return {
        "report_index": report_index,
        "core": timeline.core,
        "start_ts": int(timeline.edge_ts[0]),
        "end_ts": int(timeline.edge_ts[-1]),
        "columns": len(width),
        "captured": {"dma": rate is not None, "collectives": profile.collectives is not None},
        "rate": rate,
        "lanes": [[lane.name, lane.kind, _shares(lane.covered_ns / width)] for lane in timeline.lanes],
    }


def _shares(values: np.ndarray) -> str:
    """Shares (0 to 1) as bytes in base64; what is above nothing stays above nothing."""
    return base64.b64encode(np.ceil(255 * np.clip(values, 0, 1)).astype(np.uint8).tobytes()).decode("ascii")
