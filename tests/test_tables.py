"""Tables of synthetic records: what they say, that they fit 80 columns, and that any terminal can show them."""

import io
import re

import pytest
from rich.console import Console, RenderableType
from synthetic import LINES, SPEED, check, implementation, laptop, measurement, sweep

from compare import record, tables

SOURCE = {"file": "results/nvidia-h200/softmax.json", "gpu": "NVIDIA H200", "date": "2026-12-01", "fresh": True,
          "stale": []}  # fmt: skip
SIXTEEN = {f"{language}/{rung}": SPEED["cuda/naive"] for language in ("cuda", "triton")
           for rung in ("naive", "fused", "online", "tuned")} | SPEED  # fmt: skip


def text(table: RenderableType) -> str:
    """What a pipe gets."""
    out = io.StringIO()
    tables.console(out).print(table)
    return out.getvalue()


def everything(made: dict, source: dict | None = None) -> str:
    """All four tables as text."""
    return "".join(text(table(made, source)) for table in (tables.lines, tables.correctness, tables.speed,
                                                           tables.ninja_gap))  # fmt: skip


def row(found: str, first: str) -> list[str]:
    """The words of the first row that begins with `first`."""
    return next(line for line in found.splitlines() if line.startswith(first)).split()


def ascii_terminal() -> tuple[Console, io.BytesIO]:
    raw = io.BytesIO()
    return tables.console(io.TextIOWrapper(raw, encoding="ascii", write_through=True)), raw


@pytest.mark.parametrize("made", [sweep(), sweep(speed=SIXTEEN), laptop()], ids=["seven", "eleven", "no GPU"])
def test_no_line_is_wider_than_80_columns(made: dict) -> None:
    for line in everything(made, {**SOURCE, "stale": list(LINES)}).splitlines():
        assert len(line) <= 80, line


@pytest.mark.parametrize("made", [sweep(speed=SIXTEEN), laptop()], ids=["eleven", "no GPU"])
def test_an_ascii_terminal_shows_every_table_within_80_columns(made: dict) -> None:
    console, raw = ascii_terminal()
    for table in (tables.lines, tables.correctness, tables.speed, tables.ninja_gap):
        console.print(table(made, SOURCE))
    shown = raw.getvalue().decode("ascii")
    assert "cuda/fused" in shown and max(map(len, shown.splitlines())) <= 80


def test_no_cell_is_folded_or_cut() -> None:
    made = sweep(speed=SIXTEEN)
    shown = everything(made)
    assert "…" not in shown
    for name in SIXTEEN:
        assert row(shown, name)[0] == name
    for copied in made["copies"]:
        assert tables.shape(copied["shape"]) in shown


def test_no_color_gives_no_escape_code_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourful, plain = Terminal(), Terminal()
    tables.console(colourful).print(tables.speed(sweep()))
    monkeypatch.setenv("NO_COLOR", "1")
    tables.console(plain).print(tables.speed(sweep()))
    assert "\x1b[" in colourful.getvalue() and "\x1b" not in plain.getvalue()


def test_lines_are_given_for_kernel_then_with_launch_then_with_binding() -> None:
    shown = text(tables.lines(laptop()))
    assert row(shown, "cuda/naive")[1:5] == ["44", "58", "63", str(9 * 58)]
    assert row(shown, "cuda/naive")[5:] == ["3R", "+", "2W", "=", "5"]
    assert "eager" not in shown


def test_a_failed_check_is_counted_and_its_error_is_shown() -> None:
    made = laptop()
    made["checks"][0] = check("cuda/naive", (1823, 781), "float32", "cpu_model", "failed")
    made["checks"].append(check("cuda/naive", (1, 12289), "float32", "cpu_model", "refused"))
    shown = text(tables.correctness(made))
    assert row(shown, "cuda/naive")[1:6] == ["cpu_model", "5", "of", "6", "WRONG"]
    assert row(shown, "cuda/naive")[-1] == "1"
    assert "cuda/naive on cpu_model, 1823 x 781 float32: failed, cuda/naive failed at (1823, 781)" in shown.replace(
        "\n", " "
    )


def test_skipped_checks_say_how_many_and_why() -> None:
    made = laptop()
    made["checks"] = [{**check("cuda/naive", (8, 8), "float32", "gpu", "skipped"), "error": "no nvcc"}] * 3
    shown = text(tables.correctness(made))
    assert "cuda/naive on gpu: 3 skipped, no nvcc" in shown and row(shown, "cuda/naive")[2:5] == ["0", "of", "0"]


def test_the_worst_error_stands_beside_torchs_at_the_same_check() -> None:
    made = laptop()
    made["checks"][1].update(max_ulps=2.5, torch_max_ulps=2.25)
    assert row(text(tables.correctness(made)), "cuda/naive")[5:8] == ["2.5", "2.25", made["checks"][1]["dtype"]]


