"""The public face: shapes, layouts, memory and calling, for every rung in both languages, and every refusal."""

import itertools

import pytest
import torch

import compare
from compare import machine, operations, sources
from compare.registry import LANGUAGES, OPERATIONS, SOFTMAX, Operation

SOFTMAX_RUNGS = list(itertools.product(LANGUAGES, [rung.name for rung in SOFTMAX.rungs]))
ELEMENTWISE = [
    (operation, language, rung.name)
    for operation in OPERATIONS.values()
    if operation.kind == "elements"
    for language in LANGUAGES
    for rung in operation.rungs
]
every_softmax = pytest.mark.parametrize(("language", "rung"), SOFTMAX_RUNGS)
every_elementwise = pytest.mark.parametrize(
    ("operation", "language", "rung"), ELEMENTWISE, ids=lambda v: getattr(v, "name", v)
)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_softmax(got: torch.Tensor, x: torch.Tensor) -> None:
    """Relative to the largest output of the row, so that a wrong small row cannot hide behind an absolute tolerance."""
    wanted = torch.softmax(x.double().cpu(), dim=-1)
    scale = wanted.amax(dim=-1, keepdim=True)
    assert got.shape == x.shape and got.dtype == x.dtype and got.device == x.device
    assert ((got.double().cpu() - wanted).abs() <= TOLERANCE[x.dtype] * scale).all()


def assert_elementwise(operation: Operation, got: torch.Tensor, *inputs: torch.Tensor) -> None:
    """float32 addition rounded once is exact, but for Triton's interpreter: it truncates to bfloat16, one ulp below."""
    wanted = operation.reference(*(t.double().cpu() for t in inputs)).to(inputs[0].dtype)
    if got.dtype == torch.bfloat16 and sources.interpreted():
        assert ((got.view(torch.int16) - wanted.view(torch.int16)).abs() <= 1).all()
    else:
        assert torch.equal(got.cpu(), wanted)


def values(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator)).to(device, dtype)


# Shapes


@every_softmax
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0,)], ids=str)
def test_empty_input_gives_empty_output(device, language, rung, shape):
    got = compare.softmax(torch.empty(shape, device=device), rung=rung, language=language)
    assert got.shape == shape and got.dtype == torch.float32


@every_elementwise
def test_empty_sum_is_empty(device, operation, language, rung):
    empty = torch.empty(0, 3, device=device)
    assert compare.call(operation, empty, empty, rung=rung, language=language).shape == (0, 3)


@every_softmax
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (2, 1, 3, 5)], ids=str)
def test_any_rank_is_softmax_along_the_last_dimension(device, language, rung, shape):
    x = values(*shape, device=device)
    assert_softmax(compare.softmax(x, rung=rung, language=language), x)


@every_softmax
@every_dtype
def test_rows_with_a_stride_are_read_in_place(device, language, rung, dtype):
    x = values(4, 8, dtype=dtype, device=device)[:, :5]
    assert_softmax(compare.softmax(x, rung=rung, language=language), x)


@every_softmax
@pytest.mark.parametrize(
    ("dtype", "shape", "first"),
    [(torch.float32, (4, 782), 1), (torch.float16, (7, 781), 0), (torch.float32, (7, 1023), 0)],
    ids=str,
)
def test_rows_off_the_16_byte_grid_are_right_and_so_is_the_next_call(device, language, rung, dtype, shape, first):
    x = values(*shape, dtype=dtype, device=device)[:, first:]
    for seed in range(2):
        x.copy_(values(*x.shape, dtype=dtype, device=device, seed=seed))
        assert_softmax(compare.softmax(x, rung=rung, language=language), x)


@every_elementwise
@every_dtype
def test_vectors_off_the_16_byte_grid_are_right(device, operation, language, rung, dtype):
    x, y = values(1025, dtype=dtype, device=device)[1:], values(1024, dtype=dtype, device=device, seed=1)
    assert_elementwise(operation, compare.call(operation, x, y, rung=rung, language=language), x, y)


