"""Results cross the process boundary as JSON and come back checked."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.analyzers.predicted_dma import ElementBytes, TimeRange
from trnprof.errors import InconsistencyError
from trnprof.findings import Finding
from trnprof.nki.plain_data import from_plain, to_plain


@dataclass(frozen=True)
class Sample:
    name: str
    share: float | None
    sizes: tuple[ElementBytes, ...]
    pair: tuple[str, int]
    table: dict[str, TimeRange]
    flag: bool
    free: dict[str, object]


ranges = st.builds(TimeRange, *[st.integers(0, 1 << 60)] * 3)
samples = st.builds(
    Sample,
    st.text(),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.builds(ElementBytes, *[st.integers()] * 3)).map(tuple),
    st.tuples(st.text(), st.integers()),
    st.dictionaries(st.text(), ranges),
    st.booleans(),
    st.dictionaries(st.text(), st.integers() | st.text() | st.none()),
)


@given(samples)
def test_round_trip(sample: Sample) -> None:
    assert from_plain(Sample, json.loads(json.dumps(to_plain(sample)))) == sample


def test_a_finding_comes_back() -> None:
    finding = Finding("DMA001", "t", 12, 0.5, {"source": "k.py:3", "bytes": 4}, "a")
    assert from_plain(Finding, to_plain(finding)) == finding


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"low": 1, "mid": 2},
        {"low": 1, "mid": 2, "high": "3"},
        {"low": 1, "mid": 2, "high": True},
        {"low": 1, "mid": 2, "high": 3, "more": 4},
    ],
)
def test_anything_else_is_refused(data: object) -> None:
    with pytest.raises(InconsistencyError):
        from_plain(TimeRange, data)
