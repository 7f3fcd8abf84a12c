"""The page of an operation: one HTML file that asks the network for nothing, and index.html over the pages of a folder.

It shows the sources, and of the record what tables.py and figures.py make of it. What stands where, how it looks and
how it behaves is in templates/: page.html and index.html (Jinja2), page.css, page.js.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from compare import gap, read, sources, tables
from compare.record import Record, measured_on
from compare.registry import LANGUAGES, OPERATIONS


def write(record: Record, sections: Sequence[tables.Section], figures: Sequence[Path], out_dir: Path) -> list[Path]:
    """Writes OPERATION.html, and index.html anew; returns their paths.

    record: with the measurements that are shown. sections: in the page's order, those that hold something. figures: of
    these files the SVGs.
    """
    operation = OPERATIONS[record["operation"]]
    page, index = out_dir / f"{operation.name}.html", out_dir / "index.html"
    facts: dict[str, Any] = {
        "operation": operation, "record": record, "machine": measured_on(record), "gaps": gap.gaps(record),
        "ours": {entry["name"]: entry for entry in sources.implementations(operation)},
        "languages": dict(zip(LANGUAGES, ("CUDA C++", "Triton"), strict=True)),
        "figures": [_inline(path) for path in figures if path.suffix == ".svg"],
        "sections": [section for section in sections if section.parts],
    }  # fmt: skip
    _render("page.html", page, pair=read.pair, highlighted=_highlighted, diff=_diff,
            source_line=tables.source_line, marked=_marked, **facts)  # fmt: skip
    pages = {each: path for each in OPERATIONS.values() if (path := out_dir / f"{each.name}.html").exists()}
    _render("index.html", index, summaries={each: _summary(path) for each, path in pages.items()})
    return [page, index]


def _render(template: str, path: Path, **context: Any) -> None:
    path.write_text(tables.template(template).render(context), encoding="utf-8")


def _summary(page: Path) -> Markup:
    """The sentence in which a page describes itself."""
    found = re.search(r'<meta name="description" content="([^"]*)">', page.read_text(encoding="utf-8"))
    return Markup(found[1] if found else "")


def _highlighted(part: read.Part) -> list[Markup]:
    """The lines of a part as HTML; templates/page.css has the colours of Pygments' short class names."""
    lexer = get_lexer_by_name(read.LEXERS[part.path.parent.name])
    return [Markup(line) for line in highlight(part.text, lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")]


def _diff(language: str, *stems: str) -> list[str]:
    """The lines of a unified diff from one rung's sources to another's, without the two that name the files."""
    old, new = ("\n\n".join(part.text for part in read.parts(language, stem)).split("\n") for stem in stems)
    return list(unified_diff(old, new, lineterm="", n=2))[2:]


def _marked(text: str) -> Markup:
    """A text of a section as HTML: its lines, and what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)).replace("\n", "<br>")))


def _inline(path: Path) -> Markup:
    """The drawing of an SVG file. Its ids get its name, since several drawings share a page; page.css has its width."""
    text = path.read_text(encoding="utf-8")
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{path.stem}-", text[text.index("<svg") :])
    described = rf'style="--points: \1" role="img" aria-label="{path.stem.replace("_", " ")}"'
    return Markup(re.sub(r'width="([\d.]+)pt" height="[\d.]+pt"', described, svg, count=1))
