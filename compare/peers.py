"""The softmax of other projects, beside ours: `--peers`. Same table, same rules: checked first, refusals shown as such.

Liger-Kernel (Triton, one program a row) and quack (CuTe DSL, clusters) are installed by `pip install -e '.[peers]'`.
Both are called below the function that allocates, so that they write into `out`, as everything here does.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from torch import Tensor

from compare.registry import Implementation, Operation
from compare.sources import Environment


def peers(operation: Operation) -> list[Implementation]:
    """Those of `operation` that are installed. Raises Environment where none is."""
    known = KNOWN.get(operation.name, {})
    found = [Implementation(name, "peer", None, one[1]) for name, one in known.items() if find_spec(one[0])]
    if known and not found:
        raise Environment("--peers: neither liger-kernel nor quack-kernels is installed; pip install -e '.[peers]'")
    return found


def missing(operation: Operation) -> list[str]:
    """Those of `operation` that are not installed."""
    return [name for name, one in KNOWN.get(operation.name, {}).items() if not find_spec(one[0])]


def _liger(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
    liger, (x,) = import_module("liger_kernel.ops.softmax"), inputs
    n_rows, n_cols = x.shape
    try:
        block, warps = liger.calculate_settings(n_cols)
    except RuntimeError as error:  # its own limit on a row
        raise NotImplementedError(f"liger: {error}") from error
    kernel = liger._softmax_single_block_forward_kernel[(n_rows,)]
    return lambda: kernel(out, out.stride(0), x, x.stride(0), n_cols, BLOCK_SIZE=block, num_warps=warps) and None


def _quack(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
    quack, (x,) = import_module("quack.softmax"), inputs
    try:
        quack._softmax_fwd(x, out)  # compiles, and launches: whatever stops it, an assertion or a launch that fails
    except Exception as error:
        raise NotImplementedError(f"quack: {type(error).__name__}: {error}") from error
    return lambda: quack._softmax_fwd(x, out)


# By operation and name: the module to be found, and what prepares a launch.
KNOWN = {"softmax": {"liger": ("liger_kernel", _liger), "quack": ("quack", _quack)}}
