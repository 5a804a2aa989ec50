"""The config of a preset or of a checkpoint: the fields of Hugging Face's config.json, family by family. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from trnprof.engine.config import (
    AttentionConfig,
    LatentConfig,
    LinearAttentionConfig,
    Mixer,
    ModelConfig,
    MoeConfig,
    presets,
)
from trnprof.errors import InputDataError, InputMissingError


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
