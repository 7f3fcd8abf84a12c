"""Faster, slower or tie: what the samples say of two implementations, or of one implementation in two records.

A verdict rests on the ratio of two medians with its 95 % bootstrap interval (percentiles of RESAMPLES resampled
ratios; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). What is drawn is rounds: a cell times
every implementation once a round, so a draw takes the same rounds of both, and a drift that meets a whole round cancels
in their ratio. Two records share no round; each draws its own. The draws are seeded: a record has one verdict.

The interval knows the noise of the samples alone. For what differs from run to run (where pages lie, how warm the card
is) there is a floor: only an interval that lies beyond it on one side is "faster" or "slower", so that a repeated run
may turn a close verdict into a tie, and hardly into its opposite. Within a record it is FLOOR, or two steps of the
clock (the least by which two samples of one implementation differ) where that is more. Between records it is BETWEEN,
or what the copy of the same cell, the same code in both, was off by where that is more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from compare import gap
from compare.record import Record, RecordError, cell, measured_on, stamped

FLOOR, BETWEEN = 0.01, 0.02
RESAMPLES = 1000
SUSPICIOUS = 10  # times as fast as the best baseline: rather a mistake than a kernel

Place = tuple[tuple[int, ...], str, str | None]  # record.cell


@dataclass(frozen=True)
class Verdict:
    """t(other) / t(this): the ratio of medians, its interval, and the floor (0.01 is 1 %)."""

    ratio: float
    low: float
    high: float
    floor: float

    @property
    def word(self) -> str:
        """What this one is: "faster", "slower", or "tie"."""
        faster, slower = self.low > 1 + self.floor, self.high < 1 / (1 + self.floor)
        return "faster" if faster else "slower" if slower else "tie"

    def __str__(self) -> str:
        """ "1.23× ± 0.02"; half of the interval's width, rounded up."""
        digits = 2 if self.ratio >= 0.1 else 3
        half = ceil(round(10**digits / 2 * (self.high - self.low), 6)) / 10**digits
        return f"{self.ratio:.{digits}f}× ± {half:.{digits}f}"


def judge(this: Record, that: Record, floor: float = FLOOR, seeds: tuple[int, int] = (0, 0)) -> Verdict:
    """One time against another. seeds: the same for two times of one cell, which then draw the same rounds."""
    these, those = (tuple(time.get("samples_ns") or [time["seconds"]["median"] * 1e9]) for time in (this, that))
    ratios = _medians(those, seeds[1]) / _medians(these, seeds[0])
    step = min((b - a for samples in (these, those) for a, b in pairwise(sorted({*samples}))), default=0)
    floor = max(floor, 2 * step / median(these))
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Verdict(median(those) / median(these), float(low), float(high), floor)


class Cell(NamedTuple):
    """The times of one shape, dtype and method that one run took (gap.one_run), the fastest first; the names of the
    fastest and of what ties with it."""

    place: Place
    times: dict[str, Record]
    winners: list[str]


def cells(record: Record, dtype: str) -> list[Cell]:
    """The cells of a dtype in which something passed, by width; a shape's cold times come before its graph times."""
    found: dict[Any, list[Record]] = {}
    for time in gap.times(record, dtype):
        found.setdefault((time["shape"][-1], cell(time)), []).append(time)
    made = []
    for (_, place), there in sorted(found.items()):
        times = sorted(gap.one_run(there), key=lambda time: time["seconds"]["median"])
        winners = [time["implementation"] for time in times if judge(times[0], time).word == "tie"]
        made.append(Cell(place, {time["implementation"]: time for time in times}, winners))
    return made


def changes(new: Record, old: Record) -> Iterator[tuple[str, Place, Verdict | None]]:
    """Of each implementation (and of "copy") and each cell that both records tried: the verdict on the new time, None
    where it passed in the old record and does no longer. Raises RecordError for records of two GPUs."""
    gpus = [measured_on(record).get("gpu") for record in (new, old)]
    if gpus[0] != gpus[1]:
        raise RecordError(f"--against: found a record of {gpus[1]}; wanted one of {gpus[0]}, the other's GPU")
    now = _all_times(new)
    off: dict[Place, float] = {}
    tried = {(entry["implementation"], cell(entry)) for entry in new["measurements"] if entry["status"] != "skipped"}
    for (name, place), was in _all_times(old).items():
        if (name, place) in now:
            found = judge(now[name, place], was, max(BETWEEN, off.get(place, 0)), (0, 1))
            off.setdefault(place, abs(found.ratio - 1))  # the copy's, which comes first, where there is one
            yield name, place, found
        elif (name, place) in tried:
            yield name, place, None


def regressions(new: Record, old: Record) -> list[tuple[str, Place]]:
    """Where one of ours became slower, or no longer passes."""
    ours = {entry["name"] for entry in new["implementations"] if entry.get("rung")}
    found = [each for each in changes(new, old) if each[0] in ours]
    return [(name, place) for name, place, verdict in found if verdict is None or verdict.word == "slower"]


def agreement(new: Record, old: Record) -> dict[str, int]:
    """How many verdicts between two implementations at a cell are "the same" in both records, "a tie in one", or
    "opposite"."""
    words: list[dict[Any, str]] = [
        {(each.place, a, b): judge(each.times[a], each.times[b]).word for dtype in gap.dtypes(record)
         for each in cells(record, dtype) for a, b in combinations(sorted(each.times), 2)}
        for record in (new, old)
    ]  # fmt: skip
    both = [{words[0][key], words[1][key]} for key in words[0].keys() & words[1].keys()]
    same, tie = sum(len(pair) == 1 for pair in both), sum(len(pair) == 2 and "tie" in pair for pair in both)
    return {"the same": same, "a tie in one": tie, "opposite": len(both) - same - tie}


def _all_times(record: Record) -> dict[tuple[str, Place], Record]:
    """Every time that may be shown, by name and cell; the copies come first, as implementations of that name."""
    copies = [{**copy, "implementation": "copy"} for copy in stamped(record)["copies"] if "seconds" in copy]
    times = [time for dtype in gap.dtypes(record) for time in gap.times(record, dtype)]
    return {(time["implementation"], cell(time)): time for time in (*copies, *times)}


@lru_cache(maxsize=2**12)
def _medians(samples: tuple[float, ...], seed: int) -> np.ndarray:
    """RESAMPLES medians. The same seed and number of samples draw the same rounds."""
    drawn = np.random.default_rng(seed).integers(len(samples), size=(RESAMPLES, len(samples)))
    return np.median(np.array(samples)[drawn], axis=1)
