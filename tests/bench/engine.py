"""The engine against transformers on the same weights and machine, its cache policies under pressure, and speculation.

transformers' continuous batching does not take linear attention layers, so the hybrid model is compared with its
`generate` on a batch of equal prompts (its best case: nothing to schedule), and continuous batching with a model of full
attention layers. Both run in turn, each first every other time, and the ratio is the median of the pairs' ratios: what else
the machine does changes from second to second and hits both sides of a pair alike. One thread each.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = Callable[[list[list[int]], int], None]
"""Answer prompts with so many tokens each."""
ROWS = (1, 4, 8, 16)
PROMPT, ANSWER = 128, 48
REPEATS, FIRST_REPEATS = 5, 15

_TINY = {
    "vocab_size": 260,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
_HYBRID = _TINY | {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 96,
}


def run() -> str:
    """The tables; needs the extra engine-test."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return f"skipped: {', '.join(missing)} not installed (pip install 'trnprof[engine-test]')"
    # A process of its own: thread count and flushing of denormals are the process's.
    parts = ["throughput", "policies", "speculation"]
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.bench.engine", part],
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        for part in parts
    ]
    return "\n".join(out.stdout.rstrip() if not out.returncode else out.stderr[-2000:] for out in outputs)


def throughput() -> None:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    print(f"{PROMPT} prompt and {ANSWER} answer tokens a row, greedy, float32, 1 thread; medians")
    print("ratios above 1: ours ahead; CPU: of processor seconds, which other work on the machine hardly changes")
    print(
        f"{'model and peer':36}{'rows':>5}{'ours':>7}{'peer':>7} tok/s{'ratio':>6}{'CPU':>6}"
        f"{'ours 1st':>10}{'peer':>7} ms{'ratio':>6}{'CPU':>6}"
    )
    for name, config_class, model_class, fields, peer in (
        ("hybrid MoE, generate (one batch)", "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", _HYBRID, _generate),
        ("full attention, continuous batching", "Qwen3Config", "Qwen3ForCausalLM", _TINY, _continuous),
    ):
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(getattr(transformers, config_class)(**fields)).eval()
        ours, theirs = _ours(model), peer(model)
        for rows in ROWS:
            whole = _in_turn(ours, theirs, rows, ANSWER, REPEATS)
            first = _in_turn(ours, theirs, rows, 1, FIRST_REPEATS)
            tokens = rows * ANSWER
            print(
                f"{name:36}{rows:>5}{tokens / whole.ours:>7,.0f}{tokens / whole.peer:>7,.0f}{whole.ratio:>12.2f}"
                f"{whole.cpu_ratio:>6.2f}{1000 * first.ours:>10.1f}{1000 * first.peer:>7.1f}{first.ratio:>9.2f}"
                f"{first.cpu_ratio:>6.2f}",
                flush=True,
            )


@dataclass(frozen=True)
class Compared:
    """Median seconds of both, and the medians of the pairs' ratios (the peer's by ours)."""

    ours: float
    peer: float
    ratio: float
    cpu_ratio: float
    """Of processor seconds of all threads."""


def _in_turn(ours: Call, peer: Call, rows: int, answer: int, repeats: int) -> Compared:
    """Run both on the same prompts, in turn."""
    pairs = []
    for repeat in range(repeats + 1):
        order = (ours, peer) if repeat % 2 else (peer, ours)
        taken = {call: _timed(call, _prompts(rows, 100 * answer + repeat), answer) for call in order}
        if repeat:  # the first round warms up
            pairs.append((*taken[ours], *taken[peer]))
    own, own_cpu, other, other_cpu = zip(*pairs, strict=True)
    return Compared(
        statistics.median(own),
        statistics.median(other),
        statistics.median(b / a for a, b in zip(own, other, strict=True)),
        statistics.median(b / a for a, b in zip(own_cpu, other_cpu, strict=True)),
    )


def _timed(call: Call, prompts: list[list[int]], answer: int) -> tuple[float, float]:
    """Seconds, and processor seconds."""
    began, began_cpu = time.perf_counter(), time.process_time()
    call(prompts, answer)
    return time.perf_counter() - began, time.process_time() - began_cpu


def _prompts(rows: int, seed: int) -> list[list[int]]:
    import random

    chance = random.Random(1000 * seed + rows)
    return [[chance.randrange(3, 256) for _ in range(PROMPT)] for _ in range(rows)]


def _ours(model: Any) -> Call:
    import torch

    from trnprof.engine.checkpoint_config import model_config_from_hf
    from trnprof.engine.config import EngineConfig
    from trnprof.engine.device import Device
    from trnprof.engine.kernels.contracts import load_kernels
    from trnprof.engine.loop import Engine
    from trnprof.engine.model.weights import load_weights
    from trnprof.engine.request import Request, Sampling
    from trnprof.engine.runner import TorchRunner
    from trnprof.engine.scheduler import Scheduler

    config = model_config_from_hf(model.config.to_dict())
    settings = EngineConfig(pages=4096, decode_rows=ROWS, prefill_rows=(1, 2, 4, 8), contexts=(256, 1024))
    runner = TorchRunner(
        config, settings, load_weights(config, model.state_dict(), torch.float32), load_kernels(), device=Device()
    )
    engine = Engine(Scheduler(settings, config), runner)
    count = 0

    def call(prompts: list[list[int]], answer: int) -> None:
        nonlocal count
        for prompt in prompts:
            count += 1
            engine.submit(
                Request(f"r{count}", prompt, Sampling(max_tokens=answer, ignore_eos=True)), lambda update: None
            )
        engine.run_until_idle()

    return call


