"""A pair side by side: CUDA left, Triton right, the same numbered phase level. Reads the sources alone.

`pair` is the layout, for the terminal (`show`) and for the page (page.py).
"""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from compare import sources, tables
from compare.lines import split_phases
from compare.registry import LANGUAGES, Operation

WIDE = 140  # columns of a terminal from which the twins stand side by side
LEXERS = {"cuda": "cuda", "triton": "python"}  # by the name of the sources' folder


class Part(NamedTuple):
    """Lines of a source that stand together: a numbered phase, or what comes before one (no title)."""

    path: Path
    title: str  # "1. row maximum"
    first_line: int  # from 1
    text: str

    @property
    def file(self) -> str:
        """The source's name in the repository, as "cuda/softmax_fused.cu"."""
        return f"{self.path.parent.name}/{self.path.name}"


def parts(language: str, stem: str) -> list[Part]:
    """An implementation whole, in reading order: what comes before the first phase of its main file, the headers in the
    order in which that file includes them (before those, headers that only headers include), and the rest of it."""
    main, *headers = sources.kernel_sources(language, stem)
    text = main.read_text(encoding="utf-8-sig")
    headers.sort(key=lambda path: text.find(f'"{path.name}"'))
    first, *rest = _cut(main)
    return [first, *(part for header in headers for part in _cut(header)), *rest]


def pair(stem: str) -> list[tuple[Part | None, Part | None]]:
    """Rows of (CUDA, Triton): the same phases, and what comes before the same phases; None where one has nothing beside
    the other's. The first parts, with the headers of both files, share the first row."""
    left, right = (parts(language, stem) for language in LANGUAGES)
    rows: list[tuple[Part | None, Part | None]] = []
    keys = [["header", *(part.title or f"before {after.title}" for part, after in pairwise([*side[1:], side[0]]))]
            for side in (left, right)]  # fmt: skip
    for same, l0, l1, r0, r1 in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if same == "equal":
            rows += zip(left[l0:l1], right[r0:r1], strict=True)
        else:
            rows += [*((part, None) for part in left[l0:l1]), *((None, part) for part in right[r0:r1])]
    return rows


def show(operation: Operation, rung: str, console: Console) -> None:
    """Print the pair: side by side on a wide terminal, phase by phase one above the other on a narrow one, and in a
    pipe as plain text, its lines whole. Counted lines by role at the foot."""
    wide = console.is_terminal and console.width >= WIDE
    grid = Table.grid(Column(ratio=1), Column(ratio=1), padding=(0, 1), expand=True)
    console.print(Text(f"{operation.name}, {rung}: {operation.rung(rung).idea}\n", style="bold"))
    for row in pair(operation.stem(rung)):
        cells = [_cell(part, console.is_terminal) if part else "" for part in row if part or wide]
        if wide:
            grid.add_row(*cells)
        else:
            console.print(*cells, sep="", soft_wrap=not console.is_terminal)
    console.print(grid if wide else "", tables.lines({"implementations": sources.implementations(operation, rung)}))


def _cut(path: Path) -> list[Part]:
    """A file whole, cut at its numbered comments, and at the head of a function in which the next of them stands."""
    source = path.read_text(encoding="utf-8-sig").split("\n")
    titles = {1: ""}
    for phase in split_phases(path):
        head = phase.line
        while head > 1 and (not source[head - 1][:1].strip() or source[head - 2]):
            head -= 1  # to a line at the margin below an empty one
        titles |= {head: ""} if head > max(titles) else {}
        titles[phase.line] = f"{phase.number}. {phase.title}"
    ends = [*list(titles)[1:], len(source) + 1]
    texts = ("\n".join(source[first - 1 : end - 1]).rstrip() for first, end in zip(titles, ends, strict=True))
    return [Part(path, title, first, text) for (first, title), text in zip(titles.items(), texts, strict=True)]


def _cell(part: Part, terminal: bool) -> RenderableType:
    """Where a part stands, its code (on a terminal highlighted in the terminal's own colours), an empty line."""
    lexer = LEXERS[part.path.parent.name]
    code = Syntax(part.text, lexer, theme="ansi_dark", background_color="default", line_numbers=True,
                  start_line=part.first_line, word_wrap=True)  # fmt: skip
    return Group(Text(f"{part.file}:{part.first_line}", style="bold"), code if terminal else Text(part.text), "")
