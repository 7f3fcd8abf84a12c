"""What is said of CUDA and Triton, held against the records: every claim of claims.ini with a verdict and its number.

A claim rests on ratios, a line each: QUANTITY OPERATION A B AT LOW HIGH. It holds where A / B lies from LOW to HIGH:

    time       seconds, float32, of one run; AT is "all" shapes, those of so many columns, the "largest" (all cold L2),
               or the "smallest" (CUDA graph)
    passes     over global memory, an element, as issued
    launches   of kernels
    lines      of code; AT names the roles, as "kernel+launch"
    loads      instructions that read global memory, where sizes are no multiples of 16 against where they are; B is "-"
    variants   of a kernel that Triton's JIT builds for the sizes and dtypes of `--inspect`; B is "-"
    cycles     from one dependent read to the next; A and B are kinds of memory

A `*` in A and B stands for the same word in both. A claim is true where all of its ratios hold at every shape and
pair, false where none does, and else it depends; "not measured" where the records hold nothing on it.
"""

from __future__ import annotations

import configparser
import re
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

from compare import gap, inside, record, sources, tables
from compare.record import Record
from compare.registry import OPERATIONS

DATA = Path(__file__).with_name("claims.ini")


def records(folder: Path) -> dict[str, Record]:
    """The newest record of each operation in a folder or the folders in it. Raises RecordError if there is none."""
    found: dict[str, Record] = {}
    names = [f"{name}.json" for name in OPERATIONS]
    for path in (path for name in names for place in (name, f"*/{name}") for path in folder.glob(place)):
        newer = record.load(path, path.stem)
        found[path.stem] = max(found.get(path.stem, newer), newer, key=lambda one: record.measured_on(one)["date"])
    if not found:
        raise record.RecordError(f"{folder}: found no record; wanted {', '.join(names)}")
    return found


def claims(records: dict[str, Record]) -> list[Record]:
    """[{"source", "claim", "verdict", "number", "evidence": [line], "question", "where": [file and phase], "because"}],
    of what is said on the operations of these records (by name). "number" is that of the first ratio there is;
    "question" and "where" may be empty."""
    data = configparser.ConfigParser(interpolation=None)
    data.read(DATA, encoding="utf-8")
    found: list[Record] = []
    for claim in data.sections():
        holds, numbers, evidence = [], [], []
        lines = [line.split() for line in data[claim]["ratios"].strip().splitlines()]
        for quantity, operation, a, b, at, low, high in (line for line in lines if line[1] in records):
            values = ratios(records[operation], quantity, a, b, at)
            if values:
                holds += [float(low) <= value <= float(high) for value in values]
                numbers.append(tables.ranged(gap.spread(values)))
                what = [f"{quantity} of {operation}", f"`{a}`" if b == "-" else f"`{a}` / `{b}`", at]
                evidence.append(f"{', '.join(word for word in what if word != '-')}: {numbers[-1]}")
        verdict = ("true" if all(holds) else "it depends" if any(holds) else "false") if holds else "not measured"
        words = {key: data[claim].get(key, "") for key in ("source", "question", "because")}
        words |= {"claim": claim, "verdict": verdict, "number": numbers[0] if numbers else "-"}
        where = [_phase(*place.split()) for place in data[claim].get("where", "").strip().splitlines()]
        if not records.keys().isdisjoint(line[1] for line in lines):
            found.append({**words, "evidence": evidence, "where": where})
    return found


def report(records: dict[str, Record]) -> tables.Section:
    """The claims on these operations, then the questions of the lesson, and the latencies measured."""
    parts: list[str | tables.Grid] = []
    found = claims(records)
    for head, asked in (("claim", False), ("the lesson asks", True)):
        grid = [[head, "verdict", "on what it rests"]]
        for one in (one for one in found if bool(one["question"]) == asked):
            rests = [*one["evidence"], *([one["because"]] if one["because"] and one["evidence"] else []),
                     *(f"see {place}" for place in one["where"])]  # fmt: skip
            judged = one["verdict"] + f", {one['number']}" * bool(one["evidence"])
            grid.append([f"{one['question']} {one['claim']}".strip(), judged, ";\n".join(rests)])
        parts += [grid] if grid[1:] else []
    latency: list[Record] = next((one["latency"] for one in records.values() if one.get("latency")), [])
    waits = [[each["memory"], str(each["cycles"]), str(each["nanoseconds"])] for each in latency]
    parts += [[["where a value waits", "cycles", "ns"], *waits]] if waits else []
    return tables.Section("Claims", None, parts)


def ratios(shown: Record, quantity: str, a: str, b: str, at: str) -> list[float]:
    """A / B of a line (see above), at every shape and pair at which both are known."""
    names = [entry["name"] for entry in shown["implementations"]]
    shapes = [re.escape(pattern).replace(r"\*", "(.+)") for pattern in (a, b) if "*" in pattern]
    words = dict.fromkeys(match[1] for shape in shapes for name in names if (match := re.fullmatch(shape, name)))
    found = []
    for word in words or [""]:
        over, under = (_values(shown, quantity, name.replace("*", word), at) for name in (a, b))
        found += [value / under[key] for key, value in over.items() if key in under or b == "-"]
    return found


def _values(shown: Record, quantity: str, name: str, at: str) -> dict[Any, float]:
    """What is known of an implementation (or a kind of memory); values of the same key may be compared."""
    entry: Record = next((entry for entry in shown["implementations"] if entry["name"] == name), {})
    facts = [fact for fact in inside.facts(shown) if fact["name"].split()[0] == name and fact["dtype"] == "float32"]
    if name == "-":
        return defaultdict(lambda: 1.0)
    if quantity == "time":
        method = "graph" if at == "smallest" else "cold"
        times = [time for time in gap.times(shown, "float32") if time["method"] == method]
        ends = {"largest": max, "smallest": min}
        size = ends[at](prod(time["shape"]) for time in times) if at in ends and times else None
        return {(*time["shape"], time["run"]): time["seconds"]["median"] for time in times
                if time["implementation"] == name and size in (None, prod(time["shape"]))
                and at in (*ends, "all", str(time["shape"][-1]))}  # fmt: skip
    if quantity == "lines":
        return {at: sum(entry["lines"][role] for role in at.split("+"))} if "lines" in entry else {}
    if quantity == "loads":
        loads = {(fact["variant"], bool(fact["multiples"])): inside.number(fact["instructions"], "LDG", "LDGSTS")
                 for fact in facts if "instructions" in fact}  # fmt: skip
        return {key: loads[key, False] / loads[key, True] for key, wide in loads if (key, not wide) in loads}
    known = {
        "passes": gap.passes(shown).get(name), "launches": entry.get("launches"),
        "variants": max((fact["jit"]["variants"] for fact in facts if "jit" in fact), default=None),
        "cycles": next((each["cycles"] for each in shown.get("latency", []) if each["memory"] == name), None),
    }[quantity]  # fmt: skip
    return {} if known is None else {"": known}


def _phase(file: str, number: str) -> str:
    """ "cuda/softmax_fused.cu: 2. exponentials and row sum": a phase of a source, by its number, which may be gone."""
    text = (sources.ROOT / file).read_text(encoding="utf-8")
    return ": ".join([file, *re.findall(rf"^\s*(?://|#) ({number}\. .*)$", text, re.MULTILINE)[:1]])
