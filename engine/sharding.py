"""One rank's part of a model under tensor parallelism: the same config with fewer heads, channels and tokens."""

from __future__ import annotations

from dataclasses import replace

from trnprof.engine.config import ModelConfig
from trnprof.errors import UsageError


def shard(config: ModelConfig, rank_count: int) -> ModelConfig:
    """What each of `rank_count` ranks holds.

    Divided: heads of every mixer, intermediate channels of dense MLPs, experts and shared experts, the head's vocabulary
    (rounded up). Whole on every rank: norms, routers, the low-rank halves of KDA's gates, a latent cache, the embedding.
    With more ranks than key heads a head's keys and values are on several.

    Raises: UsageError naming the size that the ranks do not divide.
    """
    if rank_count < 1:
        raise UsageError(f"--tp must be at least 1, got {rank_count}")
    attention, linear, moe = config.attention, config.linear, config.moe
    if len(config.mixers) > config.linear_layers:
        kv_heads = attention.kv_heads
        if rank_count % kv_heads and kv_heads % rank_count:
            raise UsageError(f"--tp {rank_count} fits no whole number of the {kv_heads} key-value heads")
        attention = replace(
            attention,
            heads=_part(attention.heads, rank_count, "attention heads"),
            kv_heads=max(kv_heads // rank_count, 1),
        )
    if linear is not None:
        linear = replace(
            linear,
            key_heads=_part(linear.key_heads, rank_count, "key heads of linear attention"),
            value_heads=_part(linear.value_heads, rank_count, "value heads of linear attention"),
        )
    if moe is not None:
        moe = replace(
            moe,
            intermediate=_part(moe.intermediate, rank_count, "channels of an expert"),
            shared_intermediate=_part(moe.shared_intermediate, rank_count, "channels of the shared expert"),
        )
    return replace(
        config,
        vocab=-(-config.vocab // rank_count),
        attention=attention,
        linear=linear,
        moe=moe,
        intermediate=config.intermediate
        if all(config.sparse)
        else _part(config.intermediate, rank_count, "channels of the MLP"),
    )


def _part(count: int, rank_count: int, what: str) -> int:
    if count % rank_count:
        raise UsageError(f"--tp {rank_count} does not divide the {count} {what}; use a divisor")
    return count // rank_count
