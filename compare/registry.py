"""The operations: what each computes, its rungs, its baselines and the shapes it is checked and measured on.

To add an operation, add an entry to OPERATIONS (README, "Add an operation"). Everything else follows from it: the
launchers are found by name (`<operation>_<rung>`), and their arguments by the names of their parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "float16", "bfloat16")
LANGUAGES = ("cuda", "triton")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rung:
    """One idea further than the rung before; reads and writes are passes issued over global memory, an element."""

    name: str
    idea: str
    reads: int
    writes: int
    launches: int = 1
    max_cols: int | None = None  # rows longer than this are refused, naming `beyond`
    beyond: str | None = None
    roundings: int = 1  # how often a value is rounded to the output's dtype on its way


@dataclass(frozen=True)
class Operation:
    """`n_inputs` tensors of one shape and dtype in, one out. `kind` is "rows" (n_rows × n_cols, reduced along the last
    dimension) or "elements" (any shape, element by element)."""

    name: str
    kind: str
    n_inputs: int
    rungs: tuple[Rung, ...]
    reference: Callable[..., Tensor]  # float64 in, float64 out; must not share code with an implementation
    composition: Callable[..., Tensor]  # (*inputs, out) of PyTorch operations; what torch.compile is given
    composition_kernels: int  # that eager PyTorch launches for it; 1 = it is the one-call operation, not timed twice
    composition_passes: int  # over global memory, an element, that these issue
    one_call: str | None  # PyTorch's own operation, as "torch.softmax", where there is one
    one_call_into: Callable[..., Tensor] | None  # (*inputs, out)
    default_shapes: tuple[Shape, ...]
    full_shapes: tuple[Shape, ...]
    check_shapes: tuple[Shape, ...]  # small: the CPU model and the interpreter run them too
    gpu_check_shapes: tuple[Shape, ...] = ()  # on top of those, on a GPU
    rows_sum_to: float | None = None  # an invariant of the output, where there is one

    def rung(self, name: str) -> Rung:
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise ValueError(f"rung: got {name!r}, wanted one of {', '.join(r.name for r in self.rungs)}")

    def stem(self, rung: str) -> str:
        """The name of a rung's files and of their host function, in both languages."""
        return f"{self.name}_{rung}"

    def least_bytes(self, shape: Shape, itemsize: int) -> int:
        """The bytes that any implementation must move: each input read once, the output written once."""
        return (self.n_inputs + 1) * prod(shape) * itemsize


@dataclass(frozen=True)
class Implementation:
    """Something that computes an operation. `prepare(inputs, out)` validates, allocates scratch and returns `launch`;
    `launch()` fills `out` on the current stream. `prepare` raises ValueError, TypeError or NotImplementedError where
    the implementation refuses the input, and RuntimeError where it is not to be had here."""

    name: str  # "cuda/fused", "eager", "torch.softmax", "torch.compile"
    language: str  # "cuda", "triton", "torch" or "peer"
    rung: str | None
    prepare: Callable[[tuple[Tensor, ...], Tensor], Callable[[], None]]
    roundings: int = 1


def _softmax_reference(x: Tensor) -> Tensor:
    import torch

    return torch.softmax(x, dim=-1)


def _softmax_composition(x: Tensor, out: Tensor) -> Tensor:
    import torch

    row_max = x.max(dim=-1, keepdim=True).values
    shifted = x - row_max
    exponentials = shifted.exp()
    row_sum = exponentials.sum(dim=-1, keepdim=True)
    return torch.div(exponentials, row_sum, out=out)


def _softmax_one_call(x: Tensor, out: Tensor) -> Tensor:
    import torch

    return torch.softmax(x, dim=-1, out=out)


