"""The torch-free native modules over cuda/: `load("gpu")` on an NVIDIA GPU, `load("cpu_model")` on the CPU.

A module offers one function a launcher, `softmax_fused(dtype, x, out, n_rows, …, stream)`: addresses, sizes, a dtype's
name and a stream handle, all plain integers. It owns nothing and checks only what CUDA checks; the public face with
all validation is compare.operations.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from functools import cache
from types import ModuleType

from bindings.build import CHECKOUT, EXECUTORS, HERE, BuildFailed, NotBuilt, build_module

__all__ = ["BuildFailed", "NotBuilt", "load"]


@cache
def load(executor: str) -> ModuleType:
    """The native module of `executor` ("gpu" or "cpu_model"), built first if a source has changed since.

    An installed package brings its modules; what it does not bring is built into the user's cache. Raises NotBuilt
    with the reason and the remedy in one line.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor: got {executor!r}, wanted one of {', '.join(EXECUTORS)}")
    brought = None if CHECKOUT else next(HERE.glob(f"_{executor}.*"), None)
    path = brought or build_module(executor)
    loader = importlib.machinery.ExtensionFileLoader(f"_{executor}", str(path))
    spec = importlib.util.spec_from_file_location(f"_{executor}", path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise NotBuilt(f"{path} cannot be loaded ({error}); delete it and run again") from error
    return module
