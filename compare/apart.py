"""What is measured in a process of its own, on a GPU, in float32: `--host` and `--ncu`.

Host time is what a call takes to return; the GPU works on while the next is made. One small shape, CALLS calls a
sample (fewer launches than the driver queues, so that none waits for the GPU), the ways to call interleaved:

    raw binding   CUDA: the native launcher, called with addresses and sizes.
    JIT dispatch  Triton: the twin's host function; the JIT looks at every argument to find the compiled kernel.
    public face   compare.softmax(x, out=out) and its like: validation, then one of the above.
    call          PyTorch's, with out=.

First call: from validation to the result, with empty caches: Triton's and torch.compile's compilers run, CUDA loads a
kernel. nvcc build: what the launcher's .cu took to compile, beside the others.

Nsight Compute (ncu) watches launches made as the cold clock makes them: compiled before, L2 flushed by reading right
before, outside the profile. Three of its defaults would measure something else:
- --cache-control all empties the caches before each kernel, so that the second kernel of an implementation could not
  find in L2 what the first left there, as it does in our span: none, and our flush instead.
- --clock-control base locks the clocks below those that our spans ran at: none.
- several passes replay a kernel and restore its memory, through the very caches: a run for each group of COUNTERS, each
  of which takes one pass.
What differs still: ncu times kernels one by one. A span also holds the gaps between them, and what an empty span is.
Triton's do_bench, a second clock to compare with, flushes by writing.
"""

from __future__ import annotations

import csv
import json
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import prod
from sys import maxsize
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

import bindings
from bindings.build import build_seconds
from compare import baselines, gap, operations, sources, timing
from compare.record import Record
from compare.registry import OPERATIONS, Implementation, Operation

CALLS, SAMPLES = 100, 30  # of host times
REPEATS, MARK = 7, "spin_kernel"  # of a launch in a profile, each after the kernel of torch.cuda._sleep
COUNTERS = (("gpu__time_duration.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum"), ("lts__t_bytes.sum",))
NCU = "--csv --print-units base --profile-from-start off --cache-control none --clock-control none --metrics"
TIME_LIMIT = 300  # seconds

Call = Callable[[], Any]


def host(operation: Operation, record: Record) -> list[Record]:
    """record["host"]: an entry for each way to call ("method") each implementation that passed its checks. Raises
    Environment."""
    passed = [one.name for one in baselines.everything(operation) if gap.passed(record, one.name, "float32")]
    longest = min(rung.max_cols or maxsize for rung in operation.rungs)
    smallest = min((shape for shape in operation.full_shapes if shape[-1] <= longest), key=prod)  # that all rungs take
    cells = [(name, smallest) for name in passed]
    with tempfile.TemporaryDirectory() as empty:
        caches = {"TRITON_CACHE_DIR": f"{empty}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor"}
        return json.loads(_run("host", operation, cells, **caches).splitlines()[-1])


def traffic(operation: Operation, record: Record) -> list[Record]:
    """record["traffic"]: of one launch at the narrowest and the widest cell that the record has cold float32 times of,
    an implementation: "kernels" launched; what the GPU counted, by the names of COUNTERS, in ns and bytes; and
    "do_bench_seconds"; medians. Raises Environment."""
    times = sorted(gap.times(record, "float32"), key=lambda time: time["shape"][-1])
    cold = [[time for time in times if (time["implementation"], time["method"]) == (one.name, "cold")]
            for one in baselines.everything(operation)]  # fmt: skip
    entries = [{key: time[key] for key in ("implementation", "shape", "dtype", "method")}
               for mine in cold for time in mine[:1] + mine[1:][-1:]]  # fmt: skip
    cells = [(entry["implementation"], entry["shape"]) for entry in entries]
    if (program := shutil.which("ncu")) is None:
        raise sources.Environment("no ncu (Nsight Compute) on PATH; it comes with the CUDA toolkit")
    for metrics in COUNTERS:
        launches = parse(_run("ncu", operation, cells, program, *NCU.split(), ",".join(metrics), LC_ALL="C"))
        if len(launches) != len(cells) * REPEATS or not all(launches):
            raise sources.Environment(f"ncu: found {len(launches)} launches; wanted {len(cells) * REPEATS}")
        for at, entry in enumerate(entries):
            for key in launches[at * REPEATS]:
                entry[key] = statistics.median(launch[key] for launch in launches[at * REPEATS : (at + 1) * REPEATS])
    for entry, seconds in zip(entries, json.loads(_run("do_bench", operation, cells).splitlines()[-1]), strict=True):
        entry["do_bench_seconds"] = seconds
    return entries


