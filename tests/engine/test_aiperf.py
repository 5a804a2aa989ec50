"""A client nobody here wrote: aiperf against the server on loopback, synthetic prompts and a Mooncake trace.

`aiperf` needs an environment of its own (1.2 GB): name its executable with TRNPROF_AIPERF, or have it on PATH. The trace is
a file of TRNPROF_TRACES (kvcache-ai/Mooncake, Apache-2.0), which is not in this repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")
httpx = pytest.importorskip("httpx", reason="httpx (extra engine-test) reads the server's metrics")
pytest.importorskip("uvicorn", reason="the engine extra is not installed")

from tests.engine.serving import Running, running  # noqa: E402
from trnprof.engine.build import open_engine  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.engine.tokenizer import ByteTokenizer  # noqa: E402

AIPERF = os.environ.get("TRNPROF_AIPERF") or shutil.which("aiperf")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AIPERF, reason="aiperf is not on PATH and TRNPROF_AIPERF does not name it"),
]

CONFIG = EngineConfig(pages=3000, decode_rows=(1, 4, 8), contexts=(512, 4096))


def tokenizer_cache(home: Path) -> str:
    """The byte tokenizer as a hub cache: aiperf's workers take a plain folder for a repository's name."""
    name, revision = "trnprof/tiny", "0" * 40
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    (snapshot / "tokenizer.json").write_text(ByteTokenizer.to_json())
    (snapshot / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    )
    (snapshot / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return name


def profile(server: Running, folder: Path, *options: str) -> dict[str, Any]:
    """Run aiperf; its summary."""
    home, out = folder / "home", folder / "out"
    command = [
        str(AIPERF),
        "profile",
        "--model",
        server.served.name,
        "--url",
        server.url,
        "--endpoint-type",
        "chat",
        "--streaming",
        "--tokenizer",
        tokenizer_cache(home),
        "--ui",
        "none",
        "--no-gpu-telemetry",
        "--output-artifact-dir",
        str(out),
        "--extra-inputs",
        "ignore_eos:true",
        *options,
    ]
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary: dict[str, Any] = json.loads((out / "profile_export_aiperf.json").read_text())
    return summary


def check(server: Running, summary: dict[str, Any], requests: int) -> None:
    """No errors, and both sides saw the same time to first token (mean, within 10%)."""
    assert summary["error_summary"] == []
    assert summary["request_count"]["avg"] == requests
    values = {
        line.split()[0].removeprefix("trnprof_engine_"): float(line.split()[1])
        for line in httpx.get(server.url + "/metrics").text.splitlines()
        if not line.startswith("#") and "{" not in line
    }
    assert values["time_to_first_token_seconds_count"] == requests
    ours = 1000 * values["time_to_first_token_seconds_sum"] / requests
    theirs = summary["time_to_first_token"]["avg"]
    assert abs(ours - theirs) <= 0.1 * theirs, f"server {ours:.1f} ms, client {theirs:.1f} ms"
    assert summary["usage_completion_tokens"]["avg"] == values["answer_tokens_total"] / requests
    server.wait_idle()


def test_synthetic_prompts(tmp_path: Path) -> None:
    with running(open_engine("tiny-gdn-moe", CONFIG)) as server:
        options = ("--concurrency", "4", "--request-count", "16", "--isl", "512", "--osl", "16")
        check(server, profile(server, tmp_path, *options), 16)


def test_a_mooncake_trace(tmp_path: Path) -> None:
    """The conversation trace's first requests of up to 3,000 tokens; they share their first block of 512 tokens."""
    traces = os.environ.get("TRNPROF_TRACES")
    if not traces:
        pytest.skip("TRNPROF_TRACES is not set: no real trace here")
    rows = []
    with (Path(traces) / "mooncake_conversation_trace.jsonl").open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["input_length"] <= 3000:
                rows.append(row | {"output_length": min(row["output_length"], 16), "timestamp": 0})
            if len(rows) == 12:
                break
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    with running(open_engine("tiny-gdn-moe", CONFIG)) as server:
        options = ("--concurrency", "2", "--request-count", "12", "--custom-dataset-type", "mooncake_trace")
        summary = profile(server, tmp_path, *options, "--input-file", str(trace))
        check(server, summary, 12)
        assert summary["usage_prompt_cache_read_tokens"]["avg"] > 0, "the shared block is found in the cache"
