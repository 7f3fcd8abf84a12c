"""Verdicts from samples: what is a tie, what pairing and the floor do, and two records against each other."""

import random
import time

import pytest
from synthetic import MACHINE, SPEED, check, copied, implementation, measurement, sweep

from compare import record, verdicts

SHAPE = (131072, 1024)


def timed(samples_us: list[float], name: str = "cuda/fused") -> dict:
    """A measurement with these samples."""
    entry = measurement(name, SHAPE, "float32", sorted(samples_us)[len(samples_us) // 2] * 1e-6)
    return {**entry, "samples_ns": [round(sample * 1000) for sample in samples_us]}


def noisy(center: float, spread: float, seed: int, n: int = 50) -> list[float]:
    rng = random.Random(seed)
    return [center * (1 + rng.uniform(-spread, spread)) for _ in range(n)]


@pytest.mark.parametrize(
    ("this", "that", "word"),
    [
        (noisy(100, 0.01, 1), noisy(120, 0.01, 2), "faster"),
        (noisy(120, 0.01, 1), noisy(100, 0.01, 2), "slower"),
        (noisy(100, 0.2, 1), noisy(102, 0.2, 2), "tie"),  # the samples overlap
        (noisy(100, 0.0005, 1), noisy(100.8, 0.0005, 2), "tie"),  # sure, but inside the floor
        (noisy(100.8, 0.0005, 1), noisy(100, 0.0005, 2), "tie"),
        (noisy(100, 0.0005, 1), noisy(101.5, 0.0005, 2), "faster"),
        ([100.0] * 10, [100.0] * 10, "tie"),
        ([100.0], [150.0], "faster"),  # one sample: no interval to speak of
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_the_floor(this: list, that: list, word: str) -> None:
    assert verdicts.judge(timed(this), timed(that)).word == word


def test_the_ratio_is_that_of_the_medians_and_is_written_with_half_its_interval() -> None:
    found = verdicts.judge(timed(noisy(100, 0.02, 1)), timed(noisy(123, 0.02, 2)))
    assert found.low < found.ratio < found.high and found.ratio == pytest.approx(1.23, rel=0.02)
    assert str(verdicts.Verdict(1.2345, 1.21, 1.25, 0.01)) == "1.23× ± 0.02"
    assert str(verdicts.Verdict(0.0123, 0.012, 0.0126, 0.01)) == "0.012× ± 0.001"
    assert str(verdicts.Verdict(2.0, 2.0, 2.0, 0.01)) == "2.00× ± 0.00"


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        rng = random.Random(seed)
        this, that = ([center * rng.gauss(1, 0.05) for _ in range(40)] for center in (100, 110))
        found = verdicts.judge(timed(this), timed(that))
        held += found.low <= 1.1 <= found.high
    assert 180 <= held <= 200


def test_a_drift_that_meets_both_alike_is_no_doubt_about_their_ratio() -> None:
    drift = [1 + at / 50 for at in range(50)]  # to twice the time
    this, that = timed([100 * d for d in drift]), timed([105 * d for d in drift])
    paired, apart = verdicts.judge(this, that), verdicts.judge(this, that, seeds=(0, 1))
    assert paired.word == "faster" and apart.word == "tie"
    assert paired.high - paired.low < 0.01 < apart.high - apart.low


def test_verdicts_come_from_a_seed() -> None:
    this, that = timed(noisy(100, 0.1, 1)), timed(noisy(103, 0.1, 2))
    first = verdicts.judge(this, that)
    verdicts._medians.cache_clear()
    assert verdicts.judge(this, that) == first


def test_what_the_clock_cannot_tell_apart_is_a_tie() -> None:
    quick = timed([3.616] * 30 + [3.648] * 10), timed([3.664] * 30 + [3.696] * 10)  # steps of 32 ns
    assert verdicts.judge(*quick).word == "tie" and verdicts.judge(*quick).floor == pytest.approx(2 * 32 / 3616)
    long = timed([361.6] * 30 + [361.632] * 10), timed([366.4] * 30 + [366.432] * 10)
    assert verdicts.judge(*long).word == "faster" and verdicts.judge(*long).floor == verdicts.FLOOR


def test_an_entry_without_samples_is_judged_by_its_median() -> None:
    this, that = timed([100.0]), timed([150.0])
    del this["samples_ns"], that["samples_ns"]
    assert verdicts.judge(this, that).ratio == pytest.approx(1.5)


def made(times: dict[str, list[float]], copy_us: float = 80, **machine: object) -> dict:
    """A record of one cell."""
    found = record.new("softmax", "python -m compare softmax", {**MACHINE, **machine})
    found["implementations"] = [implementation(name) for name in times]
    found["measurements"] = [timed(samples, name) for name, samples in times.items()]
    found["checks"] = [check(name, SHAPE, "float32", "gpu") for name in times]
    found["copies"] = [copied(SHAPE, "float32", copy_us * 1e-6)]
    return found


def test_a_cell_names_the_fastest_and_what_ties_with_it() -> None:
    times = {"cuda/naive": noisy(200, 0.01, 1), "cuda/fused": noisy(100.5, 0.01, 2), "eager": noisy(100, 0.01, 3)}
    (cell,) = verdicts.cells(made(times), "float32")
    assert list(cell.times) == ["eager", "cuda/fused", "cuda/naive"] and cell.winners == ["eager", "cuda/fused"]


def test_a_cell_never_holds_two_runs() -> None:
    old = made({"cuda/naive": [100.0] * 9, "eager": [120.0] * 9})
    new = made({"cuda/fused": [90.0] * 9}, date="2026-12-02T10:00:00+00:00")
    (cell,) = verdicts.cells(record.merge(old, new), "float32")
    assert list(cell.times) == ["cuda/naive", "eager"]


def test_what_failed_is_not_judged() -> None:
    broken = made({"cuda/naive": [100.0] * 9, "eager": [120.0] * 9})
    broken["checks"].append(check("cuda/naive", (4, 33), "float32", "gpu", "failed"))
    (cell,) = verdicts.cells(broken, "float32")
    assert list(cell.times) == ["eager"]


OURS = noisy(100, 0.005, 1)


def words(new: dict, old: dict) -> dict[str, str]:
    return {name: verdict.word if verdict else "failed" for name, _, verdict in verdicts.changes(new, old)}


def test_a_slower_implementation_of_ours_is_a_regression_and_a_slower_baseline_is_none() -> None:
    old = made({"cuda/fused": OURS, "eager": noisy(300, 0.005, 2)})
    slower = made({"cuda/fused": noisy(110, 0.005, 3), "eager": noisy(400, 0.005, 4)})
    assert words(slower, old) == {"copy": "tie", "cuda/fused": "slower", "eager": "slower"}
    assert verdicts.regressions(slower, old) == [("cuda/fused", (SHAPE, "float32", "cold"))]
    assert words(old, slower)["cuda/fused"] == "faster" and verdicts.regressions(old, slower) == []
    assert set(words(old, old).values()) == {"tie"}


def test_what_moved_no_more_than_the_copy_is_the_machines_doing() -> None:
    old, hot = made({"cuda/fused": OURS}, copy_us=80), made({"cuda/fused": noisy(106, 0.005, 2)}, copy_us=86)
    assert words(hot, old) == {"copy": "slower", "cuda/fused": "tie"}
    assert verdicts.regressions(hot, old) == []
    assert words(made({"cuda/fused": noisy(106, 0.005, 2)}, copy_us=80.5), old)["cuda/fused"] == "slower"


@pytest.mark.parametrize("status", ["failed", "error", "refused"])
def test_what_passed_and_no_longer_does_is_a_regression(status: str) -> None:
    old, new = made({"cuda/fused": OURS}), made({"cuda/fused": OURS})
    new["measurements"] = [measurement("cuda/fused", SHAPE, "float32", None, status)]
    assert words(new, old)["cuda/fused"] == "failed" and len(verdicts.regressions(new, old)) == 1


@pytest.mark.parametrize("entries", [[], [measurement("cuda/fused", SHAPE, "float32", None, "skipped")]])
def test_what_was_not_measured_again_is_not_judged(entries: list) -> None:
    old, new = made({"cuda/fused": OURS}), made({"cuda/fused": OURS})
    new["measurements"] = entries
    assert words(new, old) == {"copy": "tie"}


def test_records_of_two_gpus_are_not_judged() -> None:
    with pytest.raises(record.RecordError, match="found a record of NVIDIA L4; wanted one of NVIDIA H200"):
        list(verdicts.changes(made({"cuda/fused": OURS}), made({"cuda/fused": OURS}, gpu="NVIDIA L4")))


def test_agreement_counts_verdicts_between_implementations() -> None:
    old = made({"cuda/fused": [100.0] * 9, "cuda/naive": [200.0] * 9, "eager": [100.2] * 9})
    assert verdicts.agreement(old, old) == {"the same": 3, "a tie in one": 0, "opposite": 0}
    new = made({"cuda/fused": [100.0] * 9, "cuda/naive": [90.0] * 9, "eager": [103.0] * 9})
    assert verdicts.agreement(new, old) == {"the same": 0, "a tie in one": 1, "opposite": 2}
    other = made({"cuda/fused": [100.0] * 9})
    assert verdicts.agreement(other, old) == {"the same": 0, "a tie in one": 0, "opposite": 0}


def test_a_whole_record_is_judged_in_seconds() -> None:
    full = sweep()
    for at, entry in enumerate(entry for entry in full["measurements"] if "samples_ns" in entry):
        entry["samples_ns"] = [round(1000 * sample) for sample in noisy(100, 0.05, at, 200)]
    begun = time.perf_counter()
    count = verdicts.agreement(full, full)
    assert count["the same"] > 14 * len(SPEED) and time.perf_counter() - begun < 30
