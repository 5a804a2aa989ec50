"""The engine against transformers on the same weights and machine, its cache policies under pressure, and speculation.

transformers' continuous batching does not take linear attention layers, so the hybrid model is compared with its
`generate` on a batch of equal prompts (its best case: nothing to schedule), and continuous batching with a model of full
attention layers. Runs alternate and medians are compared; every row is one process with one thread.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROWS = (1, 4, 8, 16)
PROMPT, ANSWER, REPEATS = 128, 48, 3

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
    print(f"{PROMPT} prompt and {ANSWER} answer tokens a row, greedy, float32, 1 thread; medians of {REPEATS}")
    print(
        f"{'model and peer':44}{'rows':>5}{'ours tok/s':>12}{'peer tok/s':>12}{'ratio':>7}{'ours 1st':>10}{'peer 1st':>10}"
    )
    for name, config_class, model_class, fields, peer in (
        ("hybrid MoE, generate (static batch)", "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", _HYBRID, _generate),
        ("full attention, continuous batching", "Qwen3Config", "Qwen3ForCausalLM", _TINY, _continuous),
    ):
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(getattr(transformers, config_class)(**fields)).eval()
        ours, theirs = _ours(model), peer(model)
        for rows in ROWS:
            times: dict[str, list[float]] = {key: [] for key in ("ours", "peer", "ours first", "peer first")}
            for repeat in range(REPEATS + 1):
                for key, call in (("ours", ours), ("peer", theirs)):
                    prompts = _prompts(rows, 2 * repeat)
                    first = _timed(call, _prompts(rows, 2 * repeat + 1), 1)
                    whole = _timed(call, prompts, ANSWER)
                    if repeat:  # the first round warms up
                        times[key].append(whole)
                        times[f"{key} first"].append(first)
            median = {key: statistics.median(values) for key, values in times.items()}
            rate = {key: rows * ANSWER / median[key] for key in ("ours", "peer")}
            print(
                f"{name:44}{rows:>5}{rate['ours']:>12,.0f}{rate['peer']:>12,.0f}{rate['ours'] / rate['peer']:>7.2f}"
                f"{1000 * median['ours first']:>7.1f} ms{1000 * median['peer first']:>7.1f} ms",
                flush=True,
            )


def _timed(call: Callable[[list[list[int]], int], None], prompts: list[list[int]], answer: int) -> float:
    began = time.perf_counter()
    call(prompts, answer)
    return time.perf_counter() - began


def _prompts(rows: int, seed: int) -> list[list[int]]:
    import random

    chance = random.Random(1000 * seed + rows)
    return [[chance.randrange(3, 256) for _ in range(PROMPT)] for _ in range(rows)]


def _ours(model: Any) -> Callable[[list[list[int]], int], None]:
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


def _generate(model: Any) -> Callable[[list[list[int]], int], None]:
    import torch

    def call(prompts: list[list[int]], answer: int) -> None:
        with torch.inference_mode():
            out = model.generate(
                torch.tensor(prompts), max_new_tokens=answer, min_new_tokens=answer, do_sample=False, pad_token_id=0
            )
        assert out.shape[1] == PROMPT + answer

    return call


def _continuous(model: Any) -> Callable[[list[list[int]], int], None]:
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
        base = 0.0
        for draft in (0, 1, 2, 3):
            engine = EngineConfig(pages=2048, decode_rows=(1, 4), draft_tokens=draft, contexts=(512, 1024))
            served = open_engine("tiny-gdn-moe", engine)
            rates = []
            for repeat in range(REPEATS + 1):
                prompts = [text[500 * row + 37 * repeat :][:256] for row in range(rows)]
                began = time.perf_counter()
                for row, prompt in enumerate(prompts):
                    sampling = Sampling(max_tokens=96, ignore_eos=True)
                    request = Request(f"r{repeat}-{row}", served.tokenizer.encode(prompt), sampling)
                    served.engine.submit(request, lambda update: None)
                served.engine.run_until_idle()
                if repeat:
                    rates.append(rows * 96 / (time.perf_counter() - began))
            rate = statistics.median(rates)
            base = base or rate
            drafts = served.engine.scheduler.drafts
            accepted = sum(drafts.accepted) / max(1, drafts.verifications * draft)
            per_verify = 1 + sum(drafts.accepted) / max(1, drafts.verifications)
            print(
                f"{rows:>5}{draft:>8}{rate:>9,.0f}{rate / base:>7.2f}"
                + (f"{accepted:>10.0%}{per_verify:>15.2f}" if draft else f"{'':>10}{'':>15}")
            )
            served.engine.runner.close()


if __name__ == "__main__":
    {"throughput": throughput, "policies": policies, "speculation": speculation}[sys.argv[1]]()
