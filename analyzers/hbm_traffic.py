"""HBM traffic: what of it is needed, spilled, or loaded more than once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_sets import NOT_ATTRIBUTED, InstructionRows
from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy, HbmAccount, NeededTraffic
from trnprof.profile import Core, Profile, TensorSize, codes_of, int64_of


@dataclass(frozen=True)
class Spill:
    """Intermediate tensors that did not fit the SBUF: saved to HBM, and read back, perhaps several times."""

    save_bytes: int | None
    """None: the capture tells only the reloads."""
    reload_bytes: int
    source: str
    kind: str
    """measured, or upper-bound where constants may be among the bytes."""

    def total_bytes(self) -> int:
        """Bytes that a larger SBUF, or a smaller working set, would not move."""
        return (self.save_bytes or 0) + self.reload_bytes


@dataclass(frozen=True)
class TensorTraffic:
    """One tensor's HBM traffic on one core."""

    name: str
    """As in the capture; untrusted. NOT_ATTRIBUTED holds the transfers whose tensor the capture does not name."""
    kind: str | None
    """input, output or weight; None: not known."""
    size_bytes: int | None
    """None: not known."""
    transfer_count: int
    read_bytes: int
    write_bytes: int
    reloaded_bytes: int | None
    """Bytes read beyond one read of each byte; a lower bound where only the repetition of DMA blocks shows it, None
    where neither size nor block is known."""

    @property
    def load_factor(self) -> float | None:
        """How often it was read as a whole; None: its size is not known."""
        return None if not self.size_bytes else self.read_bytes / self.size_bytes


@dataclass(frozen=True)
class CoreTraffic:
    """One physical core's HBM traffic."""

    core: int
    hbm: HbmAccount | None
    """The anatomy's; None: not captured."""
    spill: Spill | None
    """None: not captured. (No spill is Spill(0, 0).)"""
    reloaded_bytes: int | None
    """Of inputs and weights; None: no tensor's traffic is known."""
    tensors: tuple[TensorTraffic, ...] | None
    """Most bytes first; None: the capture names no tensor."""

    @property
    def useful_bytes(self) -> int | None:
        """Traffic that is neither spill nor, as far as known, a repeated load; None: traffic or spill is not captured."""
        if self.hbm is None or self.spill is None:
            return None
        return max(0, self.hbm.total_bytes() - self.spill.total_bytes() - (self.reloaded_bytes or 0))


@dataclass(frozen=True)
class HbmTraffic:
    """Every core's traffic, and what the program needs as a whole."""

    cores: tuple[CoreTraffic, ...]
    needed: NeededTraffic | None

    @property
    def reload_factor(self) -> float | None:
        """Bytes moved ÷ bytes needed, over all cores; None: the capture does not state the need."""
        return None if self.needed is None else self.needed.moved_bytes / self.needed.needed_bytes


def measure_hbm_traffic(profile: Profile, anatomy: Anatomy) -> HbmTraffic:
    """Each core's HBM traffic by purpose and by tensor.

    Reads:  profile.instructions (spill_save_bytes, spill_reload_bytes, in the body), dma_transfers (variable, source,
            dest, block_id, read_bytes, write_bytes), dma_packets (queue_name), metadata.tensors; totals are the anatomy's.
    """
    sizes = {tensor.name: tensor for tensor in profile.metadata.tensors}
    places = {core.core: core for core in profile.metadata.cores}
    cores = []
    for account in anatomy.cores:
        tensors = _tensors(profile, account.core, sizes)
        reloads = [
            tensor.reloaded_bytes
            for tensor in tensors or ()
            if tensor.reloaded_bytes is not None and tensor.kind in (None, "input", "weight")
        ]
        spill = _spill(profile, account, places[account.core])
        cores.append(CoreTraffic(account.core, account.hbm, spill, sum(reloads) if reloads else None, tensors))
    return HbmTraffic(tuple(cores), anatomy.needed)


def memory_of(text: str) -> str:
    """What memory the vendor's `source` and `dest` texts name: hbm, virtual (a spill in HBM), on-chip or unknown.

    Seen: [[INPUT]], [OUTPUT], [[VIRTUAL]], [[SB]]; "unknown" where DGE notifications were off.
    """
    name = text.strip("[] '\"").upper()
    if name.startswith("VIRTUAL"):
        return "virtual"
    if name.startswith(("INPUT", "OUTPUT", "FILE", "WEIGHT", "TMP", "POINTER", "DRAM", "HBM")):
        return "hbm"
    if name.startswith(("SB", "STATE", "PSUM", "PE", "ACT", "POOL", "DVE")):
        return "on-chip"
    return "unknown"


def sides_of(transfers: pa.Table, column: str) -> np.ndarray:
    """memory_of each transfer's `source` or `dest`; shape [n]; unknown where the column is not there."""
    if column not in transfers.column_names:
        return np.full(len(transfers), "unknown")
    codes, names = codes_of(transfers[column])
    return np.array([*(memory_of(name) for name in names), "unknown"])[codes]


