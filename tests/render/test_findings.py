"""Findings as text, JSON and Markdown: nothing from a capture breaks out, and an answer keeps its size."""

from __future__ import annotations

import json

from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.findings import find_findings
from trnprof.demo import published_step
from trnprof.findings import Finding
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.render.envelope import ANSWER_BYTES, Report, envelope_json, within_answer
from trnprof.render.findings import finding_json, findings_markdown, findings_text

TRN2 = load_hardware("trn2")

HOSTILE = Finding(
    "DMA021",
    "a title",
    12_345,
    0.5,
    {"slowest_queue": "q\x1b[2J\n|<script>", "producers": {"a\nb": 7}, "list": ["x\r"], "core": 0},
    "advice | with pipes",
    0,
)


def test_names_cannot_break_out() -> None:
    text = findings_text((HOSTILE,))
    assert "\x1b" not in text and "\r" not in text and "q\\x1b[2J\\n|<script>" in text
    entry = finding_json(HOSTILE)
    assert json.dumps(entry, ensure_ascii=False).count("\\n") == json.dumps(entry).count("\\\\n")
    assert entry["evidence"]["producers"] == {"a\\nb": 7}  # type: ignore[index]
    (row,) = [line for line in findings_markdown((HOSTILE,)) if line.startswith("| DMA021")]
    assert row.replace("\\|", "").count("|") == 7


def test_text_says_cost_ceiling_and_advice() -> None:
    text = findings_text((HOSTILE,))
    assert "12.345 us (50.0 % of the window), nothing to win: other work covers it" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert findings_text(()) == "" and findings_markdown(()) == []


def test_an_answer_drops_the_lowest_ceilings_and_says_how_many() -> None:
    profile = published_step()
    found = find_findings(profile, measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2)), TRN2)
    report = Report(command="anatomy", findings=found * 8)
    assert len(envelope_json(report)) > ANSWER_BYTES
    shorter = within_answer(report)
    assert len(envelope_json(shorter)) <= ANSWER_BYTES
    assert shorter.findings == report.findings[: len(shorter.findings)]
    rest = shorter.result["findings_rest"]
    assert isinstance(rest, dict) and rest["count"] == len(report.findings) - len(shorter.findings) > 0
    assert within_answer(Report(command="anatomy", findings=found)).findings == found
