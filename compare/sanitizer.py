"""Run every rung under compute-sanitizer's four tools: `python -m compare OPERATION --sanitize`.

Each tool watches a process of its own, in which every tensor is one cudaMalloc (no caching allocator), so that an
access past its end leaves the allocation and is seen.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TIME_LIMIT = 300  # seconds for one tool
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")


def run(operation: str, shapes: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    """Entries for record["sanitizer"]: {"tool", "shapes", "launches", "findings" (None: it did not finish), "report"}.

    launches: how many public calls the tool watched. report: the tool's own words, cut, where it found something.
    Raises FileNotFoundError without compute-sanitizer.
    """
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise FileNotFoundError("no compute-sanitizer on PATH; it comes with the CUDA toolkit")
    sizes = ["x".join(map(str, shape)) for shape in shapes]
    entries = []
    for tool in TOOLS:
        command = [program, "--tool", tool, sys.executable, "-m", "compare.sanitizer", operation, *sizes]
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        where = Path(__file__).resolve().parents[1]
        try:
            done = subprocess.run(
                command, cwd=where, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT
            )
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            said = f"not finished after {TIME_LIMIT} s"
        summary, watched = SUMMARY.search(said), re.search(r"^launched (\d+)$", said, re.MULTILINE)
        findings = int(summary[1]) if summary and watched else None
        entries.append(
            {
                "tool": tool,
                "shapes": [list(shape) for shape in shapes],
                "launches": int(watched[1]) if watched else 0,
                "findings": findings,
                "report": None if findings == 0 else said[-2000:],
            }
        )
    return entries


def main() -> None:
    """What a tool watches: every rung of an operation in both languages, on every dtype and the shapes given."""
    import torch

    from compare import operations
    from compare.registry import DTYPES, LANGUAGES, OPERATIONS

    operation, launched = OPERATIONS[sys.argv[1]], 0
    for shape in (tuple(map(int, sizes.split("x"))) for sizes in sys.argv[2:]):
        for dtype in DTYPES:
            inputs = [torch.randn(shape).to("cuda", getattr(torch, dtype)) for _ in range(operation.n_inputs)]
            for rung in operation.rungs:
                if rung.max_cols is not None and shape[-1] > rung.max_cols:
                    continue
                for language in LANGUAGES:
                    operations.call(operation, *inputs, rung=rung.name, language=language)
                    launched += 1
    torch.cuda.synchronize()
    print(f"launched {launched}")


if __name__ == "__main__":
    main()
