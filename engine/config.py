"""What a model is (from a Hugging Face config.json or a preset) and what an engine may hold. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError, UsageError

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


def load_model_config(model: str) -> ModelConfig:
    """The config of a preset's name, or of a folder with a Hugging Face config.json.

    Raises: InputMissingError if there is neither; InputDataError for a config this engine cannot serve.
    """
    known = presets()
    if model in known:
        return known[model]
    path = Path(model) / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputMissingError(
            f"no preset ({', '.join(known)}) and no folder with a config.json; name one of them", path=model
        ) from None
    except (OSError, ValueError) as error:
        raise InputDataError(f"cannot be read as JSON ({error}); is the checkpoint whole?", path=path) from None
    if not isinstance(document, dict):
        raise InputDataError("is not a JSON object; is this a Hugging Face checkpoint?", path=path)
    try:
        return model_config_from_hf(document)
    except InputDataError as error:
        raise InputDataError(error.message, path=path) from None


@dataclass(frozen=True)
class _Fields:
    """Checked access to a config.json."""

    document: dict[str, object]
    aliases: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, default: object = None) -> object:
        value = self.document.get(name)
        if value is None and name in self.aliases:
            value = self.document.get(self.aliases[name])
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 31:
            raise InputDataError(f"{name} is {value!r} where a count belongs")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputDataError(f"{name} is {value!r} where a number belongs")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.get(name, default))

    def names(self, name: str, count: int) -> tuple[str, ...] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or not all(isinstance(entry, str) for entry in value):
            raise InputDataError(f"{name} must be a list of {count} names, one a layer")
        return tuple(value)


_QWEN_HYBRID = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")
_QWEN_DENSE = ("qwen3", "qwen3_moe")
_SUPPORTED = (*_QWEN_HYBRID, *_QWEN_DENSE, "kimi_linear")


def model_config_from_hf(document: dict[str, object]) -> ModelConfig:
    """The config of one of the supported families, from the fields of its config.json.

    Raises: InputDataError, naming the field, for what the engine does not have.
    """
    inner = document.get("text_config")
    text = inner if isinstance(inner, dict) else document
    kind = text.get("model_type")
    if kind not in _SUPPORTED:
        raise InputDataError(f"model_type {kind!r} is not served; known: {', '.join(_SUPPORTED)}")
    if text.get("hidden_act", "silu") != "silu":
        raise InputDataError(f"hidden_act {text['hidden_act']!r} is not served; only silu")
    if text.get("attention_bias"):
        raise InputDataError("attention_bias is not served")
    read = _kimi if kind == "kimi_linear" else _qwen
    config = read(str(kind), _Fields(text, _KIMI_ALIASES if kind == "kimi_linear" else {}))
    _check(config)
    return config


def _qwen(kind: str, fields: _Fields) -> ModelConfig:
    hybrid = kind in _QWEN_HYBRID
    layers = fields.integer("num_hidden_layers")
    names = {"linear_attention": Mixer.GDN, "full_attention": Mixer.FULL, "sliding_attention": Mixer.SLIDING}
    types = fields.names("layer_types", layers)
    if types is None:
        every = fields.integer("full_attention_interval", 4) if hybrid else 1
        types = tuple("full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers))
    mixers = tuple(_known(names, name, "layer_types") for name in types)
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // max(heads, 1))
    theta, rotary_share = _rope(fields, 0.25 if hybrid else 1.0)
    experts = fields.integer("num_experts", 0) if "moe" in kind or kind == "qwen3_next" else 0
    dense_only = fields.get("mlp_only_layers", [])
    step = fields.integer("decoder_sparse_step", 1)
    sparse = tuple(
        bool(experts) and i not in (dense_only if isinstance(dense_only, list) else []) and (i + 1) % max(step, 1) == 0
        for i in range(layers)
    )
    return ModelConfig(
        name=kind,
        vocab=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        mixers=mixers,
        sparse=sparse,
        attention=AttentionConfig(
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rotary_dim=int(head_dim * rotary_share),
            rope_theta=theta,
            gated=hybrid,
            window=fields.integer("sliding_window") if Mixer.SLIDING in mixers else None,
        ),
        linear=LinearAttentionConfig(
            key_heads=fields.integer("linear_num_key_heads"),
            value_heads=fields.integer("linear_num_value_heads"),
            key_dim=fields.integer("linear_key_head_dim"),
            value_dim=fields.integer("linear_value_head_dim"),
            conv_kernel=fields.integer("linear_conv_kernel_dim", 4),
        )
        if Mixer.GDN in mixers
        else None,
        intermediate=fields.integer("intermediate_size", 0),
        moe=MoeConfig(
            experts=experts,
            top_k=fields.integer("num_experts_per_tok"),
            intermediate=fields.integer("moe_intermediate_size"),
            shared_intermediate=fields.integer("shared_expert_intermediate_size", 0) if hybrid else 0,
            # qwen3_5_moe always renormalises and has no such field; the older ones say.
            renormalise=fields.flag("norm_topk_prob", kind != "qwen3_moe"),
        )
        if experts
        else None,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        zero_centred_norm=hybrid,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        mtp=fields.integer("mtp_num_hidden_layers", fields.integer("num_nextn_predict_layers", 0)) == 1,
        max_context=fields.integer("max_position_embeddings", 32_768),
        eos=_eos(fields),
    )


_KIMI_ALIASES = {
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "max_position_embeddings": "model_max_length",
}


def _kimi(kind: str, fields: _Fields) -> ModelConfig:
    layers = fields.integer("num_hidden_layers")
    old = fields.get("linear_attn_config")
    old_fields = _Fields(old if isinstance(old, dict) else {})
    types = fields.names("layer_types", layers)
    if types is None:
        full = old_fields.get("full_attn_layers")  # 1-based in the published checkpoints
        chosen = (
            {int(i) - 1 for i in full} if isinstance(full, list) else {i for i in range(layers) if i and i % 4 == 0}
        )
        types = tuple("full_attention" if i in chosen else "linear_attention" for i in range(layers))
    names = {"linear_attention": Mixer.KDA, "full_attention": Mixer.FULL}
    mlp = fields.names("mlp_layer_types", layers)
    if mlp is None:
        first = fields.integer("first_k_dense_replace", 1)
        mlp = tuple("dense" if i < first else "sparse" for i in range(layers))
    if fields.integer("n_group", 1) != 1:
        raise InputDataError("n_group above 1 (grouped routing) is not served")
    query_rank = fields.get("q_lora_rank")
    heads = fields.integer("linear_num_heads", old_fields.integer("num_heads", 32))
    dim = fields.integer("linear_head_dim", old_fields.integer("head_dim", 128))
    nope, shared = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    attention_heads = fields.integer("num_attention_heads")
    intermediate = fields.integer("moe_intermediate_size")
    return ModelConfig(
        name=kind,
        vocab=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        mixers=tuple(_known(names, name, "layer_types") for name in types),
        sparse=tuple(name == "sparse" for name in mlp),
        attention=AttentionConfig(
            heads=attention_heads,
            kv_heads=attention_heads,
            head_dim=nope + shared,
            qk_norm=False,
            latent=LatentConfig(
                kv_rank=fields.integer("kv_lora_rank"),
                query_rank=None if query_rank is None else fields.integer("q_lora_rank"),
                nope_dim=nope,
                shared_dim=shared,
                value_dim=fields.integer("v_head_dim"),
            ),
        ),
        linear=LinearAttentionConfig(
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            conv_kernel=fields.integer("linear_conv_kernel_dim", old_fields.integer("short_conv_kernel_size", 4)),
        ),
        intermediate=fields.integer("intermediate_size"),
        moe=MoeConfig(
            experts=fields.integer("num_local_experts"),
            top_k=fields.integer("num_experts_per_tok"),
            intermediate=intermediate,
            shared_intermediate=intermediate * fields.integer("n_shared_experts", 1),
            shared_gated=False,
            router="sigmoid",
            renormalise=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", 1.0),
        ),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        max_context=fields.integer("max_position_embeddings", 32_768),
        eos=_eos(fields),
    )


def _rope(fields: _Fields, default_share: float) -> tuple[float, float]:
    """(theta, rotated share of the head) of the default rotary embedding."""
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise InputDataError("rope_parameters is not an object")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise InputDataError(f"rope_type {kind!r} is not served; only default")
    theta = _Fields(parameters).number("rope_theta", fields.number("rope_theta", 10_000.0))
    share = _Fields(parameters).number("partial_rotary_factor", fields.number("partial_rotary_factor", default_share))
    return theta, share


def _eos(fields: _Fields) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, int) for entry in values):
        raise InputDataError(f"eos_token_id is {value!r} where token numbers belong")
    return tuple(entry for entry in values if isinstance(entry, int))


def _known(names: dict[str, Mixer], name: str, where: str) -> Mixer:
    if name not in names:
        raise InputDataError(f"{where} has {name!r}, which is not served; known: {', '.join(names)}")
    return names[name]


def _check(config: ModelConfig) -> None:
    attention, linear, moe = config.attention, config.linear, config.moe
    problems = [
        ("vocab_size", config.vocab >= 1),
        ("hidden_size", config.hidden >= 1),
        ("num_hidden_layers", len(config.mixers) >= 1),
        ("num_attention_heads", attention.kv_heads >= 1 and attention.heads % max(attention.kv_heads, 1) == 0),
        ("head_dim", attention.head_dim >= 1 and attention.rotary_dim % 2 == 0),
        ("sliding_window", attention.window is None or attention.window >= 1),
        ("linear_num_value_heads", linear is None or linear.value_heads % max(linear.key_heads, 1) == 0),
        ("linear_conv_kernel_dim", linear is None or linear.conv_kernel >= 2),
        ("num_experts_per_tok", moe is None or 1 <= moe.top_k <= moe.experts),
        ("intermediate_size", all(config.sparse) or config.intermediate >= 1),
    ]
    for name, fine in problems:
        if not fine:
            raise InputDataError(f"{name} does not fit the other sizes")
