"""The values that softmax, add and add_relu have to get right: every rung, both languages, through the public face.

Each call has to be silent too: no warning, nothing printed.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from compare import operations
from compare.registry import LANGUAGES, OPERATIONS, Rung

inf, nan = math.inf, math.nan
RUNGS = list(itertools.product(LANGUAGES, OPERATIONS["softmax"].rungs))
LIMITED = [(language, rung) for language, rung in RUNGS if rung.max_cols is not None]
UNLIMITED = [(language, rung) for language, rung in RUNGS if rung.max_cols is None]
ADDS = [(name, language, rung) for name in ("vector_add", "add_relu") for language in LANGUAGES
        for rung in OPERATIONS[name].rungs]  # fmt: skip
Function = Callable[..., Tensor]

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def name_of(case: object) -> str:
    return "-".join(part.name if isinstance(part, Rung) else str(part) for part in case)  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def built(device: str) -> None:
    """Compilers may say what they like: they run before anybody listens."""
    x = torch.zeros(1, device=device)
    for language, rung in RUNGS:
        operations.softmax(x, rung=rung.name, language=language)
    for name, language, rung in ADDS:
        operations.call(OPERATIONS[name], x, x, rung=rung.name, language=language)


@pytest.fixture
def silence(built: None, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(warning.message) for warning in caught] == []
    assert tuple(capfd.readouterr()) == ("", "")


def on(device: str, name: str, language: str, rung: Rung) -> Function:
    """The function of the public face, from CPU tensors to a CPU tensor."""

    def run(*inputs: Tensor) -> Tensor:
        out = getattr(operations, name)(*(x.to(device) for x in inputs), rung=rung.name, language=language)
        assert (out.shape, out.dtype, out.device.type) == (inputs[0].shape, inputs[0].dtype, device)
        return out.cpu()

    return run


@pytest.fixture(params=RUNGS, ids=name_of)
def softmax(request: pytest.FixtureRequest, device: str, silence: None) -> Function:
    return on(device, "softmax", *request.param)


@pytest.fixture(params=UNLIMITED, ids=name_of)
def wide_softmax(request: pytest.FixtureRequest, device: str, silence: None) -> Function:
    """The rungs that take rows of any length."""
    return on(device, "softmax", *request.param)


@pytest.fixture(params=[case for case in ADDS if case[0] == "vector_add"], ids=name_of)
def vector_add(request: pytest.FixtureRequest, device: str, silence: None) -> Function:
    return on(device, *request.param)


@pytest.fixture(params=[case for case in ADDS if case[0] == "add_relu"], ids=name_of)
def add_relu(request: pytest.FixtureRequest, device: str, silence: None) -> Function:
    return on(device, *request.param)


def assert_float64_values(out: Tensor, x: Tensor) -> None:
    """float32 outputs: relative 1e-6, plus 3 × 2^-24 of the argument of exp; below 1.2e-38 any."""
    wanted = torch.softmax(x.double(), dim=-1)
    argument = x.double().amax(dim=-1, keepdim=True) - x.double()
    assert ((out.double() - wanted).abs() <= wanted * (1e-6 + 3 * 2**-24 * argument) + 1.2e-38).all()
    assert ((out.double().sum(dim=-1) - 1).abs() <= 1e-6).all()


# Rows that are NaN


@every_dtype
@pytest.mark.parametrize("n_cols", [1501, 4999], ids="{} columns".format)
def test_softmax_row_with_nan_or_inf_is_nan_and_the_rows_beside_it_are_untouched(
    softmax: Function, dtype: torch.dtype, n_cols: int
) -> None:
    specials: dict[str, list[tuple[slice | int, float]]] = {
        "only -inf": [(slice(None), -inf)],
        "one +inf": [(7, inf)],
        "+inf last": [(-1, inf)],
        "two +inf": [(3, inf), (n_cols - 100, inf)],
        "+inf and -inf": [(0, inf), (1, -inf)],
        "NaN first": [(0, nan)],
        "NaN in the middle": [(n_cols // 2, nan)],
        "NaN last": [(-1, nan)],
        "NaN beyond the first tile": [(n_cols - 400, nan)],
        "only NaN": [(slice(None), nan)],
    }
    ordinary = torch.randn(2 * len(specials) + 1, n_cols, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = ordinary.clone()
    for row, special in enumerate(specials.values()):
        for cols, value in special:
            x[2 * row + 1, cols] = value
    out = softmax(x)
    assert [name for name, row in zip(specials, out[1::2], strict=True) if not row.isnan().all()] == []
    wanted = torch.softmax(ordinary[::2].double(), dim=-1)
    # of three roundings at most, and bfloat16 may be truncated: never near the 100 % of a row that is not its own
    assert ((out[::2].double() - wanted).abs() <= wanted * max(4 * torch.finfo(dtype).eps, 1e-5) + 2**-24).all()


# Rows with exact values


@every_dtype
def test_softmax_gives_nothing_to_minus_inf(softmax: Function, dtype: torch.dtype) -> None:
    x = torch.tensor([[-inf, 0, 0], [0, -inf, -inf], [5, -inf, 5]], dtype=dtype)
    assert softmax(x).tolist() == [[0, 0.5, 0.5], [1, 0, 0], [0.5, 0, 0.5]]


def test_softmax_of_the_largest_float32_and_its_negative(softmax: Function) -> None:
    assert softmax(torch.tensor([[3.4e38, -3.4e38, 0]])).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    "x",
    [
        torch.full((2, 3), -2.45e5),
        torch.full((3,), -100.0),
        torch.full((1, 5), -3.3e38),
        torch.full((1, 5), torch.finfo(torch.float32).min),
        torch.full((1, 5), -65504.0, dtype=torch.float16),
        torch.full((1, 5), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16),
    ],
    ids=lambda x: f"{x.flatten()[0]:.3g} {tuple(x.shape)}",
)
def test_softmax_of_equal_values_is_uniform_however_negative_they_are(softmax: Function, x: Tensor) -> None:
    out = softmax(x)
    assert out.unique().numel() == 1
    n_cols = x.shape[-1]
    assert abs(out.flatten()[0].item() * n_cols - 1) <= max(torch.finfo(x.dtype).eps, 4e-7)


@pytest.mark.parametrize(
    ("n_cols", "dtype"), [(512, torch.bfloat16), (8192, torch.bfloat16), (8192, torch.float16)], ids=str
)
def test_softmax_of_zeros_is_exact_because_the_sum_is_not_kept_in_16_bits(
    softmax: Function, n_cols: int, dtype: torch.dtype
) -> None:
    assert softmax(torch.zeros(1, n_cols, dtype=dtype)).unique().tolist() == [1 / n_cols]


def test_softmax_of_70000_zeros_is_exact_though_their_sum_exceeds_float16(wide_softmax: Function) -> None:
    assert wide_softmax(torch.zeros(1, 70000, dtype=torch.float16)).unique().tolist() == [240 * 2.0**-24]


def test_softmax_of_the_largest_float16(softmax: Function) -> None:
    assert softmax(torch.tensor([[65504, 65504, -65504]], dtype=torch.float16)).tolist() == [[0.5, 0.5, 0]]


@every_dtype
def test_softmax_of_one_column_is_exactly_one(softmax: Function, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0], [-3.7], [1000], [-65504], [6e-8]], dtype=dtype)
    assert softmax(x).tolist() == [[1.0]] * 5


# Rows against float64


def test_softmax_far_from_zero_has_float64_values_and_rows_that_sum_to_one(softmax: Function) -> None:
    x = -100 - torch.arange(781.0).expand(2, 781).contiguous()
    assert_float64_values(softmax(x), x)


def test_softmax_of_a_row_shorter_than_a_block_ignores_the_idle_threads(softmax: Function) -> None:
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(2)) - 5
    assert_float64_values(softmax(x), x)


def test_softmax_below_the_normal_numbers_may_be_flushed_but_not_wrong(softmax: Function) -> None:
    x = torch.tensor([[0.0, -88, -100, -103, -104], [-60, -60, -100, 0, -20]])
    out, wanted = softmax(x).double(), torch.softmax(x.double(), dim=-1)
    error = (out - wanted).abs()
    assert (error <= wanted * 5e-6 + 1.2e-38).all()
    assert out[0, 0] == 1


def test_softmax_of_one_finite_column_in_a_wide_row_of_minus_inf(wide_softmax: Function) -> None:
    x = torch.full((1, 100_000), -inf)
    x[0, 50_000] = 10
    out = wide_softmax(x)
    assert out[0, 50_000] == 1
    assert out.count_nonzero() == 1 and not out.isnan().any()


@every_dtype
@pytest.mark.parametrize("n_cols", [20_000, 131_072, 300_000])
def test_softmax_of_a_wide_row_that_is_masked_but_for_low_values(
    wide_softmax: Function, n_cols: int, dtype: torch.dtype
) -> None:
    """Whoever cuts a row must not let a part of only -inf be scaled by exp(0 - maximum), which overflows."""
    x = torch.full((1, n_cols), -inf, dtype=dtype)
    x[:, 100:200] = -200
    out = wide_softmax(x)
    assert (out[:, 100:200] - 0.01).abs().max() <= max(1e-6, 0.01 * torch.finfo(dtype).eps)
    assert out.count_nonzero() == 100 and not out.isnan().any()


@pytest.mark.parametrize("n_cols", [1000, 40_001, 150_000], ids="{} columns".format)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_softmax_of_16_bit_rows_far_from_zero_has_float64_values(
    wide_softmax: Function, dtype: torch.dtype, n_cols: int
) -> None:
    """Far from zero the rounding of x log2(e) is larger than what exp can take, and 3e38 log2(e) overflows."""
    most = torch.finfo(dtype).max
    x = torch.randn(8, n_cols, generator=torch.Generator().manual_seed(3))
    x[:4] += torch.tensor([[300.0], [-3000.0], [60_000.0], [-60_000.0]])
    x[4:] = torch.tensor([[-most], [-most / 4], [-(2.0**20)], [2.0**20]]).clamp(-most, most)
    x[4:, n_cols // 2 :: 7] = torch.tensor([[most], [-5.0], [4096.0 - 2.0**20], [2.0**20 - 4096]]).clamp(-most, most)
    x = x.to(dtype)
    wanted = torch.softmax(x.double(), dim=-1)
    error = (wide_softmax(x).double() - wanted).abs()
    assert (error <= wanted * 2 * torch.finfo(dtype).eps + 2**-24).all()  # bfloat16 may be truncated


def test_softmax_of_a_wide_row_whose_maximum_comes_last(wide_softmax: Function) -> None:
    x = torch.linspace(-90, 30, 20_001)[None]
    assert_float64_values(wide_softmax(x), x)


# Rows beyond a rung's limit


@pytest.mark.parametrize("case", LIMITED, ids=name_of)
def test_softmax_of_too_long_a_row_is_refused_before_anything_is_written(device: str, case: tuple[str, Rung]) -> None:
    language, rung = case
    assert rung.max_cols is not None
    x = torch.zeros(2, rung.max_cols + 1, device=device)
    out = torch.full_like(x, nan)
    with pytest.raises(ValueError, match=f"{rung.max_cols + 1}.*{rung.max_cols}.*{rung.beyond}"):
        operations.softmax(x, rung=rung.name, language=language, out=out)
    assert out.isnan().all()


@pytest.mark.parametrize("case", LIMITED, ids=name_of)
def test_softmax_of_the_longest_row_that_a_rung_takes(device: str, silence: None, case: tuple[str, Rung]) -> None:
    language, rung = case
    assert rung.max_cols is not None
    x = torch.randn(1, rung.max_cols, generator=torch.Generator().manual_seed(3)) + 50
    assert_float64_values(on(device, "softmax", language, rung)(x), x)


# Adds


def test_vector_add_in_bfloat16(vector_add: Function) -> None:
    x, y = torch.tensor([2.5, -5, 1]).bfloat16(), torch.tensor([2.0, -2, 1]).bfloat16()
    assert vector_add(x, y).tolist() == [4.5, -7, 2]


def test_add_relu_in_bfloat16(add_relu: Function) -> None:
    x, y = torch.tensor([2.5, -5, 1]).bfloat16(), torch.tensor([2.0, -2, 1]).bfloat16()
    assert add_relu(x, y).tolist() == [4.5, 0, 2]


X = [inf, inf, -inf, -inf, nan, 1, nan, 0.0, -0.0, 1.5, -1.5, 65504, -65504]
Y = [inf, -inf, -inf, 1.0, 1.0, nan, inf, -0.0, -0.0, -1.5, 0.5, 0, 0]


@every_dtype
def test_vector_add_of_special_values_is_that_of_torch(vector_add: Function, dtype: torch.dtype) -> None:
    x, y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype)
    torch.testing.assert_close(vector_add(x, y), x + y, rtol=0, atol=0, equal_nan=True)


@every_dtype
def test_add_relu_keeps_nan_and_inf_and_drops_what_is_negative(add_relu: Function, dtype: torch.dtype) -> None:
    x, y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype)
    torch.testing.assert_close(add_relu(x, y), torch.relu(x + y), rtol=0, atol=0, equal_nan=True)


def test_vector_add_overflows_to_inf_in_float16(vector_add: Function) -> None:
    x = torch.tensor([65504, -65504], dtype=torch.float16)
    assert vector_add(x, x).tolist() == [inf, -inf]
