"""The CPU model of CUDA: what its rewriter makes of a .cu, what its kernels compute, and which faults it reports."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from bindings.build import MODEL, ROOT, find_cxx
from bindings.cpu_model.rewrite import RewriteError, rewrite
from bindings.cpu_model.sanitize import Finding, barriers, build_program, sanitize

KERNELS = Path(__file__).parent / "cpu_model_kernels"
INVALID_VALUE, INVALID_CONFIGURATION, ILLEGAL_ADDRESS, TIMEOUT, ASSERT, MISALIGNED, FAILURE = (
    1,
    9,
    700,
    702,
    710,
    716,
    719,
)


# ---- rewriter -------------------------------------------------------------------------------------------------------


def rewritten(source: str) -> str:
    """What rewrite() makes of `source`, without the #line, white space as single blanks."""
    text = rewrite(source, "a.cu")
    head, body = text.split("\n", 1)
    assert head == '#line 1 "a.cu"'
    assert body.count("\n") == source.count("\n"), "line numbers must stay"
    return " ".join(body.split())


def launched(name: str, kernel: str, rest: str) -> str:
    return f'cpu_model::launch("{name}", [&](auto... arguments) {{ {kernel}(arguments...); }}, {rest}'


@pytest.mark.parametrize(
    "source, expected",
    [
        ("k<<<1, 2>>>(x);", launched("k", "k", "1, 2)(x);")),
        ("k<<<g, b, 0, s>>>();", launched("k", "k", "g, b, 0, s)();")),
        (
            "k<T, 4><<<f<A, B>(1, 2), dim3(1, 2)>>>(x, y);",
            launched("k<T, 4>", "k<T, 4>", "f<A, B>(1, 2), dim3(1, 2))(x, y);"),
        ),
        (
            "a::k<b<c<int>>>\n<<<(n + 1) / 2,\n 1 << 5, n >> 2>>>\n(x);",
            launched("a::k<b<c<int>>>", "a::k<b<c<int>>> ", "(n + 1) / 2, 1 << 5, n >> 2) (x);"),
        ),
        ("::a<T>::template k<1><<<1, 2>>>(x)", launched("::a<T>::template k<1>", "::a<T>::template k<1>", "1, 2)(x)")),
        (
            "if (n) k<<<1, 2>>>(x); else (*p[i])<<<1, 2>>>(x);",
            "if (n) " + launched("k", "k", "1, 2)(x); else ") + launched("(*p[i])", "(*p[i])", "1, 2)(x);"),
        ),
        ("k<<<sizeof(a<b<c<int>>>), n<4, int>>>>(x)", launched("k", "k", "sizeof(a<b<c<int>>>), n<4, int>)(x)")),
        ("k<<<a < b ? 1 : 2, 32>>>(x); m = a<b<c>>(x);", launched("k", "k", "a < b ? 1 : 2, 32)(x); m = a<b<c>>(x);")),
        ("k<<<a<b<c<int>>>(1), 2>>>(x);", launched("k", "k", "a<b<c<int>>>(1), 2)(x);")),
        (
            "s = \"k<<<1>>>(x)\"; // k<<<1, 2>>>(\nc = '<'; /* <<< */ n = 1'000;",
            "s = \"k<<<1>>>(x)\"; // k<<<1, 2>>>( c = '<'; /* <<< */ n = 1'000;",
        ),
        ('r = R"x(<<<")x"; k<<<1, /* , */ 2>>>(x)', 'r = R"x(<<<")x"; ' + launched("k", "k", "1, /* , */ 2)(x)")),
        ("#define L(n) \\\n k<n><<<1, 2>>>(x)\nL(1)", "#define L(n) \\ " + launched("k<n>", "k<n>", "1, 2)(x) L(1)")),
        ("{ extern __shared__ T s[]; }", "{ CPU_MODEL_DYNAMIC_SHARED(s, 1, T); }"),
        (
            "{ extern __align__(16) __shared__ unsigned char s[]; }",
            "{ CPU_MODEL_DYNAMIC_SHARED(s, 16, unsigned char); }",
        ),
        ("{ __shared__ float s[N / 2][33]; }", "{ CPU_MODEL_SHARED(s, 1, float[N/2][33]); }"),
        ("{ static __shared__ alignas(8) volatile int n; }", "{ CPU_MODEL_SHARED(n, 8, volatile int); }"),
        (
            "{ __shared__ float a[2], // first\n b, c[3]; }",
            "{ // first CPU_MODEL_SHARED(a, 1, float[2]); CPU_MODEL_SHARED(b, 1, float); "
            "CPU_MODEL_SHARED(c, 1, float[3]); }",
        ),
        ("{ __shared__ typename A<B, 2>::C s; }", "{ CPU_MODEL_SHARED(s, 1, typename A < B , 2 > :: C); }"),
        (
            "cudaFuncSetAttribute((const void*)a::k<T, 1>, what, n);",
            'cudaFuncSetAttribute("k", (const void*)a::k<T, 1>, what, n);',
        ),
        (
            "cudaFuncSetAttribute(reinterpret_cast<const void*>(&k<T>), what, n);",
            'cudaFuncSetAttribute("k", reinterpret_cast<const void*>(&k<T>), what, n);',
        ),
    ],
)
def test_rewriter_reads_every_form(source: str, expected: str) -> None:
    assert rewritten(source) == expected


