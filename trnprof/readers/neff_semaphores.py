"""Which DMA queue each semaphore of a capture counts: the NEFF lists the semaphores of its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from trnprof.readers.neff import Neff

_SEMAPHORE_COUNT = 256


def name_queue_semaphores(table: pa.Table, neff: Neff) -> pa.Table:
    """The semaphore table with the queues' names in `id`, and `dma` as the source of updates that came over the bus.

    table: Profile.semaphores; without a semaphore_idx column it is returned as it is.
    A dynamic DMA shows its queue in the capture alone; a static ring's semaphore only the NEFF tells.
    """
    import numpy as np

    from trnprof.profile import codes_of, int64_of
    from trnprof.readers.ntff_columns import coded
    from trnprof.readers.ntff_names import queue_name

    if "semaphore_idx" not in table.column_names:
        return table
    # The last core and the last semaphore stand for what the NEFF does not have.
    cores = max((core.core for core in neff.cores), default=-1) + 1
    codes, labels = codes_of(table["id"])
    label_of = np.full((cores + 1, _SEMAPHORE_COUNT + 1), -1, np.int32)
    for core in neff.cores:
        for queues in core.queue_sets:
            for index in queues.semaphores:
                if 0 <= index < _SEMAPHORE_COUNT:
                    label_of[core.core, index] = len(labels)
                    labels.append(f"S[{index}] ({queue_name(queues.name)})")
    core_of_row, index_of_row = int64_of(table["pcore_idx"]), int64_of(table["semaphore_idx"], null=-1)
    core_of_row = np.where((core_of_row >= 0) & (core_of_row < cores), core_of_row, cores)
    index_of_row = np.where((index_of_row >= 0) & (index_of_row < _SEMAPHORE_COUNT), index_of_row, _SEMAPHORE_COUNT)
    label = label_of[core_of_row, index_of_row]
    table = _with_column(table, "id", coded(np.where(label >= 0, label, codes), labels))
    if "update_source" not in table.column_names:
        return table
    sources, names = codes_of(table["update_source"])
    over_bus = np.isin(sources, [code for code, name in enumerate(names) if name == "axi"])
    return _with_column(
        table, "update_source", coded(np.where(over_bus & (label >= 0), len(names), sources), [*names, "dma"])
    )


def _with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), column)
