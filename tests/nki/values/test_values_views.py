"""Views of tensors read and write what NumPy's views of the same array do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tests.nki.values.running import result

COPY = """
view = {view}
out = nl.ndarray(view.shape, a.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=view)
return out
"""
FILL = """
out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=a)
view = {view}
nisa.dma_copy(dst=view, src=b)
return out
"""


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], str]:
    """(shape, an index expression of slices, integers and ellipses)"""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    parts = []
    for size in shape[:-1] if len(shape) > 1 else ():
        start = draw(st.integers(0, size - 1))
        if draw(st.booleans()):
            parts.append(str(start))
        else:
            parts.append(f"{start}:{draw(st.integers(start + 1, size))}:{draw(st.integers(1, 3))}")
    start = draw(st.integers(0, shape[-1] - 1))
    parts.append(f"{start}:{draw(st.integers(start + 1, shape[-1]))}:{draw(st.integers(1, 2))}")
    return shape, ", ".join(parts)


@given(slices())
@settings(max_examples=60, deadline=None)
def test_slices(case: tuple[tuple[int, ...], str]) -> None:
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = eval(f"x[{index}]", {"x": x})
    assert np.array_equal(result(COPY.format(view=f"a[{index}]"), x), expected)
    filled = x.copy()
    eval(f"x[{index}]", {"x": filled})[...] = -1 - expected
    assert np.array_equal(result(FILL.format(view=f"out[{index}]"), x, np.ascontiguousarray(-1 - expected)), filled)


@given(st.permutations(range(3)), st.lists(st.integers(1, 5), min_size=3, max_size=3))
@settings(max_examples=30, deadline=None)
def test_dimensions_in_another_order(order: list[int], shape: list[int]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = result(COPY.format(view=f"a.permute({tuple(order)})"), x)
    assert np.array_equal(found, x.transpose(order))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_access_patterns(data: st.DataObject) -> None:
    total = 60
    pattern, left = [], total - 1
    for _ in range(data.draw(st.integers(1, 3))):
        step = data.draw(st.integers(0, max(left, 0)))
        count = data.draw(st.integers(1, 1 + (left // step if step else 3)))
        left -= step * (count - 1)
        pattern.append([step, count])
    offset = data.draw(st.integers(0, left))
    x = np.arange(total, dtype=np.float32).reshape(6, 10)
    expected = as_strided(x.reshape(-1)[offset:], [count for _, count in pattern], [4 * step for step, _ in pattern])
    assert np.array_equal(result(COPY.format(view=f"a.ap({pattern}, offset={offset})"), x), expected)


def test_reshapes_broadcasts_and_other_types_of_a_view() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    assert np.array_equal(result(COPY.format(view="a.reshape((4, 6))"), x), x.reshape(4, 6))
    assert np.array_equal(result(COPY.format(view="a[0:1].broadcast_to((3, 12))"), x), np.repeat(x[:1], 3, 0))
    body = COPY.format(view="a.view(nl.uint16)").replace("a.dtype", "nl.uint16")
    assert np.array_equal(result(body, x), x.view(np.uint16))


def test_an_address_grid_of_the_first_generation() -> None:
    from tests.nki.values.running import FIRST

    body = """
i, j, k = nl.arange(3)[:, None, None], nl.arange(2)[None, :, None], nl.arange(2)[None, None, :]
out = nl.ndarray((3, 2, 2), dtype=a.dtype, buffer=nl.shared_hbm)
nl.store(out, nl.load(a[2 * i, 4 * j + 3 * k]))
return out
"""
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    i, j, k = np.ogrid[:3, :2, :2]
    assert np.array_equal(result(body, x, head=FIRST), x[2 * i, 4 * j + 3 * k])
