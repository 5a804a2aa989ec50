"""The page in headless Chromium: it runs without a complaint, asks for nothing, fits, and shows the JSON's figures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page, browser_page, find_browser
from tests.render.test_html import HOSTILE, hostile_profile, page_of
from trnprof.cli import run
from trnprof.demo import published_step
from trnprof.writers.explorer_parquet import write_explorer_parquet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    program = find_browser()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium on CI, where .ci/run installs it")
        pytest.skip("no Chromium here (apt-get install chromium, or name one in CHROMIUM)")
    with browser_page(program) as page:
        yield page
        assert page.complaints == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled step's page and JSON."""
    folder = tmp_path_factory.mktemp("page")
    write_explorer_parquet(published_step(), folder / "step@latest")
    arguments = ["anatomy", str(folder / "step@latest"), "--format", "json", "--full"]
    assert run([*arguments, "--html", str(folder / "out.html"), "--output", str(folder / "out.json")]) == 0
    return folder


@pytest.fixture
def opened(browser: Page, folder: Path) -> Page:
    browser.complaints.clear()
    browser.requests.clear()
    browser.resize(1280, 900)
    browser.open(folder / "out.html")
    return browser


def test_no_complaint_and_no_request_but_the_page_itself(opened: Page, folder: Path) -> None:
    assert opened.complaints == []
    assert opened.requests == [(folder / "out.html").as_uri()]


@pytest.mark.parametrize("width", [1280, 390, 320])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_sideways(opened: Page, width: int, dark: bool) -> None:
    opened.resize(width, 900, dark=dark)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []


def test_figures_on_the_screen_are_the_jsons(opened: Page, folder: Path) -> None:
    report = json.loads((folder / "out.json").read_text("utf-8"))
    shown = opened.evaluate(
        """Object.fromEntries([...document.querySelectorAll('data[data-unit="ns"]')]
           .filter(element => element.checkVisibility()).map(element => [element.dataset.path, element.value]))"""
    )
    for index, core in enumerate(report["result"]["cores"]):
        for part, value in core["parts_ns"].items():
            assert shown[f"result.cores[{index}].parts_ns.{part}"] == str(value)


INK = """(() => { const canvas = document.querySelectorAll("canvas")[%d], pen = canvas.getContext("2d");
  const data = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return [canvas.width, canvas.height, new Set(data).size, data.reduce((sum, value) => (sum * 31 + value) >>> 0, 7)]; })()"""


def test_the_timeline_is_drawn_and_zooms_by_keyboard(opened: Page) -> None:
    """Each core has a canvas with more than a few colours on it; + changes what is drawn, 0 brings it back."""
    assert opened.evaluate("document.querySelectorAll('canvas').length") == 2
    opened.evaluate("document.querySelector('canvas').focus()")
    width, height, colours, whole = opened.evaluate(INK % 0)
    assert (width > 800, height > 250, colours > 8) == (True, True, True)
    opened.press("+")
    assert opened.evaluate(INK % 0)[3] != whole
    opened.press("0")
    assert opened.evaluate(INK % 0)[3] == whole


def test_a_column_is_read_out_by_keyboard(opened: Page) -> None:
    """In the middle of the first gap (68,390 to 90,470 ns) the vector engine is blocked and the core waits."""
    opened.evaluate("document.querySelector('canvas').focus()")
    opened.press("1")
    text = opened.evaluate("document.querySelector('.readout').textContent")
    assert "in-kernel wait 100 %" in text
    assert "vector 0 % (blocked 100 %)" in text
    start, _, end = text.partition(" ns:")[0].partition(" to ")
    assert 68_390 <= int(start.replace(",", "")) < int(end.replace(",", "")) <= 90_470


def test_a_gaps_button_shows_it_in_the_timeline(opened: Page) -> None:
    opened.evaluate("document.querySelectorAll('button.gap[data-core=\"1\"]')[1].click()")
    assert "in-kernel wait 100 %" in opened.evaluate("document.querySelectorAll('.readout')[1].textContent")
    assert opened.evaluate("document.activeElement === document.querySelectorAll('canvas')[1]")


def test_every_control_is_reached_by_tab_and_shows_its_focus(opened: Page) -> None:
    reached = set()
    for _ in range(90):
        opened.press("Tab")
        reached.add(opened.evaluate("document.activeElement.outerHTML.slice(0, 60)"))
    focusable = opened.evaluate(
        "[...document.querySelectorAll('a[href], button, [tabindex=\"0\"]')].map(e => e.outerHTML.slice(0, 60))"
    )
    assert set(focusable) <= reached


def test_charts_are_drawn_to_size_at_every_width(opened: Page) -> None:
    """DMA of two cores here; the roofline needs FLOPs, which the bundled step does not have."""
    for width in (1280, 390):
        opened.resize(width, 900)
        sizes = opened.evaluate(
            "[...document.querySelectorAll('[data-chart]')].map(e => [e.clientWidth, e.querySelector('.main-svg').clientWidth])"
        )
        assert len(sizes) == 2
        for place, drawn in sizes:
            assert place == drawn > 250


def test_the_roofline_of_a_real_capture(browser: Page, captures: Path, tmp_path: Path) -> None:
    capture = captures / "fused_bf16_s512" / "neuron_profile.json.gz"
    assert run(["anatomy", str(capture), "--html", str(tmp_path / "out.html"), "-o", str(tmp_path / "out.txt")]) == 0
    browser.complaints.clear()
    browser.open(tmp_path / "out.html")
    assert browser.complaints == []
    drawn = browser.evaluate("document.querySelector('[data-chart=roofline]').textContent")
    assert "core 0" in drawn
    assert "78.6 TFLOP/s" in drawn


def test_every_part_differs_without_colour(opened: Page) -> None:
    """Each part's fill has a pattern of its own, or none at all."""
    shapes = opened.evaluate(
        "[...document.querySelectorAll('pattern')].map(p => [...p.querySelectorAll('path')].map(e => e.getAttribute('d')).join())"
    )
    assert len(shapes) == len(set(shapes)) == 6


def test_hostile_names_run_nothing(browser: Page, tmp_path: Path) -> None:
    (tmp_path / "hostile.html").write_text(page_of(hostile_profile(), path=HOSTILE[0]).source, "utf-8")
    browser.complaints.clear()
    browser.open(tmp_path / "hostile.html")
    assert browser.complaints == []
    for name in HOSTILE:
        assert browser.evaluate(f"document.body.innerText.includes({json.dumps(name)})"), name


def test_pictures_can_be_taken(opened: Page, tmp_path: Path) -> None:
    """A picture of both widths, kept where TRNPROF_PICTURES names a folder, to be looked at."""
    kept = Path(os.environ.get("TRNPROF_PICTURES", tmp_path))
    for width in (1280, 390):
        opened.resize(width, 900)
        opened.picture(kept / f"anatomy-{width}.png")
        assert (kept / f"anatomy-{width}.png").stat().st_size > 100_000
