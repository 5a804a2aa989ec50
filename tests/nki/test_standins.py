"""Stand-ins accept what driver files do with frameworks, and give no value they cannot know."""

from __future__ import annotations

import numpy as np
import pytest

from trnprof.nki.standins import StandInBase, StandInLoader, StandInModule, StandInUsed


def module(name: str = "torch") -> StandInModule:
    loader = StandInLoader()
    made = loader.create_module(loader.spec(name))
    assert isinstance(made, StandInModule)
    return made


def test_what_driver_files_do_at_import() -> None:
    torch = module()

    class Model(torch.nn.Module, torch.jit.ScriptModule):
        @torch.no_grad()
        def forward(self, x):
            return 7

    @torch.jit.script
    def scripted(x):
        return x

    assert issubclass(Model, StandInBase)
    assert Model(1, key=2).forward(None) == 7
    assert scripted(3) == 3
    assert not isinstance(3, torch.Tensor)
    assert not torch.cuda.is_available()
    assert not (torch.__dict__.get("x") or torch.version > "2.0")
    assert list(torch.ones(3)) == []
    with torch.inference_mode():
        pass
    annotation: torch.Tensor | None = None
    assert annotation is None
    assert str(torch.float32) == "torch.float32"
    torch.manual_seed(0).x[3] = 4


def test_a_value_that_only_the_framework_knows_is_an_error() -> None:
    torch = module()
    for use in (
        lambda: np.array(torch.rand(3)),
        lambda: int(torch.tensor(3)),
        lambda: float(torch.rand(1)),
        lambda: range(torch.x),
        lambda: [0][torch.i],
    ):
        with pytest.raises(StandInUsed, match="torch"):
            use()


def test_protocol_questions_are_answered_with_no() -> None:
    torch = module()
    for name in ("__array_interface__", "__deepcopy__", "__file__"):
        with pytest.raises(AttributeError):
            getattr(torch.tensor, name)
