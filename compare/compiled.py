"""What the compilers made of every kernel: registers, spills, shared memory, occupancy. No GPU is needed.

    facts("softmax", "sm_90")                              in any process
    python -m compare.compiled --target sm_90 softmax      what it runs: the same as a line of JSON
    ... --dtypes float32 --stages DIR                      also machine code, and what Triton's JIT specialises on

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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from sys import maxsize
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
SHAPES: dict[str, tuple[Shape, ...]] = {
    "rows": ((4096, 1024), (4096, 12288), (128, 1048576)),
    "elements": ((2**24,),),
}
# Beside SHAPES with --stages: a size that is no multiple of 16.
CONTRAST: dict[str, Shape] = {"rows": (4096, 1023), "elements": (2**24 - 1,)}
SWEEP = range(1, 257)  # columns or elements for which --stages counts the variants that Triton's JIT builds
TIME_LIMIT = 120  # seconds
MEMORY = {"LDG", "STG", "LDGSTS", "LDS", "STS", "LDL", "STL"}  # instructions whose name ends in their width
# Instructions that are counted by name; every other one only in "all".
TELLING = re.compile(r"(LD|ST)[GSL]|LDGSTS|UBLK|LDSM|SHFL|REDUX|BAR|SYNCS|MUFU|F(FMA|ADD|MUL|MNMX)|RED|ATOM")

Facts = dict[str, list[dict[str, Any]]]
Kernel = tuple[int, int, int]  # registers a thread, bytes spilled a thread, bytes of static shared memory a block
# What a stand-in writes down: "variant" (tells kernel and configuration apart), "threads" a block, "registers" and
# bytes of "spills" a thread, "shared_bytes" a block, "multiples_of_16" (arguments that the compiler was told to be
# such), and "stages", which gives the code on its way down by file suffix, in order, "sass" last.
Launch = dict[str, Any]


def default_target() -> str:
    """The target of the GPU present, else of the published records' GPU."""
    return "sm_" + [*gpu_architectures(), "9.0"][0].replace(".", "")


def facts(operation: str, target: str | None = None, *more: str) -> tuple[Facts, list[str]]:
    """record["implementations"][...]["compiled"] by implementation name; and a line on each one that is not there.

    An entry: {"dtype", "target", "variant", "shape" (the first that came to it), "threads" (a block), "registers" (a
    thread), "spills" (bytes a thread), "shared_bytes" (a block, static and dynamic), "occupancy" (0 to 1),
    "multiples_of_16" (arguments)}; launches of SHAPES that come to the same are one. target: a key of LIMITS, default
    default_target(). `more`: options of this module's command line. Raises nothing: a missing tool, an unknown target,
    a source that does not compile and a compiler slower than TIME_LIMIT are lines of the second result.
    """
    target = target or default_target()
    command = [sys.executable, "-m", "compare.compiled", "--target", target, *more, operation]
    try:
        found = json.loads(sources.run_apart(f"compiling for {target}", command, TIME_LIMIT).splitlines()[-1])
    except sources.Environment as reason:
        return {}, [str(reason)]
    return found["facts"], found["reasons"]


def instructions(sass: str) -> dict[str, int]:
    """How often the telling instructions stand in a kernel's machine code, those of memory by bits a thread:
    {"LDG.128": 4, "MUFU.EX2": 8, ..., "all": 312}. A loop's body counts once; padding does not count."""
    counts: Counter[str] = Counter()
    for opcode in re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", sass, re.MULTILINE):
        name, *parts = opcode.split(".")
        if name in MEMORY:
            name += "." + next(
                (bits for part in parts if (bits := part.lstrip("US")) in ("8", "16", "64", "128")), "32"
            )
        elif name == "MUFU":
            name = ".".join((name, *parts[:1]))
        counts.update([name] * bool(TELLING.match(name)) + ["all"] * (name != "NOP"))
    return dict(sorted(counts.items()))


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


@cache
def _code(binary: Path, kind: str) -> dict[str, str]:
    """The "ptx" or "sass" of a compiled file, by the names of its kernels; cuobjdump comes with Triton."""
    sources.require_triton()
    from triton.knobs import nvidia

    ends = {"ptx": r"\.entry (\w+)\(.*?^}", "sass": r"Function : (\S+).*?\.{5}"}
    found = re.finditer(ends[kind], _run(nvidia.cuobjdump.path, f"-{kind}", binary), re.DOTALL | re.MULTILINE)
    return {match[1]: match[0] for match in found}


