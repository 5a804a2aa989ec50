"""Stable codes of what a kernel's values show (VAL...): one registry for the command and docs/nki-run.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ValueCode:
    """What a code means."""

    code: str
    title: str
    cause: str
    advice: str


_CODES = (
    ValueCode(
        "VAL001",
        "differs from the reference",
        "Elements differ by more than the tolerance.",
        "run again with --precise off: if it agrees then, rounding is the cause; else look at the first bad index",
    ),
    ValueCode(
        "VAL002",
        "rows repeat",
        "Rows of the output are copies of an earlier row where the reference's rows differ: a broadcast or an offset is wrong.",
        "look at the strides and offsets of the access that writes those rows",
    ),
    ValueCode(
        "VAL003",
        "all-zero output",
        "Every element is 0 and the reference's are not: the result was never stored, or a factor is 0.",
        "look for the store of this output, and for a program or loop that never ran",
    ),
    ValueCode(
        "VAL004",
        "never-written elements in an output",
        "Nothing stored to them: a tile that a loop bound or a mask leaves out.",
        "compare loop bounds and masks with the output's shape",
    ),
    ValueCode(
        "VAL005",
        "memory read before it was written",
        "An instruction reads elements that nothing wrote; here they are NaN (integers 0x55...), on the device what was there before.",
        "write the whole tile first (nisa.memset), or read only the part that was written",
    ),
    ValueCode(
        "VAL006",
        "NaN in an output",
        "Elements are NaN although they were written.",
        "look for memory read before it was written (VAL005), infinities subtracted, and 0 divided by 0",
    ),
    ValueCode(
        "VAL007",
        "activation outside its valid range",
        "The scalar engine's polynomial means nothing there; here the function is exact, the device's value is not.",
        "reduce the argument first (nl.sin does), or clamp it",
    ),
    ValueCode(
        "VAL008",
        "scatter with equal indices",
        "A scatter that accumulates reads each row once: of equal indices one addition stays.",
        "make the indices unique, or add the rows of equal indices before the scatter",
    ),
)

VALUE_CODES: dict[str, ValueCode] = {entry.code: entry for entry in _CODES}

NOTE_CODES = {"unwritten-read": "VAL005", "activation-range": "VAL007", "duplicate-indices": "VAL008"}
"""Notes of a run that are findings."""
