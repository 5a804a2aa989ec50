"""Options that the engine's commands share, and the EngineConfig they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trnprof.errors import UsageError

if TYPE_CHECKING:
    from trnprof.engine.config import EngineConfig

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A preset (tiny-gdn, tiny-gdn-moe, tiny-kda), or a folder with config.json and .safetensors.",
        autocompletion=lambda: ["tiny-gdn", "tiny-gdn-moe", "tiny-kda"],
    ),
]
DraftOption = Annotated[int, typer.Option("--draft", help="Tokens that the MTP layer drafts before each verification.")]
PagesOption = Annotated[int, typer.Option(help="Pages of 16 tokens for keys and values.")]
SnapshotsOption = Annotated[int, typer.Option(help="Recurrent snapshots that the prefix cache may hold.")]
HostPagesOption = Annotated[int, typer.Option(help="Pages of the prefix cache in host memory.")]
HostSnapshotsOption = Annotated[int, typer.Option(help="Recurrent snapshots in host memory.")]
PrefillSizesOption = Annotated[str, typer.Option(help="Compiled prefill sizes in tokens, comma separated.")]
DecodeRowsOption = Annotated[str, typer.Option(help="Compiled decode row counts, comma separated.")]
ContextsOption = Annotated[str, typer.Option(help="Compiled context lengths in tokens, comma separated.")]
EvictionOption = Annotated[str, typer.Option(help="Which snapshot goes first: stale-interior or lru.")]
PrefixCacheOption = Annotated[
    bool, typer.Option(help="Keep computed prefixes for later prompts; off, every prompt is computed whole.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu, or neuron (never run on hardware by us).")]
ThreadsOption = Annotated[int, typer.Option(help="CPU threads of an operation; 0 leaves it to PyTorch.")]
SeedOption = Annotated[int, typer.Option(help="Seed of random weights and of the workload.")]

PREFILL_SIZES = "16,32,64,128,256,512,1024"
DECODE_ROWS = "1,4,8,16"
CONTEXTS = "256,1024,4096,8192"


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Comma separated positive integers.

    Raises: UsageError naming the option.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 for part in parts):
        raise UsageError(f"{option} takes whole numbers separated by commas, got {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def engine_config(
    *,
    draft: int = 0,
    pages: int = 1024,
    snapshots: int = 64,
    host_pages: int = 0,
    host_snapshots: int = 0,
    prefill_sizes: str = PREFILL_SIZES,
    decode_rows: str = DECODE_ROWS,
    contexts: str = CONTEXTS,
    eviction: str = "stale-interior",
    prefix_cache: bool = True,
    device: str = "cpu",
    seed: int = 0,
) -> EngineConfig:
    """The configuration that the options ask for.

    Raises: UsageError for a value that cannot be meant.
    """
    from trnprof.engine.config import EngineConfig

    if device not in ("cpu", "neuron"):
        raise UsageError(f"unknown device {device!r}; use cpu or neuron")
    return EngineConfig(
        pages=pages,
        snapshots=snapshots,
        host_pages=host_pages,
        host_snapshots=host_snapshots,
        prefill_sizes=numbers(prefill_sizes, "--prefill-sizes"),
        decode_rows=numbers(decode_rows, "--decode-rows"),
        contexts=numbers(contexts, "--contexts"),
        draft_tokens=draft,
        eviction=eviction,
        prefix_cache=prefix_cache,
        device=device,
        seed=seed,
    )
