"""The operation table, one file a family; importing the package fills it."""

from __future__ import annotations

from trnprof.nki.operations import assignment, compute, creation, dma, language, sync, table

ALL = table.TABLE
"""(module, name) -> Operation, complete."""

__all__ = ["ALL", "assignment", "compute", "creation", "dma", "language", "sync", "table"]
