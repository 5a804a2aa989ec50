"""What passes between programs: barriers and exchanges of a pair, collectives between ranks, registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.operations.table import INSTRUCTION, Bound, Operation, op_name, tensors_in
from trnprof.nki.recording import Memory
from trnprof.nki.registers import VirtualRegister
from trnprof.nki.values import alu, kinds
from trnprof.nki.values.limits import HardwareLimitError
from trnprof.nki.values.machine import Machine, ShapeMismatchError
from trnprof.nki.values.registry import evaluation


@evaluation("isa", "core_barrier")
def core_barrier(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """Go on once every program of the pair is here."""
    world, rank, program = machine.world, machine.rank, machine.program
    members = {other for at, other in world.machines if at == rank}
    if members == {program}:
        machine.note("barrier-alone", "core_barrier in a launch of one program: nothing waits (launch with --lnc 2)")
        return INSTRUCTION
    passed = world.barriers[rank]
    world.arrived[rank].add(program)
    if world.arrived[rank] >= members:
        world.arrived[rank].clear()
        world.barriers[rank] += 1
    world.schedule.wait(lambda: world.barriers[rank] > passed, "core_barrier", machine.recorder.site())
    return INSTRUCTION


@evaluation("isa", "sendrecv")
def sendrecv(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """The source goes out now; the destination is filled, at the latest, when something uses it."""
    world, rank, own = machine.world, machine.rank, machine.program
    src, dst = bound["src"], bound["dst"]
    if src.dtype != dst.dtype or src.size != dst.size:
        raise ShapeMismatchError(
            f"sendrecv: src is {src.shape} {src.dtype} and dst {dst.shape} {dst.dtype}; both must have one shape and type"
        )
    for name, tensor in (("src", src), ("dst", dst)):
        if tensor.storage.memory is not Memory.SBUF:
            raise HardwareLimitError(
                f"sendrecv {name}: {tensor.name!r} is in {tensor.storage.memory}; both must be in SBUF"
            )
    pipe = bound.get("pipe_id")
    target, origin = machine.integer(bound["send_to_rank"]), machine.integer(bound["recv_from_rank"])
    world.mail[rank, pipe, own, target].append(np.array(machine.bits(src)))
    box = (rank, pipe, origin, own)
    turn = world.received[box]
    world.received[box] += 1
    site = machine.recorder.site()

    def receive() -> None:
        world.schedule.wait(lambda: len(world.mail[box]) > turn, f"sendrecv from program {origin} (pipe {pipe})", site)
        sent, world.mail[box][turn] = world.mail[box][turn], np.empty(0)
        machine.put(dst, machine.fitted(sent, dst.shape))

    machine.receive_later(dst, receive)
    return INSTRUCTION


# Registers


@evaluation("isa", "register_alloc")
def register_alloc(machine: Machine, operation: Operation, bound: Bound) -> VirtualRegister:
    value = bound.get("x")
    return VirtualRegister(None if value is None else machine.integer(value))


@evaluation("isa", "register_move")
def register_move(machine: Machine, operation: Operation, bound: Bound) -> Any:
    bound["dst"].value = machine.integer(bound.get("src", bound.get("imm")))
    return INSTRUCTION


@evaluation("isa", "register_load")
def register_load(machine: Machine, operation: Operation, bound: Bound) -> Any:
    bound["dst"].value = machine.integer(bound["src"])
    return INSTRUCTION


@evaluation("isa", "register_store")
def register_store(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dst = bound["dst"]
    value = machine.integer(bound["src"])
    machine.put(dst, np.full((1,) * dst.ndim, value, np.int64).astype(kinds.NUMPY[dst.dtype]))
    return INSTRUCTION


@evaluation("collectives", "rank_id")
def rank_id(machine: Machine, operation: Operation, bound: Bound) -> VirtualRegister:
    return VirtualRegister(machine.rank)


@evaluation("collectives", "collective_permute_implicit_current_processing_rank_id")
def processing_rank(machine: Machine, operation: Operation, bound: Bound) -> VirtualRegister:
    """Whose data a ring step processes: the own rank's first, then its predecessors'."""
    group = _group(machine, bound, operation.name)
    place = group.index(machine.rank) - machine.integer(bound["iteration_id"])
    return VirtualRegister(group[place % len(group)])


# Collectives


def _group(machine: Machine, bound: Bound, name: str) -> list[int]:
    """The ranks that take part together with this one."""
    given = bound.get("replica_group")
    groups = getattr(given, "groups", given)
    if groups is None:
        return list(range(machine.world.ranks))
    groups = [[int(rank) for rank in group] if isinstance(group, list | tuple) else [int(group)] for group in groups]
    if all(len(group) == 1 for group in groups) and len(groups) > 1:  # a plain list of ranks
        groups = [[group[0] for group in groups]]
    own = next((group for group in groups if machine.rank in group), None)
    if own is None:
        raise HardwareLimitError(f"{name}: rank {machine.rank} is in none of the replica groups {groups}")
    if max(own) >= machine.world.ranks:
        raise HardwareLimitError(
            f"{name} among ranks {own}, and {machine.world.ranks} are simulated; run with --ranks {max(own) + 1} or more"
        )
    return own


def _meet(machine: Machine, operation: Operation, group: list[int], given: Any) -> dict[tuple[int, int], Any] | None:
    """Wait until every program of the group's ranks issues its collective of this number; what they gave, to the last one
    that arrives; None to the others, after that one has done the work."""
    world = machine.world
    own = (machine.rank, machine.program)
    key = _next_call(machine, group)
    number = key[1]
    members = {place for place in world.machines if place[0] in group}
    here = world.collectives[key]
    here[own] = (operation.name, given)
    names = {name for name, _ in here.values()}
    if len(names) > 1:
        raise HardwareLimitError(
            f"collective {number} of ranks {group}: some programs issue {' and others '.join(sorted(names))}"
        )
    if set(here) >= members:
        return {place: operands for place, (_, operands) in world.collectives.pop(key).items()}
    world.schedule.wait(lambda: key in world.finished, f"{operation.name} among ranks {group}", machine.recorder.site())
    return None


def _next_call(machine: Machine, group: list[int]) -> tuple[tuple[int, ...], int]:
    """(group, number of this program's call among its calls in that group)."""
    members = tuple(sorted(group))
    calls = machine.world.collective_calls
    calls[machine.rank, machine.program, members] += 1
    return members, calls[machine.rank, machine.program, members] - 1


def _finish(machine: Machine, group: list[int]) -> None:
    members = tuple(sorted(group))
    number = machine.world.collective_calls[machine.rank, machine.program, members] - 1
    machine.world.finished.add((members, number))


def _collective(machine: Machine, operation: Operation, bound: Bound, work: Any) -> Any:
    """Meet, compute every destination from copies of every source, deliver.

    Elements are moved as they are held; what is to be reduced is widened first (integers stay integers).
    """
    group = _group(machine, bound, operation.name)
    sources = tensors_in(bound.get("srcs", bound.get("srcs_by_channel", bound.get("srcs0_by_channel"))))
    targets = tensors_in(bound.get("dsts", bound.get("dsts_by_channel")))
    seconds = tensors_in(bound.get("srcs1_by_channel"))
    reduces = bound.get("op") is not None
    given = [_operand(machine, tensor, reduces) for tensor in sources]
    if seconds:
        name = op_name(bound["op"])
        given = [
            _combined(name, one, _operand(machine, other, True)) for one, other in zip(given, seconds, strict=True)
        ]
    met = _meet(machine, operation, group, (machine, given, targets))
    if met is not None:
        results = []
        for (rank, program), (_, _, dsts) in met.items():
            for at, dst in enumerate(dsts):
                parts = {other: met[other, program][1][at] for other in group if (other, program) in met}
                results.append((rank, program, dst, work(parts, group, rank)))
        for rank, program, dst, value in results:
            if value is not None:
                _deliver(met[rank, program][0], dst, value, reduces)
        _finish(machine, group)
    return INSTRUCTION


def _operand(machine: Machine, tensor: Any, reduces: bool) -> np.ndarray:
    values = np.array(machine.bits(tensor))
    return machine.widened(values, tensor.dtype) if reduces and not kinds.is_integer(tensor.dtype) else values


def _deliver(machine: Machine, dst: Any, value: np.ndarray, reduces: bool) -> None:
    fitted = machine.fitted(value, dst.shape)
    if value.dtype == kinds.NUMPY[dst.dtype] or (dst.dtype in kinds.PACKED and not reduces):
        machine.put(dst, fitted)
    else:
        machine.write(dst, fitted.astype(machine.work, copy=False))


def _combined(name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype.kind in "iu":
        return np.asarray(alu.apply_integers(name, left, right, left.dtype))
    return np.asarray(alu.apply(name, left, right))


@evaluation("collectives", "all_reduce")
def all_reduce(machine: Machine, operation: Operation, bound: Bound) -> Any:
    name = op_name(bound["op"])
    return _collective(machine, operation, bound, lambda parts, group, rank: _folded(name, parts, group))


def _folded(name: str, parts: dict[int, np.ndarray], group: list[int]) -> np.ndarray:
    total = parts[group[0]]
    for rank in group[1:]:
        total = _combined(name, total, parts[rank])
    return total


@evaluation("collectives", "all_gather")
def all_gather(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dim = machine.integer(bound.get("collective_dim") or 0)
    return _collective(
        machine, operation, bound, lambda parts, group, rank: np.concatenate([parts[one] for one in group], axis=dim)
    )


def _chunk(values: np.ndarray, group: list[int], rank: int, dim: int) -> np.ndarray:
    if values.shape[dim] % len(group):
        raise ShapeMismatchError(f"{values.shape} does not split into {len(group)} along dimension {dim}")
    return np.split(values, len(group), axis=dim)[group.index(rank)]


@evaluation("collectives", "reduce_scatter")
def reduce_scatter(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dim, name = machine.integer(bound.get("collective_dim") or 0), op_name(bound["op"])
    return _collective(
        machine, operation, bound, lambda parts, group, rank: _chunk(_folded(name, parts, group), group, rank, dim)
    )


@evaluation("collectives", "all_to_all")
def all_to_all(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dim = machine.integer(bound.get("collective_dim") or 0)
    return _collective(
        machine,
        operation,
        bound,
        lambda parts, group, rank: np.concatenate([_chunk(parts[one], group, rank, dim) for one in group], axis=dim),
    )


@evaluation("collectives", "collective_permute")
def collective_permute(machine: Machine, operation: Operation, bound: Bound) -> Any:
    pairs = {int(target): int(source) for source, target in bound["source_target_pairs"]}
    return _collective(
        machine, operation, bound, lambda parts, group, rank: parts[pairs[rank]] if rank in pairs else None
    )


@evaluation("collectives", "collective_permute_implicit", "collective_permute_implicit_reduce")
def collective_permute_implicit(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """Each rank receives from its predecessor in the ring."""
    return _collective(
        machine,
        operation,
        bound,
        lambda parts, group, rank: parts[group[(group.index(rank) - 1) % len(group)]],
    )


@evaluation("collectives", "all_gather_v", "all_to_all_v")
def variable(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """Chunks of lengths that the metadata tensor holds: rows send counts, send places, receive counts, receive places."""
    group = _group(machine, bound, operation.name)
    src, dst, table = tensors_in(bound["srcs"])[0], tensors_in(bound["dsts"])[0], bound["metadata_tensor"]
    rows = machine.bits(table).astype(np.int64).reshape(-1, len(group))
    same = operation.name == "all_gather_v"
    given = (machine, np.array(machine.bits(src)).reshape(-1), dst, table, rows)
    met = _meet(machine, operation, group, given)
    if met is None:
        return INSTRUCTION
    for (rank, program), (owner, _, target, metadata, own) in met.items():
        place = group.index(rank)
        flat = np.array(owner.bits(target)).reshape(-1)
        received = []
        for at, other in enumerate(group):
            _, sent, _, _, theirs = met[other, program]
            column = 0 if same else place
            count, start = int(theirs[0, column]), int(theirs[1, column])
            first = int(own[3, at]) if bound.get("has_rdispls") else flat.size // len(group) * at
            if start + count > sent.size or first + count > flat.size:
                raise IndexError(
                    f"{operation.name}: {count} elements from {start} of rank {other} to {first} of rank {rank} do not fit"
                )
            flat[first : first + count] = sent[start : start + count]
            received.append(count)
        owner.put(target, flat.reshape(target.shape))
        if not bound.get("recv_counts_known"):
            updated = own.copy()
            updated[2] = received
            owner.put(metadata, updated.astype(kinds.NUMPY[metadata.dtype]).reshape(metadata.shape))
    _finish(machine, group)
    return INSTRUCTION
