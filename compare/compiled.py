"""What the compilers made of every kernel: registers, spills, shared memory, occupancy. No GPU is needed.

    facts("softmax", "sm_90")                              in any process
    python -m compare.compiled --target sm_90 softmax      what it runs: the same as a line of JSON

Every implementation is launched through the public face, on CPU tensors of SHAPES, so that exactly what it would
launch is compiled. Only the lowest layer is a stand-in that writes launches down: bindings/launch_log.cpp for the CUDA
runtime, and for Triton a driver that names the target and is never asked to launch. All this in a process of its own,
because Triton's interpreter and its compiler cannot share one.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bindings.build import HERE, ROOT, find_nvcc, gpu_architectures, host_compiler
from compare import sources
from compare.registry import DTYPES, OPERATIONS, Implementation, Operation, Shape

# A multiprocessor's limits by target: resident warps, resident blocks, KiB of shared memory (CUDA programming guide,
# "Technical Specifications per Compute Capability"). Every one has 65536 registers in four partitions.
LIMITS = {
    "sm_75": (32, 16, 64), "sm_80": (64, 32, 164), "sm_86": (48, 16, 100), "sm_87": (48, 16, 164),
    "sm_89": (48, 24, 100), "sm_90": (64, 32, 228), "sm_100": (64, 32, 228), "sm_103": (64, 32, 228),
    "sm_110": (48, 24, 228), "sm_120": (48, 24, 100), "sm_121": (48, 24, 100),
}  # fmt: skip
SHAPES: dict[str, tuple[Shape, ...]] = {"rows": ((4096, 1024), (4096, 12288)), "elements": ((2**24,),)}
TIME_LIMIT = 60  # seconds

Facts = dict[str, list[dict[str, Any]]]
Kernel = tuple[int, int, int]  # registers a thread, bytes spilled a thread, bytes of static shared memory a block
# What a stand-in writes down: a name that tells kernel and configuration apart, threads a block, registers and bytes
# spilled a thread, bytes of shared memory a block.
Launch = tuple[str, int, int, int, int]


def default_target() -> str:
    """The target of the GPU present, else of the published records' GPU."""
    return "sm_" + [*gpu_architectures(), "9.0"][0].replace(".", "")


def facts(operation: str, target: str | None = None) -> tuple[Facts, list[str]]:
    """record["implementations"][...]["compiled"] by implementation name; and a line on each one that is not there.

    An entry: {"dtype", "target", "variant", "threads" (a block), "registers" (a thread), "spills" (bytes a thread),
    "shared_bytes" (a block, static and dynamic), "occupancy" (0 to 1)}; launches of SHAPES that come to the same are
    one. target: a key of LIMITS, default default_target(). Raises nothing: a missing tool, an unknown target, a source
    that does not compile and a compiler slower than TIME_LIMIT are lines of the second result.
    """
    target = target or default_target()
    command = [sys.executable, "-m", "compare.compiled", "--target", target, operation]
    try:  # in the folder where `compare` lies, in a checkout and installed
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return {}, [f"compiling for {target} took more than {TIME_LIMIT} s"]
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {}, [f"compiling for {target}: {said[-1]}"]
    found = json.loads(done.stdout.splitlines()[-1])
    return found["facts"], found["reasons"]


