"""The Ninja Gap on records whose answer is known."""

import math

import pytest
from synthetic import BYTES, COPY, PEAK, SPEED, WIDTHS, check, copied, implementation, laptop, measurement, sweep

from compare import gap, record


def known(**medians: float) -> dict:
    """A record of one shape with these times in units of a copy; names with _ for / and . as in torch_softmax."""
    made = sweep(("float32",), (1024,), {})
    shape = tuple(made["copies"][0]["shape"])
    for key, median in medians.items():
        name = key.replace("torch_", "torch.") if key.startswith("torch") else key.replace("_", "/")
        made["implementations"].append(implementation(name))
        made["measurements"].append(measurement(name, shape, "float32", median * 2 * BYTES / COPY))
        made["checks"].append(check(name, shape, "float32", "gpu"))
    return made


def only(made: dict, peers: bool = False) -> gap.Gap:
    """The one gap of the record."""
    (found,) = gap.gaps(made, peers)
    return found


def test_twice_as_slow_is_a_residual_of_two_and_half_of_a_fourfold_gap_closed() -> None:
    found = only(known(eager=4, torch_softmax=2, cuda_naive=2, cuda_fused=1))
    assert found.best == "cuda/fused"
    assert {name: total.mean for name, total in found.totals.items()} == pytest.approx({"eager": 4, "torch.softmax": 2})
    naive = found.standings["cuda/naive"]
    assert naive.residual.mean == pytest.approx(2)
    assert naive.closed == pytest.approx({"eager": 0.5, "torch.softmax": 0})
    assert found.standings["cuda/fused"].closed == pytest.approx({"eager": 1, "torch.softmax": 1})


def test_efficiency_is_least_bytes_over_peak_and_the_copy_ratio_is_of_the_same_run() -> None:
    standing = only(known(eager=4, cuda_fused=1.25)).standings["cuda/fused"]
    assert standing.efficiency is not None and standing.efficiency.mean == pytest.approx(COPY / 1.25 / PEAK)
    assert standing.copy_ratio is not None and standing.copy_ratio.mean == pytest.approx(0.8)


def test_without_a_peak_there_is_no_efficiency_but_a_gap() -> None:
    made = known(eager=4, cuda_fused=1)
    made["machine"]["peak_bytes_per_s"] = None
    assert only(made).standings["cuda/fused"].efficiency is None and only(made).totals["eager"].mean == pytest.approx(4)


@pytest.mark.parametrize("eager", [0.5, 1.0, 1.04])
def test_a_gap_below_five_percent_is_none_to_close(eager: float) -> None:
    found = only(known(eager=eager, cuda_fused=1))
    assert found.totals["eager"].mean == pytest.approx(eager)
    assert found.standings["cuda/fused"].closed == {"eager": None}


def test_the_best_is_ours_unless_peers_are_asked_for() -> None:
    made = known(eager=4, torch_compile=0.5, cuda_fused=1, triton_fused=0.9)
    made["implementations"].append({"name": "quack", "language": "triton", "rung": None})
    made["measurements"].append({**made["measurements"][0], **measurement("quack", (131072, 1024), "float32", 1e-5)})
    assert only(made).best == "triton/fused" and "quack" not in only(made).standings
    assert only(made, peers=True).best == "quack"
    assert list(only(made).totals) == ["eager"]  # torch.compile stands among the others, but is no baseline


def test_means_are_geometric_with_their_range() -> None:
    spread = gap.spread([1.0, 4.0])
    assert (spread.mean, spread.low, spread.high) == (pytest.approx(2), 1, 4)
    assert gap.spread([0.1]).mean == 0.1  # rounding does not leave the range


def test_all_are_averaged_over_the_shapes_that_all_ran() -> None:
    found = gap.gaps(sweep())[0]
    assert [shape[1] for shape in found.shapes] == [width for width in WIDTHS if width <= 12288]
    ratios = [fused / naive for fused, naive in zip(SPEED["cuda/fused"], SPEED["cuda/naive"], strict=False)]
    assert found.standings["cuda/naive"].residual.mean == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert [each.dtype for each in gap.gaps(sweep())] == ["float32", "bfloat16"]


