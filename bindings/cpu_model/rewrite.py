"""Turns the three things of CUDA C++ that no C++ compiler reads into plain C++ that uses the CPU model.

    kernel<T, 128><<<grid, block, shared, stream>>>(x, n);   a launch of 2, 3 or 4 launch arguments
    extern __shared__ T row[];   __shared__ T tile[32][33], total;
    cudaFuncSetAttribute(kernel<T>, ...)                     the limit is kept by the kernel's name: it is added

All else (`__global__`, `threadIdx`, `__syncthreads()`) are macros and functions of include/cuda_runtime.h. Words are
replaced in their places: comments, strings and line numbers stay, so that the compiler and a sanitizer name the line of
the .cu. A bracket that only one branch of an #if opens or closes is not supported.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<blank>   \s+ | \\\r?\n | //(?:\\\r?\n|[^\n])* | /\*.*?\*/ )
      | (?P<string>  (?:u8|[uUL])?R"(?P<fence>[^()\\\s]*)\(.*?\)(?P=fence)" | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*"
                   | (?:u8|[uUL])?'(?:\\.|[^'\\\n])+' | \#\s*include[^\n]* )
      | (?P<number>  \.?\d(?:[eEpP][+-]|'\w|[\w.])* )
      | (?P<name>    [A-Za-z_]\w* )
      | (?P<mark>    <<< | :: | . )""",
    re.VERBOSE | re.DOTALL,
)
CLOSERS = {"(": ")", "[": "]", "{": "}"}
NO_KERNEL = {"return", "else", "do"}  # names that may stand before the expression that names a kernel


class RewriteError(ValueError):
    """Source that the model does not read; the message starts with file:line."""


def rewrite(source: str, path: str) -> str:
    """The C++ for the CUDA C++ text `source`, whose file `path` is named in a `#line` on top. Raises RewriteError."""
    text = _Text(source, path)
    for i, word in enumerate(text.words):
        if word == "<<<":
            _launch(text, i)
        elif word == "__shared__":
            _shared(text, i)
        elif word == "cudaFuncSetAttribute" and text.at(i + 1) == "(":
            text.put_before(i + 2, f'"{_kernel_name(text, i + 2)}", ')
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{escaped}"\n' + "".join(text.pieces)


def code_words(source: str) -> list[tuple[str, int]]:
    """The words of the code, without comments, each with its line."""
    text = _Text(source, "")
    return [(word, text.lines[k]) for word, k in zip(text.words, text.where, strict=True)]


