"""Profiles for round trips (hypothesis), and how two profiles are compared: every cell, and the metadata."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st

from trnprof.profile import ENGINES, TABLE_SPECS, Core, DmaQueue, Metadata, Profile, Provenance, make_table

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "</script>",
        "a\x00b",
        "\x1b[31m",
        "../../x",
        "S[5] (x)>=1",
        "'; drop table",
        "nan",
        "",
        " ",
        "ü\u202e",
        "sg07",
        "00012",
    ]
)
_TIME = st.integers(-(2**40), 2**50)
_CORES = st.integers(0, 3)


def differences(left: Profile, right: Profile) -> list[str]:
    """What is not the same in two profiles' tables: empty if every table, column, value and null agrees."""
    found = []
    for name in TABLE_SPECS:
        one, other = getattr(left, name), getattr(right, name)
        if (one is None) != (other is None):
            found.append(f"{name}: only one has it")
        elif one is not None and sorted(one.column_names) != sorted(other.column_names):
            found.append(f"{name}: columns {sorted(set(one.column_names) ^ set(other.column_names))}")
        elif one is not None:
            found += [f"{name}.{c}" for c in one.column_names if one[c].to_pylist() != other[c].to_pylist()]
    return found


def without_format(metadata: Metadata) -> Metadata:
    """The metadata but for what a reader says of the file it read."""
    return dataclasses.replace(metadata, format="", format_version=None)


def column_names(profile: Profile, name: str) -> list[str]:
    """The columns of one table that must be there."""
    table = getattr(profile, name)
    assert table is not None, f"{name} was not read"
    return table.column_names


def rows_of(profile: Profile, name: str) -> list[dict[str, object]]:
    """One table's rows; it must be there."""
    table = getattr(profile, name)
    assert table is not None, f"{name} was not read"
    return table.to_pylist()


def issue(profile: Profile, code: str) -> tuple[int | None, str]:
    """(count, detail) of the one issue with this code; (0, "") if there is none."""
    found = [entry for entry in profile.issues if entry.code == code]
    assert len(found) <= 1, "one issue a code"
    return (found[0].count, found[0].detail) if found else (0, "")


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any profile whose rows are in order, with nulls, hostile names and extreme numbers."""
    cores = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))
    tables = {name: draw(_tables(name, sorted(cores))) for name in TABLE_SPECS if draw(st.booleans())}
    return Profile(metadata=draw(_metadata(sorted(cores))), **tables)


@st.composite
def _metadata(draw: st.DrawFn, cores: list[int]) -> Metadata:
    text = st.none() | NAMES
    count = st.none() | st.integers(0, 2**62)
    start = draw(st.integers(-(2**40), 2**40))
    return Metadata(
        format="test",
        provenance=draw(st.sampled_from(list(Provenance))),
        cores=tuple(
            Core(
                core=core,
                subgraph=f"sg{core:02d}",
                window_start_ts=start,
                window_end_ts=start + draw(st.integers(0, 2**45)),
                neuroncore_idx=draw(count),
                rank=draw(count),
                hbm_read_bytes=draw(count),
            )
            for core in cores
        ),
        hardware=draw(st.sampled_from([None, "trn1", "trn2"])),
        instance_type=draw(text),
        neff_uuid=draw(text),
        neff_path=draw(text),
        versions=draw(st.dictionaries(st.sampled_from(["runtime", "profiler", "compiler"]), NAMES)),
        hbm_bandwidth_bytes_per_s=draw(count),
        dma_bandwidth_bytes_per_s=draw(count),
        clock_hz=draw(st.dictionaries(st.sampled_from(["tensor", "base", "vector"]), st.integers(1, 2**40))),
        execution_index=draw(count),
        dge_notifications=draw(st.none() | st.booleans()),
        dropped_record_count=draw(count),
        has_step_markers=draw(st.booleans()),
        static_dma_attributed=draw(st.booleans()),
        summary=draw(
            st.dictionaries(
                st.text("abc_", min_size=1, max_size=5),
                st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
                max_size=4,
            )
        ),
        static_dma=tuple(
            DmaQueue(
                core=core, engine_idx=engine, queue_idx=1, name=draw(NAMES), type="data", descriptor_count=draw(count)
            )
            for core, engine in zip(cores, (64, 70, 80), strict=False)
        ),
    )


@st.composite
def _tables(draw: st.DrawFn, name: str, cores: list[int]) -> pa.Table:
    spec = TABLE_SPECS[name]
    optional = [column for column in spec.optional if draw(st.booleans())]
    count = draw(st.integers(0, 5))
    rows: list[dict[str, object]] = []
    for _ in range(count):
        row: dict[str, object] = {}
        for column in [*spec.required, *optional]:
            row[column] = draw(_cell(name, column, spec.columns[column], cores, required=column in spec.required))
        if "end_ts" in row:
            row["end_ts"] = row["start_ts"] + draw(st.integers(0, 2**50))  # type: ignore[operator]
        rows.append(row)
    first = "start_ts" if "start_ts" in spec.required else "timestamp"
    if first in spec.required:
        rows.sort(key=lambda row: (_rank(row.get("pcore_idx")), row[first]))
    kinds = {column: spec.columns[column] for column in spec.columns if column in spec.required or column in optional}
    return make_table(
        name,
        {
            column: pa.array([row[column] for row in rows], pa.string() if pa.types.is_dictionary(kind) else kind)
            for column, kind in kinds.items()
        },
    )


def _rank(core: object) -> int:
    return -1 if core is None else int(core)  # type: ignore[call-overload]


def _cell(table: str, column: str, kind: pa.DataType, cores: list[int], *, required: bool) -> st.SearchStrategy:
    if column == "engine":
        return st.sampled_from(ENGINES)
    if column == "pcore_idx":
        cell: st.SearchStrategy = st.sampled_from(cores)
    elif column in ("start_ts", "end_ts", "timestamp"):
        return _TIME
    elif column in ("trigger_start_ts", "dma_trigger_start_ts", "dma_trigger_end_ts"):
        cell = _TIME
    elif column == "duration":
        return st.integers(0, 2**60)
    elif pa.types.is_dictionary(kind):
        cell = NAMES
    elif pa.types.is_boolean(kind):
        cell = st.booleans()
    elif pa.types.is_floating(kind):
        cell = st.floats(allow_nan=False, allow_infinity=False)
    else:
        limit = 2 ** (kind.bit_width - 1)
        cell = st.integers(-limit, limit - 1)
    nullable = not required or column == "transfer_bytes"
    return st.none() | cell if nullable else cell


def write_text(path: Path, text: str) -> Path:
    """The file with this text."""
    path.write_text(text, encoding="utf-8")
    return path
