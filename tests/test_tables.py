"""Tables of synthetic records: what they say, that they fit 80 columns, and that any terminal can show them."""

import csv
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
    judged = text(tables.decided(made)) + text(tables.against(made, made, SOURCE))
    for line in (everything(made, {**SOURCE, "stale": list(LINES)}) + judged).splitlines():
        assert len(line) <= 80, line


@pytest.mark.parametrize("made", [sweep(speed=SIXTEEN), laptop()], ids=["eleven", "no GPU"])
def test_an_ascii_terminal_shows_every_table_within_80_columns(made: dict) -> None:
    console, raw = ascii_terminal()
    for table in (tables.lines, tables.correctness, tables.speed, tables.decided, tables.ninja_gap):
        console.print(table(made, SOURCE))
    console.print(tables.against(made, made, SOURCE))
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


def test_the_empty_span_and_throttled_cells_are_named() -> None:
    made = sweep(("float32",), (1024,))
    assert "t = the GPU throttled" not in text(tables.speed(made)) and "empty span" not in text(tables.speed(made))
    for entry in made["measurements"]:
        entry["empty_span_seconds"] = 1.28e-6
    made["measurements"][1]["throttled_samples"] = [3, 4]
    shown = text(tables.speed(made))
    assert "an empty span is 1.28 us: in every cold time, not subtracted" in shown
    assert "t = the GPU throttled while some of the samples were taken" in shown
    assert [word for word in row(shown, "131072 x 1024") if word.endswith("t")] == [row(shown, "131072 x 1024")[5]]


def test_a_cells_fastest_is_judged_against_the_next_and_ours_against_the_best_baseline() -> None:
    made = sweep(("float32",), (1024, 128))
    for entry in made["measurements"]:
        entry["stopped"] = "noise"
    *_, (head, narrow, wide) = tables.decided(made).parts
    assert head == ["shape", "fastest", "next", "verdict", "rounds", "best\nbaseline", *LINES]
    assert narrow[:6] == ["1048576 x 128", "torch.softmax", "torch.compile", "1.01× ± 0.00 =", "50 noise", narrow[1]]
    assert wide[:6] == ["131072 x 1024", "torch.compile", "torch.softmax", "1.04× ± 0.00  ", "50 noise", wide[1]]
    assert [text.strip() for text in wide[6:8]] == ["0.38× ± 0.00", "0.96× ± 0.00"]


def test_cold_and_graph_that_name_different_winners_are_said_to() -> None:
    made = sweep(("float32",), (1024,))
    shape = tuple(made["copies"][0]["shape"])
    assert "cold names" not in text(tables.decided(made))
    for name, median in (("cuda/fused", 1e-5), ("torch.compile", 2e-5)):
        made["measurements"].append(measurement(name, shape, "float32", median, method="graph"))
    shown = text(tables.decided(made))
    assert "131072 x 1024 float32: cold names torch.compile, graph names cuda/fused" in shown
    assert row(shown, "131072 x 1024 graph")[4] == "cuda/fused"


@pytest.mark.parametrize(("times", "marked"), [(9.9, False), (10.1, True)])
def test_more_than_ten_times_the_best_baseline_is_suspicious(times: float, marked: bool) -> None:
    made = sweep(("float32",), (1024,), {"cuda/fused": SPEED["cuda/fused"], "eager": SPEED["eager"]})
    ours, baseline = made["measurements"]
    ours["seconds"]["median"] = baseline["seconds"]["median"] / times
    ours["samples_ns"] = [ns / times for ns in baseline["samples_ns"]]
    assert (row(text(tables.decided(made)), "131072 x 1024")[8] == "!") == marked
    assert "suspicious" in text(tables.decided(made))


def test_peers_are_neither_ours_nor_a_baseline() -> None:
    made = sweep(("float32",), (1024,))
    made["implementations"].append({"name": "liger", "language": "peer", "rung": None})
    made["measurements"].append(measurement("liger", tuple(made["copies"][0]["shape"]), "float32", 1e-5))
    *_, (head, cells) = tables.decided(made).parts
    assert cells[1:3] == ["liger", "torch.compile"] and cells[5] == "torch.compile" and "liger" not in head


HOST = [
    ("cuda/fused", "first call", 2.5e-3), ("cuda/fused", "raw binding", 2.1e-6), ("cuda/fused", "public face", 9.4e-6),
    ("cuda/fused", "nvcc build", 7.5), ("triton/fused", "JIT dispatch", 8.8e-6), ("eager", "call", 20e-6),
]  # fmt: skip


def test_host_times_stand_by_way_of_calling() -> None:
    made = sweep(("float32",), (1024,))
    assert tables.host(made).parts == []
    made["host"] = [{"implementation": name, "method": way, "shape": [128, 4096], "dtype": "float32",
                     "seconds": {"median": median}} for name, way, median in HOST]  # fmt: skip
    shown = text(tables.host(made))
    assert "128 x 4096 float32" in shown
    assert row(shown, "cuda/fused")[1:] == "2.5 ms 2.1 us 9.4 us 7.5 s -".split()
    assert row(shown, "triton/fused")[1:] == "- - - - 8.8 us".split()
    assert "20 us" in shown


def test_counted_bytes_and_three_clocks_stand_side_by_side() -> None:
    made = sweep(("float32",), (1024,))
    assert tables.traffic(made).parts == []
    counted = {"kernels": 3, "gpu__time_duration.sum": 260000.0, "dram__bytes_read.sum": 537e6,
               "dram__bytes_write.sum": 530e6, "lts__t_bytes.sum": 1.1e9, "do_bench_seconds": 2.65e-4}  # fmt: skip
    made["traffic"] = [{"implementation": "cuda/fused", "shape": [131072, 1024], "dtype": "float32", "method": "cold",
                        **counted}]  # fmt: skip
    cold = next(m for m in made["measurements"] if m["implementation"] == "cuda/fused")["seconds"]["median"]
    expected = f"131072 x 1024 3 0.54 0.53 1.10 {cold * 1e6:.1f} 260 265"
    assert row(text(tables.traffic(made)), "cuda/fused,")[1:] == expected.split()


def test_markdown_and_csv_hold_the_same_cells_whole() -> None:
    made = sweep(speed=SIXTEEN)
    speed = tables.speed(made)
    grid = next(part for part in speed.parts if not isinstance(part, str))
    markdown = [line.strip("| ").split(" | ") for line in speed.text("markdown").splitlines() if line[:2] == "| "]
    commas = [row for row in csv.reader(speed.text("csv").splitlines()) if row and row[0][:1] != "#"]
    plain = [[text.strip() for text in row] for row in grid]
    assert markdown[: len(grid)] == plain == commas[: len(grid)]


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
