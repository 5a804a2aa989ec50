"""A Profile as the vendor's legacy full-profile JSON.

The lists and field names are the vendor's (see readers/vendor_tables.py); columns that only trnprof has stand in the
same rows under Profile's names, kernel spans and sources in the lists trnprof_kernels and trnprof_sources. Transfers go
into `dma` with aggregated "yes", beside its packets. The list trnprof_marker says that trnprof wrote the file and
carries what the format cannot, so that reading the file gives the same Profile back.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from trnprof.profile import Metadata, Profile
from trnprof.readers.marker import MARKER_NAME, marker_text
from trnprof.readers.vendor_tables import VENDOR_TABLES
from trnprof.writers.output import replaced_file
from trnprof.writers.vendor_facts import (
    PRINTED_ENGINES,
    clock_ghz,
    is_simulation,
    summary_row,
    unix_time,
    warnings_of,
    window_of,
)

_AS_TEXT = frozenset({"dma_engine", "dma_queue"})
"""Numbers that the vendor writes as text."""


def write_legacy_json(profile: Profile, path: Path, *, overwrite: bool = False) -> None:
    """Write the profile as one JSON file, gzip if the name ends in .gz. The file appears whole or not at all.

    Raises: UsageError if it cannot or must not be written.
    """
    data: dict[str, object] = {"instruction": []} if profile.instructions is not None else {}
    for name, table in profile.tables():
        if table is not None:
            data.setdefault(VENDOR_TABLES[name].legacy, [])
            rows = data[VENDOR_TABLES[name].legacy]
            assert isinstance(rows, list)
            rows += _rows(name, table)
    data |= _facts(profile)
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
    if path.suffix == ".gz":
        packed = io.BytesIO()
        # No file name and no time in the header: the same profile gives the same bytes.
        with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream:
            stream.write(text)
        text = packed.getvalue()
    with replaced_file(path, overwrite=overwrite) as new:
        new.write_bytes(text)


def _rows(name: str, table: pa.Table) -> list[dict[str, object]]:
    vendor = VENDOR_TABLES[name]
    columns: dict[str, list[object]] = {}
    for column in table.column_names:
        key, cells = vendor.legacy_name(column), table[column].to_pylist()
        if column == "end_ts":
            key, cells = "duration", pc.subtract(table["end_ts"], table["start_ts"]).to_pylist()
        elif column == "pcore_idx":
            cells = [None if core is None else f"sg{core:02d}" for core in cells]
        elif column == "engine":
            cells = [PRINTED_ENGINES.get(engine, engine) for engine in cells]
        elif column == "is_cc_dma":
            cells = [None if cell is None else "yes" if cell else "no" for cell in cells]
        elif key in _AS_TEXT:
            cells = [None if cell is None else str(cell) for cell in cells]
        columns[key] = cells
    if name in ("dma_packets", "dma_transfers"):
        columns["aggregated"] = ["yes" if name == "dma_transfers" else "no"] * len(table)
    keys = list(columns)
    return [dict(zip(keys, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _facts(profile: Profile) -> dict[str, object]:
    metadata = profile.metadata
    start, end = window_of(metadata)
    header: dict[str, object] = {
        "num_physical_cores": len(metadata.cores),
        "num_subgraphs": len(metadata.cores),
        "vnc_enabled": len(metadata.cores) > 1,
        "first_hw_timestamp": start,
        "last_hw_timestamp": end,
        "first_ts": unix_time(start),
        "last_ts": unix_time(end),
        "dma_ddr_bandwidth": metadata.dma_bandwidth_bytes_per_s,
        "hbm_ddr_bandwidth": metadata.hbm_bandwidth_bytes_per_s,
        "pe_clock_freq": clock_ghz(metadata, "tensor"),
        "pe_clock_others": clock_ghz(metadata, "base"),
        "is_simulation": is_simulation(metadata),
    }
    facts: dict[str, object] = {
        "metadata": [{name: value for name, value in header.items() if value is not None}],
        "summary": [summary_row(metadata) | _versions(metadata)],
        "model_info": [
            {
                name: value
                for name, value in (
                    ("sg_name", f"sg{core.core:02d}"),
                    ("nc_idx", core.neuroncore_idx),
                    ("nd_idx", core.neuron_device_idx),
                )
                if value is not None
            }
            for core in metadata.cores
        ],
        "warnings": [{"category": "Missing Data", "message": message} for message in warnings_of(metadata)],
        "dma_queues_info": [
            {
                "subgraph": f"sg{queue.core:02d}",
                "q_eng_idx": queue.engine_idx,
                "q_idx": queue.queue_idx,
                "q_name": queue.name,
                "q_type": queue.type,
            }
            for queue in metadata.static_dma
        ],
        MARKER_NAME: [marker_text(profile)],
    }
    if metadata.neff_uuid is not None:
        facts["neff_header"] = [{"uuid": metadata.neff_uuid}]
    if metadata.neff_path is not None:
        facts["profile_info"] = [{"neff_name": metadata.neff_path}]
    return facts


def _versions(metadata: Metadata) -> dict[str, object]:
    versions: dict[str, object] = {f"{part}_version": text for part, text in metadata.versions.items()}
    return versions if metadata.instance_type is None else {"instance_type": metadata.instance_type, **versions}
