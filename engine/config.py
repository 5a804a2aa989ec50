"""What a model is and what an engine may hold. No torch here; `checkpoint_config` reads a checkpoint's config.json."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trnprof.errors import UsageError

ROW_MULTIPLE = 128
"""Packed projections are zero-padded to a multiple of this many rows: the partition count of SBUF, so that no tile is
ragged (seed 002 padded 3,088 rows to 3,200 = 25 x 128)."""


class Mixer(StrEnum):
    """How a layer mixes tokens."""

    GDN = "gdn"
    """Gated DeltaNet: one decay per head and token."""
    KDA = "kda"
    """Kimi Delta Attention: one decay per channel, head and token."""
    FULL = "full"
    SLIDING = "sliding"

    @property
    def is_linear(self) -> bool:
        """Does it keep a recurrent state instead of keys and values?"""
        return self in (Mixer.GDN, Mixer.KDA)


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig:
    """Sizes of a GDN or KDA layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def conv_elements(self) -> int:
        """Numbers of convolution state in a state page: the last conv_kernel - 1 inputs."""
        return (self.conv_kernel - 1) * self.conv_channels

    @property
    def recurrent_elements(self) -> int:
        """Numbers of recurrent state in a state page: a key_dim x value_dim matrix a value head."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def state_elements(self) -> int:
        """Numbers of one state page, [convolution | recurrent]."""
        return self.conv_elements + self.recurrent_elements


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (MLA) without positions, as kimi_linear's full attention layers have it."""

    kv_rank: int
    query_rank: int | None
    nope_dim: int
    shared_dim: int
    """Channels of the key that all heads share (where other models put their rotary part)."""
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Sizes of the full and sliding attention layers."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int = 0
    rope_theta: float = 10_000.0
    gated: bool = False
    """Is the output multiplied by a sigmoid gate that comes with the query projection?"""
    qk_norm: bool = True
    window: int | None = None
    """Tokens that a sliding layer sees, the current one included."""
    latent: LatentConfig | None = None

    @property
    def cache_heads(self) -> int:
        """Key heads in the cache: MLA caches one latent for all heads."""
        return 1 if self.latent else self.kv_heads

    @property
    def cache_key_dim(self) -> int:
        """Channels of a cached key."""
        return self.latent.kv_rank + self.latent.shared_dim if self.latent else self.head_dim

    @property
    def cache_value_dim(self) -> int:
        """Channels of a cached value; 0 where values are the first channels of the keys (MLA)."""
        return 0 if self.latent else self.head_dim


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Sizes of the mixture-of-experts layers."""

    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gated: bool = True
    """Is the shared expert's output multiplied by a sigmoid gate?"""
    router: str = "softmax"
    """softmax, or sigmoid with a selection bias (DeepSeek's)."""
    renormalise: bool = True
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model. Sizes in elements."""

    name: str
    vocab: int
    hidden: int
    mixers: tuple[Mixer, ...]
    sparse: tuple[bool, ...]
    """Which layers end in a mixture of experts instead of a dense MLP."""
    attention: AttentionConfig
    linear: LinearAttentionConfig | None = None
    intermediate: int = 0
    moe: MoeConfig | None = None
    norm_eps: float = 1e-6
    zero_centred_norm: bool = False
    """Do the checkpoint's norms hold weight - 1? (folded in when weights are loaded)"""
    tied_embeddings: bool = False
    mtp: bool = False
    """Is there a multi-token-prediction layer to draft with?"""
    max_context: int = 32_768
    eos: tuple[int, ...] = ()

    @property
    def linear_layers(self) -> int:
        """Layers that keep a recurrent state."""
        return sum(mixer.is_linear for mixer in self.mixers)

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values, the MTP layer included."""
        return len(self.mixers) - self.linear_layers + self.mtp

    def state_bytes(self) -> int:
        """Bytes of one recurrent snapshot: every linear layer's state page in float32."""
        return 4 * self.linear_layers * self.linear.state_elements if self.linear else 0

    def page_bytes(self, page_size: int, element_bytes: int = 4) -> int:
        """Bytes of one page of keys and values over all attention layers."""
        token = self.attention.cache_heads * (self.attention.cache_key_dim + self.attention.cache_value_dim)
        return self.attention_layers * page_size * token * element_bytes


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine compiles, holds and admits."""

    page_size: int = 16
    """Tokens of one attention page. Small, and independent of the size of a recurrent state: engines that coupled the
    two got pages of 528 to 2,096 tokens and no hits for short prompts."""
    pages: int = 1024
    snapshots: int = 64
    """State slots for the prefix cache, besides those that running requests hold."""
    host_pages: int = 0
    host_snapshots: int = 0
    prefill_sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """Tokens of a row in a prefill step; powers of two keep padding under half of a step."""
    prefill_rows: tuple[int, ...] = (1, 2, 4)
    prefill_budget: int = 1536
    """rows x size of a prefill step stays within this (the largest single-row size is always allowed): the seed's best
    chunk of accumulated prefills was 1,536 tokens."""
    decode_rows: tuple[int, ...] = (1, 4, 8, 16)
    contexts: tuple[int, ...] = (256, 1024, 4096, 8192)
    """Context lengths that a step is compiled for; the last one bounds a request."""
    draft_tokens: int = 0
    """Tokens drafted by the MTP layer before each verification; 0 is no speculation."""
    accumulate_steps: int = 2
    """Decode steps that may pass while waiting prompts are fewer than a prefill step could take."""
    queue_limit: int = 1024
    eviction: str = "stale-interior"
    """lru or stale-interior."""
    prefix_cache: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prefill_sizes", "prefill_rows", "decode_rows", "contexts"):
            values = getattr(self, name)
            if not values or any(value < 1 for value in values) or list(values) != sorted(set(values)):
                raise UsageError(f"{name} must be increasing positive integers, got {values}")
        if self.prefill_rows[0] != 1:
            raise UsageError(f"prefill_rows must start with 1, got {self.prefill_rows}")
        for name in ("page_size", "pages", "prefill_budget", "queue_limit"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("snapshots", "host_pages", "host_snapshots", "draft_tokens", "accumulate_steps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.eviction not in ("lru", "stale-interior"):
            raise UsageError(f"unknown eviction policy {self.eviction!r}; use lru or stale-interior")
        if any(context % self.page_size for context in self.contexts):
            raise UsageError(f"contexts {self.contexts} must be whole pages of {self.page_size} tokens")
        if self.dtype not in ("float32", "bfloat16", "float64"):
            raise UsageError(f"unknown dtype {self.dtype!r}; use float32, bfloat16 or float64")

    @property
    def lanes(self) -> int:
        """Requests that can run at once."""
        return self.decode_rows[-1]

    @property
    def slots_per_request(self) -> int:
        """State slots that a running request may hold: one a verified token, the last page boundary of its answer, and
        until the prefix cache takes them the snapshots of its prompt's end and of a branch point."""
        return 1 + self.draft_tokens + 3

    @property
    def slots(self) -> int:
        """All state slots: the spare and the zero slot, those of running requests, the prefix cache's."""
        return 2 + self.lanes * self.slots_per_request + self.snapshots


