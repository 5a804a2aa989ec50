"""What users of other hybrid engines reported, where no other file has it as a test.

| report | test |
|---|---|
| state pages that fit no attention page, no hits for short prompts (vllm#40696, vllm-neuron#53) | here |
| the cache is off or does nothing, and says nothing (vllm#45238) | here; test_server.py: cached_tokens is always there |
| caches and drafts clash (vllm#50172, TRT-LLM#12896), drafts corrupt the state (vllm#39273) | test_speculation.py |
| acceptance falls to nothing for hours (vllm#55357) | here |
| a hit reads a fresh slot (tpu-inference#3412) | test_scheduler.py (sabotage), test_engine_parity.py (NaN) |
| a match keeps snapshots alive that nobody resumes from (sglang#31643) | test_scheduler.py, `make bench` |
| the same prompt twice never hits (sglang#21158) | test_scheduler.py |
| a snapshot a chunk (sglang#27220) | test_scheduler.py; its cost in the step log: here |
| slots leak when scheduling fails or a session ends (sglang#16067, #23496) | here; test_scheduler.py: abort in every state |
| a shape that was not warmed compiles live (tt-xla#5726) | test_neuron_seam.py |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.test_scheduler import BASE, Bench
from trnprof.engine.config import EngineConfig, LinearAttentionConfig, presets

CONFIG = EngineConfig(pages=300, decode_rows=(1, 4), prefill_sizes=(16, 64), contexts=(256, 512))


def served(engine: Any, tokens: list[int], max_tokens: int = 12) -> Any:
    """One greedy request, to its end."""
    from trnprof.engine.request import Request, Sampling

    request = Request(f"r{engine.scheduler._arrivals}", tokens, Sampling(max_tokens=max_tokens, ignore_eos=True))
    engine.submit(request, lambda update: None)
    engine.run_until_idle()
    engine.scheduler.cache.check_idle()
    assert request.error is None
    return request


@pytest.mark.parametrize("page_size", [16, 64])
def test_a_state_of_any_size_hits_at_every_page(page_size: int) -> None:
    """A state of 5 heads of 7 x 9 and 3 x 115 convolution inputs (660 numbers, no multiple of any page of keys): a prompt of
    one page and a token already hits, and what is resumed answers as what is computed."""
    torch = pytest.importorskip("torch", reason="the engine extra is not installed")
    from trnprof.engine.device import Device
    from trnprof.engine.kernels.contracts import load_kernels
    from trnprof.engine.loop import Engine
    from trnprof.engine.model.random_weights import random_checkpoint
    from trnprof.engine.model.weights import load_weights
    from trnprof.engine.runner import TorchRunner
    from trnprof.engine.scheduler import Scheduler

    linear = LinearAttentionConfig(key_heads=5, value_heads=5, key_dim=7, value_dim=9)
    model = replace(presets()["tiny-gdn"], linear=linear)
    assert linear.state_elements == 660
    weights = load_weights(model, random_checkpoint(model, 0), torch.float32)
    engines = []
    for cached in (True, False):
        config = replace(CONFIG, page_size=page_size, prefix_cache=cached)
        runner = TorchRunner(model, config, weights, load_kernels(), device=Device())
        engines.append(Engine(Scheduler(config, model), runner))
    for length in (page_size + 1, 3 * page_size):
        prompt = [(7 * i + length) % 250 for i in range(length)]
        answers = [served(engine, prompt).answer for engine in engines]
        again = served(engines[0], prompt)
        assert again.cached_tokens == (length - 1) // page_size * page_size
        assert answers == [again.answer] * 2
    for engine in engines:
        engine.runner.close()


@pytest.mark.slow
def test_a_cache_that_is_off_says_so() -> None:
    pytest.importorskip("uvicorn", reason="the engine extra is not installed")
    from tests.engine.serving import serving

    with serving("--model", "tiny-gdn", "--no-prefix-cache") as up:
        for _ in range(2):
            usage = up.ask({"prompt": "x" * 100, "max_tokens": 1}).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert up.wait_idle()["pages_cached"] == 0
        up.child.terminate()
        assert "the prefix cache is off" in up.child.communicate(timeout=40)[1]


@pytest.mark.slow
def test_a_broken_draft_layer_raises_the_alarm() -> None:
    """The trained model with a draft layer whose last norm is zero, so that it always drafts token 0: the answer is what it
    is without drafts, no position is accepted, and the gauge says so once 256 verifications have been seen."""
    torch = pytest.importorskip("torch", reason="the engine extra is not installed")
    from trnprof.engine.build import open_engine
    from trnprof.engine.metrics import Metrics

    def run(draft: int, *, broken: bool) -> tuple[list[int], str]:
        one = open_engine("tiny-gdn-moe", replace(CONFIG, draft_tokens=draft))
        if broken:
            with torch.inference_mode():
                one.engine.runner.decoder.weights.mtp.norm.zero_()
        prompt = one.tokenizer.encode("def add(a, b):\n    return a + b\n\n\ndef ")
        answer = served(one.engine, prompt, 280).answer
        one.engine.runner.close()
        return answer, Metrics().text(one.engine.scheduler)

    wanted, _ = run(0, broken=False)
    answer, page = run(2, broken=True)
    assert answer == wanted
    assert "trnprof_engine_draft_acceptance_collapsed 1\n" in page
    assert 'trnprof_engine_drafts_accepted_total{position="0"} 0\n' in page
    answer, page = run(2, broken=False)
    assert answer == wanted
    assert "trnprof_engine_draft_acceptance_collapsed 0\n" in page


def test_what_snapshots_cost_is_in_the_step_log() -> None:
    """A prompt of ten chunks: the log's last step has two snapshots taken, and no step held more slots than a request may."""
    pytest.importorskip("torch", reason="the engine extra is not installed")
    from trnprof.engine.build import open_engine

    one = open_engine("tiny-gdn", replace(CONFIG, prefill_sizes=(16,)))
    served(one.engine, list(range(150)), 40)
    steps = one.engine.log.tables()["steps"].to_pylist()
    assert sum(step["kind"] == "prefill" for step in steps) == 10
    assert steps[-1]["snapshots_taken"] == 2 == steps[-1]["snapshots_cached"]
    cache = one.engine.scheduler.cache
    held = [cache.slots.count - step["slots_free"] for step in steps]
    assert 0 < max(held) <= CONFIG.slots_per_request
    one.engine.runner.close()


@pytest.mark.parametrize("what", ["allocate_pages", "allocate_slots"])
def test_an_admission_that_fails_half_way_leaks_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached prefix is locked and half of the memory taken when the rest is refused, five times over: everything is given
    back each time, and the request is served, from the cache, when it can be."""
    bench = Bench(BASE)
    first = bench.ask(list(range(27)), 10)
    bench.finish()
    cache = bench.scheduler.cache
    allocate, refusals = getattr(cache, what), []

    def refuse(count: int) -> list[int] | None:
        if len(refusals) < 5 and count:
            refusals.append(count)
            return None
        taken: list[int] | None = allocate(count)
        return taken

    monkeypatch.setattr(cache, what, refuse)
    second = bench.ask([*first.tokens, *range(9)], 3)
    for _ in range(5):
        assert bench.scheduler.plan() is None
        assert cache.pages.free_count + cache.cached_pages == cache.pages.count
        assert cache.slots.free_count + cache.cached_snapshots == cache.slots.count
    bench.finish()
    assert len(refusals) == 5
    assert second.cached_tokens == 36
