"""Contracts: every call of a served workload fits its contract, only what is declared is written, forms agree."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")

from trnprof.engine.build import open_engine  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.engine.kernels.contracts import CONTRACTS, Kernels, load_kernels  # noqa: E402
from trnprof.engine.kernels.examples import difference, example_arguments  # noqa: E402
from trnprof.engine.kernels.experts import FORMS  # noqa: E402
from trnprof.engine.request import Request, Sampling  # noqa: E402
from trnprof.errors import InconsistencyError, ToolMissingError  # noqa: E402

CONFIG = EngineConfig(pages=200, decode_rows=(1, 4), prefill_sizes=(16, 64), contexts=(256,), draft_tokens=2)


class Checked:
    """Kernels that compare every call with its contract, and every operand before and after."""

    def __init__(self, kernels: Kernels) -> None:
        self.calls: dict[str, int] = {}
        self.wrapped = Kernels(**{name: self.wrap(name, function) for name, function in vars(kernels).items()})

    def wrap(self, name: str, function: Any) -> Any:
        contract, parameters = CONTRACTS[name], list(inspect.signature(function).parameters)
        known = [operand.name for operand in contract.operands] + list(contract.scalars)
        assert sorted(parameters) == sorted(known), f"{name}: arguments and contract differ"

        def call(*arguments: Any) -> Any:
            given = dict(zip(parameters, arguments, strict=True))
            sizes = contract.check(given)
            before = {operand.name: given[operand.name].clone() for operand in contract.operands}
            result = function(*arguments)
            for operand in contract.operands:
                same = torch.equal(before[operand.name], given[operand.name])
                assert same or operand.written, f"{name} writes {operand.name}"
            outputs = result if isinstance(result, tuple) else (result,)
            for declared, output in zip(contract.outputs, outputs, strict=True):
                axes = declared.shape.split()
                if axes[0] != "...":
                    assert len(axes) == output.dim()
                    for axis, size in zip(axes, output.shape, strict=True):
                        assert sizes.setdefault(axis, size) == size, f"{name}: {declared.name} axis {axis}"
            self.calls[name] = self.calls.get(name, 0) + 1
            return result

        return call


def test_every_call_fits_its_contract() -> None:
    """Prefill, decode and verification of all presets, greedy and sampled: all eleven kernels are reached."""
    called: set[str] = set()
    for model in ("tiny-gdn", "tiny-gdn-moe", "tiny-kda"):
        for draft in (0, 2):
            served = open_engine(model, replace(CONFIG, draft_tokens=draft))
            checked = Checked(served.engine.runner.decoder.kernels)
            served.engine.runner.decoder.kernels = checked.wrapped
            requests = [
                Request(f"r{i}", served.tokenizer.encode("some text " * 8), Sampling(max_tokens=6, temperature=i * 0.5))
                for i in range(2)
            ]
            for request in requests:
                served.engine.submit(request, lambda update: None)
            served.engine.run_until_idle()
            assert [request.error for request in requests] == [None, None]
            called |= set(checked.calls)
            served.engine.runner.close()
    assert called == set(CONTRACTS)


def test_contract_check_names_the_operand() -> None:
    x, weight = torch.zeros(2, 3, 8), torch.zeros(9)
    with pytest.raises(InconsistencyError, match="weight has D = 9 where 8"):
        CONTRACTS["rms_norm"].check({"x": x, "weight": weight, "eps": 1e-6})
    with pytest.raises(InconsistencyError, match="weight was not given"):
        CONTRACTS["rms_norm"].check({"x": x})
    with pytest.raises(InconsistencyError, match="not int64"):
        CONTRACTS["experts"].check(
            {
                "x": torch.zeros(2, 8),
                "weights": torch.zeros(2, 1),
                "chosen": torch.zeros(2, 1),
                "gate_up": torch.zeros(3, 4, 8),
                "down": torch.zeros(3, 8, 2),
            }
        )


@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize("name", sorted(load_kernels().__dict__))
def test_examples_fit_their_contract_and_tell_right_from_wrong(name: str, kda: bool) -> None:
    """The CPU kernel agrees with itself; one that is a little off, or forgets to write, does not."""
    kernel = getattr(load_kernels(), name)
    assert difference(name, kernel, kda=kda) == 0.0
    checked = Checked(Kernels(**{name: kernel})).wrapped
    given = example_arguments(name, kda=kda)
    getattr(checked, name)(*(given[parameter] for parameter in inspect.signature(kernel).parameters))

    def wrong(*arguments: Any) -> Any:
        result = kernel(*arguments)
        if isinstance(result, tuple):
            return (result[0] * 1.001, result[1])
        return result * 1.001 if result.is_floating_point() else result + 1

    def forgetful(*arguments: Any) -> Any:
        kept = [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        return kernel(*kept)

    assert difference(name, wrong, kda=kda) > CONTRACTS[name].tolerance
    assert (difference(name, forgetful, kda=kda) > CONTRACTS[name].tolerance) == bool(CONTRACTS[name].written)


def test_a_candidate_takes_a_kernels_place() -> None:
    def candidate(x: Any, weight: Any, eps: float) -> Any:
        return x

    assert load_kernels("cpu", replace={"rms_norm": candidate}).rms_norm is candidate
    with pytest.raises(InconsistencyError, match="there is no kernel rms_nrm"):
        load_kernels("cpu", replace={"rms_nrm": candidate})
    with pytest.raises(ToolMissingError, match="use the cpu backend"):
        load_kernels("no-such-backend")


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_expert_forms_agree(tokens: int) -> None:
    """selective, each expert once and dense are one operation: within the contract's tolerance of float64."""
    make = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 16, generator=make)
    gate_up, down = torch.randn(8, 24, 16, generator=make), torch.randn(8, 16, 12, generator=make)
    weights = torch.rand(tokens, 3, generator=make)
    chosen = torch.stack([torch.randperm(8, generator=make)[:3] for _ in range(tokens)])
    experts = load_kernels().experts
    wide = (x.double(), weights.double(), chosen, gate_up.double(), down.double())
    exact = sum(
        wide[1][:, k, None]
        * torch.stack(
            [
                wide[4][e] @ (torch.nn.functional.silu(wide[3][e, :12] @ row) * (wide[3][e, 12:] @ row))
                for row, e in zip(wide[0], chosen[:, k], strict=True)
            ]
        )
        for k in range(3)
    )
    for form in FORMS:
        difference = (experts(x, weights, chosen, gate_up, down, form).double() - exact).abs().max()
        assert difference <= CONTRACTS["experts"].tolerance * exact.abs().max()
    with pytest.raises(ValueError, match="unknown form"):
        experts(x, weights, chosen, gate_up, down, "sparse")


