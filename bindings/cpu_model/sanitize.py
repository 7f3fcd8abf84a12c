"""Runs a launcher of cuda/ in a C++ program, without Python, under AddressSanitizer and UBSan or ThreadSanitizer.

"address" sees accesses out of bounds, of global memory and of each shared variable, and misaligned vectors. "thread"
sees two threads that use the same memory with no barrier between. `python -m bindings.cpu_model.sanitize` deletes each
barrier of each kernel in turn and prints what reported it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bindings.build import HERE, MODEL, ROOT, find_cxx
from bindings.cpu_model.rewrite import code_words, rewrite

DTYPES = ("float32", "float16", "bfloat16")
TOOLS = {
    "address": ["-fsanitize=address,undefined", "-DCPU_MODEL_ADDRESS"],
    "thread": ["-fsanitize=thread", "-DCPU_MODEL_THREAD"],
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "report_signal_unsafe=0:history_size=7",
}
_LOCK = threading.Lock()  # programs may be built in parallel; what they share, once
REPORT = re.compile(
    r"ERROR: AddressSanitizer: (?P<address>\S+)|runtime error: (?P<undefined>.*)"
    r"|WARNING: ThreadSanitizer: (?P<thread>.*?) \(pid|^cpu_model: (?P<cpu_model>.*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Finding:
    """What a tool reported: "address", "undefined", "thread", or "cpu_model" for what the model itself saw.

    `line` is the first line of `file`, the kernel's or a header beside it, in the report; 0 where none is named.
    """

    tool: str
    kind: str
    file: str
    line: int


def sanitize(
    stem: str,
    tool: str,
    source: Path | None = None,
    cases: Iterable[Mapping[str, int | str]] = ({},),
    deleted_barrier: int = 0,
) -> list[Finding]:
    """Run launcher `stem` under `tool` ("address" or "thread"); what was found, nothing twice.

    `source` stands in for cuda/<stem>.cu, and for bindings/<stem>.cu where there is none. A case gives arguments by
    the launcher's names (n_rows=2, n_cols=300, n_elements=700 unless given), and may give "dtype" and "order" (of
    threads, "ascending" or "descending"). A __syncthreads() in line `deleted_barrier` does nothing. Raises ValueError
    for an argument without a value, subprocess.CalledProcessError where the compiler or the program fails.
    """
    source = (source or ROOT / "cuda" / f"{stem}.cu").resolve()
    binding = re.search(rf'BIND\({stem}, "(.*?)"\)', _unit(stem, source).read_text())
    assert binding, f"no BIND({stem}, ...)"
    program = build_program(stem, tool, source)
    found: dict[Finding, None] = {}
    for case in cases:
        dtype, order = DTYPES.index(str(case.get("dtype", "float32"))), str(case.get("order", "ascending"))
        arguments = list(_arguments(binding[1].split(", "), case, dtype))
        command = [program, stem, str(dtype), order, str(deleted_barrier), *arguments]
        with _fixed_addresses():
            done = subprocess.run(
                command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=120
            )
        reports = _findings(_with_lines(done.stderr, program), source)
        if done.returncode and not reports:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        found.update(dict.fromkeys(reports))
    return list(found)


def barriers(source: Path) -> list[int]:
    """The lines of `source` with a __syncthreads()."""
    return [line for word, line in code_words(source.read_text()) if word.startswith("__syncthreads")]


def _arguments(names: list[str], case: Mapping[str, int | str], dtype: int) -> Iterator[str]:
    """The launcher's arguments as sanitize_main.cpp reads them."""
    sizes = {"n_rows": 2, "n_cols": 300, "n_elements": 700, **case}
    for name in names:
        if name in sizes:
            yield str(sizes[name])
        elif name.endswith("_row_stride"):
            yield str(sizes["n_cols"])
        elif name.startswith("row_"):  # row_max, row_sum
            yield f"output:0:{sizes['n_rows']}"
        elif name == "exchange":  # as much as compare.operations allocates for rows that may be cut
            yield f"zeros:{1 + int(sizes['n_rows']) * -(-int(sizes['n_cols']) // 4096)}"
        elif name in ("x", "y", "out"):
            stride = int(sizes.get(f"{name}_row_stride", sizes["n_cols"]))
            n_matrix = (int(sizes["n_rows"]) - 1) * stride + int(sizes["n_cols"])
            n = sizes["n_elements"] if "n_elements" in names else n_matrix
            yield f"{'output' if name == 'out' else 'input'}:{dtype}:{n}"
        else:
            raise ValueError(f"argument {name}: got no value, wanted one in the case")


