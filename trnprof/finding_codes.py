"""Stable codes of what a capture shows to hold a step back.

One registry: the analyzer, the command line and docs/codes.md read it, and a test keeps the page in step. Codes are never
reused. DMA001 is also what `trnprof dma-predict` says of a kernel's source that will have such packets.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.findings import Finding

_UNCOVERED = (
    "at most the time in which only data moves or an engine waits for a DMA: what other work covers, nothing wins"
)


@dataclass(frozen=True)
class FindingCode:
    """What a code means."""

    code: str
    title: str
    cause: str
    threshold: str
    """When it is raised, in shares of the core's window."""
    cost: str
    """What its cost_ns is."""
    ceiling: str
    """What its ceiling_ns is: no change of this kind alone can save more. Never a promised gain."""
    advice: str


_CODES = (
    FindingCode(
        "DMA001",
        "DMA packets under 512 B",
        "Every packet costs about 8 ns beside its bytes and every transfer about 0.9 us however small, so small packets "
        "leave most of the bandwidth unused.",
        "packets under 512 B are a quarter of the data packets, or of the data time, and hold 2 % of the window",
        "data time charged to packets under 512 B",
        "that time less what the same bytes take at the DMA engines' plateau; " + _UNCOVERED,
        "make the contiguous run longer: load more of the free dimension at once, or lay the tensor out so that a "
        "partition's data is contiguous; 2 KiB a partition is the knee, 4 KiB saturates",
    ),
    FindingCode(
        "DMA020",
        "few DMA engines carry the data",
        "Each of the 16 DMA engines serves 8 partitions: a transfer that touches few partitions leaves engines idle.",
        "the busiest engine carries more than twice its even share, and that costs 2 % of the window",
        "busy time of the busiest DMA engine beyond an even share of all engines' time",
        _UNCOVERED,
        "spread transfers over 128 partitions (fold part of the free dimension into the partition dimension), and over "
        "several queues",
    ),
    FindingCode(
        "DMA021",
        "DMA packets slower than their size explains",
        "Packets take much longer than 8 ns + bytes ÷ 27.2 B/ns: strided or transposing descriptors, casts, or many "
        "queues on one HBM stack.",
        "packets hold their engines for more than twice what the packet law gives, and that costs 5 % of the window",
        "the share of data time that is beyond the packet law",
        _UNCOVERED,
        "look at the slow queue (`trnprof breakdown FILE --by queue`): transpose on the tensor engine instead of by DMA, cast on "
        "an engine, or make the HBM side contiguous",
    ),
    FindingCode(
        "HBM001",
        "spills",
        "Intermediate tensors did not fit the SBUF: they are saved to HBM and read back.",
        "spilled bytes are 5 % of the HBM traffic, and moving them takes 1 % of the window",
        "spilled bytes (saves and reloads) ÷ the bandwidth used",
        _UNCOVERED,
        "shorten the lives of large tiles: smaller tiles, another loop order, or recompute; compare with --scope, since the "
        "compiler may spill elsewhere after a change",
    ),
    FindingCode(
        "HBM002",
        "more bytes move than the program needs",
        "HBM traffic is far above the size of inputs, weights and outputs: tensors are loaded again, or intermediate "
        "results go through HBM.",
        "bytes moved are 1.5 times the needed bytes, and the excess takes 2 % of the window",
        "the core's share of the excess bytes ÷ the bandwidth used; spills are not counted again",
        _UNCOVERED,
        "keep what is used again in SBUF: block the loops so that a loaded tile serves more of them, fuse the operations around "
        "an intermediate result",
    ),
    FindingCode(
        "HBM003",
        "kernels hand over through HBM",
        "Each kernel call writes its outputs to HBM and the next one reads them back.",
        "round trips between kernels take 2 % of the window",
        "bytes written by one kernel and read back by another, both ways, ÷ the bandwidth used",
        _UNCOVERED,
        "fuse the producer with its consumer so that the tensor stays in SBUF; judge it on the whole step",
    ),
    FindingCode(
        "LNC001",
        "the pair is out of balance",
        "One physical core of the logical core works longer than the other.",
        "the cores' work differs by more than a fifth, and by 4 % of the window",
        "the difference of the two cores' work",
        "half of it: what an even split takes off the longer one",
        "split the work evenly over program_id(0): the same loops, tiles and collectives in both programs",
    ),
    FindingCode(
        "LNC002",
        "one core of the pair has almost no work",
        "The program runs on one physical core of the logical core; the other waits for it.",
        "a core works less than a tenth of what its partner does",
        "the work of the busy core that the other does not share",
        "half of the busy core's work; streams from HBM gain less (a core alone streams 340-400 GB/s, a pair 672-708)",
        "launch the kernel on a grid of two (LNC 2) and split its work, or run with NEURON_LOGICAL_NC_CONFIG=1",
    ),
    FindingCode(
        "CC001",
        "exposed collectives",
        "Collectives run while the core has nothing else to do.",
        "collective time without work under it is 2 % of the window",
        "that time",
        "all of it: hidden collectives cost nothing",
        "move work that does not need the result under the collective (inside the kernel where the graph cannot), merge "
        "small collectives, or send fewer bytes",
    ),
    FindingCode(
        "CC002",
        "collectives wait for a late rank",
        "Some calls take several times the median of their operation: one rank came late, or the network was busy.",
        "calls of twice the median and more exceed it by 1 % of the window in all",
        "time beyond the operation's median in those calls",
        "that time, as far as it is exposed",
        "compare the ranks: capture all of them and analyse their folder; look for uneven work before the collective",
    ),
    FindingCode(
        "VEC001",
        "chains of short vector instructions",
        "Each instruction pays a fixed cost (64 cycles, and about 153 ns in a dependent chain on trn2) however little it does.",
        "half of the vector engine's instructions are shorter than 200 ns, and their fixed cost is 5 % of the window",
        "time in vector instructions under 200 ns",
        "their fixed cost at its upper end; at most the time in which only the vector engine works",
        "do more per instruction: wider tiles, two-operation forms (tensor_scalar, scalar_tensor_tensor), all rows at once, "
        "or move part of the chain to the scalar engine",
    ),
    FindingCode(
        "ACT001",
        "chains of short scalar-engine instructions",
        "Each instruction pays a fixed cost (64 cycles and more in a dependent chain) however little it does.",
        "half of the scalar engine's instructions are shorter than 200 ns, and their fixed cost is 5 % of the window",
        "time in scalar-engine instructions under 200 ns",
        "their fixed cost at its upper end; at most the time in which only the scalar engine works",
        "do more per instruction: activation fuses scale, bias and function; wider tiles; activation_reduce for row sums",
    ),
    FindingCode(
        "GPS001",
        "the GpSimd engine works alone",
        "GpSimd runs while every other engine and all data movement stand still.",
        "that is 5 % of the window",
        "that time",
        "all of it",
        "move the operation to the vector or scalar engine where a form exists, or run it beside other work",
    ),
    FindingCode(
        "PE001",
        "the tensor engine is underfilled",
        "The tensor engine is active far longer than its FLOPs need: small tiles, skinny matmuls, or late operands.",
        "active for 20 % of the window at less than a third of the bf16 peak",
        "active time beyond FLOPs ÷ peak (fp32 matmuls need four passes: a quarter of the peak is their best)",
        "that time; at most the time in which only the tensor engine works",
        "fill the array: 128 rows and columns, 512 moving columns, bf16 where accuracy allows; keep matmuls back to back",
    ),
    FindingCode(
        "PE002",
        "transposes on the tensor engine",
        "Matmuls that only transpose take the tensor engine's time.",
        "transposes are 10 % of the hardware FLOPs, and their share of the active time is 2 % of the window",
        "the tensor engine's active time x the transposes' share of the FLOPs",
        "that time; at most the time in which only the tensor engine works",
        "store weights in the layout that the matmul wants, swap stationary and moving operands, or fold the transpose into "
        "the load",
    ),
    FindingCode(
        "THR001",
        "the tensor engine is throttled",
        "The chip held the tensor engine below full rate while it was active.",
        "active time under a limit, x what the limit takes away, is 2 % of the window",
        "that product",
        "the same: at full rate this work would have been done in as much less time, if the limit bound it throughout",
        "keep the tensor engine above half its rate (a gap of about 3 us re-arms the ramp limit): batch matmuls together",
    ),
    FindingCode(
        "WAIT001",
        "engines wait for DMA",
        "Nothing runs, and the wait that ends next is for a DMA.",
        "such waits are 2 % of the window",
        "in-kernel waits that a DMA ended",
        "all of it",
        "start loads earlier (prefetch the next tile, double buffer), use more queues, or make the transfer cheaper",
    ),
    FindingCode(
        "WAIT002",
        "engines wait for each other",
        "Nothing runs but the hand-off between engines: a chain of dependent instructions crosses from one to the next.",
        "such waits are 2 % of the window",
        "in-kernel waits that another engine of the core, or a barrier of them, ended",
        "all of it",
        "keep a dependent chain on one engine, interleave independent tiles, or drop barriers that nothing needs",
    ),
    FindingCode(
        "WAIT003",
        "engines wait for another core, the host or the runtime",
        "Nothing runs until a signal comes from outside the core: a core barrier, the other program of the pair, the host.",
        "such waits are 2 % of the window",
        "in-kernel waits that ended from outside the core",
        "all of it",
        "exchange less between the two programs of a pair, and barrier only where one reads what the other wrote",
    ),
    FindingCode(
        "WAIT004",
        "waits of unknown origin",
        "Nothing runs, and the capture does not say what the engines wait for.",
        "such waits are 2 % of the window",
        "in-kernel waits that no producer could be found for, and time in an open kernel without a blocked engine",
        "all of it",
        "put the NEFF beside the capture (--neff), and capture semaphores too",
    ),
    FindingCode(
        "PIPE001",
        "data movement and compute take turns",
        "The core computes, then loads, then computes: little of either is under the other.",
        "both take 10 % of the window, and less than half of the shorter one is under the other",
        "the shorter of data-only and compute-only time",
        "the same",
        "double buffer: load the next tile while this one is worked on",
    ),
    FindingCode(
        "IDLE001",
        "the core is idle inside the step",
        "No engine runs or waits, no data moves, no collective runs: the host or another executable has the turn.",
        "idle time is 5 % of the window",
        "idle time of the body",
        "all of it",
        "look at the longest gaps: launch the next executable earlier, or join the executables into one",
    ),
    FindingCode(
        "RUN001",
        "runtime overhead around the step",
        "The window before the compiler's first instruction and after its last one.",
        "it is 10 % of the window",
        "runtime overhead",
        "all of it, were the execution longer: the overhead is fixed per execution (about 13 us of a small kernel)",
        "do more in one execution (several steps or layers in one NEFF); a first execution also loads libraries",
    ),
)

FINDING_CODES: dict[str, FindingCode] = {entry.code: entry for entry in _CODES}


def finding(
    code: str, *, cost_ns: int | None, ceiling_ns: int | None, window_ns: int, evidence: dict[str, object]
) -> Finding:
    """The finding `code` with its evidence; the share is the cost's of the window."""
    known = FINDING_CODES[code]
    return Finding(
        code=code,
        title=known.title,
        cost_ns=cost_ns,
        share=None if cost_ns is None or window_ns <= 0 else round(cost_ns / window_ns, 6),
        evidence=evidence,
        advice=known.advice,
        ceiling_ns=ceiling_ns,
    )
