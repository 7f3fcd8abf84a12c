"""Time one cell: every implementation of an operation at one shape and dtype, and a copy of as many bytes.

Cold: one launch between two events, with the L2 cache flushed before it, outside the span. The flush reads: what a
    writing flush leaves dirty would be written back inside the span. What an empty span measures is recorded beside
    it, and not subtracted.
Graph: for short launches. Many launches captured in one CUDA graph and replayed, so that the cost of launching is gone;
    each launch has the next of many sets of buffers, which together exceed the L2 cache.

Both are interleaved: each round times every implementation once, in a new random order, so that a drift of the clocks
meets all alike. Rounds end when every median is known to `max_noise`, or when `limit_s` is over. Between rounds the GPU
is asked for its clocks, temperature, power and whether it throttles; samples taken while it did are marked. No sample
is dropped.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from compare import machine
from compare.registry import Implementation, Operation, Shape

Launch = Callable[[], None]
Entry = dict[str, Any]
Recheck = Callable[[Implementation, Operation, tuple[Tensor, ...], Tensor, Launch], str | None]  # correctness.recheck

ALIGNMENT = 256  # bytes; what cudaMalloc gives, so that a slice is vectorised as a tensor of its own would be
MAX_SETS, MIN_LAUNCHES = 4096, 32  # of buffers; in one graph, which share what a replay costs
# Samples: before the noise target may end the rounds; before limit_s may; the most.
MIN_SAMPLES, LIMITED_SAMPLES, MAX_SAMPLES = 10, 3, 500
WARM_UP = 0.1  # of limit_s, before the samples
WATCH = 0.05  # seconds between two looks at the GPU's state
SCRATCH = 3  # tensors of the output's size that an implementation may allocate for itself (eager does)
SLEEP, MAX_SLEEP = 1 << 18, 1 << 27  # GPU cycles: about 0.1 ms and 0.07 s

FORBIDDEN = (  # the start of a variable's name: interpreter, debugging aid, sanitizer, profiler
    "TRITON_INTERPRET", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NV_SANITIZER_INJECTION",
    "NV_NSIGHT_INJECTION", "NV_COMPUTE_PROFILER", "NV_TPS_LAUNCH", "NSYS_PROFILING_SESSION_ID",
)  # fmt: skip


def refuse_reason(environment: Mapping[str, str] = os.environ) -> str | None:
    """Why nothing may be timed here, naming the variable: an interpreter, a debugging aid, a sanitizer or profiler."""
    for name, value in environment.items():
        if name.startswith(FORBIDDEN) and value not in ("", "0"):
            return f"{name}={value} is set: what runs under it says nothing about speed; unset it to measure"
    return None


class Clock(Protocol):
    """What measures. Spans are in seconds; nothing is above a peak that is not known (None)."""

    device: torch.device
    l2_bytes: int
    peak_bytes_per_s: float | None
    empty_span_s: float  # what a span with nothing in it measures

    def free_bytes(self) -> int:
        """Device memory that could be allocated."""

    def synchronize(self) -> None:
        """Waits for the device, all its streams."""

    def span(self, launch: Launch, flush: bool = True) -> float:
        """The span of one launch, L2 flushed before it or not."""

    def capture(self, launches: Sequence[Launch]) -> Launch:
        """All launches as one, by a CUDA graph. Raises what ended the capture."""

    def state(self) -> Entry:
        """The GPU's state now, as machine.clock_sample gives it."""


