"""The kernels of one step on one rank, in the order that they run, with their shapes: a model config unrolled.

What `trnprof engine profile --modelled` puts through the timing model. It names kernel files and tensors and knows nothing of
times; no torch. Layers of one kind have the same shapes, so that a kernel is listed once a layer and timed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from trnprof.engine.config import ROW_MULTIPLE, Mixer, ModelConfig
from trnprof.engine.shapes import StepKind
from trnprof.engine.sharding import shard
from trnprof.errors import UsageError

KERNEL_FOLDER = Path(__file__).resolve().parent / "kernels" / "nki"

PARTITIONS = 128
"""A contracted axis is padded with zeros to a multiple of this."""

PAGE_TOKENS = 16

SAVED_STATES = 3
"""States that a prefilled row may save: at its end, at the last page boundary before it, at a branch point."""

EXPERT_ROWS = 512
"""Rows of one call of the experts' kernel; more go in several, each of which reads the weights again."""


class ExpertForm(StrEnum):
    """How the chosen experts run: for each (row, expert) pair, or each expert once for all rows."""

    SELECTIVE = "selective"
    ONCE = "once"


class Role(StrEnum):
    """What a tensor is to a step: weights, states and caches must be moved whatever the kernels are."""

    WEIGHTS = "weights"
    STATE = "state"
    CACHE = "cache"
    ACTIVATIONS = "activations"
    AGAIN = "weights_again"
    """Weights that an earlier call of the same layer has read."""


