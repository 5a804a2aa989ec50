"""A bar on a terminal, for what takes longer than a second; nothing elsewhere. Work in processes of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from trnprof.cli import progress as progress_module
from trnprof.cli.progress import Progress
from trnprof.errors import InputDataError
from trnprof.parallel import in_processes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, seconds_a_step: float) -> str:
    clock = iter(seconds_a_step * step for step in range(100))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with Progress("reading", stream=stream) as bar:
        for _ in range(10):
            bar.advance(10, 100)
    return stream.getvalue()


def test_a_terminal_sees_a_bar_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = run(Terminal(), monkeypatch, 0.5)
    assert "reading" in drawn and " 50 %" in drawn and "100 %" in drawn
    assert drawn.endswith("\r\x1b[K") and "\n" not in drawn


def test_what_is_quick_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(Terminal(), monkeypatch, 0.05) == ""


def test_a_file_or_pipe_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(io.StringIO(), monkeypatch, 0.5) == ""


def square(number: int) -> int:
    return number * number


def kill_yourself(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), 9)
    return number


def refuse(number: int) -> int:
    raise InputDataError("no", path=f"file {number}", code="DQ022")


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_item_is_done_once(jobs: int) -> None:
    assert dict(in_processes(square, range(7), jobs=jobs)) == {number: number * number for number in range(7)}


def test_a_killed_process_is_an_error_with_advice() -> None:
    with pytest.raises(InputDataError, match="--jobs 1"):
        list(in_processes(kill_yourself, range(6), jobs=2))


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_come_back_whole(jobs: int) -> None:
    with pytest.raises(InputDataError) as error:
        list(in_processes(refuse, range(3), jobs=jobs))
    assert (error.value.message, error.value.code) == ("no", "DQ022") and error.value.path in ("file 0", "file 1")


def test_pandas_is_left_out_and_can_still_be_imported() -> None:
    """In a process of its own: the switch is for good."""
    code = (
        "import sys; from trnprof.lean_start import leave_pandas_out; leave_pandas_out(); import pyarrow as pa; "
        "pa.array([1, None]); pa.array(['a']); assert 'pandas' not in sys.modules; import pandas; pandas.DataFrame()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