@contextmanager
def _fixed_addresses() -> Iterator[None]:
    """Older ThreadSanitizers do not start where the kernel randomises addresses by more bits than they know."""
    libc = ctypes.CDLL(None)
    before = libc.personality(0xFFFFFFFF)  # asks, changes nothing
    libc.personality(before | 0x0040000)  # ADDR_NO_RANDOMIZE, for programs started from here; may be forbidden
    try:
        yield
    finally:
        libc.personality(before)


def _unit(stem: str, source: Path) -> Path:
    """The file that binds the launcher: bindings/<stem>.cu, else the source itself."""
    binding = HERE / f"{stem}.cu"
    return binding if binding.exists() else source


@cache
def _directory() -> Path:
    path = tempfile.mkdtemp(prefix="cpu-model-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _compile(tool: str, source: Path, target: Path, includes: Iterable[Path] = ()) -> str:
    sanitizer, define = TOOLS[tool]
    flags = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", define]
    flags += ["-include", "cuda_runtime.h"]
    if source.name != "runtime.cpp":  # which must stay out of the sanitizer's sight
        flags.append(sanitizer)
    paths = [f"-I{path}" for path in (*includes, MODEL / "include", HERE)]
    _run([*flags, *paths, "-x", "c++", "-c", str(source), "-o", str(target)])
    return str(target)


def _run(arguments: list[str]) -> None:
    subprocess.run([*shlex.split(find_cxx()), *arguments], check=True, capture_output=True, text=True)


@cache
def _common(tool: str) -> list[str]:
    sources = [MODEL / "runtime.cpp", MODEL / "sanitize_main.cpp"]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda source: _compile(tool, source, _directory() / f"{tool}-{source.stem}.o"), sources))


@cache
def build_program(stem: str, tool: str, source: Path) -> str:
    """The program for one launcher, compiled once a process: its path. Raises subprocess.CalledProcessError."""
    directory = Path(tempfile.mkdtemp(dir=_directory()))
    (directory / "cuda").mkdir()
    rewritten = directory / "cuda" / f"{stem}.cu"
    for path in {source, *source.parent.glob("*.cuh")}:
        target = rewritten if path == source else rewritten.with_name(path.name)
        target.write_text(rewrite(path.read_text(), str(path)))
    with _LOCK:
        common = _common(tool)
    unit = _unit(stem, source)
    kernels = _compile(tool, rewritten if unit == source else unit, directory / "kernels.o", [directory])
    _run([TOOLS[tool][0], kernels, *common, "-o", str(directory / "program")])
    return str(directory / "program")


def _with_lines(output: str, program: str) -> str:
    """The sanitizers' own look-up of lines fails for functions that the linker merges, as instantiated templates are:
    addr2line, which comes with the linker, knows them too."""
    places = sorted(set(re.findall(r"\(\S*program\+0x([0-9a-f]+)\)", output)))
    if not places:
        return output
    command = ["addr2line", "-a", "-i", "-e", program, *places]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines: dict[str, str] = {}
    for block in re.split(r"^0x0*", answer, flags=re.MULTILINE)[1:]:
        address, *inlined = block.split("\n")
        lines[address] = " ".join(inlined)
    return re.sub(r"\(\S*program\+0x([0-9a-f]+)\)", lambda found: lines[found[1].lstrip("0")], output)


def _findings(output: str, source: Path) -> list[Finding]:
    found = []
    reports = list(REPORT.finditer(output))
    ends = [report.start() for report in reports[1:]] + [len(output)]
    for report, end in zip(reports, ends, strict=False):
        start = output.rfind("\n", 0, report.start()) + 1  # UBSan names the line before it says what
        text = output[start:end]
        tool = report.lastgroup or ""
        access = re.search("^(READ|WRITE) of", text, re.MULTILINE)
        place = re.search(rf"({re.escape(str(source.parent))}/[^/\n:]*):(\d+)", text)
        found.append(
            Finding(
                tool,
                report[tool] + (f" ({access[1].lower()})" if access else ""),
                Path(place[1] if place else source).name,
                int(place[2]) if place else 0,
            )
        )
    return found


def main() -> None:
    for source in sorted((ROOT / "cuda").glob("*.cu")):
        for line in barriers(source):
            found = sanitize(source.stem, "thread", deleted_barrier=line)
            reports = [f"{f.tool}: {f.kind}" + (f" in line {f.line}" if f.line else "") for f in found]
            print(f"{source.name}:{line}  {'; '.join(reports) or 'NOT REPORTED'}", flush=True)


if __name__ == "__main__":
    main()
