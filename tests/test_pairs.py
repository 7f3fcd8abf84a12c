"""The pair contract on every pair, the checker on pairs broken on purpose, and the rules of the house."""

import re
import shutil
from pathlib import Path

import pytest
from pairs import TEACHING_RUNGS, code, functions, header, launches, passes, problems

from compare.lines import count
from compare.registry import OPERATIONS

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "line_fixtures"
STEMS = sorted({path.stem for path in [*(ROOT / "cuda").glob("*.cu"), *(ROOT / "triton").glob("*.py")]})
RUNGS = [(f"{operation.name}_{rung.name}", rung) for operation in OPERATIONS.values() for rung in operation.rungs]


def twins(stem: str) -> tuple[Path, Path]:
    return ROOT / "cuda" / f"{stem}.cu", ROOT / "triton" / f"{stem}.py"


@pytest.mark.parametrize("stem", STEMS)
def test_twins_keep_the_contract(stem: str) -> None:
    assert problems(*twins(stem)) == []


def test_every_rung_is_a_pair_and_every_pair_a_rung() -> None:
    assert STEMS == sorted(stem for stem, _ in RUNGS)


@pytest.mark.parametrize(("stem", "rung"), RUNGS)
def test_header_and_launches_agree_with_the_registry(stem: str, rung) -> None:
    for path in twins(stem):
        assert passes(header(path)["Traffic"]) == (rung.reads, rung.writes)
        if rung.name in TEACHING_RUNGS:
            assert len(launches(path)) == rung.launches


