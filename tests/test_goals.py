"""The goals of the tuned rung against the record, cell by cell. `python tests/test_goals.py` prints the table.

goals_softmax.json holds for each cell the ratio to a copy that each language is to reach, and the best peer's, of an
earlier run. Within 0.01 counts as met. `also`: the cell must not be slower than any baseline of its own record.
"""

import json
import re
from pathlib import Path

from compare import record

ROOT = Path(__file__).resolve().parents[1]
GOALS = json.loads((Path(__file__).parent / "goals_softmax.json").read_text())
WITHIN = 0.01


def cell(saved: record.Record, goal: dict, name: str) -> float | None:
    """The ratio to a copy of the same run, by the goal's method, or by the other where the harness takes only that (it
    takes graph times below 50 µs); None where there is neither."""
    found = {
        entry["method"]: entry["copy_seconds"] / entry["seconds"]["median"]
        for entry in saved["measurements"]
        if (entry["implementation"], entry["shape"], entry["dtype"], entry["status"])
        == (name, [goal["rows"], goal["cols"]], goal["dtype"], "passed")
    }
    return found.get(goal["method"], next(iter(found.values()), None))


def others(saved: record.Record, goal: dict) -> float:
    """The best ratio of a baseline or a peer of the same record."""
    names = {entry["implementation"] for entry in saved["measurements"]} - {None}
    found = [cell(saved, goal, name) for name in names if "/" not in name]
    return max((ratio for ratio in found if ratio is not None), default=0.0)


def goals() -> str:
    saved = record.stamped(record.load(ROOT / "results" / "nvidia-h200" / "softmax.json", "softmax"))
    rows = ["| dtype | rows × columns | method | best peer | CUDA: goal | measured | Triton: goal | measured |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    met = {"cuda": 0, "triton": 0}
    for goal in GOALS["cells"]:
        shown = []
        for language in met:
            ratio = cell(saved, goal, f"{language}/tuned")
            least = max(goal[language], others(saved, goal) if "also" in goal else 0.0)
            reached = ratio is not None and ratio >= least - WITHIN
            met[language] += reached
            short = "" if reached or ratio is None else f" (short by {least - ratio:.2f})"
            shown += [f"{goal[language]:.2f}", "not measured" if ratio is None else f"{ratio:.2f}{short}"]
        peer = f"{goal['best_peer']} {goal['best_peer_ratio']:.2f}" if goal["best_peer"] else "—"
        shape = f"{goal['rows']} × {goal['cols']}"
        rows.append(f"| {goal['dtype']} | {shape} | {goal['method']} | {peer} | {' | '.join(shown)} |")
    n = len(GOALS["cells"])
    return "\n".join([*rows, "", f"Met: CUDA {met['cuda']} of {n}, Triton {met['triton']} of {n}."])


def test_the_goals_in_the_notebook_are_those_of_the_record():
    notebook = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"<!-- measured: goals -->\n(.*?)\n<!-- end -->", notebook, re.DOTALL)
    assert found == goals()


if __name__ == "__main__":
    print(f"<!-- measured: goals -->\n{goals()}\n<!-- end -->")
