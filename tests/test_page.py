"""The page of an operation: what it holds, that it needs nothing but itself, and how it behaves in a browser."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import SPEED, check, laptop, measurement, sweep

from compare import cli, figures, page, read, record, tables
from compare.registry import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
SOFTMAX = OPERATIONS["softmax"]
RUNGS = [rung.name for rung in SOFTMAX.rungs]
PHONE, DESK, PROJECTOR = ({"width": w, "height": h} for w, h in ((360, 740), (1440, 900), (1920, 1080)))


def write(made: dict, out: Path, *extra, drawn: tuple[Path, ...] = ()) -> str:
    """The page of a record, with the tables of the command line and more."""
    sections = [table(made) for table in (tables.lines, tables.correctness, tables.speed, tables.ninja_gap)]
    path, _ = page.write(made, [*sections, *extra], drawn, out)
    return path.read_text(encoding="utf-8")


class Seen(HTMLParser):
    """The ids of a page, what it refers to, its text, and its table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.refers, self.cells, self.words = list[str](), list[str](), list[str](), list[str]()
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            self.ids += [value or ""] if name == "id" else []
            self.refers += [value or ""] if name in ("href", "src", "xlink:href", "srcset", "action") else []
            self.refers += [f"#{value}"] if name in ("aria-labelledby", "for") else []
            self.refers += re.findall(r"url\(([^)]*)\)", value or "")
        if tag in ("td", "th"):
            self.in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.in_cell:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command line writes of the published records."""
    out = tmp_path_factory.mktemp("pages")
    for name in OPERATIONS:
        saved = ROOT / "results" / "nvidia-h200" / f"{name}.json"
        assert cli.main([name, "--from", str(saved), "--output-dir", str(out)]) == 0
    return out


def test_a_page_refers_to_nothing_outside_its_folder_and_to_nothing_that_is_not_there(folder: Path) -> None:
    pages = {path.name: Seen(path.read_text(encoding="utf-8")) for path in folder.glob("*.html")}
    assert set(pages) == {"index.html", *(f"{name}.html" for name in OPERATIONS)}
    for name, seen in pages.items():
        assert len(seen.ids) == len(set(seen.ids))
        for target in seen.refers:
            file, _, place = target.partition("#")
            if target != "data:,":
                assert file in ("", *pages)
                assert place in (
                    "",
                    *pages[file or name].ids,
                    *(i.removeprefix("rung-") for i in pages[file or name].ids),
                )


def test_the_page_holds_both_sources_of_every_rung_whole(folder: Path) -> None:
    words = "".join(Seen((folder / "softmax.html").read_text(encoding="utf-8")).words)
    for name in RUNGS:
        for row in read.pair(SOFTMAX.stem(name)):
            assert [part.file for part in row if part and part.text not in words] == []


def test_a_rung_says_what_changed_from_the_one_before(folder: Path) -> None:
    text = (folder / "softmax.html").read_text(encoding="utf-8")
    naive, fused, *_ = (text[text.index(f'id="pair-{name}"') :].partition("</article>")[0] for name in RUNGS)
    assert "What changed" not in naive
    cells = Seen(fused).cells
    at = cells.index("passes issued, an element")
    assert cells[at : at + 4] == ["passes issued, an element", "5", "2", "2.50×"]
    assert any("time, float32" in cell for cell in cells)
    assert re.search(r'class="l removed">-__global__ void softmax_naive', fused.replace("&lt;", "<"))


def test_every_figure_and_every_time_is_in_the_page(tmp_path: Path) -> None:
    made = sweep(("float32",), (1024, 12288))
    text = write(made, tmp_path, drawn=tuple(figures.write(made, tmp_path)))
    assert text.count("<svg") == len(list(tmp_path.glob("*.svg"))) >= 4
    cells = [cell.strip(" *") for cell in Seen(text).cells]
    for entry in made["measurements"]:
        assert f"{entry['effective_bytes_per_s'] / 1e9:.0f}" in cells


def test_tables_that_a_terminal_parts_are_one_again(tmp_path: Path) -> None:
    languages, rungs = ("cuda", "triton"), ("naive", "fused", "online", "tuned")
    many = {f"{language}/{rung}": SPEED["cuda/naive"] for language in languages for rung in rungs} | SPEED
    text = write(sweep(("float32",), (32, 1024), many), tmp_path)
    (speed,) = re.findall(r'<section id="speed".*?</section>', text, re.DOTALL)
    assert speed.count("<table>") == 1 and speed.count('scope="col"') == 2 + len(many)


def test_without_speed_the_page_says_so(tmp_path: Path) -> None:
    text = write(laptop(), tmp_path)
    assert "no speed was measured" in text and "No speed: nothing was measured." in text
    assert "<svg" not in text and 'href="#figures"' not in text and "time, float32" not in text


def test_borrowed_speed_says_which_run_was_on_which_machine(tmp_path: Path) -> None:
    text = write(record.with_speed(laptop(), sweep(("float32",), (1024,))), tmp_path)
    (machines,) = re.findall(r'<table class="machines">.*?</table>', text, re.DOTALL)
    cells = [cell.strip() for cell in Seen(machines).cells]
    assert cells[1:6] == ["run of 2026-12-05 09:00", "run of 2026-12-01 10:00", "gpu", "", "NVIDIA H200"]


def test_a_section_from_elsewhere_is_shown_and_linked(tmp_path: Path) -> None:
    rows = [["five passes to three", "true", "1.67"]]
    extra = tables.Section("Claims", None, [[["claim", "verdict", "number"], *rows]])
    seen = Seen(write(laptop(), tmp_path, extra))
    assert "claims" in seen.ids and "#claims" in seen.refers and {"claim", "verdict", "1.67"} <= set(seen.cells)


def test_an_error_text_cannot_become_markup(tmp_path: Path) -> None:
    made = laptop()
    made["checks"].append(check("cuda/naive", (2, 2), "float32", "cpu_model", "failed") | {"error": "<b>1 < 2 & 3</b>"})
    text = write(made, tmp_path)
    assert "<b>1" not in text and "&lt;b&gt;1 &lt; 2 &amp; 3&lt;/b&gt;" in text and 'class="wrong"' in text


def test_a_best_that_is_no_pair_of_ours_and_names_unknown_here_are_shown(tmp_path: Path) -> None:
    made = sweep(("float16",), (1024,), {"cuda/later": SPEED["cuda/naive"], "eager": SPEED["eager"]})
    made["implementations"].append({"name": "liger", "language": "peer", "rung": None})
    made["measurements"].append(measurement("liger", (131072, 1024), "float16", 1e-3))
    text = write(made, tmp_path)
    assert "Best of ours: cuda/later" in text and "liger" in Seen(text).cells


def test_what_has_changed_since_it_was_measured_is_named_beside_its_source(tmp_path: Path) -> None:
    made = laptop()
    made["reference"] = {"file": "f", "gpu": "g", "date": "d", "fresh": False, "stale": ["cuda/fused"]}
    text = write(made, tmp_path)
    said = re.findall(r"(\w+/\w+) has changed since it was measured", text)
    assert said == ["cuda/fused"]


def test_the_index_links_the_pages_that_are_there(tmp_path: Path) -> None:
    write(sweep(("float32",), (1024,)), tmp_path)
    seen = Seen((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert "softmax.html" in seen.refers and "add_relu.html" not in seen.refers
    write(record.new("add_relu", "", laptop()["machine"]), tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert {"softmax.html", "add_relu.html"} <= set(Seen(text).refers)
    assert "Best of ours: cuda/fused" in text and "no speed was measured" in text


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Headless Chromium: Debian's package, or another that is on PATH."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(names)} is on PATH")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program)
        yield started
        started.close()


@pytest.fixture
def visit(browser, folder: Path) -> Iterator[Callable]:
    """Opens a page of the folder; at the end nothing may have been said on the console or asked of anything else."""
    contexts, asked, said = [], list[str](), list[str]()

    def opened(name: str = "softmax.html", **options):
        contexts.append(browser.new_context(**{"viewport": DESK} | options))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{folder.as_uri()}/{name}")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith((f"{folder.as_uri()}/", "data:,"))] == []
    files = {url.partition("#")[0] for url in asked if url.startswith("file:")}
    assert {os.path.splitext(file)[1] for file in files} == {".html"}


def visible(tab) -> list[str]:
    """The rungs whose pairs are shown."""
    return [name for name in RUNGS if tab.locator(f"#pair-{name}").is_visible()]


def background(tab) -> int:
    """Brightness of the page's background, 0 to 255."""
    return tab.evaluate("Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))")


