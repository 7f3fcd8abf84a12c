"""Where the sources and the records lie, and how a Triton twin is loaded.

In a checkout they are read where they are edited; an installed package carries copies (bindings.build.ROOT).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from bindings.build import HERE as BINDINGS
from bindings.build import ROOT
from compare import lines
from compare.registry import LANGUAGES, Operation

RESULTS = ROOT / "results"

# Triton 3.10 turns this default around, and 3.9 warns of it; the twins are compiled, and measured, with fused
# multiply-adds.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


class Environment(RuntimeError):
    """This machine lacks something that is needed. The text says why and what to do, in one line."""


def run_apart(what: str, command: list[str], limit_s: float, **environment: str) -> str:
    """The output of a process of its own, which can import this package. Raises Environment with `what` and what it
    said last, or a line of ncu's that says what failed."""
    how: dict[str, Any] = {"cwd": BINDINGS.parent, "env": {**os.environ, **environment}, "timeout": limit_s}
    try:
        done = subprocess.run(command, capture_output=True, text=True, **how)
    except subprocess.TimeoutExpired:
        raise Environment(f"{what}: not finished after {limit_s} s") from None
    if done.returncode:
        said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        telling = [line for line in said if line.startswith("==ERROR==")] + said[-1:]
        raise Environment(f"{what}: {[*telling, f'exit status {done.returncode}'][0]}")
    return done.stdout


class MissingTriton(Environment):
    """Triton cannot be used."""


def cuda_source(stem: str) -> Path:
    """The CUDA half of a pair, as "softmax_fused"."""
    return ROOT / "cuda" / f"{stem}.cu"


def triton_source(stem: str) -> Path:
    """The Triton half of a pair."""
    return ROOT / "triton" / f"{stem}.py"


def binding_source(stem: str) -> Path:
    """The lines that bind the CUDA half to Python."""
    return BINDINGS / f"{stem}.cu"


def kernel_sources(language: str, stem: str) -> tuple[Path, ...]:
    """The files with the kernels and launches of one implementation: the twin, then the headers of its regimes."""
    if language == "triton":
        return (triton_source(stem),)
    return (cuda_source(stem), *sorted((ROOT / "cuda").glob(f"{stem}*.cuh")))


def sources(language: str, stem: str) -> tuple[Path, ...]:
    """Every file whose tokens make up one implementation."""
    return (*kernel_sources(language, stem), *([binding_source(stem)] if language == "cuda" else []))


def fingerprints(operation: Operation) -> dict[str, str]:
    """The fingerprint of every implementation of ours, by its name."""
    return {
        f"{language}/{rung.name}": lines.fingerprint(sources(language, operation.stem(rung.name)))
        for language in LANGUAGES
        for rung in operation.rungs
    }


def implementations(operation: Operation, only: str | None = None) -> list[dict[str, Any]]:
    """The record's entries of our implementations, of every rung or `only` of one: what their sources tell."""
    entries, prints = [], fingerprints(operation)
    for name in prints:
        language, _, rung_name = name.partition("/")
        stem, rung = operation.stem(rung_name), operation.rung(rung_name)
        count = lines.total(kernel_sources(language, stem))
        none = lines.Count({"binding": 0}, {"binding": 0})  # the JIT binds Triton's
        binding = lines.count(binding_source(stem), "binding") if language == "cuda" else none
        entries.append({
            "name": name, "language": language, "rung": rung_name,
            "lines": count.lines | binding.lines, "tokens": count.tokens | binding.tokens,
            "passes": {"reads": rung.reads, "writes": rung.writes}, "launches": rung.launches,
            "fingerprint": prints[name],
        })  # fmt: skip
    return [entry for entry in entries if only in (None, entry["rung"])]


def interpreted() -> bool:
    """True where Triton's kernels run in its interpreter: TRITON_INTERPRET is set."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def use_interpreter() -> None:
    """Make Triton interpret its kernels in this process. Raises MissingTriton when it is too late: Triton decides at
    its import, for its own library too."""
    if interpreted():
        return
    if "triton" in sys.modules:
        raise MissingTriton("triton was imported before TRITON_INTERPRET=1 was set; set it before starting Python")
    os.environ["TRITON_INTERPRET"] = "1"


def require_triton() -> None:
    """Raises MissingTriton unless `import triton` finds the real package, 3.6 or newer."""
    try:
        import triton
    except ImportError as error:
        raise MissingTriton(f"triton is not installed ({error}); pip install 'triton>=3.6'") from error
    version = getattr(triton, "__version__", None)
    if version is None:  # a bare folder named triton, such as ours, is an empty package to Python
        places = ", ".join(triton.__path__)
        raise MissingTriton(f"`import triton` finds a folder that is not Triton ({places}); pip install 'triton>=3.6'")
    if tuple(int(part) for part in version.split(".")[:2]) < (3, 6):
        raise MissingTriton(f"triton is {version}, wanted 3.6 or newer; pip install 'triton>=3.6'")
    if interpreted() and tuple(int(part) for part in version.split(".")[:2]) < (3, 8):
        import numpy

        if tuple(int(part) for part in numpy.__version__.split(".")[:2]) >= (2, 4):
            raise MissingTriton(
                f"triton {version}'s interpreter does not work with numpy {numpy.__version__}; "
                "pip install 'triton>=3.8', or 'numpy<2.4'"
            )


def load_triton_driver() -> None:
    """Do what Triton does once a process: be imported, compile its driver, load it. Raises MissingTriton."""
    require_triton()
    from triton.runtime.driver import driver

    driver.active.get_current_device()


@cache
def load_twin(stem: str) -> ModuleType:
    """The module of triton/<stem>.py, loaded by its path under a private name (our folder never is `triton`).

    Raises MissingTriton, or FileNotFoundError when there is no such twin.
    """
    require_triton()
    path = triton_source(stem)
    if not path.is_file():
        raise FileNotFoundError(f"no Triton twin {path}")
    name = f"_twin_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton looks a kernel's globals up by its module
    spec.loader.exec_module(module)
    return module
