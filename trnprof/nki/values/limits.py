"""What the hardware takes: partitions, start partitions, PSUM banks, memories and types of each operand.

Rules and their sources: aws-neuron/aws-neuron-sdk nki/api/nki/isa (each instruction's "Memory types", "Tile size"),
nki/guides/architecture. A broken rule is an error with the user's line, since the compiler would refuse the kernel or the
device would compute something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnprof.nki.objects import PARTITIONS, PSUM_BANK_BYTES
from trnprof.nki.operations.table import Bound, Operation, op_name, tensors_in
from trnprof.nki.recording import Memory
from trnprof.nki.tensor import Tensor
from trnprof.nki.values.alu import is_bitwise
from trnprof.nki.values.kinds import is_integer

if TYPE_CHECKING:
    from trnprof.nki.recorder import Recorder

MATMUL_STATIONARY_COLUMNS = 128
MATMUL_MOVING_COLUMNS = 512
MATMUL_MOVING_BYTES_TRN3 = 16 * 1024
"""NeuronCore-v4 may fill all eight PSUM banks with one product."""
MATMUL_TYPES = frozenset(
    {"float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32"}
)


PARTITION_BYTES = {
    "trn1": {Memory.SBUF: 196_608, Memory.PSUM: 16_384},
    "trn2": {Memory.SBUF: 229_376, Memory.PSUM: 16_384},
    "trn3": {Memory.SBUF: 262_144, Memory.PSUM: 16_384},
}
"""As in trnprof/hardware (a test keeps them equal): reading its tables here would import much while a kernel runs."""


class HardwareLimitError(ValueError):
    """The instruction asks for what the hardware does not do."""

    reason = "hardware-limit"


class Limits:
    """Checks for one program."""

    def __init__(self, recorder: Recorder) -> None:
        self.target = recorder.target

    @property
    def is_trn3(self) -> bool:
        """Is it a NeuronCore-v4?"""
        return self.target == "trn3"

    def check_allocation(self, tensor: Tensor) -> Tensor:
        """A tensor that the kernel makes: its partitions, and its bytes of one partition (of one block of the first
        generation's). Returns the tensor. Raises HardwareLimitError."""
        storage = tensor.storage
        if storage.memory is Memory.HBM or not storage.shape:
            return tensor
        count = storage.shape[storage.partition_axis]
        if count > PARTITIONS:
            raise HardwareLimitError(
                f"{tensor.name!r} {storage.shape} in {storage.memory}: {count} partitions, and there are {PARTITIONS}; the "
                "first dimension runs over partitions, put more into the others"
            )
        size = storage.partition_elements * storage.dtype.itemsize // max(storage.block_count, 1)
        most = PARTITION_BYTES[self.target][storage.memory]
        if size > most:
            raise HardwareLimitError(
                f"{tensor.name!r} {storage.shape} {storage.dtype}: {size:,} B a partition, and {storage.memory} has {most:,} B; "
                "work on a part of the free dimensions at a time"
            )
        return tensor

    def check_operands(self, operation: Operation, bound: Bound, destination: Tensor) -> None:
        """Each operand on chip, at most 128 partitions from an allowed start, inside its partition."""
        if operation.module != "isa":
            return
        for name in operation.reads:
            for tensor in tensors_in(bound.get(name)):
                self.check_operand(operation.name, name, tensor)
        for name in operation.writes:
            if name != "dst":
                for tensor in tensors_in(bound.get(name)):
                    self.check_operand(operation.name, name, tensor)
        self.check_operand(operation.name, "dst", destination)

    def check_operand(self, instruction: str, name: str, tensor: Tensor) -> None:
        """Raises HardwareLimitError."""
        storage = tensor.storage
        if storage.memory is Memory.HBM:
            raise HardwareLimitError(
                f"{instruction} {name}: {tensor.name!r} is in HBM, which the engines do not reach; bring it to SBUF with a DMA"
            )
        self.check_inside_partition(instruction, name, tensor)
        count = tensor.shape[0] if tensor.shape else 1
        if count > PARTITIONS:
            raise HardwareLimitError(
                f"{instruction} {name}: {tensor.name!r} takes {count} partitions, and the engines have {PARTITIONS}; "
                "put more into the free dimensions"
            )
        start = self.start_partition(tensor)
        allowed = (0,) if count > 64 else (0, 64) if count > 32 else (0, 32, 64, 96)
        if start is not None and start not in allowed:
            raise HardwareLimitError(
                f"{instruction} {name}: {count} partitions of {tensor.name!r} from partition {start} on; an access of "
                f"{count} starts at {' or '.join(str(one) for one in allowed)}"
            )

    def check_inside_partition(self, instruction: str, name: str, tensor: Tensor) -> None:
        """A pattern's free dimensions must not run into the next partition's elements."""
        elements = self._partition_elements(tensor)
        offset = tensor.offset
        if not elements or tensor.offsets is not None or tensor.indirection is not None or not isinstance(offset, int):
            return
        reach = offset % elements
        for step, size in zip(tensor.strides, tensor.shape, strict=True):
            if size > 1 and step % elements:
                reach += max(step, 0) * (size - 1)
        if reach >= elements:
            raise HardwareLimitError(
                f"{instruction} {name}: the pattern {tensor.get_pattern()} at {offset} reaches element {reach} of a partition "
                f"of {tensor.name!r}, which has {elements}; patterns do not run on into the next partition"
            )

    def start_partition(self, tensor: Tensor) -> int | None:
        """The first partition of an access; None: only the run knows, or the compiler places the tensor."""
        elements = self._partition_elements(tensor)
        if not elements or tensor.offsets is not None or not isinstance(tensor.offset, int):
            return None
        placed = tensor.storage.address
        base = placed[0] if placed is not None else 0
        start = tensor.offset // elements
        if placed is None and tensor.storage.shape and tensor.storage.shape[tensor.storage.partition_axis] <= 32:
            return None if start == 0 else base + start
        return base + start

    @staticmethod
    def _partition_elements(tensor: Tensor) -> int:
        storage = tensor.storage
        elements = storage.partition_elements
        if elements and tensor.dtype.itemsize != storage.dtype.itemsize:
            elements = elements * storage.dtype.itemsize // tensor.dtype.itemsize
        return elements

    # Rules of single instructions

    def refuse(self, message: str) -> None:
        """Raises HardwareLimitError."""
        raise HardwareLimitError(message)

    def same_partitions(self, instruction: str, destination: Tensor, **operands: Any) -> None:
        """Lanes do not cross partitions: destination and operands have as many."""
        for name, tensor in operands.items():
            if type(tensor) is Tensor and tensor.shape[0] != destination.shape[0]:
                raise HardwareLimitError(
                    f"{instruction}: dst has {destination.shape[0]} partitions and {name} {tensor.shape[0]}; lanes do not "
                    "cross partitions (a transpose, a matmul or a shuffle does)"
                )

    def not_both_in_psum(self, instruction: str, first: Any, second: Any) -> None:
        """The vector engine reads one operand of two from PSUM."""
        both = [one for one in (first, second) if type(one) is Tensor and one.storage.memory is Memory.PSUM]
        if len(both) == 2:
            raise HardwareLimitError(
                f"{instruction}: {both[0].name!r} and {both[1].name!r} are both in PSUM; copy one of them to SBUF first"
            )

    def integers_for_bits(self, instruction: str, ops: tuple[Any, ...], *tensors: Any) -> bool:
        """Are the operators bitwise? Then all of them and all types must be."""
        names = [op_name(op) for op in ops if op is not None]
        bitwise = [is_bitwise(name) for name in names]
        if not any(bitwise):
            return False
        if not all(bitwise) and not all(
            name in ("bypass", "copy") or one for name, one in zip(names, bitwise, strict=True)
        ):
            raise HardwareLimitError(
                f"{instruction}: {' and '.join(names)} mix bitwise and arithmetic operators; one instruction does one kind"
            )
        for tensor in tensors:
            if type(tensor) is Tensor and not is_integer(tensor.dtype):
                raise HardwareLimitError(
                    f"{instruction}: {names[0]} works on bit patterns of integers, and {tensor.name!r} is {tensor.dtype}; "
                    "view it as an integer type"
                )
        return True

    def check_matmul(
        self, instruction: str, destination: Tensor, stationary: Tensor, moving: Tensor, rows: int
    ) -> None:
        """Memories, types and sizes of a product; rows: partitions that the contraction runs over."""
        for name, tensor, memory in (
            ("stationary", stationary, Memory.SBUF),
            ("moving", moving, Memory.SBUF),
            ("dst", destination, Memory.PSUM),
        ):
            if tensor.storage.memory is not memory:
                raise HardwareLimitError(
                    f"{instruction} {name}: {tensor.name!r} is in {tensor.storage.memory}; the tensor engine reads SBUF and "
                    "writes PSUM"
                )
        if stationary.shape[0] != moving.shape[0]:
            raise HardwareLimitError(
                f"{instruction} contracts {stationary.shape[0]} partitions of stationary with {moving.shape[0]} of moving; "
                "they must be as many"
            )
        columns = stationary.size // max(stationary.shape[0], 1) * stationary.shape[0] // max(rows, 1)
        if columns > MATMUL_STATIONARY_COLUMNS:
            raise HardwareLimitError(
                f"{instruction} stationary {stationary.shape}: {columns} columns; the array has {MATMUL_STATIONARY_COLUMNS}; "
                "multiply fewer at a time"
            )
        self.check_bank(instruction, destination)

    def check_bank(self, instruction: str, destination: Tensor) -> None:
        """A product fits one PSUM bank (all eight on NeuronCore-v4)."""
        size = destination.size // max(destination.shape[0], 1) * destination.dtype.itemsize
        most = MATMUL_MOVING_BYTES_TRN3 if self.is_trn3 else PSUM_BANK_BYTES
        if size > most:
            raise HardwareLimitError(
                f"{instruction} dst {destination.shape} {destination.dtype}: {size} B a partition; "
                f"{'PSUM has' if self.is_trn3 else 'a PSUM bank has'} {most} B ({most // 4} float32); multiply "
                "fewer columns of moving at a time"
            )

    def check_matmul_types(self, instruction: str, stationary: Tensor, moving: Tensor) -> None:
        """Float types; float32 only with float32."""
        for name, tensor in (("stationary", stationary), ("moving", moving)):
            if tensor.dtype not in MATMUL_TYPES:
                raise HardwareLimitError(
                    f"{instruction} {name}: {tensor.name!r} is {tensor.dtype}; the tensor engine multiplies "
                    f"{', '.join(sorted(MATMUL_TYPES))}"
                )
        wide = [tensor.dtype.itemsize == 4 for tensor in (stationary, moving)]
        if wide[0] != wide[1]:
            raise HardwareLimitError(
                f"{instruction}: stationary is {stationary.dtype} and moving {moving.dtype}; a 4-byte operand needs the other "
                "to be 4 bytes wide too"
            )
