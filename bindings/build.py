"""Build the native modules over cuda/ with ninja: `_gpu` by nvcc, `_cpu_model` by the host's C++ compiler.

One function, `build_module`, serves the first use in a checkout (bindings.load) and setup.py. ninja decides what is
out of date, so a build with nothing to do costs a few hundredths of a second, and an edited .cu is rebuilt alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The checkout; in an installed package, the copies of cuda/ and triton/ that it carries.
CHECKOUT = (HERE.parent / "cuda" / "softmax_naive.cu").is_file() and (HERE.parent / "pyproject.toml").is_file()
ROOT = HERE.parent if CHECKOUT else HERE / "carried"
MODEL = HERE / "cpu_model"
EXECUTORS = ("gpu", "cpu_model")
MINIMUM_NVCC = (12, 1)  # the first with the st.async of clusters

NVCC_FROM_PYPI = "pip install -e '.[nvcc]'" if CHECKOUT else "pip install 'ninja-gap[nvcc]'"
NVCC_HINT = f"install the CUDA toolkit and put nvcc on PATH, or: {NVCC_FROM_PYPI}"


class NotBuilt(RuntimeError):
    """A native module is not there. The text says why and what to do, in one line."""


class BuildFailed(NotBuilt):
    """A compiler ran and rejected a source: not a missing tool, a mistake in the code."""


@dataclass(frozen=True)
class Nvcc:
    """An nvcc that answered: its path, its version, and the toolkit it takes headers and libraries from."""

    path: str
    version: tuple[int, int]
    toolkit: Path
    architectures: tuple[str, ...]  # what it can compile for, as "9.0"

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.stdout


def _nvcc_candidates() -> list[tuple[str, str]]:
    """(where it was named, path) in the order tried: CUDA_HOME, PATH, the extra [nvcc] from PyPI."""
    home = os.environ.get("CUDA_HOME")
    if home:
        return [("CUDA_HOME", str(Path(home) / "bin" / "nvcc"))]
    found = shutil.which("nvcc")
    candidates = [("PATH", found)] if found else []
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        candidates += [("the extra [nvcc]", str(p)) for p in sorted(Path(site).glob("nvidia/cu*/bin/nvcc"))]
    return candidates


@cache
def find_nvcc() -> Nvcc:
    """The nvcc to use. Raises NotBuilt: none found, CUDA_HOME without one, too old, or it does not run."""
    candidates = _nvcc_candidates()
    if not candidates:
        raise NotBuilt(f"no nvcc (looked at CUDA_HOME, PATH and the extra [nvcc]); {NVCC_HINT}")
    source, path = candidates[0]
    if not os.access(path, os.X_OK):
        raise NotBuilt(f"{source} names {path}, where there is no nvcc; unset {source} or {NVCC_HINT}")
    try:
        version = re.search(r"release (\d+)\.(\d+)", _run([path, "--version"]))
        # A wrapper script's own folder is not the toolkit's: ask nvcc where it works.
        top = re.search(r"^#\$ TOP=(.*)$", _run([path, "--dryrun", "-x", "cu", os.devnull]), re.MULTILINE)
        listed = re.findall(r"compute_(\d+)(\d)\b", _run([path, "--list-gpu-arch"]))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{path} does not run ({error}); {NVCC_HINT}") from error
    if not version or not top:
        raise NotBuilt(f"{path} does not answer as nvcc does; {NVCC_HINT}")
    found = (int(version[1]), int(version[2]))
    if found < MINIMUM_NVCC:
        wanted = ".".join(map(str, MINIMUM_NVCC))
        raise NotBuilt(f"{path} is nvcc {version[1]}.{version[2]}, wanted {wanted} or newer; {NVCC_HINT}")
    return Nvcc(path, found, Path(top[1].strip()).resolve(), tuple(f"{a}.{b}" for a, b in listed))


def gpu_architectures() -> tuple[str, ...]:
    """Compute capabilities of the GPUs present, as ("9.0",); empty without a driver."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return ()
    found = re.findall(r"^\d+\.\d$", _run([smi, "--query-gpu=compute_cap", "--format=csv,noheader"]), re.MULTILINE)
    return tuple(sorted(set(found)))


