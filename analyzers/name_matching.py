"""Names of two builds matched: the same operation carries another hash or number in each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_TOKEN = re.compile(r"(?<=[_.+\-/@#:])([0-9a-fA-F]{4,64}|\d{12,64})(?=$|[_.+\-/@#:])")
_DATA_TYPES = frozenset({"bf16"})
"""Hexadecimal by accident."""


@dataclass(frozen=True)
class NameMatch:
    """One thing under its names before and after; either may be empty."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    renamed: bool
    """Matched, but not by the same name."""

    @property
    def name(self) -> str:
        """What to call it: the name after, or what the names have in common where there are several."""
        names = self.after or self.before
        return names[0] if len(names) == 1 else without_hashes(names[0])


def match_names(before: Collection[str], after: Collection[str]) -> tuple[NameMatch, ...]:
    """Every name of both sides in exactly one match, sorted.

    First the same names. Then what is the same without build hashes (all of them together, where a build has several).
    Then, of the rest, pairs that are alone on both sides with what is the same without any number.
    """
    matches = [NameMatch((name,), (name,), False) for name in set(before) & set(after)]
    left, right = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    for key, only_pairs in ((without_hashes, False), (without_numbers, True)):
        groups = _grouped(left, right, key)
        for first, second in groups.values():
            if first and second and (not only_pairs or len(first) == len(second) == 1):
                matches.append(NameMatch(tuple(first), tuple(second), True))
                left = [name for name in left if name not in first]
                right = [name for name in right if name not in second]
    matches += [NameMatch((name,), (), False) for name in left]
    matches += [NameMatch((), (name,), False) for name in right]
    return tuple(sorted(matches, key=lambda match: (match.name, match.before, match.after)))


def without_hashes(name: str) -> str:
    """The name without build hashes and uuids: fusion.12_a1b2 is fusion.12; numbers and words stay (layer_1024, _bf16)."""
    return re.sub(r"[_.+\-/@#:]+$", "", re.sub(r"([_.+\-/@#:])\1+", r"\1", _TOKEN.sub(_drop_hash, _UUID.sub("", name))))


def _drop_hash(match: re.Match[str]) -> str:
    text = match.group(0)
    is_word_or_number = text.isalpha() or (text.isdigit() and len(text) < 12)
    return text if is_word_or_number or text.lower() in _DATA_TYPES else ""


def without_numbers(name: str) -> str:
    """The name without hashes, and with every number as #: fusion.12_a1b2 is fusion.#."""
    return re.sub(r"\d+", "#", without_hashes(name))


def _grouped(left: list[str], right: list[str], key: Callable[[str], str]) -> dict[str, tuple[list[str], list[str]]]:
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for side, names in enumerate((left, right)):
        for name in names:
            groups.setdefault(key(name), ([], []))[side].append(name)
    return groups
