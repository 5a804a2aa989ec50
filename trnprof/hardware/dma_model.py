"""The constants of the DMA time model, each with unit, source and kind, and a user's calibration of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from trnprof.errors import InputDataError, InputMissingError, UsageError

_MAX_CALIBRATION_BYTES = 1 << 20


@dataclass(frozen=True)
class Constant:
    """One number of the model and where it comes from."""

    name: str
    value: float
    unit: str
    source: str
    kind: str
    """documented, measured, derived, guess, or calibration (the user's file)."""


@dataclass(frozen=True)
class DmaModel:
    """The time model's constants for one generation."""

    generation: str
    constants: dict[str, Constant]

    def __getitem__(self, name: str) -> float:
        return self.constants[name].value


@cache
def _built_in() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("dma_model.toml").read_text(encoding="utf-8"))


def load_dma_model(generation: str, calibration: Path | None = None) -> DmaModel:
    """The model of `generation` (trn1, trn2, trn3), with the values of a calibration file in place of its own.

    calibration: a TOML file with some of the model's keys, each a number or a table {value, unit, source, kind}; keys may
    stand under [trn2] or at top level.

    Raises: UsageError for an unknown generation; InputMissingError and InputDataError for the file.
    """
    document = _built_in()
    if generation not in document or generation == "sources":
        raise UsageError(
            f"no DMA model for {generation!r}; known: {', '.join(name for name in document if name != 'sources')}"
        )
    sources = document["sources"]
    constants = {
        name: Constant(name, entry["value"], entry["unit"], sources[entry["source"]], entry["kind"])
        for name, entry in document[generation].items()
    }
    if calibration is not None:
        constants |= _calibrated(calibration, generation, constants)
    return DmaModel(generation, constants)


def _calibrated(path: Path, generation: str, known: dict[str, Constant]) -> dict[str, Constant]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_CALIBRATION_BYTES + 1)
    except OSError as error:
        raise InputMissingError(
            f"--calibration cannot be read ({error.strerror or error}); check the path", path=path
        ) from None
    if len(raw) > _MAX_CALIBRATION_BYTES:
        raise InputDataError("a calibration file above 1 MiB; it is a short TOML file of constants", path=path)
    try:
        document = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputDataError(f"not TOML: {error}; write for example issue_ns = 250", path=path) from None
    section = document.get(
        generation, {name: entry for name, entry in document.items() if not _is_section(name, entry)}
    )
    if not isinstance(section, dict):
        raise InputDataError(f"[{generation}] is not a table of constants", path=path)
    result: dict[str, Constant] = {}
    for name, entry in section.items():
        if name not in known:
            raise InputDataError(f"unknown constant {name!r}; known: {', '.join(known)}", path=path)
        table = entry if isinstance(entry, dict) else {"value": entry}
        value = table.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise InputDataError(f"{name}: the value must be a number from 0 on, not {value!r}", path=path)
        if value == 0 and name not in ("issue_ns", "start_ns", "packet_overhead_ns"):
            raise InputDataError(f"{name}: the value must be above 0", path=path)
        unit = table.get("unit", known[name].unit)
        if unit != known[name].unit:
            raise InputDataError(f"{name}: the unit is {known[name].unit!r} here, not {unit!r}", path=path)
        result[name] = Constant(name, value, known[name].unit, str(table.get("source", path.name)), "calibration")
    return result


def _is_section(name: str, entry: object) -> bool:
    return name == "sources" or (isinstance(entry, dict) and "value" not in entry)
