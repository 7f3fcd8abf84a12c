"""The record: saved whole or not at all, refused in one clear line, merged without loss and without mixing runs."""

import copy
import json
import os
from pathlib import Path

import pytest
from synthetic import LAPTOP, LINES, MACHINE, SPEED, check, copied, implementation, laptop, measurement, sweep

from compare import record

SHAPE = (4096, 1024)
CURRENT = {name: f"source of {name}" for name in LINES}


def run(date: str, names: tuple[str, ...], median: float = 1e-3, copy_median: float = 8e-4, **machine: object) -> dict:
    """A small record of one cell, made at `date`."""
    made = record.new("softmax", "python -m compare softmax", {**MACHINE, "date": date, **machine})
    made["implementations"] = [implementation(name) for name in names]
    made["measurements"] = [measurement(name, SHAPE, "float32", median) for name in names]
    made["copies"] = [copied(SHAPE, "float32", copy_median)]
    made["checks"] = [check(name, SHAPE, "float32", "gpu") for name in names]
    return made


def of(found: dict, name: str) -> dict:
    """The one measurement of `name`."""
    (entry,) = [entry for entry in found["measurements"] if entry["implementation"] == name]
    return entry


def test_a_saved_record_comes_back_with_every_field(tmp_path: Path) -> None:
    made = sweep(("float32",), (32, 12288))
    record.save(made, tmp_path / "deep" / "softmax.json")
    back = record.load(tmp_path / "deep" / "softmax.json", "softmax")
    assert back == record.stamped(made)
    assert set(made) <= set(back)


def test_every_sample_list_stands_on_one_line(tmp_path: Path) -> None:
    record.save(sweep(("float32",), (32,)), tmp_path / "softmax.json")
    lines = (tmp_path / "softmax.json").read_text().splitlines()
    samples = [line for line in lines if "samples_ns" in line]
    assert len(samples) == len(SPEED) + 1  # the copy's too
    assert all(line.rstrip(",").endswith("]") and line.count(",") >= 49 for line in samples)
    assert all(len(line) <= 120 for line in lines if "samples_ns" not in line)


def test_a_number_that_json_does_not_have_is_null(tmp_path: Path) -> None:
    made = laptop()
    made["checks"][0]["max_ulps"] = float("inf")
    record.save(made, tmp_path / "softmax.json")
    assert json.loads((tmp_path / "softmax.json").read_text())["checks"][0]["max_ulps"] is None


def test_a_crash_while_saving_leaves_the_old_record_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "softmax.json"
    record.save(laptop(), path)
    before = path.read_text()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        record.save(sweep(), path)
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["softmax.json"]


def test_saving_does_not_change_the_record_in_hand(tmp_path: Path) -> None:
    made = run("2026-12-01", ("cuda/fused",))
    before = copy.deepcopy(made)
    record.save(made, tmp_path / "softmax.json")
    assert made == before


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "an empty file"),
        ("no json", "not JSON"),
        ("[1, 2]", "a JSON list"),
        ('{"schema": 2}', "schema 2"),
        ("{}", "schema None"),
        ('{"schema": 1}', "'implementations'"),
        (None, "No such file"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, text: str | None, found: str) -> None:
    path = tmp_path / "softmax.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(record.RecordError) as caught:
        record.load(path, "softmax")
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and found in line and "wanted" in line and "\n" not in line


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_record_is_called_so(tmp_path: Path, part: float) -> None:
    record.save(sweep(("float32",), (32,)), tmp_path / "softmax.json")
    text = (tmp_path / "softmax.json").read_text().rstrip()
    (tmp_path / "cut.json").write_text(text[: int(len(text) * part)])
    with pytest.raises(record.RecordError, match="a truncated record"):
        record.load(tmp_path / "cut.json")


def test_a_record_of_another_operation_is_refused(tmp_path: Path) -> None:
    record.save(laptop(), tmp_path / "softmax.json")
    with pytest.raises(record.RecordError, match="found operation 'softmax'; wanted 'vector_add'"):
        record.load(tmp_path / "softmax.json", "vector_add")


