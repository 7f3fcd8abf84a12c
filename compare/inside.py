"""What the compilers made of the kernels, down to the machine code: a record's compile facts as templates show them.

Instructions, which only `--inspect` finds, are counted as they stand in the code, a loop's body once.
"""

from __future__ import annotations

import re

from compare import tables
from compare.record import Record


def facts(record: Record) -> list[Record]:
    """The facts of every implementation with the "name" of their kernel; a rung's languages side by side.

    Launches that came to the same code are one. "multiples": those of the kernel's sizes and strides that the compiler
    knew to be multiples of 16 (of pointers every allocation makes them such).
    """
    rungs = [entry.get("rung") for entry in record["implementations"]]
    found: dict[str, Record] = {}
    for entry in sorted(record["implementations"], key=lambda entry: rungs.index(entry.get("rung"))):
        for fact in entry.get("compiled", []):
            kernel = re.split("[ <]", fact["variant"])[0].removesuffix("_kernel")
            kernel = kernel.removeprefix(f"{record['operation']}_{entry['rung']}").strip("_")
            multiples = [name for name in fact.get("multiples_of_16", []) if not name.endswith("_ptr")]
            named = fact | {"name": f"{entry['name']} {kernel}".strip(), "multiples": multiples}
            told = ("name", "target", "dtype", "threads", "registers", "shared_bytes", "instructions")
            found.setdefault(str([named.get(key) for key in told]), named)
    return list(found.values())


def report(record: Record) -> str:
    """The tables of those facts, as Markdown; empty where there are none."""
    found = facts(record)
    return tables.template("inside.md", number=number, widths=widths).render(facts=found) if found else ""


def number(counts: dict[str, int], *names: str) -> int:
    """How many instructions of these names there are, of any width."""
    return sum(count for name, count in counts.items() if name in names or name.split(".")[0] in names)


def widths(counts: dict[str, int], *names: str) -> str:
    """Memory instructions by bits a thread: "4x128 2x32"; "async" pass registers by, "bulk" are whole tiles."""
    words = {"LDGSTS": " async", "UBLKCP": " bulk"}
    found = [(name.partition("."), count) for name, count in counts.items() if name.split(".")[0] in names]
    return " ".join(f"{count}x{bits}{words.get(name, '')}" for (name, _, bits), count in found).replace("x ", " ")
