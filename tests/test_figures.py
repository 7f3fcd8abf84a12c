"""Figures of synthetic records: what is drawn and said, the same each time, with no display, no window, no torch."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import matplotlib
import pytest
from matplotlib.text import Text
from synthetic import LINES, MACHINE, SPEED, check, copied, implementation, laptop, measurement, sweep

from compare import figures, gap, plotting, record

ROOT = Path(__file__).parents[1]
SMALL = ("float32",), (32, 12288, 16384)


def texts(path: Path) -> str:
    """All texts of an SVG, a line each."""
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8")))


def write(made: dict, out: Path, speed_from: dict | None = None) -> dict[str, str]:
    """Figure name -> its texts."""
    paths = figures.write(made, out, speed_from)
    return {path.stem: texts(path) for path in paths if path.suffix == ".svg"}


def borrowed(saved: dict, **current: str) -> dict:
    """A run without a GPU whose reference is `saved`."""
    live = laptop()
    prints = {**{name: f"source of {name}" for name in LINES}, **current}
    live["reference"] = record.describe(saved, "results/nvidia-h200/softmax.json", prints)
    return live


def test_every_figure_is_written_as_svg_png_and_pdf(tmp_path: Path) -> None:
    paths = figures.write(sweep(widths=(32, 1024)), tmp_path / "new" / "folder")
    names = ("bandwidth", "copy_ratio", "ninja_gap_float32", "ninja_gap_bfloat16", "passes")
    kinds = ("svg", "png", "pdf")
    assert [path.name for path in paths] == [f"softmax_{name}.{kind}" for name in names for kind in kinds]
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_a_talk_is_sixteen_to_nine_in_large_letters_with_a_figure_a_dtype(tmp_path: Path) -> None:
    paths = figures.write(sweep(widths=(32, 1024)), tmp_path, style="talk")
    names = [path.name for path in paths if path.suffix == ".svg"]
    assert names[0] == "softmax_bandwidth_float32_talk.svg" and "softmax_bandwidth_bfloat16_talk.svg" in names
    for path in (path for path in paths if path.suffix == ".svg"):
        svg = path.read_text(encoding="utf-8")
        (wide, high) = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
        assert abs(wide / high - 16 / 9) < 0.01
        labels = [float(size) for size in re.findall(r"font(?:-size)?: (?:bold )?([\d.]+)px", svg)]
        assert max(labels) >= high / 32 and min(labels) >= high / 50  # even the foot is readable from the middle


def test_the_three_styles_differ_in_ground_and_size_and_not_in_what_they_say(tmp_path: Path) -> None:
    made = sweep(("float32",), (32, 1024))
    grounds, said = set(), set()
    for style in ("paper", "dark"):
        for path in figures.write(made, tmp_path, style=style):
            if path.name.startswith("softmax_bandwidth") and path.suffix == ".svg":
                grounds.add(re.findall(r"fill: (#\w+)", path.read_text(encoding="utf-8"))[0])
                said.add(texts(path))
    assert len(grounds) == 2 and len(said) == 1


def test_ratio_to_copy_is_shaded_up_to_the_best_that_is_not_ours() -> None:
    made = sweep(("float32",), (32, 1024))
    with matplotlib.rc_context():
        plotting.use("paper")
        figure = figures.bandwidth(record.stamped(made), None, ["float32"], of_copy=True)
    assert figure is not None
    (shade,) = figure.axes[0].collections[-1:]
    top = shade.get_paths()[0].vertices.max(axis=0)[1]
    others = [SPEED[name][at] for name in SPEED if "/" not in name for at in (0, 6)]
    assert top == pytest.approx(max(others))
    assert max(SPEED["cuda/fused"][at] for at in (0, 6)) < max(others)  # ours does not count


def test_passes_predicted_and_measured_are_those_of_the_record(tmp_path: Path) -> None:
    shown = write(sweep(("float32",), (1024,)), tmp_path)["softmax_passes"]
    for name in ("cuda/naive", "cuda/fused", "triton/fused"):
        assert f"{name} {SPEED[name][6] / SPEED['eager'][6]:.2f}×" in shown
    assert "of eager, 8, divided by" in shown


def test_latency_marks_the_launch_bound_zone_l2_and_the_crossover(tmp_path: Path) -> None:
    found = write(crossing(), tmp_path)
    assert list(name for name in found if "latency" in name) == ["vector_add_latency_cold"]
    shown = found["vector_add_latency_cold"]
    for words in ("launch-bound", "triton/naive from here", " L2", "bytes read and written at least"):
        assert words in shown


def test_two_sizes_are_no_latency_figure(tmp_path: Path) -> None:
    made = crossing()
    made["measurements"] = [entry for entry in made["measurements"] if entry["shape"] != [2**20]]
    assert not [name for name in write(made, tmp_path) if "latency" in name]


def test_host_cost_is_drawn_where_it_was_measured_and_only_there(tmp_path: Path) -> None:
    made = sweep(("float32",), (1024,))
    assert "softmax_host" not in write(made, tmp_path)
    call = {"shape": [4, 4], "dtype": "float32", "seconds": {"median": 3.14e-6, "q1": 3e-6, "q3": 4e-6, "n": 9}}
    made["host"] = [{"implementation": "cuda/fused", "path": path, **call} for path in ("binding", "public")]
    shown = write(made, tmp_path)["softmax_host"]
    assert "cuda/fused, binding: 3.1" in shown and "cuda/fused, public: 3.1" in shown


def test_peers_and_unknown_rungs_are_drawn_in_a_look_of_their_own() -> None:
    made = sweep(("float32",), (1024,))
    made["implementations"] += [{"name": name, "language": "peer", "rung": None} for name in ("liger", "quack")]
    made["implementations"] += [{**implementation("cuda/fused"), "name": "cuda/wide", "rung": "wide"}]
    looks = [plotting.look(name, made)[:2] for name in ("liger", "quack", "cuda/wide", "cuda/fused", "torch.softmax")]
    assert len(set(looks)) == 5


def test_text_stays_text_and_says_machine_method_and_date(tmp_path: Path) -> None:
    found = write(sweep(*SMALL), tmp_path)
    for shown in found.values():
        for words in (*SPEED, "NVIDIA H200", "driver 580.159.04", "torch 2.11.0+cu130", "Triton 3.6.0", "CUDA 13.0",
                      "commit 0123456789ab", "2026-12-01", "cold L2, median of 50"):  # fmt: skip
            assert words in " ".join(shown.split("\n")) or (words in SPEED and words.startswith("torch"))
    assert "peak 4.8" in found["softmax_bandwidth"] and "\ncopy\n" in found["softmax_bandwidth"]


def test_the_gap_figure_says_total_residual_and_which_shapes(tmp_path: Path) -> None:
    shown = write(sweep(("float32",)), tmp_path)["softmax_ninja_gap_float32"]
    assert "softmax, float32: cuda/fused, 43 lines, is 4.7× as fast as eager PyTorch" in shown
    assert "triton/fused, 23 lines, takes 1.25× its time" in shown
    assert "residual 2.60×" in shown and "4.7× total" in shown and "no gap (0.91×)" in shown
    assert "the shapes that all ran (11: 32 to 12288 columns)" in shown


def test_borrowed_speed_is_said_to_be_measured_elsewhere_and_stale_if_it_is(tmp_path: Path) -> None:
    saved = sweep(*SMALL)
    fresh = write(borrowed(saved), tmp_path, saved)
    stale = write(borrowed(saved, **{"cuda/fused": "edited"}), tmp_path, saved)
    for name in fresh:
        assert "measured on NVIDIA H200, 2026-12-01 (results/nvidia-h200/softmax.json)" in fresh[name]
        assert "STALE" not in fresh[name] and "STALE: cuda/fused changed since" in stale[name]


def test_speed_of_this_run_is_not_said_to_be_measured_elsewhere(tmp_path: Path) -> None:
    made = sweep(("float32",), (1024,))
    made["reference"] = {**borrowed(made)["reference"], "file": "elsewhere.json"}
    assert all("measured on" not in shown for shown in write(made, tmp_path).values())


def test_a_saved_record_shown_by_itself_says_so_and_what_is_stale(tmp_path: Path) -> None:
    saved = sweep(("float32",), (1024,))
    saved["reference"] = {**borrowed(saved)["reference"], "stale": ["cuda/naive"]}
    assert all("STALE: cuda/naive changed since" in shown for shown in write(saved, tmp_path, saved).values())


def test_lines_are_of_this_run_and_speed_of_the_saved_one(tmp_path: Path) -> None:
    saved = sweep(*SMALL)
    live = borrowed(saved)
    live["implementations"][1]["lines"]["kernel"] += 100
    assert "cuda/fused, 143 lines" in write(live, tmp_path, saved)["softmax_ninja_gap_float32"]


def test_an_implementation_that_failed_is_never_drawn(tmp_path: Path) -> None:
    made = sweep(*SMALL)
    made["checks"].append(check("triton/fused", (4, 33), "float32", "gpu", "failed"))
    found = write(made, tmp_path)
    assert len(found) == 4 and all("triton/fused" not in shown for shown in found.values())


def test_the_same_record_gives_the_same_bytes_whatever_the_users_settings(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in figures.write(sweep(*SMALL), tmp_path / "one")]
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        mine = dict(matplotlib.rcParams)
        second = [path.read_bytes() for path in figures.write(sweep(*SMALL), tmp_path / "two")]
        assert dict(matplotlib.rcParams) == mine
    assert first == second
    assert all(b"dc:date" not in content for content in first)


def test_no_window_no_display_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from compare import figures; from synthetic import sweep\n"
        f"print(len(figures.write(sweep(('float32',), (32,)), {str(tmp_path)!r})))\n"
        "print({'torch', 'matplotlib.pyplot', 'tkinter'} & set(sys.modules))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment |= {"MPLBACKEND": "TkAgg", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "12\nset()\n"), ran.stderr


def test_without_a_time_there_is_no_figure_and_no_error(tmp_path: Path) -> None:
    assert figures.write(laptop(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_one_shape_is_enough_for_both_figures(tmp_path: Path) -> None:
    found = write(sweep(("float32",), (1024,)), tmp_path)
    assert "1K" in found["softmax_bandwidth"].split("\n")
    assert "(1: 1024 columns)" in found["softmax_ninja_gap_float32"]


def test_without_any_of_ours_the_bandwidth_is_still_drawn(tmp_path: Path) -> None:
    assert list(write(sweep(("float32",), (32, 64), {"eager": SPEED["eager"]}), tmp_path)) == [
        "softmax_bandwidth", "softmax_copy_ratio"
    ]  # fmt: skip


def test_without_peak_and_copies_both_figures_come(tmp_path: Path) -> None:
    made = sweep(*SMALL)
    made["copies"], made["machine"]["peak_bytes_per_s"] = [], None
    found = write(made, tmp_path)
    assert len(found) == 3 and all("peak 4.8" not in shown for shown in found.values())
    assert "efficiency, % of the best (peak unknown)" in found["softmax_ninja_gap_float32"]


def vector_add(copy_status: str = "passed") -> dict:
    """A 1-D operation without a gap; in the smallest cells only graph times."""
    made = record.new("vector_add", "", dict(MACHINE))
    names = ("cuda/naive", "triton/naive", "eager")
    made["implementations"] = [implementation(name) for name in names]
    for exponent in (12, 20, 28):
        size, method = 2**exponent, "graph" if exponent == 12 else "cold"
        least = 12 * size
        if copy_status == "passed":
            made["copies"].append(copied((size,), "float32", least / 4e12 + 2e-6, method))
        else:
            made["copies"].append({"shape": [size], "dtype": "float32", "method": method, "status": copy_status})
        for at, name in enumerate(names):
            median = (least / 4e12 + 2e-6) * (1 + at / 100)
            made["measurements"].append(measurement(name, (size,), "float32", median, "passed", method, least))
            made["checks"].append(check(name, (size,), "float32", "gpu"))
    return made


def crossing() -> dict:
    """Three sizes of a 1-D operation; of the largest, Triton is faster."""
    made = record.new("vector_add", "", dict(MACHINE))
    made["implementations"] = [implementation(name) for name in ("cuda/naive", "triton/naive")]
    for size in (2**12, 2**20, 2**28):
        for name, start, speed in (("cuda/naive", 1e-6, 2e12), ("triton/naive", 2e-6, 4e12)):
            median = start + 12 * size / speed
            made["measurements"].append(measurement(name, (size,), "float32", median, least_bytes=12 * size))
            made["checks"].append(check(name, (size,), "float32", "gpu"))
    return made


@pytest.mark.parametrize("copy_status", ["passed", "skipped"])
def test_a_one_dimensional_operation_is_drawn_against_elements(tmp_path: Path, copy_status: str) -> None:
    found = write(vector_add(copy_status), tmp_path)
    assert "\nelements\n" in found["vector_add_bandwidth"] and "256M" in found["vector_add_bandwidth"]
    assert "cold L2 or else CUDA graph" in found["vector_add_bandwidth"]
    assert "vector_add, float32: cuda/naive, 58 lines: no gap to close" in found["vector_add_ninja_gap_float32"]


def drawn(made: dict) -> list:
    """The figures as matplotlib holds them."""
    shown = record.stamped(made)
    with matplotlib.rc_context():
        plotting.use("paper")
        return [
            figures.bandwidth(shown, None, gap.dtypes(shown)),
            *(figures.ninja_gap(shown, each, None) for each in gap.gaps(shown)),
        ]


EIGHT = {f"{language}/{rung}": tuple(value * factor for value in SPEED["cuda/naive"])
         for language, least in (("cuda", 1), ("triton", 0.98))
         for rung, factor in (("naive", least), ("fused", 2.1 * least), ("online", 1.6 * least),
                              ("tuned", 2.4 * least))}  # fmt: skip


def crowded() -> dict:
    """Eight points of nearly the same efficiency and nearly the same number of lines."""
    made = sweep(("float32",), (1024, 2048), {name: SPEED["cuda/fused"] for name in EIGHT} | {"eager": SPEED["eager"]})
    for at, entry in enumerate(made["implementations"][:-1]):
        entry["lines"]["kernel"] = 40 + at
    return made


@pytest.mark.parametrize("made", [sweep(), sweep(("float32",), speed=EIGHT | {
    name: SPEED[name] for name in ("eager", "torch.softmax", "torch.compile")}), vector_add(), crowded()],
    ids=["seven", "eleven", "equal", "crowded"])  # fmt: skip
def test_labels_of_curves_and_points_do_not_overlap(made: dict) -> None:
    for figure in drawn(made):
        figure.draw_without_rendering()
        for ax in figure.axes:
            boxes = [(text.get_text(), Text.get_window_extent(text)) for text in ax.texts if text.get_text()]
            assert len(boxes) >= 3
            for (one, first), (two, second) in combinations(boxes, 2):
                wide = min(first.x1, second.x1) - max(first.x0, second.x0)
                high = min(first.y1, second.y1) - max(first.y0, second.y0)
                assert wide <= 1 or high <= 3, f"{one!r} overlaps {two!r}"


def test_of_two_shapes_of_one_width_the_larger_is_drawn() -> None:
    made = sweep(("float32",), (1024, 2048), {"eager": SPEED["eager"]})
    made["measurements"].append(measurement("eager", (1, 1024), "float32", 1e-6, least_bytes=8192))
    (line,) = [line for line in drawn(made)[0].axes[0].lines if len(line.get_xdata()) == 2 and line.get_marker() == "x"]
    assert list(line.get_xdata()) == [1024, 2048] and min(line.get_ydata()) > 0.7


def test_a_language_has_its_hue_and_a_rung_its_marker_in_both_figures() -> None:
    bandwidth, ninja_gap = drawn(sweep(("float32",), (1024, 2048)))
    curves = {(line.get_color(), line.get_marker()) for line in bandwidth.axes[0].lines}
    points = {(line.get_color(), line.get_marker()) for line in ninja_gap.axes[0].lines}
    names = [name for name in SPEED if "/" in name]
    pairs = {(plotting.HUES[name.split("/")[0]][0], plotting.RUNGS[name.split("/")[1]][0]) for name in names}
    assert len(pairs) == 4
    assert pairs <= curves and pairs <= points
