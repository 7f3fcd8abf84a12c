"""Wrong implementations, each with one mistake that has passed somebody's check. Ours must reject them all.

`python -m compare OP --self-test` runs them and prints how many were rejected. They are of no use for anything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from compare.correctness import check, make_inputs, recheck
from compare.registry import Implementation, Operation, Shape

SHAPES: dict[str, tuple[Shape, ...]] = {"rows": ((16, 8192), (2, 393216)), "elements": ((98433,),)}  # by Operation.kind
TIMED_CALLS = 12

Inputs = tuple[Tensor, ...]


def self_test(
    operation: Operation, device: str, dtype: torch.dtype = torch.float32, shapes: tuple[Shape, ...] | None = None
) -> list[tuple[str, bool, str]]:
    """Check every wrong implementation at every shape (default: SHAPES), and again after TIMED_CALLS calls.

    Returns of each (name, rejected at every shape, why at the first shape, or where not). One that only raised an error
    was not rejected: the mistake was not seen.
    """
    verdicts: dict[str, tuple[bool, str]] = {}
    for shape in shapes or SHAPES[operation.kind]:
        for implementation in wrong_implementations(operation, device):
            entry = check(implementation, operation, shape, dtype, device)
            status, why = entry["status"], entry["error"]
            if status == "passed" and (why := _after_timing(implementation, operation, shape, dtype, device)):
                status = "failed"
            if status != "failed":
                verdicts[implementation.name] = (False, f"{status} at {shape}: {why}")
            verdicts.setdefault(implementation.name, (True, why))
    return [(name, *verdict) for name, verdict in verdicts.items()]


def wrong_implementations(operation: Operation, device: str = "cpu") -> list[Implementation]:
    """New ones at each call, since some remember their launches. On a GPU there is one more, the wrong stream."""
    kept: list[Tensor] = []
    calls, more_calls = itertools.count(), itertools.count()

    def right(inputs: Inputs) -> Tensor:
        return operation.reference(*(x.float() for x in inputs))

    def nan_in_one_element(inputs: Inputs, out: Tensor) -> None:
        out.copy_(right(inputs)).view(-1)[out.numel() // 2] = torch.nan

    def written_past_the_end(inputs: Inputs, out: Tensor) -> None:
        out.copy_(right(inputs)).as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

    def stale(inputs: Inputs, out: Tensor) -> None:
        if not kept:
            kept.append(right(inputs))
        out.copy_(kept[0])

    def other_bits_the_second_time(inputs: Inputs, out: Tensor) -> None:
        bits = {2: torch.int16, 4: torch.int32}[out.element_size()]
        out.copy_(right(inputs)).view(-1)[-1:].view(bits).add_(next(more_calls) % 2)

    def no_max_subtraction(inputs: Inputs, out: Tensor) -> None:
        e = inputs[0].float().exp()
        out.copy_(e / e.sum(-1, keepdim=True))

    def last_column_not_in_the_sum(inputs: Inputs, out: Tensor) -> None:
        result = right(inputs)
        out.copy_(result / result[..., :-1].sum(-1, keepdim=True))

    def accumulated_in_16_bits(inputs: Inputs, out: Tensor) -> None:
        x = inputs[0].float()
        e = (x - x.amax(-1, keepdim=True)).exp()
        total = torch.zeros_like(e[..., 0], dtype=torch.bfloat16)
        for part in e.split(max(e.shape[-1] // 2048, 1), dim=-1):
            total += part.sum(-1)
        out.copy_(e / total.float()[..., None])

    def wrong_stream(inputs: Inputs, out: Tensor) -> None:
        with torch.cuda.stream(torch.cuda.default_stream(out.device)):
            out.copy_(right(inputs))

    mistakes: dict[str, Callable[[Inputs, Tensor], object]] = {
        "zeros": lambda inputs, out: out.zero_(),
        "times 1.01": lambda inputs, out: out.copy_(right(inputs) * 1.01),
        "last column dropped": lambda inputs, out: out.copy_(pad(right(tuple(x[..., :-1] for x in inputs)), (0, 1))),
        "rows swapped": lambda inputs, out: out.copy_(right(inputs).roll(1, 0)),
        "first row in every row": lambda inputs, out: out.copy_(right(tuple(x[:1] for x in inputs))),
        "NaN hidden": lambda inputs, out: out.copy_(right(inputs)).masked_fill_(out.isnan(), 0.0),
        "NaN in one element": nan_in_one_element,
        "never written": lambda inputs, out: None,
        "written past the end": written_past_the_end,
        "input overwritten": lambda inputs, out: inputs[-1].copy_(out.copy_(right(inputs))),
        "stale": stale,
        "other bits the second time": other_bits_the_second_time,
        "right ten times, then wrong": lambda inputs, out: out.copy_(right(inputs) * (1 + (next(calls) >= 10) / 100)),
    }
    if operation.rows_sum_to is not None:
        mistakes |= {
            "1/n": lambda inputs, out: out.fill_(1 / out.shape[-1]),
            "no max subtraction": no_max_subtraction,
            "last column not in the sum": last_column_not_in_the_sum,
            "padded with zeros": lambda inputs, out: out.copy_(
                right((pad(inputs[0], (0, out.shape[-1])),))[..., : out.shape[-1]]
            ),
            "accumulated in 16 bits": accumulated_in_16_bits,
        }
    if device != "cpu":
        mistakes["wrong stream"] = wrong_stream
    return [Implementation(name, "torch", None, _prepare(fill)) for name, fill in mistakes.items()]


def _prepare(fill: Callable[[Inputs, Tensor], object]) -> Callable[[Inputs, Tensor], Callable[[], None]]:
    def prepare(inputs: Inputs, out: Tensor) -> Callable[[], None]:
        def launch() -> None:
            fill(inputs, out)

        return launch

    return prepare


def _after_timing(
    implementation: Implementation, operation: Operation, shape: Shape, dtype: torch.dtype, device: str
) -> str | None:
    inputs = tuple(make_inputs(operation, shape, dtype, device, seed=0))
    out = torch.empty_like(inputs[0])
    launch = implementation.prepare(inputs, out)
    for _ in range(TIMED_CALLS):
        launch()
    return recheck(implementation, operation, inputs, out, launch)
