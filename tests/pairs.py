"""The pair contract: what a CUDA file and its Triton twin must have in common, checked from their text."""

import ast
import re
from itertools import takewhile
from pathlib import Path

from compare.lines import Phase, split_phases

FIELDS = ("Computes", "Traffic", "Owns", "Limits", "Twin")
ONE_SCREEN = 80  # lines
HEADER = 12  # lines
TEACHING_RUNGS = ("naive", "fused", "online")  # a file alone; tuned may use headers


def header_lines(path: Path) -> list[str]:
    """The header without comment signs: the module docstring, or the `//` lines on top of a .cu file."""
    source = path.read_text()
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(source), clean=False) or "").rstrip().split("\n")
    comments = takewhile(lambda line: line.startswith("//"), source.split("\n"))
    return [line[2:].removeprefix(" ").rstrip() for line in comments] or [""]


def header(path: Path) -> dict[str, str]:
    """The fields of a header by name, in order, its first line as "title"; an indented line continues a field.

    Raises ValueError on a line that is neither a new field nor the continuation of one.
    """
    title, *rest = header_lines(path)
    fields = {"title": title}
    for line in filter(None, rest):
        field = re.fullmatch(r"([A-Z]\w*) +(\S.*)", line)
        if field and field[1] not in fields:
            fields[field[1]] = field[2]
        elif line[0] == " " and len(fields) > 1:
            fields[next(reversed(fields))] += " " + line.strip()
        else:
            raise ValueError(f"the header's line {line!r} is neither a new field nor an indented continuation")
    return fields


def passes(traffic: str) -> tuple[int, int]:
    """Reads and writes an element, from a header's Traffic: "1 read + 1 write an element". Raises ValueError."""
    match = re.match(r"(\d+) reads? \+ (\d+) writes? an element\b", traffic)
    if not match:
        raise ValueError(f"Traffic is {traffic!r}, wanted '1 read + 1 write an element'")
    return int(match[1]), int(match[2])


def code(path: Path) -> str:
    """The text without comments and header; enough for twins, which hold no comment sign in a string."""
    source = path.read_text()
    if path.suffix == ".py":
        return re.sub(r"#.*", "", source.removeprefix('"""').partition('"""')[2])
    return re.sub(r"/\*[\s\S]*?\*/|//.*", "", source)


