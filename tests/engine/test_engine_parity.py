"""The whole engine against transformers: greedy answers of 12 prompts, a long one and two resumed from the cache among
them, and the same answers whatever the batch, the chunks, the cache and the speculation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")
pytest.importorskip("transformers", reason="transformers (extra engine-test) is the oracle of these tests")

from tests.engine.references import FAMILIES, Reference, build  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.engine.device import Device  # noqa: E402
from trnprof.engine.kernels.contracts import load_kernels  # noqa: E402
from trnprof.engine.loop import Engine  # noqa: E402
from trnprof.engine.request import Request, Sampling  # noqa: E402
from trnprof.engine.runner import TorchRunner  # noqa: E402
from trnprof.engine.scheduler import Scheduler  # noqa: E402

CONFIG = EngineConfig(
    pages=800,
    snapshots=16,
    prefill_sizes=(16, 64, 256),
    prefill_rows=(1, 2, 4),
    prefill_budget=512,
    decode_rows=(1, 4, 8),
    contexts=(256, 1024, 4608),
)
ANSWER = 24
LENGTHS = (1, 2, 15, 16, 17, 40, 63, 64, 65, 200)
LONG = 4096
NEAR_TIE = 1e-3
"""Below this gap between the reference's two best logits either choice is right (float32 sums in another order)."""


@cache
def reference(family: str) -> Reference:
    return build(family, seed=3)


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def serve(family: str, prompts: list[list[int]], engine: EngineConfig = CONFIG, **sampling: Any) -> list[Request]:
    """Answers from an engine with fresh caches whose free memory is poisoned."""
    return run(start(family, engine), prompts, **sampling)


def start(family: str, engine: EngineConfig = CONFIG, *, one_at_a_time: bool = False) -> Engine:
    made = reference(family)
    scheduler = Scheduler(engine, made.config)
    runner = TorchRunner(made.config, engine, made.decoder.weights, load_kernels(), device=Device())
    # Nobody may read a state that is free. Pages are filled with large numbers: their unused cells are masked, and a
    # mask times NaN would be NaN on any hardware.
    for bank in runner.caches.banks:
        bank[2:] = torch.nan
    for pages in runner.caches.key_pages + runner.caches.value_pages:
        pages.fill_(1e4)
    return Engine(scheduler, runner)


def run(engine: Engine, prompts: list[list[int]], **sampling: Any) -> list[Request]:
    settings: dict[str, Any] = {"max_tokens": ANSWER, "ignore_eos": True} | sampling
    requests = [Request(f"p{id(engine)}-{i}-{len(p)}", list(p), Sampling(**settings)) for i, p in enumerate(prompts)]
    for request in requests:
        engine.submit(request, lambda update: None)
    engine.run_until_idle()
    engine.scheduler.cache.check_idle()
    assert [request.error for request in requests] == [None] * len(requests)
    return requests


def check_greedy(family: str, requests: list[Request]) -> None:
    """Each answer token is the reference's choice after the same tokens (teacher forced), but for near ties."""
    hf = reference(family).hf
    for request in requests:
        with torch.inference_mode():
            logits = hf(torch.tensor([request.tokens])).logits[0, len(request.prompt) - 1 : -1]
        best = logits.topk(2)
        for position, token in enumerate(request.answer):
            if token != best.indices[position, 0]:
                gap = float(best.values[position, 0] - logits[position, token])
                assert gap < NEAR_TIE, f"prompt of {len(request.prompt)}, answer token {position}: {gap}"


