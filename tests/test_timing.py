"""The timing logic, with a fake clock; the marked tests, with the real one."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from compare import correctness, timing, verdicts
from compare.registry import OPERATIONS, Implementation

ADD = OPERATIONS["vector_add"]
SHAPE = (1000,)  # 12000 bytes at least
LEAST = 12000


@pytest.fixture(autouse=True)
def nothing_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in timing.FORBIDDEN:
        monkeypatch.delenv(name, raising=False)


class FakeClock:
    """A launch says by `spend` how long it takes; the copy, which does not, takes as long as at half the peak."""

    device = torch.device("cpu")
    l2_bytes = 60_000
    peak_bytes_per_s: float | None = 1e12
    empty_span_s = 2e-6

    def __init__(self, memory: int = 1 << 40) -> None:
        self.memory = memory
        self.spans: list[list[str]] = []  # of each span, who was launched
        self.spent: float | None = None
        self.launched: list[str] = []
        self.capture_problem: dict[str, Exception] = {}
        self.captures_nothing = ""  # of whom
        self.factor: Callable[[int], float] = lambda number: 1.0
        self.throttles: Callable[[int], bool] = lambda number: False  # after so many spans

    def spend(self, name: str, seconds: float) -> None:
        self.spent = (self.spent or 0.0) + seconds
        self.launched.append(name)

    def free_bytes(self) -> int:
        return self.memory

    def synchronize(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        words = ["power cap"] if self.throttles(len(self.spans)) else []
        return {"sm_mhz": 1980 - len(self.spans), "power_w": None, "throttled": words}

    def span(self, launch: timing.Launch, flush: bool = True) -> float:
        self.spent, self.launched = None, []
        launch()
        self.spans.append(self.launched or ["copy"])
        spent = 1e-4 if self.spent is None else self.spent
        return spent * self.factor(len(self.spans))

    def capture(self, launches: Sequence[timing.Launch]) -> timing.Launch:
        self.launched = []
        launches[0]()
        name = self.launched[0] if self.launched else "copy"
        if name in self.capture_problem:
            raise self.capture_problem[name]
        if name == self.captures_nothing:
            return lambda: self.spend(name, 2e-5 * len(launches))

        def replay() -> None:
            for launch in launches:
                launch()

        return replay


Seconds = float | Callable[[], float]


def implementation(
    clock: FakeClock, name: str, seconds: Seconds = 1e-4, compute: Callable[..., Any] = torch.add
) -> Implementation:
    def prepare(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        def launch() -> None:
            compute(*inputs, out=out)
            clock.spend(name, seconds() if callable(seconds) else seconds)

        return launch

    return Implementation(name, "cuda", "naive", prepare)


def recheck(
    implementation: Implementation, operation: Any, inputs: tuple[Tensor, ...], out: Tensor, launch: timing.Launch
) -> str | None:
    return None if torch.equal(out, inputs[0] + inputs[1]) else "wrong sums"


def unchecked(*_: Any) -> str | None:
    return None


def measure(
    clock: FakeClock, *implementations: Implementation, shape: tuple[int, ...] = SHAPE, **options: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """The entries by (name, method)."""
    given = {"seed": 1, "recheck": recheck, "limit_s": 0.2, **options}
    result = timing.measure_cell(ADD, shape, torch.float32, implementations, clock, **given)
    entries = [*result.measurements, *({**entry, "implementation": "copy"} for entry in result.copies)]
    return {(entry["implementation"], entry["method"]): entry for entry in entries}


def status(entries: dict[tuple[str, str], dict[str, Any]], method: str = "cold") -> dict[str, str]:
    return {name: entry["status"] for (name, of), entry in entries.items() if of == method}


def noisy(center: float, spread: float, seed: int) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: center * (1 + rng.uniform(-spread, spread))


# What an entry holds


def test_a_passed_entry_holds_what_the_record_wants() -> None:
    clock = FakeClock()
    entries = measure(clock, implementation(clock, "a", 1e-4))
    assert entries["a", "cold"].pop("first_call_seconds") >= 0
    n = entries["a", "cold"]["seconds"]["n"]
    assert n >= 10
    assert entries["a", "cold"] == {
        "implementation": "a", "shape": [1000], "dtype": "float32", "method": "cold", "status": "passed", "error": None,
        "seconds": {"median": 1e-4, "q1": 1e-4, "q3": 1e-4, "n": n}, "samples_ns": [100_000] * n, "stopped": "noise",
        "throttled_samples": [],
        "effective_bytes_per_s": pytest.approx(LEAST / 1e-4), "empty_span_seconds": 2e-6,
    }  # fmt: skip


def test_the_copy_is_timed_in_the_same_rounds_and_moves_as_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    monkeypatch.setattr(timing, "_copy", lambda source, out: moved.append(source.nbytes + out.nbytes))
    clock = FakeClock()
    entries = measure(clock, implementation(clock, "a"))
    assert set(moved) == {LEAST}
    assert entries["copy", "cold"]["seconds"]["n"] == entries["a", "cold"]["seconds"]["n"]
    assert entries["copy", "cold"]["effective_bytes_per_s"] == pytest.approx(LEAST / 1e-4)


def test_quartiles_and_median_are_those_of_the_samples() -> None:
    clock = FakeClock()
    entry = measure(clock, implementation(clock, "a", noisy(1e-4, 0.3, 5)))["a", "cold"]
    samples = entry["samples_ns"]
    assert entry["seconds"]["median"] == pytest.approx(statistics.median(samples) / 1e9)
    assert entry["seconds"]["q1"] < entry["seconds"]["median"] < entry["seconds"]["q3"]
    assert sum(ns / 1e9 <= entry["seconds"]["q1"] for ns in samples) == pytest.approx(len(samples) / 4, abs=1)


# How samples are taken


def test_every_round_times_each_once_in_changing_order() -> None:
    clock = FakeClock()
    names = {"a", "b", "c", "copy"}
    measure(clock, *(implementation(clock, name, noisy(1e-4, 0.1, seed)) for seed, name in enumerate("abc")))
    rounds = [tuple(name for (name,) in clock.spans[i : i + 4]) for i in range(0, len(clock.spans), 4)]
    assert all(set(order) == names for order in rounds)
    assert len(set(rounds)) > 10
    firsts = [order[0] for order in rounds]
    assert all(firsts.count(name) > len(rounds) / 8 for name in names)


def test_the_order_comes_from_the_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        clock = FakeClock()
        measure(clock, *(implementation(clock, name) for name in "abc"), seed=seed, max_noise=-1.0)
        orders.append(clock.spans[:200])
    assert orders[0] == orders[1] != orders[2]


def test_drifting_clocks_do_not_favour_who_is_timed_first() -> None:
    clock = FakeClock()
    clock.factor = lambda number: 1 + number / 1000
    entries = measure(clock, implementation(clock, "a"), implementation(clock, "b"), max_noise=0.0)
    a, b = (entries[name, "cold"]["seconds"]["median"] for name in "ab")
    assert len(clock.spans) > 1000  # so the clock drifted to half its speed
    assert a / b == pytest.approx(1, abs=0.01)
    assert verdicts.judge(entries["a", "cold"], entries["b", "cold"]).word == "tie"


def test_samples_of_equal_implementations_overlap() -> None:
    clock = FakeClock()
    slow_and_fast = (implementation(clock, name, noisy(1e-4, 0.2, seed)) for seed, name in enumerate("ab"))
    entries = measure(clock, *slow_and_fast)
    a, b = (entries[name, "cold"]["seconds"] for name in "ab")
    assert a["q1"] < b["median"] < a["q3"] and b["q1"] < a["median"] < b["q3"]
    assert verdicts.judge(entries["a", "cold"], entries["b", "cold"]).word == "tie"


def test_no_sample_is_dropped_however_far_off() -> None:
    clock = FakeClock()
    calls = iter(range(10**6))
    entry = measure(clock, implementation(clock, "a", lambda: 5e-2 if next(calls) % 7 == 0 else 1e-4))["a", "cold"]
    assert len(entry["samples_ns"]) == entry["seconds"]["n"]
    assert entry["samples_ns"].count(50_000_000) == pytest.approx(entry["seconds"]["n"] / 7, abs=1)


def test_rounds_go_on_until_all_medians_are_known_well_enough() -> None:
    clock = FakeClock()
    quiet, loud = implementation(clock, "quiet"), implementation(clock, "loud", noisy(1e-4, 0.05, 3))
    entries = measure(clock, quiet, loud, limit_s=60, max_noise=0.01)
    assert entries["quiet", "cold"]["stopped"] == entries["loud", "cold"]["stopped"] == "noise"
    assert 10 < entries["quiet", "cold"]["seconds"]["n"] == entries["loud", "cold"]["seconds"]["n"] < 500
    assert timing.noise(entries["loud", "cold"]["samples_ns"]) <= 0.01


def test_the_limit_ends_the_rounds_and_is_named() -> None:
    clock = FakeClock()

    def slow() -> float:
        time.sleep(0.01)
        return 1e-4 * random.uniform(0.5, 1.5)

    begun = time.perf_counter()
    entry = measure(clock, implementation(clock, "a", slow), limit_s=0.2, max_noise=0.0)["a", "cold"]
    assert time.perf_counter() - begun < 2
    assert entry["stopped"] == "limit" and 3 <= entry["seconds"]["n"] <= 30


def test_a_first_call_that_sleeps_is_not_in_the_samples() -> None:
    clock = FakeClock()
    calls = iter(range(10**6))

    def compiles_first() -> float:
        if next(calls) == 0:
            time.sleep(0.3)
            return 0.3
        return 1e-4

    entries = measure(clock, implementation(clock, "a", compiles_first), implementation(clock, "b"))
    assert entries["a", "cold"]["first_call_seconds"] >= 0.3 > entries["b", "cold"]["first_call_seconds"]
    assert set(entries["a", "cold"]["samples_ns"]) == {100_000}


def test_clocks_that_ramp_up_are_not_in_the_samples() -> None:
    clock = FakeClock()
    clock.factor = lambda number: 1 if number > 20 else 2
    assert set(measure(clock, implementation(clock, "a"))["a", "cold"]["samples_ns"]) == {100_000}


def test_noise_is_the_half_width_of_the_medians_interval() -> None:
    assert timing.noise([100] * 10) == 0
    assert timing.noise([1, 2, 3, 4, 5]) == math.inf
    # Of ten, the 2nd and the 9th bound the median with 98 %.
    assert timing.noise([10, 3, 1, 2, 5, 4, 7, 6, 9, 8]) == pytest.approx((9 - 2) / 2 / 5.5)


@pytest.mark.parametrize("n", [7, 10, 25, 100])
def test_medians_seldom_lie_further_off_than_twice_the_noise(n: int) -> None:
    rng = random.Random(n)
    far = 0
    for _ in range(1000):
        samples = [round(1e6 * rng.gauss(1, 0.05)) for _ in range(n)]
        # The interval need not lie evenly about the median, so up to its whole width on one side.
        far += abs(statistics.median(samples) - 1e6) > 2 * timing.noise(samples) * statistics.median(samples)
    assert far <= 50


def test_samples_taken_while_the_gpu_throttled_are_kept_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WATCH", 0)  # look at the GPU after every round
    clock = FakeClock()
    begun: list[int] = []

    def throttles(spans: int) -> bool:
        begun.append(spans)
        return spans == begun[0] + 2 * 4  # seen once, after the fourth round of the samples

    clock.throttles = throttles  # first asked when the warm-up is over
    entries = measure(clock, implementation(clock, "a"), max_noise=-1.0, graph_below_s=0)
    assert entries["a", "cold"]["throttled_samples"] == entries["copy", "cold"]["throttled_samples"] == [3, 4]
    assert len(entries["a", "cold"]["samples_ns"]) == entries["a", "cold"]["seconds"]["n"] == timing.MAX_SAMPLES


def test_the_gpus_state_before_during_and_after_stands_with_the_copy() -> None:
    clock = FakeClock()
    entries = measure(clock, implementation(clock, "a"))
    state = entries["copy", "cold"]["gpu_state"]
    assert state["before"]["sm_mhz"] > state["after"]["sm_mhz"] == 1980 - len(clock.spans)
    assert state["during"] == {"sm_mhz": [state["after"]["sm_mhz"], state["before"]["sm_mhz"]], "throttled": []}
    assert "gpu_state" not in entries["a", "cold"]


def test_a_gpu_that_tells_nothing_marks_nothing() -> None:
    clock = FakeClock()
    clock.state = lambda: {"sm_mhz": None, "throttled": None}  # type: ignore[method-assign]
    entries = measure(clock, implementation(clock, "a"))
    assert entries["a", "cold"]["throttled_samples"] == []
    assert entries["copy", "cold"]["gpu_state"]["during"] == {"throttled": []}


def test_one_sample_is_its_own_median_and_quartiles() -> None:
    assert timing.summary([3_000]) == {"median": 3e-6, "q1": 3e-6, "q3": 3e-6, "n": 1}


# What is not believed


@pytest.mark.parametrize("seconds", [0.0, -1e-4, math.nan, math.inf, 1e-13])
def test_a_span_that_is_no_time_is_an_error_and_the_others_go_on(seconds: float) -> None:
    clock = FakeClock()
    entries = measure(clock, implementation(clock, "a", seconds), implementation(clock, "b"))
    assert status(entries) == {"a": "error", "b": "passed", "copy": "passed"}
    assert "the timing is wrong" in entries["a", "cold"]["error"]
    assert not {"seconds", "samples_ns", "effective_bytes_per_s"} & entries["a", "cold"].keys()


def test_one_bad_span_late_is_an_error_too() -> None:
    clock = FakeClock()
    calls = iter(range(10**6))
    entries = measure(clock, implementation(clock, "a", lambda: -1.0 if next(calls) == 40 else 1e-4), max_noise=-1.0)
    assert status(entries) == {"a": "error", "copy": "passed"}


def test_ten_times_the_peak_is_an_error() -> None:
    clock = FakeClock()
    entries = measure(clock, implementation(clock, "a", LEAST / 1e13), implementation(clock, "b"), graph_below_s=0)
    assert status(entries) == {"a": "error", "b": "passed", "copy": "passed"}
    assert "above the card's peak" in entries["a", "cold"]["error"]
    assert "seconds" not in entries["a", "cold"]


def test_a_copy_above_the_peak_is_an_error() -> None:
    clock = FakeClock()
    clock.peak_bytes_per_s = LEAST / 1e-4 / 3
    assert status(measure(clock, implementation(clock, "a", 1e-3)))["copy"] == "error"


@pytest.mark.parametrize(("times_peak", "expected"), [(0.99, "passed"), (1.4, "passed"), (1.6, "error")])
def test_writes_that_l2_still_holds_explain_a_little_above_the_peak(times_peak: float, expected: str) -> None:
    clock = FakeClock()  # its L2 holds the whole output, a third of the bytes: 1.5 x the peak is possible
    clock.peak_bytes_per_s = 1e9
    entry = measure(clock, implementation(clock, "a", LEAST / 1e9 / times_peak), graph_below_s=0)["a", "cold"]
    assert entry["status"] == expected
    assert ("note" in entry) == (times_peak == 1.4)


def test_where_l2_is_small_beside_the_output_there_is_no_such_excuse() -> None:
    clock = FakeClock()
    clock.l2_bytes, clock.peak_bytes_per_s = 64, 1e9
    entry = measure(clock, implementation(clock, "a", LEAST / 1e9 / 1.05), graph_below_s=0)["a", "cold"]
    assert entry["status"] == "error"


def test_a_peak_that_is_not_known_forbids_nothing() -> None:
    clock = FakeClock()
    clock.peak_bytes_per_s = None
    assert status(measure(clock, implementation(clock, "a", LEAST / 1e13), graph_below_s=0))["a"] == "passed"


# One implementation's failure is its own


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("n_cols is 12289, wanted at most 12288"), "refused"),
        (TypeError("dtype"), "refused"),
        (NotImplementedError("rows"), "refused"),
        (RuntimeError("not built"), "error"),
        (torch.OutOfMemoryError("Tried to allocate 2 GiB"), "skipped"),
    ],
)
def test_what_prepare_raises_is_its_result_and_the_others_go_on(error: Exception, expected: str) -> None:
    def prepare(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        raise error

    clock = FakeClock()
    entries = measure(clock, Implementation("a", "cuda", "fused", prepare), implementation(clock, "b"))
    assert status(entries) == {"a": expected, "b": "passed", "copy": "passed"}
    assert str(error) in entries["a", "cold"]["error"]
    assert "seconds" not in entries["a", "cold"]


@pytest.mark.parametrize("at", [0, 5, 30])
def test_a_launch_that_raises_is_an_error_and_the_others_go_on(at: int) -> None:
    clock = FakeClock()
    calls = iter(range(10**6))

    def raises() -> float:
        if next(calls) == at:
            raise ValueError("invalid configuration argument")
        return 1e-4

    entries = measure(clock, implementation(clock, "a", raises), implementation(clock, "b"), max_noise=-1.0)
    assert status(entries) == {"a": "error", "b": "passed", "copy": "passed"}
    assert entries["a", "cold"]["error"] == "ValueError: invalid configuration argument"


def test_interrupting_is_not_taken_for_a_failure() -> None:
    def interrupts() -> float:
        raise KeyboardInterrupt

    clock = FakeClock()
    with pytest.raises(KeyboardInterrupt):
        measure(clock, implementation(clock, "a", interrupts))


def test_too_little_memory_is_skipped_with_what_it_needs_and_what_there_is() -> None:
    clock = FakeClock(memory=20_000)
    entries = measure(clock, implementation(clock, "a"), implementation(clock, "b"))
    assert status(entries) == {"a": "skipped", "b": "skipped", "copy": "skipped"}
    needed = timing.bytes_needed(ADD, SHAPE, 4, sets=1, outputs=2, users=1)
    assert entries["a", "cold"]["error"] == f"out of memory: needs {needed:,} bytes, 20,000 are free"


def test_no_implementation_at_all_still_times_the_copy() -> None:
    assert status(measure(FakeClock())) == {"copy": "passed"}


@pytest.mark.parametrize("shape", [(), (0,), (5, 0)])
def test_an_empty_shape_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape: got"):
        measure(FakeClock(), shape=shape)


# Only what is still right gets a time


def wrong_after(calls_right: int) -> Callable[..., Tensor]:
    calls = iter(range(10**6))

    def compute(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        torch.add(x, y, out=out)
        return out.mul_(1.01) if next(calls) >= calls_right else out

    return compute


def test_right_ten_times_then_wrong_gets_no_time() -> None:
    clock = FakeClock()
    a, b = implementation(clock, "a", compute=wrong_after(10)), implementation(clock, "b")
    entries = measure(clock, a, b)
    assert status(entries) == {"a": "failed", "b": "passed", "copy": "passed"}
    assert entries["a", "cold"]["error"] == "wrong sums"
    assert not {"seconds", "samples_ns", "effective_bytes_per_s"} & entries["a", "cold"].keys()


def test_the_harness_own_recheck_fits_and_finds_a_stale_output() -> None:
    calls = iter(range(10**6))

    def only_once(x: Tensor, y: Tensor, out: Tensor) -> None:
        if next(calls) == 0:
            torch.add(x, y, out=out)

    clock = FakeClock()
    stale, right = implementation(clock, "stale", compute=only_once), implementation(clock, "right")
    entries = measure(clock, stale, right, recheck=correctness.recheck)
    assert status(entries) == {"stale": "failed", "right": "passed", "copy": "passed"}


def test_a_recheck_that_raises_is_an_error() -> None:
    def raising(*_: Any) -> str | None:
        raise MemoryError("float64")

    clock = FakeClock()
    assert status(measure(clock, implementation(clock, "a"), recheck=raising))["a"] == "error"


def test_each_implementation_has_an_output_of_its_own_to_be_looked_at() -> None:
    seen: list[tuple[str, int]] = []

    def look(implementation: Implementation, _: Any, inputs: tuple[Tensor, ...], out: Tensor, launch: Any) -> None:
        seen.append((implementation.name, out.data_ptr()))

    clock = FakeClock()
    measure(clock, implementation(clock, "a"), implementation(clock, "b"), recheck=look)
    assert {name for name, _ in seen} == {"a", "b"} and len({pointer for _, pointer in seen}) == 2


# Graph


def test_only_cells_below_the_bound_get_graph_times() -> None:
    for seconds, expected in ((49e-6, True), (51e-6, False)):
        clock = FakeClock()
        entries = measure(clock, implementation(clock, "a", seconds), implementation(clock, "b", 1e-3))
        assert (("a", "graph") in entries) == (("b", "graph") in entries) == (("copy", "graph") in entries) == expected


def test_graph_time_is_that_of_one_launch() -> None:
    clock = FakeClock()
    entry = measure(clock, implementation(clock, "a", 2e-5))["a", "graph"]
    assert entry["seconds"]["median"] == pytest.approx(2e-5)
    assert set(entry["samples_ns"]) == {20_000}
    assert entry["status"] == "passed" and entry["effective_bytes_per_s"] == pytest.approx(LEAST / 2e-5)
    assert entry["launches"] >= timing.MIN_LAUNCHES and entry["launches"] % entry["sets"] == 0
    assert "first_call_seconds" not in entry


@pytest.mark.parametrize("l2_bytes", [1, 4_000, 60_000, 1_000_000])
def test_the_sets_of_a_graph_exceed_twice_the_l2_cache(l2_bytes: int) -> None:
    buffers: set[tuple[int, ...]] = set()

    def compute(x: Tensor, y: Tensor, out: Tensor) -> None:
        torch.add(x, y, out=out)
        buffers.add((x.data_ptr(), y.data_ptr(), out.data_ptr()))

    clock = FakeClock()
    clock.l2_bytes = l2_bytes
    rotated = measure(clock, implementation(clock, "a", 2e-5, compute))["a", "graph"]["sets"]
    assert rotated >= 2 and rotated * LEAST > 2 * l2_bytes
    assert len(buffers) == rotated + 1  # with the cold one
    assert all(len(set(pointers)) == len(buffers) for pointers in zip(*buffers, strict=True))


def test_tiny_cells_stop_at_the_most_sets() -> None:
    clock = FakeClock()
    clock.l2_bytes = 1 << 20
    entries = measure(clock, implementation(clock, "a", 2e-5), shape=(7,))
    assert entries["a", "graph"]["sets"] == timing.MAX_SETS


def test_what_cannot_be_captured_is_skipped_with_its_reason_and_the_others_go_on() -> None:
    clock = FakeClock()
    clock.capture_problem = {"a": RuntimeError("operation not permitted when stream is capturing")}
    entries = measure(clock, implementation(clock, "a", 2e-5), implementation(clock, "b", 2e-5))
    assert status(entries) == {"a": "passed", "b": "passed", "copy": "passed"}
    assert status(entries, "graph") == {"a": "skipped", "b": "passed", "copy": "passed"}
    assert "operation not permitted" in entries["a", "graph"]["error"]


def test_what_failed_cold_is_not_captured() -> None:
    clock = FakeClock()
    a, b = implementation(clock, "a", 2e-5, wrong_after(10)), implementation(clock, "b", 2e-5)
    assert status(measure(clock, a, b), "graph") == {"b": "passed", "copy": "passed"}


def test_a_graph_that_computes_nothing_gets_no_time() -> None:
    for seed in range(5):  # which decides the set that is looked at
        clock = FakeClock()
        clock.captures_nothing = "a"
        ours = implementation(clock, "a", 2e-5), implementation(clock, "b", 2e-5)  # b's results lie where a's should
        assert status(measure(clock, *ours, seed=seed), "graph") == {"a": "failed", "b": "passed", "copy": "passed"}


def test_too_little_memory_for_the_sets_leaves_the_cold_time() -> None:
    clock = FakeClock(memory=timing.bytes_needed(ADD, SHAPE, 4, sets=1, outputs=1, users=1))
    entries = measure(clock, implementation(clock, "a", 2e-5))
    assert entries["a", "cold"]["status"] == "passed" and entries["a", "graph"]["status"] == "skipped"


# Buffers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (64,), (3, 781), (2, 1)])
def test_slices_are_contiguous_apart_and_aligned(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = timing.slices(5, shape, dtype, torch.device("cpu"))
    starts = [tensor.data_ptr() - tensors[0].data_ptr() for tensor in tensors]
    assert all(start % timing.ALIGNMENT == 0 for start in starts)
    assert all(tensor.shape == shape and tensor.is_contiguous() and tensor.dtype == dtype for tensor in tensors)
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def test_torch_compile_does_not_compile_again_for_the_next_slice() -> None:
    import torch._dynamo.testing as testing

    counter = testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    add = torch.compile(lambda x, y, out: torch.add(x, y, out=out), backend=counter, dynamic=False, fullgraph=True)
    x, y, out = (timing.slices(4, (33,), torch.float32, torch.device("cpu")) for _ in range(3))
    for buffers in zip(x, y, out, strict=True):
        add(buffers[0].fill_(1), buffers[1].fill_(2), buffers[2])
        assert (buffers[2] == 3).all()
    assert counter.frame_count == 1


# Where nothing may be timed


@pytest.mark.parametrize(
    "name",
    [
        "TRITON_INTERPRET", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NV_SANITIZER_INJECTION_PORT_BASE",
        "NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "NV_COMPUTE_PROFILER_PERFWORKS_DIR", "NSYS_PROFILING_SESSION_ID",
    ],
)  # fmt: skip
def test_what_would_falsify_times_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.refuse_reason() is None
    monkeypatch.setenv(name, "1")
    clock = FakeClock()
    with pytest.raises(EnvironmentError, match=name):
        measure(clock, implementation(clock, "a"))
    assert not clock.spans
    monkeypatch.setenv(name, "0")
    assert timing.refuse_reason() is None


# The real clock's logic, on a torch.cuda that is not there


class FakeGpu:
    """torch.cuda as CudaClock.span uses it: the host needs `host_cycles` to enqueue; a span lasts 1 ms."""

    def __init__(self, host_cycles: Iterator[int]) -> None:
        self.host_cycles = host_cycles
        self.slept: list[int] = []
        self.launches = 0

    def clock(self, monkeypatch: pytest.MonkeyPatch) -> timing.CudaClock:
        monkeypatch.setattr(torch.cuda, "_sleep", self.slept.append)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        clock = object.__new__(timing.CudaClock)
        clock.device = torch.device("cuda", 0)
        clock._sleep = timing.SLEEP
        clock._lines, clock._maxima = torch.zeros(2, 8), torch.ones(2)
        late = lambda: self.slept[-1] < next(self.host_cycles)  # noqa: E731
        event = SimpleNamespace(record=lambda: None, query=late, elapsed_time=lambda end: 1.0)
        clock._start = clock._end = event  # type: ignore[assignment]
        return clock

    def launch(self) -> None:
        self.launches += 1


def test_a_span_that_the_host_was_late_for_is_taken_again_after_a_longer_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(iter([timing.SLEEP * 3] * 3 + [0] * 400))
    clock = gpu.clock(monkeypatch)
    assert clock.span(gpu.launch) == 1e-3
    assert gpu.slept == [timing.SLEEP, 2 * timing.SLEEP, 4 * timing.SLEEP] and gpu.launches == 3
    for _ in range(100):
        clock.span(gpu.launch)
    assert gpu.slept[-1] == timing.SLEEP and gpu.launches == 103  # a hiccup is not paid for ever


def test_a_launch_that_waits_for_the_gpu_is_an_error_not_an_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(itertools.repeat(1 << 60))
    clock = gpu.clock(monkeypatch)
    with pytest.raises(RuntimeError, match="waits for the GPU"):
        clock.span(gpu.launch)
    assert clock._sleep == timing.SLEEP  # the next one's spans are not made slow by it


def test_the_flush_reads_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(iter([0] * 10))
    clock = gpu.clock(monkeypatch)
    clock.span(gpu.launch, flush=False)
    assert clock._maxima.tolist() == [1, 1]
    clock.span(gpu.launch)
    assert clock._maxima.tolist() == [0, 0]


class FakeCapture:
    """torch.cuda.graph: ending it raises `end_problem`, as it does after a call that capturing does not permit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, end_problem: Exception | None) -> None:
        self.end_problem, self.closed = end_problem, []
        self.streams: list[str] = ["current"]
        graph = SimpleNamespace(replay=lambda: None)
        for name, fake in {
            "CUDAGraph": lambda: graph, "graph_pool_handle": lambda: "pool", "graph": lambda *_: self,
            "current_stream": lambda: self.streams[-1], "stream": self._stream,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(
            torch._C, "_cuda_endAllocateToPool", lambda device, pool: self.closed.append((device, pool))
        )
        self.clock = object.__new__(timing.CudaClock)
        self.clock.device, self.clock._side = torch.device("cuda", 3), None  # type: ignore[assignment]
        self.replay = graph.replay

    @contextmanager
    def _stream(self, stream: str) -> Iterator[None]:
        before = len(self.streams)
        self.streams.append(stream)
        try:
            yield
        finally:
            del self.streams[before:]

    def __enter__(self) -> None:
        self.streams.append("side")

    def __exit__(self, *_: Any) -> None:
        if self.end_problem:
            raise self.end_problem  # and torch leaves the side stream current
        self.streams.pop()


def test_a_capture_that_ends_well_gives_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, ran = FakeCapture(monkeypatch, None), []
    assert fake.clock.capture([lambda: ran.append(1), lambda: ran.append(2)]) is fake.replay
    assert ran == [1, 2] and fake.streams == ["current"] and not fake.closed


@pytest.mark.parametrize("end_problem", [None, RuntimeError("capture was invalidated")])
def test_a_broken_capture_names_its_cause_and_leaves_pool_and_stream_as_they_were(
    end_problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    fake = FakeCapture(monkeypatch, end_problem)
    with pytest.raises(RuntimeError, match="not permitted"):
        fake.clock.capture([waits])
    assert fake.streams == ["current"] and fake.closed == [(3, "pool")]


# On a GPU


@pytest.fixture(scope="module")
def gpu_clock() -> timing.CudaClock:
    from compare import machine

    return timing.CudaClock("cuda", machine.describe()["peak_bytes_per_s"])


def plain(compute: Callable[..., Any], name: str = "plain") -> Implementation:
    def prepare(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        return lambda: compute(*inputs, out=out)

    return Implementation(name, "torch", None, prepare)


@pytest.mark.gpu
@pytest.mark.timed
def test_an_empty_span_is_short(gpu_clock: timing.CudaClock) -> None:
    assert 0 < gpu_clock.empty_span_s < 20e-6


@pytest.mark.gpu
@pytest.mark.timed
def test_a_span_holds_what_the_gpu_does_and_not_what_the_host_does(gpu_clock: timing.CudaClock) -> None:
    def busy_host() -> None:
        time.sleep(0.003)
        torch.cuda._sleep(1_000_000)

    gpu_clock.span(busy_host)
    spans = [gpu_clock.span(lambda: torch.cuda._sleep(1_000_000)), gpu_clock.span(busy_host)]
    assert 0.3e-3 < min(spans) and max(spans) < 1.3 * min(spans)


@pytest.mark.gpu
@pytest.mark.timed
def test_the_flush_empties_the_l2_cache(gpu_clock: timing.CudaClock) -> None:
    values = torch.ones(gpu_clock.l2_bytes // 2 // 4 // 8192, 8192, device=gpu_clock.device)
    out = torch.empty(len(values), device=gpu_clock.device)
    spans: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(20):
        for flush in spans:  # the span without a flush finds what the span before has read
            spans[flush].append(gpu_clock.span(lambda: torch.amax(values, dim=1, out=out), flush))
    assert statistics.median(spans[True]) > 1.1 * statistics.median(spans[False])


@pytest.mark.gpu
@pytest.mark.timed
def test_a_large_copy_comes_near_the_peak_and_not_above_it(gpu_clock: timing.CudaClock) -> None:
    ours = [plain(torch.add)]
    result = timing.measure_cell(ADD, (2**26,), torch.float32, ours, gpu_clock, correctness.recheck, seed=0)
    for entry in (*result.measurements, *result.copies):
        assert entry["status"] == "passed", entry["error"]
        assert gpu_clock.peak_bytes_per_s and 0.5 < entry["effective_bytes_per_s"] / gpu_clock.peak_bytes_per_s < 1.1


@pytest.mark.gpu
@pytest.mark.timed
def test_small_cells_get_both_times_and_a_broken_capture_spoils_nothing_after_it(gpu_clock: timing.CudaClock) -> None:
    def waits(*inputs: Tensor, out: Tensor) -> None:
        torch.add(*inputs, out=out)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()  # not permitted there: it breaks the capture

    def raises(*inputs: Tensor, out: Tensor) -> None:
        torch.add(*inputs, out=out)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not while capturing")

    def allocates(x: Tensor, y: Tensor, out: Tensor) -> None:
        torch.add((x + 0.0), (y + 0.0), out=out)

    stream = torch.cuda.current_stream()
    ours = [plain(f, f.__name__) for f in (waits, raises, allocates, torch.add)]
    for shape in ((4096,), (2**20,)):
        begun = time.perf_counter()
        result = timing.measure_cell(ADD, shape, torch.float32, ours, gpu_clock, correctness.recheck, seed=0)
        entries = {(entry["implementation"], entry["method"]): entry for entry in result.measurements}
        found = {name: (entries[name, "cold"]["status"], entries[name, "graph"]["status"]) for name, _ in entries}
        assert found == {
            "waits": ("passed", "skipped"), "raises": ("passed", "skipped"), "allocates": ("passed", "passed"),
            "add": ("passed", "passed"),
        }, [entry["error"] for entry in entries.values()]  # fmt: skip
        assert "not while capturing" in entries["raises", "graph"]["error"]
        cold, graph = (entries["add", method]["seconds"]["median"] for method in ("cold", "graph"))
        assert 0 < graph < 1.2 * cold
        assert time.perf_counter() - begun < 30
        torch.cuda.empty_cache()
        assert torch.cuda.current_stream() == stream and not torch.cuda.is_current_stream_capturing()
        assert torch.randn(3, device=gpu_clock.device, generator=torch.Generator(gpu_clock.device)).isfinite().all()


@pytest.mark.gpu
@pytest.mark.timed
def test_a_cell_needs_no_more_memory_than_it_says(gpu_clock: timing.CudaClock) -> None:
    for shape, sets in (((2**26,), 1), ((2**14,), 2 * gpu_clock.l2_bytes // (3 * 2**16) + 1)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        timing.measure_cell(ADD, shape, torch.float32, [plain(torch.add)], gpu_clock, unchecked, seed=0)
        used = torch.cuda.max_memory_allocated() - before
        assert used <= timing.bytes_needed(ADD, shape, 4, sets, outputs=1, users=1)


@pytest.mark.gpu
@pytest.mark.timed
def test_a_cell_with_more_than_the_card_holds_is_skipped(gpu_clock: timing.CudaClock) -> None:
    shape = (torch.cuda.get_device_properties(gpu_clock.device).total_memory // 4,)
    result = timing.measure_cell(ADD, shape, torch.float32, [plain(torch.add)], gpu_clock, unchecked, seed=0)
    assert [entry["status"] for entry in result.measurements] == ["skipped"]
    assert "out of memory" in result.measurements[0]["error"]


@pytest.mark.gpu
@pytest.mark.timed
def test_the_current_stream_is_the_one_that_is_timed(gpu_clock: timing.CudaClock) -> None:
    with torch.cuda.stream(torch.cuda.Stream(gpu_clock.device)):
        assert gpu_clock.span(lambda: torch.cuda._sleep(1_000_000)) > 0.3e-3