def functions(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The kernels of a twin in order, and its host functions with their parameters in order."""
    source = code(path)
    if path.suffix == ".py":
        found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        kernels = [node.name for node in found if node.decorator_list and node.name in launches(path)]
        return kernels, {node.name: [arg.arg for arg in node.args.args] for node in found if not node.decorator_list}
    source = re.sub(r"__launch_bounds__\([^()]*\)", "", source)
    on_host = {}
    for before, name, parameters in re.findall(r"^(\w[^;{}()]*?)\b(\w+)\(([^;{}()]*)\)\s*\{", source, re.MULTILINE):
        if "__global__" not in before and "__device__" not in before:
            on_host[name] = [parameter.split()[-1].lstrip("*&") for parameter in parameters.split(",")]
    return re.findall(r"__global__\s+void\s+(\w+)\(", source), on_host


def launches(path: Path) -> list[str]:
    """The names launched, in order: `name<<<`, `name<T><<<` or `name[grid](`."""
    pattern = r"(\w+)\[[^\[\]]*\]\(" if path.suffix == ".py" else r"(\w+)(?:<[\w\s,]+>)?<<<"
    return re.findall(pattern, code(path))


def phases(path: Path) -> list[Phase]:
    """The phases of a twin; those of the regimes that a tuned .cu includes come first, in the order of the includes."""
    regimes = re.findall(rf'#include "({path.stem}_\w+\.cuh)"', path.read_text())
    return [phase for part in (*regimes, path.name) for phase in split_phases(path.with_name(part))]


def problems(cuda: Path, triton: Path) -> list[str]:
    """Every way in which two twins break the contract, in words; none for a good pair."""
    missing = [f"{path.parent.name}/{path.name} is missing" for path in (cuda, triton) if not path.is_file()]
    if missing:
        return missing
    found = [*_headers(cuda, triton), *_host_functions(cuda, triton), *_phases(cuda, triton)]
    if cuda.stem.rpartition("_")[2] in TEACHING_RUNGS:
        found += [*_kernels(cuda, triton), *_nothing_else(cuda), *_nothing_else(triton)]
    return found


def _headers(cuda: Path, triton: Path) -> list[str]:
    found, traffic = [], []
    operation, _, rung = cuda.stem.rpartition("_")
    for path, twin in ((cuda, triton), (triton, cuda)):
        try:
            fields = header(path)
            if tuple(fields) != ("title", *FIELDS):
                raise ValueError(f"the header's fields are {', '.join(fields)}; wanted title, {', '.join(FIELDS)}")
            traffic.append(passes(fields["Traffic"]))
        except ValueError as error:
            found.append(f"{path.name}: {error}")
            continue
        if not fields["title"].startswith(f"{operation}, {rung}: "):
            found.append(f"{path.name}: the title is {fields['title']!r}; wanted '{operation}, {rung}: …'")
        if fields["Twin"] != f"{twin.parent.name}/{twin.name}":
            found.append(f"{path.name}: its Twin is {fields['Twin']}; wanted {twin.parent.name}/{twin.name}")
        if (n_lines := len(header_lines(path))) > HEADER:
            found.append(f"{path.name}: the header has {n_lines} lines; wanted at most {HEADER}")
    if len(set(traffic)) > 1:
        found.append(f"Traffic differs: (reads, writes) are {traffic[0]} and {traffic[1]}")
    return found


def _host_functions(cuda: Path, triton: Path) -> list[str]:
    in_cuda, in_triton = functions(cuda)[1], functions(triton)[1]
    found = [
        f"{path.name}: the host functions are {', '.join(names) or 'none'}; wanted {path.stem} alone"
        for path, names in ((cuda, in_cuda), (triton, in_triton))
        if list(names) != [path.stem]
    ]
    if not found and in_cuda[cuda.stem] != [*in_triton[cuda.stem], "stream"]:
        wanted = ", ".join([*in_triton[cuda.stem], "stream"])
        found.append(f"{cuda.name}: the parameters are {', '.join(in_cuda[cuda.stem])}; wanted {wanted}")
    return found


def _phases(cuda: Path, triton: Path) -> list[str]:
    """Twins have the same phases in the same order; of tuned ones, each regime of Triton's is one of CUDA's."""
    in_cuda, in_triton = (_sequences(phases(path)) for path in (cuda, triton))
    teaching = cuda.stem.rpartition("_")[2] in TEACHING_RUNGS
    same = in_cuda == in_triton if teaching else bool(in_triton) and all(one in in_cuda for one in in_triton)
    found = [] if same else [f"the phases differ: {in_cuda} and {in_triton}"]
    for path, sequences in ((cuda, in_cuda), (triton, in_triton)):
        numbers = [number for sequence in sequences for number, _ in sequence]
        if not numbers or any(n not in (1, before + 1) for before, n in zip([0, *numbers], numbers, strict=False)):
            found.append(f"{path.name}: the phases have the numbers {numbers}; wanted 1, 2, …, anew in each regime")
    return found


def _sequences(found: list[Phase]) -> list[list[tuple[int, str]]]:
    """The phases of each regime: a new one begins at 1."""
    sequences: list[list[tuple[int, str]]] = []
    for phase in found:
        if phase.number == 1 or not sequences:
            sequences.append([])
        sequences[-1].append((phase.number, phase.title))
    return sequences


def _kernels(cuda: Path, triton: Path) -> list[str]:
    in_cuda, in_triton = functions(cuda)[0], functions(triton)[0]
    found = [] if in_cuda == in_triton else [f"the kernels differ: {in_cuda} and {in_triton}"]
    if not in_cuda:
        found.append(f"{cuda.name}: no kernel")
    for path, kernels in ((cuda, in_cuda), (triton, in_triton)):
        misnamed = [kernel for kernel in kernels if not kernel.startswith(path.stem)]
        found += [f"{path.name}: the kernel {kernel} wants the prefix {path.stem}" for kernel in misnamed]
        if launches(path) != kernels:
            found.append(f"{path.name}: launches {launches(path)}; wanted each of its kernels once, {kernels}")
    return found


def _nothing_else(path: Path) -> list[str]:
    """Only kernels and launch, on one screen, to be copied out and understood alone."""
    found = []
    if (n_lines := len(path.read_text().splitlines())) > ONE_SCREEN:
        found.append(f"{path.name}: {n_lines} lines; wanted at most {ONE_SCREEN}")
    for word in ("torch", "raise", "throw", "assert", "print", "printf"):
        if re.search(rf"\b{word}\b", code(path)):
            found.append(f"{path.name}: {word}; wanted kernels and launch, inputs arrive valid")
    wanted = r"import triton(\.language as tl)?" if path.suffix == ".py" else r"#include <(cuda_)?\w+(\.h)?>"
    for line in re.findall(r"^ *(?:import|from|#include).*", code(path), re.MULTILINE):
        if not re.fullmatch(wanted, line.rstrip()):
            found.append(f"{path.name}: {line.strip()}; wanted only the language's own")
    return found