class _Text:
    """A source as pieces to replace in place; those that are code are its words, by which everything here counts."""

    def __init__(self, source: str, path: str) -> None:
        self.path = path
        self.pieces: list[str] = []
        self.lines: list[int] = []  # of each piece
        self.where: list[int] = []  # the piece of each word
        line = 1
        for match in TOKEN.finditer(source):
            if match.lastgroup != "blank":
                self.where.append(len(self.pieces))
            self.pieces.append(match.group())
            self.lines.append(line)
            line += match.group().count("\n")
        self.words = [self.pieces[k] for k in self.where]
        self.partner = self._match_brackets()

    def at(self, i: int) -> str:
        return self.words[i] if 0 <= i < len(self.words) else ""

    def is_name(self, i: int) -> bool:
        return re.match(r"[A-Za-z_]", self.at(i)) is not None

    def error(self, i: int, text: str) -> RewriteError:
        return RewriteError(f"{self.path}:{self.lines[self.where[i]]}: {text}")

    def put_before(self, i: int, text: str) -> None:
        self.pieces[self.where[i]] = text + self.pieces[self.where[i]]

    def replace(self, i: int, text: str) -> None:
        self.pieces[self.where[i]] = text

    def source(self, begin: int, end: int) -> str:
        """words[begin:end] as written, on one line."""
        pieces = (
            p for p in self.pieces[self.where[begin] : self.where[end - 1] + 1] if not p.startswith(("//", "/*", "\\"))
        )
        return " ".join("".join(pieces).split())

    def split(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The spans between the commas of words[begin:end] that no bracket encloses."""
        spans, i = [], begin
        while i < end:
            if self.words[i] == ",":
                spans.append((begin, i))
                begin = i + 1
            i = max(i, self.partner.get(i, i)) + 1
        return [*spans, (begin, end)]

    def _match_brackets(self) -> dict[int, int]:
        """Each bracket to its partner, both ways; <<< to the first > of >>>. A < or > that only compares has none."""
        partner: dict[int, int] = {}
        open_: list[int] = []
        for i, word in enumerate(self.words):
            if word in CLOSERS or word == "<<<" or (word == "<" and self.is_name(i - 1)):
                open_.append(i)
            elif word == ">" and self.at(i - 1) != ">":
                run, angles = 1, 0  # how many > follow each other; how many < are open, innermost
                while self.at(i + run) == ">":
                    run += 1
                while angles < len(open_) and self.words[open_[-1 - angles]] == "<":
                    angles += 1
                outer = open_[-1 - angles] if angles < len(open_) else -1
                # More > than templates to close: the last three end the launch, a < too many was a comparison.
                ends_launch = self.at(outer) == "<<<" and run >= 3 and angles < run and self.at(i + run) == "("
                templates = run - 3 if ends_launch else min(run, angles)
                if ends_launch:
                    del open_[len(open_) - angles + templates :]
                for k in range(i, i + templates):
                    partner[k] = open_[-1]
                    partner[open_.pop()] = k
                if ends_launch:
                    partner[open_.pop()] = i + templates
            elif word in CLOSERS.values() or word == ";":
                while open_ and self.words[open_[-1]] == "<":
                    open_.pop()
                if open_ and self.words[open_[-1]] == "<<<":
                    raise self.error(open_[-1], "'<<<' without '>>>(' after it")
                if word != ";":
                    if not open_ or CLOSERS[self.words[open_[-1]]] != word:
                        raise self.error(i, f"'{word}' closes nothing")
                    partner[i] = open_[-1]
                    partner[open_.pop()] = i
            elif word == "__shared__" and not any(self._is_body(k) for k in open_):
                raise self.error(i, "__shared__ outside a function: declare it in the kernel that uses it")
        if open_:
            raise self.error(open_[-1], f"'{self.words[open_[-1]]}' is never closed")
        return partner

    def _is_body(self, i: int) -> bool:
        """Whether words[i] opens a body, rather than a namespace, extern "C" or an argument list."""
        begin = i
        while self.at(begin - 1) not in ("", ";", "{", "}"):
            begin -= 1
        head = self.words[begin:i]
        return self.words[i] == "{" and "namespace" not in head and head[-2:] != ["extern", '"C"']


def _launch(text: _Text, i: int) -> None:
    begin, close = _kernel_begin(text, i), text.partner[i]
    arguments = text.split(i + 1, close)
    if not 2 <= len(arguments) <= 4 or any(first == last for first, last in arguments):
        raise text.error(i, f"a launch takes 2 to 4 arguments between <<< and >>>, found {len(arguments)}")
    name = text.source(begin, i)
    text.put_before(begin, f'cpu_model::launch("{name}", [&](auto... arguments) {{ ')
    text.replace(i, "(arguments...); }, ")
    for k, closer in zip(range(close, close + 3), (")", "", ""), strict=True):
        text.replace(k, closer)


def _kernel_begin(text: _Text, i: int) -> int:
    """Where the expression before <<< begins: ns::Type<A>::kernel<B, C>, (*pointer), kernels[k]."""
    begin = i
    while True:
        while text.at(begin - 1) in (")", "]", ">") and begin - 1 in text.partner:
            begin = text.partner[begin - 1]
        if text.is_name(begin - 1) and text.at(begin - 1) not in NO_KERNEL:
            begin -= 1
        if begin == i:
            raise text.error(i, "'<<<' without a kernel before it")
        begin -= text.at(begin - 1) == "template"
        if text.at(begin - 1) != "::":
            return begin
        begin -= 1
        if not text.is_name(begin - 1) and text.at(begin - 1) != ">":
            return begin


def _kernel_name(text: _Text, begin: int) -> str:
    """The kernel that cudaFuncSetAttribute's first argument names, without casts and template arguments."""
    last = text.split(begin, text.partner[begin - 1])[0][1] - 1
    while text.words[last] == ")":
        last -= 1
    if text.words[last] == ">" and last in text.partner:
        last = text.partner[last] - 1
    if not text.is_name(last):
        raise text.error(begin, "cudaFuncSetAttribute: the first argument does not name a kernel")
    return text.words[last]


def _shared(text: _Text, i: int) -> None:
    """The declaration around `__shared__` becomes a CPU_MODEL_SHARED or CPU_MODEL_DYNAMIC_SHARED for each variable."""
    begin = end = i
    while text.at(begin - 1) not in (";", "{", "}"):
        begin -= 1
    while text.at(end) != ";":
        if text.words[end] in ("{", "="):
            raise text.error(i, "__shared__: wanted 'type name[sizes], ...;' without body or initial value")
        end = max(end, text.partner.get(end, end)) + 1
    # What is neither a specifier nor an alignment is type, name and sizes.
    kept, alignment, k = [], "1", begin
    while k < end:
        if text.words[k] in ("alignas", "__align__"):
            alignment = text.source(k + 2, text.partner[k + 1])
            k = text.partner[k + 1]
        elif text.words[k] not in ("__shared__", "extern", "static"):
            kept.append(k)
        k += 1
    is_dynamic = "extern" in text.words[begin:end]
    calls: list[str] = []
    type_ = ""
    for first, last in text.split(kept[0], end) if kept else []:
        words = [text.words[k] for k in kept if first <= k < last]
        name = words.index("[") - 1 if "[" in words else len(words) - 1
        type_ = type_ or " ".join(words[:name])
        if name != 0 if calls else name < 1 or (is_dynamic and words[name + 1 :] != ["[", "]"]):
            wanted = (
                "extern __shared__: wanted 'type name[]'" if is_dynamic else "__shared__: wanted 'type name[sizes]'"
            )
            raise text.error(first, wanted)
        macro = "CPU_MODEL_DYNAMIC_SHARED" if is_dynamic else "CPU_MODEL_SHARED"
        sizes = "" if is_dynamic else "".join(words[name + 1 :])
        calls.append(f"{macro}({words[name]}, {alignment}, {type_}{sizes})")
    for k in range(begin, end):
        text.replace(k, "")
    text.put_before(end, "; ".join(calls))


def main(arguments: list[str]) -> int:
    source, target = arguments
    try:
        with open(source, encoding="utf-8", newline="") as file:
            text = rewrite(file.read(), source)
    except RewriteError as error:
        print(error, file=sys.stderr)
        return 1
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with open(target, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
