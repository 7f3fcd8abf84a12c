"""Packaging that pyproject.toml cannot express: the sources a wheel carries, and its native modules.

A wheel holds copies of cuda/, triton/ and results/ inside the package `bindings` (never as top-level folders, which
would land in the user's own `triton` and `cuda` packages) and whichever native modules this machine can build. What
cannot be built is one printed line, never a failed install: bindings.load builds on first use, or says what is missing.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from bindings.build import EXECUTORS, NotBuilt, build_module  # noqa: E402


class BuildPython(build_py):
    """Copies the carried sources and the native modules next to the package's Python files."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout builds on first use, and is its own source
        package = Path(self.build_lib) / "bindings"
        for folder, patterns in {"cuda": ("*.cu", "*.cuh"), "triton": ("*.py",), "results": ("**/*.json",)}.items():
            for pattern in patterns:
                for source in (ROOT / folder).glob(pattern):
                    target = package / "carried" / source.relative_to(ROOT)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, target)
        for executor in EXECUTORS:
            try:
                shutil.copy2(build_module(executor), package)
            except NotBuilt as reason:
                print(f"{executor}: not built: {reason}", file=sys.stderr)


class NativeDistribution(Distribution):
    """A wheel with native modules is for one platform and one Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildPython}, distclass=NativeDistribution)