def _native_module(
    operation: Operation, given: argparse.Namespace, directory: Path, launches: list[Launch]
) -> SimpleNamespace:
    """Compile the launchers with launch_log.cpp as their runtime. In the result, as in the native module, each is a
    function; it adds what it would launch to `launches`."""
    program = directory / "launch_log"
    options = ["-std=c++17", f"-arch={given.target}", "-Xptxas=-v", "-cudart=none", f"-I{ROOT}", f"-I{HERE}"]
    options.append(f"-DCOMPUTE_CAPABILITY={given.target.removeprefix('sm_')}")
    if given.dtypes in DTYPES:
        options.append(f"-DBIND_ONLY={DTYPES.index(given.dtypes)}")
    launchers = [sources.binding_source(operation.stem(rung.name)) for rung in operation.rungs]
    kernels = parse_ptxas(
        _run(find_nvcc().path, *host_compiler(), *options, *launchers, HERE / "launch_log.cpp", "-o", program)
    )

    def stages(symbol: str) -> dict[str, str]:
        return {kind: _code(program, kind)[symbol] for kind in ("ptx", "sass")}

    def launcher(stem: str, dtype: str, *arguments: int) -> None:
        for line in _run(program, stem, dtype, *map(str, arguments)).splitlines():
            symbol, name, threads, dynamic = line.split("\t")
            name = re.sub(r"^void |<(float|__half|__nv_bfloat16)>|\(.*", "", name)  # the dtype stands beside it
            variant = f"{name} threads={threads}" + (f" dynamic_shared={dynamic}" if dynamic != "0" else "")
            registers, spills, static = kernels[symbol]
            launches.append({
                "variant": variant, "threads": int(threads), "registers": registers, "spills": spills,
                "shared_bytes": static + int(dynamic), "multiples_of_16": [], "stages": partial(stages, symbol),
            })  # fmt: skip

    parameters = {stem: names.split(", ") for stem, names in re.findall(r"(.+)\t(.+)", _run(program))}
    return SimpleNamespace(parameters=parameters, **{stem: partial(launcher, stem) for stem in parameters})


def _use_triton_compiler(target: str, launches: list[Launch]) -> None:
    """From now on, launching a Triton kernel compiles it for `target` and adds it to `launches` instead."""
    sources.require_triton()
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    run = JITFunction.run
    built: dict[str, Launch] = {}

    def stages(kernel: Any) -> dict[str, str]:
        cubin = Path(tempfile.mkdtemp(dir=os.environ["TRITON_CACHE_DIR"]), "cubin")
        cubin.write_bytes(kernel.asm["cubin"])
        above = {kind: str(kernel.asm[kind]) for kind in ("ttir", "ttgir", "llir", "ptx")}
        return above | {"sass": _code(cubin, "sass")[kernel.metadata.name]}

    def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as report:
            kernel = run(function, *args, grid=grid, warmup=True, **options)
        # One kernel, or none if an earlier launch came to the same.
        for registers, spills, static in parse_ptxas(report.getvalue()).values():
            warps, names = kernel.metadata.num_warps, function.arg_names
            constants = [f"{names[path[0]]}={value}" for path, value in kernel.src.constants.items()]
            multiples = [names[path[0]] for path, told in kernel.src.attrs.items() if ["tt.divisibility", 16] in told]
            variant = " ".join([kernel.metadata.name, *constants, f"num_warps={warps}"])
            built[kernel.hash] = {
                "variant": variant, "threads": warps * 32, "registers": registers, "spills": spills,
                "shared_bytes": static + kernel.metadata.shared, "multiples_of_16": multiples,
                "stages": partial(stages, kernel),
            }  # fmt: skip
        if kernel:  # none while _jit_variants only counts
            launches.append(built[kernel.hash])
        return kernel

    JITFunction.run = compile_only
    gpu = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    # Device 0 and stream 0, which is what int makes of nothing and of 0.
    driver.set_active(SimpleNamespace(get_current_target=lambda: gpu, get_current_device=int, get_current_stream=int))


def _launch(operation: Operation, one: Implementation, shape: Shape, dtype: str) -> None:
    import torch

    *inputs, out = (torch.empty(shape, dtype=getattr(torch, dtype)) for _ in range(operation.n_inputs + 1))
    one.prepare(tuple(inputs), out)()


