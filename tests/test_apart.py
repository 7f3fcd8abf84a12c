"""What is measured in a process of its own: ncu's report, host times, and in which order what is launched."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from synthetic import SPEED, check, sweep

from compare import apart, baselines, correctness, machine, operations, record, sources, timing
from compare.registry import OPERATIONS

ADD = OPERATIONS["vector_add"]
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
SOFTMAX = 'softmax_naive_kernel<float>(const float *, float *, ""long"")'


def rows(*kernels: tuple[str, dict[str, str]]) -> str:
    """What `ncu --csv` prints of these kernels, between what else comes on standard output."""
    lines = ["==PROF== Connected to process 4242 (/usr/bin/python3.12)", '==PROF== Profiling "spin_kernel": 0%....100%']
    lines += ["[null]", "==PROF== Disconnected from process 4242", HEAD]
    for number, (name, values) in enumerate(kernels):
        begin = f'"{number}","4242","python3.12","127.0.0.1","{name}","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0"'
        lines += [f'{begin},"Command line profiler metrics","{m}","byte","{value}"' for m, value in values.items()]
    return "\n".join(lines) + "\n"


READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"


def test_a_report_is_cut_into_launches_at_the_marks_and_summed_over_kernels() -> None:
    mark = (SPIN, {READ: "1,024", WRITE: "0"})
    report = rows(
        mark, (SOFTMAX, {READ: "536,870,912", WRITE: "4,096.5"}), ("exp", {READ: "10", WRITE: "20"}), mark,
        (SOFTMAX, {READ: "7", WRITE: "8"}),
    )  # fmt: skip
    assert apart.parse(report) == [{READ: 536870922, WRITE: 4116.5, "kernels": 2}, {READ: 7, WRITE: 8, "kernels": 1}]


def test_a_launch_of_no_kernel_is_told_from_one_that_moved_nothing() -> None:
    mark = (SPIN, {READ: "1"})
    assert apart.parse(rows(mark, mark, ("exp", {READ: "0"}))) == [{}, {READ: 0, "kernels": 1}]
    assert apart.parse("") == [] == apart.parse(rows())


@pytest.fixture
def measured() -> dict:
    """A record with cold times at three widths, the widest refused by fused, and a graph time."""
    made = sweep(("float32",), (256, 1024, 16384), {"cuda/fused": SPEED["cuda/fused"], "eager": SPEED["eager"]})
    made["measurements"].append({**made["measurements"][0], "method": "graph", "shape": [4, 32]})
    return made


def answers(monkeypatch: pytest.MonkeyPatch, kernels: int = 1, **wrong: str) -> list[list[str]]:
    """Lets every process answer as it would; returns the commands."""
    commands: list[list[str]] = []

    def run_apart(what: str, command: list[str], limit_s: float, **environment: str) -> str:
        commands.append(command)
        asked, operation, cells = json.loads(command[-1])
        assert asked == what and operation == "softmax"
        if what == "do_bench":
            return "a warning\n" + json.dumps([1e-4 * (at + 1) for at in range(len(cells))])
        metrics = command[command.index("--metrics") + 1].split(",")
        mark = (SPIN, dict.fromkeys(metrics, "3"))
        launches = [
            [mark, *[("exp", {m: f"{1000 * (at + 1) + number}" for m in metrics})] * kernels]
            for at in range(len(cells))
            for number in range(apart.REPEATS)
        ]
        return wrong.get(metrics[0], rows(*[kernel for launch in launches for kernel in launch]))

    monkeypatch.setattr(sources, "run_apart", run_apart)
    monkeypatch.setattr(apart.shutil, "which", lambda name: f"/opt/{name}")
    return commands


def test_traffic_is_of_the_narrowest_and_the_widest_cell_that_passed(
    measured: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = answers(monkeypatch, kernels=3)
    found = apart.traffic(OPERATIONS["softmax"], measured)
    assert [(entry["implementation"], entry["shape"][1]) for entry in found] == [
        ("cuda/fused", 256), ("cuda/fused", 1024), ("eager", 256), ("eager", 16384)
    ]  # fmt: skip
    assert {entry["kernels"] for entry in found} == {3}
    assert [entry["dram__bytes_read.sum"] for entry in found] == [3 * (1000 * at + 3) for at in (1, 2, 3, 4)]  # medians
    assert [entry["do_bench_seconds"] for entry in found] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])
    assert [entry["gpu__time_duration.sum"] for entry in found] == [entry["lts__t_bytes.sum"] for entry in found]
    assert len(commands) == len(apart.COUNTERS) + 1
    for command in commands[:-1]:  # ncu's; in front of Python's
        assert command[0] == "/opt/ncu" and command.index("--metrics") < command.index(sys.executable)


def test_a_single_cell_is_profiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    one = sweep(("float32",), (1024,), {"cuda/fused": SPEED["cuda/fused"]})
    assert len(apart.traffic(OPERATIONS["softmax"], one)) == 1


@pytest.mark.parametrize("report", ["", "==WARNING== No kernels were profiled.\n", rows((SPIN, {READ: "1"}))])
def test_a_report_that_lacks_launches_is_one_line(report: str, measured: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, **{"lts__t_bytes.sum": report})
    with pytest.raises(sources.Environment, match=r"^ncu: found [01] launches; wanted 28$"):
        apart.traffic(OPERATIONS["softmax"], measured)


def test_without_ncu_there_is_one_line(measured: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart.shutil, "which", lambda name: None)
    with pytest.raises(sources.Environment, match="no ncu"):
        apart.traffic(OPERATIONS["softmax"], measured)


def test_what_a_process_says_last_is_the_reason_that_it_failed() -> None:
    def run(code: str, limit_s: float = 60) -> str:
        return sources.run_apart("ncu", [sys.executable, "-c", code], limit_s, NAME="value")

    assert run("import os, compare; print(os.environ['NAME'])") == "value\n"
    with pytest.raises(sources.Environment, match="^ncu: ValueError: bad$"):
        run("raise ValueError('bad')")
    with pytest.raises(sources.Environment, match=r"^ncu: ==ERROR== ERR_NVGPUCTRPERM$"):
        run("print('==ERROR== ERR_NVGPUCTRPERM\\n==PROF== Disconnected'); raise SystemExit(1)")
    with pytest.raises(sources.Environment, match="^ncu: exit status 3$"):
        run("raise SystemExit(3)")
    with pytest.raises(sources.Environment, match=r"^ncu: not finished after 0.1 s$"):
        run("import time; time.sleep(9)", 0.1)


def test_every_launch_for_ncu_is_flushed_before_and_marked_within_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    @contextlib.contextmanager
    def profile():
        done.append("(")
        yield
        done.append(")")

    monkeypatch.setattr(torch.cuda.profiler, "profile", profile)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("mark"))
    clock = SimpleNamespace(flush=lambda: done.append("flush"), synchronize=lambda: done.append("wait"))
    apart.launch_for_ncu(lambda: done.append("launch"), clock)
    assert done == ["launch", *["flush", "wait", "(", "mark", "launch", "wait", ")"] * apart.REPEATS]


def test_host_time_is_that_of_a_call_and_waits_for_the_gpu_outside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(apart, "perf_counter_ns", lambda: now[0])
    order: list[str] = []

    def call(name: str, ns: int) -> None:
        order.append(name)
        now[0] += ns

    calls = {"raw binding": lambda: call("raw", 2_000), "public face": lambda: call("face", 9_000)}
    found = apart.sample(calls, lambda: call("wait", 10**9))
    assert found == {"raw binding": [2_000] * apart.SAMPLES, "public face": [9_000] * apart.SAMPLES}
    assert order[: 2 * apart.CALLS + 3 : apart.CALLS + 1] == ["wait", "wait", "wait"]  # interleaved
    assert order[1] == "raw" and order[apart.CALLS + 2] == "face"


def test_every_way_to_call_computes_and_is_timed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "CALLS", 1)
    monkeypatch.setattr(apart, "SAMPLES", 2)
    sample = apart.sample

    def checked(calls: dict, synchronize: object) -> dict:
        for call in calls.values():
            out.fill_(torch.nan)
            call()
            assert torch.equal(out, x + y)
        return sample(calls, synchronize)

    monkeypatch.setattr(apart, "sample", checked)
    x, y, out = (torch.ones(33, device=device) for _ in range(3))
    ways = {}
    for one in [*operations.implementations(ADD), *baselines.baselines(ADD, compiled=False)]:
        entries = apart.host_times(ADD, one, (x, y), out, lambda: None, {"vector_add_naive": 7.25})
        ways[one.name] = [entry["method"] for entry in entries]
        assert all(entry["seconds"]["median"] > 0 and entry["shape"] == [33] for entry in entries)
        assert {entry["seconds"]["n"] for entry in entries if entry["method"] not in ("first call", "nvcc build")} == {
            2
        }
    assert ways["cuda/naive"] == ["first call", "nvcc build", "raw binding", "public face"]
    assert ways["triton/naive"] == ["first call", "JIT dispatch", "public face"]
    assert ways["torch.add"] == ["first call", "call"]


def test_host_asks_a_process_with_empty_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict = {}

    def run_apart(what: str, command: list[str], limit_s: float, **environment: str) -> str:
        seen.update(environment, task=json.loads(command[-1]))
        return 'a warning\n[{"implementation": "eager"}]\n'

    made = sweep(("float32",), (1024,), {name: SPEED[name] for name in ("cuda/naive", "triton/fused", "eager")})
    made["checks"].append(check("cuda/naive", (4, 33), "float32", "gpu", "failed"))
    monkeypatch.setattr(sources, "run_apart", run_apart)
    assert apart.host(OPERATIONS["softmax"], made) == [{"implementation": "eager"}]
    what, operation, cells = seen["task"]
    assert (what, operation) == ("host", "softmax")
    asked = [name for name, shape in cells if shape == [128, 4096]]
    assert {"triton/fused", "eager"} <= {*asked} and "cuda/naive" not in asked
    assert seen["TRITON_CACHE_DIR"] != seen["TORCHINDUCTOR_CACHE_DIR"]


@pytest.mark.gpu
@pytest.mark.timed
def test_on_a_gpu_the_bare_call_costs_less_than_the_public_face() -> None:
    made = record.new("vector_add", "", {"date": "2026-12-01"})
    names = ("cuda/naive", "triton/naive", "torch.add")
    made["checks"] = [{"implementation": name, "dtype": "float32", "status": "passed"} for name in names]
    found = apart.host(ADD, made)
    medians = {(entry["implementation"], entry["method"]): entry["seconds"]["median"] for entry in found}
    assert medians["cuda/naive", "raw binding"] < medians["cuda/naive", "public face"] < 1e-3
    assert medians["triton/naive", "JIT dispatch"] < medians["triton/naive", "public face"]
    assert medians["triton/naive", "first call"] > 1e-2  # it compiles


@pytest.mark.gpu
@pytest.mark.timed
@pytest.mark.skipif(apart.shutil.which("ncu") is None, reason="needs ncu")
def test_on_a_gpu_three_clocks_agree_on_a_large_launch() -> None:
    made = record.new("vector_add", "", machine.describe())
    clock, chosen = timing.CudaClock(), [one for one in baselines.everything(ADD) if one.name == "triton/naive"]
    made["measurements"] = timing.measure_cell(
        ADD, (2**27,), torch.float32, chosen, clock, correctness.recheck, seed=0
    ).measurements
    made["implementations"] = [{"name": "triton/naive", "language": "triton", "rung": "naive"}]
    made["checks"] = [{"implementation": "triton/naive", "dtype": "float32", "status": "passed"}]
    (found,) = apart.traffic(ADD, made)
    cold = made["measurements"][0]["seconds"]["median"]
    assert found["gpu__time_duration.sum"] / 1e9 == pytest.approx(cold, rel=0.05)
    assert found["do_bench_seconds"] == pytest.approx(cold, rel=0.1)
    assert found["dram__bytes_read.sum"] == pytest.approx(2 * 4 * 2**27, rel=0.05) and found["kernels"] == 1
