"""NKI kernels of norms, projections, attention, routing and sampling: right values, few bytes, nothing a device gets wrong.

The CPU kernel is the reference for values (in float64 or float32 where the NKI kernel runs in bfloat16); arithmetic on the
operands' sizes is the reference for bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the engine extra is not installed")

from tests.engine.nki_traffic import kernel_traffic  # noqa: E402
from trnprof.engine.build import open_engine  # noqa: E402
from trnprof.engine.config import EngineConfig  # noqa: E402
from trnprof.engine.kernels.contracts import CONTRACTS, load_kernels  # noqa: E402
from trnprof.engine.kernels.examples import difference  # noqa: E402
from trnprof.engine.kernels.nki import bridge  # noqa: E402
from trnprof.engine.kernels.nki.layouts import contracted_first  # noqa: E402
from trnprof.engine.request import Request, Sampling  # noqa: E402
from trnprof.errors import InconsistencyError, ToolMissingError  # noqa: E402
from trnprof.nki.recording import TensorSpec  # noqa: E402
from trnprof.nki.trace import KernelError  # noqa: E402
from trnprof.nki.values.run import compute  # noqa: E402

CPU, NKI = load_kernels("cpu"), load_kernels("nki", fallback="cpu")
BFLOAT16_TOLERANCE = 2**-7
"""Of the largest magnitude: a rounding of the result and one of an operand on the way (8 bits of mantissa)."""


def apart(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Largest difference relative to the largest magnitude, as the contracts measure it."""
    assert expected.shape == got.shape
    return float((expected.double() - got.double()).abs().max() / expected.double().abs().max())


