"""Claims: verdicts follow from the records, and what claims.ini points at exists."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import SPEED, sweep
from test_compiled import needs_nvcc

from bindings.build import HERE as BINDINGS
from bindings.build import find_nvcc
from compare import claims, cli, machine, record, sources
from compare.registry import OPERATIONS

HEAD = "[softmax: a claim]\nsource = guide\nratios =\n"


def judged(tmp_path: Path, monkeypatch, ratios: str, made: dict, extra: str = "") -> dict:
    """The verdict on one claim."""
    path = tmp_path / "claims.ini"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in ratios.splitlines()) + extra, encoding="utf-8")
    monkeypatch.setattr(claims, "DATA", path)
    (found,) = claims.claims({"softmax": made})
    return found


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [("0.01 100", "true"), ("5 100", "it depends"), ("50 100", "false")],
)
def test_a_verdict_is_true_only_where_every_shape_holds_and_false_only_where_none_does(
    tmp_path, monkeypatch, interval, verdict
):
    made = sweep(("float32",), (32, 1024))
    found = judged(tmp_path, monkeypatch, f"time softmax eager cuda/fused all {interval}", made)
    ratios = [SPEED["cuda/fused"][at] / SPEED["eager"][at] for at in (0, 6)]
    mean = (ratios[0] * ratios[1]) ** 0.5
    assert found["verdict"] == verdict
    assert found["number"] == f"{mean:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def test_a_star_stands_for_the_same_word_in_both(tmp_path, monkeypatch):
    found = judged(tmp_path, monkeypatch, "time softmax */naive */fused 1024 1 10", sweep(("float32",), (32, 1024)))
    ratios = [SPEED[f"{language}/fused"][6] / SPEED[f"{language}/naive"][6] for language in ("cuda", "triton")]
    assert found["number"] == f"{(ratios[0] * ratios[1]) ** 0.5:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def test_no_ratio_mixes_two_runs(tmp_path, monkeypatch):
    made = sweep(("float32",), (1024,))
    for entry in made["measurements"]:
        if entry["implementation"] == "eager":
            entry["run"] = "2026-11-01T10:00:00+00:00"
    assert judged(tmp_path, monkeypatch, "time softmax eager cuda/fused all 0 99", made)["verdict"] == "not measured"


def test_an_implementation_that_failed_its_checks_proves_nothing(tmp_path, monkeypatch):
    made = sweep(("float32",), (1024,))
    made["checks"][0] = {**made["checks"][0], "implementation": "cuda/fused", "status": "failed"}
    assert judged(tmp_path, monkeypatch, "time softmax eager cuda/fused all 0 99", made)["verdict"] == "not measured"


def test_passes_lines_and_cycles_come_from_the_record(tmp_path, monkeypatch):
    made = sweep(("float32",), (1024,))
    made["latency"] = [{"memory": name, "cycles": cycles, "nanoseconds": 1.0} for name, cycles in
                       (("register", 4.0), ("global", 600.0))]  # fmt: skip
    lines = "passes softmax eager */fused - 4 4\nlines softmax cuda/fused triton/fused kernel+launch 1 2"
    found = judged(tmp_path, monkeypatch, lines + "\ncycles softmax global register - 100 200", made)
    assert found["verdict"] == "true"
    assert [line.split(": ")[-1] for line in found["evidence"]] == ["4.00", f"{43 / 23:.2f}", "150.00"]


def test_loads_and_variants_come_from_the_compile_facts(tmp_path, monkeypatch):
    made = sweep(("float32",), (1024,))
    fact = {"dtype": "float32", "target": "sm_90", "variant": "softmax_fused_kernel BLOCK=1024 num_warps=8",
            "threads": 9, "registers": 18, "spills": 0, "shared_bytes": 0, "occupancy": 1.0,
            "jit": {"launches": 9, "variants": 7}}  # fmt: skip
    wide = {
        **fact,
        "shape": [8, 1024],
        "multiples_of_16": ["x_ptr", "n_cols"],
        "instructions": {"LDG.128": 1, "all": 9},
    }
    narrow = {**fact, "shape": [8, 1023], "multiples_of_16": ["x_ptr"], "instructions": {"LDG.32": 4, "all": 9}}
    (entry,) = (entry for entry in made["implementations"] if entry["name"] == "triton/fused")
    entry["compiled"] = [wide, narrow]
    found = judged(tmp_path, monkeypatch, "loads softmax triton/* - - 4 4\nvariants softmax triton/* - - 7 7", made)
    assert (found["verdict"], found["number"]) == ("true", "4.00")


def test_every_claim_of_the_file_is_well_formed_and_points_at_a_phase_that_exists():
    found = claims.claims(claims.records(sources.RESULTS))
    assert {one["source"] for one in found} == {"guide", "lesson"}
    questions = [one["question"] for one in found if one["question"]]
    assert [int(question.split(".")[0]) for question in questions] == list(range(1, 9))
    for one in found:
        assert one["verdict"] in ("true", "false", "it depends", "not measured")
        assert bool(one["where"]) == bool(one["question"])  # the lesson's eight points say where to look
        for place in one["where"]:
            assert re.match(r"(cuda|triton)/\w+\.(cu|py): \d\. \w", place)


def test_implementations_that_claims_name_exist_in_the_registry():
    rungs = {(operation.name, rung.name) for operation in OPERATIONS.values() for rung in operation.rungs}
    named = re.findall(r"^    \w+ (\w+) (\S+) (\S+) ", claims.DATA.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) > 20
    for operation, *pair in named:
        for name in (name for name in pair if "/" in name and not name.endswith("*")):
            assert (operation, name.split("/")[1]) in rungs


def test_the_newest_record_of_an_operation_counts(tmp_path):
    old, new = sweep(("float32",), (1024,)), sweep(("float32",), (1024,))
    old["machine"]["date"] = "2025-01-01T00:00:00+00:00"
    record.save(old, tmp_path / "one" / "softmax.json")
    record.save(copy.deepcopy(new), tmp_path / "two" / "softmax.json")
    assert claims.records(tmp_path)["softmax"]["machine"]["date"] == new["machine"]["date"]


def test_the_command_needs_no_torch_and_an_empty_folder_is_one_line(tmp_path, capsys):
    code = "import sys; from compare.cli import main; main(['claims']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=sources.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "it depends" in done.stdout
    assert cli.main(["claims", "--from", str(tmp_path)]) == 3
    assert f"{tmp_path}: found no record; wanted softmax.json" in capsys.readouterr().err


def test_latency_reads_the_lines_of_the_probe(monkeypatch):
    monkeypatch.setattr(machine, "_run", lambda *command: "register 4.0 2.10\nglobal 612.5 330.00\n")
    assert machine.latency() == [
        {"memory": "register", "cycles": 4.0, "nanoseconds": 2.1},
        {"memory": "global", "cycles": 612.5, "nanoseconds": 330.0},
    ]


def test_without_nvcc_or_a_gpu_there_is_no_latency(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    find_nvcc.cache_clear()
    try:
        assert machine.latency() == []
    finally:
        find_nvcc.cache_clear()


def test_the_probe_compiles_for_the_oldest_and_for_the_published_target(tmp_path):
    needs_nvcc()
    source = BINDINGS / "probe" / "latency.cu"
    for target in ("sm_75", "sm_90"):
        command = [find_nvcc().path, "-std=c++17", "-O3", f"-arch={target}", "-cubin", str(source)]
        done = subprocess.run([*command, "-o", str(tmp_path / "latency.cubin")], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.timed
def test_each_memory_is_slower_than_the_one_nearer_to_the_core():
    found = {each["memory"]: each["cycles"] for each in machine.latency()}
    assert list(found) == ["register", "shared", "L1", "L2", "global"]
    assert found["register"] < 10 < found["shared"] < 60 and found["L1"] < found["L2"] < found["global"]
    assert 100 < found["global"] < 3000
