"""A modelled step: bytes are the config's arithmetic, times add up, and it is read like a capture. Needs no torch.

The byte counts are worked out here from a config's sizes alone, as engine/model/weights.py lays tensors out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.cli import run
from trnprof.engine.checkpoint_config import load_model_config, model_config_from_hf
from trnprof.engine.config import Mixer, ModelConfig
from trnprof.engine.modelled_step import KERNEL_FOLDER, PAGE_TOKENS, ExpertForm, decode_step, prefill_step
from trnprof.engine.sharding import shard
from trnprof.errors import InputDataError, UsageError
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.hardware.instruction_costs import Case
from trnprof.modelled_step import ModelledStep, model_device_step
from trnprof.profile import Provenance
from trnprof.readers import read_profile
from trnprof.render.engine_profile import modelled_json, modelled_markdown, modelled_text
from trnprof.render.markdown import escaped
from trnprof.result_schema import schema_of
from trnprof.writers.explorer_parquet import write_explorer_parquet

LARGE = Path(__file__).parent / "models" / "qwen3-next-80b-a3b"


@cache
def modelled(model: str, rows: int, context: int, ranks: int, form: ExpertForm = ExpertForm.ONCE) -> ModelledStep:
    config = load_model_config(model)
    return model_device_step(
        decode_step(config, rows=rows, context=context, rank_count=ranks, expert_form=form), "trn2"
    )


def weight_bytes(config: ModelConfig, rows: int, ranks: int, form: ExpertForm = ExpertForm.ONCE) -> int:
    """bfloat16 weights and float32 norms that one rank reads in a step, each once."""
    hidden = config.hidden
    total = 2 * min(rows, config.vocab) * hidden  # rows of the embedding
    for mixer, sparse in zip(config.mixers, config.sparse, strict=True):
        total += 2 * 4 * hidden  # two norms
        if mixer.is_linear:
            total += linear_bytes(config, mixer, ranks)
        else:
            total += attention_bytes(config, ranks)
        if sparse:
            total += moe_bytes(config, rows, ranks, form)
        else:
            total += mlp_bytes(hidden, config.intermediate // ranks, gated=False)
    return total + 4 * hidden + 2 * hidden * -(-config.vocab // ranks)


def up(size: int) -> int:
    return -(-size // 128) * 128


def linear_bytes(config: ModelConfig, mixer: Mixer, ranks: int) -> int:
    sizes, hidden = config.linear, config.hidden
    assert sizes is not None
    keys, values = sizes.key_heads * sizes.key_dim // ranks, sizes.value_heads * sizes.value_dim // ranks
    heads = sizes.value_heads // ranks
    channels = 2 * keys + values
    elements = sizes.conv_kernel * channels + up(values) * hidden
    if mixer is Mixer.GDN:
        elements += hidden * up(channels + values + 2 * heads)
    else:
        elements += hidden * up(channels + heads + 2 * sizes.key_dim)
        elements += up(sizes.key_dim) * (keys + values)
    return 2 * elements + 4 * sizes.value_dim


def attention_bytes(config: ModelConfig, ranks: int) -> int:
    sizes, hidden = config.attention, config.hidden
    queries = sizes.heads // ranks * sizes.head_dim
    keys = max(sizes.kv_heads // ranks, 1) * sizes.head_dim
    return 2 * hidden * up((1 + sizes.gated) * queries + 2 * keys) + 2 * up(queries) * hidden + 2 * 4 * sizes.head_dim


def moe_bytes(config: ModelConfig, rows: int, ranks: int, form: ExpertForm) -> int:
    sizes, hidden = config.moe, config.hidden
    assert sizes is not None
    runs = rows * sizes.top_k
    if form is ExpertForm.ONCE:
        runs = min(runs, sizes.experts)
    # The router and its selection bias are read by every rank; a bias that a softmax router does not use is not.
    router = 2 * hidden * sizes.experts + (4 * sizes.experts if sizes.router == "sigmoid" else 0)
    shared = mlp_bytes(hidden, sizes.shared_intermediate // ranks, gated=sizes.shared_gated)
    return router + runs * 2 * 3 * hidden * sizes.intermediate // ranks + shared


def mlp_bytes(hidden: int, size: int, *, gated: bool) -> int:
    return 2 * hidden * up(2 * size + gated) + 2 * up(size) * hidden


@pytest.mark.parametrize(
    ("model", "ranks"), [("tiny-gdn", 1), ("tiny-gdn-moe", 1), ("tiny-gdn-moe", 2), ("tiny-kda", 4)]
)
def test_weights_are_moved_once_and_are_the_configs(model: str, ranks: int) -> None:
    found = modelled(model, 4, 1024, ranks)
    expected = weight_bytes(load_model_config(model), 4, ranks)
    assert found.needed_bytes["weights"] == found.traffic_bytes["weights"] == expected


def test_selective_experts_read_weights_for_every_pair() -> None:
    """16 rows x 2 experts are 32 pairs, and there are 16 experts."""
    config = load_model_config("tiny-gdn-moe")
    each, once = (modelled("tiny-gdn-moe", 16, 256, 2, form) for form in (ExpertForm.SELECTIVE, ExpertForm.ONCE))
    for found, form in ((each, ExpertForm.SELECTIVE), (once, ExpertForm.ONCE)):
        assert found.traffic_bytes["weights"] == weight_bytes(config, 16, 2, form)
    assert each.traffic_bytes["weights"] - once.traffic_bytes["weights"] == 4 * 16 * 2 * 3 * 128 * 96 // 2
    assert each.needed_bytes["weights"] == once.needed_bytes["weights"]


def test_states_and_caches_are_the_configs() -> None:
    found = modelled("tiny-gdn-moe", 4, 1024, 2)
    sizes = shard(load_model_config("tiny-gdn-moe"), 2)
    assert sizes.linear is not None
    # Every page of every linear layer is read once and written once.
    assert found.traffic_bytes["state"] == 2 * 4 * 3 * 4 * sizes.linear.state_elements
    # One attention layer: keys and values of 1,024 tokens, one head of 32 channels, and the new token's.
    assert sizes.attention.kv_heads == 1
    token = 2 * 1 * 32 * 2
    assert found.traffic_bytes["cache"] == 4 * (1024 + 1) * token
    assert found.resident_bytes["cache"] == (4 * 1024 + PAGE_TOKENS) * token


def test_parts_add_up_to_the_step() -> None:
    found = modelled("tiny-gdn-moe", 4, 1024, 2)
    for case in Case:
        kernels = sum(part.run_count * getattr(part.each_ns, case) for part in found.parts)
        shared = sum(part.run_count * getattr(part.collective_ns, case) for part in found.parts)
        assert kernels + shared + getattr(found.boundary_ns, case) == getattr(found.total_ns, case)
    # After attention or linear attention, and after the experts, of each of four layers; and the choice of the token.
    assert [(part.name, part.run_count) for part in found.parts if part.collective] == [
        ("gdn.output_projection", 3),
        ("moe.shared.down", 4),
        ("attention.output_projection", 1),
        ("head.greedy", 1),
    ]
    hidden = {part.collective.byte_count for part in found.parts if part.collective and part.name != "head.greedy"}
    assert hidden == {4 * 128 * 2}


def test_the_profile_is_the_step(tmp_path: Path) -> None:
    found = modelled("tiny-gdn-moe", 4, 1024, 2)
    profile = found.profile()
    window = profile.metadata.cores[0].window_end_ts
    assert window == pytest.approx(found.total_ns.mid, abs=len(found.step.calls))
    assert profile.metadata.provenance is Provenance.MODELLED
    assert profile.kernels is not None
    assert profile.kernels["name"].to_pylist() == [call.part for call in found.step.calls]
    account = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, load_hardware("trn2")))
    core = account.cores[0]
    assert core.parts.total_ns() == window
    assert core.parts.exposed_collective_ns == pytest.approx(
        sum(part.run_count * part.collective_ns.mid for part in found.parts), abs=9
    )
    assert core.hbm is not None
    assert core.hbm.total_bytes() == sum(found.traffic_bytes.values())
    assert account.needed is not None
    assert account.needed.needed_bytes == sum(found.needed_bytes.values())
    assert account.needed.floor_ns == pytest.approx(found.floor_ns, abs=1)
    write_explorer_parquet(profile, tmp_path / "step")
    back = read_profile(tmp_path / "step")
    assert back.metadata.provenance is Provenance.MODELLED
    assert back.kernels is not None and back.kernels.num_rows == len(found.step.calls)
    assert back.metadata.tensors == profile.metadata.tensors
    weights = [tensor for tensor in back.metadata.tensors if tensor.kind == "weight"]
    assert sum(tensor.size_bytes for tensor in weights) == found.needed_bytes["weights"]
    again = measure_anatomy(back, "trn2", bandwidth_for(back.metadata, load_hardware("trn2")))
    assert again.needed == account.needed and again.cores[0].parts == core.parts


def test_layers_run_in_the_models_order() -> None:
    step = decode_step(load_model_config("tiny-gdn-moe"), rows=1, context=16)
    layers = [call.part.partition(".")[0] for call in step.calls if call.part.endswith("input_norm")]
    assert layers == ["gdn", "gdn", "gdn", "attention"]
    assert step.calls[0].part == "embedding" and step.calls[-1].part == "head.greedy"
    assert not step.collectives  # nobody to talk to


def test_more_rows_and_more_context_never_take_less() -> None:
    base = modelled("tiny-gdn-moe", 4, 1024, 2)
    rows, context = modelled("tiny-gdn-moe", 16, 1024, 2), modelled("tiny-gdn-moe", 4, 4096, 2)
    for larger in (rows, context):
        assert larger.total_ns.mid > base.total_ns.mid
        for role in ("weights", "state", "cache"):
            assert larger.traffic_bytes[role] >= base.traffic_bytes[role]
    # Only attention sees the context; nothing else moves a byte more.
    longer = {part.name for part, other in zip(context.parts, base.parts, strict=True) if part.each_ns != other.each_ns}
    assert longer == {"attention.attend"}


KIMI = {
    "model_type": "kimi_linear", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 128,
    "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_experts": 8,
    "num_experts_per_token": 2, "kv_lora_rank": 128, "q_lora_rank": 128, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 4,
    "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 32, "num_heads": 4},
}  # fmt: skip


def test_latent_attention_by_hand() -> None:
    """kimi_linear: one layer of latents of 128 + 64 channels, which every rank keeps whole; two of four heads a rank."""
    config = model_config_from_hf(KIMI)
    found = model_device_step(decode_step(config, rows=2, context=64, rank_count=2))
    assert found.traffic_bytes["cache"] == 2 * (64 + 1) * (128 + 64) * 2
    parts = {part.name: part for part in found.parts}
    # Up-projections of 128 x 128, once a head: the key's folded into the query, the value's after attention.
    for name in ("attention.key_fold", "attention.value_projection"):
        assert parts[name].run_count == 2
        assert parts[name].hbm_read_bytes == 2 * 128 * 128 + 2 * 2 * 128
    # Queries from their low rank: 2 heads x (128 + 64) channels.
    assert parts["attention.query_projection"].hbm_read_bytes == 2 * 128 * 2 * 192 + 2 * 2 * 128


def test_prefill_moves_what_the_config_says() -> None:
    """Two prompts of 320 new tokens behind 192: 640 tokens, whose experts run as 512 and 128."""
    config, rows, tokens, context = load_model_config("tiny-gdn-moe"), 2, 320, 512
    found = model_device_step(prefill_step(config, rows=rows, tokens=tokens, context=context, rank_count=2))
    assert found.needed_bytes["weights"] == weight_bytes(config, rows * tokens, 2)
    assert found.resident_bytes["weights"] == modelled("tiny-gdn-moe", 4, 1024, 2).resident_bytes["weights"]
    assert found.traffic_bytes["weights_again"] == 4 * 16 * 2 * 3 * 128 * 96 // 2  # four layers' experts
    sizes = shard(config, 2)
    assert sizes.linear is not None
    # Three layers: each prompt's state is read once and saved at three places at most.
    assert found.needed_bytes["state"] == 3 * rows * 4 * 4 * sizes.linear.state_elements
    # One layer: every page of the context and every new token, keys and values of one head of 32.
    written = rows * tokens * 2 * 32 * 2
    assert found.needed_bytes["cache"] == pytest.approx(rows * context * 2 * 32 * 2 + written, rel=0.05)
    parts = {part.name: part for part in found.parts}
    assert parts["moe.experts"].run_count == parts["moe.experts_rest"].run_count == 4
    assert parts["head.logits"].hbm_write_bytes == rows * 130 * 2  # the last tokens alone are scored
    shared = {part.collective.byte_count for part in found.parts if part.collective and part.name != "head.greedy"}
    assert shared == {rows * tokens * 128 * 2}


def test_more_than_can_be_laid_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = modelled("tiny-gdn-moe", 4, 1024, 2)
    part = replace(found.parts[0], run_count=10**7)
    with pytest.raises(UsageError, match="leave --output out"):
        replace(found, parts=(part, *found.parts[1:])).profile()
    monkeypatch.setattr("trnprof.modelled_step.MAX_OPERATIONS", 300)
    with pytest.raises(UsageError, match=r"operations or more, most in attention_decode; 300 .*take fewer"):
        model_device_step(decode_step(load_model_config("tiny-gdn"), rows=4, context=64))


def test_ranks_divide_what_they_share() -> None:
    config = load_model_config("tiny-gdn-moe")
    whole, half = (modelled("tiny-gdn-moe", 4, 1024, ranks) for ranks in (1, 2))
    assert half.traffic_bytes["state"] * 2 == whole.traffic_bytes["state"]
    assert half.traffic_bytes["cache"] * 2 == whole.traffic_bytes["cache"]
    whole_experts, half_experts = (moe_bytes(config, 4, ranks, ExpertForm.ONCE) for ranks in (1, 2))
    assert half_experts < whole_experts < 2 * half_experts  # the router is whole on each


def test_sharding_keeps_a_key_head_on_every_rank() -> None:
    large = load_model_config(str(LARGE))
    part = shard(large, 8)
    assert (part.attention.heads, part.attention.kv_heads) == (2, 1)
    assert part.linear is not None and part.moe is not None
    assert (part.linear.key_heads, part.linear.value_heads) == (2, 4)
    assert (part.moe.intermediate, part.moe.shared_intermediate, part.vocab) == (64, 64, 18_992)
    assert shard(large, 1) == large


@pytest.mark.parametrize("ranks", [0, 3, 5, 32])
def test_ranks_that_do_not_divide_are_refused(ranks: int) -> None:
    with pytest.raises(UsageError, match="--tp"):
        decode_step(load_model_config(str(LARGE)), rows=1, context=16, rank_count=ranks)


def test_a_shape_that_a_kernel_does_not_take_is_named() -> None:
    """A head of 256 x 256 does not fit the delta rule's 128 partitions."""
    config = load_model_config("tiny-gdn")
    assert config.linear is not None
    wide = replace(config, linear=replace(config.linear, key_dim=256, value_dim=256))
    with pytest.raises(InputDataError, match=r"delta_rule_decode does not take .*256 x 256 does not fit"):
        model_device_step(decode_step(wide, rows=1, context=16))


