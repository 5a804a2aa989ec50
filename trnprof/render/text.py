"""Plain text for an 80-column terminal: numbers with units, bars, aligned tables, safe names."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 80


def printable(text: object, limit: int = 120) -> str:
    """`text` as one line of printable characters; anything else is shown as an escape, and the rest is cut at `limit`.

    Captures name things freely: a name must not move the cursor, end the line or fill the screen.
    """
    out = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in str(text)
    )
    return out if len(out) <= limit else out[: limit - 1] + "…"


def duration(ns: int | None) -> str:
    """A time with three significant decimals of its unit: 850 ns, 102.669 us, 24.200 ms."""
    if ns is None:
        return "n/a"
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(ns) >= size:
            return f"{ns / size:,.3f} {unit}"
    return f"{ns} ns"


def byte_count(count: int | None) -> str:
    """Bytes in decimal units (every GB is 1e9): 17.92 MB."""
    if count is None:
        return "n/a"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(count) >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count} B"


def rate(bytes_per_s: int | float) -> str:
    """A bandwidth in decimal units: 336 GB/s."""
    for unit, size in (("TB/s", 10**12), ("GB/s", 10**9), ("MB/s", 10**6)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:,.4g} {unit}"
    return f"{bytes_per_s:,.0f} B/s"


def flop_rate(flop_per_s: int | float) -> str:
    """A rate of floating-point operations: 9.18 TFLOP/s."""
    return f"{flop_per_s / 1e12:,.2f} TFLOP/s"


def percent(part: int, whole: int) -> str:
    """part of whole, one decimal; n/a of nothing."""
    return "n/a" if not whole else f"{100 * part / whole:.1f} %"


def bar(part: int, whole: int, width: int) -> str:
    """A bar of `width` cells; anything above nothing shows at least a sliver."""
    if whole <= 0 or part <= 0:
        return " " * width
    eighths = max(1, round(8 * width * min(part, whole) / whole))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> str:
    """Aligned columns, the first `left` of them to the left and the others to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        aligned = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(aligned)).rstrip())
    return "\n".join(lines)


def wrapped(text: str, *, indent: str, first: str | None = None) -> str:
    """Text folded to the terminal's width; `first` is the first line's indent where it differs."""
    import textwrap

    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