@pytest.mark.parametrize(
    "source, message",
    [
        ("\nk<<<1>>>(x);", "a.cu:2: a launch takes 2 to 4 arguments between <<< and >>>, found 1"),
        ("k<<<1, 2, 3, 4, 5>>>(x);", "a.cu:1: a launch takes 2 to 4 arguments between <<< and >>>, found 5"),
        ("k<<<1, >>>(x);", "a.cu:1: a launch takes 2 to 4 arguments"),
        ("k<<<1, 2>>(x);", "a.cu:1: '<<<' without '>>>(' after it"),
        ("\n\n<<<1, 2>>>(x);", "a.cu:3: '<<<' without a kernel before it"),
        ("f(1;\n}", "a.cu:2: '}' closes nothing"),
        ("{\n f(x;\n", "a.cu:2: '(' is never closed"),
        ("namespace n { __shared__ float s[4]; }", "a.cu:1: __shared__ outside a function"),
        ("{\n__shared__ int n = 3; }", "a.cu:2: __shared__: wanted"),
        ("{ __shared__ struct { int a; } s; }", "a.cu:1: __shared__: wanted"),
        ("{ extern __shared__ float s[4]; }", "a.cu:1: extern __shared__: wanted 'type name[]'"),
    ],
)
def test_rewriter_refuses_with_file_and_line(source: str, message: str) -> None:
    with pytest.raises(RewriteError) as error:
        rewrite(source, "a.cu")
    assert str(error.value).startswith(message)


def test_rewriter_program_keeps_line_ends_and_reports_errors(tmp_path: Path) -> None:
    source, target = tmp_path / "a b.cu", tmp_path / "new" / "a b.cu"
    command = [sys.executable, str(MODEL / "rewrite.py"), str(source), str(target)]
    source.write_bytes("k<<<1, 2>>>(x); // \u00fc\r\n".encode())
    subprocess.run(command, check=True)
    assert target.read_bytes() == (f'#line 1 "{source}"\n' + launched("k", "k", "1, 2)(x); // \u00fc\r\n")).encode()
    source.write_text("k<<<1>>>(x);")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"{source}:1: ")


# ---- features -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cpu_model_kernels/features.cu as a shared library."""
    directory = tmp_path_factory.mktemp("features")
    source = KERNELS / "features.cu"
    unit = directory / "features.cpp"
    unit.write_text(rewrite(source.read_text(), str(source)))
    flags = ["-std=c++17", "-fno-strict-aliasing", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE"]
    flags += [f"-I{MODEL / 'include'}", "-include", "cuda_runtime.h"]

    def compile_(path: Path) -> str:
        target = directory / f"{path.stem}.o"
        subprocess.run([*shlex.split(find_cxx()), *flags, "-c", str(path), "-o", str(target)], check=True)
        return str(target)

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_, [unit, MODEL / "runtime.cpp"]))
    path = directory / "features.so"
    subprocess.run([*shlex.split(find_cxx()), "-shared", *objects, "-o", str(path)], check=True)
    return path