@dataclass(frozen=True)
class TensorUse:
    """One tensor argument of a kernel."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role = Role.ACTIVATIONS


@dataclass(frozen=True)
class KernelUse:
    """A kernel with its arguments; two layers of one kind use the same."""

    file: str
    """In KERNEL_FOLDER."""
    kernel: str
    tensors: tuple[TensorUse, ...]
    arguments: tuple[tuple[str, object], ...] = ()
    """Other arguments: numbers, flags and texts."""

    def without_roles(self) -> KernelUse:
        """What its time depends on."""
        return replace(self, tensors=tuple(replace(one, role=Role.ACTIVATIONS) for one in self.tensors))


@dataclass(frozen=True)
class StepCall:
    """One run of a kernel."""

    part: str
    """Kind of layer and operation: gdn.input_projection, moe.experts, head.greedy."""
    use: KernelUse


@dataclass(frozen=True)
class Collective:
    """What the ranks do after every run of a part."""

    operation: str
    byte_count: int
    """Payload of a rank."""


@dataclass(frozen=True)
class DeviceStep:
    """One step of one rank."""

    kind: StepKind
    config: ModelConfig
    """The whole model."""
    rank_count: int
    rows: int
    tokens: int
    """New ones of a row."""
    context: int
    """Tokens of a row that the caches hold after it."""
    dtype: str
    calls: tuple[StepCall, ...]
    """In order."""
    collectives: Mapping[str, Collective]
    """By part."""
    left_out: tuple[str, ...] = field(default=())
    """What a step does and no kernel stands for."""

    def parts(self) -> dict[str, tuple[KernelUse, int]]:
        """Every part once, with how often it runs; in the order of the first run."""
        counts: dict[str, tuple[KernelUse, int]] = {}
        for call in self.calls:
            counts[call.part] = (call.use, counts.get(call.part, (call.use, 0))[1] + 1)
        return counts


def decode_step(
    config: ModelConfig,
    *,
    rows: int,
    context: int,
    rank_count: int = 1,
    expert_form: ExpertForm = ExpertForm.ONCE,
    dtype: str = "bfloat16",
) -> DeviceStep:
    """The step that gives each of `rows` requests one more token, greedily; `context` counts the one that it reads.

    Weights, keys and values are `dtype`; recurrent states and norms' weights float32.

    Raises: UsageError for sizes that cannot be, or that `rank_count` does not divide.
    """
    return _step(StepKind.DECODE, config, (rows, 1, context), rank_count, expert_form, dtype)


def prefill_step(
    config: ModelConfig,
    *,
    rows: int,
    tokens: int,
    context: int,
    rank_count: int = 1,
    expert_form: ExpertForm = ExpertForm.ONCE,
    dtype: str = "bfloat16",
) -> DeviceStep:
    """The step that reads `tokens` tokens of each of `rows` prompts, the last of `context`, and chooses the next one.

    Raises: as decode_step.
    """
    return _step(StepKind.PREFILL, config, (rows, tokens, context), rank_count, expert_form, dtype)


def _step(
    kind: StepKind,
    config: ModelConfig,
    sizes: tuple[int, int, int],
    rank_count: int,
    expert_form: ExpertForm,
    dtype: str,
) -> DeviceStep:
    rows, tokens, context = sizes
    if rows < 1 or not 1 <= tokens <= context <= config.max_context:
        new = f", of which {tokens:,} are new" if kind is StepKind.PREFILL else ""
        raise UsageError(
            f"{rows} rows of {context:,} tokens{new}: --rows and --tokens must be at least 1, and --context between --tokens "
            f"and the model's {config.max_context:,}"
        )
    unrolled = _Unrolled(kind, shard(config, rank_count), sizes, dtype, expert_form, config.vocab)
    unrolled.step()
    hidden = Collective("all_reduce", rows * tokens * config.hidden * _BYTES[dtype])
    shared = dict.fromkeys(unrolled.summed, hidden)
    shared["head.greedy"] = Collective("all_gather", rows * 8)  # each rank's best logit and its token
    return DeviceStep(
        kind=kind,
        config=config,
        rank_count=rank_count,
        rows=rows,
        tokens=tokens,
        context=context,
        dtype=dtype,
        calls=tuple(unrolled.calls),
        collectives=shared if rank_count > 1 else {},
        left_out=(*LEFT_OUT, *(RANKS_LEFT_OUT if rank_count > 1 else ())),
    )


LEFT_OUT = (
    "operations that have no kernel and that the compiler puts between them: rotary positions, residual sums, silu of MLPs, "
    "sigmoid gates, the delta rule's decay and write strength",
    "sampling other than greedy, and drafts of the MTP layer",
)

RANKS_LEFT_OUT = (
    "how many ranks there are and where they lie: a collective's time is of its bytes alone, and no rank comes late",
    "the other core of a pair, which streams from the same HBM stack",
)

_LAYER = {Mixer.GDN: "gdn", Mixer.KDA: "kda", Mixer.FULL: "attention", Mixer.SLIDING: "sliding"}
"""What parts of a layer are named after."""

_BYTES = {"bfloat16": 2, "float32": 4}


class _Unrolled:
    """Collects the calls of one rank's step."""

    def __init__(
        self,
        kind: StepKind,
        config: ModelConfig,
        sizes: tuple[int, int, int],
        dtype: str,
        expert_form: ExpertForm,
        whole_vocab: int,
    ) -> None:
        self.is_prefill, self.config, self.dtype = kind is StepKind.PREFILL, config, dtype
        self.requests, self.width, self.context = sizes
        self.rows = self.requests * self.width
        """Tokens, which everything but the mixers takes one by one."""
        self.expert_form, self.whole_vocab = expert_form, whole_vocab
        self.calls: list[StepCall] = []
        self.summed: list[str] = []
        """Parts whose results the ranks add up."""

    def step(self) -> None:
        """Every call of the step."""
        config = self.config
        self.embed()
        for mixer, sparse in zip(config.mixers, config.sparse, strict=True):
            self.norm(f"{_LAYER[mixer]}.input_norm", self.rows, config.hidden)
            if mixer.is_linear:
                self.linear_attention(mixer)
            elif config.attention.latent:
                self.latent_attention(mixer)
            else:
                self.attention(mixer)
            if sparse:
                self.experts()
            else:
                self.norm("mlp.norm", self.rows, config.hidden)
                self.mlp("mlp", config.intermediate)
        self.norm("head.norm", self.rows, config.hidden)
        # The last token of each request alone is scored.
        self.project("head.logits", config.hidden, config.vocab, rows=self.requests)
        self.call("head.greedy", "sampling.py", "greedy", [self.tensor("logits", self.requests, config.vocab)])

    def call(
        self,
        part: str,
        file: str,
        kernel: str,
        tensors: Sequence[TensorUse],
        *,
        summed: bool = False,
        absent: Sequence[str] = (),
        **arguments: object,
    ) -> None:
        """One run. summed: the ranks add up its result; absent: tensor arguments that are None."""
        others = (*arguments.items(), *((name, None) for name in absent))
        self.calls.append(StepCall(part, KernelUse(file, kernel, tuple(tensors), others)))
        if summed and part not in self.summed:
            self.summed.append(part)

    def tensor(self, name: str, *shape: int, role: Role = Role.ACTIVATIONS) -> TensorUse:
        """In the model's dtype."""
        return TensorUse(name, shape, self.dtype, role)

    def wide(self, name: str, *shape: int, role: Role = Role.ACTIVATIONS) -> TensorUse:
        """In float32."""
        return TensorUse(name, shape, "float32", role)

    def index(self, name: str, *shape: int) -> TensorUse:
        """Numbers of pages, slots, tokens or experts."""
        return TensorUse(name, shape, "int32")

    # Kernels

    def embed(self) -> None:
        """Rows of the embedding table, which every rank holds whole."""
        table = self.tensor("table", self.whole_vocab, self.config.hidden, role=Role.WEIGHTS)
        self.call("embedding", "embedding.py", "embed", [table, self.index("tokens", self.rows, 1)])

    def norm(self, part: str, rows: int, size: int) -> None:
        """RMSNorm of `rows` vectors."""
        weight = self.wide("weight", size, role=Role.WEIGHTS)
        self.call(part, "rms_norm.py", "rms_norm", [self.tensor("x", rows, size), weight], eps=self.config.norm_eps)

    def project(self, part: str, size: int, columns: int, *, rows: int | None = None, summed: bool = False) -> None:
        """x [rows, size] @ weight [size, columns]; the contracted axis padded to whole partitions."""
        size = _padded(size, PARTITIONS)
        weight = self.tensor("weight", size, columns, role=Role.WEIGHTS)
        x = self.tensor("x", rows or self.rows, size)
        self.call(part, "projection.py", "project", [x, weight], summed=summed)

    def linear_attention(self, mixer: Mixer) -> None:
        """GDN or KDA: projections, the recurrence on the packed state, gated norm."""
        sizes, hidden = self.config.linear, self.config.hidden
        assert sizes is not None
        heads, values = sizes.value_heads, sizes.value_heads * sizes.value_dim
        # GDN: qkv, output gate, beta, decay. KDA: qkv, beta and the low-rank halves of its two gates.
        packed = sizes.conv_channels + (values + 2 * heads if mixer is Mixer.GDN else heads + 2 * sizes.key_dim)
        self.project(f"{_LAYER[mixer]}.input_projection", hidden, _padded(packed, ROW_MULTIPLE))
        if mixer is Mixer.KDA:
            self.project(f"{_LAYER[mixer]}.decay_projection", sizes.key_dim, heads * sizes.key_dim)
            self.project(f"{_LAYER[mixer]}.gate_projection", sizes.key_dim, values)
        self.delta_rule(mixer)
        rows = self.rows * heads
        self.call(
            f"{_LAYER[mixer]}.gated_norm",
            "rms_norm.py",
            "gated_rms_norm",
            [
                self.wide("x", rows, sizes.value_dim),
                self.tensor("gate", rows, sizes.value_dim),
                self.wide("weight", sizes.value_dim, role=Role.WEIGHTS),
            ],
            eps=self.config.norm_eps,
            sigmoid=mixer is Mixer.KDA,
        )
        self.project(f"{_LAYER[mixer]}.output_projection", values, hidden, summed=True)

    def delta_rule(self, mixer: Mixer) -> None:
        """The recurrence over a request's new tokens; it reads one slot of state and writes others."""
        sizes, rows, width = self.config.linear, self.requests, self.width
        assert sizes is not None
        channels, heads = sizes.conv_channels, sizes.value_heads
        saved = SAVED_STATES if self.is_prefill else 1
        lengths = [self.index("save_after", rows, saved), self.index("lengths", rows)] if self.is_prefill else []
        self.call(
            f"{_LAYER[mixer]}.delta_rule",
            "delta_rule.py",
            "delta_rule_prefill" if self.is_prefill else "delta_rule_decode",
            [
                self.wide("bank", (1 + saved) * rows, sizes.state_elements, role=Role.STATE),
                self.index("read_slots", rows),
                self.index("write_slots", rows, saved),
                *lengths,
                self.tensor("qkv", rows, width, channels),
                self.tensor("conv_weight", sizes.conv_kernel, channels, role=Role.WEIGHTS),
                self.wide("log_decay", rows, width, heads, 1 if mixer is Mixer.GDN else sizes.key_dim),
                self.wide("beta", rows, width, heads),
            ],
            key_heads=sizes.key_heads,
            value_heads=heads,
            key_dim=sizes.key_dim,
            value_dim=sizes.value_dim,
        )

    def attention(self, mixer: Mixer) -> None:
        """Grouped-query attention with norms of queries and keys."""
        sizes, hidden = self.config.attention, self.config.hidden
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        packed = queries * (2 if sizes.gated else 1) + 2 * keys
        self.project(f"{_LAYER[mixer]}.input_projection", hidden, _padded(packed, ROW_MULTIPLE))
        if sizes.qk_norm:
            self.norm(f"{_LAYER[mixer]}.query_norm", self.rows * sizes.heads, sizes.head_dim)
            self.norm(f"{_LAYER[mixer]}.key_norm", self.rows * sizes.kv_heads, sizes.head_dim)
        window = sizes.window or 0 if mixer is Mixer.SLIDING else 0
        self.attend(mixer, sizes.heads, sizes.head_dim, sizes.head_dim, window, sizes.head_dim**-0.5)
        self.project(f"{_LAYER[mixer]}.output_projection", queries, hidden, summed=True)

    def attend(self, mixer: Mixer, heads: int, key_dim: int, value_dim: int, window: int, scale: float) -> None:
        """The new tokens' queries over their request's pages; the spare page is the first of the pool."""
        config, rows, width, tokens = self.config.attention, self.requests, self.width, self.rows
        page_count = -(-self.context // PAGE_TOKENS)
        pool, kv_heads, kept = 1 + rows * page_count, config.cache_heads, config.cache_value_dim
        tensors = [
            self.tensor("key_pages", pool, kv_heads, key_dim, PAGE_TOKENS, role=Role.CACHE),
            self.index("pages", page_count, rows),
            self.index("positions", 1, tokens),
            self.index("key_places", tokens, 1),
            self.tensor("q", rows, width, heads, key_dim),
            self.tensor("k", rows, width, kv_heads, key_dim),
        ]
        absent: tuple[str, ...] = ()
        if kept:
            tensors += [
                self.tensor("value_pages", pool, kv_heads, PAGE_TOKENS, kept, role=Role.CACHE),
                self.index("value_places", tokens, 1),
                self.tensor("v", rows, width, kv_heads, kept),
            ]
        else:  # latent: the values are the keys' first channels
            absent = ("value_pages", "value_places", "v")
        self.call(
            f"{_LAYER[mixer]}.attend",
            "attention.py",
            "attention_prefill" if self.is_prefill else "attention_decode",
            tensors,
            scale=scale,
            window=window,
            value_dim=value_dim,
            absent=absent,
        )

    def latent_attention(self, mixer: Mixer) -> None:
        """MLA: attention on the cached latents, the key's up-projection folded into the query, head by head."""
        sizes, heads, hidden = self.config.attention.latent, self.config.attention.heads, self.config.hidden
        assert sizes is not None
        size, cached = sizes.nope_dim + sizes.shared_dim, sizes.kv_rank + sizes.shared_dim
        first = sizes.query_rank or heads * size
        self.project(f"{_LAYER[mixer]}.input_projection", hidden, _padded(first + cached, ROW_MULTIPLE))
        if sizes.query_rank is not None:
            self.norm(f"{_LAYER[mixer]}.query_norm", self.rows, sizes.query_rank)
            self.project(f"{_LAYER[mixer]}.query_projection", sizes.query_rank, _padded(heads * size, ROW_MULTIPLE))
        for _ in range(heads):
            self.project(f"{_LAYER[mixer]}.key_fold", sizes.nope_dim, sizes.kv_rank)
        self.norm(f"{_LAYER[mixer]}.latent_norm", self.rows, sizes.kv_rank)
        self.attend(mixer, heads, cached, sizes.kv_rank, 0, size**-0.5)
        for _ in range(heads):
            self.project(f"{_LAYER[mixer]}.value_projection", sizes.kv_rank, sizes.value_dim)
        self.project(f"{_LAYER[mixer]}.output_projection", heads * sizes.value_dim, hidden, summed=True)

    def mlp(self, part: str, size: int, *, gated: bool = False, summed: bool = True) -> None:
        """gate and up packed, then down; gated: one more row, the gate of a shared expert."""
        hidden = self.config.hidden
        self.project(f"{part}.gate_up", hidden, _padded(2 * size + gated, ROW_MULTIPLE))
        self.project(f"{part}.down", size, hidden, summed=summed)

    def experts(self) -> None:
        """Router, the chosen experts, the shared expert; the ranks add both up at once."""
        sizes, rows, hidden = self.config.moe, self.rows, self.config.hidden
        assert sizes is not None
        self.norm("moe.norm", rows, hidden)
        size = _padded(hidden, PARTITIONS)
        self.call(
            "moe.router",
            "routing.py",
            "route",
            [
                self.tensor("x", rows, size),
                self.tensor("weight", size, sizes.experts, role=Role.WEIGHTS),
                self.wide("bias", 1, sizes.experts, role=Role.WEIGHTS),
            ],
            top_k=sizes.top_k,
            sigmoid=sizes.router == "sigmoid",
            renormalise=sizes.renormalise,
            scale=sizes.scale,
        )
        for first in range(0, rows, EXPERT_ROWS):
            count = min(EXPERT_ROWS, rows - first)
            self.routed(first, count, summed=first + count == rows and not sizes.shared_intermediate)
        if sizes.shared_intermediate:
            self.mlp("moe.shared", sizes.shared_intermediate, gated=sizes.shared_gated)

    def routed(self, first: int, rows: int, *, summed: bool) -> None:
        """The chosen experts of rows from `first` on."""
        sizes, hidden = self.config.moe, self.config.hidden
        assert sizes is not None
        role, part = (Role.AGAIN, "moe.experts_again") if first else (Role.WEIGHTS, "moe.experts")
        if first and rows < EXPERT_ROWS:
            part = "moe.experts_rest"
        p, q = _tile(hidden), _tile(sizes.intermediate)
        hidden_count, inner_count = hidden // p, sizes.intermediate // q
        tensors = [
            self.tensor("x", rows, hidden),
            self.tensor("weights", rows, sizes.top_k),
            self.index("chosen", rows, sizes.top_k),
            self.tensor("gate_up", sizes.experts, p, inner_count, 2, hidden_count, q, role=role),
            self.tensor("down", sizes.experts, q, hidden_count, inner_count, p, role=role),
        ]
        if self.expert_form is ExpertForm.ONCE:
            tensors.append(self.index("numbers", min(sizes.experts, rows * sizes.top_k)))
        self.call(part, "experts.py", f"experts_{self.expert_form}", tensors, summed=summed)


def _tile(channels: int) -> int:
    """The most partitions that divide the channels evenly, as the experts' weights are laid out."""
    return max(size for size in range(1, min(channels, PARTITIONS) + 1) if channels % size == 0)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
