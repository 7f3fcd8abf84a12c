"""The counting rule against hand-counted files, and against everything that must not move a count or a fingerprint."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pygments.lexers.c_like import CudaLexer
from pygments.token import Comment

from compare.lines import Count, Phase, count, fingerprint, split_phases

FIXTURES = Path(__file__).parent / "line_fixtures"
ROOT = Path(__file__).parents[1]
CUDA_TWINS = sorted((ROOT / "cuda").glob("*.cu*"))
TRITON_TWINS = sorted((ROOT / "triton").glob("*.py"))
FILES = [*sorted(FIXTURES.iterdir()), *CUDA_TWINS, *TRITON_TWINS]


def whole(tmp_path: Path, suffix: str, source: str) -> tuple[int, int]:
    """Lines and tokens of a snippet."""
    path = tmp_path / f"snippet{suffix}"
    path.write_bytes(source.encode())
    counted = count(path, "binding")
    return counted.lines["binding"], counted.tokens["binding"]


def by_role(tmp_path: Path, suffix: str, source: str) -> dict[str, int]:
    path = tmp_path / f"snippet{suffix}"
    path.write_text(source)
    return count(path).lines


# Counted by hand, line by line.
@pytest.mark.parametrize(
    ("name", "kernel", "launch"),
    [
        ("scale_naive.cu", [11, 13, 14, 15, 18], [9, *range(22, 27)]),
        ("scale_naive.py", [15, 16, 17, 20, 21], [11, 12, 25, 26, 27]),
        (
            "hard.cu",
            [7, 9, 18, 21, 23, 24, 26, *range(32, 37), 39, 40, 41, 43, 46, *range(49, 53), 58, 59],
            [2, 3, 5, 11, 12, 14, 15, 16, 19, 20, 29, 61, 63, 64, 65, 67, 68, 70, 72, 73, 74],
        ),
        (
            "hard.py",
            [10, 28, 29, 30, 32, 35, *range(38, 42), *range(46, 55), 57, 58],
            [7, 8, 11, 13, 14, 16, 17, 20, 23, 24, 25, *range(62, 66), 69, 74, 75, 76, 77, 79, 80, 81],
        ),
    ],
)
def test_lines_of_hand_counted_files(name: str, kernel: list[int], launch: list[int]) -> None:
    assert count(FIXTURES / name).lines == {"kernel": len(kernel), "launch": len(launch)}
    assert count(FIXTURES / name, "binding").lines == {"binding": len(kernel) + len(launch)}


# Counted by hand, a summand a line.
@pytest.mark.parametrize(
    ("name", "kernel", "launch"),
    [
        ("scale_naive.cu", 5 + 5 + 14 + 14 + 13, 2 + 5 + 15 + 11 + 9 + 2),
        ("scale_naive.py", 4 + 10 + 19 + 18 + 14, 2 + 6 + 6 + 3 + 11),
    ],
)
def test_tokens_of_hand_counted_files(name: str, kernel: int, launch: int) -> None:
    assert count(FIXTURES / name).tokens == {"kernel": kernel, "launch": launch}


@pytest.mark.parametrize(
    ("source", "lines", "tokens"),
    [
        ("", 0, 0),
        ("}\n};\n);\n),\n{\n(\n;", 0, 0),
        ("// int a;\n/* int b;\n\nint c; */ /**/\n", 0, 0),
        ("// goes on \\\nint a;\n", 0, 0),
        ("/* never closed\nint a;\n", 0, 0),
        ("int a /* one */ = /* two\n*/ 1; // three", 2, 4),
        ('s = "// /* \\" */"; // "', 1, 3),
        ('s = "a \\\nb";', 2, 3),
        ('s = "a" "b"\n"c";', 2, 3),
        ("c = '\"'; d = '\\'';", 1, 6),
        ('r = R"x(a)" // )x";', 1, 3),
        ("a = n-1;", 1, 5),
        ("a = n - 1;", 1, 5),
        ("a = 1'000'000ull + 0x1.8p-3f + .5e-3f;", 1, 7),
        ("a += b->c && d::e <= 1 ? ++f : g...;", 1, 16),
        ("A<B<C<int>>> a;", 1, 11),
        ("A<B<C<int> > > a;", 1, 11),
        ("k<A<B<int>>><<<grid, 1>>>(a);", 1, 10 + 3),
        ("k<<<\ngrid\n>>>(\na\n);", 3, 3),
        ("#include <a//b.h>", 1, 2),
        ('#  include "a.h" // b', 1, 2),
        ('#define F(x, y) #x "//" x##y // z', 1, 5 + 5),
        ("#define F(x) \\\n    \\\n    x\nint a;", 3, 3 + 1 + 2),
        ("#if A < B && C > D\n#endif", 2, 9),
        ("#if 0\nint a;\n#endif", 3, 2 + 2 + 1),
        ("#error it's\nint a; // b", 2, 4 + 2),
        ("a <=> b->*c;", 1, 5),
        ("case 1: a: x = y ? 1 : 2; public:", 1, 3 + 6 + 1),
    ],
)
def test_cuda_snippet(tmp_path: Path, source: str, lines: int, tokens: int) -> None:
    assert whole(tmp_path, ".cu", source) == (lines, tokens)


@pytest.mark.parametrize(
    ("source", "lines", "tokens"),
    [
        ("", 0, 0),
        ('"""Doc."""', 0, 0),
        ("# a\n\n  # b", 0, 0),
        ('s = "# not a comment"  # a comment', 1, 3),
        ("s = '''# a\n\nb'''", 3, 3),
        ("s = 'a' \"b\" \\\n    r'c'", 2, 3),
        ("s = (\n    'a'  # one\n    'b'\n)", 3, 3),
        ("s = f'{a!r:>{b}} # {c[\"d\"]}' 'e'", 1, 3),
        ("s = f'''{\na\n}'''", 3, 3),
        ("x = (\n    1,\n)", 2, 3),
        ("x = 1; y = 2;", 1, 6),
        ("def f(\n    x,\n):\n    pass", 3, 4),
        ("def f():\n    'doc'\n    'no doc'", 2, 3),
        ("def f():\n    'doc'; x = 1", 2, 5),
        ("async def f():\n    ('doc'  # a\n    'doc')\n    return x", 2, 5),
        ("def f():\n    f'no doc'", 2, 3),
        ("def f():\n    b'no doc'", 2, 3),
        ("def f():\n    if x:\n        'no doc'", 3, 5),
        ("class Größe: 'Maße'", 1, 2),
        ("class A:\n    'doc'\n    x = 1\n    'no doc'", 3, 6),
        ("@a(\n    [(1, 2)],\n)\n# c\ndef f(): ...", 3, 4 + 3),
        ("x = a if b else -1 ** 2 // c != d", 1, 14),
        ("if (y := f(x)) is not None: pass", 1, 9),
        ("x[1:2] = {**a}", 1, 6),
    ],
)
def test_python_snippet(tmp_path: Path, source: str, lines: int, tokens: int) -> None:
    assert whole(tmp_path, ".py", source) == (lines, tokens)


# The same structure in both languages has the same roles.
@pytest.mark.parametrize(
    ("cuda", "triton", "kernel", "launch"),
    [
        ("#include <a.h>\n", "import a\n", 0, 1),
        ("__global__ void k() {}", "@triton.jit\ndef k():\n    pass", (1, 3), 0),
        ("void f() {\n    a;\n}", "def f():\n    a", 0, 2),
        ("constexpr int A = 1;\n__device__ int k() { return A; }", "A = 1\n@jit\ndef k(): return A", (2, 3), 0),
        ("constexpr int A = 1;\nint f() { return A; }", "A = 1\ndef f(): return A", 0, 2),
        (
            "const int A = 1;\nconst int B = A;\n__device__ int k() { return B; }",
            "A = 1\nB: int = A\n@triton.jit(noinline=True)\ndef k(): return B",
            (3, 4),
            0,
        ),
        (
            "int h() { return 1; }\nconst int A = h();\n__global__ void k() { A; }\nvoid f() {}",
            "def h(): return 1\nA = h()\n@triton.jit\ndef k(): A\ndef f(): pass",
            (3, 4),
            1,
        ),
        (
            "struct A {\n    int a;\n};\n__global__ void k(A a) {}",
            "class A:\n    a: int\n@triton.jit\ndef k(a: A): pass",
            (3, 4),
            0,
        ),
    ],
)
def test_roles_are_alike_in_both_languages(
    tmp_path: Path, cuda: str, triton: str, kernel: int | tuple[int, int], launch: int
) -> None:
    in_cuda, in_triton = kernel if isinstance(kernel, tuple) else (kernel, kernel)  # a decorator is a line more
    assert by_role(tmp_path, ".cu", cuda) == {"kernel": in_cuda, "launch": launch}
    assert by_role(tmp_path, ".py", triton) == {"kernel": in_triton, "launch": launch}


@pytest.mark.parametrize(
    ("source", "kernel", "launch"),
    [
        ("#define A \\\n    1\n__device__ int k() { return A; }", 3, 0),
        ("#define A {\n__global__ void k() {}\nvoid f() {}", 1, 2),
        ("struct __align__(8) A { int a; };\n__device__ int k(A a) { return a.a; }\nvoid f() {}", 2, 1),
        ("struct Max {\n    __device__ int operator()(int a) { return a; }\n};\nvoid f() {}", 2, 1),
        ("template <int N = 2>\nstruct A {};\n__device__ int k(A<1> a);\nvoid f() {}", 3, 1),
        ("using A = float;\ntypedef int B;\n__device__ A k(B b);\nusing C = A;", 3, 1),
        ("auto h() -> int { return 1; }\n__device__ float k() { return h(); }", 2, 0),
        ("namespace a {\nnamespace {\n__global__ void k() {}\n}\nvoid f() {}\n}", 1, 3),
        ('extern "C" {\n__global__ void k() {}\nvoid f() {}\n}\nextern "C" void g() {}', 1, 3),
        ("template <typename T>\n__global__ void\n__launch_bounds__(4)\nk(\n    T a\n) {\n}\nvoid f() {}", 5, 1),
        ("__global__ void k() {\n#ifdef A\n    a;\n#else\n    b;\n#endif\n}\nvoid f() {}", 6, 1),
        ("void f() {\n    auto a = [] { return 1; };\n}\n__global__ void k() {}", 1, 2),
        ("BIND(f)\nvoid g()", 0, 2),
    ],
)
def test_roles_in_cuda(tmp_path: Path, source: str, kernel: int, launch: int) -> None:
    assert by_role(tmp_path, ".cu", source) == {"kernel": kernel, "launch": launch}


@pytest.mark.parametrize(
    ("source", "kernel", "launch"),
    [
        ("@triton.autotune(\n    {'a': 1},\n)\n@triton.jit\ndef k():\n    pass\ndef f(): pass", 5, 1),
        ("try:\n    import a\nexcept ImportError:\n    a = 1\n@triton.jit\ndef k():\n    a", 3, 4),
        ("if a:\n    b\nelse:\n    c\n@triton.jit\ndef k():\n    if a: b\n    else: c", 4, 4),
        ("A = {'a': 1}\nB = 2\n@triton.jit\ndef k(): A\ndef f(): B", 3, 2),
        ("@functools.cache\ndef f(): pass\n@triton.jit\ndef k(): pass", 2, 2),
    ],
)
def test_roles_in_triton(tmp_path: Path, source: str, kernel: int, launch: int) -> None:
    assert by_role(tmp_path, ".py", source) == {"kernel": kernel, "launch": launch}


def same(path: Path, source: str, tmp_path: Path) -> bool:
    """Whether the source, as a file, counts like the one at path and has the same fingerprint."""
    edited = tmp_path / path.name
    edited.write_bytes(source.encode())
    return count(edited) == count(path) and fingerprint([edited]) == fingerprint([path])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_line_ends_and_byte_order_mark_change_nothing(path: Path, tmp_path: Path) -> None:
    source = path.read_text()
    assert same(path, source.replace("\n", "\r\n"), tmp_path)
    assert same(path, source.rstrip("\n"), tmp_path)
    assert same(path, source + "\n\n", tmp_path)
    assert same(path, "\ufeff" + source, tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("hard.cu", "// A file", "// } /* "),
        ("hard.cu", "  // the comment after it is none of its tokens", ""),
        ("hard.cu", " /* nor is this one,\n   nor this */", "  // edited"),
        ("hard.cu", "    /* a comment in a macro */ \\\n", ""),
        ("hard.cu", "// it's the input, not \"the output) {", "/* ( */"),
        ("hard.cu", " /* ) */", ""),
        ("hard.cu", "// a comment that goes on \\\n    out[0] = 0;", "/* out[0] = 0; */"),
        ("hard.cu", "  // in two pieces\n", ' /* " */\n'),
        ("hard.cu", "// 2. launch\n", ""),
        ("hard.py", "with", "without"),
        ("hard.py", "  # a comment after the docstring", ""),
        ("hard.py", "# no comment, and no import:\n", '\\"\\"\\" '),
        ("hard.py", '    "The docstring of a class."\n', ""),
        ("hard.py", "\n\n# and one between decorator and def", ""),
        ("hard.py", '("The docstring of a kernel, "  # in two pieces and in brackets\n', '("Edited"\n'),
        ("hard.py", '    """Launch it.\n\n    if x: pass\n    """\n', ""),
        ("hard.py", " # the last comment, without a line end", ""),
        ("hard.py", "# the last comment", "    # the last"),
    ],
)
def test_editing_a_comment_or_docstring_changes_nothing(name: str, old: str, new: str, tmp_path: Path) -> None:
    source = (FIXTURES / name).read_text()
    assert old in source or old == "with"
    assert same(FIXTURES / name, source.replace(old, new), tmp_path)


@pytest.mark.parametrize("path", [*CUDA_TWINS, FIXTURES / "scale_naive.cu"], ids=lambda path: path.name)
def test_comments_between_all_tokens_change_nothing_in_cuda(path: Path, tmp_path: Path) -> None:
    lines = path.read_text().split("\n")
    assert same(path, "\n".join(line + "  // int a = 1; {" for line in lines), tmp_path)
    assert same(path, "\n/* int a;\n} */\n".join(lines), tmp_path)
    spaced = [line if re.search(r'^\s*(//|#)|"', line) else line.replace(" ", " /* , ) */ ") for line in lines]
    assert same(path, "\n".join(spaced), tmp_path)


@pytest.mark.parametrize("path", [*TRITON_TWINS, FIXTURES / "scale_naive.py"], ids=lambda path: path.name)
def test_comments_after_all_lines_change_nothing_in_triton(path: Path, tmp_path: Path) -> None:
    lines = path.read_text().split("\n")
    assert same(path, "\n".join(line + "  # a = 1 (" for line in lines), tmp_path)
    assert same(path, "\n  # a = 1\n\n".join(lines), tmp_path)


@pytest.mark.parametrize("path", [FIXTURES / "scale_naive.cu", FIXTURES / "scale_naive.py"], ids=lambda path: path.name)
def test_editing_any_token_changes_the_fingerprint(path: Path, tmp_path: Path) -> None:
    source = path.read_text()
    code = source.index("#include" if path.suffix == ".cu" else "import")
    edited = tmp_path / path.name
    n_edits = 0
    for match in re.finditer(r"(?://|# ).*|\w+|[^\w\s]", source[code:]):
        if match[0].startswith(("//", "# ")):
            continue
        replacement = match[0] + "_" if match[0][0].isalnum() else ""
        edited.write_text(source[:code] + source[code:][: match.start()] + replacement + source[code:][match.end() :])
        try:
            assert fingerprint([edited]) != fingerprint([path]), match
        except SyntaxError:  # which no twin can have
            continue
        n_edits += 1
    assert n_edits > 70


def test_indentation_and_line_ends_that_mean_something_are_in_the_fingerprint(tmp_path: Path) -> None:
    def of(suffix: str, source: str) -> str:
        path = tmp_path / f"snippet{suffix}"
        path.write_text(source)
        return fingerprint([path])

    assert of(".py", "if a:\n    b\n    c\n") != of(".py", "if a:\n    b\nc\n")
    assert of(".py", "if a:\n    b\n    c\n") == of(".py", "if a:\n  b\n\n  c")
    assert of(".cu", "#define A b\nc") != of(".cu", "#define A b c")
    assert of(".cu", "#  define A \\\n  b\nc") == of(".cu", "#define A b\n\nc")
    assert of(".cu", 'a = " ";') != of(".cu", 'a = "  ";')


def test_fingerprint_takes_every_source_into_account() -> None:
    cuda, triton = FIXTURES / "hard.cu", FIXTURES / "hard.py"
    assert (
        len({fingerprint([cuda]), fingerprint([triton]), fingerprint([cuda, triton]), fingerprint([cuda, cuda])}) == 4
    )


@pytest.mark.skipif(not importlib.util.find_spec("ruff"), reason="ruff is not installed")
@pytest.mark.parametrize("line_length", [40, 200])
def test_ruff_format_changes_no_token_count(line_length: int, tmp_path: Path) -> None:
    paths = [path for path in FILES if path.suffix == ".py"]
    edited = [Path(shutil.copy(path, tmp_path)) for path in paths]
    command = [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={line_length}", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    assert any(count(after).lines != count(before).lines for after, before in zip(edited, paths, strict=True))
    for after, before in zip(edited, paths, strict=True):
        assert count(after).tokens == count(before).tokens, before


CLANG_FORMAT = shutil.which("clang-format", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(CLANG_FORMAT is None, reason="clang-format is not installed")
@pytest.mark.parametrize(
    "style",
    [
        "{BasedOnStyle: LLVM, ColumnLimit: 40}",
        "{BasedOnStyle: GNU, ColumnLimit: 200}",
        "{BasedOnStyle: Google, ColumnLimit: 50, InsertBraces: true, BreakBeforeBraces: Allman}",
    ],
)
def test_clang_format_changes_no_token_count(style: str, tmp_path: Path) -> None:
    paths = [path for path in FILES if path.suffix != ".py"]
    edited = [Path(shutil.copy(path, tmp_path)) for path in paths]
    subprocess.run([str(CLANG_FORMAT), "-i", f"--style={style}", *map(str, edited)], check=True)
    for after, before in zip(edited, paths, strict=True):
        assert after.read_text() != before.read_text()
        assert count(after).tokens == count(before).tokens, before


# A second way to count, good enough for sources without traps.
@pytest.mark.parametrize("path", [*CUDA_TWINS, FIXTURES / "scale_naive.cu"], ids=lambda path: path.name)
def test_lines_agree_with_the_stock_lexer(path: Path) -> None:
    line, counted = 1, set()
    for kind, text in CudaLexer().get_tokens(path.read_text()):
        is_comment = kind in Comment and kind not in (Comment.Preproc, Comment.PreprocFile)
        if not is_comment and text.strip() and text not in "()[]{},;:":
            counted.add(line)
        line += text.count("\n")
    assert sum(count(path).lines.values()) == len(counted)


@pytest.mark.parametrize("path", [*TRITON_TWINS, FIXTURES / "scale_naive.py"], ids=lambda path: path.name)
def test_lines_agree_with_a_plain_search(path: Path) -> None:
    source = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
    counted = [line for line in source.split("\n") if re.search(r"[^\s()\[\]{},;:]", line.partition("#")[0])]
    assert sum(count(path).lines.values()) == len(counted)


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_counting_needs_no_triton_and_ignores_its_interpreter(interpret: str) -> None:
    program = """
