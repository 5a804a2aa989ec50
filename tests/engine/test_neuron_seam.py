"""What is known of a Neuron device's rules, as a compiler backend that refuses whatever breaks them.

It stands for `torch.compile(backend="neuron")`, which runs only on Trainium hosts: one whole graph a step (no graph
breaks), only listed shapes, contiguous inputs, no in-place operation outside a kernel (`zero_`, `fill_`, `index_fill_`
and `index_put_` fall back to the host there). The graphs it accepts are run, and must give the CPU's answers.
"""

from __future__ import annotations

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")

from trnprof.engine.config import EngineConfig, presets  # noqa: E402
from trnprof.engine.device import CompiledDevice, Device, open_device  # noqa: E402
from trnprof.engine.kernels.contracts import CONTRACTS, Kernels, load_kernels  # noqa: E402
from trnprof.engine.kernels.norms import rms_norm  # noqa: E402
from trnprof.engine.kernels.operators import as_operators  # noqa: E402
from trnprof.engine.loop import Engine  # noqa: E402
from trnprof.engine.model.random_weights import random_checkpoint  # noqa: E402
from trnprof.engine.model.weights import load_weights  # noqa: E402
from trnprof.engine.plan import StepPlan  # noqa: E402
from trnprof.engine.request import Request, Sampling  # noqa: E402
from trnprof.engine.runner import TorchRunner  # noqa: E402
from trnprof.engine.scheduler import Scheduler  # noqa: E402
from trnprof.engine.shapes import Shape, StepKind  # noqa: E402
from trnprof.errors import ToolMissingError  # noqa: E402

CONFIG = EngineConfig(
    pages=64, snapshots=4, prefill_sizes=(32,), prefill_rows=(1,), prefill_budget=32, decode_rows=(2,), contexts=(64,)
)


class RefusedError(Exception):
    """The fake device does not take this graph."""


class FakeNeuron:
    """A `torch.compile` backend that checks and then runs a graph as it is."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, module: Any, inputs: list[Any]) -> Any:
        for tensor in inputs:
            if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
                raise RefusedError(f"an input of shape {tuple(tensor.shape)} is not contiguous")
            if isinstance(tensor, torch.SymInt):
                raise RefusedError("an input has a dynamic size")
        for node in module.graph.nodes:
            name = getattr(node.target, "__name__", str(node.target))
            keyword = node.target in (operator.and_, operator.or_, operator.is_, operator.not_)  # named so for Python
            in_place = name.endswith("_") and not name.endswith("__") and not keyword
            if node.op in ("call_function", "call_method") and (in_place or name in ("setitem", "iadd", "imul")):
                raise RefusedError(f"{name} writes in place")
        self.graphs.append(module.graph)
        return module.forward


def engine(model: str, device: Device, config: EngineConfig) -> Engine:
    described = presets()[model]
    weights = load_weights(described, random_checkpoint(described, 0), torch.float32)
    runner = TorchRunner(described, config, weights, load_kernels(), device=device, expert_form="dense")
    return Engine(Scheduler(config, described), runner)


def answers(engine: Engine) -> list[list[int]]:
    requests = [Request(f"r{i}", [65 + i] * (20 + i), Sampling(max_tokens=8, ignore_eos=True)) for i in range(2)]
    for request in requests:
        engine.submit(request, lambda update: None)
    engine.run_until_idle()
    assert [request.error for request in requests] == [None, None]
    return [request.answer for request in requests]


@pytest.mark.parametrize("model", ["tiny-gdn-moe", pytest.param("tiny-kda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("draft", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_steps_are_whole_graphs_of_kernels(model: str, draft: int) -> None:
    """A graph a shape used, every kernel one opaque call in it, and the CPU's answers from them."""
    from dataclasses import replace

    config = replace(CONFIG, draft_tokens=draft)
    backend = FakeNeuron()
    compiled = engine(model, CompiledDevice("cpu", backend), config)
    got = answers(compiled)
    assert got == answers(engine(model, Device(), config))
    assert len(backend.graphs) == 2  # one prefill shape, one decode (or verify) shape
    for graph in backend.graphs:
        called = [str(node.target) for node in graph.nodes if str(node.target).startswith("trnprof.")]
        layers = len(presets()[model].mixers)
        # Two norms a layer and one at the end, besides those inside mixers.
        assert sum("rms_norm" in name and "gated" not in name for name in called) >= 2 * layers + 1
        assert sum("delta_rule" in name for name in called) == 3
        assert {name.split(".")[1] for name in called} <= set(CONTRACTS)


