"""Stable codes of what a kernel's source does that costs DMA time (DMA...) or goes wrong on the device (HAZ...).

One registry: the analyzer, the command line and docs/codes.md read it, and a test keeps the page in step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HazardCode:
    """What a code means."""

    code: str
    title: str
    cause: str
    evidence: str
    """What the finding shows for it."""
    advice: str
    source: str
    """Where the rule comes from; what only a device can show is marked unverified."""


_SMALL = "packet law of real trn2 profiles (8 ns + bytes/27.2 a packet); nki-dma-bandwidth-guide"

_CODES = (
    HazardCode(
        "DMA001",
        "elements under 512 B",
        "Each contiguous run is a descriptor of its own, and every packet costs about 8 ns beside its bytes.",
        "descriptors, element bytes, and the time that the same bytes would take in 4 KiB elements",
        "make the contiguous run longer: load more of the free dimension at once, or lay the tensor out so that a partition's data is contiguous; 4 KiB a partition saturates",
        _SMALL,
    ),
    HazardCode(
        "DMA002",
        "fewer than 128 partitions",
        "Each of the 16 DMA engines serves 8 partitions; partitions that are not touched leave engines idle.",
        "partitions and engines in use, and the time on all 16",
        "spread the transfer over 128 partitions (fold part of the free dimension into the partition dimension)",
        "trainium_inferentia2_arch, nki-dma-overview (one engine busy with [4,4096])",
    ),
    HazardCode(
        "DMA003",
        "strided rows",
        "The HBM side is not contiguous where one descriptor a partition would do, so descriptors multiply.",
        "descriptors per partition and the bytes of each",
        "load the whole contiguous row and take the strided part on chip (or change the layout in HBM)",
        "nki-dma.md section 2.2 rules 1 and 2; real packets",
    ),
    HazardCode(
        "DMA004",
        "cast during a DMA",
        "The sides' element types differ: packets take about 1.5 times as long and are never merged.",
        "the element types and the time of the same DMA without the cast",
        "copy in one type and cast on an engine, where a compute instruction touches the data anyway",
        "real trn2 profiles: 512 to 256 B packets of 40 ns against 27 ns",
    ),
    HazardCode(
        "DMA005",
        "transpose by DMA",
        "Elements are placed one by one: at best 0.9 of the copy rate from HBM and 0.5 from SBUF, often far below.",
        "bytes and the time of a plain copy",
        "load untransposed and transpose on the tensor engine (nc_transpose), or store the tensor transposed",
        "trainium2_arch, DMA transpose; unverified on device here",
    ),
    HazardCode(
        "DMA006",
        "the same bytes loaded again",
        "A tensor's bytes are read from HBM more than once.",
        "bytes read, distinct bytes, factor; the cost is that of the repeated bytes alone",
        "hoist the load out of the loop, or block the loops so that a loaded tile serves more of them; the compiler removes some of it by itself",
        "published 4096^3 matmuls: 1,208 MB as tiled, 201 MB blocked",
    ),
    HazardCode(
        "DMA007",
        "ragged tail",
        "The last tile of a loop has another shape than the others: one more instruction shape, and idle engines in it.",
        "the shapes and how often each occurs; what padding to full tiles would add in bytes",
        "pad the tensor to full tiles if the regular loop is worth the bytes: bytes go up, shapes go from 2 to 1",
        "seed 002 (Makora): 3088 to 3200 rows",
    ),
    HazardCode(
        "DMA008",
        "static descriptors: large rings",
        "Without descriptor generation on the device every descriptor lies in an HBM ring that is built at load time.",
        "descriptors that a static ring would hold",
        "use a DGE mode (dge_mode=nisa.dge_mode.hwdge) or coalesce the copies into larger ones",
        "aws-neuron-sdk#980 (queue size 16777216 too large), #776",
    ),
    HazardCode(
        "DMA009",
        "boundary traffic",
        "A kernel's inputs and outputs pass through HBM, which a fused producer or consumer would not pay.",
        "bytes of inputs read and outputs written",
        "judge the kernel on the whole step, and fuse its neighbours where the boundary outweighs its gain",
        "nki-samples#59, #72",
    ),
    HazardCode(
        "DMA010",
        "small data-dependent transfers",
        "Descriptors are generated on the device from indices or registers, one small element each.",
        "transfers, bytes, average, and the loop's line",
        "coalesce to 4 KiB or more: gather whole rows, sort or block the indices",
        "aws-neuron docs, 'Small DMA transfers'",
    ),
    HazardCode(
        "DMA011",
        "broadcast over partitions from HBM",
        "One HBM row is written to many partitions by a DMA with a zero stride; such a kernel has failed to compile.",
        "distinct bytes and bytes moved",
        "load one row and broadcast on chip (a matmul with ones, or a partition broadcast instruction)",
        "kda-for-trainium mamba_v3b; unverified on device here",
    ),
    HazardCode(
        "DMA012",
        "a call that is not modelled",
        "The operation table does not have this call: its bytes and time are in no sum.",
        "the call, its line, how often it runs, and the tensors it gets",
        "report it; until then add its traffic by hand",
        "trnprof",
    ),
    HazardCode(
        "DMA013",
        "elements from 512 B to under 2 KiB",
        "Below 2 KiB a partition a single stream reaches a part of the bandwidth only.",
        "descriptors and element bytes",
        "2 KiB a partition is the recommended minimum and 4 KiB saturates: load more of the free dimension at once",
        _SMALL,
    ),
    HazardCode(
        "DMA014",
        "an intermediate goes through HBM",
        "The kernel writes a tensor of its own to HBM and reads it back.",
        "the tensor, bytes written and read back",
        "keep it in SBUF between the phases (fuse the loops, or tile so that a phase's result fits)",
        "allenkchau/trainium-kernel-fusion: baseline against fused attention, 66 against 15 us of DMA",
    ),
    HazardCode(
        "HAZ001",
        "element types differ under hardware DGE",
        "Hardware descriptor generation copies bytes: source and destination need one element type.",
        "the line and both types",
        "cast on an engine after the copy, or use dge_mode swdge",
        "nki migration notes; unverified on device here",
    ),
    HazardCode(
        "HAZ002",
        "two accumulation groups in one PSUM tile",
        "Matmuls accumulate into two slices of one PSUM bank in turns: the simulator passes, and the device's result has been seen wrong (relative error 0.79 to 1.0).",
        "the tile and the lines of both groups",
        "give each accumulation group a PSUM tile of its own",
        "seed 004 (aws-neuron-sdk#1405); unverified on device here",
    ),
    HazardCode(
        "HAZ003",
        "in-kernel collective without a fence",
        "Nothing orders a DMA write into a buffer before a collective that reads it.",
        "the write's line and the collective's line",
        "put a core barrier between the write and the collective",
        "seed 004: 3 to 7 thousand of 16 thousand elements wrong; unverified on device here",
    ),
    HazardCode(
        "HAZ004",
        "programs of a pair diverge",
        "Both programs of a logical core must emit the same loops, collectives and barriers; a barrier of one alone does not compile or hangs.",
        "the first collective or barrier that the other program does not have",
        "take barriers and collectives out of branches on program_id; branch on the data only",
        "aws-neuron-sdk#1298, #1352; seed 004",
    ),
    HazardCode(
        "HAZ005",
        "exchange between a pair's programs through shared HBM",
        "One program reads what the other wrote to shared HBM from on-chip memory: slow, and wrong on the device even after a barrier.",
        "the tensor, and the lines that write and read it",
        "split the work so that the programs exchange nothing, or use sendrecv",
        "seed 004: about a third of a call; unverified on device here",
    ),
    HazardCode(
        "HAZ006",
        "SBUF overflow",
        "More bytes of a partition are live at once than it has.",
        "peak and capacity",
        "smaller tiles, fewer buffers, or shorter lifetimes; counted as written, where the compiler may reuse a tensor's blocks sooner",
        "hardware table",
    ),
    HazardCode(
        "HAZ007",
        "PSUM overflow",
        "More bytes of a PSUM partition are live at once than it has (16 KiB, 8 banks of 2 KiB).",
        "peak and capacity",
        "copy results out of PSUM sooner, or use fewer accumulators; counted as written, where the compiler may reuse a tensor's blocks sooner",
        "hardware table",
    ),
    HazardCode(
        "HAZ008",
        "an output is not written everywhere",
        "The kernel returns a tensor of which some bytes are never written: a tail that no tile covers, say.",
        "bytes written at least once, and the tensor's size",
        "cover the rest (a smaller last tile, or a mask), or check that the tile divides the shape",
        "arithmetic on the recorded addresses",
    ),
    HazardCode(
        "HAZ009",
        "a limit is broken",
        "A slice reaches out of its tensor, shapes do not fit together, or a tile is larger than the engine takes.",
        "the line and the limit",
        "correct the shape or the tile size; the compiler rejects it, or the device reads and writes elsewhere",
        "the language's documented limits",
    ),
)

BREAKS = frozenset({"HAZ006", "HAZ007", "HAZ008", "HAZ009"})
"""Findings that make a tiling infeasible."""

HAZARD_CODES: dict[str, HazardCode] = {entry.code: entry for entry in _CODES}
"""Every code, in the order of the documentation."""