def test_delta_rule_against_the_recurrence_written_out() -> None:
    """Chunks, saved states and padding against float64 token by token: 100 tokens, saved after 64 and 97 of them."""
    make = torch.Generator().manual_seed(0)
    heads, dim, kernel, width = 2, 8, 4, 128
    channels = heads * dim * 3
    for gate in (1, dim):
        qkv = torch.randn(1, width, channels, generator=make)
        conv = torch.randn(kernel, channels, generator=make) * 0.5
        log_decay = -torch.rand(1, width, heads, gate, generator=make)
        beta = torch.rand(1, width, heads, generator=make)
        elements = 3 * channels + heads * dim * dim
        bank = torch.zeros(5, elements)
        bank[2] = torch.randn(elements, generator=make)
        start = bank[2].clone()
        out = load_kernels().delta_rule_prefill(
            bank,
            torch.tensor([2]),
            torch.tensor([[3, 4]]),
            torch.tensor([[64, 97]]),
            torch.tensor([100]),
            qkv,
            conv,
            log_decay,
            beta,
            heads,
            heads,
            dim,
            dim,
        )
        window = torch.cat((start[: 3 * channels].view(3, channels), qkv[0])).double()
        state = start[3 * channels :].view(heads, dim, dim).double()
        for t in range(100):
            mixed = torch.nn.functional.silu((window[t : t + kernel] * conv.double()).sum(0))
            q, k, v = mixed.view(3, heads, dim)
            q, k = (part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6) for part in (q, k))
            state = state * log_decay[0, t].double().exp().unsqueeze(-1)
            delta = beta[0, t].double().unsqueeze(-1) * (v - torch.einsum("hd,hdv->hv", k, state))
            state = state + k.unsqueeze(-1) * delta.unsqueeze(-2)
            expected = torch.einsum("hd,hdv->hv", q * dim**-0.5, state)
            assert (out[0, t] - expected).abs().max() < 1e-5
            for slot, count in ((3, 64), (4, 97)):
                if t + 1 == count:
                    assert (bank[slot, 3 * channels :].view_as(state) - state).abs().max() < 1e-5
                    assert torch.equal(bank[slot, : 3 * channels].view(3, -1), window[count : count + 3].float())
        assert torch.equal(bank[2], start), "the slot that was read is not written"


@pytest.mark.parametrize("kda", [False, True])
def test_experts_of_equal_score_are_chosen_from_the_lowest(kda: bool) -> None:
    """As the contract says: no input and no bias, so that every expert scores the same."""
    given = example_arguments("route", kda=kda)
    given["x"] = torch.zeros_like(given["x"])
    given["bias"] = torch.zeros_like(given["bias"])
    chosen = load_kernels("cpu").route(**given)[1]
    assert chosen.tolist() == [list(range(given["top_k"]))] * len(chosen)