@pytest.mark.parametrize("name", ["index.html", *(f"{name}.html" for name in OPERATIONS)])
def test_a_page_opens_without_a_word_on_the_console_and_without_a_request(visit, name: str) -> None:
    assert visit(name).locator("h1").is_visible()


def test_the_switch_shows_one_rung_by_mouse_and_by_keyboard(visit) -> None:
    tab = visit()
    assert visible(tab) == RUNGS[:1]
    tab.get_by_text(RUNGS[1], exact=True).first.click()
    assert visible(tab) == [RUNGS[1]] and tab.url.endswith(f"#{RUNGS[1]}")
    tab.keyboard.press("ArrowRight")
    assert visible(tab) == [RUNGS[2]]
    tab.keyboard.press("ArrowLeft")
    assert visible(tab) == [RUNGS[1]]


def test_everything_is_reached_by_the_tab_key_alone(visit) -> None:
    tab, reached = visit(), []
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.id || document.activeElement.getAttribute('href')"))
    assert reached[0] == "#pairs" and {"theme", f"rung-{RUNGS[0]}", "index.html", "#speed"} <= set(reached)


@pytest.mark.parametrize("name", RUNGS)
def test_the_address_chooses_the_rung(visit, name: str) -> None:
    assert visible(visit(f"softmax.html#{name}")) == [name]