@pytest.fixture(params=["ascending", "descending"])
def both_orders(request: pytest.FixtureRequest, library: ctypes.CDLL) -> str:
    library.set_thread_order(request.param == "descending")
    return request.param


@pytest.fixture
def library(library_path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library_path))
    for name in ("error_text", "error_string", "error_name"):
        getattr(loaded, name).restype = ctypes.c_char_p
    loaded.set_thread_order(False)
    return loaded


def call(function: Callable[..., int], *arguments: object) -> int:
    """Call with arrays as their addresses."""
    return function(*(ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments))


def text(library: ctypes.CDLL) -> str:
    return library.error_text().decode()


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_shuffles_take_from_the_lane_that_ptx_says(library: ctypes.CDLL, both_orders: str, width: int) -> None:
    def source(kind: int, lane: int, operand: int) -> int:  # PTX: shfl.sync idx, up, down, bfly
        first, last = lane & -width, lane | (width - 1)
        wanted = [first | (operand & (width - 1)), lane - operand, lane + operand, lane ^ operand][kind]
        inside = [True, wanted >= first, wanted <= last, wanted <= last][kind]
        return wanted if inside else lane

    out = np.zeros(32, np.int32)
    for kind in range(4):
        for operand in (0, 1, 2, 3, 5, 8, 16, 31):
            assert call(library.shuffle, kind, width, operand, out) == 0, text(library)
            assert out.tolist() == [source(kind, lane, operand) for lane in range(32)], (kind, operand)


def test_shuffles_carry_every_type(library: ctypes.CDLL) -> None:
    out = np.zeros((32, 9), np.int32)
    assert call(library.shuffle_types, out) == 0, text(library)
    assert (out == np.array([*range(1, 32), 31])[:, None]).all()


def test_votes_and_groups_of_a_warp_stay_apart(library: ctypes.CDLL, both_orders: str) -> None:
    out = np.zeros((24, 6), np.uint32)
    assert call(library.votes, out) == 0, text(library)
    for lane in range(24):
        odd = sum(1 << k for k in range(1, 24, 2)) & (0xFFF if lane < 12 else 0xFFF000)
        expected = [odd, lane >= 12, lane < 12, 0b111 << 21, 0xFFFFFF, lane + 3 if lane < 12 else lane]
        assert out[lane].tolist() == expected


@pytest.mark.parametrize("shape", [(256, 1, 1), (32, 1, 1), (16, 8, 1), (8, 4, 4), (1024, 1, 1)])
def test_block_sum_by_shuffles_and_shared_memory(library: ctypes.CDLL, both_orders: str, shape: tuple) -> None:
    n = shape[0] * shape[1] * shape[2]
    x = np.arange(5 * n, dtype=np.float32).reshape(5, n) % 97
    out = np.zeros_like(x)
    assert call(library.block_sum, 5, *shape, x, out) == 0, text(library)
    assert (out == x.sum(1, keepdims=True)).all()


def test_barrier_votes_count_only_threads_that_have_not_returned(library: ctypes.CDLL, both_orders: str) -> None:
    out = np.full((90, 4), -1, np.int32)
    assert call(library.barrier_votes, 90, out) == 0, text(library)
    for i in range(90):
        assert out[i].tolist() == ([-1] * 4 if i % 3 == 2 else [30, 1, 0, 1])


def test_threads_run_in_the_order_asked_for(library: ctypes.CDLL, both_orders: str) -> None:
    out = np.full(160, -1, np.int32)
    assert call(library.order, out) == 0, text(library)
    block = [*range(40)] * 2
    ascending = [*block, *(40 + i for i in block)]
    expected = ascending if both_orders == "ascending" else [79 - i for i in ascending]
    assert out.tolist() == expected