def test_merging_keeps_what_only_one_of_the_two_holds() -> None:
    old, new = run("2026-12-01", ("cuda/naive", "eager")), run("2026-12-02", ("triton/naive",))
    new["measurements"][0]["shape"] = new["copies"][0]["shape"] = [8, 8]
    old["tests"] = {"passed": 7, "failed": 0, "skipped": 0}
    merged = record.merge(old, new)
    assert [entry["implementation"] for entry in merged["measurements"]] == ["cuda/naive", "eager", "triton/naive"]
    assert [entry["name"] for entry in merged["implementations"]] == ["cuda/naive", "eager", "triton/naive"]
    assert len(merged["copies"]) == 2 and len(merged["checks"]) == 3
    assert merged["tests"] == old["tests"]


def test_merging_twice_gives_what_merging_once_gave() -> None:
    old, new = run("2026-12-01", ("cuda/naive", "eager")), run("2026-12-02", ("cuda/naive",), 5e-4)
    once = record.merge(old, new)
    assert record.merge(once, new) == once


def test_a_cell_measured_anew_replaces_its_time() -> None:
    old, new = run("2026-12-01", ("cuda/naive",), 1e-3), run("2026-12-02", ("cuda/naive",), 5e-4)
    merged = record.merge(old, new)
    assert of(merged, "cuda/naive")["seconds"]["median"] == 5e-4
    assert of(merged, "cuda/naive")["run"] == "2026-12-02"


def test_a_time_left_from_an_older_run_keeps_the_copy_of_that_run() -> None:
    old = run("2026-12-01", ("cuda/naive", "eager"), copy_median=8e-4)
    new = run("2026-12-02", ("cuda/naive",), copy_median=4e-4)
    merged = record.merge(old, new)
    assert merged["copies"][0]["seconds"]["median"] == 4e-4
    assert of(merged, "cuda/naive")["copy_seconds"] == 4e-4
    assert of(merged, "eager")["copy_seconds"] == 8e-4


def test_an_older_time_without_a_copy_never_takes_that_of_a_later_run() -> None:
    old, new = run("2026-12-01", ("eager",)), run("2026-12-02", ("cuda/naive",))
    old["copies"] = []
    merged = record.stamped(record.merge(old, new))
    assert "copy_seconds" not in of(merged, "eager")


def test_a_skipped_entry_replaces_nothing() -> None:
    old, new = run("2026-12-01", ("cuda/naive",)), run("2026-12-02", ("cuda/naive",))
    new["measurements"] = [measurement("cuda/naive", SHAPE, "float32", None, "skipped")]
    new["checks"] = [check("cuda/naive", SHAPE, "float32", "gpu", "skipped")]
    merged = record.merge(old, new)
    assert of(merged, "cuda/naive")["status"] == "passed" and merged["checks"][0]["status"] == "passed"
    new["measurements"][0]["status"] = "failed"
    assert of(record.merge(old, new), "cuda/naive")["status"] == "failed"


def test_an_older_time_keeps_the_fingerprint_that_was_measured() -> None:
    old, new = run("2026-12-01", ("cuda/naive",)), run("2026-12-02", ("cuda/naive",))
    new["measurements"], new["implementations"][0]["fingerprint"] = [], "edited"
    merged = record.merge(old, new)
    assert of(merged, "cuda/naive")["fingerprint"] == "source of cuda/naive"
    assert record.stale(merged, {"cuda/naive": "edited"}) == ["cuda/naive"]


def test_compile_facts_survive_a_merge_only_while_the_source_is_the_same() -> None:
    old, new = run("2026-12-01", ("cuda/naive",)), run("2026-12-02", ("cuda/naive",))
    old["implementations"][0]["compiled"] = [{"dtype": "float32", "registers": 32}]
    assert record.merge(old, new)["implementations"][0]["compiled"][0]["registers"] == 32
    new["implementations"][0]["fingerprint"] = "edited"
    assert record.merge(old, new)["implementations"][0]["compiled"] == []


