"""How well DMA packets use the DMA engines: by queue, size and source, against what packets of their size can reach."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_sets import NOT_ATTRIBUTED, SEMAPHORE_WRITE_BYTES, data_packet_mask
from trnprof.hardware import Hardware
from trnprof.hardware.dma_model import load_dma_model
from trnprof.intervals import Int64Array, charged_lengths, union_lengths
from trnprof.profile import Core, Profile, codes_of, int64_of

_SMALLEST_CLASS, _LARGEST_CLASS = 6, 16
"""Size classes are powers of two: below 2^6 = 64 B is one class, 2^16 = 64 KiB and above is one."""


@dataclass(frozen=True)
class Achievable:
    """What one core's data packets of one size can reach, as a range."""

    low_bytes_per_s: int
    """The vendor's curve by bytes per partition, one stream of 128 partitions."""
    high_bytes_per_s: int
    """The packet law with all of the core's DMA engines busy: 16 x 27.2 B/ns = 435 GB/s is its limit on trn2."""


@dataclass(frozen=True)
class PacketGroup:
    """Data packets that have something in common."""

    name: str
    """Queue, size class or source; untrusted where it comes from the capture."""
    packet_count: int
    bytes: int
    engine_ns: int
    """Sum of packet durations: how long DMA engines were held."""
    active_ns: int
    """Union of the group's own packets."""
    charged_ns: int
    """Its share of the core's data time; where packets overlap the one that began first is charged. Sums to data_ns."""
    law_ns: int
    """What the packet law gives for its packets, each alone on its engine: count x overhead + bytes ÷ rate."""
    dma_engine_count: int | None
    """Distinct DMA engines; None where the capture does not tell."""

    @property
    def mean_bytes(self) -> float:
        """Mean packet size."""
        return self.bytes / self.packet_count

    @property
    def excess_ns(self) -> int:
        """DMA engine time beyond the packet law: contention, strides, transposes; not below 0."""
        return max(0, self.engine_ns - self.law_ns)


@dataclass(frozen=True)
class SizeClass:
    """One bar of the packet size histogram."""

    low_bytes: int
    high_bytes: int | None
    """First size above the class; None: open."""
    group: PacketGroup
    achievable: Achievable
    """At the class's mean size."""


@dataclass(frozen=True)
class PacketKind:
    """Packets by what they are for; over the kinds counts and bytes sum to the anatomy's."""

    name: str
    """data, semaphore write, instruction fetch, collective."""
    packet_count: int
    bytes: int
    engine_ns: int


@dataclass(frozen=True)
class CoreDma:
    """One physical core's packets. Sizes, queues and engines each sum to the data packets."""

    core: int
    kinds: tuple[PacketKind, ...]
    sizes: tuple[SizeClass, ...]
    """Ascending."""
    queues: tuple[PacketGroup, ...]
    """Most data time first; named "type name"."""
    engines: tuple[PacketGroup, ...] | None
    """By DMA engine, in the vendor's numbering; None where the capture does not tell."""
    sources: tuple[PacketGroup, ...] | None
    """By tensor; None where the capture names none. What it does not name is NOT_ATTRIBUTED."""
    data_ns: int
    data_bytes: int


@dataclass(frozen=True)
class DmaEfficiency:
    """Every core's packets and the law that they are held against."""

    cores: tuple[CoreDma, ...]
    packet_overhead_ns: float
    packet_rate_bytes_per_ns: float
    law_source: str
    curve_source: str | None
    achievable: tuple[tuple[int, Achievable], ...]
    """(packet size, what packets of that size can reach) at the edges of the size classes, from 32 B to 128 KiB."""


def measure_dma_efficiency(profile: Profile, hardware: Hardware) -> DmaEfficiency | None:
    """Packets by kind, size, queue, DMA engine and source; None where packets were not captured.

    Reads:  profile.dma_packets (start_ts, end_ts, transfer_bytes, queue_type, queue_name, engine_idx, variable), clipped
            to each core's window; ns. A packet without a duration counts with its bytes and no time.
    """
    if profile.dma_packets is None:
        return None
    law = load_packet_law(hardware)
    cores = tuple(_measure_core(profile, core, law) for core in profile.metadata.cores)
    curve = hardware.get("dma.bandwidth_share_by_bytes_per_partition")
    return DmaEfficiency(
        cores,
        law.overhead_ns,
        law.bytes_per_ns,
        law.source,
        None if curve is None else hardware.sources.get(curve.source, curve.source),
        tuple((1 << power, law.achievable(1 << power)) for power in range(_SMALLEST_CLASS - 1, _LARGEST_CLASS + 2)),
    )


