"""Tables of a record: lines, correctness, speed, verdicts, gap, host time, traffic; and of two records.

`source` names the saved record that a table's data come from (record.describe), None for this run. On a terminal or in
a pipe a table is at most 80 columns wide and ASCII where the terminal is; `--format` also knows markdown and CSV.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import IO, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from compare import gap, verdicts
from compare.record import Record, cell, measured_on

WIDTH = 80
STATUS = {"failed": "red", "error": "red", "refused": "dim", "skipped": "dim"}
ASCII = {ord("×"): "x", ord("±"): "+-"}
Grid = list[list[str]]  # rows; the first is the head


@dataclass(frozen=True)
class Section:
    """A title and what stands below it: lines of text, and tables."""

    title: str
    source: Record | None
    parts: Sequence[str | Grid]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        spelled = ASCII if options.ascii_only else {}
        top = Text(self.title, style="bold")
        yield top.append(f"\n{source_line(self.source)}", style="not bold") if self.source else top
        for part in self.parts:
            yield from [Text(part.translate(spelled))] if isinstance(part, str) else _fitted(part, spelled)
        yield Text()

    def text(self, form: str) -> str:
        """As "markdown" or "csv"."""
        parts = [source_line(self.source), *self.parts] if self.source else self.parts
        return template("section.txt").render(form=form, prose=_prose, title=self.title, parts=parts)


class _Console(Console):
    """Prints sections in the form asked for. In one for programs, all else goes to standard error."""

    form = "table"

    def print(self, *objects: Any, **options: Any) -> None:
        if self.stderr and isinstance(objects[0], Section):
            print(objects[0].text(self.form).translate({} if self.encoding.startswith("utf") else ASCII))
        else:
            super().print(*objects, **options)


def console(file: IO[str] | None = None, form: str = "table") -> Console:
    """A console for these tables: 80 columns in a pipe, no escape codes under NO_COLOR. form: as --format."""
    made = _Console(file=file, stderr=form != "table", highlight=False, markup=False, emoji=False,
                    color_system=None if os.environ.get("NO_COLOR") else "auto")  # fmt: skip
    made.form = form
    return made


def template(name: str, **values: Any) -> Template:
    """A file of compare/templates; `values` are known in all of it."""
    places = Environment(loader=PackageLoader("compare"), autoescape=select_autoescape(["html"]), trim_blocks=True,
                         lstrip_blocks=True, undefined=StrictUndefined)  # fmt: skip
    return places.get_template(name, globals=values)


def lines(record: Record, source: Record | None = None) -> Section:
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
    return Section("Lines of code", source, [[head, *rows]] if rows else ["No lines were counted."])


def correctness(record: Record, source: Record | None = None) -> Section:
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
    return Section("Correctness", source, [[head, *rows], *notes] if rows else ["Nothing was checked."])


def speed(record: Record, source: Record | None = None) -> Section:
    """Effective GB/s by shape beside copy and peak, a table a dtype; where graph times were taken, microseconds too."""
    parts: list[str | Grid] = []
    peak = measured_on(record).get("peak_bytes_per_s")
    empty = [m["empty_span_seconds"] for m in record["measurements"] if m.get("empty_span_seconds")]
    for dtype in gap.dtypes(record):
        cells = verdicts.cells(record, dtype)
        for method in ("cold", "graph"):
            best = {(each.place[0], name) for each in cells if each.place[2] == method for name in each.winners}
            grid = _speed(record, dtype, method, best)
            limit = f"; peak {peak / 1e9:.0f}" if peak else ""
            what = f"effective GB/s, cold L2{limit}" if method == "cold" else "microseconds a call, CUDA graph"
            parts += [f"{dtype}: {what}; * = fastest or tied with it", grid] if grid else []
    throttled = any(entry.get("throttled_samples") for entry in record["measurements"])
    parts += ["t = the GPU throttled while some of the samples were taken"] if throttled else []
    parts += [f"an empty span is {min(empty) * 1e6:.2f} us: in every cold time, not subtracted"] if empty else []
    return Section("Speed", source, parts or ["No speed: nothing was measured."])


def decided(record: Record, source: Record | None = None) -> Section:
    """Each cell's fastest against the next, what ended its rounds, and each of ours against the best baseline."""
    ours = [entry["name"] for entry in record["implementations"] if entry.get("rung")]
    torch = [entry["name"] for entry in record["implementations"] if entry["language"] == "torch"]
    parts: list[str | Grid] = []
    for dtype in gap.dtypes(record):
        grid = [["shape", "fastest", "next", "verdict", "rounds", "best\nbaseline", *ours]]
        winners: dict[tuple[int, ...], list[str]] = {}
        for each in verdicts.cells(record, dtype):
            sizes, _, method = each.place
            fastest, after = [*each.times, "-"][:2]
            base = next((name for name in each.times if name in torch), "-")
            rounds = "{n} {}".format(each.times[fastest].get("stopped", ""), **each.times[fastest]["seconds"])
            row = [shape(sizes) + " graph" * (method == "graph"), fastest, after, _decided(each, fastest, after)]
            grid.append([*row, rounds, base, *(_decided(each, name, base) for name in ours)])
            if not {*winners.setdefault(sizes, each.winners)} & {*each.winners}:
                parts.append(f"{shape(sizes)} {dtype}: cold names {winners[sizes][0]}, {method} names {fastest}")
        parts += [f"{dtype}: t(other) / t(this), with its 95 % interval", grid] if grid[1:] else []
    legend = f"= a tie; ! over {verdicts.SUSPICIOUS}x as fast as the best baseline: suspicious"
    return Section("Verdicts", source, [legend, *parts] if parts else [])


