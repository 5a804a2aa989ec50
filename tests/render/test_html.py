"""The page: its figures are the JSON's, names cannot break out of it, it loads nothing and stays small."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.render.pages import ParsedPage, at_path
from tests.timelines import timeline
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.data_quality import assess_data_quality
from trnprof.analyzers.detail import measure_detail
from trnprof.analyzers.findings import find_findings
from trnprof.cli import run
from trnprof.demo import published_step
from trnprof.hardware import Bandwidth, load_hardware
from trnprof.profile import Core, Metadata, Profile, Provenance, coded_column, make_table
from trnprof.render.anatomy import AnatomyView, anatomy_json
from trnprof.render.detail import details_json
from trnprof.render.envelope import InputFile, Report
from trnprof.render.html import anatomy_html
from trnprof.render.page import json_for_script
from trnprof.render.text import byte_count, duration, flop_rate, percent, rate
from trnprof.writers.explorer_parquet import write_explorer_parquet

FORMATS: dict[str, Callable[[Any, Any], str]] = {
    "ns": lambda value, _: duration(value),
    "bytes": lambda value, _: byte_count(value),
    "count": lambda value, _: f"{value:,}",
    "rate": lambda value, _: rate(value),
    "fraction": lambda value, _: f"{100 * value:.1f} %",
    "number": lambda value, _: f"{value:,.2f}",
    "flop_rate": lambda value, _: flop_rate(value),
    "per_ns": lambda value, ns: rate(value * 1e9 / ns),
    "mean": lambda value, count: duration(round(value / count)),
    "signed": lambda value, _: sign(value) + duration(abs(value)),
    "signed_bytes": lambda value, _: sign(value) + byte_count(abs(value)),
    "signed_count": lambda value, _: f"{sign(value)}{abs(value):,}",
    "signed_share": lambda value, _: f"{sign(value)}{100 * abs(value):.2f} %",
    "rate_from": lambda value, to: rate(value).partition(" ")[0] if same_unit(value, to) else rate(value),
    "share": lambda value, whole: percent(value, whole),
    "ratio": lambda value, part: f"{value / part:.2f} ×",
    "until": lambda value, end: duration(end - value),
}

HOSTILE = ("</script><script>alert(1)", "{{7*7}}", 'a"b|c', "<img src=x onerror=alert(2)>", "--><!--", "${8*8}")


def page_of(*profiles: Profile, path: str = "step.ntff") -> ParsedPage:
    hardware, bandwidth = load_hardware("trn2"), Bandwidth(336_000_000_000, "test", "measured")
    views, details = [], []
    for profile in profiles:
        anatomy = measure_anatomy(profile, "trn2", bandwidth)
        quality = assess_data_quality(profile, anatomy)
        views.append(AnatomyView(path, "test", None, anatomy, quality, find_findings(profile, anatomy, hardware)))
        details.append(measure_detail(profile, anatomy, hardware))
    report = Report(
        command="anatomy",
        inputs=tuple(InputFile(path, "test", "0" * 64, str(p.metadata.provenance)) for p in profiles),
        hardware={"name": "trn2", "bandwidth_bytes_per_s": bandwidth.bytes_per_s, "source": bandwidth.source},
        data_quality=tuple(entry for view in views for entry in view.data_quality),
        result=anatomy_json(views, full=True) | details_json(details),
        findings=tuple(finding for view in views for finding in view.findings),
    )
    return ParsedPage(anatomy_html(report, views, list(profiles)))


def busy_second(event_count: int) -> Profile:
    """One core, `event_count` vector instructions of 300 ns, one every 400 ns."""
    start = np.arange(event_count, dtype=np.int64) * 400
    rows = {
        "start_ts": start,
        "end_ts": start + 300,
        "pcore_idx": np.zeros(event_count, np.int16),
        "engine": coded_column(np.zeros(event_count, np.int32), ["vector"]),
        "opcode": coded_column(np.zeros(event_count, np.int32), ["TENSOR_TENSOR"]),
    }
    window = Core(core=0, subgraph="sg00", window_start_ts=0, window_end_ts=event_count * 400)
    metadata = Metadata(format="test", provenance=Provenance.MODELLED, cores=(window,))
    return Profile(metadata=metadata, instructions=make_table("instructions", rows))


def sign(value: float) -> str:
    return "−" if value < 0 else "+" if value > 0 else ""


def same_unit(a: float, b: float) -> bool:
    return rate(a).partition(" ")[2] == rate(b).partition(" ")[2]


def assert_figures_are_the_jsons(page: ParsedPage, report: dict[str, object]) -> None:
    """Each <data> carries its path: the value is the JSON's there, the text is that value written out."""
    for figure in page.figures:
        value = at_path(report, figure.attributes["data-path"])
        other = at_path(report, figure.attributes["data-of"]) if "data-of" in figure.attributes else None
        assert figure.attributes["value"] == str(value), figure
        assert figure.text == FORMATS[figure.attributes["data-unit"]](value, other), figure


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[ParsedPage, dict[str, object]]:
    """The bundled step's page and its full JSON, both from the command line."""
    folder = tmp_path_factory.mktemp("page")
    write_explorer_parquet(published_step(), folder / "step@latest")
    arguments = ["anatomy", str(folder / "step@latest"), "--format", "json", "--full"]
    assert run([*arguments, "--html", str(folder / "out.html"), "--output", str(folder / "out.json")]) == 0
    return ParsedPage((folder / "out.html").read_text("utf-8")), json.loads((folder / "out.json").read_text("utf-8"))


