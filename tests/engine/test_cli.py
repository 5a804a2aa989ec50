"""The engine's commands: help, limits, and what happens without the extra."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest

from trnprof.cli import run
from trnprof.cli.engine import COMMANDS
from trnprof.result_schema import schema_of


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_loads_nothing_heavy(command: str) -> None:
    probe = (
        f"import sys; from trnprof.cli import run; run(['engine', '{command}', '--help']); "
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'starlette') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert f"trnprof engine {command}" in result.stdout and "Examples:" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


def test_without_the_extra_it_says_what_to_install() -> None:
    """Exit 69 and one line, whatever is installed here: torch is hidden from the child."""
    probe = (
        "import sys, importlib.util as u; found = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name.split('.')[0] == 'torch' else found(name, *rest); "
        "from trnprof.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    for arguments in (["bench"], ["serve"], ["profile", "-o", "never"]):
        result = subprocess.run(
            [sys.executable, "-c", probe, "engine", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 69
        assert result.stderr.count("\n") == 1 and "pip install 'trnprof[engine]'" in result.stderr


def test_plan_lists_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """2 contexts x (greedy, sampled) x (2 decode rows + 16 x {1, 2, 4} rows) = 20; needs no torch."""
    asked = ["engine", "plan", "--prefill-sizes", "16", "--decode-rows", "1,8", "--contexts", "512,2048"]
    assert run([*asked, "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    jsonschema.validate(envelope, schema_of("engine-plan"))
    result = envelope["result"]
    assert result["shape_count"] == len(result["shapes"]) == 2 * 2 * (2 + 3)
    assert "decode_r8_w1_c2048_sampled" in result["shapes"]
    # One page: 2 attention layers (MTP's too) x 16 tokens x 2 heads x (32 + 32) channels x 4 bytes.
    assert result["page"]["bytes"] == 2 * 16 * 2 * 64 * 4
    # One slot: 3 layers x (3 x 384 convolution inputs + 4 heads x 32 x 32) x 4 bytes.
    assert result["state_slot"]["bytes"] == 3 * (3 * 384 + 4 * 32 * 32) * 4
    assert run(asked) == 0
    assert "20 compiled shapes" in capsys.readouterr().out
    assert run([*asked, "--draft", "2"]) == 0
    assert "verify" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["plan", "--decode-rows", "1,x"], 2, "--decode-rows"),
        (["plan", "--contexts", "100"], 2, "whole pages"),
        (["plan", "--model", "absent"], 66, "no preset"),
        (["plan", "--pages", "0"], 2, "pages must be positive"),
        (["plan", "--draft", "-1"], 2, "draft_tokens"),
        (["plan", "--contexts", "16384"], 2, "no context"),
        (["bench", "--rows", "0"], 2, "positive"),
        (["profile", "-o", "x", "--rows", "99"], 2, "--decode-rows"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, named: str) -> None:
    assert run(["engine", *arguments]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and named in error


def test_a_config_that_is_not_served_is_named(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    for text, named in (
        ("{", "cannot be read as JSON"),
        ("[]", "not a JSON object"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not served"),
        ('{"model_type": "qwen3_5_text"}', "num_hidden_layers"),
        ('{"model_type": "qwen3_5_text", "num_hidden_layers": "4"}', "num_hidden_layers is '4'"),
    ):
        (folder / "config.json").write_text(text)
        assert run(["engine", "plan", "--model", str(folder)]) == 65
        assert named in capsys.readouterr().err


def test_bench_prints_each_row_count(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the engine extra is not installed")
    asked = ["engine", "bench", "--model", "tiny-gdn", "--rows", "1,4", "--prompt", "8", "--answer", "4"]
    assert run([*asked, "--draft", "1", "--threads", "1", "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    jsonschema.validate(envelope, schema_of("engine-bench"))
    result = envelope["result"]
    assert [entry["rows"] for entry in result["runs"]] == [1, 4]
    assert all(entry["tokens_per_s"] > 0 for entry in result["runs"])
    assert result["provenance"] == "measured-cpu"