def against(record: Record, old: Record, source: Record) -> Section:
    """What became faster or slower since `old`, which `source` describes, and how well the two records agree."""
    words = ("faster", "tie", "slower", "failed")
    grid = [["implementation", *words, "times as fast"]]
    bytes_of = {(m["implementation"], cell(m)): m["effective_bytes_per_s"] * m["seconds"]["median"]
                for m in record["measurements"] if "seconds" in m}  # fmt: skip
    found, large = [*verdicts.changes(record, old)], []
    notes = [] if found else ["no cell is in both records: nothing to judge"]
    for name in dict.fromkeys(name for name, *_ in found):
        mine = [(place, change) for each, place, change in found if each == name]
        count = Counter(change.word if change else "failed" for _, change in mine)
        ratios = [change.ratio for _, change in mine if change] or [nan]
        grid.append([name, *(str(count[word]) for word in words), f"{min(ratios):.3f} to {max(ratios):.3f}"])
        large += [abs(change.ratio - 1) for place, change in mine if change and bytes_of.get((name, place), 0) >= 5e8]
        notes += [f"{name}, {shape(sizes)} {dtype} {method}: {f'slower, {change}' if change else 'failed'}"
                  for (sizes, dtype, method), change in mine if not change or change.word == "slower"]  # fmt: skip
    notes += [f"{len(large)} times of 0.5 GB and more: at most {max(large):.1%} apart"] if large else []
    same = ", ".join(f"{number} {how}" for how, number in verdicts.agreement(record, old).items())
    return Section("Against an earlier record", source, [grid, *notes, f"verdicts in both: {same}"])


def host(record: Record, source: Record | None = None) -> Section:
    """What a call costs the host, by way of calling; first calls and nvcc's builds too."""
    ways = list(dict.fromkeys(entry["method"] for entry in record["host"]))
    times = {(entry["implementation"], entry["method"]): entry["seconds"]["median"] for entry in record["host"]}
    grid = [["implementation", *ways]]
    for name in dict.fromkeys(name for name, _ in times):
        grid.append([name, *(_duration(times[name, way]) if (name, way) in times else "-" for way in ways)])
    at = [f"{shape(entry['shape'])} {entry['dtype']}" for entry in record["host"][:1]]
    return Section("Host time a call", source, [*at, grid] if at else [])