def _jit_variants(operation: Operation, one: Implementation) -> Counter[str]:
    """By kernel, how many variants Triton's JIT would build for every size of SWEEP in every dtype."""
    from triton.knobs import runtime

    asked: set[tuple[str, str]] = set()

    def instead(*, key: str, fn: Any, **_: Any) -> bool:
        asked.add((fn.name, key))
        return True  # do not compile

    runtime.jit_cache_hook = instead
    for dtype in DTYPES:
        for n in SWEEP:
            _launch(operation, one, (64, n) if operation.kind == "rows" else (n,), dtype)
    runtime.jit_cache_hook = None
    return Counter(name.split(".")[-1] for name, _ in asked)


def _entries(
    operation: Operation, one: Implementation, given: argparse.Namespace, launches: list[Launch]
) -> list[dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    stages: dict[str, Callable[[], dict[str, str]]] = {}
    shapes = SHAPES[operation.kind] + ((CONTRAST[operation.kind],) if given.stages else ())
    # First, because Triton asks for nothing that it has compiled already.
    variants = _jit_variants(operation, one) if given.stages and one.language == "triton" else Counter()
    most = operation.rung(one.rung or "").max_cols or maxsize
    for dtype, shape in product(given.dtypes.split(","), [shape for shape in shapes if shape[-1] <= most]):
        launches.clear()
        _launch(operation, one, shape, dtype)
        for launch in launches:
            facts = {name: value for name, value in launch.items() if name != "stages"}
            resources = (facts[name] for name in ("threads", "registers", "shared_bytes"))
            facts["occupancy"] = occupancy(given.target, *resources)
            key = f"{dtype} {facts}"  # launches that come to the same are one
            stages.setdefault(key, launch["stages"])
            entries.setdefault(key, {"dtype": dtype, "target": given.target, "shape": list(shape), **facts})
    if not entries:
        raise RuntimeError("it launched nothing, or ptxas reported nothing")
    if given.stages:
        folder = given.stages / operation.name / one.name.replace("/", "_")
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool:  # a disassembler takes half a second to start
            for entry, code in zip(entries.values(), pool.map(lambda key: stages[key](), entries), strict=True):
                words = (entry["variant"], "x".join(map(str, entry["shape"])), entry["dtype"])
                for suffix, text in code.items():
                    name = re.sub(r"[^\w=.]+", ".", ".".join((*words, suffix)))  # a template's brackets, too
                    (folder / name).write_text(text, encoding="utf-8")
                entry["instructions"] = instructions(code["sass"])
                if count := variants.get(entry["variant"].split()[0]):
                    entry["jit"] = {"launches": len(DTYPES) * len(SWEEP), "variants": count}
    return list(entries.values())


def _compile(operation: Operation, given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """{"facts", "reasons"}, the results of `facts`, in the process of its own."""
    found: Facts = {}
    reasons: dict[str, list[str]] = {}
    launches: list[Launch] = []
    with ThreadPoolExecutor(1) as pool:
        native = pool.submit(_native_module, operation, given, directory, launches)  # beside Triton's compiler
        from compare.operations import implementations

        with contextlib.suppress(sources.MissingTriton):  # every twin says so when it is loaded
            _use_triton_compiler(given.target, launches)
        with patch("bindings.load", lambda executor: native.result()), patch("compare.sources.use_interpreter"):
            for one in reversed(implementations(operation)):  # Triton first
                try:
                    found[one.name] = _entries(operation, one, given, launches)
                except Exception as error:  # a compiler may fail in any way, and the others' facts still stand
                    text = " ".join(str(error).split())[:300] or type(error).__name__
                    reasons.setdefault(text, []).append(one.name)
    return {"facts": found, "reasons": [f"{', '.join(names[::-1])}: {text}" for text, names in reasons.items()]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m compare.compiled")
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("--target", choices=LIMITS, default=default_target())
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--stages", type=Path, help="write the code on its way down there, and say more of it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        # ptxas' report comes on standard output, for compile_only, and only of kernels that are not in the cache: hence
        # an empty one. The public face takes CPU tensors where it sees no GPU.
        os.environ |= dict(TRITON_CACHE_DIR=directory, TRITON_DUMP_PTXAS_LOG="1", TRITON_INTERPRET="0")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        print(json.dumps(_compile(OPERATIONS[given.operation], given, Path(directory))))


if __name__ == "__main__":
    main()