def test_embedding_rows_are_numpys() -> None:
    from trnprof.modelled_step import _kernel
    from trnprof.nki.values.run import compute

    random = np.random.default_rng(0)
    table = random.standard_normal((300, 64), np.float32)
    tokens = random.integers(0, 300, (130, 1)).astype(np.int32)
    found = compute(_kernel("embedding.py", "embed", "trn2"), (), {"table": table, "tokens": tokens}, target="trn2")
    (out,) = (output.array for output in found.outputs[0] if not output.is_argument)
    np.testing.assert_array_equal(out, table[tokens[:, 0]])


def test_every_kernel_of_a_step_is_a_file_of_the_engine() -> None:
    for model in ("tiny-gdn", "tiny-gdn-moe", "tiny-kda", str(LARGE)):
        for use, _ in decode_step(load_model_config(model), rows=2, context=64).parts().values():
            assert f"def {use.kernel}(" in (KERNEL_FOLDER / use.file).read_text(encoding="utf-8")


# The command


def test_it_needs_no_torch(tmp_path: Path) -> None:
    """A fresh process in which torch, transformers and safetensors cannot be imported."""
    probe = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'safetensors'))); "
        "from trnprof.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    arguments = ["engine", "profile", "--modelled", "--rows", "2", "--context", "64", "--tp", "2", "-o", "step"]
    result = subprocess.run(
        [sys.executable, "-c", probe, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "provenance modelled" in result.stdout and "= step" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert read_profile(tmp_path / "step").metadata.provenance is Provenance.MODELLED


def test_json_is_the_schemas_and_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["engine", "profile", "--modelled", "--rows", "4", "--context", "1024", "--tp", "2", "--format", "json"]
    assert run(asked) == 0
    printed = capsys.readouterr().out
    assert len(printed.encode()) < 8192
    envelope = json.loads(printed)
    jsonschema.validate(envelope, schema_of("engine-profile"))
    result = envelope["result"]
    assert result["provenance"] == "modelled" and result["rest"]["part_count"] > 0
    for case in Case:
        listed = sum(part["run_count"] * part["each_ns"][case] for part in result["parts"])
        shared = result["collectives"]["time_ns"][case]
        rest, between = result["rest"]["kernel_ns"][case], result["boundary_ns"][case]
        assert listed + rest + shared + between == result["total_ns"][case]


def test_full_json_and_markdown_have_every_part() -> None:
    found = modelled("tiny-gdn-moe", 4, 1024, 2)
    whole = modelled_json("tiny-gdn-moe", found, None, full=True)
    assert {part["name"] for part in whole["parts"]} == set(found.step.parts())
    assert whole["rest"]["part_count"] == 0
    page = modelled_markdown("tiny-gdn-moe", found, "step")
    assert all(f"| {escaped(name)} |" in page for name in found.step.parts()) and "| = step |" in page


def test_fit_and_diff_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the step costs at any batch size and what a row adds."""
    windows, captures = {}, []
    for rows in (1, 4, 16):
        profile = modelled("tiny-gdn-moe", rows, 1024, 2).profile()
        windows[rows] = profile.metadata.cores[0].window_end_ts
        write_explorer_parquet(profile, tmp_path / f"rows{rows}")
        captures.append(f"{rows}={tmp_path / f'rows{rows}'}")
    assert run(["fit", *captures, "--format", "json"]) == 0
    core = json.loads(capsys.readouterr().out)["result"]["cores"][0]
    assert core["window"]["fixed_ns"] > 0 and core["window"]["per_row_ns"] > 0
    for point, residual in zip(core["points"], core["window"]["residuals_ns"], strict=True):
        line = core["window"]["fixed_ns"] + point["rows"] * core["window"]["per_row_ns"]
        assert line + residual == pytest.approx(windows[point["rows"]], abs=2)
    assert run(["diff", str(tmp_path / "rows1"), str(tmp_path / "rows16"), "--format", "json"]) == 0
    moved = json.loads(capsys.readouterr().out)["result"]["cores"][0]["window_ns"]
    assert (moved["before"], moved["after"]) == (windows[1], windows[16])


def test_ntff_and_low_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "step.ntff"
    asked = ["engine", "profile", "--modelled", "--rows", "1", "--context", "16", "--to", "ntff", "--schedule", "low"]
    assert run([*asked, "-o", str(target)]) == 0
    assert target.is_file() and target.with_suffix(".neff").is_file()
    window = read_profile(target).metadata.cores[0].window_end_ts
    total = modelled("tiny-gdn-moe", 1, 16, 1).total_ns
    assert window == pytest.approx(total.low, abs=60)
    assert "step.ntff" in capsys.readouterr().out
    assert run([*asked, "-o", str(target)]) == 2  # it is there already
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--tp", "3"], 2, "--tp 3"),
        (["--tp", "16"], 2, "does not divide"),
        (["--rows", "0"], 2, "--rows"),
        (["--context", "9000"], 2, "8,192"),
        (["--step", "prefill", "--tokens", "512", "--context", "256"], 2, "--tokens"),
        (["--hardware", "trn9"], 2, "trn1, trn2, trn3"),
        (["--model", "absent"], 66, "no preset"),
        (["--to", "ntff", "-o", "step"], 2, ".ntff"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, named: str) -> None:
    assert run(["engine", "profile", "--modelled", *arguments]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and named in error


def test_a_mistake_as_json_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "profile", "--modelled", "--tp", "3", "--format", "json"]) == 2
    envelope = json.loads(capsys.readouterr().out)
    jsonschema.validate(envelope, schema_of("engine-profile"))
    assert envelope["error"]["exit_code"] == 2


def test_a_run_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "profile"]) == 2
    assert "--output" in capsys.readouterr().err


def test_a_layout_that_does_not_fit_is_said() -> None:
    found = modelled("tiny-gdn-moe", 4, 1024, 2)
    assert found.fits and "raise --tp" not in modelled_text("tiny", found, None)
    large = replace(found, resident_bytes={"weights": found.core_hbm_bytes + 1})
    assert not large.fits
    assert "raise --tp" in modelled_text("tiny", large, None)


@pytest.mark.slow
def test_a_real_model_on_sixteen_ranks() -> None:
    """Qwen3-Next-80B-A3B's published sizes: weights and states by hand, and what fits where."""
    config = load_model_config(str(LARGE))
    found = modelled(str(LARGE), 8, 4096, 16)
    assert found.traffic_bytes["weights"] == weight_bytes(config, 8, 16)
    # 36 layers x 8 rows, read and written: 2 of 32 heads of 128 x 128 and 3 inputs of 512 channels, float32.
    assert found.traffic_bytes["state"] == 36 * 8 * 2 * 4 * (2 * 128 * 128 + 3 * 512)
    # 12 layers: 4,097 tokens' keys and values of one head of 256.
    assert found.traffic_bytes["cache"] == 12 * 8 * 4097 * 2 * 256 * 2
    assert found.fits
    # 160 GB of weights: a sixteenth is 10 GB; a physical core of trn2 has 96 GiB / 8.
    assert found.resident_bytes["weights"] == pytest.approx(80e9 * 2 / 16, rel=0.1)
    assert found.core_hbm_bytes == 12 * 2**30
    assert found.total_ns.mid > found.floor_ns
