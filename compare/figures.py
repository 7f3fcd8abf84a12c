"""Figures of a record, as SVG and PNG: `bandwidth` against width; `ninja_gap`, efficiency against lines.

Drawn without pyplot, so no window opens and no display is asked for. The same record gives the same bytes.
Hue says the language, marker and dashes say the rung or which of torch's; the same in every figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compare import gap
from compare.record import Record, cell, measured_on, stamped, with_speed

INK, COPY = "#222222", "#a8a8a8"
HUES = {"cuda": "#0072B2", "triton": "#D55E00"}  # Okabe and Ito: told apart with any colour vision
RUNGS = {"naive": ("o", (0, (4, 1.5))), "fused": ("s", "-"), "online": ("^", (0, (6, 2, 1, 2))), "tuned": ("D", "-")}
TORCH = {"eager": ("#858585", "x", (0, (1, 1.2))), "torch.compile": ("#4a4a4a", "*", "-")}
ONE_CALL = ("#6b6b6b", "P", (0, (4, 1.5)))
SIZE, SMALL = 11.5, 9
Label = tuple[float, float, str, str]  # x, y, text, colour
Place = tuple[int, float, list[tuple[float, float, float, float]]]  # side, move, the box of each text in pixels
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": SIZE, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": "#888888", "xtick.color": "#555555", "ytick.color": "#555555", "axes.grid": True,
    "grid.color": "#eeeeee", "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlesize": SIZE, "lines.markersize": 5, "lines.linewidth": 1.6,
    "svg.fonttype": "none", "svg.hashsalt": "compare", "text.parse_math": False,
}  # fmt: skip


def write(record: Record, out_dir: str | Path, speed_from: Record | None = None) -> list[Path]:
    """Writes OPERATION_bandwidth and OPERATION_ninja_gap_DTYPE, .svg and .png, into out_dir; returns their paths.

    `speed_from`: a saved record whose speed is shown with the lines of this one; record["reference"] then says where
    it comes from. Without any time that may be shown there is nothing to draw: no file, an empty list.
    """
    shown = stamped(with_speed(record, speed_from) if speed_from else record)
    source = record.get("reference") if speed_from else None
    paths: list[Path] = []
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        timed = any(gap.times(shown, dtype) for dtype in gap.dtypes(shown))
        figures = {"bandwidth": bandwidth(shown, source)} if timed else {}
        figures |= {f"ninja_gap_{found.dtype}": ninja_gap(shown, found, source) for found in gap.gaps(shown)}
        for name, figure in figures.items():
            for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
                paths.append(Path(out_dir) / f"{record['operation']}_{name}.{kind}")
                figure.savefig(paths[-1], dpi=160, metadata=metadata)
    return paths


def bandwidth(record: Record, source: Record | None) -> Figure:
    """Effective bandwidth against columns (1-D: elements), a panel a dtype, with copy and peak."""
    panels = {dtype: curves for dtype in gap.dtypes(record) if (curves := _curves(record, dtype))}
    peak = measured_on(record).get("peak_bytes_per_s") or 0
    top = max(peak, *(high for curves in panels.values() for points in curves.values() for *_, high in points))
    unit, scale = ("TB/s", 1e12) if top >= 1e12 else ("GB/s", 1e9)
    title, note = f"{record['operation']}: effective bandwidth", "Effective bandwidth = least bytes needed / time; "
    for found in gap.gaps(record)[:1]:
        ratios = sorted(((each.copy_ratio.mean, name) for name, each in found.standings.items()
                         if each.copy_ratio and (name == found.best or "/" not in name)), reverse=True)  # fmt: skip
        if ratios:
            parts = ", ".join(f"{name} {ratio * 100:.0f}" for ratio, name in ratios)
            title = f"{record['operation']}, % of a copy's bandwidth: {parts}"
            note = f"Title: {found.dtype}, geometric mean, {_span(found.shapes)}. {note}"
    figure, axes = _figure(record, source, title, note + "whiskers: quartiles.", len(panels))
    for ax, (dtype, curves) in zip(axes, panels.items(), strict=True):
        xs = sorted({x for points in curves.values() for x, *_ in points})
        powers = [2**power for power in range(64) if xs[0] <= 2**power <= xs[-1]]
        ax.set(title=dtype, xlabel="elements" if len(record["measurements"][0]["shape"]) == 1 else "columns in a row")
        ax.set_xscale("log", base=2)
        edge = xs[-1] * max((xs[-1] / xs[0]) ** 0.015, 1.05)
        ax.set(xlim=(xs[0] * xs[-1] / edge, edge), ylim=(0, top / scale * 1.05))
        ticks = powers[:: 1 + len(powers) // 9] or xs
        ax.set_xticks(ticks, [_binary(int(tick)) for tick in ticks])
        ax.minorticks_off()
        labels = []
        if peak:
            ax.axhline(peak / scale, color=INK, linestyle=(0, (6, 4)), linewidth=1)
            labels.append((xs[-1] if len(xs) > 1 else edge, peak / scale, f"peak {peak / scale:.3g}", INK))
        for name, points in curves.items():
            colour, marker, dashes = _look(name)
            x, y, low, high = ([point[at] / (scale if at else 1) for point in points] for at in range(4))
            ax.plot(x, y, color=colour, marker=marker, linestyle=dashes)
            ax.vlines(x, low, high, color=colour)
            labels.append((x[-1], y[-1], name, colour))
        _label(ax, labels, (1,))
    axes[0].set_ylabel(f"effective bandwidth, {unit}")
    return figure


def ninja_gap(record: Record, found: gap.Gap, source: Record | None) -> Figure:
    """Lines of code (kernel + launch) across, efficiency up, an arrow from rung to rung; torch's are levels."""
    drawn = {
        name: each.efficiency or gap.Spread(1 / each.residual.mean, 1 / each.residual.high, 1 / each.residual.low)
        for name, each in found.standings.items()
    }
    whole = "peak bandwidth" if found.standings[found.best].efficiency else "the best (peak unknown)"
    lines = {entry["name"]: entry["lines"]["kernel"] + entry["lines"]["launch"]
             for entry in record["implementations"] if entry.get("lines") and entry["name"] in drawn}  # fmt: skip
    ran = f"{len(found.shapes)}: {_span(found.shapes)}"
    note = f"Ninja Gap: t(baseline) / t(best of ours); residual = t / t(best). Efficiency: least bytes / t / {whole}."
    note += f"\nPoints: geometric mean over the shapes that all ran ({ran}); whiskers: range over them."
    note += " PyTorch, right: no lines are counted."
    figure, (ax,) = _figure(record, source, _gap_title(record, found, lines), note, 1)
    few, many = min(lines.values(), default=1), max(lines.values(), default=1)
    ax.set(xlabel="lines of code, kernel + launch", ylabel=f"efficiency, % of {whole}", xlim=(0, many * 1.8))
    if many > 3 * few:
        ax.set(xscale="log", xlim=(few / 2.2, many * 3.5))
        ticks = [size for size in (5, 10, 20, 50, 100, 200, 500, 1000) if few / 2.2 < size < many * 3.5]
        ax.set_xticks(ticks, [str(tick) for tick in ticks])
        ax.minorticks_off()
    ax.set_ylim(0, max([1.0, *(height.high * 1.04 for height in drawn.values())]))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    labels: dict[tuple[int, ...], list[Label]] = {(1,): [], (1, -1): []}

    def across(part: float) -> float:
        return float(ax.transData.inverted().transform(ax.transAxes.transform((part, 0)))[0])

    for name, height in drawn.items():
        colour, marker, dashes = _look(name)
        if name in lines:
            at = float(lines[name])
            words = "best" if name == found.best else f"residual {found.standings[name].residual.mean:.2f}×"
            labels[1, -1].append((at, height.mean, f"{name}\n{words}", colour))
        else:
            at, words = across(0.985 - 0.025 * len(labels[1,])), f"{name} {height.mean:.0%}"
            if total := found.totals.get(name):
                words += f"\n{total.mean:.1f}× total" if total.mean >= gap.NO_GAP else f"\nno gap ({total.mean:.2f}×)"
            labels[1,].append((across(1), height.mean, words, colour))
            ax.axhline(height.mean, color=colour, linestyle=dashes, linewidth=1.2)
        ax.plot(at, height.mean, color=colour, marker=marker, markersize=9, zorder=4)  # above the texts
        whiskers = [[height.mean - height.low], [height.high - height.mean]]
        ax.errorbar(at, height.mean, whiskers, color=colour, linewidth=1, capsize=3, alpha=0.6)
    for language, hue in HUES.items():
        rungs = [name for rung in RUNGS if (name := f"{language}/{rung}") in lines]
        for before, after in zip(rungs, rungs[1:], strict=False):
            start, end = ((lines[name], drawn[name].mean) for name in (before, after))
            ax.plot(*zip(start, end, strict=True), color=hue)
            ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": hue, "shrinkB": 5})
    if (total := found.totals.get("eager")) and total.mean >= gap.NO_GAP:
        low, high = drawn["eager"].mean, drawn[found.best].mean
        tips = {"arrowstyle": "<|-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (across(0.88), low), (across(0.88), high), arrowprops=tips)
        words = f"{total.mean:.1f}× total\nfrom eager"
        ax.text(across(0.87), (low + high) / 2, words, weight="bold", ha="right", va="center")
    for sides in labels:
        _label(ax, labels[sides], sides)
    return figure


def _gap_title(record: Record, found: gap.Gap, lines: dict[str, int]) -> str:
    """What the figure shows, in two short lines."""
    best, total = found.best, found.totals.get("eager")
    title = f"{record['operation']}, {found.dtype}: {best}, {lines.get(best, 0)} lines"
    if total:
        title += f", is {total.mean:.1f}× as fast as eager PyTorch" if total.mean >= gap.NO_GAP else ": no gap to close"
    others = [name for name in found.standings if name in lines and name.split("/")[0] != best.split("/")[0]]
    for name in sorted(others, key=lambda name: found.standings[name].residual.mean)[:1]:
        title += f"\n{name}, {lines[name]} lines, takes {found.standings[name].residual.mean:.2f}× its time"
    return title


def _figure(record: Record, source: Record | None, title: str, note: str, panels: int) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, the title on top, and at the foot what was measured how, on what, and when."""
    wide, high = max(10.0, 0.9 + 6.2 * panels), 6.3
    top, bottom = 0.85 + 0.29 * title.count("\n") + 0.3 * bool(source), 1.2 + 0.2 * note.count("\n")
    figure = Figure(figsize=(wide, high))
    axes = list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])
    figure.subplots_adjust(0.95 / wide, bottom / high, 1 - 1.75 / wide, 1 - top / high, wspace=0.42)
    machine, timed = measured_on(record), [entry for entry in record["measurements"] if "seconds" in entry]
    words = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "Triton", "commit": "commit"}
    methods = {"cold": "cold L2", "graph": "CUDA graph"}
    foot = [str(machine.get("gpu")), *(f"{words[key]} {str(machine[key])[:12]}" for key in words if machine.get(key))]
    foot += ["uncommitted changes"] * bool(machine.get("dirty")) + [_ends(entry["run"][:10] for entry in timed)]
    foot += [" or else ".join(methods[method] for method in sorted({entry["method"] for entry in timed}))]
    foot += [f"median of {_ends(entry['seconds']['n'] for entry in timed)}"]
    size = min(SIZE + 4, (wide - 0.4) * 72 / 0.66 / max(map(len, title.split("\n"))))
    figure.text(0.2 / wide, 1 - 0.18 / high, title, fontsize=size, weight="bold", va="top", linespacing=1.3)
    if source:
        borrowed = f"measured on {source['gpu']}, {source['date']} ({source['file']})"
        borrowed += f"; STALE: {', '.join(source['stale'])} changed since" * bool(source["stale"])
        figure.text(0.2 / wide, 1 - (top - 0.47) / high, borrowed, va="center")
    text = f"{note}\n{foot[0]}"
    for item in foot[1:]:  # whole on the last line, or on a new one
        fits = len(text) - text.rfind("\n") + len(item) < 13.4 * wide
        text += (", " if fits else ",\n") + item
    figure.text(0.2 / wide, 0.12 / high, text, fontsize=SMALL, color="#555555", linespacing=1.5)
    return figure, axes


def _curves(record: Record, dtype: str) -> dict[str, list[tuple[float, ...]]]:
    """(width, bytes per second at the median, at q3, at q1) by name, "copy" first; of one width the largest shape.

    2-D: a small shape has other limits than its width, so what is below half of the largest shape is left out.
    """
    times, least, chosen = gap.times(record, dtype), {}, {}
    largest = max((prod(time["shape"]) for time in times if len(time["shape"]) == 2), default=0)
    times = [time for time in times if 2 * prod(time["shape"]) >= largest]
    for time in sorted(times, key=lambda time: (prod(time["shape"]), time["method"] == "cold")):
        least[cell(time)] = time["effective_bytes_per_s"] * time["seconds"]["median"]
        chosen[time["shape"][-1]] = cell(time)
    copies = [{**copy, "implementation": "copy"} for copy in record["copies"] if "seconds" in copy]
    curves: dict[str, list[tuple[float, ...]]] = {}
    for entry in sorted([*copies, *times], key=lambda entry: entry["shape"][-1]):
        width = entry["shape"][-1]
        if chosen.get(width) == cell(entry):
            speeds = [least[cell(entry)] / entry["seconds"][key] for key in ("median", "q3", "q1")]
            curves.setdefault(entry["implementation"], []).append((width, *speeds))
    return curves


def _look(name: str) -> tuple[str, str, Any]:
    """Colour, marker and dashes of an implementation, or of the copy."""
    language, _, rung = name.partition("/")
    if language in HUES:
        return HUES[language], *RUNGS.get(rung, RUNGS["tuned"])
    return (COPY, "", "-") if name == "copy" else TORCH.get(name, ONE_CALL)


def _label(ax: Axes, labels: list[Label], sides: Sequence[int]) -> None:
    """Writes each text right (1) or left (-1) of its point, moved up or down from lines, points and other texts.

    Texts at one x stand apart, in the order of their points, so that the thin lines from point to text do not cross.
    """
    pixels, edge = ax.figure.dpi / 72, ax.bbox.extents
    paths = [line.get_transform().transform(line.get_xydata()) for line in ax.lines]
    lines = [np.concatenate([path, *np.linspace(path[:-1], path[1:], 41)]) for path in paths]
    taken = [text.get_window_extent().extents for text in ax.texts if text.get_text()]

    def cost(place: Place) -> float:
        total = abs(place[1])
        for box in place[2]:
            apart = all(box[0] >= o[2] or o[0] >= box[2] or box[1] >= o[3] or o[1] >= box[3] for o in taken)
            total += 4 * sum(((line > box[:2]) & (line < box[2:])).all(axis=1).any() for line in lines)
            total += 0 if apart and box[0] >= edge[0] and box[1] >= edge[1] else 1000
        return total

    for x in sorted({label[0] for label in labels}):
        group = sorted((label for label in labels if label[0] == x), key=lambda label: label[1])
        points = ax.transData.transform([label[:2] for label in group])
        rows = [row for label in group for row in label[2].split("\n")]
        width, half = 0.62 * SIZE * pixels * max(map(len, rows)), 0.6 * SIZE * pixels * -(-len(rows) // len(group))
        spread = _apart([point[1] for point in points], 2 * half)
        starts = {1: points[0][0] + 9 * pixels, -1: points[0][0] - 9 * pixels - width}
        places: list[Place] = [
            (side, move, [(start, y + (move - 1) * half, start + width, y + (move + 1) * half) for y in spread])
            for move in (step / 4 for step in range(-40, 41)) for side in sides for start in [starts[side]]
        ]  # fmt: skip
        side, _, boxes = min(places, key=cost)
        taken += boxes
        for (_, y, text, colour), point, box in zip(group, points, boxes, strict=True):
            move = (box[1] + half - point[1]) / pixels
            thin = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkB": 3, "relpos": ((1 - side) / 2, 0.5)}
            ax.annotate(text, (x, y), (9 * side, move), textcoords="offset points", color=colour, va="center",
                        ha="left" if side > 0 else "right", arrowprops=thin if abs(move) > SIZE / 2 else None,
                        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5})  # fmt: skip


def _apart(wanted: list[float], least: float) -> list[float]:
    """The positions nearest to `wanted`, in its ascending order and at least so far apart."""
    blocks: list[list[float]] = []
    for at, value in enumerate(wanted):
        blocks.append([value - at * least])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    places = [fmean(block) for block in blocks for _ in block]
    return [place + at * least for at, place in enumerate(places)]


def _span(shapes: Sequence[tuple[int, ...]]) -> str:
    return f"{_ends(shape[-1] for shape in shapes)} {'columns' if len(shapes[0]) > 1 else 'elements'}"


def _ends(values: Iterable[Any]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _binary(value: int) -> str:
    sizes = {2**30: "G", 2**20: "M", 2**10: "K"}
    return next((f"{value // size}{sizes[size]}" for size in sizes if value % size == 0), str(value))