def parse(report: str) -> list[Record]:
    """The launches in a report of `ncu --csv` (a row a kernel and metric, between other output): of the kernels that
    follow a MARK, their number "kernels" and the sum of each metric."""
    launches: dict[str, dict[str, float]] = {}
    ids: dict[str, set[str]] = {}
    for row in csv.DictReader(line for line in report.splitlines() if line.startswith('"')):
        if MARK in row["Kernel Name"]:
            launches[mark := row["ID"]] = defaultdict(float)
        else:
            launches[mark][row["Metric Name"]] += float(row["Metric Value"].replace(",", ""))
            ids.setdefault(mark, set()).add(row["ID"])
    return [{**sums, "kernels": len(ids[mark])} if sums else {} for mark, sums in launches.items()]


def sample(calls: Mapping[str, Call], synchronize: Call) -> dict[str, list[int]]:
    """Nanoseconds a call, SAMPLES of each; no sample waits for the GPU, and none starts before it is idle."""
    samples: dict[str, list[int]] = {way: [] for way in calls}
    for way, call in [*calls.items()] * (SAMPLES + 1):
        synchronize()
        begun = perf_counter_ns()
        for _ in range(CALLS):
            call()
        samples[way].append((perf_counter_ns() - begun) // CALLS)
    return {way: found[1:] for way, found in samples.items()}  # the first warms up


def host_times(operation: Operation, one: Implementation, inputs: tuple[Tensor, ...], out: Tensor, synchronize: Call,
               built: Mapping[str, float]) -> list[Record]:  # fmt: skip
    """The entries of one implementation; `built`: seconds that nvcc took, by stem."""
    begun = perf_counter_ns()
    one.prepare(inputs, out)()
    synchronize()
    samples = {"first call": [perf_counter_ns() - begun]}
    calls: dict[str, Call] = {"call": one.prepare(inputs, out)}
    if one.rung:
        bare = operations.plan(operation, operation.rung(one.rung), one.language, inputs, out, bare=True)
        face = partial(operations.call, operation, *inputs, rung=one.rung, language=one.language, out=out)
        calls = {"JIT dispatch" if one.language == "triton" else "raw binding": bare, "public face": face}
        if one.language == "cuda" and (seconds := built.get(operation.stem(one.rung))):
            samples["nvcc build"] = [round(seconds * 1e9)]
    head = {"implementation": one.name, "shape": list(out.shape), "dtype": "float32"}
    return [{**head, "method": way, "seconds": timing.summary(ns), "samples_ns": ns}
            for way, ns in (samples | sample(calls, synchronize)).items()]  # fmt: skip


def launch_for_ncu(launch: Call, clock: timing.CudaClock) -> None:
    """What ncu is to see, each launch after a MARK."""
    launch()
    for _ in range(REPEATS):
        clock.flush()
        clock.synchronize()
        with torch.cuda.profiler.profile():
            torch.cuda._sleep(1)
            launch()
            clock.synchronize()


def _run(what: str, operation: Operation, cells: Iterable[Any], *before: str, **environment: str) -> str:
    command = [*before, sys.executable, "-m", "compare.apart", json.dumps([what, operation.name, [*cells]])]
    return sources.run_apart(what, command, TIME_LIMIT, **environment)


def main() -> None:
    """One of the processes: prints a line of JSON, an item a cell, or only launches, for ncu."""
    what, name, cells = json.loads(sys.argv[1])
    operation, clock = OPERATIONS[name], timing.CudaClock()
    known = {one.name: one for one in baselines.everything(operation)}
    languages = {known[of].language for of, _ in cells}
    # What is done once a process is no implementation's first call.
    built = build_seconds("gpu") if "cuda" in languages and bindings.load("gpu") else {}
    if "triton" in languages:
        sources.load_triton_driver()
    found: list[Any] = []
    for of, shape in cells:
        *inputs, out = (torch.randn(shape, device="cuda") for _ in range(operation.n_inputs + 1))
        if what == "host":
            found += host_times(operation, known[of], tuple(inputs), out, clock.synchronize, built)
        elif what == "ncu":
            launch_for_ncu(known[of].prepare(tuple(inputs), out), clock)
        else:
            from triton.testing import do_bench

            found.append(do_bench(known[of].prepare(tuple(inputs), out), return_mode="median") / 1e3)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