def _tiny(name: str, mixers: tuple[Mixer, ...], *, moe: MoeConfig | None = None) -> ModelConfig:
    from trnprof.engine.tokenizer import ByteTokenizer

    return ModelConfig(
        name=name,
        vocab=ByteTokenizer.VOCAB,
        hidden=128,
        mixers=mixers,
        sparse=tuple(moe is not None for _ in mixers),
        attention=AttentionConfig(heads=4, kv_heads=2, head_dim=32, rotary_dim=16, gated=True),
        linear=LinearAttentionConfig(key_heads=4, value_heads=4, key_dim=32, value_dim=32),
        intermediate=384,
        moe=moe,
        zero_centred_norm=True,
        tied_embeddings=True,
        mtp=True,
        max_context=8192,
        eos=(ByteTokenizer.EOS, ByteTokenizer.TURN_END),
    )


def presets() -> dict[str, ModelConfig]:
    """The small models that come with the package, by name; their weights are random unless a checkpoint is named."""
    g, k, f = Mixer.GDN, Mixer.KDA, Mixer.FULL
    experts = MoeConfig(experts=16, top_k=2, intermediate=96, shared_intermediate=96)
    return {
        "tiny-gdn": _tiny("tiny-gdn", (g, g, g, f)),
        "tiny-gdn-moe": _tiny("tiny-gdn-moe", (g, g, g, f), moe=experts),
        "tiny-kda": _tiny("tiny-kda", (k, k, k, f)),
    }
