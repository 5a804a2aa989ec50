"""The training script, and the checkpoint that it left in the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")

from trnprof.engine.build import checkpoint_folder, open_engine  # noqa: E402
from trnprof.engine.checkpoint_config import load_model_config  # noqa: E402
from trnprof.engine.config import EngineConfig, presets  # noqa: E402
from trnprof.engine.request import Request, Sampling  # noqa: E402
from trnprof.engine.train_tiny import corpus, train  # noqa: E402

CONFIG = EngineConfig(pages=200, decode_rows=(1, 4), prefill_sizes=(16, 64), contexts=(256, 512), draft_tokens=2)


@pytest.mark.slow
def test_a_few_steps_learn_and_can_be_served(tmp_path: Path) -> None:
    """After 25 steps the loss is below that of a uniform guess (ln 260 = 5.56), and the folder serves as a model."""
    recipe = train(tmp_path, steps=25, rows=2, width=64, rate=3e-3, seed=1)
    assert isinstance(recipe["held_out_nats_per_byte"], float) and recipe["held_out_nats_per_byte"] < 5.0
    written, preset = load_model_config(str(tmp_path)), presets()["tiny-gdn-moe"]
    for name in ("vocab", "hidden", "mixers", "sparse", "attention", "linear", "moe", "mtp", "eos", "tied_embeddings"):
        assert getattr(written, name) == getattr(preset, name), name
    served = open_engine(str(tmp_path), CONFIG)
    request = Request("r", served.tokenizer.encode("import "), Sampling(max_tokens=8, ignore_eos=True))
    served.engine.submit(request, lambda update: None)
    served.engine.run_until_idle()
    assert len(request.answer) == 8


def test_the_trained_checkpoint() -> None:
    """Its recipe says what it was; on held-out text it drafts as a model does: often right, not always."""
    folder = checkpoint_folder("tiny-gdn-moe")
    assert folder is not None
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["held_out_nats_per_byte"] < 2.0
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8_000_000
    served = open_engine("tiny-gdn-moe", CONFIG)
    text = bytes(token for token in corpus()[1][:200_000] if token < 256).decode("utf-8", "replace")
    requests = [
        Request(
            f"r{i}",
            served.tokenizer.encode(text[i * 9000 :])[:160],
            Sampling(max_tokens=64, ignore_eos=True, temperature=0.8, seed=i),
        )
        for i in range(8)
    ]
    for request in requests:
        served.engine.submit(request, lambda update: None)
    served.engine.run_until_idle()
    drafts = served.engine.scheduler.drafts
    assert 0.25 < drafts.accepted[0] / drafts.verifications < 0.98
    assert not drafts.collapsed