def _architecture_flags(nvcc: Nvcc) -> tuple[list[str], str]:
    """nvcc's flags and their text: TORCH_CUDA_ARCH_LIST, else the GPUs present, else all major ones plus PTX."""
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    architectures = asked or list(gpu_architectures())
    if not architectures:
        return ["-arch=all-major"], "all major architectures"
    flags = []
    for architecture in architectures:
        number = re.fullmatch(r"(\d+\.\d)a?(\+PTX)?", architecture)
        if not number or number[1] not in nvcc.architectures:
            source = "TORCH_CUDA_ARCH_LIST" if asked else "the GPU present"
            raise NotBuilt(
                f"{source} asks for {architecture}, which nvcc {nvcc.version_text} cannot compile for; "
                f"it knows {', '.join(nvcc.architectures)}"
            )
        if number[2] and float(number[1]) < 9:  # code for clusters is compiled from there on, but launched by the GPU
            raise NotBuilt(f"TORCH_CUDA_ARCH_LIST asks for {architecture}; wanted PTX of 9.0 or newer, or none")
        name = architecture.replace(".", "").removesuffix("+PTX")
        flags.append(f"-gencode=arch=compute_{name},code=sm_{name}")
        if number[2]:
            flags.append(f"-gencode=arch=compute_{name},code=compute_{name}")
    return flags, ", ".join(architectures)


def find_cxx() -> str:
    """The host's C++ compiler: CXX, else g++, clang++ or c++. Raises NotBuilt."""
    asked = os.environ.get("CXX")
    for name in [asked] if asked else ["g++", "clang++", "c++"]:
        found = shutil.which(shlex.split(name)[0])
        if found:
            return " ".join([shlex.quote(found), *map(shlex.quote, shlex.split(name)[1:])])
    raise NotBuilt(f"no C++ compiler (looked for {asked or 'g++, clang++, c++'}); install one: apt install g++")


def host_compiler() -> list[str]:
    """nvcc's option for the C++ compiler that CXX names; none if it names none, and nvcc chooses. Raises NotBuilt."""
    return [f"-ccbin={shlex.split(find_cxx())[0]}"] if os.environ.get("CXX") else []


def find_ninja() -> str:
    """ninja: the package's own program, else the one on PATH. Raises NotBuilt."""
    try:
        import ninja

        packaged = Path(ninja.BIN_DIR) / "ninja"
        if packaged.exists():
            return str(packaged)
    except ImportError:
        pass
    found = shutil.which("ninja")
    if not found:
        raise NotBuilt("no ninja; pip install ninja")
    return found


def _escape(path: Path | str) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _ninja_file(executor: str, module: Path) -> str:
    """The text of build.ninja."""
    try:
        import pybind11
    except ImportError as error:
        raise NotBuilt("no pybind11; pip install pybind11") from error
    includes = [pybind11.get_include(), sysconfig.get_path("include")]
    names = sorted(p.stem for p in HERE.glob("*.cu"))
    directory = module.parent
    defines = f"-DMODULE_NAME={module.name.split('.')[0]} -DEXECUTOR='\"{executor}\"'"
    rules, rewritten = [], []
    if executor == "gpu":
        nvcc = find_nvcc()
        flags, built_for = _architecture_flags(nvcc)
        host = " ".join(["-std=c++17 -O3 -Xcompiler=-fPIC,-fvisibility=hidden", *map(shlex.quote, host_compiler())])
        compiler, depfile = shlex.quote(nvcc.path), "-MD -MF $out.d"
        kernel = f"{host} {' '.join(flags)} -x cu"
        glue = f"{host} -Wno-deprecated-gpu-targets"
        # Static cudart: no second CUDA runtime to find at import. The toolkit from PyPI keeps it in lib, not lib64.
        link = f"{host} -shared -cudart=static -L{shlex.quote(str(nvcc.toolkit / 'lib'))}"
        include_kernels = [ROOT, HERE]
    else:
        built_for = "cpu"
        # Some distributions turn _FORTIFY_SOURCE on: its longjmp forbids what fibers do, to leave a stack. CUDA code
        # looks at the same bytes as two types: nvcc allows that, a C++ compiler has to be told.
        host = "-std=c++17 -O2 -g1 -fPIC -fvisibility=hidden -fno-strict-aliasing -U_FORTIFY_SOURCE"
        host += " -include cuda_runtime.h"
        compiler, depfile = find_cxx(), "-MMD -MF $out.d"
        kernel, glue, link = f"{host} -x c++", f"{host} -x c++", "-shared"
        include_kernels = [directory, MODEL / "include", HERE]
        rewriter = f"{shlex.quote(sys.executable)} {shlex.quote(str(MODEL / 'rewrite.py'))}"
        rules.append(f"rule rewrite\n  command = {rewriter} $in $out\n  description = rewrite $in\n")
        for source in sorted([*(ROOT / "cuda").glob("*.cu"), *(ROOT / "cuda").glob("*.cuh")]):
            target = directory / "cuda" / source.name
            rewritten.append(_escape(target))
            rules.append(f"build {rewritten[-1]}: rewrite {_escape(source)} | {_escape(MODEL / 'rewrite.py')}\n")
    defines += f" -DBUILT_FOR='\"{built_for}\"'"
    kernel_includes = " ".join(f"-I{shlex.quote(str(p))}" for p in include_kernels)
    glue_includes = kernel_includes + "".join(f" -I{shlex.quote(str(p))}" for p in includes)
    head = [
        f"rule kernel\n  command = {compiler} {kernel} {depfile} {kernel_includes} -c $in -o $out",
        "  depfile = $out.d\n  deps = gcc\n  description = compile $in\n",
        f"rule glue\n  command = {compiler} {glue} {depfile} {defines} {glue_includes} -c $in -o $out",
        "  depfile = $out.d\n  deps = gcc\n  description = compile $in\n",
        f"rule link\n  command = {compiler} {link} $in -o $out\n  description = link $out\n",
    ]
    objects = []
    for name in names:
        objects.append(_escape(directory / f"{name}.o"))
        rules.append(f"build {objects[-1]}: kernel {_escape(HERE / f'{name}.cu')} || {' '.join(rewritten)}\n")
    for source in [HERE / "module.cpp"] + ([MODEL / "runtime.cpp"] if executor == "cpu_model" else []):
        objects.append(_escape(directory / f"{source.stem}.o"))
        rules.append(f"build {objects[-1]}: glue {_escape(source)}\n")
    rules.append(f"build {_escape(module)}: link {' '.join(objects)}\n")
    return "\n".join(head + rules)


