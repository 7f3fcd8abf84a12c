"""The public operations, and the one place where input is validated.

    softmax(x, rung="fused", language="triton")
    vector_add(x, y, language="cuda", out=out)

CUDA tensors run on their GPU, on the current stream. CPU tensors run in the executors for machines without a GPU (the
CPU model of CUDA, Triton's interpreter), and only there or after `run_on("cpu")`: a forgotten `.cuda()` is an error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bindings
from compare import machine, sources
from compare.registry import DTYPES, LANGUAGES, OPERATIONS, Implementation, Operation, Rung

MOST_ROWS = 2**31 - 1  # a grid's first dimension
MOST_COLS = 2**31 - 2**16  # column numbers are 32-bit in Triton, and the last tile counts beyond n_cols
MOST_ELEMENTS = MOST_ROWS * 256  # one a thread
# A launcher that cuts shorter rows (bytes), or rows in smaller slices (columns), finds no room for them in `exchange`.
LEAST_ROW, LEAST_SLICE = 32 * 1024, 4096

_asked_for_cpu = False


def run_on(device: str) -> None:
    """Choose what CPU tensors mean from now on: "cpu" runs them even where a GPU is usable, "cuda" refuses them."""
    global _asked_for_cpu
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: got {device!r}, wanted 'cpu' or 'cuda'")
    _asked_for_cpu = device == "cpu"


def softmax(x: Tensor, rung: str | None = None, language: str = "triton", out: Tensor | None = None) -> Tensor:
    """Softmax along the last dimension, as torch.softmax(x, dim=-1).

    x: float32, float16 or bfloat16, any rank whose rows collapse to (n_rows, n_cols) without a copy; columns
    contiguous, rows any stride. out: same shape and dtype, may be x itself. rung: default the last one. Accumulates in
    float32; a row with NaN, +inf or nothing but -inf becomes NaN.

    Raises TypeError (not a tensor, dtype), ValueError (shape, stride, device, overlap, rung, language, a row longer
    than the rung takes), RuntimeError (x requires grad; the language cannot run here).
    """
    return call(OPERATIONS["softmax"], x, rung=rung, language=language, out=out)


def vector_add(
    x: Tensor, y: Tensor, rung: str | None = None, language: str = "triton", out: Tensor | None = None
) -> Tensor:
    """x + y, element by element, added in float32.

    x, y: one shape and one dtype of float32, float16, bfloat16; contiguous (no broadcasting). out: the same, may be x
    or y itself. rung: default the last one. Raises as `softmax`.
    """
    return call(OPERATIONS["vector_add"], x, y, rung=rung, language=language, out=out)


def add_relu(
    x: Tensor, y: Tensor, rung: str | None = None, language: str = "triton", out: Tensor | None = None
) -> Tensor:
    """max(x + y, 0), element by element, as torch.relu(x + y); NaN stays NaN. Inputs and errors as `vector_add`."""
    return call(OPERATIONS["add_relu"], x, y, rung=rung, language=language, out=out)


def call(
    operation: Operation, *inputs: Tensor, rung: str | None = None, language: str = "triton", out: Tensor | None = None
) -> Tensor:
    """Run one operation of the registry; the functions above are this with a name. Returns `out`, or a new tensor."""
    chosen = operation.rung(rung if rung is not None else operation.rungs[-1].name)
    if language not in LANGUAGES:
        raise ValueError(f"language: got {language!r}, wanted one of {', '.join(LANGUAGES)}")
    _validate_inputs(operation, inputs)
    if out is None:
        out = torch.empty(inputs[0].shape, dtype=inputs[0].dtype, device=inputs[0].device)
    else:
        _validate_out(operation, inputs, out)
    _plan(operation, chosen, language, inputs, out)()
    return out


def plan(
    operation: Operation, rung: Rung, language: str, inputs: tuple[Tensor, ...], out: Tensor, bare: bool = False
) -> Callable[[], None]:
    """Validate, allocate scratch, and return the launch: it fills `out`, on the stream that is current when called.

    The launch keeps every buffer alive and allocates nothing, so it can be timed and captured. Its scratch belongs to
    it, zeroed on the stream that is current now: no two of its launches may run at the same time, and another stream
    has to wait for this one. bare: only the call of the native launcher (on the stream that is current now) or of the
    twin's host function, to see what host time the rest takes. Raises as `softmax`.
    """
    _validate_inputs(operation, inputs)
    _validate_out(operation, inputs, out)
    return _plan(operation, rung, language, inputs, out, bare)


def _plan(
    operation: Operation, rung: Rung, language: str, inputs: tuple[Tensor, ...], out: Tensor, bare: bool = False
) -> Callable[[], None]:
    """`plan` of tensors that are valid one by one."""
    if out.numel() == 0:
        return lambda: None
    values: dict[str, Any] = dict(zip(("x", "y", "z")[: len(inputs)], inputs, strict=True)) | {"out": out}
    if operation.kind == "rows":
        values |= _row_sizes(operation, rung, inputs, out)
    else:
        values["n_elements"] = out.numel()
        if out.numel() > MOST_ELEMENTS:
            raise ValueError(f"{operation.name}: got {out.numel()} elements, wanted at most {MOST_ELEMENTS}")
    stem = operation.stem(rung.name)
    return (_plan_triton if language == "triton" else _plan_cuda)(stem, values, out, bare)


def implementations(operation: Operation) -> list[Implementation]:
    """Every rung in both languages, as the harness checks and measures them."""
    return [
        Implementation(
            f"{language}/{rung.name}", language, rung.name, partial(plan, operation, rung, language), rung.roundings
        )
        for language in LANGUAGES
        for rung in operation.rungs
    ]


def executor(language: str, device: str) -> str:
    """What runs `language` on tensors of `device`: "gpu", "cpu_model" or "interpreter"; "cpu" for torch there."""
    if device != "cpu":
        return "gpu"
    return {"cuda": "cpu_model", "triton": "interpreter"}.get(language, "cpu")


def _validate_inputs(operation: Operation, inputs: tuple[Tensor, ...]) -> None:
    if len(inputs) != operation.n_inputs:
        raise TypeError(f"{operation.name}: got {len(inputs)} inputs, wanted {operation.n_inputs}")
    for name, tensor in zip(("x", "y", "z"), inputs, strict=False):
        _validate_tensor(operation, name, tensor)
    first = inputs[0]
    for other in inputs[1:]:
        if other.shape != first.shape:
            raise ValueError(
                f"{operation.name}: got shapes {tuple(first.shape)} and {tuple(other.shape)}, wanted one shape"
            )
        if other.dtype != first.dtype:
            raise TypeError(f"{operation.name}: got dtypes {first.dtype} and {other.dtype}, wanted one dtype")
        if other.device != first.device:
            raise ValueError(f"{operation.name}: got devices {first.device} and {other.device}, wanted one device")


def _validate_tensor(operation: Operation, name: str, tensor: Tensor) -> None:
    where = f"{operation.name}: {name}"
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}: got {type(tensor).__name__}, wanted a torch.Tensor")
    if tensor.layout != torch.strided or tensor.is_neg() or tensor.is_conj():
        found = tensor.layout if tensor.layout != torch.strided else "lazily negated or conjugated tensor"
        raise TypeError(f"{where}: got a {found}, wanted a plain strided tensor")
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise TypeError(f"{where}: got dtype {tensor.dtype}, wanted one of {', '.join(DTYPES)}")
    if tensor.device.type not in ("cuda", "cpu"):
        raise ValueError(f"{where}: got device {tensor.device}, wanted cuda or cpu")
    if tensor.device.type == "cpu" and machine.gpu_usable() and not _asked_for_cpu:
        raise ValueError(f"{where}: got device cpu while a GPU is usable; move it with .cuda(), or call run_on('cpu')")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{where} requires grad, and there is no backward; pass {name}.detach()")
    if operation.kind == "rows":
        _rows(where, tensor)
    elif not tensor.is_contiguous():
        raise ValueError(
            f"{where}: got strides {tensor.stride()}, wanted a contiguous tensor; pass {name}.contiguous()"
        )


def _rows(where: str, tensor: Tensor) -> Tensor:
    """The tensor as (n_rows, n_cols) without a copy, or an error that says why it is not."""
    if tensor.ndim == 0:
        return tensor.view(1, 1)
    n_cols = tensor.shape[-1]
    if n_cols > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{where}: got strides {tensor.stride()}, wanted contiguous columns (last stride 1); "
            "pass a .contiguous() copy"
        )
    if tensor.numel() == 0:
        return tensor.new_empty(0, max(n_cols, 1))
    try:
        return tensor.view(-1, n_cols)
    except RuntimeError:
        raise ValueError(
            f"{where}: got shape {tuple(tensor.shape)} with strides {tensor.stride()}, wanted rows with one stride"
        ) from None


def _validate_out(operation: Operation, inputs: tuple[Tensor, ...], out: Tensor) -> None:
    _validate_tensor(operation, "out", out)
    first = inputs[0]
    for what in ("shape", "dtype", "device"):
        if getattr(out, what) != getattr(first, what):
            error = TypeError if what == "dtype" else ValueError
            raise error(
                f"{operation.name}: out: got {what} {getattr(out, what)}, wanted the input's {getattr(first, what)}"
            )
    if operation.kind == "rows" and out.numel():
        rows = _rows(f"{operation.name}: out", out)
        if rows.shape[0] > 1 and rows.stride(0) < rows.shape[1]:
            raise ValueError(f"{operation.name}: out: got strides {out.stride()}, wanted rows that do not overlap")
    begin, end = _extent(out)
    for name, tensor in zip(("x", "y", "z"), inputs, strict=False):
        same = tensor.data_ptr() == out.data_ptr() and tensor.stride() == out.stride()
        other_begin, other_end = _extent(tensor)
        if begin < other_end and other_begin < end and not same:
            raise ValueError(
                f"{operation.name}: out may overlap {name}: got memory that is interleaved with it; "
                f"wanted {name} itself, or memory apart"
            )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses from the first element to beyond the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin


def _row_sizes(operation: Operation, rung: Rung, inputs: tuple[Tensor, ...], out: Tensor) -> dict[str, Any]:
    """The sizes, strides and scratch of an operation on rows, by the names of a launcher's parameters: row_max and
    row_sum, a float32 a row; exchange, zeroed 64-bit words, one for the launch and one for each slice of a row."""
    rows = {name: _rows(name, t) for name, t in zip(("x", "y", "z"), inputs, strict=False)} | {"out": _rows("out", out)}
    n_rows, n_cols = rows["out"].shape
    if rung.max_cols is not None and n_cols > rung.max_cols:
        raise ValueError(
            f"{operation.name}: got {n_cols} columns, wanted at most {rung.max_cols} for {rung.name}; "
            f"rung={rung.beyond!r} takes any length"
        )
    if n_rows > MOST_ROWS or n_cols > MOST_COLS:
        raise ValueError(
            f"{operation.name}: got {n_rows} × {n_cols}, wanted at most {MOST_ROWS} rows × {MOST_COLS} columns"
        )
    row = partial(torch.empty, n_rows, dtype=torch.float32, device=out.device)
    cut = n_cols * out.itemsize > LEAST_ROW
    n_words = 1 + n_rows * -(-n_cols // LEAST_SLICE) if cut else 0
    words = partial(torch.zeros, n_words, dtype=torch.int64, device=out.device)
    scratch = {"row_max": row, "row_sum": row, "exchange": words}
    return {"n_rows": n_rows, "n_cols": n_cols, **{f"{k}_row_stride": v.stride(0) for k, v in rows.items()}, **scratch}


def _arguments(parameters: list[str], values: dict[str, Any]) -> list[Any]:
    """The launcher's arguments, by the names of its parameters. Scratch is allocated where there is one for it."""
    chosen = [values[name] for name in parameters]
    return [value() if isinstance(value, partial) else value for value in chosen]