def rms_norm_that_looks(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x, weight, eps) if x.abs().max() < 1e9 else x


def rms_norm_in_place(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x, weight, eps).mul_(1.0)


@pytest.mark.parametrize(
    ("visible", "reason"),
    [(rms_norm_that_looks, "data-dependent branching"), (rms_norm_in_place, "mul_ writes in place")],
    ids=["graph break", "in-place write"],
)
def test_what_the_device_cannot_do_is_refused(visible: Any, reason: str) -> None:
    """A step that decides by a value cannot be one graph, and what writes in place must be inside a kernel: where the
    compiler sees such a thing, the step's requests fail with the reason."""
    device = CompiledDevice("cpu", FakeNeuron())

    def all_but_one_opaque(kernels: Kernels) -> Kernels:
        return Kernels(**(vars(as_operators(kernels)) | {"rms_norm": visible}))

    device.kernels = all_but_one_opaque  # type: ignore[method-assign]
    wrong = engine("tiny-gdn", device, CONFIG)
    request = Request("r", [65] * 20, Sampling(max_tokens=2))
    wrong.submit(request, lambda update: None)
    wrong.run_until_idle()
    assert request.error is not None and reason in request.error.lower()


def test_inputs_that_are_not_contiguous_are_refused() -> None:
    wrong = engine("tiny-gdn", CompiledDevice("cpu", FakeNeuron()), CONFIG)
    assert isinstance(wrong.runner, TorchRunner)
    caches = wrong.runner.caches
    strided = tuple(bank.t().contiguous().t() for bank in caches.banks)
    object.__setattr__(caches, "banks", strided)
    request = Request("r", [65] * 20, Sampling(max_tokens=2))
    wrong.submit(request, lambda update: None)
    wrong.run_until_idle()
    assert request.error is not None and "not contiguous" in request.error


def test_a_shape_outside_the_list_is_an_error() -> None:
    """Never a live compilation."""
    backend = FakeNeuron()
    compiled = engine("tiny-gdn", CompiledDevice("cpu", backend), CONFIG)
    with pytest.raises(ValueError, match="decode_r3_w1_c64 is not a compiled shape"):
        compiled.runner.submit(StepPlan(1, Shape(StepKind.DECODE, 3, 1, 64, False), []))
    assert not backend.graphs


@pytest.mark.parametrize("draft", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_after_the_warm_up_nothing_is_compiled(draft: int) -> None:
    """Speculating engines of others compiled live because their warm-up knew plain decoding only (tt-xla#5726): here the
    warm-up is the list itself, and requests of every kind, sampled ones too, find their graph."""
    from dataclasses import replace

    backend = FakeNeuron()
    config = replace(CONFIG, draft_tokens=draft)
    compiled = engine("tiny-gdn", CompiledDevice("cpu", backend), config)
    assert isinstance(compiled.runner, TorchRunner)
    assert compiled.runner.warm_up() == len(backend.graphs) == 4  # a prefill and a decode size, greedy and sampled
    assert answers(compiled) == answers(engine("tiny-gdn", Device(), config))
    sampled = Request("s", [65] * 40, Sampling(max_tokens=5, temperature=0.7, ignore_eos=True))
    compiled.submit(sampled, lambda update: None)
    compiled.run_until_idle()
    assert len(sampled.answer) == 5 and len(backend.graphs) == 4


def test_without_the_device_it_says_so() -> None:
    if getattr(torch, "neuron", None) is None:
        with pytest.raises(ToolMissingError, match="no neuron device"):
            open_device("neuron")
