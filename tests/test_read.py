"""A pair side by side: nothing of a source is lost, the same phase is level, and what a terminal and a pipe show."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from compare import cli, read, sources, tables
from compare.registry import LANGUAGES, OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
STEMS = [operation.stem(rung.name) for operation in OPERATIONS.values() for rung in operation.rungs]


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, highlight=False)


def shown(console: Console, rung: str = "fused") -> list[str]:
    read.show(OPERATIONS["softmax"], rung, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().split("\n")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("stem", STEMS)
def test_no_line_of_a_source_is_lost_or_shown_twice(stem: str, language: str) -> None:
    found: dict[Path, dict[int, str]] = {}
    for part in read.parts(language, stem):
        for number, line in enumerate(part.text.split("\n"), part.first_line):
            assert number not in found.setdefault(part.path, {})
            found[part.path][number] = line
    for path in sources.kernel_sources(language, stem):
        lines = dict(enumerate(path.read_text().split("\n"), 1))
        assert {n: line for n, line in found[path].items() if line} == {n: line for n, line in lines.items() if line}


@pytest.mark.parametrize("stem", STEMS)
def test_every_phase_stands_beside_its_twin(stem: str) -> None:
    rows = read.pair(stem)
    assert rows[0][0] and rows[0][1] and rows[0][0].first_line == rows[0][1].first_line == 1
    phases = [
        [part.title if part else None for part in row] for row in rows if any(part and part.title for part in row)
    ]
    alone = [row for row in phases if row[0] != row[1]]  # of a tuned rung, a regime that one language alone has
    assert phases and all(None in row for row in alone) and (alone == [] or stem.endswith("_tuned"))


@pytest.fixture
def regimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pair whose CUDA half has two regimes in headers, each with its own numbering, and a header that these share."""
    cuda = {
        "scale_tuned.cu": '// scale, tuned\n#include "scale_tuned_small.cuh"\n#include "scale_tuned_large.cuh"\n\n'
        "// 3. launch\nvoid scale_tuned() {}\n",
        "scale_tuned_large.cuh": "// for large\n\nvoid large() {\n    // 1. read\n    large();\n}\n",
        "scale_tuned_small.cuh": '#include "scale_tuned_shared.cuh"\n\nvoid small() {\n    // 1. read\n    a();\n\n'
        "    // 2. write\n    b();\n}\n",
        "scale_tuned_shared.cuh": "inline void both() {}\n",
    }
    triton = '"""scale, tuned"""\n\n\ndef small():\n    # 1. read\n    a()\n\n    # 2. write\n    b()\n\n\n'
    triton += "@jit\ndef large():\n    # 1. read\n    large()\n\n\n# 3. launch\ndef scale_tuned():\n    pass\n"
    for folder, files in {"cuda": cuda, "triton": {"scale_tuned.py": triton}}.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    return "scale_tuned"


def test_regimes_in_headers_are_read_in_the_order_of_the_includes_and_stand_level(regimes: str) -> None:
    seen = [
        [f"{part.path.stem}: {part.title or part.text.split()[-1]}" if part else "" for part in row]
        for row in read.pair(regimes)
    ]
    assert seen == [
        ["scale_tuned: \"scale_tuned_large.cuh\"", 'scale_tuned: tuned"""'],
        ["scale_tuned_shared: {}", ""],
        ["scale_tuned_small: \"scale_tuned_shared.cuh\"", ""],
        ["scale_tuned_small: {", "scale_tuned: small():"],
        ["scale_tuned_small: 1. read", "scale_tuned: 1. read"],
        ["scale_tuned_small: 2. write", "scale_tuned: 2. write"],
        ["scale_tuned_large: large", ""],
        ["scale_tuned_large: {", "scale_tuned: large():"],
        ["scale_tuned_large: 1. read", "scale_tuned: 1. read"],
        ["scale_tuned: 3. launch", "scale_tuned: 3. launch"],
    ]  # fmt: skip


def test_a_phase_that_only_one_twin_has_stands_alone(regimes: str) -> None:
    twin = sources.triton_source(regimes)
    twin.write_text(twin.read_text().replace("    # 2. write\n", ""))
    alone = [row for row in read.pair(regimes) if row[0] and row[0].title == "2. write"]
    assert len(alone) == 1 and alone[0][1] is None


def test_a_wide_terminal_shows_each_phase_of_both_twins_on_one_line() -> None:
    lines = shown(terminal(200))
    assert any(re.search(r"// 2\. exponentials and row sum .* # 2\. exponentials and row sum", line) for line in lines)
    assert max(map(len, lines)) <= 200


def test_a_narrow_terminal_shows_a_phase_of_cuda_and_then_of_triton() -> None:
    lines = shown(terminal(100))
    order = [n for n, line in enumerate(lines) if re.search(r"(//|#) [12]\. (read|exp)", line)]
    signs = [re.findall("//|#", lines[n])[0] for n in order]
    assert signs == ["//", "#", "//", "#"]
    assert max(map(len, lines)) <= 100


def test_a_pipe_gets_plain_text_with_its_lines_whole() -> None:
    lines = shown(tables.console(io.StringIO()))
    assert "\x1b" not in "".join(lines)
    for language in LANGUAGES:
        (path,) = sources.kernel_sources(language, "softmax_fused")
        assert set(path.read_text().split("\n")) <= set(lines)


def test_the_foot_counts_lines_by_role() -> None:
    (entry,) = (e for e in sources.implementations(OPERATIONS["softmax"], "fused") if e["language"] == "cuda")
    count, words = entry["lines"], next(line for line in shown(terminal(100)) if line.startswith("cuda/fused ")).split()
    headline = count["kernel"] + count["launch"]
    assert words[1:4] == [str(n) for n in (count["kernel"], headline, headline + count["binding"])]


def test_read_prints_every_rung_or_the_one_named_and_needs_no_torch() -> None:
    code = "import sys; from compare.cli import main\nstatus = main(['softmax', '--read', *sys.argv[1:]])\n"
    code += "sys.exit(status or 9 * ('torch' in sys.modules or 'triton' in sys.modules))"
    for arguments, wanted in (([], [rung.name for rung in OPERATIONS["softmax"].rungs]), (["online"], ["online"])):
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^softmax, (\w+): ", done.stdout, re.MULTILINE) == wanted


def test_a_rung_that_is_not_there_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["add_relu", "--read", "ninja"]) == 2
    assert "--read: got 'ninja', wanted one of naive, fused" in capsys.readouterr().err