def random(*shape: int, seed: int = 0, spread: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


# Against the contracts


@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize(
    ("name", "rows"),
    [(name, rows) for name in ("rms_norm", "gated_rms_norm", "project", "route", "greedy") for rows in (1, 4, 8, 130)]
    + [(name, rows) for name in ("attention_decode", "attention_prefill") for rows in (1, 2, 4)],
)
def test_it_agrees_with_the_cpu_kernel(name: str, rows: int, kda: bool) -> None:
    assert getattr(NKI, name) is not getattr(CPU, name)
    for seed in range(2):
        assert difference(name, getattr(NKI, name), rows=rows, seed=seed, kda=kda) <= CONTRACTS[name].tolerance


def test_what_has_no_nki_kernel_comes_from_the_cpu() -> None:
    lacking = {name for name in CONTRACTS if getattr(NKI, name) is getattr(CPU, name)}
    assert lacking == {"sample"}
    with pytest.raises(ToolMissingError, match="nki backend does not implement"):
        load_kernels("nki")


# Sizes of real models


@pytest.mark.parametrize(
    ("rows", "size", "dtype"),
    [(8, 4096, torch.bfloat16), (32, 7168, torch.float32), (33, 2048, torch.bfloat16), (384, 128, torch.float32)],
)
def test_norms_spread_or_fold_rows(rows: int, size: int, dtype: torch.dtype) -> None:
    """Few long rows, more of them, and many short ones: three layouts of one formula."""
    tolerance = BFLOAT16_TOLERANCE if dtype == torch.bfloat16 else CONTRACTS["rms_norm"].tolerance
    x, weight = random(rows, size, dtype=dtype), 1 + random(size, seed=1, spread=0.1, dtype=dtype)
    assert apart(CPU.rms_norm(x.double(), weight.double(), 1e-6), NKI.rms_norm(x, weight, 1e-6)) <= tolerance
    wide, gate = random(rows, 1, 1, size, seed=2), random(rows, 1, 1, size, seed=3, dtype=dtype)
    for sigmoid in (False, True):
        expected = CPU.gated_rms_norm(wide.double(), gate.double(), weight.double(), 1e-6, sigmoid)
        assert apart(expected, NKI.gated_rms_norm(wide, gate, weight, 1e-6, sigmoid)) <= tolerance


@pytest.mark.parametrize("size", [128, 2048])
def test_norms_of_small_numbers_feel_eps(size: int) -> None:
    """Squares of about eps: without it the result would be 1.4 times as large."""
    x, weight = random(2, size, spread=1e-3), torch.ones(size)
    tolerance = CONTRACTS["rms_norm"].tolerance
    assert apart(CPU.rms_norm(x.double(), weight.double(), 1e-6), NKI.rms_norm(x, weight, 1e-6)) <= tolerance
    wide = x.view(2, 1, 1, size)
    expected = CPU.gated_rms_norm(wide.double(), wide.double(), weight.double(), 1e-6, True)
    assert apart(expected, NKI.gated_rms_norm(wide, wide, weight, 1e-6, True)) <= tolerance


@pytest.mark.parametrize(
    ("rows", "size", "columns", "dtype"),
    [
        pytest.param(8, 4096, 640, torch.bfloat16, id="a decode step"),
        pytest.param(40, 1024, 2688, torch.bfloat16, id="rows turned by the tensor engine, a ragged last tile"),
        pytest.param(600, 256, 384, torch.float32, id="five blocks of rows"),
        pytest.param(130, 7168, 128, torch.float32, id="inputs in two passes"),
        pytest.param(3, 96, 128, torch.float32, id="channels that fill no partition"),
    ],
)
def test_projections_of_other_sizes(rows: int, size: int, columns: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, size, dtype=dtype), random(columns, size, seed=1, spread=0.05, dtype=dtype)
    tolerance = BFLOAT16_TOLERANCE if dtype == torch.bfloat16 else CONTRACTS["project"].tolerance
    assert apart(x.double() @ weight.double().T, NKI.project(x, weight)) <= tolerance


def attention_arguments(
    rows: int,
    *,
    width: int = 1,
    heads: int = 2,
    group: int = 2,
    dim: int = 32,
    value_dim: int = 32,
    page: int = 16,
    pages: int = 5,
    window: int = 0,
    latent: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    """In the contract's order; pages in no order, every row at another position, the last token in the last page."""
    make = torch.Generator().manual_seed(rows)
    table = 1 + torch.randperm(rows * pages, generator=make).view(rows, pages)
    starts = torch.randint(0, pages * page - width + 1, (rows,), generator=make)
    starts[-1] = pages * page - width
    values = 0 if latent else value_dim
    return [
        random(rows * pages + 1, heads, dim, page, seed=1, dtype=dtype),
        random(rows * pages + 1, heads, page, values, seed=2, dtype=dtype),
        table,
        starts,
        torch.full((rows,), width),
        random(rows, width, heads * group, dim, seed=3, dtype=dtype),
        random(rows, width, heads, dim, seed=4, dtype=dtype),
        random(rows, width, heads, values, seed=5, dtype=dtype),
        dim**-0.5,
        window,
        value_dim,
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"rows": 2, "pages": 140, "window": 37}, id="two gathers a row, a window"),
        pytest.param({"rows": 2, "width": 3, "group": 4}, id="tokens to verify"),
        pytest.param({"rows": 2, "dim": 192, "value_dim": 128, "latent": True, "heads": 1, "group": 8}, id="latent"),
        pytest.param({"rows": 1, "dim": 256, "value_dim": 256, "heads": 6, "group": 1}, id="two blocks of channels"),
        pytest.param({"rows": 26, "pages": 1, "width": 5, "heads": 1}, id="more tokens than partitions"),
        pytest.param({"rows": 2, "pages": 3, "page": 64}, id="long pages"),
    ],
)
def test_attention_of_other_sizes(sizes: dict[str, Any]) -> None:
    """Results and both caches, in float32."""
    expected, got = attention_arguments(**sizes), attention_arguments(**sizes)
    out = CPU.attention_decode(*expected)
    assert apart(out, NKI.attention_decode(*got)) <= CONTRACTS["attention_decode"].tolerance
    assert torch.equal(expected[0], got[0])
    assert torch.equal(expected[1], got[1])


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"rows": 2, "width": 200}, id="two blocks of tokens"),
        pytest.param(
            {"rows": 1, "width": 64, "pages": 140, "window": 37, "heads": 1}, id="hidden parts of the context"
        ),
        pytest.param(
            {"rows": 2, "width": 40, "dim": 192, "value_dim": 128, "latent": True, "heads": 1, "group": 4}, id="latent"
        ),
        pytest.param({"rows": 1, "width": 32, "page": 64}, id="long pages"),
        pytest.param({"rows": 1, "width": 129, "heads": 1, "group": 11, "dim": 8, "value_dim": 512}, id="two passes"),
    ],
)
def test_prefill_attention_of_other_sizes(sizes: dict[str, Any]) -> None:
    """Results and both caches, in float32; the last row's chunk ends with its last page."""
    sizes = {"pages": 14} | sizes
    expected, got = attention_arguments(**sizes), attention_arguments(**sizes)
    out = CPU.attention_prefill(*expected)
    assert apart(out, NKI.attention_prefill(*got)) <= CONTRACTS["attention_prefill"].tolerance
    assert torch.equal(expected[0], got[0])
    assert torch.equal(expected[1], got[1])


