"""Is an implementation right? One call, `check`, answers with an entry for the record's "checks".

The reference is computed in float64 on the CPU from the inputs as already rounded to their dtype (torch's CUDA softmax
has been wrong in float64, so never there). An output passes when

1. NaN and ±inf stand exactly where they should;
2. every other element is within max(2 × torch's own error, floor) of the reference, both in ulps of the output's dtype;
   torch's own error is the largest in the same row, from the same inputs on the same device (1-D: the largest of all).
   An absolute tolerance would not do: softmax outputs scale as 1/n_cols, and zeros pass 1e-2 from 16384 columns on;
3. the rows sum to what they should, all of them;
4. every element was written (the output is poisoned with NaN first), nothing around it, and no input changed;
5. new inputs in the same tensors give new results, and the same inputs the same bits again.

The floor, in ulps, is what a right implementation may lose at worst. It is the sum of:
- 1 for each rounding to a 16-bit output's dtype that the algorithm makes by design (Implementation.roundings), 1 for
  float32. A rounding costs 0.5 ulp; one that is not the last costs up to 1, because the ulp of an earlier, larger value
  may be relatively twice as large. The last gets twice its 0.5, as torch's error does. All of it twice for bfloat16 in
  Triton's interpreter, which truncates.
- Where rows sum to one, an output is exp(-t) / sum: 7 + 2.5 t ulps of float32. The fast exp2 is good to 3, a fast
  division to 2, the sum to 2. The argument is rounded as x - max and again as its product with log2(e), which is
  itself rounded by a quarter as much; a rounding of t by 2^-24 t moves exp(-t) by up to t ulps. For 16-bit outputs this
  all but vanishes: their ulps are 2^13 (float16) and 2^16 (bfloat16) times larger.
- Where every step of the composition rounds to a 16-bit dtype (eager PyTorch), x - max is rounded by up to t eps / 2,
  which moves exp(-t) by expm1(t eps / 2): about t ulps, and more where t is large.

Below the normal numbers: float32 and bfloat16 may flush to zero (FLUSH). A subnormal float16 may not, since the
arithmetic is float32; its ulp is the spacing down there, 2^-24.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compare.operations import executor
from compare.registry import Implementation, Operation, Shape

Launch = Callable[[], None]
Tensors = Sequence[Tensor]

FLUSH = {torch.float32: 1.2e-38, torch.bfloat16: 1.2e-38, torch.float16: 0.0}  # absolute errors that are always right
CELLS = 1 << 22  # of an output, compared with the reference; rules 3 to 5 are applied to all of it
ON_GPU = 1 << 25  # elements that are compared there; more, of rows beyond CELLS, might not fit and are compared here
HEAD = 4  # first rows, always compared: `make_inputs` puts NaN and inf there
GUARD = 1 << 16  # bytes before and after a tensor: more than a block of 12288 float32 can overshoot
POISON = 0xFF  # of every byte: NaN in each dtype, with bits that no arithmetic gives
SLEEP = 5_000_000  # GPU cycles, about 3 ms: time for a launch that is on another stream to come too early


class Expected(NamedTuple):
    """What a reference gives."""

    rows: Tensor  # which of the output (in 1-D, which elements) the others are
    wanted: Tensor  # float64, computed on the CPU; where it is now, outputs are compared
    own: Tensor  # PyTorch's, in the output's dtype, computed on the output's device
    own_error: Tensor  # of it, in ulps, beside wanted


def check(implementation: Implementation, operation: Operation, shape: Shape, dtype: torch.dtype,
          device: torch.device | str, seed: int = 0, cells: int = CELLS) -> dict[str, Any]:  # fmt: skip
    """Run an implementation on three sets of inputs, the first one twice, and judge it: four launches, the last with
    NaN and inf. Needs about six times the output's memory, and 150 bytes for each compared element.

    shape: not empty; (n_rows, n_cols) of an operation on rows. status: "passed", "failed" (error: how, with the first
    five mismatches), "refused" (`prepare` refused the input) or "error" (anything else was raised). max_ulps,
    torch_max_ulps: the largest finite errors seen, None before the first. Of an output of more than `cells` elements
    the first HEAD rows, the last one, and random ones between are compared with the reference.
    """
    device = torch.device(device)
    where = executor(implementation.language, device.type)
    entry: dict[str, Any] = {"implementation": implementation.name, "shape": list(shape), "executor": where}
    entry |= {"dtype": str(dtype).removeprefix("torch."), "error": None, "max_ulps": None, "torch_max_ulps": None}
    try:
        raws, tensors = zip(*(_guarded(shape, dtype, device) for _ in range(operation.n_inputs + 1)), strict=True)
        *inputs, out = tensors
        try:
            launch = implementation.prepare(tuple(inputs), out)
        except (ValueError, TypeError, NotImplementedError) as reason:
            return entry | {"status": "refused", "error": str(reason)}
        for draw in range(3):
            fresh = make_inputs(operation, shape, dtype, device, seed, draw)
            _launch_late(launch, inputs, fresh, raws[-1])
            reference = drawn(operation, tuple(shape), dtype, device, seed, draw, cells)
            found, ulps, torch_ulps = mismatches(implementation, operation, reference, out, draw < 2)
            if draw == 0:
                first = raws[-1].clone()
                _launch_late(launch, inputs, fresh, raws[-1])
                if not torch.equal(first, raws[-1]):
                    found.append("the same inputs gave other bits the second time")
            if not all(torch.equal(_bits(x), _bits(values)) for x, values in zip(inputs, fresh, strict=True)):
                found.append("an input was overwritten")
            if not all((side == POISON).all() for raw in raws for side in (raw[:GUARD], raw[-GUARD:])):
                found.append("memory before or after a tensor was overwritten")
            entry["max_ulps"] = max(ulps, entry["max_ulps"] or 0.0)
            entry["torch_max_ulps"] = max(torch_ulps, entry["torch_max_ulps"] or 0.0)
            if found:
                return entry | {"status": "failed", "error": "; ".join(found)}
    except Exception as reason:  # whatever an implementation raises is its result
        return entry | {"status": "error", "error": f"{type(reason).__name__}: {reason}"}
    return entry | {"status": "passed"}


def recheck(
    implementation: Implementation, operation: Operation, inputs: Tensors, out: Tensor, launch: Launch
) -> str | None:
    """After timing: judge what the timed calls left in `out`, then one more call into a poisoned `out`.

    inputs: finite, as `make_inputs` draws 0 and 1 are. Compares fewer elements than `check`, as it runs for every
    measurement. Returns what is wrong, or None.
    """
    reference = expected(operation, inputs, CELLS // 16)
    for when in ("after timing", "in a call after timing"):
        _synchronize(out.device)
        found, *_ = mismatches(implementation, operation, reference, out, True)
        if found:
            return f"{when}: {'; '.join(found)}"
        if when == "after timing":
            _bits(out).fill_(-1)
            launch()
    return None


def make_inputs(
    operation: Operation, shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int, draw: int = 0
) -> list[Tensor]:
    """Inputs that make mistakes visible: standard normal, with rows (1-D: the whole is one) of three kinds in turn.

    - Shifted by ±100: exp overflows, or underflows, unless the row maximum is subtracted.
    - Every 97th element × 20, and the largest, 80, in the last column: whatever drops the tail is far off.
    - Neither, but 4 in the first column: the sum depends on every element.

    Two rows, or draws 0 and 1, hold the first two kinds. Draw 2 is standard normal, but its first HEAD rows hold a NaN,
    a +inf in the last column, nothing but -inf, and -inf in the first half.
    """
    generator = torch.Generator(device).manual_seed(100 * seed + draw)
    inputs = []
    for number in range(operation.n_inputs):
        values = torch.randn(tuple(shape), generator=generator, device=device)
        rows = values.view(-1, shape[-1])
        n_rows, n_cols = rows.shape
        if draw < 2:
            shifted, outliers, plain = (rows[(kind - number - draw * n_rows) % 3 :: 3] for kind in range(3))
            shifted[::2] += 100 - 200 * draw
            shifted[1::2] -= 100 - 200 * draw
            outliers[:, seed % min(97, n_cols) :: 97] *= 20
            outliers[:, -1] = 80
            plain[:, 0] = 4
        else:
            for row in range(min(HEAD, n_rows)):
                kind = (row + number + seed) % 4
                cols = (n_cols // 2, -1, slice(None), slice(n_cols // 2))[kind]
                rows[row, cols] = (math.nan, math.inf, -math.inf, -math.inf)[kind]
        inputs.append(values.to(dtype))
    return inputs


def expected(operation: Operation, inputs: Tensors, cells: int) -> Expected:
    """What the reference makes of the inputs. cells: as in `check`."""
    device = inputs[0].device
    rows = _sample(len(inputs[0]), cells // math.prod(inputs[0].shape[1:])).to(device)
    some = [x[rows] for x in inputs]
    own, wanted = operation.reference(*some), operation.reference(*(x.cpu().double() for x in some))
    wanted = wanted.to(device if wanted.numel() <= ON_GPU else "cpu")
    own_error = ulps_off(own.to(wanted.device).double(), wanted, own.dtype)
    own_error[own_error.isinf()] = 0.0  # where torch misplaces a NaN it sets no standard
    return Expected(rows, wanted, own, own_error)


@lru_cache(maxsize=3)  # draws of one shape: every implementation is compared with the same
def drawn(operation: Operation, shape: Shape, dtype: torch.dtype, device: torch.device, seed: int, draw: int,
           cells: int) -> Expected:  # fmt: skip
    return expected(operation, make_inputs(operation, shape, dtype, device, seed, draw), cells)


def mismatches(
    implementation: Implementation, operation: Operation, reference: Expected, out: Tensor, finite: bool
) -> tuple[list[str], float, float]:
    """What is wrong with the values of `out`; its largest finite error and torch's own, in ulps.

    finite: no output should be NaN or inf; only then are the whole of `out` and its row sums looked at.
    """
    n_cols = math.prod(out.shape[1:])
    index, wanted, own, own_error = reference
    got = out[index].to(wanted.device).double()
    error = ulps_off(got, wanted, out.dtype)

    eps, smallest = torch.finfo(out.dtype).eps, torch.finfo(out.dtype).tiny * torch.finfo(out.dtype).eps
    roundings = 1 if out.dtype == torch.float32 else implementation.roundings
    truncates = out.dtype == torch.bfloat16 and executor(implementation.language, out.device.type) == "interpreter"
    floor = torch.full_like(wanted, roundings * (2 if truncates else 1))
    if operation.rows_sum_to is not None:
        t = (wanted.amax(-1, keepdim=True) / wanted.clamp_min(2.0**-149)).log()  # max - x
        floor += (7 + 2.5 * t) * torch.finfo(torch.float32).eps / eps
        if roundings >= operation.composition_kernels > 1:
            floor += (t * eps / 2).expm1() / (eps / 2)
    allowed = torch.maximum(floor.nan_to_num(0.0), 2 * own_error.amax(-1, keepdim=True))

    found = []
    if finite and not out.isfinite().all():
        found.append(f"{(~out.isfinite()).sum()} elements are NaN or inf, {(_bits(out) == -1).sum()} never written")
    if len(wrong := (~(error <= allowed)).nonzero()):
        found.append(f"{len(wrong)} of {error.numel()} compared elements are wrong")
        for at in map(tuple, wrong[:5].tolist()):
            found[-1] += (
                f"\n  {[int(index[at[0]]), *at[1:]]}: got {got[at]:.9g}, wanted {wanted[at]:.9g}, "
                f"{error[at]:.3g} ulps, {allowed[at]:.3g} allowed"
            )
    if finite and operation.rows_sum_to is not None:
        off, own_off = ((x.sum(-1, dtype=torch.float64) - operation.rows_sum_to).abs() for x in (out, own))
        limit = max(2 * float(own_off.max()), float(floor.min()) * (eps + n_cols * smallest))
        if len(rows := (~(off <= limit)).nonzero()):
            by = f"that of row {int(rows[0])} by {off[rows[0]].item():.3g}, {limit:.3g} allowed"
            found.append(f"{len(rows)} row sums are wrong, {by}")
    return found, float(torch.where(error.isfinite(), error, 0.0).max()), float(own_error.max())


def ulps_off(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> Tensor:
    """|got - wanted|, both float64, in ulps of `dtype` at `wanted`; 0 up to FLUSH, inf where a NaN or inf differs."""
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    power = (wanted.view(torch.int64) & (0x7FF << 52)).view(torch.float64)  # of two, the largest up to |wanted|
    distance = (got - wanted).abs()
    ulps = torch.where(distance <= FLUSH[dtype], 0.0, distance / (power * torch.finfo(dtype).eps).clamp_min(smallest))
    rounded = wanted.to(dtype).double()
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    return torch.where(got.isfinite() & rounded.isfinite(), ulps, torch.where(same, 0.0, math.inf))


def _guarded(shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(all the bytes, a tensor of `shape` in their middle), poisoned: reading beyond an input gives NaN."""
    size = math.prod(shape) * dtype.itemsize
    raw = torch.full((GUARD + size + GUARD,), POISON, dtype=torch.uint8, device=device)
    return raw, raw[GUARD : GUARD + size].view(dtype).view(tuple(shape))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.itemsize == 4 else torch.int16)


def _sample(n: int, limit: int) -> Tensor:
    """Ascending indices below n: all, or about `limit` of them, with the first HEAD and the last."""
    if n <= max(limit, HEAD + 1):
        return torch.arange(n)
    between = torch.randint(HEAD, n - 1, (max(limit - HEAD - 1, 1),), generator=torch.Generator().manual_seed(n))
    return torch.cat([torch.arange(HEAD), between, torch.tensor([n - 1])]).unique()


def _launch_late(launch: Launch, inputs: Tensors, fresh: Tensors, raw: Tensor) -> None:
    """Fill the inputs, poison the output, launch. On a GPU this waits on a stream of its own: what is launched on
    another one comes too early, before the inputs and the poison."""
    _synchronize(raw.device)
    with torch.cuda.stream(torch.cuda.Stream(raw.device)) if raw.is_cuda else contextlib.nullcontext():
        if raw.is_cuda:
            torch.cuda._sleep(SLEEP)
        for x, values in zip(inputs, fresh, strict=True):
            x.copy_(values)
        raw.fill_(POISON)
        launch()
    _synchronize(raw.device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
