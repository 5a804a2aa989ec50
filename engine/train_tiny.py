"""Train the byte-level tiny-gdn-moe with its MTP layer on the text of Python's own standard library.

    python -m trnprof.engine.train_tiny engine/checkpoints/tiny-gdn-moe --steps 1200

Random weights make drafts, routing and repetition noise; this checkpoint makes them behave like a model's. It is the
serving forward pass itself that is trained (the kernels are differentiable), on caches that are empty in every step. The
recipe (seed, steps, data, losses) is written beside the weights. The corpus is PSF licensed; only weights are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import random
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.config import ModelConfig, presets
from trnprof.engine.kernels.contracts import Kernels, load_kernels
from trnprof.engine.model.caches import SPARE, ZERO_SLOT, allocate_caches
from trnprof.engine.model.decoder import Batch, Decoder
from trnprof.engine.model.random_weights import random_checkpoint
from trnprof.engine.model.weights import load_weights
from trnprof.engine.tokenizer import ByteTokenizer

PAGE = 16
MTP_WEIGHT = 0.3
"""Share of the MTP layer's loss beside the model's."""
BALANCE_WEIGHT = 0.01
"""Of the loss that keeps experts in use: experts x sum over them of (share of tokens x mean probability); 1 is even."""


def corpus() -> tuple[list[int], list[int], str]:
    """(training bytes, held-out bytes, digest): the library's .py files by name, every 20th held out, an end after each."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"}
    files = sorted(
        file for file in root.rglob("*.py") if not skipped & set(file.relative_to(root).parts) and file.is_file()
    )
    kept: tuple[list[int], list[int]] = ([], [])
    digest = hashlib.sha256()
    for number, file in enumerate(files):
        data = file.read_bytes()
        digest.update(data)
        kept[number % 20 == 7].extend([*data, ByteTokenizer.EOS])
    return kept[0], kept[1], digest.hexdigest()


