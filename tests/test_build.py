"""Building and installing: what each missing tool says, what is rebuilt, and what a wheel holds."""

import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bindings import build
from bindings.build import NotBuilt

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bindings", "compare", "cuda", "triton", "results")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture
def fresh_search():
    """find_nvcc remembers its answer; these tests change what it would find."""
    build.find_nvcc.cache_clear()
    yield
    build.find_nvcc.cache_clear()


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, to edit and build apart, in a folder whose name has spaces."""
    target = tmp_path_factory.mktemp("a folder") / "with spaces"
    for folder in filter(lambda name: (ROOT / name).is_dir(), FOLDERS):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, target)
    return target


def run(code: str, cwd: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", code]
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    return subprocess.run(command, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=250)


# What each missing tool says


def test_no_nvcc_is_one_line_that_says_how_to_get_it(monkeypatch, tmp_path, fresh_search):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(NotBuilt, match=r"^no nvcc .*pip install -e '\.\[nvcc\]'$"):
        build.find_nvcc()


def test_cuda_home_without_nvcc_is_named(monkeypatch, fresh_search):
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    with pytest.raises(
        NotBuilt, match="CUDA_HOME names /nonexistent/bin/nvcc, where there is no nvcc; unset CUDA_HOME"
    ):
        build.find_nvcc()


def test_an_old_nvcc_is_refused_with_both_versions(monkeypatch, tmp_path, fresh_search):
    old = 'echo "Cuda compilation tools, release 10.2, V10.2.89"; echo "#\\$ TOP=/usr/local/cuda" >&2'
    program(tmp_path / "bin" / "nvcc", old)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(NotBuilt, match=r"nvcc 10\.2, wanted 12\.1 or newer"):
        build.find_nvcc()


def test_what_is_no_nvcc_is_refused(monkeypatch, tmp_path, fresh_search):
    program(tmp_path / "bin" / "nvcc", "echo hello")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(NotBuilt, match="does not answer as nvcc does"):
        build.find_nvcc()


def test_the_toolkit_of_a_wrapper_script_is_not_the_scripts_folder(monkeypatch, tmp_path, fresh_search):
    real = shutil.which("nvcc")
    if real is None:
        pytest.skip("no nvcc here")
    wrapper = program(tmp_path / "nvcc", f'exec {real} "$@"')
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = build.find_nvcc()
    assert found.path == str(wrapper) and found.toolkit != tmp_path.parent
    assert (found.toolkit / "include" / "cuda_runtime.h").is_file() or list(found.toolkit.glob("**/cuda_runtime.h"))


def test_ptx_that_newer_gpus_would_run_without_clusters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for 8.0, a cluster's kernel is empty; on a 9.0 it would be launched all the same."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0 8.0+PTX")
    with pytest.raises(build.NotBuilt, match=r"8\.0\+PTX.*9\.0 or newer"):
        build._architecture_flags(build.find_nvcc())


@pytest.mark.parametrize("asked", ["7.0", "9.0;7.0+PTX", "sm_90", "9"])
def test_an_architecture_that_nvcc_does_not_know_is_named(monkeypatch, asked):
    nvcc = build.Nvcc("nvcc", (13, 0), Path("/"), ("7.5", "8.0", "9.0"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    with pytest.raises(
        NotBuilt, match="TORCH_CUDA_ARCH_LIST asks for .*, which nvcc 13.0 cannot compile for; it knows 7.5"
    ):
        build._architecture_flags(nvcc)


def test_architectures_become_flags(monkeypatch):
    nvcc = build.Nvcc("nvcc", (13, 0), Path("/"), ("7.5", "8.0", "9.0"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0 9.0a+PTX")
    flags, built_for = build._architecture_flags(nvcc)
    assert flags == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_90a,code=compute_90a",
    ]
    assert built_for == "8.0, 9.0a+PTX"
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST")
    monkeypatch.setattr(build, "gpu_architectures", lambda: ())
    assert build._architecture_flags(nvcc) == (["-arch=all-major"], "all major architectures")


def test_no_compiler_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NotBuilt, match=r"no C\+\+ compiler \(looked for g\+\+, clang\+\+, c\+\+\); install one"):
        build.find_cxx()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotBuilt, match="looked for no-such-compiler"):
        build.find_cxx()


def test_ninja_is_found_without_being_on_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(build.find_ninja()).is_file()


def test_an_unknown_executor_is_refused():
    with pytest.raises(ValueError, match="executor: got 'tpu', wanted one of gpu, cpu_model"):
        build.build_module("tpu")


@pytest.mark.parametrize("module", ["torch", "triton"])
def test_a_missing_package_is_one_line(module, tmp_path):
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["compare", "vector_add", "--device", "cpu", "--output-dir", {str(tmp_path)!r}]
from compare.cli import main
sys.exit(main())
"""
    done = run(code, ROOT)
    said = [line for line in (done.stdout + done.stderr).splitlines() if ": " + module + " is not installed" in line]
    assert len(said) == 1 and "pip install" in said[0], done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == (3 if module == "torch" else 0)