@every_softmax
def test_out_keeps_the_bytes_between_its_rows(device, language, rung):
    x = values(5, 40, device=device)
    padded = torch.full((5, 48), 7.0, device=device)
    assert compare.softmax(x, rung=rung, language=language, out=padded[:, :40]).data_ptr() == padded.data_ptr()
    assert_softmax(padded[:, :40], x)
    assert (padded[:, 40:] == 7).all()


@every_softmax
def test_expanded_rows_are_read_and_not_written(device, language, rung):
    x = values(1, 33, device=device).expand(4, 33)
    assert_softmax(compare.softmax(x, rung=rung, language=language), x)


@every_softmax
def test_in_place_is_as_out_of_place(device, language, rung):
    x = values(6, 300, device=device)
    y = x.clone()
    compare.softmax(y, rung=rung, language=language, out=y)
    assert torch.equal(y, compare.softmax(x, rung=rung, language=language))


@every_elementwise
def test_sum_in_place_is_as_out_of_place(device, operation, language, rung):
    a, b = values(1000, device=device), values(1000, device=device, seed=1)
    wanted = compare.call(operation, a, b, rung=rung, language=language)
    assert torch.equal(compare.call(operation, a, b, rung=rung, language=language, out=b), wanted)
    doubled = a + a
    compare.call(operation, a, a, rung=rung, language=language, out=a)
    assert_elementwise(operation, a, doubled, torch.zeros_like(doubled))


@every_softmax
@pytest.mark.parametrize("n_cols", [12288, 12289, 24576, 40449])
def test_rows_around_shared_memory_limits(device, language, rung, n_cols):
    x = values(2, n_cols, device=device)
    limit = SOFTMAX.rung(rung).max_cols
    if limit is not None and n_cols > limit:
        with pytest.raises(ValueError, match=f"{n_cols} columns.*{limit}.*'online' takes any length"):
            compare.softmax(x, rung=rung, language=language)
    else:
        assert_softmax(compare.softmax(x, rung=rung, language=language), x)


# Refusals: what is not supported is refused, in the same words for both languages


