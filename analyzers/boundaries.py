"""Kernel boundaries: HBM written by one kernel and read back by a later one, and the time between kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy, duration_ns
from trnprof.analyzers.hbm_traffic import sides_of
from trnprof.hardware import Bandwidth
from trnprof.intervals import Int64Array, distinct, union
from trnprof.profile import Profile, codes_of, int64_of

BETWEEN_KERNELS = "between kernels"
"""What runs outside every kernel span: the compiler's own operations around the calls."""


@dataclass(frozen=True)
class Boundary:
    """What goes through HBM from one kernel to another, over all calls of both on one core."""

    writer: str
    """Kernel's name, untrusted, or BETWEEN_KERNELS."""
    reader: str
    crossing_count: int
    """Reads matched to a write, or calls that follow each other."""
    written_bytes: int
    read_back_bytes: int
    hbm_ns: int
    """Both ÷ the bandwidth used: what the round trip costs where nothing covers it."""


@dataclass(frozen=True)
class CoreBoundaries:
    """One physical core's kernel boundaries."""

    core: int
    call_count: int
    """Kernel spans."""
    between_ns: int
    """Body time outside every kernel span."""
    boundaries: tuple[Boundary, ...]
    """Most bytes first."""
    not_attributed_bytes: int | None
    """HBM reads whose tensor the capture does not name; None where none was matched by tensor."""
    kind: str
    """measured: matched by tensor. upper-bound: the smaller of what a call wrote and what the next one read."""


@dataclass(frozen=True)
class Boundaries:
    """Every core's kernel boundaries."""

    cores: tuple[CoreBoundaries, ...]
    bandwidth: Bandwidth


def measure_boundaries(profile: Profile, anatomy: Anatomy) -> Boundaries | None:
    """HBM round trips between kernels; None where kernels were not captured.

    Reads:  profile.kernels (start_ts, end_ts, name), dma_transfers (start_ts, variable, source, dest, read_bytes,
            write_bytes), and where those name no tensor instructions (start_ts, hbm_read_bytes, hbm_write_bytes); ns.
    """
    if profile.kernels is None:
        return None
    cores = []
    for account in anatomy.cores:
        kernels = profile.core_rows("kernels", account.core)
        assert kernels is not None
        calls = KernelCalls(kernels)
        transfers = profile.core_rows("dma_transfers", account.core)
        matched = _by_tensor(calls, transfers, anatomy.bandwidth) if transfers is not None else None
        between_ns = account.body_end_ts - account.body_start_ts - calls.covered_ns(account)
        if matched is not None:
            rows, missing = matched
            cores.append(CoreBoundaries(account.core, len(calls.start), between_ns, rows, missing, "measured"))
            continue
        rows = _by_neighbour(calls, profile.core_rows("instructions", account.core), anatomy.bandwidth)
        cores.append(CoreBoundaries(account.core, len(calls.start), between_ns, rows, None, "upper-bound"))
    return Boundaries(tuple(cores), anatomy.bandwidth)


class KernelCalls:
    """One core's kernel spans by start. Where spans nest, the one that began last is the one that runs."""

    def __init__(self, kernels: pa.Table) -> None:
        codes, self.names = codes_of(kernels["name"])
        start = int64_of(kernels["start_ts"])
        order = np.argsort(start, kind="stable")
        self.code, self.start = codes[order], start[order]
        self.end = int64_of(kernels["end_ts"])[order]

    def at(self, time: Int64Array) -> Int64Array:
        """The call that runs at each time, -1 for none; shape [len(time)]."""
        if not len(self.start):
            return np.full(len(time), -1, np.int64)
        last = np.searchsorted(self.start, time, side="right") - 1
        # A short call inside a long one has ended when the long one goes on: step out to the one around it.
        around = self._around()
        while True:
            ended = (last >= 0) & (self.end[np.maximum(last, 0)] <= time)
            if not ended.any():
                return last
            last = np.where(ended, around[np.maximum(last, 0)], last)

    def _around(self) -> Int64Array:
        """For each call the nearest earlier one that ends after it, -1 for none."""
        around = np.full(len(self.start), -1, np.int64)
        open_calls: list[int] = []
        for call, end in enumerate(self.end.tolist()):
            while open_calls and self.end[open_calls[-1]] <= end:
                open_calls.pop()
            around[call] = open_calls[-1] if open_calls else -1
            open_calls.append(call)
        return around

    def covered_ns(self, account: CoreAnatomy) -> int:
        """Body time inside a span."""
        return union(self.start, self.end).clip(account.body_start_ts, account.body_end_ts).length()

    def label(self, code: int) -> str:
        """A kernel's name, or BETWEEN_KERNELS for -1."""
        return BETWEEN_KERNELS if code < 0 else self.names[code]


