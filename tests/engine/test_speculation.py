"""Speculation with the MTP layer: on and off give the same tokens; drafts that are right are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")

from trnprof.engine.build import open_engine  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.engine.loop import Engine  # noqa: E402
from trnprof.engine.request import Request, Sampling  # noqa: E402
from trnprof.engine.runner import TorchRunner  # noqa: E402

CONFIG = EngineConfig(pages=400, decode_rows=(1, 4), prefill_sizes=(16, 64), contexts=(256, 512))
PROMPTS = ["a", "def f(x):\n    return x", "one two three four five six seven eight nine ten " * 3, "\n\n\n\n"]


def answers(engine: Engine, encode: Any, tag: str, **sampling: Any) -> list[list[int]]:
    requests = [
        Request(f"{tag}{i}", encode(text), Sampling(max_tokens=40 + i, ignore_eos=True, seed=i, **sampling))
        for i, text in enumerate(PROMPTS)
    ]
    for request in requests:
        engine.submit(request, lambda update: None)
    engine.run_until_idle()
    engine.scheduler.cache.check_idle()
    return [request.answer for request in requests]


@pytest.mark.parametrize("model", ["tiny-gdn", "tiny-gdn-moe", "tiny-kda"])
@pytest.mark.parametrize("draft", [1, 3])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95}], ids=["greedy", "sampled"])
def test_on_and_off_give_the_same_tokens(model: str, draft: int, sampling: dict[str, float]) -> None:
    """Twice, so that the second run resumes from snapshots that speculation took (vllm#50172: caches and drafts clash)."""
    off, on = open_engine(model, CONFIG), open_engine(model, replace(CONFIG, draft_tokens=draft))
    wanted = answers(off.engine, off.tokenizer.encode, "off", **sampling)
    assert answers(on.engine, on.tokenizer.encode, "first", **sampling) == wanted
    assert answers(on.engine, on.tokenizer.encode, "again", **sampling) == wanted
    assert on.engine.scheduler.cache.counters.hits > 0


class Clairvoyant(TorchRunner):
    """Drafts that are always right for the answers it was told, wrong from `wrong_from` on."""

    truth: dict[tuple[int, ...], list[int]]
    wrong_from: int

    def _draft(self, shape: Any, batch: Any, inputs: Any, hidden: Any, chosen: Any, accepted: Any) -> Any:
        super()._draft(shape, batch, inputs, hidden, chosen, accepted)  # the MTP layer's cache is written all the same
        first = inputs.starts + (inputs.lengths if shape.kind == "prefill" else accepted + 1)
        rows = []
        for lane, position in zip(inputs.lanes.tolist(), first.tolist(), strict=True):
            known = self.lanes.get(lane, [])
            right = [known[p] if p < len(known) else 0 for p in range(position + 1, position + 1 + self.draft_tokens)]
            rows.append([token if j < self.wrong_from else (token + 1) % 256 for j, token in enumerate(right)])
        return torch.tensor(rows)

    def _run(self, plan: Any) -> Any:
        self.lanes = {row.lane: self.truth[tuple(row.request.prompt)] for row in plan.rows}
        return super()._run(plan)


@pytest.mark.parametrize("right", [0, 1, 3])
def test_right_drafts_are_accepted_and_wrong_ones_are_not(right: int) -> None:
    """With three drafts of which the first `right` are right every verification gives right + 1 tokens: the step count
    is the answers' length / (right + 1), and the state is rolled back to exactly there."""
    off = open_engine("tiny-gdn", CONFIG)
    wanted = answers(off.engine, off.tokenizer.encode, "off")
    on = open_engine("tiny-gdn", replace(CONFIG, draft_tokens=3))
    on.engine.runner.__class__ = Clairvoyant
    on.engine.runner.truth = {
        tuple(on.tokenizer.encode(text)): on.tokenizer.encode(text) + answer
        for text, answer in zip(PROMPTS, wanted, strict=True)
    }
    on.engine.runner.wrong_from = right
    assert answers(on.engine, on.tokenizer.encode, "on") == wanted
    steps = on.engine.log.tables()["steps"].to_pylist()
    verifications = sum(step["rows"] for step in steps if step["kind"] == "verify")
    # The first token comes from the prefill; the last verification may accept more than is still wanted.
    assert verifications == sum(-(-(len(answer) - 1) // (right + 1)) for answer in wanted)
