"""What the compilers made of the kernels, down to the machine code: a record's compile facts and their tables.

Instructions, which only `--inspect` finds, are counted as they stand in the code, a loop's body once.
"""

from __future__ import annotations

import re

from compare.record import Record
from compare.tables import Grid, Section

LOADS = ("LDG", "LDGSTS", "UBLKCP")


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


def compiled(record: Record, source: Record | None = None) -> Section:
    """Registers, spills, shared memory and occupancy; of `--inspect` also the machine code, and what Triton's JIT does.

    A row is named by kernel and size (columns or elements), and by dtype and target where they are not the first row's.
    """
    found = facts(record)
    if not found:
        return Section("Compiled", source, ["No compile facts."])
    target, dtype = found[0]["target"], found[0]["dtype"]

    def named(fact: Record) -> str:
        size = [f"at {fact['shape'][-1]}"] if fact.get("shape") else []
        others = [fact[key] for key, first in (("dtype", dtype), ("target", target)) if fact[key] != first]
        return " ".join([fact["name"], *size, *others])

    made: Grid = [["kernel", "threads\na block", "registers\na thread", "spilled\nbytes", "shared\nbytes", "occupancy"]]
    code: Grid = [["kernel", "loads", "stores", "smem", "SHFL", "BAR", "EX2", "FFMA", "all"]]
    jit: Grid = [["kernel", "constants", "sizes", "loads", "registers", "all", "variants"]]
    launches = 0
    for fact in found:
        if fact["dtype"] == dtype:
            values = [str(fact[key]) for key in ("threads", "registers", "spills", "shared_bytes")]
            made.append([named(fact), *values, f"{100 * fact['occupancy']:.0f} %"])
        counts = fact.get("instructions", {})
        if counts:
            groups = (("LDS", "STS", "LDSM"), ("SHFL", "REDUX"), ("BAR", "SYNCS"), ("MUFU.EX2",), ("FFMA",), ("all",))
            several = [str(number(counts, *group) or "-") for group in groups]
            code.append([named(fact), widths(counts, *LOADS) or "-", widths(counts, "STG") or "-", *several])
        if asked := fact.get("jit"):
            launches, sizes = asked["launches"], "x 16" if fact["multiples"] else "any"
            words = ["\n".join(fact["variant"].split()[1:-1]) or "-", sizes, widths(counts, *LOADS) or "-"]
            jit.append([named(fact), *words, *map(str, (fact["registers"], counts["all"], asked["variants"]))])
    notes = (
        "Machine code: instructions as they stand there, a loop's body once. loads, stores: of global memory, count x "
        'bits a thread; "async" and "bulk" pass the registers by. smem: of shared memory. BAR: barriers.',
        "What Triton's JIT specialises on: constants, types, and whether sizes and strides are multiples of 16. "
        f"variants: of a kernel, in {launches} launches: every size from 1 to {launches // 3} in three dtypes.",
    )
    parts = [part for note, grid in zip(notes, (code, jit), strict=True) if grid[1:] for part in (note, grid)]
    return Section(f"Compiled for {target}, {dtype}", source, [made, *parts])


def number(counts: dict[str, int], *names: str) -> int:
    """How many instructions of these names there are, of any width."""
    return sum(count for name, count in counts.items() if name in names or name.split(".")[0] in names)


def widths(counts: dict[str, int], *names: str) -> str:
    """Memory instructions by bits a thread: "4x128 2x32"; "async" pass registers by, "bulk" are whole tiles."""
    words = {"LDGSTS": " async", "UBLKCP": " bulk"}
    found = [(name.partition("."), count) for name, count in counts.items() if name.split(".")[0] in names]
    return " ".join(f"{count}x{bits}{words.get(name, '')}" for (name, _, bits), count in found).replace("x ", " ")
