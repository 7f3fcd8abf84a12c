"""How figures look: three styles, one palette, the frame with its provenance line, and labels that do not overlap.

Hue says the language, marker and dashes say the rung or which of torch's; the same in every figure and style.
A style is a file of matplotlib settings in compare/templates, and rcParams carry it, so nothing is handed around.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from compare import tables
from compare.record import Record, measured_on

# On a light ground and on a dark one; Okabe and Ito's: told apart with any colour vision. "peer": somebody else's.
HUES = {"cuda": ("#0072B2", "#56B4E9"), "triton": ("#D55E00", "#F5924E"), "peer": ("#00855F", "#35C79C")}
RUNGS = {"naive": ("o", (0, (4, 1.5))), "fused": ("s", "-"), "online": ("^", (0, (6, 2, 1, 2))), "tuned": ("D", "-")}
# PyTorch's are grey: the part of the ink in it, marker, dashes. The last one is its one-call operation.
TORCH = {"copy": (0.35, "", "-"), "eager": (0.55, "x", (0, (1, 1.2))), "torch.compile": (0.85, "*", "-"),
         "torch": (0.7, "P", (0, (4, 1.5)))}  # fmt: skip
PEERS = ("v", (0, (3, 1, 1, 1))), ("p", (0, (5, 1)))
TEMPLATES = Path(__file__).with_name("templates")
Label = tuple[float, float, str, str]  # x, y, text, colour
Place = tuple[int, float, list[tuple[float, float, float, float]]]  # side, move, the box of each text in pixels


def ends(values: Iterable[Any]) -> str:
    """ "32 to 4096", or the only value."""
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


CAPTIONS = tables.template("captions.txt", ends=ends)


def use(style: str) -> None:
    """From now on, matplotlib draws in this style."""
    matplotlib.rcdefaults()
    rcParams.update(matplotlib.rc_params_from_file(TEMPLATES / f"{style}.mplstyle", use_default_template=False))


def talking() -> bool:
    return rcParams["font.size"] > 15


def ink() -> str:
    return rcParams["text.color"]


def grey(part: float) -> str:
    """So much of the ink on the ground."""
    ground, full = (np.array(to_rgb(rcParams[key])) for key in ("figure.facecolor", "text.color"))
    return to_hex(ground + part * (full - ground))


def hue(language: str) -> str:
    return HUES.get(language, HUES["peer"])[fmean(to_rgb(rcParams["figure.facecolor"])) < 0.5]


def look(name: str, record: Record) -> tuple[str, str, Any]:
    """Colour, marker and dashes of an implementation, or of the copy."""
    languages = {entry["name"]: entry["language"] for entry in record["implementations"]}
    language, rung = languages.get(name, "torch"), name.partition("/")[2]
    if language == "torch":
        part, marker, dashes = TORCH.get(name, TORCH["torch"])
        return grey(part), marker, dashes
    if rung:
        return hue(language), *RUNGS.get(rung, RUNGS["tuned"])
    peers = [other for other, language in languages.items() if language != "torch" and "/" not in other]
    return hue(language), *PEERS[peers.index(name) % len(PEERS)]


def caption(figure: str, record: Record, *values: Any) -> str:
    """The text of captions.txt for a figure: title, empty line, note."""
    return str(getattr(CAPTIONS.module, figure)(record, *values))


def frame(record: Record, source: Record | None, text: str, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, the caption's title on top, and at the foot its note and what was measured how, on
    what, and when."""
    size, small, (wide, high) = rcParams["font.size"], rcParams["legend.fontsize"], rcParams["figure.figsize"]
    unit, wide = size / 11.5, wide if talking() else max(wide, 0.9 + 6.2 * panels)
    title, note = text.strip().split("\n\n")
    timed = [entry for entry in record["measurements"] if "seconds" in entry]
    items = caption("provenance", measured_on(record), timed).strip().replace(" ", "\xa0")  # an item is never broken
    parts = [*note.split("\n"), items.replace("\n", ", ")]
    foot = [line for part in parts for line in textwrap.wrap(part, int(118 / small * wide), break_on_hyphens=False)]
    top, bottom = 0.78 + 0.29 * title.count("\n") + 0.3 * bool(source), 0.66 + 0.021 * small * len(foot) / unit
    figure, across, up = Figure(figsize=(wide, high)), unit / wide, unit / high
    axes = list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])
    figure.subplots_adjust(0.95 * across, bottom * up, 1 - 1.75 * across, 1 - top * up, wspace=0.42)
    most = min(size + 4, (wide - 0.4) * 72 / 0.66 / max(map(len, title.split("\n"))))
    figure.text(0.2 / wide, 1 - 0.18 / high, title, fontsize=most, weight="bold", va="top", linespacing=1.3)
    if source:
        borrowed = caption("source", source).strip()
        figure.text(0.2 / wide, 1 - (top - 0.47) * up, borrowed, va="center", fontsize=min(size, 15))
    shown = "\n".join(foot).replace("\xa0", " ")
    figure.text(0.2 / wide, 0.12 / high, shown, fontsize=small, color=grey(0.8), linespacing=1.5)
    return figure, axes


