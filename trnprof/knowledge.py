"""What is publicly known to have won or lost on Trainium: knowledge.toml, read and searched."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Knowledge:
    """One thing that somebody tried or measured, and published."""

    id: str
    outcome: str
    """win, loss, mixed (both, by case) or limit (a measured fact that bounds what can be won)."""
    what: str
    where: str
    """Model, shapes, hardware."""
    result: str
    """Figures of that system; never a promise for another one."""
    why: str
    source: str
    skills: tuple[str, ...]
    """The skills that use it."""
    tags: tuple[str, ...]
    """Words and finding codes that it is found by."""


@cache
def all_knowledge() -> tuple[Knowledge, ...]:
    """Every entry, in the file's order."""
    text = resources.files("trnprof").joinpath("knowledge.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    return tuple(
        Knowledge(
            **entry
            | {
                "source": document["sources"][entry["source"]],
                "skills": tuple(entry["skills"]),
                "tags": tuple(entry["tags"]),
            }
        )
        for entry in document["entry"]
    )


def search_knowledge(query: str) -> tuple[Knowledge, ...]:
    """The entries that the words of `query` point at, the best first; all of them for an empty query.

    A word matches the start of a word. Entries with more of the query's words come first; then those with whole words, in
    their id, tags or outcome; then the file's order. Entries with none of them are left out.
    """
    words = _words(query)
    if not words:
        return all_knowledge()
    ranked = []
    for place, entry in enumerate(all_knowledge()):
        named = _words(" ".join((entry.id, entry.outcome, *entry.tags)))
        other = _words(" ".join((entry.what, entry.where, entry.result, entry.why, *entry.skills)))
        scores = [_score(word, named, other) for word in words]
        if any(scores):
            ranked.append((-sum(score > 0 for score in scores), -sum(scores), place, entry))
    return tuple(entry for *_, entry in sorted(ranked, key=lambda row: row[:3]))


def _score(word: str, named: set[str], other: set[str]) -> int:
    if word in named:
        return 4
    if any(one.startswith(word) for one in named):
        return 3
    return 2 if word in other else int(any(one.startswith(word) for one in other))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