def test_the_embedded_report_is_the_json_report(written: tuple[ParsedPage, dict[str, object]]) -> None:
    page, report = written
    assert page.document("report") == report


def test_every_figure_is_the_jsons(written: tuple[ParsedPage, dict[str, object]]) -> None:
    page, report = written
    assert len(page.figures) > 250
    assert_figures_are_the_jsons(page, report)


def test_the_published_step_reads_as_published(written: tuple[ParsedPage, dict[str, object]]) -> None:
    """24.2 ms = 6.1 + 10.0 + 4.6 + 2.8 + 0.7, about 4 times the floor (TrnRT's post)."""
    prefix = "result.cores[0].parts_ns."
    shown = {
        figure.attributes["data-path"].removeprefix(prefix): figure.text
        for figure in written[0].figures
        if figure.attributes["data-path"].startswith(prefix) and figure.attributes["data-unit"] == "ns"
    }
    assert shown == {
        "memory_floor": "6.065 ms",
        "busy_beyond_floor": "10.035 ms",
        "in_kernel_wait": "4.600 ms",
        "exposed_collective": "2.800 ms",
        "idle": "700.000 us",
        "runtime_overhead": "0 ns",
    }
    assert "3.99 ×" in written[0].text


def test_columns_of_the_timeline_are_the_accounts(written: tuple[ParsedPage, dict[str, object]]) -> None:
    """A lane's mean height is its share of the window, up to the rounding up of each column to 1/255."""
    page, report = written
    for core in page.document("timelines")["cores"]:
        account = report["result"]["cores"][core["report_index"]]  # type: ignore[index]
        for name, kind, text in core["lanes"]:
            shares = np.frombuffer(base64.b64decode(text), np.uint8)
            assert len(shares) == core["columns"]
            if name in account["engines"]:
                ns = account["engines"][name]["active_ns" if kind == "busy" else "blocked_ns"]
                assert 0 <= shares.mean() / 255 - ns / account["window_ns"] < 1 / 255


def test_provenance_quality_and_aggregation_are_said(written: tuple[ParsedPage, dict[str, object]]) -> None:
    page, _ = written
    text = " ".join(page.text.split())
    before_the_account = text.partition("Six parts add up")[0]
    assert "modelled" in before_the_account
    assert "Data quality" in before_the_account
    # 2 cores x (125 layers x (380 matmuls + 517 vector + 3 waits + 20 DMA + 1 scalar) + 40,000 packets + 125 collectives)
    assert "aggregated; 310,500 events not drawn" in text
    assert text.count("modelled") >= 2


def test_nothing_is_loaded_and_only_this_files_scripts_may_run(written: tuple[ParsedPage, dict[str, object]]) -> None:
    page, _ = written
    policies = [attributes["content"] or "" for tag, attributes in page.tags if "http-equiv" in attributes]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policies[0].partition("script-src")[2].partition(";")[0]
    allowed = policies[0]
    running = [text for attributes, text in page.scripts if "type" not in attributes]
    assert running
    for script in running:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in allowed
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "action", "formaction"} & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        href = attributes.get("href")
        assert href is None or href.startswith("#") or href == "data:,", href


def hostile_profile() -> Profile:
    """Every name that a page shows is hostile; the engines' names are ours in any profile."""
    count = len(HOSTILE)
    start = np.arange(count, dtype=np.int64) * 100
    instructions = {
        "start_ts": np.concatenate((start, start + 40)),
        "end_ts": np.concatenate((start + 40, start + 90)),
        "pcore_idx": np.zeros(2 * count, np.int16),
        "engine": coded_column(np.zeros(2 * count, np.int32), ["vector"]),
        "opcode": coded_column(
            np.concatenate((np.arange(count), np.full(count, count))).astype(np.int32), [*HOSTILE, "EVENT_SEMAPHORE"]
        ),
        "wait_semaphore_idx": np.concatenate((np.full(count, 999), np.arange(count))).astype(np.int16),
    }
    updates = {
        "timestamp": start + 90,
        "pcore_idx": np.zeros(count, np.int16),
        "id": coded_column(np.arange(count, dtype=np.int32), [f"S[{i}] (q{name})" for i, name in enumerate(HOSTILE)]),
        "semaphore_idx": np.arange(count, dtype=np.int16),
        "value": np.ones(count, np.int64),
    }
    window = Core(core=0, subgraph=HOSTILE[0], window_start_ts=0, window_end_ts=100 * count)
    metadata = Metadata(format="test", provenance=Provenance.MODELLED, cores=(window,))
    return Profile(
        metadata=metadata,
        instructions=make_table("instructions", instructions),
        semaphores=make_table("semaphores", updates),
    )


