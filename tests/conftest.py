"""One suite for both kinds of machine: with a usable GPU the real kernels run, without one their CPU executors."""

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
