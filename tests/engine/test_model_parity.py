"""The model alone against transformers: teacher-forced log-probabilities, whole, in chunks and token by token."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")
pytest.importorskip("transformers", reason="transformers (extra engine-test) is the oracle of these tests")

from tests.engine.references import FAMILIES, Reference, Rows, build  # noqa: E402

TOLERANCE = 1e-4
"""Of a log-probability in float32; transformers itself is up to 5e-5 from float64 on these models."""


@cache
def reference(family: str) -> Reference:
    return build(family)


def tokens(count: int, seed: int = 1) -> list[int]:
    return torch.randint(3, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def expected(family: str, sequence: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(family).hf(torch.tensor([sequence])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_prefill(family: str) -> None:
    sequence = tokens(300)
    ours = Rows(reference(family).decoder, 1, context=512).feed([sequence], width=320)[0]
    assert (ours.log_softmax(-1) - expected(family, sequence)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_single_tokens(family: str) -> None:
    """Chunks that end inside a page, inside a GDN chunk and after one token, then decode: the same log-probabilities."""
    sequence = tokens(220, seed=2)
    rows = Rows(reference(family).decoder, 1, context=512)
    parts = [rows.feed([sequence[:100]], width=128)[0], rows.feed([sequence[100:101]], width=16)[0]]
    parts.append(rows.feed([sequence[101:180]], width=80)[0])
    parts += [rows.feed([[token]])[0] for token in sequence[180:]]
    assert (torch.cat(parts).log_softmax(-1) - expected(family, sequence)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_do_not_see_each_other(family: str) -> None:
    """Rows of different lengths in one step give what each gives alone."""
    decoder = reference(family).decoder
    sequences = [tokens(count, seed) for seed, count in enumerate((3, 70, 33, 64))]
    together = Rows(decoder, 4, context=128)
    first = together.feed(sequences, width=80)
    second = together.feed([[7 + row] for row in range(4)])
    for row, sequence in enumerate(sequences):
        alone = Rows(decoder, 1, context=128)
        assert (alone.feed([sequence], width=80)[0] - first[row]).abs().max() <= TOLERANCE
        assert (alone.feed([[7 + row]])[0] - second[row]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_float64_is_an_oracle(family: str) -> None:
    """In float64 chunked and token by token agree to 1e-9: what is left in float32 is rounding, not algebra."""
    decoder = build(family, dtype=torch.float64, max_position_embeddings=512).decoder
    sequence = tokens(130, seed=3)
    whole = Rows(decoder, 1, context=256, dtype=torch.float64).feed([sequence], width=192)[0]
    rows = Rows(decoder, 1, context=256, dtype=torch.float64)
    single = torch.cat([rows.feed([[token]])[0] for token in sequence])
    assert (whole - single).abs().max() <= 1e-9


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next", "kimi_linear"])
def test_saved_checkpoint_is_read(family: str, tmp_path: object) -> None:
    """What save_pretrained writes (its own tensor names) gives the same model as the one in memory."""
    import json
    from pathlib import Path

    from trnprof.engine.checkpoint_config import load_model_config
    from trnprof.engine.kernels.contracts import load_kernels
    from trnprof.engine.model.decoder import Decoder
    from trnprof.engine.model.weights import load_weights, read_checkpoint

    folder = Path(str(tmp_path))
    reference(family).hf.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 256
    config = load_model_config(str(folder))
    decoder = Decoder(config, load_weights(config, read_checkpoint(folder), torch.float32), load_kernels(), context=512)
    sequence = tokens(40, seed=4)
    ours = Rows(decoder, 1, context=64).feed([sequence], width=48)[0]
    assert (ours.log_softmax(-1) - expected(family, sequence)).abs().max() <= TOLERANCE