import sys
from pathlib import Path
from compare.lines import count, fingerprint
paths = [Path(path) for path in sys.argv[1:]]
print([count(path) for path in paths], fingerprint(paths))
assert not {"torch", "triton"} & set(sys.modules)
"""
    command = [sys.executable, "-c", program, *map(str, FILES)]
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    printed = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    assert printed == f"{[count(path) for path in FILES]} {fingerprint(FILES)}\n"


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("scale_naive.cu", [(1, "read, scale, write", 17), (2, "launch", 21)]),
        ("scale_naive.py", [(1, "read, scale, write", 19), (2, "launch", 24)]),
        ("hard.cu", [(1, "a phase", 45), (2, "launch", 62)]),
        ("hard.py", [(1, "a phase", 45), (2, "launch", 68)]),
    ],
)
def test_phases_are_comments_that_begin_their_line(name: str, phases: list[tuple[int, str, int]]) -> None:
    assert split_phases(FIXTURES / name) == [Phase(*phase) for phase in phases]


@pytest.mark.parametrize(
    ("name", "source", "error", "text"),
    [
        ("a.cu", b"int a;\nvoid f() {\n    g(\n", ValueError, r"a\.cu: .*line 2 is never closed"),
        ("a.py", b"a = (\n", SyntaxError, r"a\.py"),
        ("a.cu", b"// caf\xe9", ValueError, "utf-8"),
    ],
)
def test_broken_file_is_an_error_not_a_number(
    name: str, source: bytes, error: type[Exception], text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(source)
    with pytest.raises(error, match=text):
        count(tmp_path / name)


def test_a_role_counts_the_whole_file_as_it() -> None:
    counted = count(FIXTURES / "scale_naive.cu", "binding")
    assert counted == Count({"binding": 5 + 6}, {"binding": 51 + 44})