def test_hostile_names_stay_names() -> None:
    harmless, hostile = (
        page_of(timeline((0, 100), instructions=[("PE", 0, 40)])),
        page_of(hostile_profile(), path=HOSTILE[0]),
    )
    assert len(hostile.scripts) == len(harmless.scripts)
    assert not any(tag == "img" for tag, _ in hostile.tags)
    text = hostile.text
    for name in HOSTILE:
        assert name in text, f"{name} is not shown as it is"
    assert hostile.document("report")["result"]["cores"][0]["subgraph"] == HOSTILE[0]


@pytest.mark.parametrize("name", [*HOSTILE, "\u2028", "]]>", "<!--<script>"])
def test_json_in_a_script_ends_where_it_ends(name: str) -> None:
    text = json_for_script({name: name})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {name: name}


def test_two_million_events_stay_under_ten_megabytes() -> None:
    page = page_of(busy_second(2_000_000))
    assert len(page.source.encode()) < 10_000_000
    assert "aggregated; 2,000,000 events not drawn" in " ".join(page.text.split())


def test_sixty_four_ranks_stay_under_ten_megabytes_and_are_all_listed() -> None:
    page = page_of(*(busy_second(200 + rank) for rank in range(64)))
    assert len(page.source.encode()) < 10_000_000
    assert sum(tag == "figure" for tag, _ in page.tags) == 8
    listed = {
        figure.attributes["data-path"] for figure in page.figures if "window_ns" in figure.attributes["data-path"]
    }
    assert len(listed) == 64
    assert "56 more cores" in page.text
    # Each rank lacks the same tables and step markers: said once, with how often.
    assert "(said 64 times)" in page.text
    assert page.text.count("DQ013") == 1
    # The longest windows are those drawn.
    assert [core["report_index"] for core in page.document("timelines")["cores"]] == list(range(56, 64))


def test_same_input_same_page() -> None:
    assert page_of(hostile_profile()).source == page_of(hostile_profile()).source


def test_tables_not_captured_are_said() -> None:
    full = timeline((0, 100), instructions=[("PE", 0, 40)])
    page = page_of(replace(full, dma_packets=None, collectives=None))
    assert "DMA was not captured" in page.text
    assert "Collectives were not captured" in page.text
    assert page.document("timelines")["cores"][0]["captured"] == {"dma": False, "collectives": False}


@pytest.mark.parametrize("name", ["moe_megakernel/step.ntff", "fused_bf16_s512/neuron_profile.json.gz"])
def test_real_capture(name: str, captures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The NTFF has no transposes marked and no names; the vendor's JSON has all: roofline, metrics, sources."""
    command = ["anatomy", str(captures / name), "--format", "json", "--full", "-o", "-"]
    assert run([*command, "--html", str(tmp_path / "out.html")]) == 0
    printed = capsys.readouterr()
    page = ParsedPage((tmp_path / "out.html").read_text("utf-8"))
    report = json.loads(printed.out)
    assert page.document("report") == report
    assert_figures_are_the_jsons(page, report)
    assert "measured-device" in page.text
    assert printed.err.startswith("trnprof: page written to ")
    charts = [attributes["data-chart"] for _, attributes in page.tags if "data-chart" in attributes]
    assert charts == ["dma", "roofline"]
    assert all(finding["title"] in page.text for finding in report["findings"])


def test_without_anything_to_chart_the_library_stays_out() -> None:
    page = page_of(replace(timeline((0, 100), instructions=[("PE", 0, 40)]), dma_packets=None))
    assert not any("data-chart" in attributes for _, attributes in page.tags)
    assert not any(attributes.get("id") == "plotly" for attributes, _ in page.scripts)
    assert len(page.source) < 600_000


def test_a_report_too_large_is_cut_to_what_the_page_prints() -> None:
    """60,000 opcodes, each with a long name of its own: the JSON alone would be above the page's bound."""
    few = busy_second(60_000)
    assert few.instructions is not None
    names = [f"OP_{index:_>90}" for index in range(60_000)]
    rows = {name: few.instructions[name] for name in few.instructions.column_names}
    rows["opcode"] = coded_column(np.arange(60_000, dtype=np.int32), names)
    page = page_of(replace(few, instructions=make_table("instructions", rows)))
    assert len(page.source.encode()) < 10_000_000
    assert "Further opcodes are in the JSON" in page.text
    assert_figures_are_the_jsons(page, page.document("report"))


def test_the_page_needs_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_explorer_parquet(timeline((0, 100), instructions=[("PE", 0, 40)]), tmp_path / "step@latest")
    step, taken = str(tmp_path / "step@latest"), tmp_path / "taken.html"
    taken.write_text("mine")
    assert run(["anatomy", step, "--html", "-"]) == 2
    assert run(["anatomy", step, "--html", str(taken)]) == 2
    assert run(["anatomy", step, "--html", str(tmp_path / "x"), "--output", str(tmp_path / "x")]) == 2
    assert taken.read_text() == "mine"
    assert run(["anatomy", step, "--html", str(taken), "--force"]) == 0
    assert taken.read_text("utf-8").startswith("<!doctype html>")
    assert len(capsys.readouterr().err.splitlines()) == 4
