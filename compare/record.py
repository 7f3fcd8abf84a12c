"""The record: one JSON file that holds all that was found about one operation.

Tables, gap and figures read a record and nothing else. `merge` lets a sweep be made in parts, so every entry says where
it comes from: "run" is the date of its machine, "fingerprint" the source that ran, and a measurement holds the
"copy_seconds" of its own run. Entries of an earlier run stay, but ratios are formed within one run only (gap.py).
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

SCHEMA = 1
ENTRIES = ("checks", "measurements", "copies", "host", "traffic")
KEY = ("implementation", "shape", "dtype", "method", "executor")
FACT = ("target", "dtype", "variant", "multiples_of_16")  # what tells two compiled kernels apart
WIDTH = 120

Record = dict[str, Any]


class RecordError(ValueError):
    """A record that cannot be used. The text is one line: the file, what was found, what was wanted."""


def new(operation: str, command: str, machine: Record) -> Record:
    """An empty record of `operation`; `machine` is what machine.py describes, its "date" names this run."""
    head = {"schema": SCHEMA, "operation": operation, "command": command, "machine": machine, "reference": None}
    return {**head, **{name: [] for name in ("implementations", *ENTRIES)}}


def load(path: str | Path, operation: str | None = None) -> Record:
    """Reads a record, of `operation` if one is given. Raises RecordError for a file that is not such a record."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise RecordError(f"{path}: {reason}; wanted a record, a JSON file of python -m compare") from None
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        cut = text.lstrip()[:1] == "{" and (error.pos >= len(text.rstrip()) or text.rstrip()[-1] != "}")
        found = "an empty file" if not text.strip() else "a truncated record" if cut else "not JSON"
        raise RecordError(f"{path}: found {found} (line {error.lineno}: {error.msg}); wanted a whole record") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = f"schema {record.get('schema')!r}" if isinstance(record, dict) else f"a JSON {type(record).__name__}"
        raise RecordError(f"{path}: found {found}; wanted a record of schema {SCHEMA}")
    for name in ("implementations", *ENTRIES):
        entries = record.get(name)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise RecordError(f"{path}: found no list of entries under {name!r}; wanted one")
    for entry in (*record["checks"], *record["measurements"]):
        seconds = entry.get("seconds", {}).get("median", 0) if isinstance(entry.get("seconds", {}), dict) else 0
        if "status" not in entry or ("method" in entry and entry["status"] == "passed" and not (seconds or 0) > 0):
            place = f"{entry.get('implementation')} at {entry.get('shape')}"
            raise RecordError(
                f"{path}: found an entry of {place} without a status, or passed without a time; wanted both"
            )
    if not isinstance(record.get("machine"), dict) or "date" not in record["machine"]:
        raise RecordError(f"{path}: found no machine with a date; wanted one")
    if operation is not None and record.get("operation") != operation:
        raise RecordError(f"{path}: found operation {record.get('operation')!r}; wanted {operation!r}")
    return record


def save(record: Record, path: str | Path) -> None:
    """Writes the record so that a reader sees the old file or the new one, never half of one.

    Raises OSError where the folder cannot be written. JSON has no NaN and no infinity: they are written as null.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(_text(_finite(stamped(record))) + "\n", encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def merge(old: Record, new: Record) -> Record:
    """Both records as one; where both hold the same cell of the same implementation, the new entry stands.

    An entry that was only skipped replaces nothing. The machine is the new one; earlier machines stay as long as an
    entry of their run does. Raises RecordError for two operations or two GPUs.
    """
    for what, before, now in (
        ("operation", old["operation"], new["operation"]),
        ("GPU", old["machine"].get("gpu") or measured_on(old).get("gpu"), new["machine"].get("gpu")),
    ):
        if before and now and before != now:
            raise RecordError(f"cannot merge records: found {what} {now!r}; wanted {before!r}, as in the older record")
    old, new = stamped(old), stamped(new)
    merged = {**old, **new}
    for name in ENTRIES:
        entries = {_key(entry): entry for entry in old[name]}
        for entry in new[name]:
            if entry.get("status") != "skipped" or _key(entry) not in entries:
                entries[_key(entry)] = entry
        merged[name] = list(entries.values())
    implementations = {entry["name"]: entry for entry in old["implementations"]}
    for entry in new["implementations"]:
        before = implementations.get(entry["name"], {})
        if before.get("fingerprint") == entry.get("fingerprint"):  # same source: facts found only earlier still hold
            facts = {str([fact.get(key) for key in FACT]): fact
                     for one in (before, entry) for fact in one.get("compiled", [])}  # fmt: skip
            entry = {**entry, **before, **{key: value for key, value in entry.items() if value not in (None, [], {})}}
            entry |= {"compiled": list(facts.values())} if facts else {}
        implementations[entry["name"]] = entry
    merged["implementations"] = list(implementations.values())
    runs = {entry["run"] for name in ENTRIES for entry in merged[name]} - {new["machine"]["date"]}
    machines = [*old.get("earlier_machines", []), old["machine"]]
    merged["earlier_machines"] = [machine for machine in machines if machine["date"] in runs]
    return merged


def measured_on(record: Record) -> Record:
    """The machine of the newest measurement, or the record's machine if it holds none."""
    runs = {entry.get("run", record["machine"]["date"]) for entry in record["measurements"]}
    machines = [*record.get("earlier_machines", []), record["machine"]]
    return max((m for m in machines if m["date"] in runs), key=lambda m: m["date"], default=record["machine"])


