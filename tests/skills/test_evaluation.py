"""Following the decision table of the skill step-anatomy, mechanically and without a model, finds the injected fault.

The interpreter knows what the table's own introduction says and nothing of the codes. Faults are written into a profile's
events (tests/faulty_profiles.py), the profile to disk, and every command goes through the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_profiles import FAULTS, clean_step
from tests.skills.conftest import ROOT
from trnprof.finding_codes import FINDING_CODES
from trnprof.skill_library import bundled_skills
from trnprof.writers.explorer_parquet import write_explorer_parquet

Answer = Callable[..., dict[str, Any]]
Document = dict[str, Any]

TABLE = ROOT / "skills/step-anatomy/references/decision-table.md"


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    code: str
    gives_way_to: tuple[str, ...]
    confirm_with: str
    stands_if: str
    go_on_with: str


def rules() -> dict[str, Rule]:
    """The table, by code."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"[A-Z]+\d{3}", cells[0]):
            found[cells[0]] = Rule(
                cells[0], tuple(cells[1].split()), cells[2].strip("`"), cells[3].strip("`"), cells[4]
            )
    return found


def core_of(anatomy: Document, number: int) -> Document:
    return next(core for core in anatomy["result"]["cores"] if core["core"] == number)


def term(text: str, finding: Document, core: Document, confirm: Document) -> float:
    """The value of one term: a number, a path, a sum or a product of two."""
    if " + " in text:
        return sum(term(part, finding, core, confirm) for part in text.split(" + "))
    if " * " in text:
        factor, rest = text.split(" * ", 1)
        return float(factor) * term(rest, finding, core, confirm)
    if re.fullmatch(r"[\d.]+", text):
        return float(text)
    table = re.fullmatch(r"\[(.+)\] (first|total|most (\w+)|row (\w+)) \. (\w+)", text)
    if table is not None:
        title, which, largest, name, key = table.groups()
        entry = next(
            one for one in confirm["result"]["tables"] if one["title"] == title and one["core"] in (core["core"], None)
        )
        if which == "total":
            return entry["total"][key]
        rows = [row for row in entry["rows"] if not str(row["name"]).startswith("rest (")]
        if largest:
            return max(rows, key=lambda row: row[largest])[key]
        return (next(row for row in rows if row["name"] == name) if name else rows[0])[key]
    value: Any = finding if text.startswith("evidence.") else core
    for part in text.split("."):
        value = value[part]
    return value


def stands(rule: Rule, finding: Document, core: Document, confirm: Document) -> bool:
    left, sign, right = re.fullmatch(r"(.+?) (<|>=|>) (.+)", rule.stands_if).groups()  # type: ignore[union-attr]
    a, b = (term(side, finding, core, confirm) for side in (left, right))
    return {"<": a < b, ">": a > b, ">=": a >= b}[sign]


def follow(answer: Answer, capture: Path) -> str | None:
    """What the table says to attack in a capture, with every command that it asks for; None: nothing."""
    table = rules()
    anatomy = answer("anatomy", capture)
    listed = sorted(anatomy["findings"], key=lambda one: (-(one["ceiling_ns"] or 0), -(one["cost_ns"] or 0)))
    present = {finding["code"] for finding in listed}
    ordered = [one for one in listed if not present & set(table[one["code"]].gives_way_to)]
    ordered += [one for one in listed if one not in ordered]
    for finding in ordered:
        rule = table[finding["code"]]
        words = [str(capture) if word == "step.ntff" else word for word in shlex.split(rule.confirm_with)[1:-2]]
        confirm = answer(*words)
        assert confirm["error"] is None, confirm
        if stands(rule, finding, core_of(anatomy, finding["evidence"]["core"]), confirm):
            return finding["code"]
    return None


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("faults")

    def write(code: str) -> Path:
        path = folder / code
        if not path.exists():
            write_explorer_parquet(FAULTS[code](clean_step()) if code in FAULTS else clean_step(), path)
        return path

    return write


def test_the_table_covers_every_code_and_leads_to_skills() -> None:
    table = rules()
    assert set(table) == set(FINDING_CODES)
    names = {skill.name for skill in bundled_skills()}
    for rule in table.values():
        assert rule.go_on_with in names
        assert set(rule.gives_way_to) <= set(FINDING_CODES)
        assert rule.confirm_with.endswith("--format json")


@pytest.mark.parametrize("code", FAULTS)
def test_the_fault_is_found(code: str, written: Callable[[str], Path], answer: Answer) -> None:
    assert len(FAULTS) >= 12
    assert follow(answer, written(code)) == code


def test_a_clean_step_yields_nothing(written: Callable[[str], Path], answer: Answer) -> None:
    assert follow(answer, written("clean")) is None


def test_a_finding_that_is_not_confirmed_does_not_stand(written: Callable[[str], Path], answer: Answer) -> None:
    """The conditions bite: the evidence of a fault read on the clean step does not stand."""
    clean, table = answer("anatomy", written("clean")), rules()
    for code in ("VEC001", "GPS001", "IDLE001", "WAIT001", "CC001", "RUN001"):
        finding = next(one for one in answer("anatomy", written(code))["findings"] if one["code"] == code)
        assert not stands(table[code], finding, core_of(clean, finding["evidence"]["core"]), clean), code