class Balance:
    """Notes what the router did, for the loss that keeps it even."""

    def __init__(self, kernels: Kernels) -> None:
        self._route = kernels.route
        self.losses: list[Tensor] = []
        kernels.route = self.route

    def route(
        self, x: Tensor, weight: Tensor, bias: Tensor, top_k: int, sigmoid: bool, renormalise: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The route kernel, with its loss on the side."""
        weights, chosen = self._route(x, weight, bias, top_k, sigmoid, renormalise, scale)
        mean = torch.softmax(functional.linear(x, weight), -1).mean(0)
        share = functional.one_hot(chosen, weight.shape[0]).sum((0, 1)) / chosen.numel()
        self.losses.append(weight.shape[0] * (share * mean).sum())
        return weights, chosen

    def take(self) -> Tensor:
        """Mean over the layers since the last call."""
        mean = torch.stack(self.losses).mean()
        self.losses.clear()
        return mean


def losses(
    config: ModelConfig, parameters: dict[str, Tensor], tokens: Tensor, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """(next-token loss, MTP loss) in nats a token of rows [B, W + 2]: positions 0..W - 1 are fed."""
    rows, width = tokens.shape[0], tokens.shape[1] - 2
    pages = -(-width // PAGE)
    decoder = Decoder(config, load_weights(config, parameters, torch.float32), kernels, context=width + 2)
    caches = allocate_caches(config, pages=1 + rows * pages, page_size=PAGE, slots=2, dtype=torch.float32)
    fed, following, after = tokens[:, :width], tokens[:, 1 : width + 1], tokens[:, 2:]
    batch = Batch(
        tokens=fed,
        starts=torch.zeros(rows, dtype=torch.int64),
        lengths=torch.full((rows,), width),
        page_table=torch.arange(rows * pages).view(rows, pages) + 1,
        read_slots=torch.full((rows,), ZERO_SLOT),
        write_slots=torch.full((rows, 1), SPARE),
        save_after=torch.zeros(rows, 1, dtype=torch.int64),
    )
    hidden = decoder.forward(batch, caches)
    drafted = decoder.draft(hidden, Batch(**(vars(batch) | {"tokens": following})), caches)
    main, mtp = (
        functional.cross_entropy(decoder.logits(states).flatten(0, 1), wanted.flatten())
        for states, wanted in ((hidden, following), (drafted, after))
    )
    return main, mtp


def train(folder: Path, *, steps: int, rows: int, width: int, rate: float, seed: int) -> dict[str, object]:
    """Train, write config.json, model.safetensors (float16) and recipe.json, and return the recipe."""
    from safetensors.torch import save_file

    config = presets()["tiny-gdn-moe"]
    torch.manual_seed(seed)
    chance = random.Random(seed)
    text, held_out, digest = corpus()
    data, other = torch.tensor(text), torch.tensor(held_out)
    kernels = load_kernels()
    balance = Balance(kernels)
    parameters = {name: tensor.requires_grad_() for name, tensor in random_checkpoint(config, seed).items()}
    matrices = [tensor for tensor in parameters.values() if tensor.dim() > 1]
    vectors = [tensor for tensor in parameters.values() if tensor.dim() <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
    )
    began = time.monotonic()
    for step in range(steps):
        warm, left = min(1.0, (step + 1) / 50), 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * warm * (0.05 + 0.95 * left)
        batch = torch.stack([_window(data, width, chance) for _ in range(rows)])
        main, mtp = losses(config, parameters, batch, kernels)
        even = balance.take()
        (main + MTP_WEIGHT * mtp + BALANCE_WEIGHT * even).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % 25 == 0 or step == steps - 1:
            print(
                f"step {step:5d}  loss {main.item():.3f}  mtp {mtp.item():.3f}  balance {even.item():.2f}  "
                f"{time.monotonic() - began:6.0f} s",
                flush=True,
            )
    with torch.no_grad():
        chance = random.Random(seed + 1)
        found = [
            losses(config, parameters, torch.stack([_window(other, width, chance) for _ in range(8)]), kernels)
            for _ in range(12)
        ]
    recipe: dict[str, object] = {
        "model": config.name,
        "corpus": f"standard library of Python {platform.python_version()}, .py files without tests",
        "corpus_sha256": digest,
        "corpus_bytes": len(text),
        "steps": steps,
        "rows": rows,
        "width": width,
        "learning_rate": rate,
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "held_out_nats_per_byte": round(float(torch.stack([pair[0] for pair in found]).mean()), 4),
        "held_out_mtp_nats_per_byte": round(float(torch.stack([pair[1] for pair in found]).mean()), 4),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().half() for name, tensor in parameters.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf_config(config), indent=1) + "\n", encoding="utf-8")
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return recipe


def _window(data: Tensor, width: int, chance: random.Random) -> Tensor:
    start = chance.randrange(len(data) - width - 2)
    return data[start : start + width + 2]


def hf_config(config: ModelConfig) -> dict[str, object]:
    """The preset as a config.json, which load_model_config reads back as the same model."""
    linear, moe, attention = config.linear, config.moe, config.attention
    assert linear is not None and moe is not None
    return {
        "model_type": "qwen3_5_moe_text",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "num_hidden_layers": len(config.mixers),
        "layer_types": ["linear_attention" if mixer.is_linear else "full_attention" for mixer in config.mixers],
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": attention.rope_theta,
            "partial_rotary_factor": attention.rotary_dim / attention.head_dim,
        },
        "linear_num_key_heads": linear.key_heads,
        "linear_num_value_heads": linear.value_heads,
        "linear_key_head_dim": linear.key_dim,
        "linear_value_head_dim": linear.value_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.intermediate,
        "shared_expert_intermediate_size": moe.shared_intermediate,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "mtp_num_hidden_layers": int(config.mtp),
        "max_position_embeddings": config.max_context,
        "eos_token_id": list(config.eos),
    }


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description="Train the package's tiny model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)
    recipe = train(
        chosen.folder,
        steps=chosen.steps,
        rows=chosen.rows,
        width=chosen.width,
        rate=chosen.rate,
        seed=chosen.seed,
    )
    print(json.dumps(recipe, indent=1))


if __name__ == "__main__":
    main()