def _add_reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def _add_one_call(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    import torch

    return torch.add(x, y, out=out)


def _add_relu_reference(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).clamp(min=0)


def _add_relu_composition(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    import torch

    return torch.clamp(x + y, min=0, out=out)  # torch.relu has no out=


ELEMENTS = 2**27  # of a large cell: 0.5 GB of float32 read and as much written, far above any L2
WIDTHS = (32, 64, 128, 256, 512, 781, 1024, 2048, 4096, 8192, 12288, 16384, 32768, 65536, 131072, 262144, 1048576)


def _rows(n_cols: int) -> Shape:
    return (ELEMENTS // n_cols, n_cols)


# To be checked on a GPU: every regime of the tuned rung, with few rows and with many.
MORE_ROWS = (
    (70000, 4), (1823, 781), (600, 8192), (257, 12288), (300, 16384), (64, 65537), (2, 65536), (40, 131072),
    (5, 262144), (3, 400000), (3, 1048577), (7, 1048576),
)  # fmt: skip

# Beside WIDTHS: odd widths, a vocabulary, and few rows, from one long one to the example of Triton's tutorial.
OTHER_ROWS = (
    (4096, 12672), (2048, 50257), (4096, 1823), (1823, 781), (128, 4096),
    (32, 128256), (32, 262144), (8, 131072), (1, 131072), (1, 1048576), (1, 16777216),
)  # fmt: skip


SOFTMAX = Operation(
    name="softmax",
    kind="rows",
    n_inputs=1,
    rungs=(
        Rung("naive", "three kernels: row maximum; exp and row sum; divide", 3, 2, launches=3, roundings=2),
        Rung("fused", "one kernel, the row stays on chip", 1, 1, max_cols=12288, beyond="online"),
        Rung("online", "one kernel, tiles with a running maximum and sum", 2, 1),
        Rung("tuned", "a regime for every length of row: lanes, clusters, slices", 1, 1),
    ),
    reference=_softmax_reference,
    composition=_softmax_composition,
    composition_kernels=5,
    composition_passes=8,  # max 1R; subtract, exp and divide 1R + 1W each; sum 1R
    one_call="torch.softmax",
    one_call_into=_softmax_one_call,
    default_shapes=tuple(_rows(n) for n in (256, 1024, 4096, 12288, 65536)),
    full_shapes=(*(_rows(n) for n in WIDTHS), *OTHER_ROWS),
    check_shapes=((1, 1), (5, 1), (4, 33), (3, 256), (7, 781), (2, 1501), (3, 4097), (2, 12288), (1, 70001)),
    gpu_check_shapes=MORE_ROWS,
    rows_sum_to=1.0,
)

SMALL_SIZES = tuple((2**p,) for p in range(12, 23, 2))  # 4 Ki to 4 Mi elements: where launches cost more than bytes
LARGE_SIZES = tuple((2**p,) for p in (24, 26, 28))
ADD_CHECKS: tuple[Shape, ...] = ((1,), (7,), (1023,), (1024,), (1025,), (98432,), (98433,))

VECTOR_ADD = Operation(
    name="vector_add",
    kind="elements",
    n_inputs=2,
    rungs=(
        Rung("naive", "one element a thread, one block of elements a program", 2, 1),
        Rung("tuned", "16 bytes a thread, any length and alignment", 2, 1),
    ),
    reference=_add_reference,
    composition=_add_one_call,
    composition_kernels=1,
    composition_passes=3,
    one_call="torch.add",
    one_call_into=_add_one_call,
    default_shapes=(SMALL_SIZES[0], SMALL_SIZES[4], LARGE_SIZES[1]),
    full_shapes=SMALL_SIZES + LARGE_SIZES,
    check_shapes=ADD_CHECKS,
    gpu_check_shapes=((2**24 + 3,),),
)

ADD_RELU = Operation(
    name="add_relu",
    kind="elements",
    n_inputs=2,
    rungs=(
        Rung("naive", "two kernels, the sum goes through global memory", 3, 2, launches=2),
        Rung("fused", "one kernel, the sum stays in a register", 2, 1),
    ),
    reference=_add_relu_reference,
    composition=_add_relu_composition,
    composition_kernels=2,
    composition_passes=5,
    one_call=None,
    one_call_into=None,
    default_shapes=(SMALL_SIZES[0], SMALL_SIZES[4], LARGE_SIZES[1]),
    full_shapes=SMALL_SIZES + LARGE_SIZES,
    check_shapes=ADD_CHECKS,
    gpu_check_shapes=((2**24 + 3,),),
)

OPERATIONS: dict[str, Operation] = {o.name: o for o in (SOFTMAX, VECTOR_ADD, ADD_RELU)}