def test_the_switch_works_without_javascript(visit) -> None:
    tab = visit(java_script_enabled=False)
    tab.get_by_text(RUNGS[1], exact=True).first.click()
    assert visible(tab) == [RUNGS[1]] and not tab.locator("#theme").is_visible()


@pytest.mark.parametrize("size", [DESK, PROJECTOR], ids=["desk", "projector"])
@pytest.mark.parametrize("name", RUNGS)
def test_the_phases_of_twins_stand_level_and_share_the_width(visit, name: str, size: dict) -> None:
    rows = visit(f"softmax.html#{name}", viewport=size).locator(f"#pair-{name} .row:has(.phase)").all()
    pairs = [row.locator(".phase .l:first-child").all() for row in rows]
    twins = [pair for pair in pairs if len(pair) == 2]
    assert len(twins) >= 2 and (len(twins) == len(pairs) or name == "tuned")  # whose regimes differ by language
    for pair in twins:
        titles = [line.inner_text().strip().lstrip("/# ").partition(":")[0] for line in pair]
        left, right = (line.bounding_box() for line in pair)
        assert titles[0] == titles[1]
        assert abs(left["y"] - right["y"]) < 1
        assert abs(left["width"] - right["width"]) < 1 and left["x"] < right["x"]


@pytest.mark.parametrize("name", ["index.html", *(f"softmax.html#{name}" for name in RUNGS)])
def test_a_phone_scrolls_down_and_never_sideways(visit, name: str) -> None:
    tab = visit(name, viewport=PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for row in tab.locator(".row:visible:has(.cell + .cell)").all()[:3]:
        above, below = (row.locator(".cell").nth(at).bounding_box() for at in (0, 1))
        assert above["y"] + above["height"] <= below["y"] and above["x"] == below["x"]


def test_light_and_dark_follow_the_system_until_the_button_says_otherwise(visit) -> None:
    tab = visit(color_scheme="dark")
    assert background(tab) < 40
    tab.locator("#theme").click()
    assert background(tab) == 255
    tab.reload()
    assert background(tab) == 255 and tab.locator("#theme").inner_text() == "Dark"
    assert background(visit(color_scheme="light")) == 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "size"), [("index.html", DESK), ("add_relu.html#fused", PHONE)], ids=["index", "page"]
)
def test_axe_finds_nothing_to_object_to(visit, name: str, size: dict, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    tab = visit(name, viewport=size, color_scheme=scheme)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


def test_paper_shows_every_rung_on_white_and_no_buttons(visit) -> None:
    tab = visit(color_scheme="dark")
    tab.emulate_media(media="print")
    assert visible(tab) == RUNGS and background(tab) == 255
    assert [name for name in ("nav", "#theme", ".switch") if tab.locator(name).is_visible()] == []
    sheets = re.findall(rb"/Type */Page\b", tab.pdf(prefer_css_page_size=True))
    assert len(sheets) > len(RUNGS)
