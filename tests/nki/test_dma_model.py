"""The time model's constants and a user's calibration of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnprof.errors import InputDataError, InputMissingError, UsageError
from trnprof.hardware import NAMES, load_hardware
from trnprof.hardware.dma_model import load_dma_model


def test_every_generation_has_every_constant_with_unit_source_and_kind() -> None:
    models = {name: load_dma_model(name) for name in NAMES}
    assert len({tuple(model.constants) for model in models.values()}) == 1
    for model in models.values():
        for constant in model.constants.values():
            assert constant.unit and constant.source
            assert constant.kind in ("documented", "measured", "derived", "guess")


def test_figures_that_both_tables_have_agree() -> None:
    for name in NAMES:
        model, hardware = load_dma_model(name), load_hardware(name)
        assert model["core_alone_bytes_per_s"] == hardware["dma.core_effective_bytes_per_s"].value
        assert model["packet_rate_bytes_per_ns"] * 1e9 == hardware["dma.engine_nominal_bytes_per_s"].value
    trn2 = load_hardware("trn2")
    assert load_dma_model("trn2")["core_in_pair_bytes_per_s"] == trn2["hbm.measured_core_in_pair_bytes_per_s"].value


def test_a_calibration_file_overrides_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('issue_ns = 250\n[packet_overhead_ns]\nvalue = 9.5\nsource = "my run"\n')
    model = load_dma_model("trn2", path)
    assert model["issue_ns"] == 250 and model["packet_overhead_ns"] == 9.5
    assert model.constants["issue_ns"].kind == "calibration"
    assert model.constants["issue_ns"].source == "mine.toml"
    assert model.constants["packet_overhead_ns"].source == "my run"
    path.write_text("[trn2]\nissue_ns = 100\n[trn3]\nissue_ns = 50\n")
    assert load_dma_model("trn2", path)["issue_ns"] == 100
    assert load_dma_model("trn3", path)["issue_ns"] == 50


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("issue_ns =", "not TOML"),
        ("no_such = 3", "unknown constant 'no_such'"),
        ("issue_ns = -1", "must be a number"),
        ("issue_ns = 'fast'", "must be a number"),
        ("issue_ns = true", "must be a number"),
        ("issue_ns = nan", "must be a number"),
        ("issue_ns = inf", "must be a number"),
        ("packet_rate_bytes_per_ns = 0", "must be above 0"),
        ("issue_ns = { value = 3, unit = 'us' }", "the unit is 'ns per DMA'"),
        ("trn2 = 3", "not a table"),
    ],
)
def test_calibrations_that_cannot_be_meant(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputDataError, match=found) as caught:
        load_dma_model("trn2", path)
    assert caught.value.path == str(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError):
        load_dma_model("trn2", tmp_path / "none.toml")
    with pytest.raises(UsageError):
        load_dma_model("trn9")