def load_packet_law(hardware: Hardware) -> PacketLaw:
    """The law of the hardware's DMA model."""
    model = load_dma_model(hardware.name)
    source = model.constants["packet_rate_bytes_per_ns"].source
    return PacketLaw(hardware, model["packet_overhead_ns"], model["packet_rate_bytes_per_ns"], source)


class PacketLaw:
    """What packets of a size can reach on this hardware."""

    def __init__(self, hardware: Hardware, overhead_ns: float, bytes_per_ns: float, source: str) -> None:
        self.overhead_ns, self.bytes_per_ns, self.source = overhead_ns, bytes_per_ns, source
        engines = hardware["dma.engine_count_per_core"].value
        plateau = hardware["dma.core_effective_bytes_per_s"].value
        assert isinstance(engines, int) and isinstance(plateau, int)
        self.engine_count, self.plateau = engines, plateau
        curve = hardware.get("dma.bandwidth_share_by_bytes_per_partition")
        shares = curve.value if curve is not None else {}
        assert isinstance(shares, dict)
        self.curve = sorted((int(size), float(share)) for size, share in shares.items())

    def ns(self, packet_count: int, byte_count: int) -> int:
        """Engine time of packets that have so many bytes in all."""
        return round(packet_count * self.overhead_ns + byte_count / self.bytes_per_ns)

    def achievable(self, packet_bytes: float) -> Achievable:
        """Bandwidth of a core whose packets all have this size."""
        one_engine = packet_bytes / (self.overhead_ns + packet_bytes / self.bytes_per_ns) if packet_bytes else 0.0
        high = one_engine * self.engine_count * 1e9
        return Achievable(round(min(self._curve_share(packet_bytes) * self.plateau, high)), round(high))

    def _curve_share(self, packet_bytes: float) -> float:
        if not self.curve:
            return 1.0
        sizes, shares = zip(*self.curve, strict=True)
        # Below the first point the curve is a constant time a transfer, so the share is in proportion to the size.
        if packet_bytes < sizes[0]:
            return shares[0] * packet_bytes / sizes[0]
        return float(np.interp(np.log2(packet_bytes), np.log2(sizes), shares))


def _measure_core(profile: Profile, core: Core, law: PacketLaw) -> CoreDma:
    packets = profile.core_rows("dma_packets", core.core)
    assert packets is not None
    data = packets.filter(pa.array(data_packet_mask(packets)))
    rows = _Packets(data, (core.window_start_ts, core.window_end_ts), law)
    exponent = np.zeros(len(rows.size), np.int64)
    positive = rows.size > 0
    exponent[positive] = np.floor(np.log2(rows.size[positive])).astype(np.int64)
    classes = np.clip(exponent, _SMALLEST_CLASS - 1, _LARGEST_CLASS) - (_SMALLEST_CLASS - 1)
    class_names = [_class_name(index) for index in range(_LARGEST_CLASS - _SMALLEST_CLASS + 2)]
    by_class = {group.name: group for group in rows.groups(classes, class_names)}
    sizes = tuple(
        SizeClass(*_class_edges(index), by_class[name], law.achievable(by_class[name].mean_bytes))
        for index, name in enumerate(class_names)
        if name in by_class
    )
    engines = sources = None
    if "engine_idx" in data.column_names:
        values, codes = np.unique(int64_of(data["engine_idx"], null=-1), return_inverse=True)
        names = [NOT_ATTRIBUTED if value < 0 else str(value) for value in values.tolist()]
        engines = tuple(rows.groups(codes, names))
    if "variable" in data.column_names:
        sources = _by_source(rows, data)
    return CoreDma(
        core.core,
        _kinds(packets),
        sizes,
        _dearest_first(rows.groups(*_queue_codes(data))),
        engines,
        sources,
        int(rows.charged.sum()),
        int(rows.size.sum()),
    )


class _Packets:
    """One core's data packets as arrays, clipped to the window."""

    def __init__(self, table: pa.Table, window: tuple[int, int], law: PacketLaw) -> None:
        self.start = np.clip(int64_of(table["start_ts"]), *window)
        self.end = np.maximum(np.clip(int64_of(table["end_ts"]), *window), self.start)
        self.size = int64_of(table["transfer_bytes"])
        self.charged = charged_lengths(self.start, self.end)
        self.engine = None
        if "engine_idx" in table.column_names:
            self.engine = np.maximum(int64_of(table["engine_idx"], null=-1), -1)
        self.law = law

    def groups(self, codes: np.ndarray, names: list[str]) -> list[PacketGroup]:
        """One group a name that has packets, in the names' order."""
        size = len(names)

        def total(values: Int64Array) -> Int64Array:
            return np.bincount(codes, weights=values, minlength=size).astype(np.int64)

        counts = np.bincount(codes, minlength=size)
        byte_counts, engine_ns = total(self.size), total(self.end - self.start)
        active, charged = union_lengths(codes, self.start, self.end, size), total(self.charged)
        engine_counts = None
        if self.engine is not None:
            # Engine numbers are 16-bit, so a group and its engine fit one integer.
            pairs = np.unique((codes.astype(np.int64) << 17) + self.engine)
            engine_counts = np.bincount((pairs + 1) >> 17, minlength=size)
        return [
            PacketGroup(
                names[code],
                int(counts[code]),
                int(byte_counts[code]),
                int(engine_ns[code]),
                int(active[code]),
                int(charged[code]),
                self.law.ns(int(counts[code]), int(byte_counts[code])),
                None if engine_counts is None else int(engine_counts[code]),
            )
            for code in np.flatnonzero(counts).tolist()
        ]


