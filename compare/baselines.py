"""PyTorch beside the rungs: the composition run eagerly, PyTorch's one-call operation, and torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from compare import operations, peers
from compare.registry import Implementation, Operation


def everything(operation: Operation, with_peers: bool = False) -> list[Implementation]:
    """All that is compared: ours, PyTorch's and, if asked for, other projects' (peers.py, which may raise)."""
    others = peers.peers(operation) if with_peers else []
    return [*operations.implementations(operation), *baselines(operation), *others]


def baselines(operation: Operation, compiled: bool = True) -> list[Implementation]:
    """eager (where the composition is more than one kernel), the one-call operation, and torch.compile if `compiled`.

    Like ours, each writes into the `out` it is given; what eager allocates between its operations is part of it.
    """
    found = []
    roundings = operation.composition_kernels  # eager rounds after each; the compiler may keep some of its buffers
    if operation.composition_kernels > 1:
        found.append(Implementation("eager", "torch", None, _into(operation.composition), roundings))
    if operation.one_call is not None and operation.one_call_into is not None:
        found.append(Implementation(operation.one_call, "torch", None, _into(operation.one_call_into)))
    if compiled:
        found.append(Implementation("torch.compile", "torch", None, _Compiled(operation.composition), roundings))
    return found


def _into(function: Callable[..., Tensor]) -> Callable[[tuple[Tensor, ...], Tensor], Callable[[], None]]:
    def prepare(inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        def launch() -> None:
            function(*inputs, out=out)

        return launch

    return prepare


class _Compiled:
    """torch.compile of the composition, compiled anew for every shape and dtype.

    Dynamo stops compiling a function after a handful of shapes and would silently run it eagerly: it is reset first.
    """

    def __init__(self, composition: Callable[..., Tensor]) -> None:
        self.composition = composition
        self.key: tuple[object, ...] | None = None
        self.function: Callable[..., Tensor] = composition

    def __call__(self, inputs: tuple[Tensor, ...], out: Tensor) -> Callable[[], None]:
        key = (inputs[0].shape, inputs[0].stride(), inputs[0].dtype)
        if key != self.key:
            torch._dynamo.reset()
            self.function, self.key = torch.compile(self.composition, dynamic=False, fullgraph=True), key
        return _into(self.function)(inputs, out)
