"""What an instruction does, as far as its cost depends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One instruction's size and operands: equal works cost the same."""

    instruction: str
    """A name in instruction_costs.toml."""
    elements: int = 0
    """Elements per partition: of the widest operand; of a matmul's moving operand."""
    partitions: int = 0
    rows: int = 0
    """Columns of a matmul's stationary operand, which are rows of the result; the free size of a transpose's input."""
    passes_fp32: bool = False
    """A matmul of 4-byte operands: several passes."""
    itemsize: int = 4
    """Bytes of the widest element among the operands."""
    in_psum: bool = False
    """Is any operand in PSUM?"""
    contiguous: bool = True
    """Do all operands run through their partition without a gap?"""
    wide_stride: bool = False
    """Is an innermost stride above 16 bytes?"""
    pointer: bool = False
    """Has it an operand with one value per partition?"""
    groups: int = 1
    """Of local_gather: elements an index fetches; of topk: results."""

    def operand_class(self) -> str:
        """Which of the fast modes its operands allow: sbuf_16bit, strided_16bit, psum_16bit, sbuf_32bit or other."""
        if self.itemsize <= 2:
            if self.in_psum:
                return "psum_16bit" if self.contiguous else "other"
            return "sbuf_16bit" if self.contiguous else "strided_16bit"
        return "sbuf_32bit" if not self.in_psum and self.contiguous else "other"
