"""What the command line says of a kernel's inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.errors import InputMissingError, UsageError
from trnprof.nki.dtypes import DTYPES
from trnprof.nki.inputs import arguments_of, parse_inputs, parse_tensor, resolve_argument, tensor
from trnprof.nki.recording import TensorSpec


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=4), st.sampled_from(sorted(DTYPES)))
def test_a_shape_reads_back_as_written(shape: list[int], dtype: str) -> None:
    assert parse_tensor(f"{'x'.join(map(str, shape))}:{dtype}") == TensorSpec(tuple(shape), dtype)
    assert tensor(shape, dtype) == TensorSpec(tuple(shape), dtype)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("128x512:bf16", TensorSpec((128, 512), "bfloat16")),
        ("128X512:FP32", TensorSpec((128, 512), "float32")),
        ("128×512:nl.bfloat16", TensorSpec((128, 512), "bfloat16")),
        ("(128, 512):float16", TensorSpec((128, 512), "float16")),
        ("1:uint32", TensorSpec((1,), "uint32")),
    ],
)
def test_common_spellings(text: str, meaning: TensorSpec) -> None:
    assert parse_tensor(text) == meaning


@pytest.mark.parametrize(
    "text",
    ["128x512", "128x512:", ":bfloat16", "128x:bfloat16", "0x4:float32", "-1x4:float32", "1.5x2:float32",
     "128x512:bfloat17", "99999999999x99999999999:int8", "x" * 100 + ":int8", "١٢:int8", "1" * 5000 + ":int8"],
)  # fmt: skip
def test_shapes_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tensor(text, "q")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "given_texts",
    [
        {"inputs": ["q"]},
        {"inputs": ["2q=1:int8"]},
        {"inputs": ["q=4:int8", "q=4:int8"]},
        {"inputs": ["q=4:int8"], "arguments": ["q=4"]},
        {"arguments": ["tile=__import__('os')"]},
        {"arguments": ["tile=fast"]},
        {"arguments": ["tile=" + "[" * 5000]},
        {"trips": ["n=0"]},
        {"trips": ["n"]},
        {"lnc": 3},
        {"grid": "4x"},
        {"grid": "0"},
    ],
)
def test_usage_errors(given_texts: dict) -> None:
    with pytest.raises(UsageError):
        parse_inputs(**given_texts)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError):
        parse_inputs(values=[f"idx={tmp_path}/none.npy"])
    with pytest.raises(InputMissingError):
        parse_inputs(inputs_file=tmp_path / "none.py")


def test_a_trip_count_is_named_by_the_text_of_its_bound() -> None:
    assert parse_inputs(trips=["count[0] + 1=16"]).trips == {"count[0] + 1": 16}


def test_arguments_are_literals_or_names_of_the_kernels_file() -> None:
    class Mode:
        fast = 7

    assert resolve_argument("(1, None, 'x')", {}) == (1, None, "x")
    assert resolve_argument("Mode.fast", {"Mode": Mode}) == 7
    with pytest.raises(UsageError, match="no name 'Other'"):
        resolve_argument("Other.fast", {"Mode": Mode})
    with pytest.raises(UsageError, match="no 'slow'"):
        resolve_argument("Mode.slow", {"Mode": Mode})


def test_what_an_inputs_function_may_return() -> None:
    spec = TensorSpec((4,), "int8")
    assert arguments_of({"q": spec}, Path("i.py")) == ([], {"q": TensorSpec((4,), "int8", "q")})
    assert arguments_of((spec, 3), Path("i.py")) == ([spec, 3], {})
    assert arguments_of(([spec], {"n": 3}), Path("i.py")) == ([spec], {"n": 3})
    with pytest.raises(UsageError, match="returned int"):
        arguments_of(3, Path("i.py"))