class CudaClock:
    """The clock of one GPU, on its current stream. `peak_bytes_per_s` is machine.py's. Holds 2 x L2 of memory."""

    def __init__(self, device: torch.device | str | int = "cuda", peak_bytes_per_s: float | None = None) -> None:
        self.device, self.peak_bytes_per_s = torch.empty(0, device=device).device, peak_bytes_per_s
        self.l2_bytes, self._sleep = torch.cuda.get_device_properties(self.device).L2_cache_size, SLEEP
        with torch.cuda.device(self.device):
            # One maximum for each 32 KiB read: what the flush writes is next to nothing.
            self._lines = torch.zeros(-(-2 * self.l2_bytes // 2**15), 2**13, device=self.device)
            self._maxima = torch.zeros(len(self._lines), device=self.device)
            self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._side = torch.cuda.Stream(self.device)
            self.empty_span_s = statistics.median(self.span(lambda: None) for _ in range(20))

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def state(self) -> Entry:
        return machine.clock_sample(self.device)

    def flush(self) -> None:
        torch.amax(self._lines, dim=1, out=self._maxima)

    def span(self, launch: Launch, flush: bool = True) -> float:
        """The GPU sleeps while the host enqueues everything. If it was there before the host had done so, host time is
        inside the span: it is taken again after a longer sleep."""
        while True:
            torch.cuda._sleep(self._sleep)
            if flush:
                self.flush()
            self._start.record()
            launch()
            self._end.record()
            late = self._start.query()
            self.synchronize()
            if not late:
                self._sleep = max(SLEEP, int(0.98 * self._sleep))  # one hiccup of the host is not paid for ever
                return self._start.elapsed_time(self._end) / 1000
            if self._sleep >= MAX_SLEEP:
                self._sleep = SLEEP
                raise RuntimeError("the launch waits for the GPU, or the host is too slow: its device time is unknown")
            self._sleep *= 2

    def capture(self, launches: Sequence[Launch]) -> Launch:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            # The outer context restores the current stream where ending a broken capture raises and torch does not.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool, self._side):
                for launch in launches:
                    launch()
        except Exception as error:
            # torch leaves the memory pool of a broken capture open, at which its next empty_cache() would fail.
            with suppress(RuntimeError):  # the pool of a capture that ended well is closed
                torch._C._cuda_endAllocateToPool(self.device.index, pool)
            raise (error.__context__ or error) from None  # what broke it; the end of the capture only says that it was
        return graph.replay


class CellResult(NamedTuple):
    """Entries for record["measurements"] and record["copies"].

    Beyond the fields that every entry has: "stopped" ("noise" or "limit": what ended the rounds), "throttled_samples"
    (their indices), and "note" if the effective bandwidth is above the peak by no more than caching explains. Cold:
    "empty_span_seconds" (not subtracted) and "first_call_seconds" (prepare and first launch, with what is compiled
    then). Graph: "launches" in a replay, and the number of "sets" of buffers that they rotate through. A copy has no
    "implementation", and holds the cell's "gpu_state": {"before", "during" ({what: [lowest, highest]}), "after"}.
    """

    measurements: list[Entry]
    copies: list[Entry]


def measure_cell(
    operation: Operation, shape: Shape, dtype: torch.dtype, implementations: Sequence[Implementation], clock: Clock,
    recheck: Recheck, *, seed: int, max_noise: float = 0.005, limit_s: float = 1.0, graph_below_s: float = 50e-6,
) -> CellResult:  # fmt: skip
    """Cold times, and graph times if the fastest cold median is below `graph_below_s`.

    `max_noise`: see noise(). `limit_s`: host seconds of sampling, for each of the two methods. One implementation's
    failure never stops the others: status "refused" (prepare raised ValueError, TypeError or NotImplementedError),
    "skipped" (no memory; not to be captured), "failed" (`recheck` found the output wrong after timing) or "error".

    Raises EnvironmentError where refuse_reason() has one, ValueError for an empty shape.
    """
    if reason := refuse_reason():
        raise OSError(reason)
    if not shape or min(shape) < 1:
        raise ValueError(f"shape: got {list(shape)}, wanted at least one size, each at least 1")
    result, shape, rng = CellResult([], []), tuple(shape), random.Random(seed)
    for method in ("cold", "graph"):
        head: Entry = {"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "method": method}
        head |= {"status": "passed", "error": None}
        entries = [head, *({"implementation": i.name, **head} for i in implementations)]  # the copy's and ours
        with torch.cuda.device_of(torch.empty(0, device=clock.device)):
            timed = _attempt(entries, _allocate, operation, shape, dtype, implementations, clock, seed, entries) or []
            timed = [one for one in timed if _attempt([one.entry], _start, one, clock)]
            timed, *_ = _sample(timed, rng, -1.0, WARM_UP * limit_s, dict)  # no noise is so low: until the limit
            timed, stopped, states = _sample(timed, rng, max_noise, limit_s, clock.state)
            head["gpu_state"], throttled = _watched(states)
            for one in timed:
                one.entry |= {"stopped": stopped, "throttled_samples": throttled}
                _attempt([one.entry], _finish, one, operation, clock, recheck, rng)
        result.copies.append(entries[0])
        result.measurements.extend(entries[1:])
        medians = {entry["implementation"]: entry["seconds"]["median"] for entry in entries[1:] if "seconds" in entry}
        if min(medians.values(), default=math.inf) >= graph_below_s:
            break
        implementations = [i for i in implementations if i.name in medians]
    return result


def noise(samples_ns: Sequence[int]) -> float:
    """Half the width of the median's 95 % interval, relative to the median. It rests on the samples' order alone, no
    distribution is assumed. Fewer than six samples have no such interval: inf."""
    n, ordered = len(samples_ns), sorted(samples_ns)
    if n < 6:
        return math.inf
    low = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    return (ordered[n - 1 - low] - ordered[low]) / 2 / statistics.median(ordered)


def summary(samples_ns: Sequence[int]) -> Entry:
    """An entry's "seconds": median and quartiles of one sample or more, and their number."""
    q1, median, q3 = (float(ns) / 1e9 for ns in np.percentile(samples_ns, (25, 50, 75)))
    return {"median": median, "q1": q1, "q3": q3, "n": len(samples_ns)}


def bytes_needed(operation: Operation, shape: Shape, itemsize: int, sets: int, outputs: int, users: int) -> int:
    """Device memory for `sets` of inputs, `outputs` and a copy's buffers, and scratch for `users` at a time."""
    tensor, copied = math.prod(shape) * itemsize + ALIGNMENT, operation.least_bytes(shape, itemsize) + 2 * ALIGNMENT
    return sets * ((operation.n_inputs + outputs) * tensor + copied) + users * SCRATCH * tensor


def slices(count: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """`count` contiguous, uninitialised tensors in one allocation, each aligned to ALIGNMENT bytes."""
    step = -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT // dtype.itemsize
    whole = torch.empty(count, step, dtype=dtype, device=device)
    return [whole[number, : math.prod(shape)].view(shape) for number in range(count)]


def _copy(source: Tensor, out: Tensor) -> None:
    out.copy_(source)


COPY = Implementation("copy", "torch", None, lambda inputs, out: partial(_copy, inputs[0], out))


class _Stop(Exception):
    """(status, text): why there is no time."""


@dataclass
class _Timed:
    """An implementation or the copy, its buffers and launches, one of each a set, and what is timed: one or a graph."""

    implementation: Implementation
    entry: Entry
    inputs: list[tuple[Tensor, ...]]
    outs: list[Tensor]
    launches: list[Launch] = field(default_factory=list)
    span: Callable[[], float] = lambda: math.nan
    samples_ns: list[int] = field(default_factory=list)


def _attempt(entries: list[Entry], step: Callable[..., Any], *arguments: Any) -> Any:
    """What the step returns (True, if nothing), or None if it raised: then that is the entries' result. The exception
    itself, which holds tensors, is not kept."""
    try:
        return step(*arguments) or True
    except Exception as error:
        status, text = error.args if isinstance(error, _Stop) else ("error", f"{type(error).__name__}: {error}")
        status = "skipped" if isinstance(error, torch.OutOfMemoryError) else status
        for entry in entries:
            entry |= {"status": status, "error": text}


def _allocate(operation: Operation, shape: Shape, dtype: torch.dtype, implementations: Sequence[Implementation],
              clock: Clock, seed: int, entries: list[Entry]) -> list[_Timed]:  # fmt: skip
    cold, ours, itemsize = entries[0]["method"] == "cold", len(implementations), dtype.itemsize
    least = operation.least_bytes(shape, itemsize)
    sets = 1 if cold else min(MAX_SETS, max(2, 2 * clock.l2_bytes // least + 1))
    # Cold: each has its own output, looked at as the last sample left it. Graphs share outputs, but keep their scratch.
    outputs, users = (ours, 1) if cold else (1, ours)
    needed, free = bytes_needed(operation, shape, itemsize, sets, outputs, users), clock.free_bytes()
    if needed > free:
        raise _Stop("skipped", f"out of memory: needs {needed:,} bytes, {free:,} are free")
    values = torch.Generator(clock.device).manual_seed(seed)  # not the default generator, which a graph may hold
    make = partial(slices, sets, dtype=dtype, device=clock.device)
    half = (-(-least // (2 * itemsize)),)
    sources = [[x.normal_(generator=values) for x in make(of)] for of in (half, *[shape] * operation.n_inputs)]
    inputs = [list(zip(sources[0], strict=True)), *[list(zip(*sources[1:], strict=True))] * ours]
    outs = [make(half), *[make(shape) for _ in range(outputs)] * users]
    return [_Timed(*of) for of in zip([COPY, *implementations], entries, inputs, outs, strict=True)]


def _start(one: _Timed, clock: Clock) -> None:
    """Prepares every set, launches the first, and makes the span."""
    begun = perf_counter()
    try:
        one.launches = [one.implementation.prepare(*of) for of in zip(one.inputs, one.outs, strict=True)]
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _Stop("refused", str(error)) from None
    one.launches[0]()
    clock.synchronize()
    if one.entry["method"] == "cold":
        one.entry |= {"first_call_seconds": perf_counter() - begun, "empty_span_seconds": clock.empty_span_s}
        one.span = partial(clock.span, one.launches[0])
        return
    launches = one.launches * -(-MIN_LAUNCHES // len(one.launches))
    one.entry |= {"launches": len(launches), "sets": len(one.launches)}
    try:
        one.span = partial(clock.span, clock.capture(launches), flush=False)
    except Exception as error:
        raise _Stop("skipped", f"not captured in a CUDA graph: {type(error).__name__}: {error}") from None


def _sample(timed: list[_Timed], rng: random.Random, max_noise: float, limit_s: float,
            state: Callable[[], Entry]) -> tuple[list[_Timed], str, list[tuple[int, Entry]]]:  # fmt: skip
    """Takes new samples; returns those that gave all of theirs, what ended the rounds, and (rounds taken, GPU's state)
    as it was before, now and then between them, and after."""
    states, stopped = [(0, state())], "limit"
    begun = looked = perf_counter()
    for one in timed:
        one.samples_ns = []
    for taken in range(1, MAX_SAMPLES + 1):
        rng.shuffle(timed)
        timed = [one for one in timed if _attempt([one.entry], _take, one)]
        if taken >= MIN_SAMPLES and all(noise(one.samples_ns) <= max_noise for one in timed):
            stopped = "noise"
            break
        if taken >= LIMITED_SAMPLES and perf_counter() - begun > limit_s:
            break
        if perf_counter() - looked > WATCH:
            states.append((taken, state()))
            looked = perf_counter()
    return timed, stopped, [*states, (taken, state())]


def _watched(states: list[tuple[int, Entry]]) -> tuple[Entry, list[int]]:
    """A cell's "gpu_state", and the rounds next to which the GPU was seen to throttle."""
    rounds = [range(a, b) for (a, x), (b, y) in pairwise(states) if x.get("throttled") or y.get("throttled")]
    seen = {what: [state[what] for _, state in states if state[what] is not None] for what in states[0][1]}
    during = {what: [min(values), max(values)] for what, values in seen.items() if values and what != "throttled"}
    during["throttled"] = sorted({word for words in seen.get("throttled", ()) for word in words})
    return {"before": states[0][1], "during": during, "after": states[-1][1]}, [at for some in rounds for at in some]


def _take(one: _Timed) -> None:
    seconds = one.span() / one.entry.get("launches", 1)
    if not math.isfinite(seconds) or round(seconds * 1e9) <= 0:
        raise _Stop("error", f"a span of {seconds} s was measured: the timing is wrong")
    one.samples_ns.append(round(seconds * 1e9))


def _finish(one: _Timed, operation: Operation, clock: Clock, recheck: Recheck, rng: random.Random) -> None:
    """Judges the samples, then has the output checked again; only what stands both gets its seconds."""
    cold, at, peak = one.entry["method"] == "cold", rng.randrange(len(one.outs)), clock.peak_bytes_per_s or math.inf
    out, least = one.outs[at], operation.least_bytes(tuple(one.entry["shape"]), one.outs[at].itemsize)
    seconds = summary(one.samples_ns)
    # What memory need not have moved inside the span. Cold: writes that L2 still holds. Graph: its share of the sets.
    cached = min(out.nbytes, clock.l2_bytes) if cold else min(least, clock.l2_bytes // len(one.outs))
    speed, most = least / seconds["median"], peak * least / (least - cached) if cached < least else math.inf
    if speed > most:
        found = f"{speed:.3g} bytes/s, at most {most:.3g} at a peak of {peak:.3g}"
        raise _Stop("error", f"above the card's peak: {found}; the timing is wrong")
    if one.implementation is not COPY:
        if not cold:
            out.fill_(math.nan)
            one.span()
        wrong = recheck(one.implementation, operation, one.inputs[at], out, one.launches[at])
        if wrong is not None:
            raise _Stop("failed", wrong)
    if speed > peak:
        one.entry["note"] = f"above the card's peak: {cached:,} of {least:,} bytes a launch may have stayed in L2"
    one.entry |= {"seconds": seconds, "samples_ns": one.samples_ns, "effective_bytes_per_s": speed}
