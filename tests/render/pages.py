"""Reading a page of ours back: its figures, its documents, what it would load or run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class Figure:
    """One <data> element."""

    attributes: dict[str, str]
    text: str = ""


@dataclass
class ParsedPage(HTMLParser):
    """What a browser's parser sees; scripts and styles are raw text to it, as to HTMLParser."""

    source: str
    figures: list[Figure] = field(default_factory=list)
    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._inside: str | None = None
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "data":
            self.figures.append(Figure({name: value or "" for name, value in attrs}))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag in ("data", "script", "style"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside != "style":
            self.text += data
            if self._inside == "data":
                self.figures[-1].text += data

    def document(self, element_id: str) -> Any:
        """One of the JSON documents."""
        texts = [text for attributes, text in self.scripts if attributes.get("id") == element_id]
        assert len(texts) == 1, (element_id, len(texts))
        return json.loads(texts[0])


def at_path(document: Any, path: str) -> Any:
    """The value at result.cores[0].parts_ns.idle."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        document = document[int(index)] if index else document[key]
    return document