def occupancy(target: str, threads: int, registers: int, shared_bytes: int) -> float:
    """Resident warps / the most that a multiprocessor of `target` holds; 0.0 where not one block fits.

    threads and shared_bytes (static and dynamic) a block, registers a thread. The on-chip memory is taken to be split
    for the kernel's good, as the driver does.
    """
    most_warps, most_blocks, shared_kib = LIMITS[target]
    warps = -(-threads // 32)
    warp_registers = -(-registers * 32 // 256) * 256  # a warp gets them by 256, all from one partition
    by_registers = 65536 // 4 // warp_registers * 4 // warps
    reserved, unit = (0, 256) if target == "sm_75" else (1024, 128)  # from sm_80 on the system takes 1 KiB a block
    by_shared = shared_kib * 1024 // max(-(-(shared_bytes + reserved) // unit) * unit, 1)
    return min(most_blocks, most_warps // warps, by_registers, by_shared) * warps / most_warps


def parse_ptxas(report: str) -> dict[str, Kernel]:
    """The kernels of a `ptxas -v` report, by their names in the machine code.

    Spilled are the bytes that a thread stores to local memory for want of registers, in the kernel and what it calls.
    """
    parts = re.split(r"Compiling entry function '([^']+)'", report)[1:]
    kernels: dict[str, Kernel] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        registers = int(re.findall(r"Used (\d+) registers", text)[0])
        spills, shared = (sum(map(int, re.findall(rf"(\d+) bytes {what}", text))) for what in ("spill stores", "smem"))
        kernels[name] = (registers, spills, shared)
    return kernels


def _run(*command: str | Path) -> str:
    """A program's output. Raises RuntimeError with the line of it that says what failed."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        telling = [line for line in done.stdout.splitlines() if re.search(r"\b(error|fatal|undefined)\b", line)]
        raise RuntimeError(f"{Path(command[0]).name}: {[*telling, f'exit status {done.returncode}'][0]}")
    return done.stdout


def _native_module(operation: Operation, target: str, directory: Path, launches: list[Launch]) -> SimpleNamespace:
    """Compile the launchers with launch_log.cpp as their runtime. In the result, as in the native module, each is a
    function; it adds what it would launch to `launches`."""
    program = directory / "launch_log"
    options = ["-std=c++17", f"-arch={target}", "-Xptxas=-v", "-cudart=none", f"-I{ROOT}", f"-I{HERE}"]
    options.append(f"-DCOMPUTE_CAPABILITY={target.removeprefix('sm_')}")
    launchers = [sources.binding_source(operation.stem(rung.name)) for rung in operation.rungs]
    kernels = parse_ptxas(
        _run(find_nvcc().path, *host_compiler(), *options, *launchers, HERE / "launch_log.cpp", "-o", program)
    )

    def launcher(stem: str, dtype: str, *arguments: int) -> None:
        for line in _run(program, stem, dtype, *map(str, arguments)).splitlines():
            symbol, name, threads, dynamic = line.split("\t")
            name = re.sub(r"^void |<(float|__half|__nv_bfloat16)>|\(.*", "", name)  # the dtype stands beside it
            variant = f"{name} threads={threads}" + (f" dynamic_shared={dynamic}" if dynamic != "0" else "")
            registers, spills, static = kernels[symbol]
            launches.append((variant, int(threads), registers, spills, static + int(dynamic)))

    parameters = {stem: names.split(", ") for stem, names in re.findall(r"(.+)\t(.+)", _run(program))}
    return SimpleNamespace(parameters=parameters, **{stem: partial(launcher, stem) for stem in parameters})


def _use_triton_compiler(target: str, launches: list[Launch]) -> None:
    """From now on, launching a Triton kernel compiles it for `target` and adds it to `launches` instead."""
    sources.require_triton()
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as report:
            kernel = run(function, *args, grid=grid, warmup=True, **options)
        # One kernel, or none if an earlier launch came to the same.
        for registers, spills, static in parse_ptxas(report.getvalue()).values():
            warps = kernel.metadata.num_warps
            constants = [f"{function.arg_names[path[0]]}={value}" for path, value in kernel.src.constants.items()]
            variant = " ".join([kernel.metadata.name, *constants, f"num_warps={warps}"])
            launches.append((variant, warps * 32, registers, spills, static + kernel.metadata.shared))
        return kernel

    JITFunction.run = compile_only
    gpu = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    # Device 0 and stream 0, which is what int makes of nothing and of 0.
    driver.set_active(SimpleNamespace(get_current_target=lambda: gpu, get_current_device=int, get_current_stream=int))


def _entries(operation: Operation, one: Implementation, target: str, launches: list[Launch]) -> list[dict[str, Any]]:
    import torch

    entries: list[dict[str, Any]] = []
    for dtype in DTYPES:
        for shape in SHAPES[operation.kind]:
            launches.clear()
            *inputs, out = (torch.empty(shape, dtype=getattr(torch, dtype)) for _ in range(operation.n_inputs + 1))
            one.prepare(tuple(inputs), out)()
            for variant, threads, registers, spills, shared in launches:
                entry = {
                    "dtype": dtype, "target": target, "variant": variant, "threads": threads, "registers": registers,
                    "spills": spills, "shared_bytes": shared, "occupancy": occupancy(target, threads, registers, shared)
                }  # fmt: skip
                if entry not in entries:
                    entries.append(entry)
    if not entries:
        raise RuntimeError("it launched nothing, or ptxas reported nothing")
    return entries


def _compile(operation: Operation, target: str, directory: Path) -> dict[str, Any]:
    """{"facts", "reasons"}, the results of `facts`, in the process of its own."""
    found: Facts = {}
    reasons: dict[str, list[str]] = {}
    launches: list[Launch] = []
    with ThreadPoolExecutor(1) as pool:
        native = pool.submit(_native_module, operation, target, directory, launches)  # beside Triton's compiler
        from compare.operations import implementations

        with contextlib.suppress(sources.MissingTriton):  # every twin says so when it is loaded
            _use_triton_compiler(target, launches)
        with patch("bindings.load", lambda executor: native.result()), patch("compare.sources.use_interpreter"):
            for one in reversed(implementations(operation)):  # Triton first
                try:
                    found[one.name] = _entries(operation, one, target, launches)
                except Exception as error:  # a compiler may fail in any way, and the others' facts still stand
                    text = " ".join(str(error).split())[:300] or type(error).__name__
                    reasons.setdefault(text, []).append(one.name)
    return {"facts": found, "reasons": [f"{', '.join(names[::-1])}: {text}" for text, names in reasons.items()]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m compare.compiled")
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("--target", choices=LIMITS, default=default_target())
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        # ptxas' report comes on standard output, for compile_only, and only of kernels that are not in the cache: hence
        # an empty one. The public face takes CPU tensors where it sees no GPU.
        os.environ |= dict(TRITON_CACHE_DIR=directory, TRITON_DUMP_PTXAS_LOG="1", TRITON_INTERPRET="0")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        print(json.dumps(_compile(OPERATIONS[given.operation], given.target, Path(directory))))


if __name__ == "__main__":
    main()