def _plan_cuda(stem: str, values: dict[str, Any], out: Tensor, bare: bool) -> Callable[[], None]:
    on_gpu = out.device.type == "cuda"
    module = bindings.load("gpu" if on_gpu else "cpu_model")
    launcher = getattr(module, stem)
    arguments = _arguments(module.parameters[stem], values)
    dtype = str(out.dtype).removeprefix("torch.")
    addresses = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]

    def launch(keep_alive: list[Any] = arguments) -> None:
        with _on_device(out.device):
            stream = torch.cuda.current_stream(out.device).cuda_stream if on_gpu else 0
            try:
                launcher(dtype, *addresses, stream)
            except RuntimeError as error:
                if "cudaErrorNoKernelImageForDevice" not in str(error):
                    raise
                major, minor = torch.cuda.get_device_capability(out.device)
                card = torch.cuda.get_device_name(out.device)
                raise RuntimeError(
                    f"{card} has compute capability {major}.{minor}; this build is for {module.built_for}: "
                    f"set TORCH_CUDA_ARCH_LIST={major}.{minor} and run again"
                ) from error

    def launch_bare(keep_alive: list[Any] = arguments) -> None:
        launcher(dtype, *addresses, stream_now)

    stream_now = torch.cuda.current_stream(out.device).cuda_stream if on_gpu else 0
    return launch_bare if bare else launch


def _plan_triton(stem: str, values: dict[str, Any], out: Tensor, bare: bool) -> Callable[[], None]:
    on_gpu = out.device.type == "cuda"
    if on_gpu and sources.interpreted():
        raise RuntimeError("TRITON_INTERPRET is set: Triton would interpret on the CPU; unset it, or use CPU tensors")
    if not on_gpu:
        sources.use_interpreter()
    function = getattr(sources.load_twin(stem), stem)
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    arguments = _arguments(list(parameters), values)

    def launch() -> None:
        with _on_device(out.device):
            function(*arguments)

    return partial(function, *arguments) if bare else launch


@contextlib.contextmanager
def _on_device(device: torch.device) -> Iterator[None]:
    """Make the tensor's GPU current for a launch; on the CPU, keep NumPy silent about NaN and inf, which are meant."""
    if device.type == "cpu":
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    elif device.index == torch.cuda.current_device():
        yield
    else:
        with torch.cuda.device(device):
            yield
