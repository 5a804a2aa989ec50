"""Every operation of the table has values or a reason why not, and a test that names it with a known answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trnprof.nki.operations.table import TABLE
from trnprof.nki.values.registry import EVALUATIONS, NOT_EVALUATED
from trnprof.nki.values.run import compute  # noqa: F401  (registers every family)

HERE = Path(__file__).parent
PREFIX = {"isa": "nisa", "language": "nl", "collectives": "ncc"}


@pytest.mark.parametrize("key", sorted(TABLE))
def test_every_operation_is_computed_or_says_why_not(key: tuple[str, str]) -> None:
    assert (key in EVALUATIONS) != (key in NOT_EVALUATED)
    if key in NOT_EVALUATED:
        assert len(NOT_EVALUATED[key]) > 20


def test_nothing_is_computed_that_the_table_does_not_have() -> None:
    assert EVALUATIONS.keys() | NOT_EVALUATED.keys() == TABLE.keys()


def test_every_operation_that_is_computed_has_a_known_answer() -> None:
    text = "\n".join(path.read_text() for path in sorted(HERE.glob("test_values_*.py")) if path != Path(__file__))
    missing = []
    for module, name in sorted(EVALUATIONS):
        # nisa.max8(...), instruction("max8(...)"), a parametrised op="max8" or a table row "gelu": math...
        if not re.search(rf'\b{PREFIX[module]}\.{name}\b|"{name}[("]', text):
            missing.append(f"{module}.{name}")
    assert missing == []
