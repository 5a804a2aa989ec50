"""What an engine compiles and holds, as JSON, text and Markdown."""

from __future__ import annotations

from typing import Any

from trnprof.engine.config import EngineConfig, ModelConfig
from trnprof.engine.shapes import ShapeList
from trnprof.render.markdown import escaped
from trnprof.render.text import byte_count, printable, table


def plan_json(name: str, model: ModelConfig, engine: EngineConfig, shapes: ShapeList) -> dict[str, Any]:
    """The `result` of trnprof.engine-plan/1; bytes are of the caches in the engine's dtype."""
    element = 2 if engine.dtype == "bfloat16" else 4
    page, state = model.page_bytes(engine.page_size, element), model.state_bytes()
    return {
        "model": printable(name),
        "layers": {
            "linear": model.linear_layers,
            "attention": len(model.mixers) - model.linear_layers,
            "mtp": int(model.mtp),
        },
        "max_context": shapes.max_context,
        "shape_count": len(shapes),
        "shapes": [shape.name for shape in shapes],
        "page": {"tokens": engine.page_size, "bytes": page, "count": engine.pages, "total_bytes": page * engine.pages},
        "state_slot": {"bytes": state, "count": engine.slots, "total_bytes": state * engine.slots},
        "host": {
            "pages": engine.host_pages,
            "snapshots": engine.host_snapshots,
            "total_bytes": page * engine.host_pages + state * engine.host_snapshots,
        },
    }


def plan_text(result: dict[str, Any]) -> str:
    """The same for a terminal: shapes by kind, each line for its greedy and its sampled one."""
    page, slot, host = result["page"], result["state_slot"], result["host"]
    layers = result["layers"]
    lines = [
        f"{result['model']}: {layers['linear']} linear, {layers['attention']} attention, {layers['mtp']} MTP layers",
        f"  context up to {result['max_context']:,} tokens",
        f"  {page['count']:,} pages of {page['tokens']} tokens, {byte_count(page['bytes'])} each, "
        f"{byte_count(page['total_bytes'])}",
        f"  {slot['count']:,} state slots, {byte_count(slot['bytes'])} each, {byte_count(slot['total_bytes'])}",
        f"  host memory: {host['pages']:,} pages, {host['snapshots']:,} snapshots, {byte_count(host['total_bytes'])}",
        "",
        f"{result['shape_count']} compiled shapes, greedy and sampled ones; any other shape is an error",
    ]
    greedy = [name.split("_") for name in result["shapes"] if not name.endswith("_sampled")]
    return "\n".join(lines) + "\n" + table(["kind", "rows", "tokens", "context"], _rows(greedy)) + "\n"


def plan_markdown(result: dict[str, Any]) -> str:
    """The same as Markdown."""
    lines = [f"# {escaped(result['model'])}: {result['shape_count']} compiled shapes", ""]
    lines += ["| shape |", "|---|", *(f"| {escaped(name)} |" for name in result["shapes"])]
    return "\n".join(lines) + "\n"


def _rows(names: list[list[str]]) -> list[list[str]]:
    """One line for each (kind, rows, tokens), with its contexts."""
    contexts: dict[tuple[str, str, str], list[int]] = {}
    for kind, rows, width, context in names:
        contexts.setdefault((kind, rows[1:], width[1:]), []).append(int(context[1:]))
    return [[*key, ", ".join(str(one) for one in sorted(found))] for key, found in contexts.items()]