def _class_edges(index: int) -> tuple[int, int | None]:
    low = 0 if index == 0 else 1 << (index + _SMALLEST_CLASS - 1)
    high = None if index == _LARGEST_CLASS - _SMALLEST_CLASS + 1 else 1 << (index + _SMALLEST_CLASS)
    return low, high


def _class_name(index: int) -> str:
    low, high = _class_edges(index)
    if high is None:
        return f"{_size_text(low)} and more"
    return f"below {_size_text(high)}" if not low else f"{_size_text(low)} to {_size_text(high)}"


def _size_text(size: int) -> str:
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def _queue_codes(data: pa.Table) -> tuple[np.ndarray, list[str]]:
    """(code of each packet, names): "type name", as far as the capture tells."""
    columns: list[tuple[np.ndarray, list[str]]] = []
    if "queue_type" in data.column_names:
        columns.append(codes_of(data["queue_type"]))
    if "queue_name" in data.column_names:
        columns.append(_queues(*codes_of(data["queue_name"])))
    if not columns:
        return np.zeros(len(data), np.int64), [NOT_ATTRIBUTED]
    combined = np.zeros(len(data), np.int64)
    for codes, names in columns:
        combined = combined * (len(names) + 1) + codes + 1
    values, inverse = np.unique(combined, return_inverse=True)
    labels = []
    for value in values.tolist():
        parts: list[str] = []
        for _, names in reversed(columns):
            value, code = divmod(value, len(names) + 1)
            if code:
                parts.insert(0, names[code - 1])
        labels.append(" ".join(parts) or NOT_ATTRIBUTED)
    return inverse, labels


def _queues(codes: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """The queue of each ring: qSyncIO0-Q1-E64 and qSyncIO0-Q1-E65 are rings of qSyncIO0, Q0-E64 is one of Q0."""
    shorter = [re.sub(r"(?<=.)(-Q\d+)?-E\d+$", "", name) for name in names]
    distinct = sorted(set(shorter))
    index = {name: position for position, name in enumerate(distinct)}
    renamed = np.array([index[name] for name in shorter] or [-1], np.int64)
    return np.where(codes < 0, -1, renamed[codes]), distinct


def _by_source(rows: _Packets, data: pa.Table) -> tuple[PacketGroup, ...] | None:
    codes, names = codes_of(data["variable"])
    unnamed = np.isin(codes, [code for code, name in enumerate(names) if name in ("", "unknown")]) | (codes < 0)
    if unnamed.all():
        return None
    return _dearest_first(rows.groups(np.where(unnamed, len(names), codes), [*names, NOT_ATTRIBUTED]))


def _dearest_first(groups: list[PacketGroup]) -> tuple[PacketGroup, ...]:
    return tuple(sorted(groups, key=lambda group: (-group.charged_ns, -group.bytes, group.name)))


def _kinds(packets: pa.Table) -> tuple[PacketKind, ...]:
    """data, semaphore write, instruction fetch, collective: each packet is one of them."""
    size = int64_of(packets["transfer_bytes"])
    length = np.maximum(int64_of(packets["end_ts"]) - int64_of(packets["start_ts"]), 0)
    left = ~data_packet_mask(packets)
    kinds = [("data", ~left)]
    if "is_cc_dma" in packets.column_names:
        collective = left & packets["is_cc_dma"].fill_null(False).to_numpy()
        kinds.append(("collective", collective))
        left &= ~collective
    if "queue_type" in packets.column_names:
        codes, names = codes_of(packets["queue_type"])
        fetch = left & np.isin(codes, [code for code, name in enumerate(names) if name == "instruction"])
        kinds.append(("instruction fetch", fetch))
        left &= ~fetch
    kinds.append(("semaphore write", left))
    assert not left.any() or bool((size[left] == SEMAPHORE_WRITE_BYTES).all())
    return tuple(
        PacketKind(name, int(mask.sum()), int(size[mask].sum()), int(length[mask].sum())) for name, mask in kinds
    )
