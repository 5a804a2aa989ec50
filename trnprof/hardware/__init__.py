"""What is known of each Trainium generation: numbers with unit, source and kind, from the TOML file of its name.

A profile's own metadata wins over these tables: use `bandwidth_for`, which says which one it took and from where.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from trnprof.errors import UsageError
from trnprof.profile import Metadata, Provenance

NAMES = ("trn1", "trn2", "trn3")
"""The generations with a table, oldest first. inf2 has trn1's core."""

DEFAULT_NAME = "trn2"
"""Used, and said so, where neither the user nor the capture names a generation."""


@dataclass(frozen=True)
class Quantity:
    """One number and where it comes from."""

    value: object
    """A number, or [low, high], or a table by size, in `unit`."""
    unit: str
    source: str
    """A tag of the table's [sources], or a document."""
    kind: str
    """documented, measured, derived or guess."""
    note: str = ""


@dataclass(frozen=True)
class Bandwidth:
    """The HBM bandwidth that a memory floor is computed with."""

    bytes_per_s: int
    source: str
    kind: str
    """documented, measured, derived, capture (the profile's metadata) or user."""


@dataclass(frozen=True)
class Hardware:
    """One generation's table."""

    name: str
    quantities: dict[str, Quantity]
    """By dotted path: "hbm.core_share_bytes_per_s"."""
    sources: dict[str, str]

    def __getitem__(self, path: str) -> Quantity:
        return self.quantities[path]

    def get(self, path: str) -> Quantity | None:
        """The quantity at `path`, or None where this generation's is not known."""
        return self.quantities.get(path)


@cache
def load_hardware(name: str) -> Hardware:
    """The table of one generation.

    Raises: UsageError for a name without a table.
    """
    if name not in NAMES:
        raise UsageError(f"no hardware table {name!r}; known: {', '.join(NAMES)}")
    document = tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    quantities: dict[str, Quantity] = {}
    _collect(document, "", quantities)
    return Hardware(name, quantities, document["sources"])


def hardware_of(metadata: Metadata, asked: str | None = None) -> Hardware:
    """The table to use for a capture: the one asked for, else the capture's own generation, else DEFAULT_NAME."""
    return load_hardware(asked or metadata.hardware or DEFAULT_NAME)


def bandwidth_for(metadata: Metadata, hardware: Hardware, choice: str | int = "measured") -> Bandwidth:
    """The HBM bandwidth of one physical core.

    choice: "measured" (what a core of a busy pair was measured to stream; where nobody measured it, as "spec"),
            "spec" (the core's share of its stack: the capture's metadata if it has it, else the datasheet's),
            or a number of bytes per second.

    Raises: UsageError for any other choice.
    """
    if isinstance(choice, int):
        if choice <= 0:
            raise UsageError(f"--bandwidth must be more than 0 bytes per second, not {choice}")
        return Bandwidth(choice, "given with --bandwidth", "user")
    if choice not in ("measured", "spec"):
        raise UsageError(f"--bandwidth is measured, spec or a number of bytes per second, not {choice!r}")
    sharers = hardware.get("hbm.core_count_per_stack")
    if choice == "measured" and metadata.provenance is Provenance.MODELLED and metadata.hbm_bandwidth_bytes_per_s:
        # What the model lets a core stream: a floor at another rate would say nothing about its timeline.
        share_count = sharers.value if sharers is not None and isinstance(sharers.value, int) else 1
        return Bandwidth(metadata.hbm_bandwidth_bytes_per_s // share_count, "the model's own", "derived")
    if choice == "measured":
        measured = hardware.get("hbm.measured_core_in_pair_bytes_per_s")
        if measured is not None and isinstance(measured.value, int):
            source = f"measured on one core of a busy {hardware.name} pair ({_source_text(hardware, measured)})"
            return Bandwidth(measured.value, source, measured.kind)
    unmeasured = f"no measured figure for {hardware.name}; " if choice == "measured" else ""
    if metadata.hbm_bandwidth_bytes_per_s and sharers is not None and isinstance(sharers.value, int):
        return Bandwidth(
            metadata.hbm_bandwidth_bytes_per_s // sharers.value,
            f"{unmeasured}the capture's own stack bandwidth ÷ {sharers.value} cores on a stack",
            "capture",
        )
    share = hardware["hbm.core_share_bytes_per_s"]
    assert isinstance(share.value, int)
    return Bandwidth(
        share.value, f"{unmeasured}{hardware.name} datasheet ({_source_text(hardware, share)})", share.kind
    )


def parse_bandwidth(text: str) -> str | int:
    """The value of --bandwidth: `measured`, `spec`, or bytes per second as 336000000000, 336e9 or 336GB/s.

    Raises: UsageError for anything else.
    """
    if text in ("measured", "spec"):
        return text
    number, factor = text.replace("_", ""), 1
    for suffix, scale in (("GB/s", 10**9), ("TB/s", 10**12), ("MB/s", 10**6), ("B/s", 1)):
        if number.endswith(suffix):
            number, factor = number[: -len(suffix)].strip(), scale
            break
    try:
        value = float(number) * factor
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e18:
        raise UsageError(
            f"--bandwidth is measured, spec or a number of bytes per second (336e9, 336GB/s), not {text!r}"
        )
    return round(value)


def _source_text(hardware: Hardware, quantity: Quantity) -> str:
    tag, _, rest = quantity.source.partition(";")
    return hardware.sources.get(tag, tag) + (f";{rest}" if rest else "")


def _collect(table: dict[str, object], prefix: str, into: dict[str, Quantity]) -> None:
    for key, entry in table.items():
        if not isinstance(entry, dict) or (not prefix and key == "sources"):
            continue
        if "source" in entry and "value" in entry:
            into[prefix + key] = Quantity(
                entry["value"],
                str(entry.get("unit", "")),
                str(entry["source"]),
                str(entry["kind"]),
                str(entry.get("note", "")),
            )
        else:
            _collect(entry, f"{prefix}{key}.", into)
