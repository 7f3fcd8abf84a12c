"""The command line: what it prints, writes and returns, and what it says when something is in the way."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import sweep

import bindings
from compare import cli, compiled, correctness, run, sources, wrong
from compare.registry import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
QUICK = ["vector_add", "--device", "cpu", "--dtype", "float32", "--shapes", "7", "--only", "cuda/naive"]


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """test_compiled.py runs them; here they would only cost time. And no speed borrowed from results/."""
    monkeypatch.setattr(compiled, "facts", lambda operation, target: ({}, ["not asked"]))
    monkeypatch.setattr(run.records, "reference", lambda *arguments: None)
    monkeypatch.setattr(run.sources, "use_interpreter", lambda: None)  # it would stay on for the files that come after
    yield
    run.operations.run_on("cuda")


def compare(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as end:  # argparse's own
        return int(end.code or 0)


def test_help_lists_every_option_and_imports_no_torch():
    code = "import sys; from compare.cli import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    options = "--only --dtype --shapes --full --no-speed --output-dir --from --device --seed --list"
    options += (
        " --tests --sanitize --self-test --max-noise --against --format --host --ncu --inspect --target --style --read"
    )
    for option in options.split():
        assert option in done.stdout


def test_list_names_every_operation_and_rung(capsys):
    assert compare("--list") == 0
    said = capsys.readouterr().out
    for operation in OPERATIONS.values():
        assert f"{operation.name}: " in said and all(f"cuda/{rung.name}" in said for rung in operation.rungs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name an operation: softmax, vector_add, add_relu, or all"),
        (["sofmax"], "invalid choice: 'sofmax'"),
        (["softmax", "--dtype", "float64"], "got 'float64', wanted some of float32, float16, bfloat16"),
        (["softmax", "--shapes", "4096x"], "got '4096x', wanted shapes such as 4096x1024"),
        (["softmax", "--shapes", "0x4"], "wanted sizes of 1 or more"),
        (["all", "--shapes", "7"], "--from, --against and --shapes go with one operation"),
        (["softmax", "--device", "cpu", "--shapes", "12"], "--shapes: got 12, wanted softmax shapes such as 4096x1024"),
        (["softmax", "--max-noise", "0"], "--max-noise: got 0.0, wanted a percentage above 0, such as 0.5"),
        (["softmax", "--max-noise", "nan"], "got nan, wanted a percentage above 0"),
        (["softmax", "--max-noise", "low"], "invalid float value: 'low'"),
        (["softmax", "--format", "html"], "invalid choice: 'html'"),
        (["softmax", "--target", "sm_90"], "--target goes with --inspect"),
        (["softmax", "--inspect", "--target", "sm_17"], "sm_17"),
        (["softmax", "--only", ","], "got ',', wanted names separated by commas"),
        (["softmax", "--device", "cpu", "--only", "cuda/ninja"], "--only: got 'cuda/ninja', wanted some of cuda/naive"),
    ],
)
def test_a_usage_error_is_status_2_and_names_what_is_wanted(tmp_path, capsys, arguments, words):
    assert compare(*arguments, *(["--output-dir", str(tmp_path)] if arguments else [])) == 2
    said = capsys.readouterr()
    assert words in said.err and said.out == ""


def test_a_quick_run_writes_a_record_that_says_what_ran(tmp_path, capsys):
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 0
    record = json.loads((tmp_path / "vector_add.json").read_text())
    (check,) = record["checks"]
    assert (check["implementation"], check["executor"], check["status"]) == ("cuda/naive", "cpu_model", "passed")
    assert check["shape"] == [7] and record["measurements"] == [] and record["machine"]["gpu"] is None
    ours = {entry["name"]: entry for entry in record["implementations"] if entry["rung"]}
    assert set(ours) == {f"{language}/{rung}" for language in ("cuda", "triton") for rung in ("naive", "tuned")}
    assert ours["cuda/naive"]["lines"]["kernel"] > 0 and ours["cuda/naive"]["lines"]["binding"] > 0
    said = capsys.readouterr().out
    order = [said.index(title) for title in ("Lines of code", "Correctness", "Compiled", "Speed", "Ninja Gap")]
    assert order == sorted(order)
    assert "no speed was measured" in (tmp_path / "vector_add.html").read_text()


def test_two_runs_into_one_folder_lose_nothing(tmp_path):
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 0
    assert compare(*[a.replace("7", "9") for a in QUICK], "--output-dir", str(tmp_path)) == 0
    checks = json.loads((tmp_path / "vector_add.json").read_text())["checks"]
    assert [check["shape"] for check in checks] == [[7], [9]]


def test_an_incorrect_implementation_is_status_1(tmp_path, monkeypatch, capsys):
    real = correctness.check

    def wrong(*arguments, **options):
        return real(*arguments, **options) | {"status": "failed", "error": "7 of 7 elements are wrong"}

    monkeypatch.setattr(correctness, "check", wrong)
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 1
    assert "WRONG" in capsys.readouterr().out


def test_an_interrupted_run_keeps_what_it_found(tmp_path, monkeypatch):
    real, calls = correctness.check, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(correctness, "check", interrupted)
    assert compare("vector_add", "--device", "cpu", "--only", "cuda/naive", "--output-dir", str(tmp_path)) == 130
    assert len(json.loads((tmp_path / "vector_add.json").read_text())["checks"]) == 2


def test_an_unwritable_folder_is_status_3_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert compare(*QUICK, "--output-dir", str(tmp_path / "file")) == 3
    said = capsys.readouterr()
    assert str(tmp_path / "file") in said.err and said.out == ""


def test_a_broken_record_in_the_folder_is_named_and_kept(tmp_path, capsys):
    (tmp_path / "vector_add.json").write_text('{"schema": 1,')
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 3
    assert "truncated record" in capsys.readouterr().err
    assert (tmp_path / "vector_add.json").read_text() == '{"schema": 1,'


@pytest.mark.parametrize("option", [["--device", "cuda"], ["--sanitize"], ["--host"], ["--ncu"]])
def test_asking_for_a_gpu_that_is_not_there_is_status_3(tmp_path, monkeypatch, capsys, option):
    monkeypatch.setattr(run.machine, "gpu_usable", lambda: False)
    assert compare("softmax", *option, "--output-dir", str(tmp_path)) == 3
    assert "NVIDIA GPU" in capsys.readouterr().err


def test_from_shows_a_saved_record_and_draws_its_figures(tmp_path, capsys):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(sweep()))
    assert compare("softmax", "--from", str(saved), "--output-dir", str(tmp_path / "show")) == 0
    said = capsys.readouterr().out.replace("\n", "")  # a long path is folded at 80 columns
    assert "Ninja Gap" in said and "saved.json" in said and "stale" in said  # nobody's sources have these fingerprints
    written = {path.name for path in (tmp_path / "show").iterdir()}
    assert {"softmax_bandwidth.svg", "softmax_ninja_gap_float32.png", "softmax.html", "index.html"} <= written


def test_from_another_operation_is_named(tmp_path, capsys):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(sweep()))
    assert compare("vector_add", "--from", str(saved), "--output-dir", str(tmp_path)) == 3
    assert "found operation 'softmax'; wanted 'vector_add'" in capsys.readouterr().err


def saved_at(path: Path, slower: float = 1.0, **machine: object) -> Path:
    """A saved record, in which triton/fused takes `slower` times as long."""
    made = sweep(("float32",), (1024, 4096))
    made["machine"].update(machine)
    for entry in made["measurements"]:
        if entry["implementation"] == "triton/fused":
            entry["samples_ns"] = [round(slower * ns) for ns in entry["samples_ns"]]
            entry["seconds"]["median"] *= slower
            entry["effective_bytes_per_s"] /= slower
    path.write_text(json.dumps(made))
    return path


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (0.8, 0), (1.01, 0), (1.1, 1)])
def test_against_an_earlier_record_only_a_regression_is_status_1(tmp_path, capsys, slower, status):
    new, old = saved_at(tmp_path / "new.json", slower), saved_at(tmp_path / "old.json")
    show = ["--from", str(new), "--against", str(old), "--against", str(new), "--output-dir", str(tmp_path / "show")]
    assert compare("softmax", *show) == status
    said = capsys.readouterr().out
    assert said.count("Against an earlier record") == 2
    assert ("triton/fused, 131072 x 1024 float32 cold: slower, 0.91" in said) == (status == 1)
    assert re.search(r"14 times of 0.5 GB and more: at most \d+\.\d% apart", said)
    assert "verdicts in both: 42 the same, 0 a tie in one, 0 opposite" in said


@pytest.mark.parametrize(
    ("text", "machine", "words"),
    [
        ('{"schema": 1,', {}, "truncated record"),
        (None, {"gpu": "NVIDIA L4"}, "--against: found a record of NVIDIA L4; wanted one of NVIDIA H200"),
    ],
)
def test_a_record_that_cannot_be_judged_by_is_one_line(tmp_path, capsys, text, machine, words):
    new, old = saved_at(tmp_path / "new.json"), saved_at(tmp_path / "old.json", **machine)
    if text:
        old.write_text(text)
    show = ["--from", str(new), "--against", str(old), "--output-dir", str(tmp_path / "show")]
    assert compare("softmax", *show) == 3
    assert words in capsys.readouterr().err


def test_a_record_to_judge_by_that_is_none_shows_before_anything_runs(tmp_path, capsys):
    old = saved_at(tmp_path / "old.json")  # of softmax
    assert compare(*QUICK, "--against", str(old), "--output-dir", str(tmp_path / "out")) == 3
    said = capsys.readouterr()
    assert "found operation 'softmax'; wanted 'vector_add'" in said.err and said.out == ""


def test_csv_on_standard_output_is_nothing_but_tables_and_comments(tmp_path, capsys):
    new = saved_at(tmp_path / "new.json")
    assert compare("softmax", "--from", str(new), "--format", "csv", "--output-dir", str(tmp_path / "show")) == 0
    said = capsys.readouterr()
    tables = [list(csv.reader(block.splitlines())) for block in re.split(r"(?m)^(?:#.*)?\n", said.out) if block]
    assert len(tables) == 5 and all(len({len(row) for row in table}) == 1 for table in tables)
    assert ["shape", "copy", "cuda/naive"] in [table[0][:3] for table in tables]
    assert "figure:" in said.err


def test_an_ascii_terminal_is_given_markdown_as_well(tmp_path):
    new = saved_at(tmp_path / "new.json")
    command = [
        sys.executable,
        "-m",
        "compare",
        "softmax",
        "--from",
        new,
        "--format",
        "markdown",
        "--output-dir",
        tmp_path,
    ]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0 and b"1.04x +- 0.00" in done.stdout, done.stderr


def test_a_live_run_in_markdown_keeps_its_messages_apart(tmp_path, capsys):
    assert compare(*QUICK, "--format", "markdown", "--output-dir", str(tmp_path)) == 0
    said = capsys.readouterr()
    assert said.out.startswith("### Lines of code\n\n| implementation | kernel |")
    assert "record:" in said.err and "record:" not in said.out


def test_a_test_report_becomes_counts(tmp_path):
    report = tmp_path / "junit.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>')
    assert compare(*QUICK, "--output-dir", str(tmp_path), "--tests", str(report)) == 0
    tests = json.loads((tmp_path / "vector_add.json").read_text())["tests"]
    assert (tests["passed"], tests["failed"], tests["skipped"]) == (5, 2, 2) and tests["date"]


def test_under_the_interpreter_nothing_is_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 0
    assert json.loads((tmp_path / "vector_add.json").read_text())["measurements"] == []
    assert not list(tmp_path.glob("*.png"))


def test_the_self_test_prints_its_score_and_fails_if_one_slips_through(monkeypatch, capsys):
    assert compare("vector_add", "--self-test", "--dtype", "bfloat16") == 0
    score = re.fullmatch(
        r"vector_add bfloat16: wrong implementations rejected: (\d+) of (\d+)\n", capsys.readouterr().out
    )
    assert score and score[1] == score[2] and int(score[1]) >= 12
    monkeypatch.setattr(wrong, "self_test", lambda *arguments: [("zeros", True, "0"), ("stale", False, "passed")])
    assert compare("vector_add", "--self-test", "--dtype", "float32") == 1
    said = capsys.readouterr().out
    assert "wrong implementations rejected: 1 of 2" in said and "not rejected: stale: passed" in said


@pytest.mark.parametrize(
    ("reason", "status", "words"),
    [
        (bindings.BuildFailed("softmax_fused.cu:50: 'rwo' was not declared"), 1, "'rwo' was not declared"),
        (bindings.NotBuilt("no nvcc; pip install -e '.[nvcc]'"), 0, "not built: no nvcc; pip install -e '.[nvcc]'"),
    ],
    ids=["a source that does not compile", "a missing compiler, its hint whole"],
)
def test_only_a_mistake_in_the_code_is_status_1(tmp_path, monkeypatch, capsys, reason, status, words):
    def load(executor):
        raise reason

    monkeypatch.setattr(bindings, "load", load)
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == status
    assert words in capsys.readouterr().out


def test_a_twin_that_is_no_python_is_one_line_with_its_place(tmp_path, monkeypatch, capsys):
    def broken(*arguments):
        raise SyntaxError("'(' was never closed", ("triton/softmax_fused.py", 27, 1, ""))

    monkeypatch.setattr(sources.lines, "count", broken)
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 1
    assert "triton/softmax_fused.py:27: '(' was never closed" in capsys.readouterr().err


def test_a_report_that_is_none_is_named_before_anything_runs(tmp_path, capsys):
    assert compare(*QUICK, "--output-dir", str(tmp_path), "--tests", str(ROOT / "README.md")) == 3
    said = capsys.readouterr()
    assert "is not a pytest --junitxml report" in said.err and said.out == ""


def test_what_was_found_is_kept_when_a_later_step_breaks(tmp_path, monkeypatch):
    monkeypatch.setattr(run.inside, "compiled", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare(*QUICK, "--output-dir", str(tmp_path))
    assert len(json.loads((tmp_path / "vector_add.json").read_text())["checks"]) == 1


def test_a_run_that_another_overtakes_adds_to_it(tmp_path, monkeypatch):
    real = correctness.check

    def overtaken(*arguments, **options):
        monkeypatch.setattr(correctness, "check", real)
        assert compare(*[a.replace("7", "9") for a in QUICK], "--output-dir", str(tmp_path)) == 0
        return real(*arguments, **options)

    monkeypatch.setattr(correctness, "check", overtaken)
    assert compare(*QUICK, "--output-dir", str(tmp_path)) == 0
    checks = json.loads((tmp_path / "vector_add.json").read_text())["checks"]
    assert sorted(check["shape"] for check in checks) == [[7], [9]]