@pytest.mark.parametrize(
    "kind, threads, code, words",
    [
        (
            0,
            32,
            TIMEOUT,
            [
                "for ever",
                "16 threads (first: thread 0) wait in __syncwarp at features.cu:",
                "16 threads (first: thread 16) wait in __syncthreads at features.cu:",
            ],
        ),
        (1, 64, TIMEOUT, ["32 threads (first: thread 0) wait in __syncthreads", "32 threads (first: thread 32)"]),
        (
            2,
            64,
            FAILURE,
            ["__shfl_xor_sync at features.cu:", "mask 0xffffffff names lane 5 of warp 0, which has returned"],
        ),
        (3, 32, FAILURE, ["thread (4, 0, 0): __shfl_sync", "mask 0x0000000f does not name lane 4, which calls it"]),
        (4, 32, FAILURE, ["thread (15, 0, 0)", "mask 0x0000ffff does not name lane 16, which it reads"]),
        (5, 32, TIMEOUT, ["16 threads (first: thread 0) wait in __ballot_sync", "with mask 0xffffffff"]),
        (
            6,
            64,
            TIMEOUT,
            ["1 threads (first: thread 0) wait in __syncwarp", "63 threads (first: thread 1) wait in __syncthreads"],
        ),
        (7, 40, FAILURE, ["names lane 8 of warp 1, which does not exist"]),
    ],
)
def test_divergence_is_an_error_not_a_hang(
    library: ctypes.CDLL, kind: int, threads: int, code: int, words: list[str]
) -> None:
    assert library.divergence(kind, threads) == code
    for word in ["divergence_kernel, block (0, 0, 0)", *words]:
        assert word in text(library)
    assert library.divergence(9, threads) == 0, "the next launch is not affected"


def test_uninitialised_shared_memory_reads_as_nan_in_each_block(library: ctypes.CDLL) -> None:
    out = np.zeros((2, 5), np.float32)
    assert call(library.uninitialised, out) == 0, text(library)
    assert np.isnan(out[:, :4]).all() and (out[:, 4] == -1).all()


@pytest.mark.parametrize("dynamic, index, where", [
    (False, 16, "0 bytes after the end of tile[]"), (False, 20, "16 bytes after the end of tile[]"),
    (False, -1, "4 bytes before tile[]"), (True, 16, "0 bytes after the end of row[]"),
    (True, -2, "8 bytes before row[]"),
])  # fmt: skip
def test_shared_memory_out_of_bounds_names_the_array(
    library: ctypes.CDLL, dynamic: bool, index: int, where: str
) -> None:
    out = np.zeros(1, np.float32)
    assert call(library.shared_access, dynamic, True, index, out) == ILLEGAL_ADDRESS
    assert f"shared_access_kernel, block (1, 0, 0): shared memory written out of bounds, {where} of 64 bytes" in text(
        library
    )
    assert call(library.shared_access, dynamic, False, index, out) == 0
    assert np.isnan(out[0]), "a read out of bounds gives NaN"
    assert call(library.shared_access, dynamic, True, 15, out) == 0, text(library)


def test_static_shared_memory_is_one_variable_an_instantiation(library: ctypes.CDLL) -> None:
    out = np.zeros(2, np.int32)
    assert call(library.instances, out) == 0 and out.tolist() == [1, 1]


def test_shared_memory_limits_are_those_of_a_gpu(library: ctypes.CDLL) -> None:
    out = np.zeros(1, np.int32)
    assert library.shared_bytes(48 * 1024 - 1024) == 0, text(library)
    assert library.shared_bytes(48 * 1024 - 1023) == INVALID_VALUE
    assert "49153 bytes of shared memory, the limit is 49152" in text(library)
    assert library.shared_bytes(48 * 1024 + 1) == INVALID_VALUE
    assert "49153 bytes of dynamic shared memory, the limit is 49152" in text(library)
    assert library.too_many_static_bytes() == INVALID_VALUE
    assert call(library.raised_shared_bytes, 60000, 60000, out) == 0, text(library)
    assert call(library.raised_shared_bytes, 60000, 60001, out) == INVALID_VALUE
    assert call(library.raised_shared_bytes, 227 * 1024, 227 * 1024, out) == 0, text(library)
    assert call(library.raised_shared_bytes, 227 * 1024 + 1, 4, out) == INVALID_VALUE