@pytest.mark.parametrize("family", FAMILIES)
def test_twelve_prompts(family: str) -> None:
    """Ten prompts of page, chunk and bucket edges together, then two that go on from answers the cache holds."""
    engine = start(family)
    first = run(engine, [prompt(length, seed) for seed, length in enumerate(LENGTHS)])
    resumed = run(engine, [[*first[i].tokens, *prompt(5, 100 + i)] for i in (7, 9)])
    assert [request.cached_tokens for request in resumed] == [(64 + 23) // 16 * 16, (200 + 23) // 16 * 16]
    check_greedy(family, first + resumed)
    engine.runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_of_4096_tokens(family: str) -> None:
    """In 16 chunks; then the same prompt again from the cache, and its continuation: the same answers."""
    engine = start(family)
    long = run(engine, [prompt(LONG, 7)])
    check_greedy(family, long)
    again = run(engine, [prompt(LONG, 7)])
    assert again[0].cached_tokens == LONG - 16
    assert again[0].answer == long[0].answer
    engine.runner.close()


@pytest.mark.parametrize("family", ["qwen3_5_moe", "kimi_linear", "qwen3_sliding"])
@pytest.mark.parametrize(
    "changes",
    [
        {"prefix_cache": False},
        {"prefill_sizes": (16,)},
        {"decode_rows": (1,)},
        {"page_size": 64, "contexts": (256, 1024)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_never_change_an_answer(family: str, changes: dict[str, Any]) -> None:
    """Uncached, in chunks of 16, one row at a time, and in other pages."""
    prompts = [prompt(length, seed) for seed, length in enumerate(LENGTHS)]
    wanted = [request.answer for request in serve(family, prompts)]
    requests = serve(family, prompts, replace(CONFIG, **changes))
    assert [request.answer for request in requests] == wanted


@pytest.mark.parametrize("family", ["qwen3_5", "kimi_linear"])
def test_preemption_never_changes_an_answer(family: str) -> None:
    """Eight answers want 8 x 7 pages where there are 29."""
    prompts = [prompt(17, seed) for seed in range(8)]
    wanted = [request.answer for request in serve(family, prompts, max_tokens=80)]
    requests = serve(family, prompts, replace(CONFIG, pages=30, contexts=(256,)), max_tokens=80)
    assert [request.answer for request in requests] == wanted
    assert sum(request.preemptions for request in requests) > 0


@pytest.mark.parametrize("family", ["qwen3_5", "kimi_linear"])
def test_host_memory_never_changes_an_answer(family: str) -> None:
    """Three prompts are pushed out to host memory by others and brought back: the same answers, from the cache."""
    config = replace(CONFIG, pages=40, snapshots=0, contexts=(256,), host_pages=200, host_snapshots=20)
    engine = start(family, config)
    wanted = [request.answer for request in run(engine, [prompt(100, seed) for seed in range(3)])]
    run(engine, [prompt(150, seed) for seed in range(10, 14)])
    again = run(engine, [prompt(100, seed) for seed in range(3)])
    counters = engine.scheduler.cache.counters
    assert counters.pages_to_host > 0 and counters.pages_from_host > 0
    assert [request.cached_tokens for request in again] == [96, 96, 96]
    assert [request.answer for request in again] == wanted


def test_sampling_depends_on_seed_and_position_only() -> None:
    """A seeded request gives the same tokens alone, in a batch, and again; another seed gives others."""
    prompts = [prompt(20, 1)] * 3 + [prompt(30, 2)]
    batch = serve("qwen3_5", prompts, temperature=0.8, top_p=0.9, seed=5)
    alone = serve("qwen3_5", prompts[:1], temperature=0.8, top_p=0.9, seed=5)
    assert batch[0].answer == batch[1].answer == batch[2].answer == alone[0].answer
    other = serve("qwen3_5", prompts[:1], temperature=0.8, top_p=0.9, seed=6)
    assert other[0].answer != alone[0].answer


def test_sampled_frequencies() -> None:
    """4,000 draws from four logits: within four standard deviations of softmax(logits / T), and top-p cuts exactly."""
    kernels = load_kernels()
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(4000, 1, 4)
    positions = torch.arange(4000).unsqueeze(1)

    def draw(temperature: float, top_p: float) -> torch.Tensor:
        rows = torch.full((4000,), temperature)
        drawn = kernels.sample(logits, rows, torch.full((4000,), top_p), torch.full((4000,), 9), positions)
        return torch.bincount(drawn.flatten(), minlength=4) / 4000

    expected = torch.softmax(torch.tensor([2.0, 1.0, 0.0, -1.0]) / 0.7, 0)
    assert ((draw(0.7, 1.0) - expected).abs() < 4 * (expected * (1 - expected) / 4000).sqrt()).all()
    # softmax(logits) = 0.644, 0.237, 0.087, 0.032: 0.8 is reached with the second token, so the last two never come.
    assert draw(1.0, 0.8)[2:].sum() == 0 and draw(1.0, 0.8)[1] > 0
    assert draw(0.0, 1.0)[0] == 1


def test_min_tokens_forbids_the_end() -> None:
    """An answer whose first greedy token is made the end of text still gets its three tokens."""
    made = reference("qwen3_5")
    first = serve("qwen3_5", [prompt(33, 4)])[0].answer[0]
    config = replace(made.config, eos=(first,))
    scheduler = Scheduler(CONFIG, config)
    engine = Engine(scheduler, TorchRunner(config, CONFIG, made.decoder.weights, load_kernels(), device=Device()))
    short, long = (
        run(engine, [prompt(33, 4)], ignore_eos=False),
        run(engine, [prompt(33, 4)], ignore_eos=False, min_tokens=3),
    )
    assert short[0].answer == [first]
    assert len(long[0].answer) >= 3 and first not in long[0].answer[:3]