def _by_tensor(
    calls: KernelCalls, transfers: pa.Table, bandwidth: Bandwidth
) -> tuple[tuple[Boundary, ...], int] | None:
    """(boundaries, bytes read whose tensor is not known), each read matched with the last write of its tensor before."""
    if "variable" not in transfers.column_names:
        return None
    tensor, names = codes_of(transfers["variable"])
    tensor = np.where(np.isin(tensor, [code for code, name in enumerate(names) if name in ("", "unknown")]), -1, tensor)
    source, dest = sides_of(transfers, "source"), sides_of(transfers, "dest")
    reads = np.isin(source, ("hbm", "virtual"))
    writes = np.isin(dest, ("hbm", "virtual"))
    if (tensor < 0).all() or not reads.any() or not writes.any():
        return None
    size = int64_of(transfers["transfer_bytes"])
    start, end = int64_of(transfers["start_ts"]), int64_of(transfers["end_ts"])
    call = calls.at(start)
    reader_rows = np.flatnonzero(reads & (tensor >= 0))
    writer_rows = np.flatnonzero(writes & (tensor >= 0))
    writer_rows = writer_rows[np.lexsort((end[writer_rows], tensor[writer_rows]))]
    # The last write of the tensor that had ended when the read began: position in the writes sorted by (tensor, end).
    times = distinct(np.concatenate((start, end)))
    step = len(times) + 1
    keys = tensor[writer_rows].astype(np.int64) * step + np.searchsorted(times, end[writer_rows])
    wanted = tensor[reader_rows].astype(np.int64) * step + np.searchsorted(times, start[reader_rows])
    position = np.searchsorted(keys, wanted, side="right") - 1
    writer = writer_rows[np.maximum(position, 0)] if len(writer_rows) else np.zeros(len(reader_rows), np.int64)
    crosses = (position >= 0) & (tensor[writer] == tensor[reader_rows]) & (call[writer] != call[reader_rows])
    writer, reader_rows = writer[crosses], reader_rows[crosses]
    by_call = np.append(calls.code, -1)
    pairs, inverse = np.unique(
        np.stack((by_call[call[writer]], by_call[call[reader_rows]])), axis=1, return_inverse=True
    )
    inverse = inverse.ravel()
    found = []
    for index, (writer_code, reader_code) in enumerate(pairs.T.tolist()):
        chosen = inverse == index
        # A write that is read back several times was still written once.
        written = int(size[np.unique(writer[chosen])].sum())
        read_back = int(size[reader_rows[chosen]].sum())
        found.append(
            Boundary(
                calls.label(writer_code),
                calls.label(reader_code),
                int(chosen.sum()),
                written,
                read_back,
                duration_ns(written + read_back, bandwidth.bytes_per_s),
            )
        )
    return _largest_first(found), int(size[reads & (tensor < 0)].sum())


def _by_neighbour(calls: KernelCalls, instructions: pa.Table | None, bandwidth: Bandwidth) -> tuple[Boundary, ...]:
    """Each call with the next one: at most the smaller of what the one wrote and the other read came back."""
    if instructions is None or not {"hbm_read_bytes", "hbm_write_bytes"} <= set(instructions.column_names):
        return ()
    call = calls.at(int64_of(instructions["start_ts"]))
    size = len(calls.start) + 1
    read, written = (
        np.bincount(call + 1, weights=int64_of(instructions[name]), minlength=size).astype(np.int64)[1:]
        for name in ("hbm_read_bytes", "hbm_write_bytes")
    )
    crossing = np.minimum(written[:-1], read[1:])
    found: dict[tuple[int, int], list[int]] = {}
    for index in np.flatnonzero(crossing).tolist():
        entry = found.setdefault((int(calls.code[index]), int(calls.code[index + 1])), [0, 0])
        entry[0] += 1
        entry[1] += int(crossing[index])
    return _largest_first(
        [
            Boundary(
                calls.label(writer),
                calls.label(reader),
                count,
                moved,
                moved,
                duration_ns(2 * moved, bandwidth.bytes_per_s),
            )
            for (writer, reader), (count, moved) in found.items()
        ]
    )


def _largest_first(rows: list[Boundary]) -> tuple[Boundary, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.read_back_bytes, -row.written_bytes, row.writer, row.reader)))
