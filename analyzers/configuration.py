"""What two captures must have in common to be compared, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy
from trnprof.profile import Metadata

_SIZES = {
    "inputs_and_weights_size_bytes": "size of inputs and weights",
    "inputs_outputs_weights_size_bytes": "size of inputs, outputs and weights",
    "weight_size_bytes": "size of weights",
}
"""Batch and shapes show in these."""

_EXPECTED = frozenset({"NEFF", "compiler", "profiler", "format"})
"""What a comparison of two builds is about, or what does not change the numbers."""


@dataclass(frozen=True)
class ConfigurationDifference:
    """One thing that is not the same on both sides."""

    field: str
    before: str
    after: str
    expected: bool
    """It differs between builds, or does not touch the numbers; anything else makes the comparison doubtful."""


def configuration_of(metadata: Metadata, anatomy: Anatomy) -> dict[str, str]:
    """What a capture says of its machine, software and shapes; what it does not say is absent."""
    versions = {name: text.split(" ")[0] for name, text in metadata.versions.items()}
    fields: dict[str, object] = {
        "provenance": str(metadata.provenance),
        "hardware": metadata.hardware or anatomy.hardware,
        "instance type": metadata.instance_type,
        "physical cores": len(metadata.cores),
        "bandwidth used": f"{anatomy.bandwidth.bytes_per_s} B/s",
        "first execution": None if metadata.execution_index is None else metadata.execution_index == 1,
        "DGE notifications": metadata.dge_notifications,
        "format": " ".join(filter(None, (metadata.format, metadata.format_version))),
        "NEFF": metadata.neff_uuid,
        **versions,
        **{f"{engine} clock": f"{clock} Hz" for engine, clock in metadata.clock_hz.items()},
        **{text: metadata.summary.get(name) for name, text in _SIZES.items()},
    }
    if metadata.hbm_bandwidth_bytes_per_s:
        fields["HBM stack peak"] = f"{metadata.hbm_bandwidth_bytes_per_s} B/s"
    for kind in ("input", "output", "weight"):
        sizes = [tensor.size_bytes for tensor in metadata.tensors if tensor.kind == kind]
        if sizes:
            fields[f"{kind} tensors"] = f"{len(sizes)} of {sum(sizes)} B"
    return {name: str(value) for name, value in fields.items() if value is not None}


def compare_configurations(
    before: Sequence[dict[str, str]], after: Sequence[dict[str, str]]
) -> tuple[ConfigurationDifference, ...]:
    """Fields whose values are not the same on both sides, or not one value within a side; what matters first.

    A field that one side's captures do not tell is no difference.
    """
    found = []
    for field in dict.fromkeys(name for entry in (*before, *after) for name in entry):
        first, second = (sorted({entry[field] for entry in side if field in entry}) for side in (before, after))
        if first and second and (first != second or len(first) > 1):
            found.append(ConfigurationDifference(field, ", ".join(first), ", ".join(second), field in _EXPECTED))
    return tuple(sorted(found, key=lambda entry: entry.expected))
