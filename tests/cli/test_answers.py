"""Answers for an agent: small by default, a pointer where they are large, and as their JSON schema says."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import stat
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.faulty_profiles import FAULTS, clean_step
from trnprof.cli import run
from trnprof.render.envelope import ANSWER_BYTES, SPILL_BYTES
from trnprof.result_schema import commands_with_schema, schema_of
from trnprof.writers.explorer_parquet import write_explorer_parquet

Ask = Callable[..., str]
KERNELS = Path(__file__).parent.parent.parent / "examples/kernels"
SMALL = ("lhs_t=256x1024:bfloat16", "rhs=256x1024:bfloat16")
MATMUL = ("lhs_t=4096x4096:bfloat16", "rhs=4096x4096:bfloat16")
KEYS = [
    "opcode",
    "line",
    "layer",
    "kernel",
    "instruction",
    "queue",
    "size",
    "dma-engine",
    "tensor",
    "collective",
    "boundary",
    "throttle",
    "bounds",
    "roofline",
]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in this process; its standard output as JSON text. Temporary files land in the test's folder."""
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def command(*words: object) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            run([*map(str, words), "--format", "json"])
        return printed.getvalue()

    return command


def on_capture(capture: object, other: object) -> list[list[object]]:
    """Every command on a capture."""
    return [
        ["info", capture],
        ["anatomy", capture],
        *(["breakdown", capture, "--by", key] for key in KEYS),
        ["diff", capture, other],
        ["diff", "--before", capture, "--before", other, "--after", other, "--after", capture],
        ["fit", f"1={capture}", f"4={other}", f"8={capture}"],
        ["query", capture, "select * from instructions"],
        ["query", capture, "show tables"],
    ]


WITHOUT_CAPTURE: list[list[object]] = [
    ["dma-predict", KERNELS / "matmul_tilings.py"],
    ["dma-predict", KERNELS / "matmul_tilings.py", "--no-exec"],
    ["dma-predict", KERNELS / "matmul_tilings.py", "-k", "row_loads", "-i", MATMUL[0], "-i", MATMUL[1]],
    [
        "dma-predict",
        KERNELS / "matmul_tilings.py",
        "-k",
        "row_loads",
        "-i",
        MATMUL[0],
        "-i",
        MATMUL[1],
        "--sweep",
        "BLOCK_M=2,4",
    ],
    ["nki", "run", KERNELS / "matmul_tilings.py", "-k", "row_loads", "-i", SMALL[0], "-i", SMALL[1]],
    ["nki", "model", KERNELS / "matmul_tilings.py", "-k", "row_loads", "-i", SMALL[0], "-i", SMALL[1], "--lnc", "2"],
    ["know"],
    ["know", "moe"],
    ["know", "nothing-like-it"],
    ["skills", "list"],
    ["skills", "show", "step-anatomy"],
    ["skills", "check"],
]

ERRORS: list[list[object]] = [["anatomy", "absent.ntff"], ["diff", "absent.ntff"], ["schema-less"]]


def checked(text: str, words: list[object]) -> dict[str, Any]:
    """The answer, after a look at its size and its schema."""
    assert len(text.encode()) <= ANSWER_BYTES, (len(text), words)
    document: dict[str, Any] = json.loads(text)
    assert document["error"] is None, (words, document["error"])
    conforms(document)
    return document


def conforms(document: dict[str, Any]) -> None:
    name = document["schema"].removeprefix("trnprof.").removesuffix("/1")
    schema = schema_of(name if name in commands_with_schema() else "envelope")
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(document))
    assert not errors, [(list(one.absolute_path), one.message[-300:]) for e in errors for one in (e.context or [e])][:5]


def test_answers_without_a_capture(ask: Ask) -> None:
    for words in WITHOUT_CAPTURE:
        checked(ask(*words), words)


def test_every_file_of_every_skill_is_an_answer(ask: Ask) -> None:
    from trnprof.skill_library import bundled_skills

    for skill in bundled_skills():
        for file in skill.files:
            checked(ask("skills", "show", skill.name, file), [skill.name, file])


def test_answers_on_the_bundled_example(ask: Ask, example: Path) -> None:
    for words in on_capture(example, example):
        checked(ask(*words), words)


def test_answers_on_every_fault(ask: Ask, tmp_path: Path) -> None:
    """Each finding's evidence and each table of an anatomy has its place in the schema."""
    for code in ("LNC001", "HBM003", "CC002"):
        write_explorer_parquet(FAULTS[code](clean_step()), tmp_path / code)
        checked(ask("anatomy", tmp_path / code), [code])
        checked(ask("diff", tmp_path / code, tmp_path / code, "--scope", "layer:model/layer"), [code])


