"""The README against the project: its links, its pairs, its options, and the numbers between its markers.

`python tests/test_readme.py` prints the blocks between the markers as the records give them, and draws the figures of
docs/ anew; docs/figures.json says of which times each was drawn.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from compare import claims, record
from compare.cli import _parser, main
from compare.registry import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORDS = ROOT / "results" / "nvidia-h200"
SHORTEST, LARGEST = [2**12], [2**28]


def fusing() -> str:
    """add_relu's naive and fused rungs, eager and torch.compile at the smallest and the largest size."""
    saved = record.load(RECORDS / "add_relu.json", "add_relu")

    def microseconds(name: str, shape: list[int], method: str) -> float:
        (entry,) = (
            m
            for m in saved["measurements"]
            if (m["implementation"], m["shape"], m["method"], m["dtype"]) == (name, shape, method, "float32")
        )
        return entry["seconds"]["median"] * 1e6

    rows = ["| add + ReLU, float32 | two kernels | one kernel | |", "|---|---|---|---|"]
    for two, one in (("cuda/naive", "cuda/fused"), ("triton/naive", "triton/fused"), ("eager", "torch.compile")):
        for shape, method, where in (
            (SHORTEST, "graph", "4 Ki elements, graph time"),
            (LARGEST, "cold", "256 Mi elements, cold"),
        ):
            slow, fast = microseconds(two, shape, method), microseconds(one, shape, method)
            rows.append(f"| {two} → {one}, {where} | {slow:.2f} µs | {fast:.2f} µs | {slow / fast:.2f}× |")
    return "\n".join(rows)


def suite() -> str:
    """The suite's counts on the GPU."""
    saved = record.load(RECORDS / "softmax.json", "softmax")
    found = saved["tests"]
    text = (
        f"The test suite ran on that GPU with the real kernels, at commit {found['commit'][:7]}: "
        f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped."
    )
    if "sanitizer" not in saved:
        return f"{text} compute-sanitizer has not been run for this record."
    tools = ", ".join(f"{entry['tool']} {entry['findings']}" for entry in saved["sanitizer"])
    return f"{text} Findings of compute-sanitizer: {tools}."


def verdicts() -> str:
    """What is said, judged by the records."""
    return claims.report(claims.records(RECORDS)).text("markdown").partition("\n")[2].strip()  # without its title


BLOCKS = {"fusing": fusing, "tests": suite, "claims": verdicts}


def test_the_numbers_between_the_markers_are_those_of_the_records():
    found = dict(re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", README, re.DOTALL))
    assert found == {name: block() for name, block in BLOCKS.items()}


def prints(figure: str) -> dict[str, str]:
    """What a figure was drawn of, and the picture itself."""
    operation = next(name for name in OPERATIONS if figure.startswith(name))
    saved = json.loads((RECORDS / f"{operation}.json").read_text())
    times = json.dumps([saved["measurements"], saved["copies"]], sort_keys=True).encode()
    picture = (ROOT / "docs" / figure).read_bytes()
    return {"times": hashlib.sha256(times).hexdigest(), "picture": hashlib.sha256(picture).hexdigest()}


def test_the_figures_are_drawn_of_the_records():
    shown = re.findall(r"\]\(docs/([\w.-]+\.png)\)", README)
    assert shown and json.loads((ROOT / "docs" / "figures.json").read_text()) == {name: prints(name) for name in shown}


def test_every_link_leads_somewhere():
    links = [link for link in re.findall(r"\]\(([\w./-]+)\)", README)]
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def test_every_pair_is_in_the_table():
    for operation in OPERATIONS.values():
        for rung in operation.rungs:
            stem = f"{operation.name}_{rung.name}"
            passes = f"{rung.reads}R + {rung.writes}W = {rung.reads + rung.writes}"
            row = f"[cuda](cuda/{stem}.cu) | [triton](triton/{stem}.py) | {passes} |"
            assert row in README


def test_every_option_of_the_readme_exists_and_the_other_way_round():
    ours = {option for action in _parser()._actions for option in action.option_strings if option.startswith("--")}
    (paragraph,) = re.findall(r"`python -m compare OPERATION` knows(.*?)Exit status", README, re.DOTALL)
    assert set(re.findall(r"`(--[\w-]+)", paragraph)) == ours - {"--help"}


def test_the_two_commands_are_there_once():
    for name, last in (("run", "-m compare softmax"), ("tests", "-m pytest")):
        (command,) = re.findall(rf"<!-- command: {name} -->\n```sh\n(.*)\n```", README)
        assert command.startswith("python3 -m venv .venv && ") and last in command


def draw(names: list[str]) -> None:
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        for operation in {name for name in OPERATIONS for figure in names if figure.startswith(name)}:
            saved = (RECORDS / f"{operation}.json").relative_to(ROOT)  # as the figure names it
            assert main([operation, "--from", str(saved), "--output-dir", folder]) == 0
        for name in names:
            shutil.copy(Path(folder) / name, ROOT / "docs" / name)
    found = json.dumps({name: prints(name) for name in names}, indent=1)
    (ROOT / "docs" / "figures.json").write_text(f"{found}\n")


if __name__ == "__main__":
    draw(re.findall(r"\]\(docs/([\w.-]+\.png)\)", README))
    for name, block in BLOCKS.items():
        print(f"<!-- measured: {name} -->\n{block()}\n<!-- end -->\n")
