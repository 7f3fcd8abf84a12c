"""One suite for both kinds of machine: with a usable GPU the real kernels run, without one their CPU executors."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compare import machine, sources

torch.set_num_threads(1)  # pytest-xdist shares the cores out; torch's threads would spin against each other
if not machine.gpu_usable():
    sources.use_interpreter()  # before anything imports triton


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not machine.gpu_usable():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a usable NVIDIA GPU"))


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if machine.gpu_usable() else "cpu"


@pytest.fixture(autouse=True)
def gpu_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that measures time has the GPU for itself, whatever the other workers of pytest-xdist run."""
    if not machine.gpu_usable():
        yield
        return
    with open(Path(tempfile.gettempdir()) / "ninja-gap-tests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if "timed" in request.keywords else fcntl.LOCK_SH)
        yield
