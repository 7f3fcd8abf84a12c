"""Describe the machine that a record was made on: GPU, clocks, peak bandwidth, versions, commit.

What this machine cannot tell is None: nothing here fails for the lack of a GPU, of NVML, of nvcc or of git.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
THROTTLING = {  # NVML's bits, but for the two lowest: an idle GPU, and clocks that a user has set, are no throttling
    0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "power brake", 0x100: "display clocks", 0x200: "board limit",
    0x400: "reliability",
}  # fmt: skip
SM, MEMORY, SENSOR = 1, 2, 0  # NVML's kinds of clock, and of temperature
OF_A_GPU = "gpu driver compute_capability sm_count l2_bytes memory_bytes peak_bytes_per_s peak_source clocks throttled"
OF_A_GPU += " other_processes"


@cache
def gpu_usable() -> bool:
    """True if torch can allocate on an NVIDIA GPU. Asked once a process: drivers do not come and go while it runs."""
    try:
        import torch

        return bool(torch.version.cuda) and torch.cuda.is_available() and torch.empty(1, device="cuda").is_cuda
    except Exception:  # torch's own for a broken driver, or for a part of torch that cannot be imported
        return False


def slug(gpu_name: str) -> str:
    """The name of a GPU's folder under results/: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")


def throttle_words(bits: int) -> list[str]:
    """NVML's throttle reasons in words; [] when nothing throttles."""
    unnamed = bits & ~(0x3 | sum(THROTTLING))
    return [word for bit, word in THROTTLING.items() if bits & bit] + ([f"reason {unnamed:#x}"] if unnamed else [])


def peak_bandwidth(max_mhz: int | None, bus_bits: int | None, properties: Any) -> tuple[float | None, str | None]:
    """(bytes/s, where it comes from): memory clock x 2 transfers a clock x bus width / 8, of the device itself.

    `max_mhz` and `bus_bits` are NVML's; where NVML is silent, torch's device properties (kHz) may know them.
    """
    source = "NVML"
    if not max_mhz or not bus_bits:
        source, bus_bits = "torch", getattr(properties, "memory_bus_width", 0)
        max_mhz = getattr(properties, "memory_clock_rate", 0) // 1000
    if not max_mhz or not bus_bits:
        return None, None
    return max_mhz * 1e6 * 2 * bus_bits / 8, f"{source}: {max_mhz} MHz x 2 x {bus_bits} bits"


def clock_sample(device: Any = None) -> dict[str, Any]:
    """The GPU's state now: {"sm_mhz", "memory_mhz", "temperature_c", "power_w", "throttled": [words]}.

    `device` is an index, a torch.device, or None for the current one; it must be usable.
    """
    _, ask = _nvml(device)
    reasons, milliwatts = ask("CurrentClocksThrottleReasons"), ask("PowerUsage")
    return {
        "sm_mhz": ask("ClockInfo", SM), "memory_mhz": ask("ClockInfo", MEMORY),
        "temperature_c": ask("Temperature", SENSOR), "power_w": None if milliwatts is None else milliwatts / 1000,
        "throttled": None if reasons is None else throttle_words(reasons),
    }  # fmt: skip


def other_processes(device: Any = None) -> list[dict[str, Any]] | None:
    """The other compute processes on the GPU: [{"pid", "name", "memory_bytes"}]. `device` as in clock_sample.

    None where that cannot be told: in a container NVML may count in the host's process ids, and only a list that holds
    our own id says for sure who the others are.
    """
    nvml, ask = _nvml(device)
    running = ask("ComputeRunningProcesses") or []
    if os.getpid() not in [process.pid for process in running]:
        return None
    return [{"pid": each.pid, "name": _try(nvml.nvmlSystemGetProcessName, each.pid), "memory_bytes": each.usedGpuMemory}
            for each in running if each.pid != os.getpid()]  # fmt: skip


def describe(device: Any = None) -> dict[str, Any]:
    """record["machine"]: bytes, bytes/s, MHz; "date" is UTC to the second. `device` as in clock_sample.

    The fields of the GPU are None where none is usable, and for device "cpu"; "peak_source" says what the peak
    bandwidth was computed from. "dirty": a file differs from the commit, other than records themselves.
    """
    import torch

    is_checkout = (CHECKOUT / ".git").exists()  # an installed copy may lie inside somebody else's checkout
    git = ("git", "-C", str(CHECKOUT))
    commit = _run(*git, "rev-parse", "HEAD") if is_checkout else None
    changes = _run(*git, "status", "--porcelain", "--", ".", ":!results") if commit else None
    return {
        **(_gpu(device) if gpu_usable() and device != "cpu" else dict.fromkeys(OF_A_GPU.split())),
        "cpu": _try(_cpu) or platform.processor() or platform.machine(),
        "cuda": torch.version.cuda, "nvcc": _try(_nvcc), "torch": torch.__version__,
        "triton": _try(metadata.version, "triton"), "python": platform.python_version(),
        "commit": commit,
        "dirty": None if changes is None else changes != "",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip


def latency() -> list[dict[str, Any]]:
    """record["latency"]: [{"memory", "cycles", "nanoseconds"}], what one dependent read takes, by bindings/probe on the
    GPU that is current; [] without a GPU or nvcc."""
    from bindings.build import HERE, find_nvcc

    with TemporaryDirectory() as folder:
        program = f"{folder}/latency"
        build = ("-std=c++17", "-O3", "-arch=native", str(HERE / "probe" / "latency.cu"), "-o", program)
        _try(lambda: _run(find_nvcc().path, *build))
        rows = [line.split() for line in (_run(program) or "").splitlines()]
    return [{"memory": name, "cycles": float(cycles), "nanoseconds": float(time)} for name, cycles, time in rows]


def _gpu(device: Any) -> dict[str, Any]:
    import torch

    properties, clocks, (nvml, ask) = torch.cuda.get_device_properties(device), clock_sample(device), _nvml(device)
    throttled = clocks.pop("throttled")
    clocks |= {"max_sm_mhz": ask("MaxClockInfo", SM), "max_memory_mhz": ask("MaxClockInfo", MEMORY)}
    peak, source = peak_bandwidth(clocks["max_memory_mhz"], ask("MemoryBusWidth"), properties)
    return {
        "gpu": properties.name,
        "driver": _try(lambda: nvml.nvmlSystemGetDriverVersion()),
        "compute_capability": f"{properties.major}.{properties.minor}", "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size, "memory_bytes": properties.total_memory,
        "peak_bytes_per_s": peak, "peak_source": source, "clocks": clocks, "throttled": throttled,
        "other_processes": other_processes(device),
    }  # fmt: skip


def _nvml(device: Any) -> tuple[Any, Callable[..., Any]]:
    """The pynvml module or None, and ask(name, *arguments): what nvmlDeviceGet<name> says of torch's `device`."""
    import torch

    def connect() -> tuple[Any, Any]:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)  # NVML's indices ignore CUDA_VISIBLE_DEVICES
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    nvml, handle = _try(connect) or (None, None)
    return nvml, lambda name, *arguments: _try(lambda: getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments))


def _nvcc() -> str:
    from bindings.build import find_nvcc

    return re.findall(r"\bV(\d+\.\d+\.\d+)", _run(find_nvcc().path, "--version"))[0]


def _cpu() -> str:
    return re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0]


def _run(*command: str) -> Any:
    """What a command prints, or None if it fails or is not there."""
    return _try(lambda: subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout.strip())


def _try(ask: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None: whatever the reason, a machine that cannot tell is described without."""
    try:
        return ask(*arguments)
    except Exception:
        return None