def stale(record: Record, current: dict[str, str]) -> list[str]:
    """Names of implementations whose source is not what was measured (or recorded, where nothing was measured).

    `current`: the fingerprint of every implementation that has a source; one whose source is gone counts as changed.
    """
    measured: dict[str, set[str]] = {}
    for entry in record["measurements"]:
        if entry.get("fingerprint"):
            measured.setdefault(entry["implementation"], set()).add(entry["fingerprint"])
    prints = {entry["name"]: entry["fingerprint"] for entry in record["implementations"] if entry.get("fingerprint")}
    return [name for name, value in prints.items() if measured.get(name, {value}) != {current.get(name)}]


def describe(record: Record, file: str | Path, current: dict[str, str] | None = None) -> Record:
    """What a run says of a saved record that it shows: {file, gpu, date, fresh, stale}. Without `current`, as `stale`
    takes it, nothing is stale."""
    machine, changed = measured_on(record), [] if current is None else stale(record, current)
    where = {"file": Path(file).as_posix(), "gpu": machine.get("gpu"), "date": machine["date"][:10]}
    return {**where, "fresh": not changed, "stale": changed}


def reference(results_dir: str | Path, operation: str, current: dict[str, str]) -> Record | None:
    """Describes the newest of results_dir/*/OPERATION.json that holds measurements, None if there is none.

    "file" starts with the name of results_dir. Raises RecordError if one of them is broken.
    """
    folder = Path(results_dir)
    records = {path: load(path, operation) for path in sorted(folder.glob(f"*/{operation}.json"))}
    measured = [path for path, record in records.items() if record["measurements"]]
    if not measured:
        return None
    newest = max(measured, key=lambda path: measured_on(records[path])["date"])
    return describe(records[newest], newest.relative_to(folder.parent), current)


def with_speed(record: Record, saved: Record) -> Record:
    """`record` (lines, checks) with the measurements, copies and machines of `saved`: to show, not to be saved."""
    record, saved = stamped(record), stamped(saved)
    names = {entry["name"] for entry in record["implementations"]}
    others = [entry for entry in saved["implementations"] if entry["name"] not in names]
    borrowed = {name: saved[name] for name in ("measurements", "copies", "host", "traffic", "machine")}
    borrowed["earlier_machines"] = [*saved.get("earlier_machines", []), record["machine"]]
    borrowed["implementations"] = [*record["implementations"], *others]
    return {**record, **borrowed, "checks": [*record["checks"], *saved["checks"]]}


def cell(entry: Record) -> tuple[tuple[int, ...], str, str | None]:
    """(shape, dtype, method) of a measurement or a copy."""
    return tuple(entry["shape"]), entry["dtype"], entry.get("method")


def stamped(record: Record) -> Record:
    """The record with run, fingerprint and copy_seconds in each entry of its own run; the caller's stays as it is."""
    date = record["machine"]["date"]
    prints = {entry["name"]: entry.get("fingerprint") for entry in record["implementations"]}
    full = {**record, **{name: [{"run": date, **entry} for entry in record[name]] for name in ENTRIES}}
    own = {name: [entry for entry in full[name] if entry["run"] == date] for name in ENTRIES}
    copies = {cell(entry): entry["seconds"]["median"] for entry in own["copies"] if "seconds" in entry}
    for entry in (entry for name in ENTRIES for entry in own[name]):
        if prints.get(entry.get("implementation")):
            entry.setdefault("fingerprint", prints[entry["implementation"]])
    for entry in own["measurements"]:
        if "seconds" in entry and cell(entry) in copies:
            entry.setdefault("copy_seconds", copies[cell(entry)])
    return full


def _key(entry: Record) -> tuple[Any, ...]:
    return tuple(str(entry.get(name)) for name in KEY)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any, indent: int = 0) -> str:
    """JSON with what fits, and every list of plain values, on one line: readable, and small in a diff."""
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    plain = isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
    if plain or not isinstance(value, (dict, list)) or len(flat) + indent <= WIDTH:
        return flat
    if isinstance(value, dict):
        items = [f"{json.dumps(key, ensure_ascii=False)}: {_text(item, indent + 1)}" for key, item in value.items()]
    else:
        items = [_text(item, indent + 1) for item in value]
    margin = "\n" + " " * (indent + 1)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + margin + f",{margin}".join(items) + margin[:-1] + closing
