"""The checker: it passes what is right, on every seed, and rejects what is wrong, for the right reason."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from compare import operations
from compare.baselines import baselines
from compare.correctness import CELLS, HEAD, check, make_inputs, recheck, ulps_off
from compare.registry import OPERATIONS, SOFTMAX, VECTOR_ADD, Implementation, Operation
from compare.wrong import self_test, wrong_implementations

inf, nan = math.inf, math.nan
every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
SHAPE = (7, 781)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """torch's threads wait by spinning: where other programs want the cores as well, two are many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stub(
    fill: Callable[[tuple[Tensor, ...], Tensor], object], roundings: int = 1, language: str = "torch"
) -> Implementation:
    return Implementation("stub", language, None, lambda inputs, out: lambda: fill(inputs, out), roundings)  # type: ignore[arg-type,return-value]


def right(inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
    return out.copy_(torch.softmax(inputs[0].float(), -1))


def exp_stored(inputs: tuple[Tensor, ...], out: Tensor) -> None:
    """As naive softmax: exp is rounded to the output's dtype before it is divided by the sum."""
    x = inputs[0].float()
    e = (x - x.amax(-1, keepdim=True)).exp()
    out.copy_(e)
    out.copy_(out / e.sum(-1, keepdim=True))


# What is right passes


@every_operation
@every_dtype
def test_no_false_alarm_in_20_seeds(operation: Operation, dtype: torch.dtype, device: str) -> None:
    candidates = [stub(lambda inputs, out: out.copy_(operation.reference(*(x.float() for x in inputs))))]
    candidates += baselines(operation, compiled=False)
    shapes = [(1, 1), (1, 97), (5, 33), SHAPE] if operation.kind == "rows" else [(1,), (4099,)]
    for implementation in candidates:
        for shape in shapes:
            for seed in range(20):
                entry = check(implementation, operation, shape, dtype, device, seed)
                assert (entry["status"], entry["error"]) == ("passed", None), (implementation.name, shape, seed)


@every_dtype
@pytest.mark.parametrize("shape", [(16, 8192), (2, 393216)], ids=str)
def test_no_false_alarm_in_large_rows(shape: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    for implementation in [stub(right), *baselines(SOFTMAX, compiled=False)]:
        assert check(implementation, SOFTMAX, shape, dtype, device)["error"] is None


@every_operation
@every_dtype
def test_every_rung_in_both_languages_passes(operation: Operation, dtype: torch.dtype, device: str) -> None:
    shape = (6, 1100) if operation.kind == "rows" else (4099,)
    for implementation in operations.implementations(operation):
        entry = check(implementation, operation, shape, dtype, device)
        assert (entry["status"], entry["error"]) == ("passed", None), implementation.name


def test_entry_is_a_whole_json_entry_of_the_record(device: str) -> None:
    entry = check(stub(right), SOFTMAX, SHAPE, torch.bfloat16, device)
    assert entry == json.loads(json.dumps(entry))
    assert set(entry) == {
        "implementation",
        "shape",
        "dtype",
        "executor",
        "status",
        "error",
        "max_ulps",
        "torch_max_ulps",
    }
    assert entry["shape"] == [7, 781] and entry["dtype"] == "bfloat16"
    assert entry["executor"] == ("gpu" if device == "cuda" else "cpu")
    assert 0.4 < entry["max_ulps"] < 0.6 and 0.4 < entry["torch_max_ulps"] < 0.6


def test_float32_outputs_below_the_normal_numbers_may_be_flushed_to_zero(device: str) -> None:
    def flushed(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        right(inputs, out)
        out[out < torch.finfo(torch.float32).tiny] = 0

    assert check(stub(flushed), SOFTMAX, SHAPE, torch.float32, device)["status"] == "passed"


# What is wrong is rejected


@every_operation
@every_dtype
def test_every_wrong_implementation_is_rejected(operation: Operation, dtype: torch.dtype, device: str) -> None:
    verdicts = self_test(operation, device, dtype)
    assert [(name, why) for name, rejected, why in verdicts if not rejected] == []
    assert len({name for name, *_ in verdicts}) == len(verdicts) >= 12


@pytest.mark.gpu
def test_wrong_stream_is_among_the_wrong_implementations_on_a_gpu() -> None:
    assert "wrong stream" in [implementation.name for implementation in wrong_implementations(SOFTMAX, "cuda")]


def test_self_test_does_not_count_an_error_as_a_rejection(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        raise RuntimeError("never got there")

    monkeypatch.setattr("compare.wrong.wrong_implementations", lambda operation, device: [stub(broken), stub(right)])
    assert [rejected for _, rejected, _ in self_test(SOFTMAX, device, shapes=(SHAPE,))] == [False]


def test_mistake_is_named_with_the_first_five_mismatches_by_index(device: str) -> None:
    def wrong_in_row_4(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        right(inputs, out)
        out[4, 100:107] = 0.25

    entry = check(stub(wrong_in_row_4), SOFTMAX, SHAPE, torch.float32, device)
    assert entry["status"] == "failed"
    first, *mismatches = entry["error"].split("; ")[0].splitlines()
    assert first == "7 of 5467 compared elements are wrong"
    assert [line.split(":")[0].strip() for line in mismatches] == [f"[4, {col}]" for col in range(100, 105)]
    assert all("got 0.25, wanted " in line and " ulps, " in line for line in mismatches)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_exp_passes_only_where_its_rounding_is_declared(dtype: torch.dtype, device: str) -> None:
    assert check(stub(exp_stored, roundings=2), SOFTMAX, SHAPE, dtype, device)["status"] == "passed"
    assert check(stub(exp_stored, roundings=1), SOFTMAX, SHAPE, dtype, device)["status"] == "failed"


def test_declared_roundings_allow_nothing_in_float32(device: str) -> None:
    nudged = stub(lambda inputs, out: right(inputs, out).mul_(1 + 5e-6), roundings=100)
    assert check(nudged, SOFTMAX, SHAPE, torch.float32, device)["status"] == "failed"


def test_row_sums_find_a_bias_that_each_element_alone_may_have(device: str) -> None:
    biased = stub(lambda inputs, out: right(inputs, out).mul_(1 + 1.1e-6))  # 9 of 14 to 20 ulps allowed
    error = check(biased, SOFTMAX, (6, 1501), torch.float32, device)["error"]
    assert error is not None and "row sums are wrong" in error


@pytest.mark.parametrize("beyond", [-1, 1])
def test_one_element_written_outside_the_output_is_seen(beyond: int, device: str) -> None:
    def outside(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        right(inputs, out)
        at = out.storage_offset() + (out.numel() if beyond > 0 else -1)
        out.as_strided((1,), (1,), at).zero_()

    assert "memory before or after" in check(stub(outside), SOFTMAX, SHAPE, torch.float16, device)["error"]


@pytest.mark.parametrize("beyond", [-1, 1])
def test_reading_outside_an_input_gives_nan(beyond: int, device: str) -> None:
    def outside(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        right(inputs, out)
        x = inputs[0]
        at = x.storage_offset() + (x.numel() if beyond > 0 else -1)
        out[3] += 0 * x.as_strided((1,), (1,), at)

    assert "NaN" in check(stub(outside), SOFTMAX, SHAPE, torch.float32, device)["error"]


def test_result_computed_before_the_inputs_were_there_is_seen(device: str) -> None:
    def prepare(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        results: list[Tensor] = []

        def launch() -> None:
            if not results:
                results.append(torch.softmax(inputs[0], -1))
            out.copy_(results[0])

        return launch

    entry = check(Implementation("stub", "torch", None, prepare), SOFTMAX, SHAPE, torch.float32, device)
    assert entry["status"] == "failed"


def test_nan_where_there_should_be_none_is_seen_where_inf_should_be_too(device: str) -> None:
    def inf_as_nan(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        out.copy_(inputs[0] + inputs[1])
        out[out.isinf()] = nan

    assert check(stub(inf_as_nan), VECTOR_ADD, (4099,), torch.float32, device, seed=1)["status"] == "failed"


# What cannot be judged


@pytest.mark.parametrize("error", [ValueError, TypeError, NotImplementedError])
def test_refusal_by_prepare_is_no_failure(error: type[Exception], device: str) -> None:
    def prepare(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        raise error("takes at most 12288 columns")

    entry = check(Implementation("stub", "torch", None, prepare), SOFTMAX, SHAPE, torch.float32, device)
    assert (entry["status"], entry["error"]) == ("refused", "takes at most 12288 columns")


def test_anything_raised_by_the_launch_is_an_error_with_its_name(device: str) -> None:
    def raises(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        raise ValueError("no kernel image")

    entry = check(stub(raises), SOFTMAX, SHAPE, torch.float32, device)
    assert (entry["status"], entry["error"]) == ("error", "ValueError: no kernel image")


def test_ctrl_c_is_not_swallowed(device: str) -> None:
    def interrupted(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(stub(interrupted), SOFTMAX, SHAPE, torch.float32, device)


# Large outputs: a sample of the rows


@pytest.mark.parametrize("row", [*range(HEAD), 999])
def test_of_a_large_output_the_first_rows_and_the_last_are_always_compared(row: int, device: str) -> None:
    def wrong_in_one_row(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        right(inputs, out)
        out[row] = out[row].flip(0)  # still sums to one

    error = check(stub(wrong_in_one_row), SOFTMAX, (1000, 64), torch.float32, device, cells=64 * 20)["error"]
    assert f"[{row}, 0]" in error


@pytest.mark.parametrize("value", [nan, 0.5], ids=["NaN", "row sum"])
def test_of_a_large_output_nan_and_row_sums_are_looked_for_everywhere(value: float, device: str) -> None:
    def wrong_in_one_element(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        right(inputs, out)
        out[500, 7] = value

    assert check(stub(right), SOFTMAX, (1000, 64), torch.float32, device, cells=1)["status"] == "passed"
    error = check(stub(wrong_in_one_element), SOFTMAX, (1000, 64), torch.float32, device, cells=1)["error"]
    assert "compared elements" not in error  # the sample misses it
    assert "1 row sums are wrong, that of row 500" in error


def test_default_sample_covers_everything_up_to_four_million_elements(device: str) -> None:
    def wrong_in_one_element(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        out.copy_(inputs[0] + inputs[1])
        out[1_234_567] *= 1.01

    error = check(stub(wrong_in_one_element), VECTOR_ADD, (CELLS,), torch.float32, device)["error"]
    assert error.startswith("1 of 4194304 compared elements are wrong\n  [1234567]: got ")


# After timing


def test_recheck_passes_what_timing_left_when_it_is_right(device: str) -> None:
    inputs = make_inputs(SOFTMAX, SHAPE, torch.float32, device, seed=3)
    out = torch.softmax(inputs[0], -1)
    assert recheck(stub(right), SOFTMAX, inputs, out, stub(right).prepare(tuple(inputs), out)) is None


def test_recheck_sees_what_timing_left_when_it_is_wrong(device: str) -> None:
    inputs = make_inputs(SOFTMAX, SHAPE, torch.float32, device, seed=3)
    out = torch.softmax(inputs[0], -1) * 1.01
    found = recheck(stub(right), SOFTMAX, inputs, out, stub(right).prepare(tuple(inputs), out))
    assert found is not None and found.startswith("after timing: ")


def test_recheck_sees_an_implementation_that_stopped_working_and_left_an_old_result(device: str) -> None:
    inputs = make_inputs(SOFTMAX, SHAPE, torch.float32, device, seed=3)
    out = torch.softmax(inputs[0], -1)
    found = recheck(stub(right), SOFTMAX, inputs, out, lambda: None)
    assert found is not None and found.startswith(
        "in a call after timing: 5467 elements are NaN or inf, 5467 never written"
    )


# The measure


@pytest.mark.parametrize(
    ("got", "wanted", "dtype", "ulps"),
    [
        (1 + 2**-23, 1.0, torch.float32, 1),
        (1 - 2**-24, 1.0, torch.float32, 0.5),
        (2 + 2**-22, 2.0, torch.float32, 1),
        (2 - 2**-23, 2 - 2**-22, torch.float32, 1),
        (-3.0, -3 - 2**-21, torch.float32, 2),
        (1 + 2**-9, 1.0, torch.float16, 2),
        (1 + 2**-9, 1.0, torch.bfloat16, 0.25),
        (0.0, 1e-38, torch.float32, 0),
        (0.0, 1.3e-38, torch.float32, 1.3e-38 / 2**-149),
        (0.0, 2.0**-120, torch.bfloat16, 128),
        (0.0, 2.0**-20, torch.float16, 16),  # a float16 below the normal numbers counts
        (2.0**-24, 0.0, torch.float16, 1),
        (0.0, 0.0, torch.float16, 0),
        (nan, nan, torch.float32, 0),
        (inf, inf, torch.float32, 0),
        (inf, 65520.0, torch.float16, 0),  # rounds to inf
        (-inf, inf, torch.float32, inf),
        (nan, 1.0, torch.float32, inf),
        (1.0, nan, torch.float32, inf),
        (inf, nan, torch.float32, inf),
        (3.4e38, inf, torch.float32, inf),
    ],
)
def test_ulps(got: float, wanted: float, dtype: torch.dtype, ulps: float) -> None:
    measured = ulps_off(torch.tensor([got], dtype=torch.float64), torch.tensor([wanted], dtype=torch.float64), dtype)
    assert measured.item() == pytest.approx(ulps, rel=1e-12)


# The inputs


@every_operation
@every_dtype
def test_inputs_are_the_same_for_a_seed_and_fresh_for_every_draw_and_seed(
    operation: Operation, dtype: torch.dtype, device: str
) -> None:
    shape = SHAPE if operation.kind == "rows" else (4099,)

    def made(seed: int, draw: int) -> list[Tensor]:
        return make_inputs(operation, shape, dtype, device, seed, draw)

    assert all(torch.equal(a, b) for a, b in zip(made(1, 0), made(1, 0), strict=True))
    for other in (made(1, 1), made(2, 0)):
        assert all((a != b).float().mean() > 0.5 for a, b in zip(made(1, 0), other, strict=True))
    assert all(x.dtype == dtype and x.shape == shape and x.device.type == device for x in made(1, 0))
    assert all(x.isfinite().all() for draw in (0, 1) for x in made(1, draw))


@pytest.mark.parametrize("n_rows", [1, 2, 3, 16])
def test_inputs_of_every_number_of_rows_overflow_a_plain_exp_and_have_outliers(n_rows: int, device: str) -> None:
    (first,), (second,) = (make_inputs(SOFTMAX, (n_rows, 1000), torch.float32, device, 0, draw) for draw in (0, 1))
    rows = torch.cat([first, second])
    means, spreads = rows.mean(-1).abs(), rows.std(-1)
    assert (means > 90).any() and (spreads > 2).any()
    assert (rows < 0).any()


def test_inputs_of_draw_2_hold_nan_and_both_infinities(device: str) -> None:
    (x,) = make_inputs(SOFTMAX, SHAPE, torch.float32, device, 0, draw=2)
    assert x[:HEAD].isnan().any(-1).sum() == 1
    assert (x[:HEAD] == inf).any(-1).sum() == 1
    assert (x[:HEAD] == -inf).all(-1).sum() == 1
    assert (x[:HEAD] == -inf).any(-1).sum() == 2
    assert x[HEAD:].isfinite().all()
