"""What the record says of the machine: with fakes, and, marked, of the GPU that is here."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compare import machine

FIELDS = {
    "gpu", "cpu", "driver", "cuda", "nvcc", "torch", "triton", "python", "compute_capability", "sm_count", "l2_bytes",
    "memory_bytes", "peak_bytes_per_s", "peak_source", "clocks", "throttled", "other_processes", "commit",
    "dirty", "date",
}  # fmt: skip
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=62914560,
    total_memory=150_000_000_000, uuid="11111111-2222-3333-4444-555555555555",
)  # fmt: skip


class NVMLError(Exception):
    pass


class FakeNvml:
    """NVML of an H200; what is in `silent` is not supported."""

    NVMLError = NVMLError

    def __init__(self, *silent: str, reasons: int = 0x4 | 0x1) -> None:
        self.silent, self.reasons = silent, reasons
        self.asked: list[str] = []
        self.running: dict[int, int | None] = {os.getpid(): 600}  # pid: bytes

    def nvmlInit(self) -> None:
        self._answer("nvmlInit", None)

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.silent:
            raise NVMLError("Not Supported")
        return value

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._answer("nvmlSystemGetDriverVersion", "580.159.04")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return self._answer("nvmlDeviceGetClockInfo", {1: 345, 2: 3201}[kind])

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return self._answer("nvmlDeviceGetMaxClockInfo", {1: 1980, 2: 3201}[kind])

    def nvmlDeviceGetMemoryBusWidth(self, handle: str) -> int:
        return self._answer("nvmlDeviceGetMemoryBusWidth", 6144)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self._answer("nvmlDeviceGetTemperature", 31)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._answer("nvmlDeviceGetPowerUsage", 76_500)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        running = [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in self.running.items()]
        return self._answer("nvmlDeviceGetComputeRunningProcesses", running)

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return self._answer("nvmlSystemGetProcessName", f"program {pid}")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self._answer("nvmlDeviceGetCurrentClocksThrottleReasons", self.reasons)


def with_gpu(monkeypatch: pytest.MonkeyPatch, nvml: Any, properties: Any = H200) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(machine, "gpu_usable", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return machine.describe()


def test_without_a_gpu_its_fields_are_none_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_usable", lambda: False)
    found = machine.describe()
    assert found.keys() == FIELDS
    assert {found[name] for name in machine.OF_A_GPU.split()} == {None}
    assert found["cpu"] and found["torch"] == torch.__version__ and found["python"].count(".") == 2
    json.dumps(found)


def test_the_gpu_is_described_with_the_peak_of_its_own_clock_and_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_gpu(monkeypatch, FakeNvml())
    assert found.keys() == FIELDS
    json.dumps(found)
    expected = {
        "gpu": "NVIDIA H200", "driver": "580.159.04", "compute_capability": "9.0", "sm_count": 132,
        "l2_bytes": 62914560, "memory_bytes": 150_000_000_000, "throttled": ["power cap"],
        "clocks": {"sm_mhz": 345, "memory_mhz": 3201, "temperature_c": 31, "power_w": 76.5, "max_sm_mhz": 1980,
                   "max_memory_mhz": 3201},
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["peak_bytes_per_s"] == pytest.approx(4.917e12, rel=1e-3)
    assert found["peak_source"] == "NVML: 3201 MHz x 2 x 6144 bits"


def test_nvml_is_asked_for_the_device_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    with_gpu(monkeypatch, nvml)
    assert set(nvml.asked) == {f"GPU-{H200.uuid}"}


@pytest.mark.parametrize("nvml", [None, FakeNvml("nvmlInit")], ids=["no package", "no library"])
def test_without_nvml_clocks_and_driver_are_none_and_the_rest_is_told(
    nvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = with_gpu(monkeypatch, nvml)
    assert found["gpu"] == "NVIDIA H200" and found["sm_count"] == 132
    assert found["driver"] is found["throttled"] is found["peak_bytes_per_s"] is found["peak_source"] is None
    assert set(found["clocks"].values()) == {None}


@pytest.mark.parametrize("silent", ["nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMaxClockInfo"])
def test_where_nvml_is_silent_torch_knows_clock_and_bus(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(**vars(H200), memory_clock_rate=3_201_000, memory_bus_width=6144)
    found = with_gpu(monkeypatch, FakeNvml(silent), properties)
    assert found["peak_bytes_per_s"] == pytest.approx(4.917e12, rel=1e-3)
    assert found["peak_source"].startswith("torch: ")


def test_what_nvml_does_not_support_alone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_gpu(monkeypatch, FakeNvml("nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksThrottleReasons"))
    assert found["throttled"] is found["clocks"]["power_w"] is None
    assert found["clocks"]["sm_mhz"] == 345


@pytest.mark.parametrize(
    ("running", "silent", "others"),
    [
        ({"own": 600}, [], []),
        ({"own": 600, 77: 2**30}, [], [{"pid": 77, "name": "program 77", "memory_bytes": 2**30}]),
        ({"own": 600, 77: None}, ["nvmlSystemGetProcessName"], [{"pid": 77, "name": None, "memory_bytes": None}]),
        ({77: 600}, [], None),  # a container's view: is that the host's id of this very process?
        ({77: 600, 78: 600}, [], None),
        ({}, [], None),
        ({"own": 600}, ["nvmlDeviceGetComputeRunningProcesses"], None),
    ],
)
def test_other_processes_are_named_only_where_our_own_is_known(
    running: dict[Any, int | None], silent: list[str], others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(*silent)
    nvml.running = {os.getpid() if pid == "own" else pid: memory for pid, memory in running.items()}
    assert with_gpu(monkeypatch, nvml)["other_processes"] == others


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, []),
        (0x1 | 0x2, []),  # idle, and clocks set by a user
        (0x4 | 0x40, ["power cap", "hardware thermal slowdown"]),
        (0x8, ["hardware slowdown"]),
        (0x80 | 0x1, ["power brake"]),
        (0x4000, ["reason 0x4000"]),
    ],
)
def test_throttle_reasons_are_words_without_idle_and_user_clocks(bits: int, words: list[str]) -> None:
    assert machine.throttle_words(bits) == words


@pytest.mark.parametrize(
    ("name", "folder"),
    [("NVIDIA H200", "nvidia-h200"), ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"), ("A/B (x)", "a-b-x")],
)
def test_slug_is_a_folder_name(name: str, folder: str) -> None:
    assert machine.slug(name) == folder


def test_the_date_is_utc_to_the_second() -> None:
    date = datetime.fromisoformat(machine.describe()["date"])
    assert date.utcoffset() == timedelta(0) and date.microsecond == 0
    assert abs(datetime.now(timezone.utc) - date) < timedelta(minutes=1)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_and_dirty_are_those_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    git("init")
    assert machine.describe()["commit"] is None  # nothing is committed yet
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    clean = machine.describe()
    assert (clean["commit"], clean["dirty"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("2")
    assert machine.describe()["dirty"] is True


def test_inside_somebody_elses_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path / "site-packages")
    found = machine.describe()
    assert found["commit"] is found["dirty"] is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = machine.describe()
    assert found["commit"] is found["dirty"] is None


def test_the_nvcc_is_told_with_all_of_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = importlib.import_module("bindings.build")  # bindings.build, the attribute, is its function
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "find_nvcc", lambda: SimpleNamespace(path=str(nvcc)))
    assert machine.describe()["nvcc"] == "13.0.48"

    def none() -> None:
        raise build.NotBuilt("no nvcc")

    monkeypatch.setattr(build, "find_nvcc", none)
    assert machine.describe()["nvcc"] is None


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, compare.machine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=machine.CHECKOUT).returncode == 0


@pytest.mark.gpu
def test_this_gpu_is_described_in_full() -> None:
    found = machine.describe()
    untold = {"nvcc", "commit", "dirty", "other_processes"}
    missing = [name for name in FIELDS - untold if found[name] is None]
    assert not missing and None not in found["clocks"].values(), found
    json.dumps(found)
    if "H200" in found["gpu"]:
        assert found["peak_bytes_per_s"] == pytest.approx(4.85e12, rel=0.02), found["peak_source"]


@pytest.mark.gpu
def test_this_gpus_clocks_are_sampled() -> None:
    sample = machine.clock_sample(torch.device("cuda"))
    assert 100 < sample["sm_mhz"] < 5000 and 5 < sample["temperature_c"] < 110 and sample["power_w"] > 5
