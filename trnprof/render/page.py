"""The frame of the HTML pages: one file, locked down, that loads nothing, and whose figures are the JSON report's.

A template sees the report only as `Node`s, which know where in the JSON they lie; a figure passes a filter, which
writes it as <data value="..." data-path="..."> so that a test, or a reader, can look it up.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from trnprof.render.text import byte_count, duration, flop_rate, percent, printable, rate


class Node:
    """A value of the report and the path to it: Node(report, "").result.cores[0] has the path result.cores[0]."""

    __slots__ = ("json_path", "raw")

    def __init__(self, raw: Any, json_path: str) -> None:
        self.raw = raw
        self.json_path = json_path

    def __getattr__(self, key: str) -> Node:
        if not isinstance(self.raw, dict) or key not in self.raw:
            raise AttributeError(key)
        return self._inside(key)

    def __getitem__(self, key: str | int | slice) -> Any:
        """One entry, or a list of them for a slice."""
        if isinstance(key, slice):
            return [self._inside(index) for index in range(*key.indices(len(self.raw)))]
        return self._inside(key)

    def __iter__(self) -> Iterator[Node]:
        return (self._inside(key) for key in (range(len(self.raw)) if isinstance(self.raw, list) else self.raw))

    def _inside(self, key: str | int) -> Node:
        path = f"{self.json_path}[{key}]" if isinstance(key, int) else f"{self.json_path}.{key}".lstrip(".")
        return Node(self.raw[key], path)

    def __len__(self) -> int:
        return len(self.raw)

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __html__(self) -> str:
        return str(escape(printable(self.raw, 400)))

    def __str__(self) -> str:
        return printable(self.raw, 400)


def page(
    template: str,
    document: dict[str, object],
    *,
    title: str,
    data: dict[str, object],
    scripts: tuple[str, ...],
    with_plotly: bool,
    context: dict[str, object],
) -> str:
    """One HTML page.

    template: a file of trnprof.templates that extends page.html.j2.
    document: the JSON report; it is embedded as #report, and the template sees it as `report`.
    data: further documents for the scripts, by element id. scripts: files of trnprof.templates, run in this order.
    with_plotly: embed plotly.js (compressed) for them.
    context: further values for the template. Raises jinja2.UndefinedError where the template asks for what is not there.
    """
    texts = [_template_text(name) for name in scripts]
    library = _plotly() if with_plotly else ""
    embedded = {"report": document, **data}
    return (
        _environment()
        .get_template(template)
        .render(
            report=Node(document, ""),
            title=title,
            command=str(document["schema"]).removeprefix("trnprof.").partition("/")[0],
            policy=_policy([*texts, library] if library else texts),
            style=Markup(_template_text("page.css")),
            scripts=[Markup(text) for text in texts],
            plotly=Markup(_compressed(library)) if library else "",
            documents={name: Markup(json_for_script(value)) for name, value in embedded.items()},
            **context,
        )
    )


def json_for_script(value: object) -> str:
    """JSON that no HTML parser can see the end of a script element in, and no old script parser a line break."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: list[str]) -> str:
    """Only the scripts of this very file may run, and nothing may be loaded or sent."""
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


@cache
def _plotly() -> str:
    """plotly.js as the Python package carries it (MIT licence, said in its first lines)."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


@cache
def _compressed(text: str) -> str:
    """gzip in base64: plotly.js is 4.8 MB plain and 2 MB so; charts.js unpacks it."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def _template_text(name: str) -> str:
    return files("trnprof.templates").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trnprof.templates", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ns": lambda node: _figure(node, duration(node.raw), "ns"),
        "bytes": lambda node: _figure(node, byte_count(node.raw), "bytes"),
        "count": lambda node: _figure(node, f"{node.raw:,}", "count"),
        "rate": lambda node: _figure(node, rate(node.raw), "rate"),
        "rate_from": lambda node, to: _figure(node, _without_unit(rate(node.raw), rate(to.raw)), "rate_from", to),
        "fraction": lambda node: _figure(node, f"{100 * node.raw:.1f} %", "fraction"),
        "share": lambda node, whole: _figure(node, percent(node.raw or 0, whole.raw or 0), "share", whole),
        "ratio": lambda node, part: _figure(node, f"{node.raw / part.raw:.2f} ×", "ratio", part),
        "per_ns": lambda node, ns: _figure(node, rate(node.raw * 1e9 / ns.raw), "per_ns", ns),
        "mean": lambda node, count: _figure(node, duration(round(node.raw / count.raw)), "mean", count),
        "flop_rate": lambda node: _figure(node, flop_rate(node.raw), "flop_rate"),
        "number": lambda node: _figure(node, f"{node.raw:,.2f}", "number"),
        "signed": lambda node: _figure(node, signed(node.raw, duration), "signed"),
        "signed_bytes": lambda node: _figure(node, signed(node.raw, byte_count), "signed_bytes"),
        "signed_count": lambda node: _figure(node, signed(node.raw, lambda count: f"{count:,}"), "signed_count"),
        "signed_share": lambda node: _figure(node, signed(node.raw, _share_text), "signed_share"),
        "plain_signed_share": lambda node: signed(node.raw, _share_text),
        "plain_fraction": lambda node: f"{100 * node.raw:.1f} %",
        "moved": lambda node: [row for row in node if row.raw["delta"]],
        "until": lambda node, end: _figure(node, duration(end.raw - node.raw), "until", end),
        "bound_sign": lambda bounds, part: {"lower": "≥ ", "upper": "≤ "}.get(bounds.raw.get(part), ""),
        "plain_share": lambda node, whole: percent(node.raw or 0, whole.raw or 0),
        "pairs": lambda node: [(key, node[key]) for key in node.raw],
        "base_name": lambda node: printable(str(node.raw).rstrip("/").rpartition("/")[2], 80),
    }
    return environment


def signed(value: Any, text: Callable[[Any], str]) -> str:
    """A difference with its sign: +18.000 us, −3 ns, 0 ns."""
    return f"{'−' if value < 0 else '+' if value > 0 else ''}{text(abs(value))}"


def _share_text(share: float) -> str:
    return f"{100 * share:.2f} %"


def _without_unit(text: str, other: str) -> str:
    """The lower end of a range: its unit is left to the upper end where that is the same."""
    number, _, unit = text.partition(" ")
    return number if other.endswith(f" {unit}") else text


def _figure(node: Node, text: str, unit: str, other: Node | None = None) -> Markup:
    """A figure with its value, its unit and its path; `other` is what a derived figure is taken of."""
    of = Markup(' data-of="{}"').format(other.json_path) if other is not None else ""
    return Markup('<data value="{}" data-unit="{}" data-path="{}"{}>{}</data>').format(
        node.raw, unit, node.json_path, of, text
    )