def build_module(executor: str) -> Path:
    """Build the module of `executor` ("gpu" or "cpu_model") if anything changed, and return its path.

    That is below build/ in the checkout, or in the user's cache for an installed package.

    Raises NotBuilt with the reason and the remedy (a tool is missing, an architecture is not known), BuildFailed with
    the compiler's report.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor: got {executor!r}, wanted one of {', '.join(EXECUTORS)}")
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = ROOT / "build" if CHECKOUT else cache_home / "ninja-gap"
    ninja = find_ninja()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    # Another Python, compiler or list of architectures gets a folder of its own, so that switching back costs nothing.
    text = _ninja_file(executor, Path("/") / f"_{executor}{suffix}")
    key = hashlib.sha256(f"{text}{suffix}".encode()).hexdigest()[:12]
    module = directory / f"{executor}-{key}" / f"_{executor}{suffix}"
    module.parent.mkdir(parents=True, exist_ok=True)
    with open(module.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits, then finds nothing to do
        ninja_file = module.parent / "build.ninja"
        text = _ninja_file(executor, module)
        if not ninja_file.exists() or ninja_file.read_text() != text:
            ninja_file.write_text(text)
        done = subprocess.run(
            [ninja, "-C", str(module.parent), str(module)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if done.returncode:
        raise BuildFailed(f"building {executor} failed; the compiler's report:\n{_report(done.stdout)}")
    return module


def build_seconds(executor: str) -> dict[str, float]:
    """Seconds that each .cu of bindings/ took when it was last compiled here, by stem, beside the others that ninja
    compiled at the same time; empty where an installed package brought the module. Raises as build_module."""
    if not CHECKOUT:
        return {}
    log = (build_module(executor).parent / ".ninja_log").read_text(encoding="utf-8")
    lines = [line.split("\t") for line in log.splitlines() if not line.startswith("#")]
    took = {Path(output): (int(end) - int(begin)) / 1000 for begin, end, _, output, *_ in lines}  # the last of each
    return {path.stem: seconds for path, seconds in took.items() if (HERE / f"{path.stem}.cu").exists()}


def _report(output: str) -> str:
    """The compiler's own lines: without ninja's progress and the command line."""
    lines = [line for line in output.splitlines() if not re.match(r"\[\d+/\d+\]|ninja: ", line)]
    return "\n".join(line for line in lines if " -c " not in line)[:4000]
