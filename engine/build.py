"""From names to a running engine: config, weights, kernels, runner and scheduler put together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnprof.engine.checkpoint_config import load_model_config
from trnprof.engine.config import EngineConfig, ModelConfig
from trnprof.engine.tokenizer import ByteTokenizer
from trnprof.errors import InputDataError, ToolMissingError

if TYPE_CHECKING:
    from trnprof.engine.loop import Engine

EXTRA = "the engine needs its extra; install it with: pip install 'trnprof[engine]'"


def require_extra(*modules: str) -> None:
    """Raises: ToolMissingError if one of the modules is not installed."""
    import importlib.util

    for module in modules or ("torch", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise ToolMissingError(f"{module} is not installed; {EXTRA}")


@dataclass(frozen=True)
class Served:
    """An engine and what speaks to it."""

    name: str
    model: ModelConfig
    engine: Engine
    tokenizer: ByteTokenizer


def open_engine(
    model: str,
    engine: EngineConfig,
    *,
    profile_operations: bool = False,
    keep_log: bool = True,
    threads: int | None = None,
) -> Served:
    """An engine for a preset or a checkpoint folder. A preset without a trained checkpoint gets seeded random weights.

    Raises: ToolMissingError without the extra or the device; what load_model_config and load_weights raise; UsageError
            for shapes that do not fit the model; InputDataError for a vocabulary that the byte tokenizer cannot serve.
    """
    require_extra()
    config = load_model_config(model)
    if config.vocab < ByteTokenizer.VOCAB and not Path(model).is_dir():
        raise InputDataError(f"the vocabulary of {config.vocab} has no room for the byte tokenizer", path=model)

    import torch

    from trnprof.engine.device import open_device
    from trnprof.engine.kernels.contracts import load_kernels
    from trnprof.engine.loop import Engine
    from trnprof.engine.model.random_weights import random_checkpoint
    from trnprof.engine.model.weights import load_weights, read_checkpoint
    from trnprof.engine.runner import TorchRunner
    from trnprof.engine.scheduler import Scheduler
    from trnprof.engine.step_log import StepLog
    from trnprof.engine.timing import OperationTimer

    if threads:
        torch.set_num_threads(threads)
    device = open_device(engine.device)
    scheduler = Scheduler(engine, config)
    dtype = getattr(torch, engine.dtype)
    folder = checkpoint_folder(model)
    tensors = read_checkpoint(folder) if folder else random_checkpoint(config, engine.seed)
    with torch.inference_mode():
        weights = load_weights(config, tensors, dtype)
    runner = TorchRunner(
        config,
        engine,
        weights,
        load_kernels("cpu"),
        device=device,
        # A graph for a device cannot depend on which experts were chosen: every expert runs, until a kernel does better.
        expert_form="expert_once" if device.name == "cpu" else "dense",
        timer=OperationTimer() if profile_operations else None,
    )
    if device.name != "cpu":
        runner.warm_up()  # every shape is compiled before the first request: none is ever compiled while one waits
    log = StepLog(config.name, engine) if keep_log else None
    return Served(Path(model).name, config, Engine(scheduler, runner, log=log), ByteTokenizer())


def checkpoint_folder(model: str) -> Path | None:
    """Where a model's weights lie: its folder, or the package's trained checkpoint of a preset; None: there are none."""
    if Path(model).is_dir():
        return Path(model)
    trained = Path(__file__).parent / "checkpoints" / model
    return trained if any(trained.glob("*.safetensors")) else None
