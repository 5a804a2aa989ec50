"""Registers, barriers, exchanges between a pair's programs, and collectives between ranks."""

from __future__ import annotations

from typing import Any

from trnprof.nki.objects import NKIObject
from trnprof.nki.operations.table import (
    INSTRUCTION,
    Bound,
    Operation,
    attributes,
    compute,
    define,
    tensors_in,
)
from trnprof.nki.recorder import Recorder
from trnprof.nki.recording import SyncRecord
from trnprof.nki.registers import VirtualRegister
from trnprof.nki.tensor import Tensor


class ReplicaGroup(NKIObject):
    """Ranks that take part in a collective."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.groups = args[0] if args else next(iter(kwargs.values()), None)
        for name, value in kwargs.items():
            setattr(self, name, value)


def _sync(kind: str) -> Any:
    """A runner that records one SyncRecord."""

    def run(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
        reads = [tensor for name in operation.reads for tensor in tensors_in(bound.get(name))]
        writes = [tensor for name in operation.writes for tensor in tensors_in(bound.get(name))]
        extra = attributes(operation, bound)
        group = bound.get("replica_group")
        if group is not None:
            extra = (*extra, ("replica_group", str(getattr(group, "groups", group))))
        recorder.emit(
            SyncRecord,
            {
                "op": operation.name,
                "module": operation.module,
                "name": bound.get("name"),
                "kind": kind,
                "reads": tuple(recorder.access(tensor) for tensor in reads),
                "writes": tuple(recorder.access(tensor, write=True) for tensor in writes),
                "attributes": extra,
            },
        )
        return INSTRUCTION

    return run


def _alloc(recorder: Recorder, operation: Operation, bound: Bound) -> VirtualRegister:
    value = bound.get("x")
    if isinstance(value, Tensor):
        register = VirtualRegister()
        compute(recorder, operation, {"src": value})
        return register
    return VirtualRegister(int(value) if isinstance(value, int) else None)


def _in_dynamic_loop(recorder: Recorder) -> bool:
    return any(loop.repeats.get(0, 1) != 1 for loop in recorder.loops if loop.kind in ("dynamic_range", "while"))


def _move(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    target, source = bound["dst"], bound.get("src", bound.get("imm"))
    if isinstance(target, VirtualRegister):
        value = source.value if isinstance(source, VirtualRegister) else source if isinstance(source, int) else None
        target.value = None if _in_dynamic_loop(recorder) or value is None else int(value)
    return compute(recorder, operation, {})


def _load(recorder: Recorder, operation: Operation, bound: Bound) -> Any:
    target, source = bound["dst"], bound["src"]
    if isinstance(target, VirtualRegister):
        target.value = None
        values = source.storage.values if isinstance(source, Tensor) else None
        if values is not None and not _in_dynamic_loop(recorder) and isinstance(source.offset, int):
            target.value = int(values.reshape(-1)[int(source.offset)])
    compute(recorder, operation, bound)
    return INSTRUCTION


define("isa", "register_alloc", "x=", run=_alloc, reads="src", engines="sync")
define("isa", "register_move", "dst, src=, imm=", run=_move, engines="sync")
define("isa", "register_load", "dst, src", run=_load, reads="src", engines="sync")
define("isa", "register_store", "dst, src", writes="dst", engines="sync")
define("isa", "core_barrier", "data, cores, engine=, name=", run=_sync("barrier"), reads="data")
define(
    "isa",
    "sendrecv",
    "src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=, name=, use_gpsimd_dma=",
    run=_sync("sendrecv"),
    reads="src",
    writes="dst",
)

_COLLECTIVES = {
    "all_reduce": "srcs, dsts, replica_group, op, priority=, name=",
    "all_gather": "srcs, dsts, replica_group, collective_dim, priority=, name=",
    "all_gather_v": "srcs, dsts, replica_group, metadata_tensor, recv_counts_known=, has_rdispls=, priority=, name=",
    "reduce_scatter": "srcs, dsts, replica_group, collective_dim, op, priority=, name=",
    "all_to_all": "srcs, dsts, replica_group, collective_dim, priority=, name=",
    "all_to_all_v": "srcs, dsts, replica_group, metadata_tensor, recv_counts_known=, has_rdispls=, priority=, name=",
    "collective_permute": "srcs, dsts, source_target_pairs, priority=, name=",
    "collective_permute_implicit": "srcs_by_channel, dsts_by_channel, replica_group, channel_ids=, num_channels=, "
    "priority=, name=",
    "collective_permute_implicit_reduce": "srcs0_by_channel, srcs1_by_channel, dsts_by_channel, replica_group, op, "
    "channel_ids=, num_channels=, priority=, name=",
}
for _name, _text in _COLLECTIVES.items():
    define(
        "collectives",
        _name,
        _text,
        run=_sync("collective"),
        reads="srcs srcs_by_channel srcs0_by_channel srcs1_by_channel metadata_tensor",
        writes="dsts dsts_by_channel",
    )


def _register(recorder: Recorder, operation: Operation, bound: Bound) -> VirtualRegister:
    """A rank is known on the device only."""
    return VirtualRegister()


define("collectives", "rank_id", "name=", run=_register)
define(
    "collectives",
    "collective_permute_implicit_current_processing_rank_id",
    "iteration_id, replica_group, channel_id=, name=, num_channels=",
    run=_register,
)