@pytest.mark.parametrize("stem", STEMS)
def test_binding_names_the_parameters_of_the_launcher(stem: str) -> None:
    bound = re.search(r'BIND\((\w+), "([^"]*)"\)', (ROOT / "bindings" / f"{stem}.cu").read_text())
    assert bound
    assert bound[1] == stem
    assert [*bound[2].split(", "), "stream"] == functions(twins(stem)[0])[1][stem]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A good pair to be broken."""
    for folder in ("cuda", "triton"):
        (tmp_path / folder).mkdir()
    cuda = shutil.copy(FIXTURES / "scale_naive.cu", tmp_path / "cuda")
    triton = shutil.copy(FIXTURES / "scale_naive.py", tmp_path / "triton")
    return Path(cuda), Path(triton)


def test_good_pair_has_no_problem(pair: tuple[Path, Path]) -> None:
    assert problems(*pair) == []
    assert header(pair[0])["Limits"] == "n_elements <= (2^31 - 1) * THREADS, contiguous"
    assert header(pair[1])["title"] == "scale, naive: one element a thread"


PHASE = "    # 1. read, scale, write\n"
BLOCK = "    block = 1024\n"
LAUNCH = "scale_naive_kernel<<<grid, THREADS, 0, stream>>>(x, out, factor, n_elements)"


BROKEN = [
    ("cuda", "// Owns ", "// Owner ", "the header's fields are title, Computes, Traffic, Owner"),
    ("triton", "Owns      one block of BLOCK elements a program\n", "", "the header's fields are"),
    ("triton", "Owns      one", "Owns one\none", "neither a new field nor an indented"),
    ("cuda", "// Limits", "//\n// Traffic   1 read + 1 write an element\n// Limits", "neither a new field"),
    ("cuda", "// Owns", "//           more\n" * 5 + "// Owns", "13 lines; wanted at most 12"),
    ("triton", '"""scale, naive', '"""scale, fused', "the title is 'scale, fused"),
    ("triton", '"""scale, naive: one element a thread\n', '"""\n', "neither a new field|the title is"),
    ("cuda", "triton/scale_naive.py", "triton/scale_fused.py", "its Twin is triton/scale_fused.py"),
    ("triton", "cuda/scale_naive.cu", "cuda/scale.cu", "its Twin is cuda/scale.cu"),
    ("triton", "1 read +", "2 reads +", r"Traffic differs: .* \(1, 1\) and \(2, 1\)"),
    ("cuda", "1 read + 1 write an element", "little", "Traffic is 'little'"),
    ("triton", "2. launch", "2. call", "the phases differ"),
    ("triton", "# 2. launch", "# launch", "the phases differ"),
    ("triton", PHASE, "", "the phases differ"),
    ("triton", PHASE, "    # 2. launch\n    # 1. read, scale, write\n", "the phases differ"),
    ("both", "1. read", "3. read", r"the numbers \[3, 2\]"),
    ("triton", "def scale_naive(x, out", "def scale_naive(out, x", "the parameters are"),
    ("cuda", "float factor, int64_t n_elements, cudaS", "float scale, int64_t n_elements, cudaS", "the parameters"),
    ("cuda", ", cudaStream_t stream) {", ") {", "the parameters are"),
    ("triton", "def scale_naive(", "def scale(", "host functions are scale; wanted scale_naive"),
    ("cuda", "cudaError_t scale_naive(", "cudaError_t scale(", "host functions are scale; wanted"),
    ("cuda", "// 2. launch", "static int one(int a) { return 1; }\n// 2. launch", "host functions are one, scale"),
    ("triton", "# 2. launch", "def check(x):\n    return x\n\n\n# 2. launch", "host functions are check, scale"),
    ("cuda", "scale_naive_kernel", "scale_naive_one_kernel", "the kernels differ"),
    ("both", "scale_naive_kernel", "kernel", "kernel wants the prefix scale_naive"),
    ("cuda", f"    {LAUNCH};\n", "", r"launches \[\]"),
    ("cuda", LAUNCH, "cudaLaunchKernelEx(&config, scale_naive_kernel<T>, x, out)", r"launches \[\]"),
    ("cuda", f"{LAUNCH};", f"{LAUNCH};\n    {LAUNCH};", "launches .* wanted each of its kernels once"),
    ("triton", "@triton.jit\n", "", "host functions are scale_naive_kernel, scale_naive"),
    ("triton", BLOCK, BLOCK + "\n" * 60, "87 lines; wanted at most 80"),
    ("triton", "import triton\n", "import torch\nimport triton\n", "torch; wanted kernels and launch"),
    ("triton", BLOCK, BLOCK + "    assert x.is_cuda\n", "assert; wanted kernels and launch"),
    ("triton", BLOCK, BLOCK + "    import os\n", "import os; wanted only the language's own"),
    ("cuda", "#include <cstdint>", '#include <cstdint>\n#include "common.h"', "wanted only the language's own"),
    ("cuda", "#include <cstdint>", "#include <torch/extension.h>", "torch; wanted"),
]


@pytest.mark.parametrize(("side", "old", "new", "problem"), BROKEN, ids=[case[3] for case in BROKEN])
def test_broken_pair_is_found(pair: tuple[Path, Path], side: str, old: str, new: str, problem: str) -> None:
    for path in pair:
        if side in (path.parent.name, "both"):
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
    found = problems(*pair)
    assert any(re.search(problem, text) for text in found), found


def test_missing_twin_is_found(pair: tuple[Path, Path]) -> None:
    pair[1].unlink()
    assert problems(*pair) == ["triton/scale_naive.py is missing"]


def test_source_folders_are_no_packages_and_hold_only_their_language() -> None:
    # With an __init__.py, `import triton` from the repository would find our folder and torch would break.
    assert not list((ROOT / "triton").rglob("__init__.py")) + list((ROOT / "cuda").rglob("__init__.py"))
    assert {path.suffix for path in (ROOT / "cuda").iterdir() if path.is_file()} <= {".cu", ".cuh"}
    assert {path.suffix for path in (ROOT / "triton").iterdir() if path.is_file()} == {".py"}


@pytest.mark.parametrize("path", sorted((ROOT / "cuda").glob("*.cu*")), ids=lambda path: path.name)
def test_cuda_sources_know_nothing_of_torch_and_python(path: Path) -> None:
    assert not re.search(r"torch|ATen|c10|Python\.h|pybind|Tensor\b", code(path))


def test_harness_stays_small() -> None:
    lines = {path.name: count(path, "harness").lines["harness"] for path in (ROOT / "compare").rglob("*.py")}
    assert {name: n for name, n in lines.items() if n > 300} == {}
    assert sum(lines.values()) <= 3300
