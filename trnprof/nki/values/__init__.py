"""Values of NKI kernels on the CPU: every operation of the table as NumPy on the tensors that the front end records with.

One way in, one way out:

    with install_nki_modules():
        kernel = ...
        run = compute(kernel, [q, k, v])     # arrays in, run.outputs[0][0].array out

Module map
    run           compute(): programs with values; ValueRun
    world         what programs share: arguments, shared HBM, the schedule
    schedule      programs one at a time, switched only where one waits; deadlocks
    machine       one program's core: reading, rounding and writing tensors
    cells         a storage's elements and which of them nothing has written
    kinds         NKI types as NumPy dtypes, rounding, packed types
    alu           operators; activations: the scalar engine's functions; accumulators: its and the vector engine's registers
    limits        what the hardware takes of each operand
    registry      (module, name) -> function, and what has none
    elementwise, reductions, products, search, gathers, random, movement, language, creation, exchange
                  the functions, one file a family

Nothing here knows the time anything takes; trnprof.nki.timing does.
"""

from __future__ import annotations

from trnprof.nki.values import (
    creation,
    elementwise,
    exchange,
    gathers,
    language,
    movement,
    products,
    random,
    reductions,
    search,
)

FAMILIES = (creation, elementwise, exchange, gathers, language, movement, products, random, reductions, search)
"""Importing them fills the registry."""
