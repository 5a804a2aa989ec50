"""The marker in profiles that trnprof itself wrote: where the numbers come from, and what the format has no place for.

The vendor's formats say only whether a profile is a simulation. A file that trnprof wrote also carries this marker, one
JSON text: the whole Metadata of the Profile that was written, and which columns each table had. With it a reader gives
back the same Profile (a modelled one stays modelled, a measured one measured); without it the file would be taken for
the vendor's. A marker is as hostile as the rest of the file: every value is checked against Metadata's own types.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from trnprof.errors import InputDataError
from trnprof.profile import TABLE_SPECS, Metadata, Profile
from trnprof.readers.cells import MAX_CORE
from trnprof.typed_json import from_plain

MARKER_NAME = "trnprof_marker"
"""The column of Explorer's Metadata table, and the top-level list of the legacy JSON, that hold the marker."""

_VERSION = 1
_MAX_CHARS = 64 << 20


@dataclass(frozen=True)
class Marker:
    """A marker that was read."""

    metadata: Metadata
    """The written Profile's, with the format of the file it was read from."""
    columns: dict[str, tuple[str, ...]]
    """Table -> its columns, for every table that the written Profile had."""


def marker_text(profile: Profile) -> str:
    """The marker of a file that holds this profile."""
    metadata = asdict(profile.metadata)
    metadata["summary"] = storable_summary(profile.metadata.summary)
    columns = {name: table.column_names for name, table in profile.tables() if table is not None}
    marker = {"writer": "trnprof", "version": _VERSION, "metadata": metadata, "columns": columns}
    return json.dumps(marker, allow_nan=False, separators=(",", ":"))


def storable_summary(summary: dict[str, int | float | str]) -> dict[str, int | float | str]:
    """The metrics with a value: JSON has no NaN and no infinity, Parquet no integers of more than 64 bits."""
    return {
        name: value
        for name, value in summary.items()
        if (math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or value.bit_length() < 64)
    }


def read_marker(text: object, *, path: object, format: str, format_version: str | None) -> Marker:
    """The marker in `text`.

    Raises: InputDataError for anything but a whole, well-typed marker of the version that is known.
    """
    try:
        if not isinstance(text, str) or len(text) > _MAX_CHARS:
            raise ValueError("not a text of acceptable length")
        found = from_plain(dict[str, Any], json.loads(text))
        if found["version"] != _VERSION:
            raise ValueError("version not known")
        metadata = from_plain(Metadata, found["metadata"])
        numbers = [core.core for core in metadata.cores]
        if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= number <= MAX_CORE for number in numbers):
            raise ValueError("cores wrong")
        if any(core.window_end_ts < core.window_start_ts for core in metadata.cores):
            raise ValueError("a window ends before it starts")
        columns = from_plain(dict[str, tuple[str, ...]], found["columns"])
        for table, names in columns.items():
            if not set(TABLE_SPECS[table].required) <= set(names) <= set(TABLE_SPECS[table].columns):
                raise ValueError("list of columns wrong")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputDataError(
            f"trnprof's own marker ({MARKER_NAME}) is damaged: {str(error)[:80]}; write the file again", path=path
        ) from None
    return Marker(replace(metadata, format=format, format_version=format_version), columns)