@pytest.mark.parametrize("status", ["failed", "error"])
def test_one_failed_check_takes_the_speed_of_that_dtype_away(status: str) -> None:
    made = sweep(widths=(1024,))
    made["checks"].append(check("cuda/fused", (4, 33), "float32", "cpu_model", status))
    first, second = gap.gaps(made)
    assert first.best == "triton/fused" and "cuda/fused" not in first.standings
    assert first.left_out == {"cuda/fused": "did not pass its checks"}
    assert second.best == "cuda/fused"


def test_wrong_after_timing_counts_as_a_failed_check() -> None:
    made = sweep(("float32",), (1024, 2048))
    made["measurements"].append(measurement("cuda/fused", (1, 8), "float32", None, "failed"))
    assert "cuda/fused" not in only(made).standings


def test_a_failed_check_of_another_source_says_nothing() -> None:
    made = known(eager=4, cuda_fused=1)
    made["checks"].append({**check("cuda/fused", (4, 33), "float32", "gpu", "failed"), "fingerprint": "older source"})
    assert only(made).best == "cuda/fused"


def test_ours_without_any_check_has_no_speed_but_a_baseline_needs_none() -> None:
    made = known(eager=4, cuda_fused=1, cuda_naive=2)
    made["checks"] = [entry for entry in made["checks"] if entry["implementation"] == "cuda/naive"]
    found = only(made)
    assert found.best == "cuda/naive" and list(found.totals) == ["eager"]


def test_cold_and_graph_times_are_never_mixed() -> None:
    made = known(eager=4, cuda_fused=1)
    shape = tuple(made["copies"][0]["shape"])
    made["measurements"].append(measurement("cuda/fused", shape, "float32", 1e-9, method="graph"))
    assert only(made).totals["eager"].mean == pytest.approx(4)
    small = (4, 33)
    for name, median in (("eager", 30e-6), ("cuda/fused", 3e-6)):
        made["measurements"].append(measurement(name, small, "float32", median, method="graph"))
    found = only(made)
    assert found.shapes == [small, shape]  # a shape that has graph times only counts with them
    assert (found.totals["eager"].low, found.totals["eager"].high) == (pytest.approx(4), pytest.approx(10))


def test_times_of_two_runs_are_never_divided() -> None:
    old = known(eager=4, cuda_naive=2, cuda_fused=1)
    new = known(cuda_fused=0.1)  # alone, and ten times as fast, on a later day
    new["machine"]["date"] = "2026-12-02T10:00:00+00:00"
    found = only(record.merge(old, new))
    assert found.best == "cuda/naive" and found.totals["eager"].mean == pytest.approx(2)
    assert found.left_out == {"cuda/fused": "no time beside the others"}


def test_of_two_whole_runs_the_newer_counts() -> None:
    old, new = known(eager=4, cuda_naive=2, cuda_fused=1), known(eager=9, cuda_fused=1)
    new["machine"]["date"] = "2026-12-02T10:00:00+00:00"
    assert only(record.merge(old, new)).totals["eager"].mean == pytest.approx(9)


def test_an_implementation_that_shares_no_shape_is_left_out_by_name() -> None:
    made = known(eager=4, cuda_fused=1)
    made["implementations"].append(implementation("cuda/naive"))
    made["checks"].append(check("cuda/naive", (4, 33), "float32", "gpu"))
    made["measurements"].append(measurement("cuda/naive", (4, 33), "float32", 1e-5))
    assert only(made).left_out == {"cuda/naive": "no time beside the others"}


def test_no_gap_where_nothing_of_ours_has_a_time() -> None:
    assert gap.gaps(laptop()) == []
    assert gap.gaps(known(eager=4, torch_softmax=1)) == []


def test_a_copy_of_another_run_is_no_reference() -> None:
    old = known(eager=4, cuda_fused=1)
    old["copies"] = []
    new = record.new("softmax", "", {**old["machine"], "date": "2026-12-02"})
    new["copies"] = [copied(tuple(old["measurements"][0]["shape"]), "float32", 1e-3)]
    assert only(record.merge(old, new)).standings["cuda/fused"].copy_ratio is None
