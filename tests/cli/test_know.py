"""`trnprof know`: entries are whole, found by word and by code, and say whose figures they are."""

from __future__ import annotations

import json

import pytest

from trnprof.cli import run
from trnprof.finding_codes import FINDING_CODES
from trnprof.knowledge import all_knowledge, search_knowledge
from trnprof.nki.hazard_codes import HAZARD_CODES


def test_entries_are_whole() -> None:
    entries = all_knowledge()
    assert len({entry.id for entry in entries}) == len(entries) >= 40
    for entry in entries:
        assert entry.outcome in ("win", "loss", "mixed", "limit")
        assert all((entry.what, entry.where, entry.result, entry.why, entry.source, entry.skills, entry.tags)), entry.id
        assert any(char.isdigit() for char in entry.result) or entry.outcome != "limit", f"{entry.id}: a figure"
        codes = {tag for tag in entry.tags if tag.isupper() and tag[-3:].isdigit()}
        assert codes <= set(FINDING_CODES) | set(HAZARD_CODES), entry.id
    assert {entry.outcome for entry in entries} == {"win", "loss", "mixed", "limit"}


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("psum", "psum-two-groups"),
        ("HAZ003", "collective-without-fence"),
        ("selective expert", "selective-expert-decode"),
        ("zero-pad", "zero-pad-in-projection"),
        ("2 % bar", "two-percent-bar"),
    ],
)
def test_search(query: str, first: str) -> None:
    assert search_knowledge(query)[0].id == first


def test_more_of_the_words_come_first() -> None:
    found = search_knowledge("gdn state page")
    assert found[0].id == "pack-recurrent-and-conv-state" and len(found) > 3
    assert search_knowledge("") == all_knowledge()
    assert search_knowledge("zzzz") == ()


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["know", "moe", "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["entry_count"] == len(result["entries"]) + len(result["rest_ids"]) > 3
    assert "never a promise" in result["note"]
    for form in ("text", "md"):
        assert run(["know", "VEC001", "--format", form]) == 0
        printed = capsys.readouterr().out
        assert "153 ns" in printed and "RunAnywhere" in printed
    assert run(["know", "zzzz"]) == 0
    assert "nothing is known" in capsys.readouterr().out