def label(ax: Axes, labels: list[Label], sides: Sequence[int]) -> None:
    """Writes each text right (1) or left (-1) of its point, moved up or down from lines, points and other texts.

    Texts at one x stand apart, in the order of their points, so that the thin lines from point to text do not cross.
    """
    size, pixels, edge = rcParams["font.size"], ax.figure.dpi / 72, ax.bbox.extents
    paths = [line.get_transform().transform(line.get_xydata()) for line in ax.lines]
    lines = [np.empty((0, 2)), *(np.concatenate([path, *np.linspace(path[:-1], path[1:], 41)]) for path in paths)]
    inked, of_line = np.concatenate(lines), np.repeat(range(len(lines)), [len(line) for line in lines])
    taken = [text.get_window_extent().extents for text in ax.texts if text.get_text()]

    def cost(place: Place) -> float:
        total = abs(place[1])
        for box in place[2]:
            free = all(box[0] >= o[2] or o[0] >= box[2] or box[1] >= o[3] or o[1] >= box[3] for o in taken)
            total += 4 * len(set(of_line[((inked > box[:2]) & (inked < box[2:])).all(axis=1)]))
            total += 0 if free and box[0] >= edge[0] and edge[1] <= box[1] and box[3] <= edge[3] else 1000
        return total

    for x in sorted({label[0] for label in labels}):
        group = sorted((label for label in labels if label[0] == x), key=lambda label: label[1])
        points = ax.transData.transform([label[:2] for label in group])
        rows = [row for label in group for row in label[2].split("\n")]
        width, half = 0.62 * size * pixels * max(map(len, rows)), 0.6 * size * pixels * -(-len(rows) // len(group))
        spread = apart([point[1] for point in points], 2 * half)
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
                        ha="left" if side > 0 else "right", arrowprops=thin if abs(move) > size / 2 else None,
                        bbox={"facecolor": grey(0), "alpha": 0.7, "linewidth": 0, "pad": 0.5})  # fmt: skip


def apart(wanted: list[float], least: float) -> list[float]:
    """The positions nearest to `wanted`, in its ascending order and at least so far apart."""
    blocks: list[list[float]] = []
    for at, value in enumerate(wanted):
        blocks.append([value - at * least])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    places = [fmean(block) for block in blocks for _ in block]
    return [place + at * least for at, place in enumerate(places)]


def binary(value: int) -> str:
    """1048576 as "1M"."""
    sizes = {2**30: "G", 2**20: "M", 2**10: "K"}
    return next((f"{value // size}{sizes[size]}" for size in sizes if value % size == 0), str(value))


def binary_ticks(ax: Axes, low: float, high: float) -> None:
    """A logarithmic x axis with powers of two, about nine of them."""
    powers = [2**power for power in range(64) if low <= 2**power <= high]
    ticks = powers[:: 1 + len(powers) // 9] or [int(low)]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [binary(tick) for tick in ticks])
    ax.minorticks_off()
