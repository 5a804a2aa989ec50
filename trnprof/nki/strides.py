"""Shapes and strides: row major, reshaped without a copy, sizes inferred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reshaped_strides(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Strides that show the same elements in `new_shape`, or None where only a copy could."""
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    position, sizes = 0, list(new_shape)
    index = 0
    while index < len(sizes):
        if position == len(old):
            result.extend([1] * (len(sizes) - index))
            break
        want, take = sizes[index], 1
        have = old[position][0]
        while want != have:
            if want < have:
                if index + take >= len(sizes):
                    return None
                want *= sizes[index + take]
                take += 1
            else:
                if position + 1 >= len(old) or old[position][1] != old[position + 1][0] * old[position + 1][1]:
                    return None
                position += 1
                have *= old[position][0]
        while index + take < len(sizes) and sizes[index + take] == 1:
            take += 1
        inner = row_major(sizes[index : index + take])
        result.extend(step * old[position][1] for step in inner)
        position += 1
        index += take
    return tuple(result) if position == len(old) else None


def inferred(shape: Sequence[Any], total: int) -> tuple[int, ...]:
    """`shape` with its one -1 filled in; the product must be `total`."""
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        known = product([size for size in sizes if size != -1])
        if sizes.count(-1) > 1 or not known or total % known:
            raise ValueError(f"shape {tuple(sizes)} does not hold {total} elements")
        sizes[sizes.index(-1)] = total // known
    if product(sizes) != total:
        raise ValueError(f"shape {tuple(sizes)} does not hold {total} elements")
    return tuple(sizes)


def product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def replaced(values: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    return (*values[:position], value, *values[position + 1 :])