def test_the_machine_of_an_older_run_stays_as_long_as_an_entry_of_it() -> None:
    old, new = run("2026-12-01", ("cuda/naive", "eager"), driver="older"), run("2026-12-02", ("cuda/naive",))
    merged = record.merge(old, new)
    assert merged["machine"]["date"] == "2026-12-02"
    assert [machine["driver"] for machine in merged["earlier_machines"]] == ["older"]
    assert record.merge(merged, run("2026-12-03", ("cuda/naive", "eager")))["earlier_machines"] == []


def test_a_run_without_a_gpu_does_not_hide_the_gpu_that_was_measured() -> None:
    merged = record.merge(sweep(("float32",), (1024,)), laptop())
    assert merged["machine"]["gpu"] is None
    assert record.measured_on(merged)["gpu"] == "NVIDIA H200"
    with pytest.raises(record.RecordError, match="found GPU 'another'; wanted 'NVIDIA H200'"):
        record.merge(merged, run("2027-01-01", ("eager",), gpu="another"))


def test_records_of_two_gpus_or_two_operations_are_not_merged() -> None:
    old = run("2026-12-01", ("eager",))
    with pytest.raises(record.RecordError, match="GPU 'another'"):
        record.merge(old, run("2026-12-02", ("eager",), gpu="another"))
    with pytest.raises(record.RecordError, match="operation 'vector_add'"):
        record.merge(old, {**old, "operation": "vector_add"})


def test_stale_names_what_changed_and_what_is_gone() -> None:
    made = sweep(("float32",), (1024,))
    assert record.stale(made, CURRENT) == []
    assert record.stale(made, {**CURRENT, "triton/fused": "edited"}) == ["triton/fused"]
    assert record.stale(made, {name: CURRENT[name] for name in CURRENT if name != "cuda/naive"}) == ["cuda/naive"]
    assert record.stale(made, {**CURRENT, "cuda/tuned": "new"}) == []


def test_the_reference_is_the_newest_measured_record(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert record.reference(results, "softmax", CURRENT) is None
    older, newer = sweep(("float32",), (1024,)), sweep(("float32",), (1024,))
    older["machine"].update(gpu="NVIDIA L4", date="2026-11-01T00:00:00+00:00")
    record.save(older, results / "a-gpu" / "softmax.json")
    record.save(newer, results / "nvidia-h200" / "softmax.json")
    record.save(laptop(), results / "no-gpu" / "softmax.json")  # newest of all, but without a measurement
    assert record.reference(results, "softmax", {**CURRENT, "cuda/fused": "edited"}) == {
        "file": "results/nvidia-h200/softmax.json",
        "gpu": "NVIDIA H200",
        "date": "2026-12-01",
        "fresh": False,
        "stale": ["cuda/fused"],
    }
    assert record.reference(results, "add_relu", CURRENT) is None


def test_a_broken_reference_is_named_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "softmax.json").write_text("{")
    with pytest.raises(record.RecordError, match=r"gpu/softmax\.json: found a truncated record"):
        record.reference(tmp_path, "softmax", CURRENT)


def test_borrowed_speed_stands_beside_this_runs_lines() -> None:
    live, saved = laptop(), sweep(("float32",), (1024,))
    saved["host"] = saved["traffic"] = [{"implementation": "eager"}]
    live["implementations"][1]["lines"]["kernel"] = 1
    shown = record.with_speed(live, saved)
    assert shown["implementations"][1]["lines"]["kernel"] == 1
    assert len(shown["measurements"]) == len(saved["measurements"]) and shown["machine"] == saved["machine"]
    assert [len(shown[name]) for name in ("host", "traffic")] == [1, 1]
    assert live["machine"] == LAPTOP and live["measurements"] == []


def test_each_way_to_call_is_a_cell_of_its_own_when_records_merge() -> None:
    old, new = run("2026-12-01", ("cuda/fused",)), run("2026-12-02", ("cuda/fused",))
    for made, ways in ((old, ("raw binding", "public face")), (new, ("raw binding",))):
        made["host"] = [{"implementation": "cuda/fused", "shape": [4], "dtype": "float32", "method": w} for w in ways]
    merged = record.merge(old, new)["host"]
    assert {entry["method"]: entry["run"] for entry in merged} == {
        "raw binding": "2026-12-02",
        "public face": "2026-12-01",
    }
