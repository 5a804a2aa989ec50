"""`trnprof mcp` as a client of the protocol sees it, over stdio: the same envelopes, read-only, inside its roots."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_profiles import clean_step
from tests.skills.conftest import ROOT
from trnprof.cli import run
from trnprof.mcp_server import INSTRUCTIONS, ServerSettings, call
from trnprof.writers.explorer_parquet import write_explorer_parquet

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

TOOLS = {"info", "anatomy", "breakdown", "diff", "fit", "query", "dma_predict", "know", "skills", "schema"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a capture, a kernel and a link that leads out; beside it what a client must not see."""
    outside = tmp_path_factory.mktemp("outside")
    write_explorer_parquet(clean_step(), outside / "secret")
    root = tmp_path_factory.mktemp("root")
    write_explorer_parquet(clean_step(), root / "step")
    (root / "kernel.py").write_text((ROOT / "examples/kernels/dma_streams.py").read_text(encoding="utf-8"))
    (root / "way-out").symlink_to(outside / "secret")
    (root / "ranks").mkdir()
    (root / "ranks/rank0").symlink_to(outside / "secret")
    (root / "-o").mkdir()
    return root


def with_client(folder: Path, use: Callable[[Any], Awaitable[None]], *options: str) -> None:
    """Start the server as a client would, talk to it, end it."""

    async def main() -> None:
        arguments = ["-m", "trnprof", "mcp", "--root", str(folder), *options]
        parameters = StdioServerParameters(command=sys.executable, args=arguments, env={"PYTHONPATH": str(ROOT)})
        async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
            started = await session.initialize()
            assert started.instructions == INSTRUCTIONS
            await use(session)

    asyncio.run(asyncio.wait_for(main(), 120))


async def ask(session: Any, tool: str, **arguments: object) -> dict[str, Any]:
    result = await session.call_tool(tool, arguments)
    assert len(result.content) == 1
    document: dict[str, Any] = json.loads(result.content[0].text)
    return document


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


def test_tools_give_what_the_commands_print(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    before = files_of(folder)

    def printed(*words: str) -> dict[str, Any]:
        run([*words, "--format", "json"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    async def use(session: Any) -> None:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert set(tools) == TOOLS
        for tool in tools.values():
            hints = tool.annotations
            assert getattr(hints, "readOnlyHint", getattr(hints, "read_only_hint", None)) is True
            assert tool.description
        assert await ask(session, "anatomy", path="step") == printed("anatomy", "step")
        assert await ask(session, "breakdown", path="step", by="line") == printed("breakdown", "step", "--by", "line")
        assert await ask(session, "info", path="step") == printed("info", "step")
        assert await ask(session, "know", query="moe experts") == printed("know", "moe", "experts")
        assert await ask(session, "fit", captures={"1": "step", "8": "step"}) == printed("fit", "1=step", "8=step")
        sql = "select engine, count(*) as n from instructions group by 1 order by 1"
        assert await ask(session, "query", path="step", sql=sql) == printed("query", "step", sql)
        compared = await ask(session, "diff", before=["step"], after=["step"])
        assert compared["result"]["verdict"]["outcome"] == "same"
        assert (await ask(session, "skills", name="moe-decode"))["result"]["text"].startswith("---\nname: moe-decode\n")
        assert len((await ask(session, "skills"))["result"]["skills"]) == 9
        assert (await ask(session, "schema", command="fit"))["title"] == "trnprof fit --format json"
        sites = await ask(session, "dma_predict", path="kernel.py", kernel="load", inputs={"a": "128x512:bfloat16"})
        assert sites["error"] is None and "total" not in sites["result"], "kernels are not run unless that was allowed"
        assert (await ask(session, "anatomy", path="absent"))["error"]["kind"] == "input-missing"
        assert (await ask(session, "breakdown", path="step", by="colour"))["error"]["kind"] == "usage"

    with_client(folder, use)
    assert files_of(folder) == before, "nothing is written"


def test_kernels_run_where_it_was_allowed(folder: Path) -> None:
    async def use(session: Any) -> None:
        answer = await ask(session, "dma_predict", path="kernel.py", kernel="load", inputs={"a": "128x512:bfloat16"})
        assert answer["result"]["total"]["hbm_read_bytes"] == 128 * 512 * 2

    with_client(folder, use, "--run-kernels")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "..", "../outside", "way-out", "ranks", "step/../../x", "a\0b", "~root"]
)
def test_paths_stay_inside_the_roots(path: str, folder: Path) -> None:
    """Refused before anything is read, links followed; ~ is a name like any other."""
    settings = ServerSettings((folder,), run_kernels=False, timeout_s=60)
    for command, words in (("anatomy", ["--", path]), ("diff", ["--before", "step", "--after", path])):
        answer = json.loads(call(settings, command, words, [path]))
        assert answer["result"] is None
        expected = "input-missing" if path == "~root" else "usage"
        assert answer["error"]["kind"] == expected, answer["error"]


def test_an_argument_is_never_an_option(folder: Path) -> None:
    settings = ServerSettings((folder,), run_kernels=False, timeout_s=60)
    before = files_of(folder)
    for text in ("-o", "--output=x.json", "--html"):
        answer = json.loads(call(settings, "anatomy", ["--", text], [text]))
        assert answer["error"]["kind"] in ("input-missing", "bad-input"), answer["error"]
        answer = json.loads(call(settings, "know", ["--", text]))
        assert answer["result"]["query"] == text
    assert files_of(folder) == before


def test_a_call_that_takes_too_long_is_an_answer(folder: Path) -> None:
    settings = ServerSettings((folder,), run_kernels=False, timeout_s=0.05)
    answer = json.loads(call(settings, "anatomy", ["--", "step"], ["step"]))
    assert "longer than 0.05 s" in answer["error"]["message"]


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.types", None)
    assert run(["mcp", "--root", str(tmp_path)]) == 69
    assert "pip install 'trnprof[mcp]'" in capsys.readouterr().err
    assert run(["mcp", "--root", str(tmp_path / "absent")]) == 66