@pytest.mark.parametrize("size", [16, 8, 4, 2])
def test_misaligned_vector_is_an_error(library: ctypes.CDLL, size: int) -> None:
    memory = np.arange(64, dtype=np.uint8)
    base = -memory.ctypes.data % 16
    x, out = memory[base:], np.zeros(4, np.float32)
    assert call(library.vector_copy, size, x, out) == 0, text(library)
    assert out.tobytes()[:size] == x.tobytes()[:size]
    if size > 2:
        assert call(library.vector_copy, size, x[size // 2 :], out) == MISALIGNED
        assert f"thread (0, 0, 0): a vector of {size} bytes at 0x" in text(library)


def test_shared_array_is_no_better_aligned_than_declared(library: ctypes.CDLL) -> None:
    assert library.shared_vector(True) == 0, text(library)
    assert library.shared_vector(False) == MISALIGNED


def test_launch_configurations_fail_as_on_a_gpu(library: ctypes.CDLL) -> None:
    count = np.zeros(1, np.uint64)
    assert call(library.count_threads, 2, 3, 2, 8, 2, 2, count) == 0 and count[0] == 12 * 32
    for configuration in [
        (0, 1, 1, 32, 1, 1), (1, 0, 1, 32, 1, 1), (1, 65536, 1, 1, 1, 1), (1, 1, 65536, 1, 1, 1),
        (2**31, 1, 1, 1, 1, 1), (2**32 - 1, 1, 1, 1, 1, 1),
        (1, 1, 1, 0, 1, 1), (1, 1, 1, 1025, 1, 1), (1, 1, 1, 32, 33, 1), (1, 1, 1, 1, 1, 65),
    ]:  # fmt: skip
        assert call(library.count_threads, *configuration, count) == INVALID_CONFIGURATION, configuration
        assert "count_kernel: a " in text(library)
    assert count[0] == 12 * 32, "nothing ran"
    assert library.error_name(INVALID_CONFIGURATION) == b"cudaErrorInvalidConfiguration"
    assert library.error_string(INVALID_CONFIGURATION) == b"invalid configuration argument"


def test_every_way_to_write_a_launch_runs(library: ctypes.CDLL) -> None:
    out = np.zeros((7, 4), np.float32)
    assert call(library.launches, out) == 0, text(library)
    assert out.T.tolist() == [[2, 2, 3, 4, 5, 10, 16]] * 4


def test_trap_assert_and_nested_launch_end_the_launch_with_thread_and_line(library: ctypes.CDLL) -> None:
    assert library.fault(0) == FAILURE
    assert text(library).startswith("fault_kernel, block (0, 0, 0), thread (3, 0, 0): __trap() at features.cu:")
    assert library.fault(1) == ASSERT
    assert 'thread (5, 0, 0): assert(threadIdx.x < 5 && "few threads") at features.cu:' in text(library)
    assert library.fault(2) == FAILURE and "launches shuffle_types_kernel" in text(library)
    assert library.last_error() == 0, "reading an error clears it"


@pytest.mark.parametrize("name, dtype", [("half", torch.float16), ("bfloat16", torch.bfloat16)])
def test_16_bit_conversions_equal_torch_for_every_pattern(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    narrow = torch.from_numpy(patterns.view(np.int16)).view(dtype)
    wide = np.zeros(65536, np.float32)
    call(library[f"{name}_to_float"], patterns, wide, 65536)
    expected = narrow.float().numpy()
    nan = np.isnan(expected)
    assert (np.isnan(wide) == nan).all() and (wide.view(np.int32)[~nan] == expected.view(np.int32)[~nan]).all()

    # Each value, the middle to the next one (a tie), and the floats on either side of both; then any bits at all.
    between = np.sort(expected[~nan]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        middle = ((between[1:] + between[:-1]) / 2).astype(np.float32)
    around = np.concatenate([expected, middle]).view(np.int32).astype(np.int64)
    around = np.concatenate([around - 1, around, around + 1]).astype(np.uint32)
    random = np.random.default_rng(0).integers(0, 2**32, 500_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([around, random]).view(np.float32)
    out = np.zeros(len(x), np.uint16)
    call(library[f"float_to_{name}"], x, out, len(x))
    right = torch.from_numpy(x).to(dtype).view(torch.int16).numpy().view(np.uint16)
    nan = np.isnan(x)
    assert (out[~nan] == right[~nan]).all() and (out[nan] == 0x7FFF).all()


@pytest.mark.parametrize("name, dtype", [("half", torch.float16), ("bfloat16", torch.bfloat16)])
def test_16_bit_arithmetic_equals_torch(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    a, b = np.random.default_rng(0).integers(0, 65536, (2, 100_000), dtype=np.uint16)
    a[:100], b[50:150] = 0x7FFF, 0x7FFF  # NaN on one side or both
    a[200:300], b[200:300] = 0x0000, 0x8000
    out = np.zeros((len(a), 8), np.uint16)
    call(library[f"{name}_arithmetic"], a, b, out, len(a))
    got = torch.from_numpy(out.view(np.int16)).view(dtype)
    x, y = (torch.from_numpy(v.view(np.int16)).view(dtype) for v in (a, b))
    x, y = (v.where(~v.isnan(), torch.nan) for v in (x, y))  # a GPU knows no signalling NaN, torch's fmax does
    zero = (x == 0) & (y == 0)  # +0 is the larger
    for k, wanted in enumerate(
        [x + y, x - y, x * y, x / y, torch.fmax(x, y), torch.fmin(x, y), torch.maximum(x, y), x < y]
    ):
        wanted = wanted.to(dtype)
        same = (got[:, k] == wanted) | (got[:, k].isnan() & wanted.isnan())
        assert same.all(), (k, a[~same][:4], b[~same][:4])
    assert (torch.signbit(got[zero, 4]) == (torch.signbit(x) & torch.signbit(y))[zero]).all()
    assert (torch.signbit(got[zero, 5]) == (torch.signbit(x) | torch.signbit(y))[zero]).all()


def test_device_arithmetic_has_known_answers(library: ctypes.CDLL) -> None:
    out = np.zeros(17, np.float32)
    assert call(library.arithmetic, out) == 0, text(library)
    assert out.tolist() == [4, 5, 6, 8, 0.25, 0.25, 0.25, 8, 1, 0, 1, -np.inf, 4, 3, 2.5, 8, 10]


def test_atomics_have_known_answers(library: ctypes.CDLL) -> None:
    ints, wide, floats = np.zeros(5, np.int32), np.zeros(1, np.uint64), np.array([0, 0, 9], np.float32)
    assert call(library.atomics, ints, wide, floats) == 0, text(library)
    assert ints.tolist() == [2016, 63, -63, 7, 64]
    assert wide[0] == 64 << 40 and floats.tolist() == [32, 9, 9]


def test_device_attributes_agree_with_the_limits(library: ctypes.CDLL) -> None:
    assert [library.attribute(which) for which in (8, 97, 10, 16)] == [49152, 227 * 1024, 32, 4]
    assert library.attribute(12345) == -1


def test_64_rows_take_milliseconds(library: ctypes.CDLL) -> None:
    x = np.ones((64, 256), np.float32)
    out = np.zeros_like(x)
    call(library.block_sum, 64, 256, 1, 1, x, out)
    start = time.perf_counter()
    call(library.block_sum, 64, 256, 1, 1, x, out)
    assert time.perf_counter() - start < 0.2


# ---- sanitizer runner -----------------------------------------------------------------------------------------------

FAULTS = KERNELS / "faults.cu"
SOURCES = sorted((ROOT / "cuda").glob("*.cu"))
WITH_BARRIERS = [source for source in SOURCES if barriers(source)]


@pytest.fixture(scope="session")
def programs() -> None:
    """Compiles what the tests below run, several at a time."""
    wanted = [("faults", tool, FAULTS) for tool in ("address", "thread")]
    wanted += [(source.stem, "address", source) for source in SOURCES]
    wanted += [(source.stem, "thread", source) for source in WITH_BARRIERS]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda arguments: build_program(*arguments), wanted))


def line_of(mark: str) -> int:
    lines = FAULTS.read_text().splitlines()
    return 1 + next(i for i, line in enumerate(lines) if line.endswith(f"// mark: {mark}"))


def find_fault(fault: int, tool: str, deleted_barrier: int = 0, **case: int | str) -> list[Finding]:
    return sanitize("faults", tool, FAULTS, [{"fault": fault, **case}], deleted_barrier)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    "fault, kind, mark",
    [
        (1, "heap-buffer-overflow (read)", "global read"),
        (2, "heap-buffer-overflow (write)", "global write"),
        (3, "use-after-poison (read)", "static read"),
        (4, "use-after-poison (write)", "static write"),
        (5, "use-after-poison (read)", "dynamic read"),
        (6, "use-after-poison (write)", "dynamic write"),
    ],
)
def test_address_sanitizer_names_the_line_of_an_access_out_of_bounds(fault: int, kind: str, mark: str) -> None:
    found = find_fault(fault, "address")
    assert Finding("address", kind, "faults.cu", line_of(mark)) in found
    assert {f.line for f in found} == {line_of(mark)}


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("fault, mark", [(7, "vector load"), (8, "vector store")])
def test_undefined_sanitizer_names_the_line_of_a_misaligned_vector(fault: int, mark: str) -> None:
    found = find_fault(fault, "address")
    assert any(f.tool == "undefined" and "misaligned address" in f.kind and f.line == line_of(mark) for f in found)
    assert any(f.tool == "cpu_model" and "a vector of 16 bytes" in f.kind for f in found)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("fault, marks", [(9, ["race of blocks"]), (10, ["race in a warp"]),
                                          (12, ["before the shuffle", "after the shuffle"])])  # fmt: skip
def test_thread_sanitizer_names_the_line_of_a_race(fault: int, marks: list[str]) -> None:
    found = find_fault(fault, "thread")
    assert found and {(f.tool, f.kind) for f in found} == {("thread", "data race")}
    assert {f.line for f in found} <= {line_of(mark) for mark in marks}


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("tool", ["address", "thread"])
@pytest.mark.parametrize("fault", [0, 11, 13])
def test_sanitizers_are_silent_where_nothing_is_wrong(tool: str, fault: int) -> None:
    for dtype, order in (("float32", "ascending"), ("bfloat16", "descending")):
        assert find_fault(fault, tool, dtype=dtype, order=order) == []


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    "barrier, lines", [("barrier before reading", ["next write", "last read"]),
                       ("barrier before the next write", ["next write", "last read"])]
)  # fmt: skip
def test_both_barriers_of_a_reduction_called_twice_are_missed(barrier: str, lines: list[str]) -> None:
    found = find_fault(0, "thread", line_of(barrier))
    races = {f.line for f in found if f.tool == "thread"}
    assert races and races <= {line_of(line) for line in lines}


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("source", WITH_BARRIERS, ids=lambda source: source.stem)
def test_every_deleted_barrier_of_the_kernels_is_reported(source: Path) -> None:
    case = {"n_rows": 1, "n_cols": 300}
    assert sanitize(source.stem, "thread", cases=[case]) == []
    for line in barriers(source):
        found = sanitize(source.stem, "thread", cases=[case], deleted_barrier=line)
        assert found, f"{source.name}:{line}: nothing reports that this barrier is missing"


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_kernels_are_clean_under_the_address_sanitizer(source: Path) -> None:
    cases = [{}, {"dtype": "bfloat16", "order": "descending", "n_cols": 37, "x_row_stride": 40, "n_elements": 257}]
    assert sanitize(source.stem, "address", cases=cases) == []
