"""Compile facts: reading ptxas' report, the arithmetic of occupancy, and both compilers without the target's GPU."""

import argparse
import dataclasses
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bindings.build import NotBuilt, find_nvcc
from compare import compiled, operations, sources
from compare.registry import DTYPES, OPERATIONS, SOFTMAX

ENTRY = {"dtype", "target", "shape", "variant", "threads", "registers", "spills", "shared_bytes", "occupancy",
         "multiples_of_16"}  # fmt: skip

# nvcc 13.0 on a kernel template for three dtypes.
THREE_DTYPES = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z20softmax_fused_kernelI13__nv_bfloat16EvPKT_PS1_lll' for 'sm_90'
ptxas info    : Function properties for _Z20softmax_fused_kernelI13__nv_bfloat16EvPKT_PS1_lll
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 34 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 41.603 ms
ptxas info    : Compiling entry function '_Z20softmax_fused_kernelI6__halfEvPKT_PS1_lll' for 'sm_90'
ptxas info    : Function properties for _Z20softmax_fused_kernelI6__halfEvPKT_PS1_lll
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 33 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 36.607 ms
ptxas info    : Compiling entry function '_Z20softmax_fused_kernelIfEvPKT_PS0_lll' for 'sm_90'
ptxas info    : Function properties for _Z20softmax_fused_kernelIfEvPKT_PS0_lll
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
ptxas info    : Compile time = 34.875 ms
"""

# nvcc 13.0 -maxrregcount=32: a function that is called and spills, then a kernel that spills itself.
SPILLS = """\
ptxas info    : Overriding maximum register limit 256 for '_Z5callsPfi' with  32 of maxrregcount option
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5callsPfi' for 'sm_90'
ptxas info    : Function properties for _Z5callsPfi
    336 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 336 bytes cumulative stack size, 132 bytes smem
ptxas info    : Compile time = 50.032 ms
ptxas info    : Function properties for _Z6helperPfi
    0 bytes stack frame, 164 bytes spill stores, 180 bytes spill loads
ptxas info    : Compiling entry function '_Z6spillyIdEvPT_i' for 'sm_90'
ptxas info    : Function properties for _Z6spillyIdEvPT_i
    16 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 16 bytes cumulative stack size
