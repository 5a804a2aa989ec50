"""How the outcomes of a public checkout are counted and printed; rows made by hand."""

from __future__ import annotations

from typing import Any

from tests.nki.agreement import NoInputsError, capped, counted, is_too_large, table


def row(kernel: str, status: str, reason: str = "", **more: Any) -> dict[str, Any]:
    return {"kernel": kernel, "case": "", "status": status, "reason": reason, **more}


ROWS = [
    row("a.one", "agrees", figures={"out": 0.1}),
    row("a.one", "no inputs", "refused"),
    row("a.two", "agrees", figures={"reads memory that nothing wrote": 1.0}, cut=["T 4096 to 128"]),
    row("a.two", "differs", "worst | 0.3"),
    row("a.two", "unfinished", "TimeoutError: out of time"),
    row("a.three", "unfinished", "MemoryError: too much"),
    row("a.four", "no inputs", "no torch"),
]


def test_what_counts() -> None:
    """Cases without inputs never; unfinished ones only where a kernel has nothing else."""
    found = {name: [case["status"] for case in cases] for name, cases in counted(ROWS).items() if cases}
    assert found == {"a.one": ["agrees"], "a.two": ["agrees", "differs"], "a.three": ["unfinished"]}


def test_table() -> None:
    assert table(ROWS).splitlines()[2:] == [
        "| a.one | 1 | 1 |  |  |",
        "| a.three | 0 | 0 | 1 | MemoryError: too much |",
        "| a.two | 2 | 1 | 1 | worst \\| 0.3; reads memory that nothing wrote: agrees with zeros there; "
        "cut for size: T 4096 to 128 |",
    ]


def test_parameters_are_cut_in_a_copy() -> None:
    given = {"T": 4096, "shape": {"T": 64, "B": 2}, "flag": True, "name": "T"}
    assert capped(given, {"T": 128, "flag": 0}) == (
        {"T": 128, "shape": {"T": 64, "B": 2}, "flag": True, "name": "T"},
        {"T 4096 to 128"},
    )
    assert given["T"] == 4096
    assert capped(given, {}) == (given, set())


def test_out_of_time_or_memory_wherever_it_comes_from() -> None:
    refused = NoInputsError("TimeoutError: out of time")
    assert not is_too_large(refused)
    refused.__cause__ = TimeoutError("out of time")
    assert is_too_large(refused)
    assert is_too_large(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"))
    assert not is_too_large(RuntimeError("shape"))
