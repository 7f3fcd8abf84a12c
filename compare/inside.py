"""What the compilers made of the kernels, down to the machine code: compile facts of a record as templates show them.

Counted are instructions as they stand in the code, a loop's body once. Only facts that hold "instructions" are here,
which `--inspect` writes (compiled.py).
"""

from __future__ import annotations

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
            if "instructions" in fact:
                name = f"{entry['name']} {tables.kernel(record, entry, fact)}".strip()
                code = (name, fact["target"], fact["dtype"], fact["registers"], fact["instructions"])
                multiples = [name for name in fact["multiples_of_16"] if not name.endswith("_ptr")]
                found.setdefault(str(code), fact | {"name": name, "multiples": multiples})
    return list(found.values())


def report(record: Record) -> str:
    """The tables of those facts, as Markdown; empty where there are none."""
    found = facts(record)
    return tables.markdown("inside.md", facts=found, number=number, widths=widths) if found else ""


def number(counts: dict[str, int], *names: str) -> int:
    """How many instructions of these names there are, of any width."""
    return sum(count for name, count in counts.items() if name in names or name.split(".")[0] in names)


def widths(counts: dict[str, int], *names: str) -> str:
    """Memory instructions by bits a thread: "4x128 2x32"; "async" pass registers by, "bulk" are whole tiles."""
    words = {"LDGSTS": " async", "UBLKCP": " bulk"}
    found = [(name.partition("."), count) for name, count in counts.items() if name.split(".")[0] in names]
    return " ".join(f"{count}x{bits}{words.get(name, '')}" for (name, _, bits), count in found).replace("x ", " ")