def _generate(model: Any) -> Call:
    import torch

    def call(prompts: list[list[int]], answer: int) -> None:
        with torch.inference_mode():
            out = model.generate(
                torch.tensor(prompts), max_new_tokens=answer, min_new_tokens=answer, do_sample=False, pad_token_id=0
            )
        assert out.shape[1] == PROMPT + answer

    return call


def _continuous(model: Any) -> Call:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # Left to itself it takes most of the machine's memory and minutes to clear it; its manager is kept between calls.
    batching = ContinuousBatchingConfig(page_size=32, num_blocks=256, max_batch_tokens=2048, max_requests_per_batch=16)

    def call(prompts: list[list[int]], answer: int) -> None:
        config = GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1, pad_token_id=0)
        out = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=batching, persistent_manager=True
        )
        assert [len(entry.generated_tokens) for entry in out.values()] == [answer] * len(prompts)

    return call


def policies() -> None:
    """Prefilled tokens of turn-taking conversations on the memory model: counts, not times, the same on every machine."""
    from dataclasses import replace

    from tests.engine.test_scheduler import BASE, Bench

    print(
        "\nprefix cache under pressure: 8 conversations x 8 turns (40 new and 24 answer tokens), a shared beginning of 64"
    )
    print(f"{'policy':18}{'snapshots':>10}{'prefilled':>12}{'reused':>10}{'hit rate':>10}")
    for snapshots in (0, 6, 12, 40):
        for policy in ("lru", "stale-interior"):
            config = replace(
                BASE, pages=1500, snapshots=snapshots, eviction=policy, prefill_sizes=(16, 64), contexts=(1024,)
            )
            bench = Bench(config, context=1024)
            histories = [[5] * 64 + [conversation + 10] * 4 for conversation in range(8)]
            for turn in range(8):
                for number, history in enumerate(histories):
                    request = bench.ask([*history, *[(turn + number) % 50] * 40], 24)
                    bench.finish()
                    history[:] = request.tokens
            counters = bench.scheduler.cache.counters
            asked = bench.runner.prefilled + counters.tokens_reused
            print(
                f"{policy:18}{snapshots:>10}{bench.runner.prefilled:>12,}{counters.tokens_reused:>10,}"
                f"{counters.tokens_reused / asked:>10.0%}"
            )


def speculation() -> None:
    """Tokens a second with 0 to 3 drafts; the acceptance is the checkpoint's on text it was not trained on."""
    from pathlib import Path

    import torch

    from trnprof.engine.build import checkpoint_folder, open_engine
    from trnprof.engine.config import EngineConfig
    from trnprof.engine.request import Request, Sampling

    torch.set_num_threads(1)
    trained = checkpoint_folder("tiny-gdn-moe") is not None
    print(f"\nspeculation, tiny-gdn-moe ({'trained' if trained else 'random weights: acceptance means nothing'})")
    print(f"{'rows':>5}{'drafts':>8}{'tok/s':>9}{'gain':>7}{'accepted':>10}{'tokens/verify':>15}")
    text = Path(__file__).read_text(encoding="utf-8")
    for rows in (1, 4):
        engines = [
            open_engine(
                "tiny-gdn-moe",
                EngineConfig(pages=2048, decode_rows=(1, 4), draft_tokens=draft, contexts=(512, 1024)),
                keep_log=False,
            )
            for draft in range(4)
        ]
        seconds: list[list[float]] = []
        for repeat in range(REPEATS + 1):
            taken = []
            for served in engines:
                began = time.perf_counter()
                for row in range(rows):
                    tokens = served.tokenizer.encode(text[500 * row + 37 * repeat :][:256])
                    request = Request(f"r{repeat}-{row}", tokens, Sampling(max_tokens=96, ignore_eos=True))
                    served.engine.submit(request, lambda update: None)
                served.engine.run_until_idle()
                taken.append(time.perf_counter() - began)
            if repeat:  # the first round warms up
                seconds.append(taken)
        for draft, served in enumerate(engines):
            rate = statistics.median(rows * 96 / taken[draft] for taken in seconds)
            gain = statistics.median(taken[0] / taken[draft] for taken in seconds)
            drafts = served.engine.scheduler.drafts
            accepted = sum(drafts.accepted) / max(1, drafts.verifications * draft)
            per_verify = 1 + sum(drafts.accepted) / max(1, drafts.verifications)
            print(
                f"{rows:>5}{draft:>8}{rate:>9,.0f}{gain:>7.2f}"
                + (f"{accepted:>10.0%}{per_verify:>15.2f}" if draft else f"{'':>10}{'':>15}")
            )
            served.engine.runner.close()


if __name__ == "__main__":
    {"throughput": throughput, "policies": policies, "speculation": speculation}[sys.argv[1]]()
