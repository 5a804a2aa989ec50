"""`trnprof fit` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.timelines import timeline
from trnprof.cli import run
from trnprof.writers.explorer_parquet import write_explorer_parquet


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Steps of 16 + 1.1 us a row."""
    folder = tmp_path_factory.mktemp("batches")
    paths = {}
    for rows in (1, 4, 8):
        end = 16_000 + 1_100 * rows
        paths[rows] = folder / f"b{rows}@latest"
        write_explorer_parquet(timeline((0, end), instructions=[("PE", 0, end)]), paths[rows])
    return paths


def test_fixed_cost_and_cost_per_row(capsys: pytest.CaptureFixture[str], batches: dict[int, Path]) -> None:
    named = [f"{rows}={path}" for rows, path in batches.items()]
    assert run(["fit", *named, "--format", "json"]) == 0
    text = capsys.readouterr().out
    assert len(text) <= 8192
    envelope = json.loads(text)
    assert envelope["schema"] == "trnprof.fit/1" and envelope["result"]["sizes"] == [1, 4, 8]
    (core,) = envelope["result"]["cores"]
    assert (core["window"]["fixed_ns"], core["window"]["per_row_ns"]) == (16_000, 1_100)
    assert [point["window_ns"] for point in core["points"]] == [17_100, 20_400, 24_800]
    assert sum(line["per_row_ns"] for line in core["parts"].values() if line) == 1_100
    assert run(["fit", *named]) == 0
    shown = capsys.readouterr().out
    assert "= window 16.000 us 1.100 us 0 ns" in " ".join(shown.split())
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert run(["fit", *named, "--format", "md"]) == 0
    assert "| window | 16,000 | 1,100.0 | 0.0 |" in capsys.readouterr().out


def test_two_sizes_say_nothing_of_residuals(capsys: pytest.CaptureFixture[str], batches: dict[int, Path]) -> None:
    assert run(["fit", f"1={batches[1]}", f"8={batches[8]}"]) == 0
    assert "two batch sizes always fit a line" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["step.ntff", "=a", "8=", "x=a", "0=a", "-1=a", "1.5=a", "9999999999=a", "²=a"])
def test_what_is_no_batch(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert run(["fit", text, "2=b"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_size_is_no_fit(capsys: pytest.CaptureFixture[str], batches: dict[int, Path]) -> None:
    assert run(["fit", f"8={batches[8]}", f"8={batches[8]}"]) == 2
    assert "two batch sizes" in capsys.readouterr().err
    assert run(["fit", "8=absent.ntff", f"1={batches[1]}"]) == 66