def refusals(device: str) -> dict[str, tuple[type[Exception], str, object]]:
    row = torch.zeros(4, 8, device=device)
    return {
        "a list": (TypeError, "x: got list, wanted a torch.Tensor", lambda **k: compare.softmax([[1.0]], **k)),
        "int64": (TypeError, "dtype torch.int64, wanted one of float32", lambda **k: compare.softmax(row.long(), **k)),
        "bool": (TypeError, "dtype torch.bool", lambda **k: compare.softmax(row.bool(), **k)),
        "complex": (TypeError, "dtype torch.complex64", lambda **k: compare.softmax(row.cfloat(), **k)),
        "float64": (TypeError, "dtype torch.float64", lambda **k: compare.softmax(row.double(), **k)),
        "float64 add": (TypeError, "torch.float64", lambda **k: compare.vector_add(row.double(), row.double(), **k)),
        "sparse": (TypeError, "sparse", lambda **k: compare.softmax(row.to_sparse(), **k)),
        "transposed": (ValueError, "contiguous columns", lambda **k: compare.softmax(row.t(), **k)),
        "every second column": (ValueError, "contiguous columns", lambda **k: compare.softmax(row[:, ::2], **k)),
        "rows of two strides": (
            ValueError,
            "rows with one stride",
            lambda **k: compare.softmax(torch.zeros(4, 4, 8, device=device)[:, :2], **k),
        ),
        "meta": (ValueError, "device meta", lambda **k: compare.softmax(row.to("meta"), **k)),
        "requires grad": (
            RuntimeError,
            "requires grad",
            lambda **k: compare.softmax(row.clone().requires_grad_(), **k),
        ),
        "out of another shape": (ValueError, "out: got shape", lambda **k: compare.softmax(row, out=row[:2], **k)),
        "out of another dtype": (TypeError, "out: got dtype", lambda **k: compare.softmax(row, out=row.half(), **k)),
        "out with overlapping rows": (
            ValueError,
            "rows that do not overlap",
            lambda **k: compare.softmax(row, out=torch.zeros(8, device=device).expand(4, 8), **k),
        ),
        "out overlapping x": (
            ValueError,
            "out may overlap x",
            lambda **k: compare.softmax(row.view(-1)[:16].view(2, 8), out=row.view(-1)[4:20].view(2, 8), **k),
        ),
        "two lengths": (
            ValueError,
            r"\(98433,\) and \(98432,\)",
            lambda **k: compare.vector_add(torch.zeros(98433, device=device), torch.zeros(98432, device=device), **k),
        ),
        "two lengths, other order": (
            ValueError,
            r"\(98432,\) and \(98433,\)",
            lambda **k: compare.vector_add(torch.zeros(98432, device=device), torch.zeros(98433, device=device), **k),
        ),
        "broadcasting": (
            ValueError,
            r"\(3, 1\) and \(1, 4\)",
            lambda **k: compare.vector_add(torch.zeros(3, 1, device=device), torch.zeros(1, 4, device=device), **k),
        ),
        "half and float": (
            TypeError,
            "torch.float16 and torch.float32",
            lambda **k: compare.vector_add(row.half(), row, **k),
        ),
        "a strided vector": (ValueError, "contiguous", lambda **k: compare.vector_add(row[:, 0], row[:, 0], **k)),
        "an unknown rung": (
            ValueError,
            "rung: got 'ninja', wanted one of naive, fused",
            lambda **k: compare.softmax(row, rung="ninja", **k),
        ),
    }


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("what", list(refusals("cpu")))
def test_what_is_not_supported_is_refused(device, language, what):
    error, words, run = refusals(device)[what]
    with pytest.raises(error, match=words):
        run(language=language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_more_rows_than_a_grid_has_are_refused(device, language):
    rung = SOFTMAX.rungs[0]
    x = torch.zeros(1, 1, device=device).expand(2_200_000_000, 1)
    with pytest.raises(ValueError, match="2200000000 × 1, wanted at most 2147483647 rows"):
        operations._row_sizes(SOFTMAX, rung, (x,), x)


def test_an_unknown_language_is_refused(device):
    with pytest.raises(ValueError, match="language: got 'hip', wanted one of cuda, triton"):
        compare.softmax(torch.zeros(2, 2, device=device), language="hip")


@pytest.mark.parametrize("language", LANGUAGES)
def test_grad_is_refused_only_while_it_is_recorded(device, language):
    x = values(2, 9, device=device).requires_grad_()
    with torch.no_grad():
        assert_softmax(compare.softmax(x, language=language), x.detach())


def test_a_cpu_tensor_is_refused_where_a_gpu_is_usable(monkeypatch):
    monkeypatch.setattr(machine, "gpu_usable", lambda: True)
    with pytest.raises(ValueError, match=r"device cpu while a GPU is usable; move it with \.cuda\(\)"):
        compare.softmax(torch.zeros(2, 2))
    compare.run_on("cpu")
    try:
        operations._validate_inputs(SOFTMAX, (torch.zeros(2, 2),))
    finally:
        compare.run_on("cuda")


def test_triton_does_not_interpret_gpu_tensors(monkeypatch, device):
    if device == "cpu":
        pytest.skip("needs a GPU tensor")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        compare.softmax(torch.zeros(2, 2, device=device), language="triton")


# The GPU: streams, graphs, devices, sizes that only fit there

gpu = pytest.mark.gpu


@gpu
@every_softmax
def test_the_current_stream_is_used(language, rung):
    x = torch.zeros(64, 1024, device="cuda")
    fresh = values(64, 1024, device="cuda")
    out = torch.empty_like(x)
    compare.softmax(x, rung=rung, language=language, out=out)  # compile first
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.copy_(fresh)
        compare.softmax(x, rung=rung, language=language, out=out)
    stream.synchronize()
    assert_softmax(out, fresh)


@gpu
@every_softmax
def test_a_captured_graph_replays_on_new_inputs(language, rung):
    x, out = torch.zeros(64, 1000, device="cuda"), torch.empty(64, 1000, device="cuda")
    launch = operations.plan(SOFTMAX, SOFTMAX.rung(rung), language, (x,), out)
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for seed in range(2):
        x.copy_(values(64, 1000, device="cuda", seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert_softmax(out, x)


@gpu
@every_softmax
def test_another_gpu_than_the_current_one(language, rung):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = values(16, 100, device="cuda:1")
    assert_softmax(compare.softmax(x, rung=rung, language=language), x)
    assert torch.cuda.current_device() == 0


@gpu
@every_softmax
@pytest.mark.parametrize("shape", [(65536, 8), (70000, 4), (2, 65536), (2, 65537), (2, 131073), (2, 1048577)], ids=str)
def test_grids_beyond_65535_and_long_rows(language, rung, shape):
    x = values(*shape, device="cuda")
    limit = SOFTMAX.rung(rung).max_cols
    if limit is None or shape[1] <= limit:
        assert_softmax(compare.softmax(x, rung=rung, language=language), x)
    else:
        with pytest.raises(ValueError, match="takes any length"):
            compare.softmax(x, rung=rung, language=language)


@gpu
@every_softmax
def test_rows_beyond_two_to_the_31_elements(language, rung):
    memory = torch.empty(2**31 + 16, dtype=torch.float16, device="cuda")
    x = memory.as_strided((3, 16), (2**30, 1))
    x.copy_(values(3, 16, dtype=torch.float16, device="cuda"))
    assert_softmax(compare.softmax(x, rung=rung, language=language), x)
    wanted = x.clone()
    compare.softmax(x, rung=rung, language=language, out=x)
    assert_softmax(x, wanted)


@gpu
@every_elementwise
def test_sums_beyond_two_to_the_31_elements(operation, language, rung):
    n = 2**31 + 5
    x, y = torch.ones(n, dtype=torch.float16, device="cuda"), torch.ones(n, dtype=torch.float16, device="cuda")
    x[-5:] = 3
    out = compare.call(operation, x, y, rung=rung, language=language)
    assert (out[-5:] == 4).all() and (out[:-5] == 2).all()


@gpu
@every_softmax
@pytest.mark.parametrize("shape", [(4096, 1024), (256, 4096)], ids=str)
def test_the_same_input_gives_the_same_bits_500_times(language, rung, shape):
    assert_same_bits(language, rung, shape)


@gpu
@pytest.mark.parametrize("shape", [(8, 131072), (64, 65537), (4, 1048576)], ids=str)
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_blocks_that_exchange_their_results_give_the_same_bits_500_times(language, shape):
    assert_same_bits(language, "tuned", shape)


def assert_same_bits(language, rung, shape):
    x = values(*shape, device="cuda")
    first = compare.softmax(x, rung=rung, language=language)
    out = torch.empty_like(x)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(500):
        compare.softmax(x, rung=rung, language=language, out=out)
        differing += (out.view(torch.int32) != first.view(torch.int32)).sum()
    assert differing.item() == 0


@pytest.mark.parametrize("language", ["cuda", "triton"])
@every_dtype
@pytest.mark.parametrize("n_cols", [1, 2, 3, 8, 31, 100, 781, 2049, 8192, 70001])
def test_tuned_rows_begin_and_end_anywhere(device, language, dtype, n_cols):
    """x and out on one 16-byte grid or on two, rows aligned or not: nothing beside out is written."""
    for x_offset, out_offset, x_gap, out_gap in [
        (0, 0, 0, 0),
        (1, 1, 0, 0),
        (1, 0, 0, 0),
        (3, 7, 5, 2),
        (0, 0, 16, 16),
    ]:
        x = torch.zeros(2, x_offset + n_cols + x_gap, dtype=dtype, device=device)[:, x_offset : x_offset + n_cols]
        x.copy_(values(2, n_cols, dtype=dtype, device=device))
        memory = torch.full((2, out_offset + n_cols + out_gap), 7.0, dtype=dtype, device=device)
        out = memory[:, out_offset : out_offset + n_cols]
        compare.softmax(x, rung="tuned", language=language, out=out)
        assert_softmax(out, x)
        out.fill_(7.0)
        assert (memory == 7.0).all()


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_one_plan_launches_again_and_again(language, device):
    """A launch leaves its exchange such that the next one does not take the old words for its own."""
    softmax = OPERATIONS["softmax"]
    x = values(2, 70001, device=device)
    out = torch.empty_like(x)
    launch = operations.plan(softmax, softmax.rung("tuned"), language, (x,), out)
    for turn in range(3):
        x.copy_(values(2, 70001, device=device) * turn)
        out.fill_(float("nan"))
        launch()
        assert_softmax(out, x)
