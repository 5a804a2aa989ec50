"""A sweep's ranking as text, Markdown and the envelope's `result`."""

from __future__ import annotations

from typing import Any

from trnprof.nki.sweep import Sweep, SweepPoint
from trnprof.render.dma_predict import markdown_table, path_end, range_text
from trnprof.render.dma_predict_json import fitting
from trnprof.render.markdown import escaped
from trnprof.render.text import byte_count, duration, printable, table, wrapped

_SHOWN = 20


def sweep_json(sweep: Sweep, *, kernel: str, full: bool) -> dict[str, Any]:
    """`result` of a sweep: points ranked, the infeasible ones last with why."""
    feasible = sum(point.infeasible is None for point in sweep.points)

    def with_points(count: int) -> dict[str, Any]:
        return {
            "provenance": "predicted",
            "kernel": kernel,
            "sweep": list(sweep.names),
            "point_count": len(sweep.points),
            "feasible_count": feasible,
            "points": [_point_json(point, rank) for rank, point in enumerate(sweep.points[:count], 1)],
            "points_rest_count": len(sweep.points) - count,
        }

    return with_points(len(sweep.points)) if full else fitting(with_points, min(_SHOWN, len(sweep.points)))


def _point_json(point: SweepPoint, rank: int) -> dict[str, Any]:
    row: dict[str, Any] = {"values": dict(point.values)}
    if point.infeasible is not None:
        row["infeasible"] = point.infeasible[:240]
    else:
        row["rank"] = rank
    if point.prediction is not None:
        predicted = point.prediction.predicted
        total = predicted.total
        if total is not None:
            row |= {
                "hbm_read_bytes": total.hbm_read_bytes,
                "hbm_write_bytes": total.hbm_write_bytes,
                "dma_count": total.dma_count,
                "descriptor_count": total.descriptor_count,
                "time_ns": {"low": total.time_ns.low, "mid": total.time_ns.mid, "high": total.time_ns.high},
            }
        row["sbuf_peak_bytes_per_partition"] = predicted.sbuf.peak_bytes_per_partition
    return row


def sweep_text(sweep: Sweep, *, kernel_file: str, kernel: str) -> str:
    """The ranking for an 80-column terminal."""
    feasible = [point for point in sweep.points if point.infeasible is None]
    lines = [
        f"{path_end(kernel_file)}: {printable(kernel, 40)}",
        f"predicted, {len(feasible)} of {len(sweep.points)} points feasible, best mid time first",
        "",
    ]
    rows = []
    for rank, point in enumerate(feasible, 1):
        rows.append([str(rank), *(printable(value, 24) for _, value in point.values), *_cells(point)])
    if rows:
        lines.append(table(["#", *sweep.names, "read", "written", "DMAs", "descr.", "mid", "SBUF B"], rows, left=1))
    best = _range_of(feasible[0]) if feasible else None
    if best:
        lines += ["", f"  best: {best}  (low .. mid .. high)"]
    infeasible = [point for point in sweep.points if point.infeasible is not None]
    if infeasible:
        lines += ["", "infeasible:"]
        for point in infeasible:
            label = ", ".join(f"{name}={value}" for name, value in point.values)
            lines.append(
                wrapped(f"{printable(label, 60)}: {printable(point.infeasible, 300)}", indent="      ", first="  ")
            )
    return "\n".join(lines) + "\n"


def _cells(point: SweepPoint) -> list[str]:
    assert point.prediction is not None
    predicted = point.prediction.predicted
    total = predicted.total
    sbuf = f"{predicted.sbuf.peak_bytes_per_partition:,}"
    if total is None:
        return ["symbolic"] * 5 + [sbuf]
    return [
        byte_count(total.hbm_read_bytes),
        byte_count(total.hbm_write_bytes),
        f"{total.dma_count:,}",
        f"{total.descriptor_count:,}",
        duration(total.time_ns.mid),
        sbuf,
    ]


def _range_of(point: SweepPoint) -> str | None:
    total = point.prediction.predicted.total if point.prediction else None
    return None if total is None else range_text(total.time_ns)


def sweep_markdown(sweep: Sweep, *, kernel_file: str, kernel: str) -> str:
    """The ranking as Markdown."""
    out = [f"# Sweep of {escaped(kernel)}", "", f"{escaped(kernel_file)}, predicted; best mid time first.", ""]
    rows = []
    for rank, point in enumerate(sweep.points, 1):
        values = [escaped(value) for _, value in point.values]
        if point.infeasible is None:
            rows.append([str(rank), *values, *_cells(point), ""])
        else:
            rows.append(["", *values, *[""] * 6, escaped(point.infeasible)])
    header = [
        "#",
        *map(escaped, sweep.names),
        "read",
        "written",
        "DMAs",
        "descriptors",
        "mid",
        "SBUF B",
        "infeasible because",
    ]
    return "\n".join([*out, *markdown_table(header, rows)]) + "\n"
