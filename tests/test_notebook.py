"""docs/tuning.md against the record: the goals of the tuned rung cell by cell, its float16 widths, the bytes
that ncu counted, what the compilers made of it. `python tests/test_notebook.py` prints the tables.

goals_softmax.json holds for each cell the ratio to a copy that each language is to reach, and the best peer's, of an
earlier run. Within 0.01 counts as met. `also`: the cell must not be slower than any baseline of its own record.
"""

import json
import re
from pathlib import Path

from compare import record, tables

ROOT = Path(__file__).resolve().parents[1]
GOALS = json.loads((Path(__file__).parent / "goals_softmax.json").read_text())
WITHIN = 0.01


def cell(saved: record.Record, goal: dict, name: str, method: str) -> float | None:
    """The ratio to a copy of the same run; None where it was not measured."""
    found = {
        entry["method"]: entry["copy_seconds"] / entry["seconds"]["median"]
        for entry in saved["measurements"]
        if (entry["implementation"], entry["shape"], entry["dtype"], entry["status"])
        == (name, [goal["rows"], goal["cols"]], goal["dtype"], "passed")
    }
    return found.get(method)


def method_of(saved: record.Record, goal: dict) -> str:
    """The goal's method, or the other one where the harness takes only that: it takes graph times below 50 µs."""
    return goal["method"] if cell(saved, goal, "cuda/tuned", goal["method"]) is not None else "cold"


def others(saved: record.Record, goal: dict, method: str) -> float:
    """The best ratio of a baseline or a peer of the same record."""
    names = {entry["implementation"] for entry in saved["measurements"]} - {None}
    found = [cell(saved, goal, name, method) for name in names if "/" not in name]
    return max((ratio for ratio in found if ratio is not None), default=0.0)


def goals() -> str:
    saved = load()
    rows = [
        "| dtype | rows × columns | method | best peer, earlier | CUDA: goal | measured | Triton: goal | measured |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    met = {"cuda": 0, "triton": 0}
    for goal in GOALS["cells"]:
        shown, method = [], method_of(saved, goal)
        for language in met:
            ratio = cell(saved, goal, f"{language}/tuned", method)
            least = max(goal[language], others(saved, goal, method) if "also" in goal else 0.0)
            reached = ratio is not None and ratio >= least - WITHIN
            met[language] += reached
            short = "" if reached or ratio is None else f" (short by {least - ratio:.2f})"
            shown += [f"{least:.2f}", "not measured" if ratio is None else f"{ratio:.2f}{short}"]
        peer = f"{goal['best_peer']} {goal['best_peer_ratio']:.2f}" if goal["best_peer"] else "—"
        shape = f"{goal['rows']} × {goal['cols']}"
        rows.append(f"| {goal['dtype']} | {shape} | {method} | {peer} | {' | '.join(shown)} |")
    n = len(GOALS["cells"])
    return "\n".join([*rows, "", f"Met: CUDA {met['cuda']} of {n}, Triton {met['triton']} of {n}."])


def half() -> str:
    """Ratios to a copy in float16."""
    saved = load()
    names = ("cuda/tuned", "triton/tuned", "torch.softmax")
    shapes = {tuple(entry["shape"]) for entry in saved["measurements"] if entry["dtype"] == "float16"}
    if not shapes:
        return "Not measured since these sources changed."
    rows = [f"| float16, rows × columns | {' | '.join(names)} |", "|---|---|---|---|"]
    for n_rows, n_cols in sorted(shapes, key=lambda shape: shape[1]):
        at = {"rows": n_rows, "cols": n_cols, "dtype": "float16"}
        ratios = [cell(saved, at, name, "cold") for name in names]
        shown = ["not measured" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        rows.append(f"| {n_rows} × {n_cols} | {' | '.join(shown)} |")
    return "\n".join(rows)


def compiled() -> str:
    """Registers, spills and occupancy of every regime, for the GPU of the record."""
    rows = [
        "| kernel | dtype | threads | registers | spilled bytes | shared bytes | occupancy |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in load()["implementations"]:
        for facts in entry.get("compiled", []) if entry["rung"] == "tuned" else []:
            if facts["dtype"] != "float16" and facts["target"] == "sm_90":
                variant = facts["variant"].replace("softmax_tuned_", "").replace("_kernel", "")
                rows.append(
                    f"| {entry['language']} `{variant}` | {facts['dtype']} | {facts['threads']} | {facts['registers']} "
                    f"| {facts['spills']} | {facts['shared_bytes']} | {facts['occupancy']:.0%} |"
                )
    return "\n".join(rows)


def traffic() -> str:
    """What Nsight Compute counted, and the cold clock beside its and do_bench's."""
    return tables.traffic(load()).text("markdown").partition("\n")[2].strip()  # without its title


def load() -> record.Record:
    return record.stamped(record.load(ROOT / "results" / "nvidia-h200" / "softmax.json", "softmax"))


BLOCKS = {"goals": goals, "half": half, "traffic": traffic, "compiled": compiled}


def test_the_tables_in_the_notebook_are_those_of_the_record():
    notebook = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", notebook, re.DOTALL))
    assert found == {name: block() for name, block in BLOCKS.items()}


if __name__ == "__main__":
    for name, block in BLOCKS.items():
        print(f"<!-- measured: {name} -->\n{block()}\n<!-- end -->\n")
