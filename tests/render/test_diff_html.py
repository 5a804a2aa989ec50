"""The comparison's page: its figures are the JSON's, nothing runs on it, and equal sides show no change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser import find_browser
from tests.render.pages import ParsedPage
from tests.render.test_html import HOSTILE, assert_figures_are_the_jsons, hostile_profile
from tests.render.test_page_in_browser import browser  # noqa: F401
from tests.timelines import timeline
from trnprof.cli import run
from trnprof.demo import published_step
from trnprof.profile import Profile
from trnprof.writers.explorer_parquet import write_explorer_parquet


def page_of(folder: Path, before: Profile, after: Profile, *more: str) -> tuple[ParsedPage, dict[str, object]]:
    """The page and the full JSON of a comparison, from the command line."""
    for name, profile in (("before", before), ("after", after)):
        write_explorer_parquet(profile, folder / f"{name}@latest", overwrite=True)
    return compared(folder, folder / "before@latest", folder / "after@latest", *more)


def compared(folder: Path, before: Path, after: Path, *more: str) -> tuple[ParsedPage, dict[str, object]]:
    arguments = ["diff", str(before), str(after), *more, "--format", "json", "--full", "--force"]
    assert run([*arguments, "--html", str(folder / "out.html"), "-o", str(folder / "out.json")]) == 0
    report = json.loads((folder / "out.json").read_text("utf-8"))
    return ParsedPage((folder / "out.html").read_text("utf-8")), report


def step(matmul_ns: int, wait_ns: int) -> Profile:
    """A matmul, a wait and an all-reduce of 100 ns, one after the other."""
    at = matmul_ns + wait_ns
    return timeline(
        (0, at + 100),
        instructions=[("PE", 0, matmul_ns), ("ACT", at, at + 100)],
        waits=[("DVE", matmul_ns, at)],
        packets=[(0, matmul_ns, 4096)],
    )


def test_figures_are_the_jsons_and_changes_are_signed(tmp_path: Path) -> None:
    """PE 500 to 400 ns, wait 50 to 80 ns: -100 and +30 of a window that goes from 650 to 580."""
    page, report = page_of(tmp_path, step(500, 50), step(400, 80))
    assert page.document("report") == report
    assert len(page.figures) > 50
    assert_figures_are_the_jsons(page, report)
    shown = {figure.attributes["data-path"]: figure.text for figure in page.figures}
    assert shown["result.cores[0].parts_ns.in_kernel_wait.delta"] == "+30 ns"
    assert shown["result.cores[0].window_ns.delta"] == "−70 ns"
    assert shown["result.verdict.change_share"] == "−10.77 %"
    assert "inconclusive" in page.text


def test_equal_sides_show_no_change(tmp_path: Path) -> None:
    page, report = page_of(tmp_path, published_step(), published_step())
    assert_figures_are_the_jsons(page, report)
    assert {f.attributes["value"] for f in page.figures if f.attributes["data-unit"].startswith("signed")} == {
        "0",
        "0.0",
    }
    assert page.text.count("No change.") >= 4


def test_nothing_runs_and_nothing_is_loaded(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, step(500, 50), step(400, 80))
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None
    assert "script-src 'none'" in policy
    assert all(attributes.get("type") == "application/json" for attributes, _ in page.scripts)
    assert not any({"src", "srcset", "action"} & set(attributes) for _, attributes in page.tags)
    assert len(page.source) < 200_000


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, step(500, 50), hostile_profile())
    assert len(page.scripts) == 1
    assert not any(tag == "img" for tag, _ in page.tags)
    for name in HOSTILE:
        assert name in page.text


def test_real_captures_side_by_side(captures: Path, tmp_path: Path) -> None:
    """The fused kernel against the plain one: 116.923 to 73.289 us; three captures a side have an interval."""
    before, after = (captures / name / "step.ntff" for name in ("baseline_fp32_s1024", "fused_fp32_s1024"))
    page, report = compared(tmp_path, before, after)
    assert_figures_are_the_jsons(page, report)
    assert "116.923 us" in page.text
    assert "−37.32 %" in page.text
    # Both files have one name: the page tells them apart by their folders.
    assert "baseline_fp32_s1024/step.ntff → fused_fp32_s1024/step.ntff" in page.text
    more = ["--before", str(captures / "baseline_fp32_s512" / "step.ntff")]
    more += ["--after", str(captures / "fused_fp32_s512" / "step.ntff")]
    page, report = compared(tmp_path, before, after, *more)
    assert_figures_are_the_jsons(page, report)
    assert "95 % interval" in page.text
    assert "step times" in page.text


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium here; test_page_in_browser fails where that is wrong")
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(browser, width: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    page_of(tmp_path, step(500, 50), hostile_profile())
    browser.complaints.clear()
    browser.requests.clear()
    browser.resize(width, 900)
    browser.open(tmp_path / "out.html")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []
    assert len(browser.requests) == 1
