"""Tables of a record for the terminal: lines, correctness, speed, gap; each at most 80 columns wide.

`source` names the saved record that a table's data come from (record.describe), None for this run. Text is ASCII, so
that any terminal can show it; the box follows the terminal (rich).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from compare import gap
from compare.record import Record, cell, measured_on

WIDTH = 80
STATUS = {"failed": "red", "error": "red", "refused": "dim", "skipped": "dim"}


def console(file: IO[str] | None = None) -> Console:
    """A console for these tables: 80 columns in a pipe, no escape codes under NO_COLOR."""
    return Console(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def template(name: str, **values: Any) -> Template:
    """A text of compare/templates; `values` are known in all of it."""
    rules = Environment(
        loader=PackageLoader("compare"), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    return rules.get_template(name, globals=values)


def number(spread: gap.Spread) -> str:
    """A ratio with its range: "1.77 (1.70 to 1.84)"."""
    text = [f"{value:.2f}" for value in (spread.mean, spread.low, spread.high)]
    return text[0] if text[1] == text[2] else f"{text[0]} ({text[1]} to {text[2]})"


def lines(record: Record, source: Record | None = None) -> RenderableType:
    """Counted lines by role, tokens, and the passes issued over global memory an element."""
    rows = []
    for entry in record["implementations"]:
        if entry.get("lines"):
            count, tokens, passes = entry["lines"], entry["tokens"], entry.get("passes")
            headline = count["kernel"] + count["launch"]
            issued = "{reads}R + {writes}W = {0}".format(passes["reads"] + passes["writes"], **passes) if passes else ""
            words = tokens["kernel"] + tokens["launch"]
            total = headline + count["binding"]
            rows.append([entry["name"], *map(str, (count["kernel"], headline, total, words)), issued])
    head = ["implementation", "kernel", "kernel +\nlaunch", "all with\nbinding", "tokens\nkernel + launch",
            "passes\nan element"]  # fmt: skip
    return _titled("Lines of code", source, [_table(head, rows)] if rows else ["No lines were counted."])


def correctness(record: Record, source: Record | None = None) -> RenderableType:
    """Checks by implementation and executor: passed of run, the worst error in ulps beside torch's own, what failed."""
    rows, notes = [], []
    for name, executor in dict.fromkeys((entry["implementation"], entry["executor"]) for entry in record["checks"]):
        checks = [c for c in record["checks"] if (c["implementation"], c["executor"]) == (name, executor)]
        count = {status: sum(c["status"] == status for c in checks) for status in ("passed", "refused", "skipped")}
        run = len(checks) - count["refused"] - count["skipped"]
        share = f"{count['passed']} of {run}" + ("" if count["passed"] == run else " WRONG")
        worst = max(
            (c for c in checks if c["status"] == "passed" and c.get("max_ulps") is not None),
            key=lambda c: c["max_ulps"],
            default=None,
        )
        found = [worst.get(key) if worst else None for key in ("max_ulps", "torch_max_ulps")]
        ulps = ["-" if value is None else f"{value:.3g}" for value in found]
        rows.append([name, executor, share, *ulps, worst["dtype"] if worst else "-", str(count["refused"] or "-")])
        wrong = [c for c in checks if c["status"] in ("failed", "error")][:1]
        notes += [f"{name} on {executor}, {shape(c['shape'])} {c['dtype']}: {c['status']}, {c['error']}" for c in wrong]
        skipped = [c["error"] for c in checks if c["status"] == "skipped"]
        notes += [f"{name} on {executor}: {len(skipped)} skipped, {skipped[0]}"] if skipped else []
    head = ["implementation", "executor", "passed", "worst\nulps", "torch's\nthere", "dtype", "refused"]
    return _titled("Correctness", source, [_table(head, rows), *notes] if rows else ["Nothing was checked."])


def compiled(record: Record, source: Record | None = None) -> RenderableType:
    """What the compilers made of each kernel: registers, occupancy, and of `--inspect` also its instructions."""
    from compare import inside

    text = inside.report(record)
    return _titled("Compiled", source, [Markdown(text)] if text else ["No compile facts."])


def speed(record: Record, source: Record | None = None) -> RenderableType:
    """Effective GB/s by shape beside copy and peak, a table a dtype; where graph times were taken, microseconds too."""
    parts: list[RenderableType | str] = []
    peak = measured_on(record).get("peak_bytes_per_s")
    for dtype in gap.dtypes(record):
        for method in ("cold", "graph"):
            tables = _speed(record, dtype, method)
            limit = f"; peak {peak / 1e9:.0f}" if peak else ""
            what = f"effective GB/s, cold L2{limit}" if method == "cold" else "microseconds a call, CUDA graph"
            parts += [f"{dtype}: {what}; * = fastest or tied with it", *tables] if tables else []
    return _titled("Speed", source, parts or ["No speed: nothing was measured."])


