"""Synthetic records for the tests of record, gap, tables and figures: invented numbers of a believable shape.

They never leave the tests: what is published comes from records measured on a real GPU.
"""

from __future__ import annotations

import copy
from typing import Any

from compare import record

WIDTHS = (32, 64, 128, 256, 512, 781, 1024, 2048, 4096, 8192, 12288, 16384, 32768, 65536, 131072, 262144, 1048576)
BYTES = 2**29  # of one tensor
PEAK = 4.8e12
COPY = 4.13e12

MACHINE = {
    "gpu": "NVIDIA H200", "cpu": "a CPU", "driver": "580.159.04", "cuda": "13.0", "nvcc": "13.0.48",
    "torch": "2.11.0+cu130", "triton": "3.6.0", "python": "3.12.3", "compute_capability": "9.0", "sm_count": 132,
    "l2_bytes": 62914560, "memory_bytes": 150_000_000_000, "peak_bytes_per_s": PEAK, "clocks": {}, "throttled": [],
    "commit": "0123456789ab", "dirty": False, "date": "2026-12-01T10:00:00+00:00",
}  # fmt: skip
LAPTOP = {**MACHINE, "gpu": None, "driver": None, "cuda": None, "peak_bytes_per_s": None,
          "date": "2026-12-05T09:00:00+00:00"}  # fmt: skip

LINES = {"cuda/naive": (44, 14, 5), "cuda/fused": (31, 12, 4), "triton/naive": (33, 11, 0), "triton/fused": (13, 10, 0)}
PASSES = {"naive": {"reads": 3, "writes": 2}, "fused": {"reads": 1, "writes": 1}}

# time of a copy / time of the implementation, one value a width
SPEED = {
    "cuda/naive": (.08, .13, .22, .31, .36, .37, .38, .39, .395, .40, .40, .40, .40, .40, .385, .37, .33),
    "cuda/fused": (.21, .37, .62, .84, .94, .95, .965, .975, .985, .985, .98),
    "triton/naive": (.06, .10, .18, .27, .34, .35, .37, .385, .39, .395, .39, .39, .38, .36, .31, .25, .15),
    "triton/fused": (.10, .19, .37, .66, .88, .90, .945, .96, .97, .955, .90),
    "eager": (.071, .105, .141, .167, .18, .179, .186, .189, .193, .18, .185, .189, .194, .195, .196, .195, .194),
    "torch.softmax": (.631, .879, 1.008, 1.006, .985, .938, .974, .923, .622, .471, .65, .772, .632, .488, .495, .501,
                      .434),
    "torch.compile": (.997, 1.013, 1., 1.005, 1.011, .928, 1.009, .991, 1.004, 1.023, 1.02, 1.017, .966, .496, .506,
                      .505, .407),
}  # fmt: skip


def implementation(name: str) -> dict[str, Any]:
    """An entry of record["implementations"]."""
    language, _, rung = name.partition("/")
    if not rung:
        return {"name": name, "language": "torch", "rung": None}
    kernel, launch, binding = LINES.get(name, (40, 10, 4))
    counts = {"kernel": kernel, "launch": launch, "binding": binding}
    return {"name": name, "language": language, "rung": rung, "lines": counts,
            "tokens": {role: 9 * count for role, count in counts.items()},
            "passes": PASSES.get(rung, PASSES["fused"]), "fingerprint": f"source of {name}",
            "compiled": []}  # fmt: skip


def seconds(median: float) -> dict[str, Any]:
    """Median with quartiles that lie a little apart."""
    return {"median": median, "q1": median * 0.997, "q3": median * 1.004, "n": 50}


def check(name: str, shape: tuple[int, ...], dtype: str, executor: str, status: str = "passed") -> dict[str, Any]:
    """An entry of record["checks"]."""
    error = None if status in ("passed", "skipped") else f"{name} {status} at {shape}"
    found = {"max_ulps": 1.2, "torch_max_ulps": 1.3} if status == "passed" else {}
    return {"implementation": name, "shape": list(shape), "dtype": dtype, "executor": executor, "status": status,
            "error": error, **found}  # fmt: skip


def measurement(
    name: str, shape: tuple[int, ...], dtype: str, median: float | None, status: str = "passed", method: str = "cold",
    least_bytes: float = 2 * BYTES,
) -> dict[str, Any]:  # fmt: skip
    """An entry of record["measurements"]; `median` in seconds, None where status is not "passed"."""
    entry = {"implementation": name, "shape": list(shape), "dtype": dtype, "method": method, "status": status,
             "error": None if status == "passed" else f"{name} {status} at {shape}"}  # fmt: skip
    if median is None:
        return entry
    samples = [round(median * 1e9)] * 50
    speed = least_bytes / median
    return {**entry, "seconds": seconds(median), "samples_ns": samples, "effective_bytes_per_s": speed}


def copied(shape: tuple[int, ...], dtype: str, median: float, method: str = "cold") -> dict[str, Any]:
    """An entry of record["copies"]."""
    return {"shape": list(shape), "dtype": dtype, "method": method, "seconds": seconds(median),
            "samples_ns": [round(median * 1e9)] * 50}  # fmt: skip


def sweep(
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    widths: tuple[int, ...] = WIDTHS,
    speed: dict[str, tuple[float, ...]] = SPEED,
    operation: str = "softmax",
) -> dict[str, Any]:
    """A record of a GPU: every implementation of `speed` at `widths`; "refused" where it gives no value."""
    made = record.new(operation, f"python -m compare {operation} --full", copy.deepcopy(MACHINE))
    made["implementations"] = [implementation(name) for name in speed]
    for dtype in dtypes:
        size = 4 if dtype == "float32" else 2
        for width in widths:
            shape = (BYTES // size // width, width)
            made["copies"].append(copied(shape, dtype, 2 * BYTES / COPY))
            for name, ratios in speed.items():
                at = WIDTHS.index(width)
                slower = 1 if size == 4 or "/" not in name else 0.97
                median = 2 * BYTES / COPY / (ratios[at] * slower) if at < len(ratios) else None
                status = "refused" if median is None else "passed"
                made["measurements"].append(measurement(name, shape, dtype, median, status))
        for name in speed:
            for shape in ((1823, 781), (4, 33), (2, 1501), (1, 12289)):
                status = "refused" if shape[1] > 12288 and name.endswith("fused") else "passed"
                made["checks"].append(check(name, shape, dtype, "gpu", status))
    return made


def laptop() -> dict[str, Any]:
    """A record of a machine without a GPU: lines and checks, no speed."""
    made = record.new("softmax", "python -m compare softmax", copy.deepcopy(LAPTOP))
    made["implementations"] = [implementation(name) for name in SPEED]
    for name in (name for name in SPEED if "/" in name):
        executor = "cpu_model" if name.startswith("cuda") else "interpreter"
        made["checks"] += [check(name, shape, dtype, executor) for shape in ((1823, 781), (4, 33))
                           for dtype in ("float32", "float16", "bfloat16")]  # fmt: skip
    return made