def test_a_folder_that_only_looks_like_triton_is_named(tmp_path):
    code = (
        "import sys, types; m = types.ModuleType('triton'); m.__path__ = ['/here/triton']; sys.modules['triton'] = m\n"
    )
    code += "from compare import sources\nsources.require_triton()"
    done = run(code, ROOT)
    assert done.stderr.splitlines()[-1].endswith(
        "MissingTriton: `import triton` finds a folder that is not Triton (/here/triton); pip install 'triton>=3.6'"
    )


@pytest.mark.parametrize(
    ("triton", "numpy", "words"), [("3.4.0", "2.0.0", "wanted 3.6"), ("3.6.0", "2.4.1", "triton>=3.8")]
)
def test_versions_that_do_not_work_are_named(monkeypatch, triton, numpy, words):
    import numpy as real_numpy
    import triton as real_triton

    from compare import sources

    monkeypatch.setattr(real_triton, "__version__", triton)
    monkeypatch.setattr(real_numpy, "__version__", numpy)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(sources.MissingTriton, match=words):
        sources.require_triton()


# What is rebuilt

SOFTMAX = """
import torch
from compare import operations
operations.run_on("cpu")
x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
got = operations.softmax(x, rung="naive", language="cuda")
print((got - torch.softmax(x, -1)).abs().max().item() < 1e-6, round(got.sum().item(), 3))
"""


def test_a_path_with_a_space_and_a_rebuild_of_only_what_changed(checkout):
    done = run(SOFTMAX, checkout)
    assert done.stdout.startswith("True"), done.stderr[-2000:]
    (module,) = (checkout / "build").glob("cpu_model-*")
    before = {file.name: file.stat().st_mtime_ns for file in module.glob("*.o")}

    source = checkout / "cuda" / "softmax_naive.cu"
    original = source.read_text()
    edited = original.replace("T(float(out_row[col]) / sum)", "T(float(out_row[col]) / sum * 2.0f)")
    assert edited != original
    source.write_text(edited)
    done = run(SOFTMAX, checkout)
    assert done.stdout == "False 6.0\n", done.stdout + done.stderr[-2000:]
    after = {file.name: file.stat().st_mtime_ns for file in module.glob("*.o")}
    assert {name for name in after if after[name] != before[name]} == {"softmax_naive.o"}

    source.write_text(original.replace("float(out_row[col]) / sum", "float(out_row[col]) / summe"))
    done = run("import bindings; bindings.load('cpu_model')", checkout)
    source.write_text(original)
    assert "BuildFailed: building cpu_model failed" in done.stderr and "softmax_naive.cu:60:" in done.stderr, (
        done.stderr
    )


def test_a_build_with_nothing_to_do_is_quick():
    code = "import time; from bindings.build import build_module\n"
    code += "build_module('cpu_model'); t = time.time(); build_module('cpu_model'); print(time.time() - t)"
    assert float(run(code, ROOT).stdout) < 0.5  # 0.1 s on an idle machine


def test_every_launchers_time_to_compile_is_known_after_a_build(monkeypatch):
    took = build.build_seconds("cpu_model")
    assert took.keys() == {path.stem for path in (ROOT / "bindings").glob("*.cu")}
    assert all(0.05 < seconds < 600 for seconds in took.values())
    monkeypatch.setattr(build, "CHECKOUT", False)  # an installed package brought its module
    assert build.build_seconds("cpu_model") == {}


# What a wheel holds


def test_a_wheel_carries_its_sources_and_runs_from_another_folder(checkout, tmp_path):
    wheels, site, elsewhere = tmp_path / "wheels", tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = os.environ | {"CUDA_HOME": "/nonexistent"}  # the CPU half alone: quicker
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build_wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(checkout)]
    subprocess.run(build_wheel, check=True, env=environment, timeout=250)
    (wheel,) = wheels.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for source in [*ROOT.glob("cuda/*.cu*"), *ROOT.glob("triton/*.py"), *ROOT.glob("results/*/*.json")]:
        assert f"bindings/carried/{source.relative_to(ROOT).as_posix()}" in names
    assert any(name.startswith("bindings/_cpu_model") for name in names)
    assert {f"compare/templates/{path.name}" for path in ROOT.glob("compare/templates/*")} <= set(names)
    assert {"compare/claims.ini", "bindings/probe/latency.cu"} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"bindings", "compare"}

    install = [*pip, "install", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=100)
    code = "import compare; from bindings import build; assert not build.CHECKOUT and 'site' in compare.__file__\n"
    done = run(code + SOFTMAX, elsewhere, PYTHONPATH=str(site), HOME=str(elsewhere), XDG_CACHE_HOME=str(elsewhere))
    assert done.stdout.startswith("True"), done.stderr[-2000:]
    assert not (elsewhere / "ninja-gap").exists()  # the module that the wheel brought was used, nothing was built
    lists = run("import sys; from compare.cli import main; sys.exit(main(['--list']))", elsewhere, PYTHONPATH=str(site))
    assert lists.returncode == 0 and "cuda/fused" in lists.stdout