def ninja_gap(record: Record, source: Record | None = None, peers: bool = False) -> RenderableType:
    """The gap of each dtype: totals, and of every implementation efficiency, ratio to copy, residual, share closed."""
    counts = {entry["name"]: entry.get("lines") for entry in record["implementations"]}
    parts: list[RenderableType | str] = []
    for found in gap.gaps(record, peers):
        totals = [f"t({base}) / t({found.best}) = {verdict(total)}" for base, total in found.totals.items()]
        shapes = f"{len(found.shapes)} shapes, {shape(found.shapes[0])} to {shape(found.shapes[-1])}"
        rows = []
        for name, standing in found.standings.items():
            count = counts.get(name)
            rows.append([
                name, str(count["kernel"] + count["launch"]) if count else "-",
                _range(standing.efficiency, 100, 0), f"{standing.copy_ratio.mean:.2f}" if standing.copy_ratio else "-",
                _range(standing.residual),
                *("-" if part is None else f"{part:.0%}" for part in standing.closed.values()),
            ])  # fmt: skip
        head = ["implementation", "lines", "% of peak", "of a\ncopy", "residual",
                *("closed,\n" + base.replace(".", ".\n") for base in found.totals)]  # fmt: skip
        left = [f"not in this table: {name} ({why})" for name, why in found.left_out.items()]
        parts += [f"{found.dtype}: best of {shapes}: {found.best}", *totals, _table(head, rows), *left]
    why = "No Ninja Gap: this record holds no passed measurement of ours."
    notes = ["geometric mean over the shapes that all ran (range); residual = t / t(best)"] if parts else [why]
    return _titled("Ninja Gap", source, [*parts, *notes])


def verdict(total: gap.Spread) -> str:
    """A total in words: "4.91x", or that there is no gap to close."""
    if total.mean >= gap.NO_GAP:
        return f"{total.mean:.2f}x"
    return f"{total.mean:.2f}x, no gap to close"


def shape(sizes: Sequence[int]) -> str:
    """A shape as text: "1823 x 781", "98432"."""
    return " x ".join(map(str, sizes))


def source_line(source: Record) -> str:
    """Where borrowed data come from, and what of it is stale."""
    changed = f"\nstale: {', '.join(source['stale'])} changed since" if source["stale"] else ""
    return f"from {source['file']}, {source['gpu']}, {source['date']}{changed}"


def _speed(record: Record, dtype: str, method: str) -> list[Table]:
    """One table, or more with the same rows where one would be wider than 80 columns."""
    entries = [e for e in record["measurements"] if (e["dtype"], e["method"]) == (dtype, method)]
    times = {_place(time): time for time in gap.times(record, dtype) if time["method"] == method}
    copies = {cell(entry): entry["seconds"]["median"] for entry in record["copies"] if "seconds" in entry}
    words = {_place(entry): entry["status"].replace("passed", "failed") for entry in entries}
    names = list(dict.fromkeys(entry["implementation"] for entry in entries))
    shapes = sorted({tuple(entry["shape"]) for entry in entries}, key=lambda sizes: (sizes[-1], sizes))
    columns: dict[str, list[str]] = {name: [] for name in ("copy", *names)}

    def value(least_bytes: float, seconds: float) -> str:
        return f"{least_bytes / seconds / 1e9:.0f}" if method == "cold" else f"{seconds * 1e6:.2f}"

    for sizes in shapes:
        together = gap.one_run([times[sizes, name] for name in names if (sizes, name) in times])
        limit = min(((time["seconds"]["median"], time["seconds"]["q3"]) for time in together), default=(0, 0))[1]
        tied = [time["implementation"] for time in together if time["seconds"]["q1"] <= limit]
        least_bytes = 0.0
        for name in names:
            if (sizes, name) in times:
                at, speed = times[sizes, name]["seconds"], times[sizes, name]["effective_bytes_per_s"]
                least_bytes = speed * at["median"]
                columns[name].append(value(least_bytes, at["median"]) + ("*" if name in tied else " "))
            else:
                columns[name].append(words.get((sizes, name), "-"))
        copy = copies.get((sizes, dtype, method))
        columns["copy"].append(value(least_bytes, copy) if copy and least_bytes else "-")
    return _fitted(["shape", *map(shape, shapes)], columns) if shapes else []


def _fitted(first: list[str], columns: dict[str, list[str]]) -> list[Table]:
    """Tables of at most 80 columns, each with the column `first`, whose first item is its head."""
    tables, width = [], WIDTH
    parts: list[list[str]] = []
    for name, cells in columns.items():
        wide = 2 + max(len(text) for text in (*_head(name).split("\n"), *cells))
        if width + wide > WIDTH:
            parts.append([])
            width = max(map(len, first))
        parts[-1].append(name)
        width += wide
    for names in parts:
        rows = [[text, *(columns[name][at] for name in names)] for at, text in enumerate(first[1:])]
        tables.append(_table([first[0], *map(_head, names)], rows))
    return tables


def _place(entry: Record) -> tuple[tuple[int, ...], str]:
    return tuple(entry["shape"]), entry["implementation"]


def _head(name: str) -> str:
    return name.replace("/", "\n").replace("torch.", "torch.\n")


def _range(spread: gap.Spread | None, scale: float = 1, digits: int = 2) -> str:
    if spread is None:
        return "-"
    mean, low, high = (f"{value * scale:.{digits}f}" for value in (spread.mean, spread.low, spread.high))
    return f"{mean} ({low}-{high})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1), collapse_padding=True, pad_edge=False)
    for at, title in enumerate(head):
        table.add_column(title, justify="right" if at else "left", overflow="fold", vertical="bottom")
    for row in rows:
        table.add_row(*(Text(item, style=STATUS.get(item, "")) for item in row))
    return table


def _titled(title: str, source: Record | None, parts: Sequence[RenderableType | str]) -> Group:
    top = Text(title, style="bold")
    if source:
        top.append(f"\n{source_line(source)}", style="not bold")
    return Group(top, *(Text(part) if isinstance(part, str) else part for part in parts), Text())
