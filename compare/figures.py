"""Figures of a record: what is drawn. How it looks is plotting.py's.

    bandwidth      effective bandwidth against width                ninja_gap_DTYPE   efficiency against lines
    copy_ratio     the same as a share of a copy's                  passes            speed-up predicted and measured
    latency        time against size, where sizes vary              host              what a call costs the CPU

Drawn without pyplot, so no window opens and no display is asked for. The same record gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compare import claims, gap
from compare.plotting import Label, binary_ticks, caption, frame, grey, hue, ink, label, look, talking, use
from compare.record import Record, cell, measured_on, stamped, with_speed

FORMATS: dict[str, dict[str, None]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None},
                                       "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}  # fmt: skip
Curves = dict[str, list[tuple[float, ...]]]


def write(record: Record, out_dir: str | Path, speed_from: Record | None = None, style: str = "paper") -> list[Path]:
    """Writes OPERATION_FIGURE.svg, .png and .pdf into out_dir, OPERATION_FIGURE_STYLE of a style other than paper, and
    returns the paths.

    `speed_from`: a saved record whose speed is shown with the lines of this one; record["reference"] then says where
    it comes from. Without any time that may be shown there is nothing to draw: no file, an empty list.
    """
    shown = stamped(with_speed(record, speed_from) if speed_from else record)
    source = record.get("reference") if speed_from else None
    paths: list[Path] = []
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context():
        use(style)
        for name, figure in _figures(shown, source).items():
            for kind, metadata in FORMATS.items():
                suffix = "" if style == "paper" else f"_{style}"
                paths.append(Path(out_dir) / f"{record['operation']}_{name}{suffix}.{kind}")
                figure.savefig(paths[-1], dpi=160, metadata=metadata)
    return paths


def _figures(record: Record, source: Record | None) -> dict[str, Figure]:
    """Every figure for which the record holds something, by name; a panel a dtype, in a talk a figure a dtype."""
    dtypes = [dtype for dtype in gap.dtypes(record) if gap.times(record, dtype)]
    found: dict[str, Figure | None] = {}
    for part in [[dtype] for dtype in dtypes] if talking() else [dtypes] if dtypes else []:
        dtype = f"_{part[0]}" * talking()
        found[f"bandwidth{dtype}"] = bandwidth(record, source, part)
        found[f"copy_ratio{dtype}"] = bandwidth(record, source, part, of_copy=True)
    found |= {f"ninja_gap_{each.dtype}": ninja_gap(record, each, source) for each in gap.gaps(record)}
    found |= {"passes": passes(record, source), "host": host(record, source)}
    for method in ("cold", "graph"):
        found[f"latency_{method}"] = latency(record, source, method)
    return {name: figure for name, figure in found.items() if figure}


def bandwidth(record: Record, source: Record | None, dtypes: Sequence[str], of_copy: bool = False) -> Figure | None:
    """Effective bandwidth against columns (1-D: elements), a panel a dtype, with copy and peak.

    of_copy: t(copy) / t instead, shaded up to the best at each width that is not ours; None where no copy was measured.
    """
    panels = {dtype: curves for dtype in dtypes if "copy" in (curves := _curves(record, dtype)) or not of_copy}
    if not panels:
        return None
    peak = measured_on(record).get("peak_bytes_per_s") or 0
    top = max(peak, *(high for curves in panels.values() for points in curves.values() for *_, high in points))
    unit, scale = ("TB/s", 1e12) if top >= 1e12 else ("GB/s", 1e9)
    text = caption("copy_ratio" if of_copy else "bandwidth", record, next(iter(gap.gaps(record)), None))
    figure, axes = frame(record, source, text, len(panels))
    ours = [entry["name"] for entry in record["implementations"] if entry.get("rung")]
    for ax, (dtype, curves) in zip(axes, panels.items(), strict=True):
        whole = {x: speed if of_copy else scale for x, speed, *_ in curves.get("copy", [])}  # what counts as 1
        drawn = {name: [(x, *(speed / whole.get(x, scale) for speed in speeds)) for x, *speeds in points]
                 for name, points in curves.items() if name != "copy" or not of_copy}  # fmt: skip
        labels, level = _plot(ax, record, drawn, dtype), 1.0 if of_copy else peak / scale
        if level:
            ax.axhline(level, color=ink(), linestyle=(0, (6, 4)), linewidth=1)
            words = "copy" if of_copy else f"peak {level:.3g}"
            labels.append((max(x for x, *_ in labels), level, words, ink()))
        ax.set_ylim(0, None if of_copy else top / scale * 1.05)
        if of_copy:
            best: dict[float, float] = {}
            for x, share, *_ in (point for name, points in drawn.items() if name not in ours for point in points):
                best[x] = max(share, best.get(x, 0))
            ax.fill_between(sorted(best), [best[x] for x in sorted(best)], color=grey(0.12), linewidth=0)
        label(ax, labels, (1,))
    axes[0].set_ylabel("t(copy) / t" if of_copy else f"effective bandwidth, {unit}")
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
    counts = {entry["name"]: entry["lines"] for entry in record["implementations"] if entry["name"] in lines}
    reach = {name: (count["launch"], count.get("binding", 0)) for name, count in counts.items()}  # left and right
    figure, (ax,) = frame(record, source, caption("ninja_gap", record, found, lines, whole))
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
        colour, marker, dashes = look(name, record)
        if name in lines:
            at = float(lines[name])
            words = "best" if name == found.best else f"residual {found.standings[name].residual.mean:.2f}×"
            labels[1, -1].append((at, height.mean, name if talking() else f"{name}\n{words}", colour))
        else:
            at, words = across(0.985 - 0.025 * len(labels[1,])), f"{name} {height.mean:.0%}"
            if total := found.totals.get(name):
                words += f"\n{total.mean:.1f}× total" if total.mean >= gap.NO_GAP else f"\nno gap ({total.mean:.2f}×)"
            labels[1,].append((across(1), height.mean, words, colour))
            ax.axhline(height.mean, color=colour, linestyle=dashes, linewidth=1.2)
        ax.plot(at, height.mean, color=colour, marker=marker, markersize=9, zorder=4)  # above the texts
        whiskers = [[height.mean - height.low], [height.high - height.mean]]
        scopes = [[size] for size in reach[name]] if name in lines else None
        ax.errorbar(at, height.mean, whiskers, scopes, color=colour, linewidth=1, capsize=3, alpha=0.6)
    for language in dict.fromkeys(name.split("/")[0] for name in lines):
        rungs = [name for name in lines if name.split("/")[0] == language]
        for before, after in zip(rungs, rungs[1:], strict=False):
            start, end = ((lines[name], drawn[name].mean) for name in (before, after))
            ax.plot(*zip(start, end, strict=True), color=hue(language))
            ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": hue(language), "shrinkB": 5})
    if (total := found.totals.get("eager")) and total.mean >= gap.NO_GAP:
        low, high = drawn["eager"].mean, drawn[found.best].mean
        tips = {"arrowstyle": "<|-|>", "color": ink(), "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (across(0.88), low), (across(0.88), high), arrowprops=tips)
        words = f"{total.mean:.1f}× total\nfrom eager"
        ax.text(across(0.87), (low + high) / 2, words, weight="bold", ha="right", va="center")
    for sides in labels:
        label(ax, labels[sides], sides)
    return figure


def passes(record: Record, source: Record | None) -> Figure | None:
    """Speed-up over the baseline that its passes predict, and the one measured; a line from rung to rung."""
    issued, dtype = gap.passes(record), gap.dtypes(record)[0] if gap.dtypes(record) else ""
    base = next((name for name in issued if claims.ratios(record, "time", name, name, "all")), "")
    points = {name: (issued[base] / issued[name], gap.spread(values)) for name in issued
              if (values := claims.ratios(record, "time", base, name, "all"))}  # fmt: skip
    if len({predicted for predicted, _ in points.values()}) < 2:
        return None
    figure, (ax,) = frame(record, source, caption("passes", record, dtype, base, issued))
    top = max(max(predicted, measured.high) for predicted, measured in points.values()) * 1.05
    right = max(predicted for predicted, _ in points.values()) * 1.15
    ax.set(xlim=(0, right), ylim=(0, top), xlabel="speed-up predicted by passes", ylabel="speed-up measured")
    ax.plot((0, min(right, top)), (0, min(right, top)), color=grey(0.5), linestyle=(0, (6, 4)), linewidth=1)
    labels = []
    for name, (predicted, found) in points.items():
        colour, marker, _ = look(name, record)
        whiskers = [[found.mean - found.low], [found.high - found.mean]]
        ax.errorbar(predicted, found.mean, whiskers, color=colour, marker=marker, markersize=9, capsize=3)
        labels.append((predicted, found.mean, f"{name} {found.mean:.2f}×", colour))
    for language in dict.fromkeys(name.split("/")[0] for name in points if "/" in name):
        path = sorted((at, found.mean) for name, (at, found) in points.items() if name.split("/")[0] == language)
        ax.plot(*zip(*path, strict=True), color=hue(language))
    label(ax, labels, (1, -1))
    return figure


def latency(record: Record, source: Record | None, method: str) -> Figure | None:
    """Time against the bytes that the operation needs, at three sizes or more of one width."""
    dtype = gap.dtypes(record)[0] if gap.dtypes(record) else ""
    widths: dict[Any, dict[str, dict[float, Record]]] = {}
    for time in (time for time in gap.times(record, dtype) if time["method"] == method):
        size = round(time["effective_bytes_per_s"] * time["seconds"]["median"])
        widths.setdefault(tuple(time["shape"][1:]), {}).setdefault(time["implementation"], {})[size] = time["seconds"]
    times = max(widths.values(), key=lambda times: len(set().union(*times.values())), default={})
    sizes = sorted(set().union(*times.values()))
    if len(sizes) < 3:
        return None
    at = {size: {name: found[size] for name, found in times.items() if size in found} for size in sizes}
    floor = min(seconds["median"] for seconds in at[sizes[0]].values())
    peak, l2 = (measured_on(record).get(key) or 0 for key in ("peak_bytes_per_s", "l2_bytes"))
    figure, (ax,) = frame(record, source, caption("latency", record, dtype, method))
    curves = {name: [(size, *(found[size][key] * 1e6 for key in ("median", "q1", "q3"))) for size in sorted(found)]
              for name, found in times.items()}  # fmt: skip
    labels = _plot(ax, record, curves, "")
    ax.set(yscale="log", xlabel="bytes read and written at least", ylabel="microseconds")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    top = ax.get_ylim()[1]
    if sizes[0] < floor * peak:
        ax.axvspan(ax.get_xlim()[0], floor * peak, color=grey(0.08), linewidth=0)
        ax.text(sizes[0], top, "launch-bound", va="top", color=grey(0.8))
    if sizes[0] < l2 < sizes[-1]:
        ax.axvline(l2, color=ink(), linestyle=(0, (6, 4)), linewidth=1)
        ax.text(l2, top, " L2", va="top")
    before: tuple[float, str] = (0, "")
    for size, found in at.items():
        first, *others = sorted(found, key=lambda name: found[name]["median"])
        if others and found[first]["q3"] < found[others[0]]["q1"]:
            if before[1] not in ("", first):
                between, colour = sqrt(size * before[0]), look(first, record)[0]
                ax.axvline(between, color=colour, linestyle=(0, (1, 2)))
                ax.text(between, top, f"\n{first} from here", va="top", ha="right", color=colour, rotation=90)
            before = size, first
    label(ax, labels, (1,))
    return figure


def host(record: Record, source: Record | None) -> Figure | None:
    """Microseconds that a call keeps the CPU busy, by the path it takes; None where none were measured."""
    calls = sorted((call for call in record["host"] if "seconds" in call), key=lambda call: -call["seconds"]["median"])
    if not calls:
        return None
    figure, (ax,) = frame(record, source, caption("host", record))
    for at, call in enumerate(calls):
        (median, q1, q3), (colour, marker, _) = (
            [call["seconds"][key] * 1e6 for key in ("median", "q1", "q3")], look(call["implementation"], record)
        )  # fmt: skip
        ax.errorbar(median, at, None, [[median - q1], [q3 - median]], color=colour, marker=marker, markersize=9)
        ax.annotate(f"{call['implementation']}, {call['path']}: {median:.1f}", (median, at), (9, 0),
                    textcoords="offset points", va="center", color=colour)  # fmt: skip
    ax.set(xlim=(0, None), xlabel="microseconds a call", yticks=[])
    return figure


def _plot(ax: Axes, record: Record, curves: Curves, title: str) -> list[Label]:
    """Draws curves of (x, y, low, high) over a logarithmic axis; returns the labels for their ends."""
    xs = sorted({x for points in curves.values() for x, *_ in points})
    edge = xs[-1] * max((xs[-1] / xs[0]) ** 0.015, 1.05)
    ax.set(title=title, xlabel="elements" if len(record["measurements"][0]["shape"]) == 1 else "columns in a row")
    binary_ticks(ax, xs[0], xs[-1])
    ax.set_xlim(xs[0] * xs[-1] / edge, edge)
    labels = []
    for name, points in curves.items():
        colour, marker, dashes = look(name, record)
        x, y, low, high = zip(*points, strict=True)
        ax.plot(x, y, color=colour, marker=marker, linestyle=dashes)
        ax.vlines(x, low, high, color=colour)
        labels.append((x[-1], y[-1], name, colour))
    return labels


def _curves(record: Record, dtype: str) -> Curves:
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
    curves: Curves = {}
    for entry in sorted([*copies, *times], key=lambda entry: entry["shape"][-1]):
        width = entry["shape"][-1]
        if chosen.get(width) == cell(entry):
            speeds = [least[cell(entry)] / entry["seconds"][key] for key in ("median", "q3", "q1")]
            curves.setdefault(entry["implementation"], []).append((width, *speeds))
    return curves