def test_speed_is_effective_gigabytes_beside_copy_and_peak() -> None:
    shown = text(tables.speed(sweep(("float32",), (32, 16384))))
    assert "peak 4800" in shown
    assert row(shown, "4194304 x 32") == "4194304 x 32 4130 330 867 248 413 293 2606 4118*".split()
    assert row(shown, "8192 x 16384")[5] == "refused"


@pytest.mark.parametrize("status", ["refused", "failed", "skipped", "error"])
def test_what_has_no_time_says_why_in_a_word(status: str) -> None:
    made = sweep(("float32",), (1024,), {"eager": SPEED["eager"]})
    made["measurements"].append(measurement("cuda/fused", (131072, 1024), "float32", None, status))
    assert row(text(tables.speed(made)), "131072 x 1024")[-1] == status


def test_a_time_of_what_failed_a_check_is_not_shown() -> None:
    made = sweep(("float32",), (1024,))
    made["checks"].append(check("cuda/fused", (4, 33), "float32", "cpu_model", "failed"))
    assert row(text(tables.speed(made)), "131072 x 1024")[5] == "failed"


def test_what_cannot_be_told_from_the_fastest_is_marked_as_well() -> None:
    made = sweep(("float32",), (1024,), {"eager": SPEED["eager"]})
    shape = tuple(made["copies"][0]["shape"])
    made["implementations"] += [implementation(name) for name in LINES]
    for name, median in zip(LINES, (1e-4, 1.005e-4, 1.02e-4, 2e-4), strict=True):
        made["measurements"].append(measurement(name, shape, "float32", median))
        made["checks"].append(check(name, shape, "float32", "gpu"))
    marks = [word.endswith("*") for word in row(text(tables.speed(made)), tables.shape(shape))[5:]]
    assert marks == [True, True, False, False]


def test_a_mark_never_compares_two_runs() -> None:
    old = sweep(("float32",), (1024,), {name: SPEED[name] for name in ("cuda/naive", "eager")})
    new = sweep(("float32",), (1024,), {"cuda/fused": SPEED["cuda/fused"]})
    new["machine"]["date"] = "2026-12-02T10:00:00+00:00"
    cells = row(text(tables.speed(record.merge(old, new))), "131072 x 1024")[4:]
    assert [cell.endswith("*") for cell in cells] == [True, False, False]  # cuda/naive, eager, cuda/fused


def test_graph_times_stand_in_a_table_of_microseconds() -> None:
    made = sweep(("float32",), (1024,))
    made["measurements"].append(measurement("cuda/fused", (4, 33), "float32", 2.5e-6, method="graph"))
    shown = text(tables.speed(made))
    assert "microseconds a call, CUDA graph" in shown
    assert re.search(r"^4 x 33 .*2\.50\*", shown, re.MULTILINE)


def test_the_gap_names_totals_best_residuals_and_shapes() -> None:
    shown = text(tables.ninja_gap(sweep(("float32",))))
    assert "float32: best of 11 shapes, 4194304 x 32 to 10922 x 12288: cuda/fused" in shown
    assert "t(eager) / t(cuda/fused) = 4.71x\n" in shown
    assert "t(torch.softmax) / t(cuda/fused) = 0.91x, no gap to close" in shown
    assert row(shown, "cuda/naive")[1] == "58" and "2.60 (2.45-2.85)" in shown


def test_what_is_left_out_of_the_gap_is_named() -> None:
    made = sweep(("float32",), (1024,))
    made["checks"].append(check("cuda/fused", (4, 33), "float32", "gpu", "failed"))
    assert "not in this table: cuda/fused (did not pass its checks)" in text(tables.ninja_gap(made))


def test_borrowed_data_say_from_where_and_what_is_stale() -> None:
    shown = text(tables.speed(sweep(), SOURCE))
    assert "from results/nvidia-h200/softmax.json, NVIDIA H200, 2026-12-01\n" in shown and "stale" not in shown
    assert "stale: cuda/fused changed since" in text(tables.speed(sweep(), {**SOURCE, "stale": ["cuda/fused"]}))
    assert "NVIDIA H200" not in everything(laptop())


def test_an_empty_record_gives_one_line_a_table() -> None:
    empty = record.new("softmax", "", laptop()["machine"])
    assert [line for line in everything(empty).splitlines() if line.strip()] == [
        "Lines of code",
        "No lines were counted.",
        "Correctness",
        "Nothing was checked.",
        "Speed",
        "No speed: nothing was measured.",
        "Ninja Gap",
        "No Ninja Gap: this record holds no passed measurement of ours.",
    ]
