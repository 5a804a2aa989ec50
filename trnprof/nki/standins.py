"""Permissive stand-ins for the frameworks that a kernel's driver file imports and a prediction does not need.

A kernel file often imports torch or jax beside nki, to call or check the kernel. Nothing of these is executed for a DMA
prediction, so their names resolve to objects that accept being imported, called, subclassed and used as decorators. They
are used even where the framework is installed: a prediction must not depend on what else is on the machine, and
importing torch costs seconds. An object that only a real framework could give (a number, a shape) raises StandInUsed,
which the guard turns into one line that names it.

This runs inside the guarded child process only.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

STAND_IN_MODULES = frozenset(
    {
        # frameworks and their Neuron back ends
        "torch", "torch_xla", "torch_neuronx", "torchvision", "torchaudio", "functorch",
        "jax", "jaxlib", "jax_neuronx", "flax", "optax", "haiku", "tensorflow", "triton",
        "libneuronxla", "neuronx_distributed", "neuronx_distributed_inference", "neuronx_distributed_training",
        "optimum", "vllm", "vllm_neuron", "transformers", "diffusers", "accelerate", "timm", "safetensors", "datasets",
        "huggingface_hub", "sentencepiece", "tokenizers", "nkipy", "spike", "neuron_dtypes", "neuronxcc_stubs",
        # what test and benchmark drivers import
        "pytest", "_pytest", "hypothesis", "allpairspy", "parameterized", "pandas", "scipy", "sklearn", "matplotlib",
        "seaborn", "PIL", "cv2", "IPython", "tqdm", "rich", "tabulate", "plotext", "prettytable", "termcolor", "click",
        "typer", "yaml", "filelock", "packaging", "einops", "numba", "sympy", "networkx", "requests",
        "boto3", "botocore", "fabric2", "paramiko", "aws_embedded_metrics", "nki_cpu_simulator",
    }
)  # fmt: skip
"""Top-level names that resolve to stand-ins. Anything else that is missing is an error: a stand-in for a kernel's own
helper module would turn its DMAs into silence."""


class StandInUsed(TypeError):
    """A kernel asked a stand-in for something that only the real framework knows."""

    def __init__(self, name: str, wanted: str) -> None:
        super().__init__(f"{name} is a stand-in here (frameworks are not run), and its {wanted} is needed")
        self.name = name


class _StandInMeta(type):
    """Lets `isinstance(x, torch.Tensor)` answer no for a stand-in class."""

    def __getattr__(cls, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{cls.__name__}.{attribute}")


class StandInBase(metaclass=_StandInMeta):
    """Base class that `class Model(torch.nn.Module)` gets."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        pass

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{type(self).__name__}.{attribute}")


class StandIn:
    """Any attribute, call result or item of a stand-in module."""

    def __init__(self, name: str) -> None:
        self.__dict__["_stand_in_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        # Dunder look-ups are protocol questions (copy, pickle, numpy's __array__); a yes would be a lie.
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{self._stand_in_name}.{attribute}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        # A decorator: `@torch.no_grad()`, `@pytest.mark.parametrize(...)`, `@jax.jit` leave what they decorate alone.
        if len(arguments) == 1 and not keywords and isinstance(arguments[0], (types.FunctionType, type)):
            return arguments[0]
        return StandIn(f"{self._stand_in_name}()")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        earlier = bases[: bases.index(self)]
        return () if any(isinstance(base, StandIn) for base in earlier) else (StandInBase,)

    def __getitem__(self, key: Any) -> Any:
        return StandIn(f"{self._stand_in_name}[...]")

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        raise StandInUsed(self._stand_in_name, "value")

    __index__ = __int__

    def __float__(self) -> float:
        raise StandInUsed(self._stand_in_name, "value")

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        # numpy would take an empty sequence for it: a constant without elements, and silence.
        raise StandInUsed(self._stand_in_name, "values")

    def __repr__(self) -> str:
        return self._stand_in_name

    def __or__(self, other: Any) -> Any:  # `torch.Tensor | None` in an annotation
        return self

    __ror__ = __or__


def _arithmetic(name: str) -> Any:
    def operation(self: StandIn, other: Any = None) -> StandIn:
        return StandIn(f"{self._stand_in_name}.{name}()")

    return operation


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "pos", "abs", "invert"):
    setattr(StandIn, f"__{_name}__", _arithmetic(_name))
    if _name not in ("neg", "pos", "abs", "invert"):
        setattr(StandIn, f"__r{_name}__", _arithmetic(f"r{_name}"))
for _name in ("lt", "le", "gt", "ge"):
    setattr(StandIn, f"__{_name}__", lambda self, other: False)


class StandInModule(types.ModuleType):
    """A module whose every name is a stand-in; it is a package too, so that submodules import."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{self.__name__}.{attribute}")


class StandInLoader(importlib.abc.Loader):
    """Makes stand-in modules for the names that the loader's policy sends here."""

    def __init__(self) -> None:
        self.imported: set[str] = set()
        """Top-level names that the kernel's files really imported: reported with the result."""

    def spec(self, fullname: str) -> importlib.machinery.ModuleSpec:
        """The spec of a stand-in called `fullname`."""
        self.imported.add(fullname.partition(".")[0])
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The empty stand-in module."""
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def forget_loaded(names: frozenset[str] = STAND_IN_MODULES) -> None:
    """Drop modules of these names that are already loaded, so that the stand-ins are found."""
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]