"""

# CUDA 11 counts the bytes of constant memory on the same line.
CUDA_11 = """\
ptxas info    : Compiling entry function 'kernel_0d1d' for 'sm_80'
ptxas info    : Function properties for kernel_0d1d
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, 48 bytes smem, 376 bytes cmem[0]
"""


def needs_nvcc() -> None:
    try:
        find_nvcc()
    except NotBuilt as reason:
        pytest.skip(str(reason))


def needs_triton() -> None:
    try:
        import triton  # noqa: F401
    except ImportError as reason:
        pytest.skip(str(reason))


def test_each_dtype_of_a_template_keeps_its_own_registers_and_shared_bytes():
    assert compiled.parse_ptxas(THREE_DTYPES) == {
        "_Z20softmax_fused_kernelI13__nv_bfloat16EvPKT_PS1_lll": (34, 0, 256),
        "_Z20softmax_fused_kernelI6__halfEvPKT_PS1_lll": (33, 0, 256),
        "_Z20softmax_fused_kernelIfEvPKT_PS0_lll": (32, 0, 0),
    }


def test_spills_are_the_bytes_stored_by_the_kernel_and_by_what_it_calls():
    assert compiled.parse_ptxas(SPILLS) == {"_Z5callsPfi": (32, 164, 132), "_Z6spillyIdEvPT_i": (254, 16, 0)}


def test_constant_memory_is_not_taken_for_shared_memory():
    assert compiled.parse_ptxas(CUDA_11) == {"kernel_0d1d": (18, 0, 48)}


def test_output_without_a_kernel_is_no_kernel():
    assert compiled.parse_ptxas("ptxas info    : 0 bytes gmem\n") == {}


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared_bytes", "expected"),
    [
        ("sm_90", 256, 32, 0, 1.0),
        ("sm_90", 1024, 64, 0, 0.5),  # 65536 registers are one block
        ("sm_90", 256, 33, 0, 48 / 64),  # 40 a thread once rounded up, 12 warps a partition
        ("sm_90", 256, 32, 100 * 1024, 16 / 64),  # 2 blocks of 101 KiB in 228
        ("sm_90", 512, 32, 49408, 1.0),  # 4 blocks of 49.25 KiB
        ("sm_90", 1024, 32, 227 * 1024, 0.5),  # the most that one block may have
        ("sm_90", 1024, 32, 228 * 1024, 0.0),
        ("sm_90", 32, 32, 0, 0.5),  # 32 blocks of one warp
        ("sm_86", 1024, 32, 0, 32 / 48),  # 48 warps are one and a half blocks
        ("sm_75", 512, 32, 0, 1.0),
        ("sm_75", 256, 32, 64 * 1024, 8 / 32),  # nothing reserved: a block may have all
        ("sm_120", 128, 255, 0, 8 / 48),
        ("sm_90", 1024, 65, 0, 0.0),  # would not launch
    ],
)
def test_occupancy_of_known_cases(target, threads, registers, shared_bytes, expected):
    assert compiled.occupancy(target, threads, registers, shared_bytes) == expected


NVIDIAS_CALCULATOR = r"""
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, warps, shared, threads, registers, bytes;
    while (std::scanf("%d %d %d %d %d %d %d", &major, &minor, &warps, &shared, &threads, &registers, &bytes) == 7) {
        cudaOccDeviceProp device;
        device.computeMajor = major, device.computeMinor = minor, device.warpSize = 32;
        device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = 32 * warps;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.numSms = 1;
        device.sharedMemPerMultiprocessor = shared, device.sharedMemPerBlock = 49152;
        device.reservedSharedMemPerBlock = major < 8 ? 0 : 1024;
        device.sharedMemPerBlockOptin = shared - device.reservedSharedMemPerBlock;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF, kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = bytes, kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, bytes)) return 1;
        std::printf("%d\n", result.activeBlocksPerMultiprocessor);
    }
}
"""


def nvidias_header() -> Path:
    """The folder of cuda_occupancy.h: of the toolkit, or of Triton, which carries one."""
    folders = []
    try:
        folders.append(find_nvcc().toolkit / "include")
    except NotBuilt:
        pass
    try:
        import triton

        folders.append(Path(triton.__file__).parent / "backends" / "nvidia" / "include")
    except ImportError:
        pass
    for folder in folders:
        if (folder / "cuda_occupancy.h").is_file() and (folder / "cuda_runtime_api.h").is_file():
            return folder
    pytest.skip("no cuda_occupancy.h, neither of a CUDA toolkit nor of Triton")


def test_occupancy_agrees_with_nvidias_own_calculator_on_every_target(tmp_path):
    header, compiler = nvidias_header(), shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler")
    (tmp_path / "calculator.cpp").write_text(NVIDIAS_CALCULATOR)
    program = tmp_path / "calculator"
    subprocess.run([compiler, f"-I{header}", tmp_path / "calculator.cpp", "-o", program], check=True)
    threads, registers = (32, 96, 128, 256, 480, 512, 1024), (16, 32, 33, 40, 64, 72, 128, 255)
    shared = (0, 100, 4352, 10880, 16384, 20096, 49408, 65536)  # 10880 and 20096 tell 128 bytes a unit from 256
    cases = list(itertools.product(compiled.LIMITS, threads, registers, shared))
    lines = []
    for target, *launch in cases:
        warps, _, shared_kib = compiled.LIMITS[target]
        number = target.removeprefix("sm_")
        lines.append(" ".join(map(str, (number[:-1], number[-1], warps, shared_kib * 1024, *launch))))
    said = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    for case, blocks in zip(cases, said.stdout.split(), strict=True):
        warps = compiled.LIMITS[case[0]][0]
        assert compiled.occupancy(*case) == int(blocks) * (case[1] // 32) / warps, case


def test_a_failed_compilation_is_told_by_the_compilers_line_and_not_by_its_last(tmp_path):
    script = "print('k.cu(7): error: no such name'); print('1 error detected'); print('bye'); raise SystemExit(2)"
    with pytest.raises(RuntimeError, match=r"k\.cu\(7\): error: no such name$"):
        compiled._run(sys.executable, "-c", script)


def test_a_launcher_says_its_own_block_size_and_dynamic_shared_memory(tmp_path):
    needs_nvcc()
    launches: list[compiled.Launch] = []
    only_fused = dataclasses.replace(SOFTMAX, rungs=(SOFTMAX.rung("fused"),))
    given = argparse.Namespace(target="sm_90", dtypes="bfloat16")
    module = compiled._native_module(only_fused, given, tmp_path, launches)
    assert module.parameters == {"softmax_fused": "x out n_rows n_cols x_row_stride out_row_stride".split()}
    for n_cols in (100, 781, 12288):
        module.softmax_fused("bfloat16", 4096, 8192, 10, n_cols, n_cols, n_cols, 0)
    told = [(launch["variant"], launch["threads"]) for launch in launches]
    assert told == [
        ("softmax_fused_kernel threads=32 dynamic_shared=400", 32),
        ("softmax_fused_kernel threads=256 dynamic_shared=3124", 256),
        ("softmax_fused_kernel threads=512 dynamic_shared=49152", 512),
    ]
    static = {one["shared_bytes"] - dynamic for one, dynamic in zip(launches, (400, 3124, 49152), strict=True)}
    assert len(static) == 1 and 0 < static.pop() <= 1024
    with pytest.raises(RuntimeError, match="launch_log"):
        module.softmax_fused("float64", 4096, 8192, 10, 32, 32, 32, 0)


@pytest.fixture(scope="module")
def vector_add() -> tuple[compiled.Facts, list[str]]:
    needs_nvcc()
    needs_triton()
    return compiled.facts("vector_add", "sm_90")


def test_both_languages_are_compiled_for_a_target_that_is_not_here_in_every_dtype(vector_add):
    found, reasons = vector_add
    assert reasons == []
    assert set(found) == {
        f"{language}/{rung.name}" for language in ("cuda", "triton") for rung in OPERATIONS["vector_add"].rungs
    }
    for entries in found.values():
        assert {entry["dtype"] for entry in entries} == set(DTYPES)
        for entry in entries:
            assert set(entry) == ENTRY
            assert 4 <= entry["registers"] <= 255 and entry["spills"] == 0 and 0 < entry["occupancy"] <= 1
            assert entry["occupancy"] == compiled.occupancy(
                "sm_90", entry["threads"], entry["registers"], entry["shared_bytes"]
            )


def test_a_variant_names_the_kernel_and_its_configuration(vector_add):
    found, _ = vector_add
    assert {(e["variant"], e["threads"]) for e in found["cuda/naive"]} == {("vector_add_naive_kernel threads=256", 256)}
    assert {(e["variant"], e["threads"]) for e in found["triton/naive"]} == {
        ("vector_add_naive_kernel BLOCK=1024 num_warps=4", 128)
    }


def test_a_missing_nvcc_costs_only_the_cuda_half(monkeypatch, tmp_path):
    needs_triton()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found, reasons = compiled.facts("vector_add", "sm_90")
    assert set(found) == {f"triton/{rung.name}" for rung in OPERATIONS["vector_add"].rungs}
    assert len(reasons) == 1 and reasons[0].startswith("cuda/naive") and "CUDA_HOME" in reasons[0]
    assert "triton" not in reasons[0]


def test_neither_compiler_is_two_lines_and_no_exception(monkeypatch, tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('gone')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found, reasons = compiled.facts("softmax", "sm_90")
    assert found == {}
    assert sorted(line.split("/")[0] for line in reasons) == ["cuda", "triton"]
    assert any("pip install 'triton" in line and "triton/naive" in line and "triton/fused" in line for line in reasons)


@pytest.mark.parametrize("target", ["sm_17", "90", "hopper"])
def test_an_unknown_target_is_one_line_that_names_it_and_the_known_ones(target):
    found, reasons = compiled.facts("softmax", target)
    assert found == {}
    assert len(reasons) == 1 and target in reasons[0] and "sm_90" in reasons[0] and "\n" not in reasons[0]


def test_a_compiler_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(compiled, "TIME_LIMIT", 0.05)
    assert compiled.facts("softmax", "sm_90") == ({}, ["compiling for sm_90: not finished after 0.05 s"])


@pytest.mark.parametrize(("present", "expected"), [((), "sm_90"), (("8.6", "9.0"), "sm_86"), (("12.0",), "sm_120")])
def test_the_target_is_the_gpu_present_or_else_the_published_one(monkeypatch, present, expected):
    monkeypatch.setattr(compiled, "gpu_architectures", lambda: present)
    assert compiled.default_target() == expected


@pytest.mark.gpu
def test_triton_registers_are_those_of_the_kernel_that_the_gpu_loads(monkeypatch):
    """The same launch as in facts, on the GPU: the driver's count for the loaded kernel."""
    from triton.runtime.jit import JITFunction

    kernels: list[Any] = []
    run = JITFunction.run

    def keep(function: Any, *args: Any, **options: Any) -> Any:
        kernels.append(run(function, *args, **options))
        return kernels[-1]

    monkeypatch.setattr(JITFunction, "run", keep)
    found, _ = compiled.facts("softmax", compiled.default_target())
    for n_cols in (1024, 12288):
        operations.softmax(torch.zeros(4096, n_cols, device="cuda"), rung="fused", language="triton")
    told = [e["registers"] for e in found["triton/fused"] if e["dtype"] == "float32"]
    assert told == [kernel.n_regs for kernel in kernels]


def test_loading_the_module_imports_neither_torch_nor_triton():
    script = "import sys, compare.compiled; print([m for m in ('torch', 'triton') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], cwd=sources.ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