@pytest.mark.parametrize(
    ("pages", "heads"),
    [(256, 2), pytest.param(2048, 4, marks=pytest.mark.slow)],
    ids=["4,096 tokens", "32,768 tokens"],
)
def test_attention_over_a_long_context_in_bfloat16(pages: int, heads: int) -> None:
    given = attention_arguments(1, heads=heads, group=8, dim=128, value_dim=128, pages=pages, dtype=torch.bfloat16)
    wide = [one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in given]
    assert apart(CPU.attention_decode(*wide), NKI.attention_decode(*given)) <= BFLOAT16_TOLERANCE


def test_a_prefill_chunk_in_bfloat16() -> None:
    given = attention_arguments(1, width=130, group=4, dim=128, value_dim=128, pages=40, dtype=torch.bfloat16)
    wide = [one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in given]
    assert apart(CPU.attention_prefill(*wide), NKI.attention_prefill(*given)) <= BFLOAT16_TOLERANCE


def test_padding_rows_write_the_spare_page() -> None:
    """A row of length 0, and a verified token behind its row's length: page 0 changes, no other does."""
    given = attention_arguments(2, width=2)
    given[4] = torch.tensor([0, 1])
    before = given[0].clone()
    NKI.attention_decode(*given)
    changed = {int(page) for page in (given[0] != before).flatten(1).any(1).nonzero()}
    assert changed == {0, int(given[2][1, given[3][1] // 16])}


@pytest.mark.parametrize("columns", [5, 260, 16_399, 151_936])
@pytest.mark.parametrize("rows", [1, 7, 128, 200])
def test_greedy_takes_the_lowest_of_equal_logits(rows: int, columns: int) -> None:
    """The definition, on logits with many equal ones, on few finite ones, and on none."""
    columns = min(columns, 1_000_000 // rows)
    many = random(rows, 1, columns).round()
    few = torch.full_like(many, -torch.inf).masked_fill_(random(rows, 1, columns, seed=1) > 2, -1e30)
    for logits in (many, many.bfloat16(), few, torch.full_like(many, -torch.inf)):
        lowest = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
        assert torch.equal(NKI.greedy(logits), lowest)


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (512, 10), (5, 2)])
def test_routing_of_other_sizes(experts: int, top_k: int, sigmoid: bool) -> None:
    """More than eight of an expert list need a second search; fewer than eight experts a padded one."""
    x, weight, bias = random(9, 300), random(experts, 300, seed=1, spread=0.05), random(experts, seed=2, spread=0.1)
    for renormalise in (False, True):
        expected = CPU.route(x, weight, bias, top_k, sigmoid, renormalise, 2.5)
        weights, chosen = NKI.route(x, weight, bias, top_k, sigmoid, renormalise, 2.5)
        assert torch.equal(expected[1], chosen)
        assert apart(expected[0], weights) <= CONTRACTS["route"].tolerance


def test_scores_that_are_all_zero_have_no_weights() -> None:
    """sigmoid of -200 is 0 in float32; the sum to divide by is 0 too."""
    weights, _ = NKI.route(torch.ones(1, 128), torch.full((16, 128), -200 / 128), torch.zeros(16), 2, True, True, 2.5)
    assert weights.tolist() == [[0.0, 0.0]]


def test_equal_scores_go_to_the_lowest_expert() -> None:
    _, chosen = NKI.route(torch.ones(2, 128), torch.zeros(16, 128), torch.zeros(16), 3, False, True, 1.0)
    assert chosen.tolist() == [[0, 1, 2]] * 2


# What they move, and what a device gets wrong whatever the values are


def spec(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(shape, dtype)


IDENTITY = {"bfloat16": 128 * 128 * 2, "float32": 128 * 128 * 4}
"""What the tensor engine multiplies by to turn a tile; the compiler loads it once a program."""


@pytest.mark.parametrize(("rows", "turns"), [(1, False), (8, False), (128, True), (512, True)])
def test_a_projection_streams_its_weight_once(rows: int, turns: bool) -> None:
    size, columns = 4096, 3200  # seed 002's padded projection: 25 tiles of 128
    traffic = kernel_traffic("projection.py", "project", {"x": spec(rows, size), "weight": spec(size, columns)})
    read = 2 * size * (rows + columns) + (IDENTITY["bfloat16"] if turns else 0)
    assert (traffic.hbm_read_bytes, traffic.hbm_write_bytes) == (read, 2 * rows * columns)
    assert traffic.hazards == ()


@pytest.mark.parametrize(("rows", "heads", "pages"), [(8, 4, 256), (2, 8, 300)])
def test_attention_reads_each_page_once(rows: int, heads: int, pages: int) -> None:
    group, dim, page = 8, 128, 16
    caches = spec(rows * pages + 1, heads, dim, page), spec(rows * pages + 1, heads, page, dim)
    pieces = rows * heads * 4, rows * heads
    given = {
        "key_pages": caches[0],
        "value_pages": caches[1],
        "pages": spec(pages, rows, dtype="int32"),
        "positions": spec(1, rows, dtype="int32"),
        "key_places": spec(pieces[0], 1, dtype="int32"),
        "value_places": spec(pieces[1], 1, dtype="int32"),
        "q": spec(rows, 1, heads * group, dim),
        "k": spec(rows, 1, heads, dim),
        "v": spec(rows, 1, heads, dim),
        "scale": dim**-0.5,
        "window": 0,
        "value_dim": dim,
    }
    traffic = kernel_traffic("attention.py", "attention_decode", given)
    context = 2 * rows * pages * heads * dim * page * 2
    new = 2 * rows * heads * dim * 2
    queries = rows * heads * group * dim * 2
    numbers = 4 * (rows * pages + rows + sum(pieces))
    assert traffic.hbm_read_bytes == context + new + queries + numbers + sum(IDENTITY.values())
    assert traffic.hbm_write_bytes == new + queries
    assert traffic.hazards == ()


def test_prefill_reads_the_context_once_a_key_head() -> None:
    """A chunk of 512 tokens behind 3,584, two query heads a key head: queries and running results fit one pass."""
    width, heads, group, dim, page, pages = 512, 4, 2, 128, 16, 256
    tokens = width * heads
    given = {
        "key_pages": spec(pages + 1, heads, dim, page),
        "value_pages": spec(pages + 1, heads, page, dim),
        "pages": spec(pages, 1, dtype="int32"),
        "positions": spec(1, width, dtype="int32"),
        "key_places": spec(tokens, 1, dtype="int32"),
        "value_places": spec(tokens, 1, dtype="int32"),
        "q": spec(1, width, heads * group, dim),
        "k": spec(1, width, heads, dim),
        "v": spec(1, width, heads, dim),
        "scale": dim**-0.5,
        "window": 0,
        "value_dim": dim,
    }
    traffic = kernel_traffic("attention.py", "attention_prefill", given)
    context, new = 2 * 2 * pages * heads * dim * page, 2 * 2 * tokens * dim
    queries, numbers = 2 * tokens * group * dim, 4 * (pages + width + 2 * tokens)
    assert traffic.hbm_read_bytes == context + new + queries + numbers + IDENTITY["bfloat16"]
    assert traffic.hbm_write_bytes == new + queries
    assert traffic.hazards == ()


def test_norms_greedy_and_routing_read_what_they_are_given_once() -> None:
    norm = {"x": spec(8, 4096), "weight": spec(4096), "eps": 1e-6}
    traffic = kernel_traffic("rms_norm.py", "rms_norm", norm)
    assert (traffic.hbm_read_bytes, traffic.hbm_write_bytes) == (2 * 9 * 4096, 2 * 8 * 4096)
    gated = {"x": spec(384, 128, dtype="float32"), "gate": spec(384, 128), "weight": spec(128)}
    other = kernel_traffic("rms_norm.py", "gated_rms_norm", gated | {"eps": 1e-6, "sigmoid": False})
    assert (other.hbm_read_bytes, other.hbm_write_bytes) == (6 * 384 * 128 + 2 * 128, 2 * 384 * 128)
    choice = kernel_traffic("sampling.py", "greedy", {"logits": spec(8, 151_936, dtype="float32")})
    assert (choice.hbm_read_bytes, choice.hbm_write_bytes) == (4 * 8 * 151_936 + IDENTITY["float32"], 4 * 8)
    router = {"x": spec(8, 2048), "weight": spec(2048, 128), "bias": spec(1, 128, dtype="float32")}
    options = {"top_k": 8, "sigmoid": True, "renormalise": True, "scale": 2.5}
    routed = kernel_traffic("routing.py", "route", router | options)
    assert (routed.hbm_read_bytes, routed.hbm_write_bytes) == (2 * 2048 * 136 + 4 * 128, (2 + 4) * 8 * 8)
    assert traffic.hazards == other.hazards == choice.hazards == routed.hazards == ()


def test_a_run_has_nothing_to_note() -> None:
    """No memory is read that nothing has written, no function is used outside the range in which the device has it."""
    calls = [
        ("rms_norm.py", "rms_norm", {"x": random(3, 1024), "weight": random(1024), "eps": 1e-6}),
        ("projection.py", "project", {"x": random(40, 256), "weight": random(256, 640)}),
        ("sampling.py", "greedy", {"logits": random(3, 1003)}),
    ]
    for file, kernel, given in calls:
        arrays = {name: bridge.as_array(one) if isinstance(one, torch.Tensor) else one for name, one in given.items()}
        assert compute(bridge.interpreted_kernel(bridge.FOLDER / file, kernel), (), arrays).notes == ()


def test_attention_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, with the arguments that its caller prepares."""
    from trnprof.nki.values import run

    notes = []

    def noting(*arguments: Any, **options: Any) -> Any:
        result = compute(*arguments, **options)
        notes.append(result.notes)
        return result

    monkeypatch.setattr(run, "compute", noting)
    NKI.attention_decode(*attention_arguments(2, pages=140, window=37))
    NKI.attention_decode(*attention_arguments(2, latent=True))
    NKI.attention_prefill(*attention_arguments(1, width=20, pages=140, window=37))
    assert notes == [(), (), ()]


# The bridge

WRITES_TWO = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def double(a, b, refuse=False):
    assert not refuse, "told to"
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=b, src=tile)
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


@pytest.fixture
def kernel_file(tmp_path: Path) -> str:
    path = tmp_path / "double.py"
    path.write_text(WRITES_TWO)
    return str(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_outputs_come_back_and_written_arguments_change(kernel_file: str, dtype: torch.dtype) -> None:
    a, b = torch.arange(6.0).view(2, 3).to(dtype), torch.zeros(2, 3, dtype=dtype)
    (out,) = bridge.run_kernel(kernel_file, "double", written=("b",), a=a, b=b)
    assert out.dtype == dtype
    assert torch.equal(out, a * 2)
    assert torch.equal(b, a * 2)


def test_a_written_argument_must_be_expected_and_contiguous(kernel_file: str) -> None:
    a = torch.zeros(2, 3)
    with pytest.raises(InconsistencyError, match="double writes b, which its caller does not expect"):
        bridge.run_kernel(kernel_file, "double", a=a, b=torch.ones(2, 3))
    with pytest.raises(InconsistencyError, match="b is written in place and must be contiguous"):
        bridge.run_kernel(kernel_file, "double", written=("b",), a=a, b=torch.ones(3, 2).T)


def test_a_kernels_error_names_its_line(kernel_file: str) -> None:
    with pytest.raises(KernelError, match=r"line 9 .*told to"):
        bridge.run_kernel(kernel_file, "double", a=torch.zeros(2, 3), b=torch.zeros(2, 3), refuse=True)


def test_tensors_on_a_device_need_the_vendors_compiler(kernel_file: str) -> None:
    """The public index's package of that name is a placeholder; here there is none at all."""
    a = torch.zeros(2, 3, device="meta")
    with pytest.raises(ToolMissingError, match="Neuron SDK's nki is not installed"):
        bridge.run_kernel(kernel_file, "double", written=("b",), a=a, b=torch.zeros(2, 3, device="meta"))


def test_a_weight_is_turned_once_until_it_changes() -> None:
    weight = random(4, 6)
    turned = contracted_first(weight)
    assert torch.equal(turned, weight.T)
    assert contracted_first(weight) is turned
    weight[0, 0] = 9.0
    assert contracted_first(weight)[0, 0] == 9.0
    with torch.inference_mode():  # as the engine makes its weights; such a tensor does not count its changes
        frozen = weight.clone()
        assert torch.equal(contracted_first(frozen), frozen.T)


# The whole engine

CONFIG = EngineConfig(
    pages=64, snapshots=4, prefill_sizes=(32,), prefill_rows=(1,), prefill_budget=32, decode_rows=(2,), contexts=(64,)
)


def answers(model: str, draft: int, *, nki: bool, tokens: int) -> list[list[int]]:
    served = open_engine(model, replace(CONFIG, draft_tokens=draft))
    if nki:
        served.engine.runner.decoder.kernels = NKI
    requests = [
        Request(f"r{i}", served.tokenizer.encode("def __init__(self"[i:]), Sampling(max_tokens=tokens, ignore_eos=True))
        for i in range(2)
    ]
    for request in requests:
        served.engine.submit(request, lambda update: None)
    served.engine.run_until_idle()
    served.engine.runner.close()
    assert [request.error for request in requests] == [None, None]
    return [request.answer for request in requests]


@pytest.mark.parametrize(
    ("model", "draft", "tokens"),
    [
        ("tiny-gdn-moe", 0, 2),
        pytest.param("tiny-gdn-moe", 2, 8, marks=pytest.mark.slow),
        pytest.param("tiny-kda", 0, 8, marks=pytest.mark.slow),
    ],
)
def test_the_engine_gives_the_same_tokens_with_nki_kernels(model: str, draft: int, tokens: int) -> None:
    """Prefill, decode and (with drafts) verification of a whole model, every NKI kernel in its place."""
    assert answers(model, draft, nki=True, tokens=tokens) == answers(model, draft, nki=False, tokens=tokens)
