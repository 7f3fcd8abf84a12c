"""The Ninja Gap (after Satish et al., ISCA 2012), from a record.

    total       = t(baseline) / t(best)                    baseline: eager, and the one-call operation
    residual(i) = t(i) / t(best)
    closed(i)   = ln(t(baseline) / t(i)) / ln(total)       None where total < 1.05: no gap to close
    efficiency  = least bytes the operation needs / peak bandwidth / t

Means are geometric, with their range, over the shapes at which every implementation named was measured. The best is
the fastest of ours by that mean, so at a single shape another one may be faster. What counts:
- an implementation with a failed (or broken) check of a dtype, on any shape and executor, has no speed in that dtype;
  one of ours needs a passed check as well. A check of another source (fingerprint) says nothing about this one;
- cold times; graph times only for a shape that has no cold one. One ratio never mixes two methods or two runs:
  of a shape that several runs measured, the run with most implementations counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log

from compare.record import Record, measured_on, stamped
from compare.registry import OPERATIONS

NO_GAP = 1.05


@dataclass(frozen=True)
class Spread:
    """Geometric mean and range over shapes."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """One implementation beside the best one. `closed`: by baseline, a fraction of the gap."""

    residual: Spread
    closed: dict[str, float | None]
    efficiency: Spread | None  # None where the peak is unknown
    copy_ratio: Spread | None  # t(copy) / t, None where no copy was measured in the same run


@dataclass(frozen=True)
class Gap:
    """The gap of one dtype. `totals` by baseline, `standings` by name, `left_out`: name -> why it has no standing."""

    dtype: str
    best: str
    shapes: list[tuple[int, ...]]
    totals: dict[str, Spread]
    standings: dict[str, Standing]
    left_out: dict[str, str]


def dtypes(record: Record) -> list[str]:
    """The dtypes measured, in the record's order."""
    return list(dict.fromkeys(entry["dtype"] for entry in record["measurements"]))


def passed(record: Record, name: str, dtype: str, fingerprint: str | None = None) -> bool:
    """Whether a time of this implementation (of this source) may be shown; the rule stands at the top of the file."""
    verdicts = {
        entry["status"]
        for entry in (*record["checks"], *(e for e in record["measurements"] if e["status"] == "failed"))
        if (entry["implementation"], entry["dtype"]) == (name, dtype)
        and (fingerprint is None or entry.get("fingerprint") in (None, fingerprint))
    }
    return not verdicts & {"failed", "error"} and ("passed" in verdicts or name not in _names(record, ours=True))


def times(record: Record, dtype: str) -> list[Record]:
    """The measurements of a dtype that may be shown, cold and graph, each with run and copy_seconds."""
    record = stamped(record)
    timed = [entry for entry in record["measurements"] if entry["dtype"] == dtype and entry["status"] == "passed"]
    sources = {(entry["implementation"], entry.get("fingerprint")) for entry in timed}
    good = {source for source in sources if passed(record, source[0], dtype, source[1])}
    return [entry for entry in timed if (entry["implementation"], entry.get("fingerprint")) in good]


def passes(record: Record) -> dict[str, int]:
    """Passes issued over global memory, an element, by implementation; eager PyTorch's are those of its composition."""
    operation = OPERATIONS.get(record["operation"])
    issued = {e["name"]: sum(e["passes"].values()) for e in record["implementations"] if e.get("passes")}
    return ({"eager": operation.composition_passes} if operation else {}) | issued


def one_run(there: list[Record]) -> list[Record]:
    """Of the times at one shape those that may be compared: the run with most of them, the newest of such runs."""
    runs = [time["run"] for time in there]
    return [time for time in there if time["run"] == max(runs, key=lambda run: (runs.count(run), run))]


def gaps(record: Record, peers: bool = False) -> list[Gap]:
    """One Gap for each dtype that has a time of ours. Only with `peers` do implementations of others take part."""
    return [found for dtype in dtypes(record) if (found := _gap(record, dtype, peers))]


def spread(values: Iterable[float]) -> Spread:
    """Geometric mean and range of one positive number or more."""
    found = list(values)
    low, high = min(found), max(found)
    return Spread(min(max(exp(sum(map(log, found)) / len(found)), low), high), low, high)  # rounding stays in the range


def _names(record: Record, ours: bool) -> list[str]:
    """Names of ours, or of torch's: the baselines."""
    return [e["name"] for e in record["implementations"] if (e.get("rung") if ours else e["language"] == "torch")]


def _gap(record: Record, dtype: str, peers: bool) -> Gap | None:
    ours, baselines = _names(record, ours=True), _names(record, ours=False)
    measured = list(dict.fromkeys(e["implementation"] for e in record["measurements"] if e["dtype"] == dtype))
    by_shape: dict[tuple[int, ...], list[Record]] = {}
    for time in times(record, dtype):
        if peers or time["implementation"] in (*ours, *baselines):
            by_shape.setdefault(tuple(time["shape"]), []).append(time)
    by_name: dict[str, dict[tuple[int, ...], Record]] = {}
    for shape, there in by_shape.items():
        method = min(time["method"] for time in there)  # "cold" comes before "graph"
        for time in one_run([time for time in there if time["method"] == method]):
            by_name.setdefault(time["implementation"], {})[shape] = time
    while by_name and not set.intersection(*map(set, by_name.values())):
        others = list(by_name.values())  # the one that shares the fewest shapes with them goes
        del by_name[min(by_name, key=lambda name: sum(shape in other for other in others for shape in by_name[name]))]
    candidates = [name for name in by_name if name in ours or (peers and name not in baselines)]
    if not candidates:
        return None
    shapes = sorted(set.intersection(*map(set, by_name.values())), key=lambda shape: (shape[-1], shape))

    def over(name: str, value: str = "median") -> list[float]:
        entries = (by_name[name][shape] for shape in shapes)
        return [entry["seconds"]["median"] if value == "median" else entry.get(value, 0) for entry in entries]

    def ratio(slow: Iterable[float], fast: str) -> Spread:
        return spread(a / b for a, b in zip(slow, over(fast), strict=True))

    best = min(candidates, key=lambda name: spread(over(name)).mean)
    totals = {name: ratio(over(name), best) for name in baselines if name in by_name and name != "torch.compile"}
    peak = measured_on(record).get("peak_bytes_per_s")
    standings = {}
    for name in by_name:
        residual, copies = ratio(over(name), best), over(name, "copy_seconds")
        closed = {
            baseline: log(total.mean / residual.mean) / log(total.mean) if total.mean >= NO_GAP else None
            for baseline, total in totals.items()
        }
        efficiency = spread(speed / peak for speed in over(name, "effective_bytes_per_s")) if peak else None
        standings[name] = Standing(residual, closed, efficiency, ratio(copies, name) if all(copies) else None)
    left_out = {
        name: "no time beside the others" if passed(record, name, dtype) else "did not pass its checks"
        for name in measured
        if name not in by_name and (peers or name in (*ours, *baselines))
    }
    return Gap(dtype, best, shapes, totals, standings, left_out)