def traffic(record: Record, source: Record | None = None) -> Section:
    """Kernels launched and gigabytes counted by the GPU; and the cold clock beside ncu's and do_bench's."""
    cold = {(m["implementation"], *cell(m)): m["seconds"]["median"] for m in record["measurements"] if "seconds" in m}
    grid = [["", "kernels", "DRAM\nread", "DRAM\nwrite", "L2", "cold", "ncu", "do_\nbench"]]
    for entry in record["traffic"]:
        counted = [entry[of] / 1e9 for of in ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")]
        clocks = [cold.get((entry["implementation"], *cell(entry)), nan), entry["gpu__time_duration.sum"] / 1e9]
        grid.append([f"{entry['implementation']}, {shape(entry['shape'])}", f"{entry['kernels']:.0f}",
                     *(f"{value:.2f}" for value in counted),
                     *(f"{value * 1e6:.4g}" for value in (*clocks, entry["do_bench_seconds"]))])  # fmt: skip
    note = "GB by Nsight Compute; microseconds of a call by three clocks; float32"
    return Section("Traffic and clocks", source, [note, grid] if record["traffic"] else [])


def ninja_gap(record: Record, source: Record | None = None, peers: bool = False) -> Section:
    """The gap of each dtype: totals, and of every implementation efficiency, ratio to copy, residual, share closed."""
    counts = {entry["name"]: entry.get("lines") for entry in record["implementations"]}
    parts: list[str | Grid] = []
    for found in gap.gaps(record, peers):
        totals = [f"t({base}) / t({found.best}) = {verdict(total)}" for base, total in found.totals.items()]
        shapes = f"{len(found.shapes)} shapes, {shape(found.shapes[0])} to {shape(found.shapes[-1])}"
        rows = []
        for name, standing in found.standings.items():
            count = counts.get(name)
            rows.append([
                name, str(count["kernel"] + count["launch"]) if count else "-",
                ranged(standing.efficiency, 100, 0), f"{standing.copy_ratio.mean:.2f}" if standing.copy_ratio else "-",
                ranged(standing.residual),
                *("-" if part is None else f"{part:.0%}" for part in standing.closed.values()),
            ])  # fmt: skip
        head = ["implementation", "lines", "% of peak", "of a\ncopy", "residual",
                *("closed,\n" + base for base in found.totals)]  # fmt: skip
        left = [f"not in this table: {name} ({why})" for name, why in found.left_out.items()]
        parts += [f"{found.dtype}: best of {shapes}: {found.best}", *totals, [head, *rows], *left]
    why = "No Ninja Gap: this record holds no passed measurement of ours."
    notes = ["geometric mean over the shapes that all ran (range); residual = t / t(best)"] if parts else [why]
    return Section("Ninja Gap", source, [*parts, *notes])


def verdict(total: gap.Spread) -> str:
    """A total in words: "4.91x", or that there is no gap to close."""
    if total.mean >= gap.NO_GAP:
        return f"{total.mean:.2f}x"
    return f"{total.mean:.2f}x, no gap to close"


def ranged(spread: gap.Spread | None, scale: float = 1, digits: int = 2) -> str:
    """A mean with its range: "1.77 (1.70-1.84)"; only the mean where that says it all."""
    if spread is None:
        return "-"
    mean, low, high = (f"{value * scale:.{digits}f}" for value in (spread.mean, spread.low, spread.high))
    return mean if low == high else f"{mean} ({low}-{high})"


def shape(sizes: Sequence[int]) -> str:
    """A shape as text: "1823 x 781", "98432"."""
    return " x ".join(map(str, sizes))


def source_line(source: Record) -> str:
    """Where borrowed data come from, and what of it is stale."""
    changed = f"\nstale: {', '.join(source['stale'])} changed since" if source["stale"] else ""
    return f"from {source['file']}, {source['gpu']}, {source['date']}{changed}"


def _speed(record: Record, dtype: str, method: str, best: set[tuple[tuple[int, ...], str]]) -> Grid:
    """A row a shape, a column an implementation, "copy" first."""
    entries = [e for e in record["measurements"] if (e["dtype"], e["method"]) == (dtype, method)]
    times = {_place(time): time for time in gap.times(record, dtype) if time["method"] == method}
    copies = {cell(entry): entry["seconds"]["median"] for entry in record["copies"] if "seconds" in entry}
    words = {_place(entry): entry["status"].replace("passed", "failed") for entry in entries}
    names = list(dict.fromkeys(entry["implementation"] for entry in entries))
    grid = [["shape", "copy", *names]]

    def value(least_bytes: float, seconds: float) -> str:
        return f"{least_bytes / seconds / 1e9:.0f}" if method == "cold" else f"{seconds * 1e6:.2f}"

    for sizes in sorted({tuple(entry["shape"]) for entry in entries}, key=lambda sizes: (sizes[-1], sizes)):
        least_bytes, row = 0.0, []
        for place in ((sizes, name) for name in names):
            row.append(words.get(place, "-"))
            if place in times:
                at = times[place]["seconds"]["median"]
                least_bytes = times[place]["effective_bytes_per_s"] * at
                marks = "*" * (place in best) + "t" * bool(times[place].get("throttled_samples"))
                row[-1] = value(least_bytes, at) + (marks or " ")
        copy = copies.get((sizes, dtype, method))
        grid.append([shape(sizes), value(least_bytes, copy) if copy and least_bytes else "-", *row])
    return grid if entries else []


def _duration(seconds: float) -> str:
    """ "7.5 s", "2.5 ms", "2.1 us"."""
    scale, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")
    return f"{seconds * scale:.3g} {unit}"


def _decided(each: verdicts.Cell, name: str, other: str) -> str:
    """ "1.23× ± 0.02", marked where it is a tie or suspicious."""
    if name not in each.times or other not in each.times or name == other:
        return "-"
    found = verdicts.judge(each.times[name], each.times[other])
    return f"{found} " + ("=" if found.word == "tie" else "!" if found.ratio > verdicts.SUSPICIOUS else " ")


def _prose(grid: Grid) -> bool:
    """Whether sentences stand there, and not numbers."""
    return max(len(row[0]) for row in grid) > WIDTH // 2


def _fitted(grid: Grid, spelled: dict[int, str]) -> Iterator[Table]:
    """Tables of at most 80 columns, each with the grid's first column; sentences are broken instead."""
    head, *rows = [[text.translate(spelled) for text in row] for row in grid]
    columns = [*zip([text.replace("/", "\n").replace("torch.", "torch.\n") for text in head], *rows, strict=True)]
    wide = [2 + max(len(line) for text in column for line in text.split("\n")) for column in columns]
    prose = _prose(grid)
    parts = [[*range(len(columns))]] if prose else [[0]]
    for at in range(len(parts[0]), len(columns)):
        if len(parts[-1]) > 1 and sum(wide[of] for of in (*parts[-1], at)) > WIDTH:
            parts.append([0])
        parts[-1].append(at)
    for part in parts:
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1), collapse_padding=True, pad_edge=False,
                      show_lines=prose, width=WIDTH if prose else None)  # fmt: skip
        for at in part:
            table.add_column(columns[at][0], justify="right" if at and not prose else "left", overflow="fold",
                             vertical="top" if prose else "bottom")  # fmt: skip
        for row in zip(*(columns[at][1:] for at in part), strict=True):
            table.add_row(*(Text(text, style=STATUS.get(text, "")) for text in row))
        yield table


def _place(entry: Record) -> tuple[tuple[int, ...], str]:
    return tuple(entry["shape"]), entry["implementation"]
