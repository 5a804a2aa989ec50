"""Markdown that a name from a capture cannot break out of."""

from __future__ import annotations

import re

from trnprof.render.text import printable


def escaped(text: object) -> str:
    """`text` as one line in which no character is markup."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~&])", r"\\\1", printable(text))