@pytest.mark.slow
def test_answers_on_the_largest_capture(ask: Ask, captures: Path) -> None:
    files = sorted(captures.rglob("step.ntff"), key=lambda path: path.stat().st_size)
    for words in on_capture(files[-1], files[-2]):
        checked(ask(*words), words)


@pytest.mark.slow
def test_answers_on_a_folder_of_ranks(ask: Ask, captures: Path, tmp_path: Path) -> None:
    """32 ranks: few inputs are listed, data quality is said once a code, and what is left out is counted."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(32):
        shutil.copy(captures / "fused_bf16_s512/step.ntff", folder / f"rank{rank:02d}.ntff")
    for words in (["anatomy", folder], ["breakdown", folder], ["breakdown", folder, "--by", "bounds"]):
        document = checked(ask(*words), words)
        assert len(document["inputs"]) + document["result"]["inputs_rest"]["count"] == 32
        codes = [entry["code"] for entry in document["data_quality"]]
        assert len(codes) == len(set(codes)) > 0
    anatomy = json.loads(ask("anatomy", folder))["result"]
    assert len(anatomy["cores"]) + anatomy["rest"]["core_count"] == 64
    checked(ask("diff", folder, folder), ["diff"])


def test_errors_conform(ask: Ask) -> None:
    for words in ERRORS:
        document = json.loads(ask(*words))
        assert document["error"] is not None and document["result"] is None
        conforms(document)


def test_a_large_answer_goes_to_a_file(ask: Ask, tmp_path: Path) -> None:
    """Only the pointer is added to the short answer; the file is the whole answer, readable by its user alone."""
    write_explorer_parquet(FAULTS["VEC001"](clean_step()), tmp_path / "step")
    words = ["query", tmp_path / "step", "select * from instructions", "--full"]
    text = ask(*words)
    assert len(text) < ANSWER_BYTES + 1024
    pointer = json.loads(text)["result"]["full"]
    content = Path(pointer["path"]).read_bytes()
    assert len(content) == pointer["bytes"] > SPILL_BYTES
    assert hashlib.sha256(content).hexdigest() == pointer["sha256"]
    folder = Path(pointer["path"]).parent
    assert folder.parent == tmp_path
    if sys.platform != "win32":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert ask(*words) == text, "the same answer is the same file"
    assert ask(*words, "-o", "-").encode() == content, "a named place gives it whole"
    conforms(json.loads(text))


def test_nothing_is_written_where_somebody_else_waits(
    ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link in the place of the folder is not followed: the answer is printed whole."""
    import os

    write_explorer_parquet(FAULTS["VEC001"](clean_step()), tmp_path / "step")
    (tmp_path / "elsewhere").mkdir()
    user = os.getuid() if hasattr(os, "getuid") else "user"
    (tmp_path / f"trnprof-{user}").symlink_to(tmp_path / "elsewhere")
    text = ask("anatomy", tmp_path / "step", "--full")
    words = ["query", tmp_path / "step", "select * from instructions", "--full"]
    assert len(ask(*words)) > SPILL_BYTES
    assert "full" not in json.loads(text)["result"] or len(text) < SPILL_BYTES
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_schemas_are_schemas_and_cover_the_contract() -> None:
    for name in commands_with_schema():
        jsonschema.Draft202012Validator.check_schema(schema_of(name))
    core = schema_of("anatomy")["properties"]["result"]["anyOf"][1]["properties"]["cores"]["items"]
    assert {"core", "window_ns", "parts_ns", "engines", "dma", "hbm", "semaphore_update_count"} <= set(core["required"])
    parts = core["properties"]["parts_ns"]["required"]
    assert set(parts) == {
        "runtime_overhead",
        "memory_floor",
        "busy_beyond_floor",
        "in_kernel_wait",
        "exposed_collective",
        "idle",
    }


def test_a_wrong_answer_does_not_conform() -> None:
    """The schema bites: a core without its window, a float for a time."""
    document = {
        "schema": "trnprof.anatomy/1",
        "tool": {"name": "trnprof", "version": "0"},
        "inputs": [],
        "hardware": None,
        "data_quality": [],
        "result": {"cores": [{"core": 0}]},
        "findings": [],
        "error": None,
    }
    with pytest.raises(AssertionError):
        conforms(document)


def test_schema_command(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert capsys.readouterr().out.split() == list(commands_with_schema())
    assert run(["schema", "anatomy"]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of("anatomy")
    assert run(["schema", "no-such"]) == 2
