"""Summaries, JSON and text: totals only, an exact window, and one error for everything else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.table_profiles import issue, write_text
from trnprof.errors import InputDataError, InputMissingError
from trnprof.profile import TABLE_SPECS
from trnprof.readers import read_profile
from trnprof.readers.summary import read_summary

METRICS = {
    "total_time": 2.6416626e-05,
    "hbm_read_bytes": 2048000,
    "hbm_write_bytes": 1024000,
    "nc_idx": 9,
    "nd_idx": 0,
    "tensor_engine_active_time": 2.237495e-06,
    "instance_type": "trn2.3xlarge",
    "runtime_version": "2.27.23 (8deec)",
    "cc_op_count": 0,
}

TEXT = """user@host:~$ neuron-profile view --output-format summary-text -n a.neff -s a.ntff
WARN[0000] buffer usage is not simulated for this output format
n_6a9f72dff4d4
    hbm_read_bytes                              2048000
    hbm_write_bytes                             1024000
    instance_type                               trn2.3xlarge
    runtime_version                             2.27.23 (8deec)
    tensor_engine_active_time                   2.237495e-06
    total_time                                  2.6416626e-05
    nc_idx                                      9
    nd_idx                                      0
    cc_op_count                                 0
"""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"n_6a9f": METRICS}),
        json.dumps([METRICS]),
        json.dumps(METRICS),
        json.dumps({"n_6a9f": [METRICS]}),
        TEXT,
        TEXT.replace("\n", "\r\n"),
    ],
)
def test_every_form_of_the_summary_says_the_same(tmp_path: Path, text: str) -> None:
    profile = read_summary(write_text(tmp_path / "s", text))
    assert all(getattr(profile, name) is None for name in TABLE_SPECS), "no events: no tables"
    assert profile.metadata.summary == METRICS
    (core,) = profile.metadata.cores
    # 2.6416626e-05 s is 26,416.626 ns.
    assert (core.window_start_ts, core.window_end_ts) == (0, 26_416)
    assert (core.hbm_read_bytes, core.hbm_write_bytes) == (2_048_000, 1_024_000)
    assert (core.neuroncore_idx, core.neuron_device_idx) == (9, 0)
    assert (profile.metadata.hardware, profile.metadata.versions) == ("trn2", {"runtime": "2.27.23 (8deec)"})
    assert profile.issues == ()


def test_the_format_is_told_from_the_content(tmp_path: Path) -> None:
    assert read_profile(write_text(tmp_path / "x.txt", TEXT)).metadata.format == "summary-text"
    assert read_profile(write_text(tmp_path / "y.txt", json.dumps({"n": METRICS}))).metadata.format == "summary-json"
    (tmp_path / "z").write_bytes(gzip.compress(json.dumps({"n": METRICS}).encode()))
    assert read_profile(tmp_path / "z").metadata.format == "summary-json"


@pytest.mark.parametrize(
    ("seconds", "nanoseconds"),
    [
        ("0.017", 17_000_000),
        ("1.23e-05", 12_300),  # 1.23e-05 * 1e9 is 12299.999999999998 in float64
        ("2.3e-08", 23),
        ("0.1", 100_000_000),
        ('"3.6351609e-05"', 36_351),
        ("12", 12 * 10**9),
        ("0.0000000019", 1),
    ],
)
def test_seconds_become_nanoseconds_in_decimal(tmp_path: Path, seconds: str, nanoseconds: int) -> None:
    profile = read_summary(write_text(tmp_path / "s.json", f'{{"n": {{"total_time": {seconds}}}}}'))
    assert profile.metadata.cores[0].window_end_ts == nanoseconds


@given(st.integers(1, 10**15))
@settings(max_examples=100, deadline=None)
def test_any_number_of_nanoseconds_comes_back(nanoseconds: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = f'{{"n": {{"total_time": {nanoseconds // 10**9}.{nanoseconds % 10**9:09d}}}}}'
        assert read_summary(write_text(Path(folder) / "s", text)).metadata.cores[0].window_end_ts == nanoseconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 bytes"),
        ("{}", "no summary"),
        ("[]", "no summary"),
        ("[1]", "no summary"),
        ('{"a": {"total_time": 1}, "b": {"total_time": 2}}', "2 summaries"),
        ('{"n": {"hbm_read_bytes": 1}}', "no total_time"),
        ('{"n": {"total_time": NaN}}', "not a time above 0"),
        ('{"n": {"total_time": -1}}', "not a time above 0"),
        ('{"n": {"total_time": 0}}', "not a time above 0"),
        ('{"n": {"total_time": "soon"}}', "not a time above 0"),
        ('{"n": {"total_time": 1e400}}', "not a time above 0"),
        ('{"n": {"total_time": [1]}}', "not a time above 0"),
        ('{"n": {"total_time": 1}', "not valid JSON"),
        ("nothing here\n", "no metric"),
        (TEXT + TEXT, "several summaries"),
        (TEXT.replace("total_time", "other_time"), "no total_time"),
    ],
)
def test_what_is_no_summary_is_one_error(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputDataError, match=said) as caught:
        read_summary(write_text(tmp_path / "s", text))
    assert "\n" not in caught.value.message
    assert caught.value.path is not None


def test_metrics_that_are_no_number_are_left_out_and_counted(tmp_path: Path) -> None:
    text = '{"n": {"total_time": 1, "mfu_estimated_percent": NaN, "a": Infinity, "b": 1e999, "c": [1], "d": true}}'
    profile = read_summary(write_text(tmp_path / "s", text))
    assert profile.metadata.summary == {"total_time": 1}
    assert issue(profile, "DQ020")[0] == 3, "NaN, Infinity, and 1e999, which no float64 holds"
    json.dumps(profile.metadata.summary, allow_nan=False)


def test_a_large_file_is_no_summary(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="no summary"):
        read_summary(write_text(tmp_path / "s", "{" + " " * (17 << 20) + "}"))


def test_what_is_not_there_is_another_error(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError):
        read_summary(tmp_path / "absent")


def test_the_summary_inside_a_real_profile_gives_the_real_window(captures: Path, tmp_path: Path) -> None:
    raw = json.loads(gzip.decompress((captures / "fused_fp32_s512" / "neuron_profile.json.gz").read_bytes()))
    profile = read_summary(write_text(tmp_path / "s.json", json.dumps({"n_1": raw["summary"][0]})))
    assert profile.metadata.cores[0].window_end_ts == raw["metadata"][0]["last_hw_timestamp"]
    assert profile.metadata.cores[0].hbm_read_bytes == raw["summary"][0]["hbm_read_bytes"]