def _spill(profile: Profile, account: CoreAnatomy, core: Core) -> Spill | None:
    instructions = profile.core_rows("instructions", account.core)
    if instructions is not None and {"spill_save_bytes", "spill_reload_bytes"} <= set(instructions.column_names):
        rows = InstructionRows(instructions, (account.window_start_ts, account.window_end_ts))
        inside = (rows.start >= account.body_start_ts) & (rows.end <= account.body_end_ts)
        save, reload = (int(int64_of(instructions[f"spill_{side}_bytes"])[inside].sum()) for side in ("save", "reload"))
        return Spill(save, reload, "spill bytes of the instructions", "measured")
    transfers = profile.core_rows("dma_transfers", account.core)
    if transfers is not None and {"source", "dest"} <= set(transfers.column_names):
        source, dest = sides_of(transfers, "source"), sides_of(transfers, "dest")
        if ((source != "unknown") & (dest != "unknown")).any():
            size = int64_of(transfers["transfer_bytes"])
            return Spill(
                int(size[dest == "virtual"].sum()),
                int(size[source == "virtual"].sum()),
                "DMA transfers to and from virtual tensors",
                "measured",
            )
    if len(profile.metadata.cores) == 1 and "spill_reload_bytes" in profile.metadata.summary:
        save_total, reload_total = (profile.metadata.summary.get(f"spill_{side}_bytes") for side in ("save", "reload"))
        if isinstance(save_total, int) and isinstance(reload_total, int):
            return Spill(save_total, reload_total, "the capture's own totals", "measured")
    return _spill_queue(profile, core)


def _spill_queue(profile: Profile, core: Core) -> Spill | None:
    """The compiler reads spilled tensors and constants back on static queues that it names ...SpillReload."""
    packets = profile.core_rows("dma_packets", core.core)
    if packets is None or "queue_name" not in packets.column_names:
        return None
    codes, names = codes_of(packets["queue_name"])
    spills = [code for code, name in enumerate(names) if "spill" in name.lower()]
    if not spills and not any(queue.core == core.core for queue in profile.metadata.static_dma):
        return None  # queues without the compiler's names tell nothing
    moved = int(int64_of(packets["transfer_bytes"])[np.isin(codes, spills)].sum())
    return Spill(None, moved, "packets of queues named SpillReload, constants among them", "upper-bound")


def _tensors(profile: Profile, core: int, sizes: dict[str, TensorSize]) -> tuple[TensorTraffic, ...] | None:
    transfers = profile.core_rows("dma_transfers", core)
    if transfers is None:
        transfers = profile.core_rows("dma_packets", core)
    if transfers is None or "variable" not in transfers.column_names or not len(transfers):
        return None
    codes, names = codes_of(transfers["variable"])
    unnamed = (codes < 0) | np.isin(codes, [code for code, name in enumerate(names) if name in ("", "unknown")])
    if unnamed.all():
        return None
    codes = np.where(unnamed, len(names), codes)
    read, write = _hbm_sides(transfers)
    counts = np.bincount(codes, minlength=len(names) + 1)
    read_bytes, write_bytes = (
        np.bincount(codes, weights=values, minlength=len(names) + 1).astype(np.int64) for values in (read, write)
    )
    repeated = _repeated_blocks(transfers, codes, read, len(names) + 1)
    found = []
    for code in np.flatnonzero(counts).tolist():
        named = code < len(names)
        known = sizes.get(names[code]) if named else None
        reloaded = None
        if known is not None:
            reloaded = max(0, int(read_bytes[code]) - known.size_bytes)
        elif repeated is not None and named:
            reloaded = int(repeated[code])
        found.append(
            TensorTraffic(
                names[code] if named else NOT_ATTRIBUTED,
                None if known is None else known.kind,
                None if known is None else known.size_bytes,
                int(counts[code]),
                int(read_bytes[code]),
                int(write_bytes[code]),
                reloaded,
            )
        )
    return tuple(sorted(found, key=lambda tensor: (-(tensor.read_bytes + tensor.write_bytes), tensor.name)))


def _hbm_sides(transfers: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(bytes read from HBM, bytes written to it) of each transfer; where a side is not known both of its bytes count."""
    size = int64_of(transfers["transfer_bytes"])
    read = int64_of(transfers["read_bytes"]) if "read_bytes" in transfers.column_names else size
    write = int64_of(transfers["write_bytes"]) if "write_bytes" in transfers.column_names else size
    source, dest = sides_of(transfers, "source"), sides_of(transfers, "dest")
    if not (dest != "unknown").any() and not (source != "unknown").any():
        return read, np.zeros(len(size), np.int64)  # no side is known: each byte once
    return np.where(source == "on-chip", 0, read), np.where(dest == "on-chip", 0, write)


def _repeated_blocks(transfers: pa.Table, codes: np.ndarray, read: np.ndarray, size: int) -> np.ndarray | None:
    """Bytes by tensor that a DMA block moved when it ran again; None where blocks are not known."""
    if "block_id" not in transfers.column_names or transfers["block_id"].null_count == len(transfers):
        return None
    block = int64_of(transfers["block_id"], null=-1)
    order = np.lexsort((int64_of(transfers["start_ts"]), block, codes))
    again = np.zeros(len(order), bool)
    again[1:] = (codes[order][1:] == codes[order][:-1]) & (block[order][1:] == block[order][:-1])
    again &= block[order] >= 0
    return np.bincount(codes[order][again], weights=read[order][again], minlength=size).astype(np.int64)
