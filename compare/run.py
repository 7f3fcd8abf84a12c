"""Make a record of one operation: count lines, check, compile, measure. cli.py calls this and shows what is in it.

What the environment lacks becomes Environment; what the user mistyped, argparse.ArgumentTypeError.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import bindings
from compare import baselines, compiled, correctness, inside, machine, operations, sanitizer, sources, tables, timing
from compare import record as records
from compare.peers import missing as missing_peers
from compare.registry import DTYPES, LANGUAGES, Implementation, Operation, Shape
from compare.sources import Environment

if TYPE_CHECKING:
    from rich.console import Console

    from compare.record import Record

OK, INCORRECT, INTERRUPTED = 0, 1, 130
ON_A_GPU = ("host", "ncu", "sanitize")  # options


def compare(operation: Operation, options: argparse.Namespace, console: Console) -> tuple[int, Record]:
    """The whole job, live where it can be. Returns the exit status and the record, which was written to
    `options.output_dir`, even if the run was interrupted.

    options: cli.py's. Raises Environment, RecordError, OSError (unwritable folder) before anything is measured.
    """
    device = options.device or ("cuda" if machine.gpu_usable() else "cpu")
    if device == "cuda" and not machine.gpu_usable():
        raise Environment("--device cuda: no NVIDIA GPU is usable here; leave the option out to run without one")
    needs = [option for option in ON_A_GPU if vars(options)[option]]
    if device == "cpu" and needs:
        raise Environment(f"--{needs[0]} needs an NVIDIA GPU; leave it out to run without one")
    if device == "cpu":
        sources.use_interpreter()
    operations.run_on(device)
    chosen = _chosen(baselines.everything(operation, options.peers), options.only)
    _validate_shapes(operation, options.shapes or ())
    tests = _test_counts(options.tests) if options.tests else None
    path = options.output_dir / f"{operation.name}.json"
    command = shlex.join(["python", "-m", "compare", *sys.argv[1:]])
    record = records.new(operation.name, command, machine.describe(device))
    _add(record, path)  # an unwritable folder, or another GPU's record in it, shows now and not after the sweep

    status = OK
    try:
        target = f"sm_{record['machine']['compute_capability'].replace('.', '')}" if device == "cuda" else None
        with ThreadPoolExecutor(1) as beside:  # the compilers work in a process of their own while we check
            facts = beside.submit(compiled.facts, operation.name, target)
            _lines(record, operation, console)
            for name in missing_peers(operation) if options.peers else ():
                console.print(f"{name}: not installed, left out; pip install -e '.[peers]'")
            others = [one.name for one in chosen if one.language == "peer"]
            record["implementations"] += [{"name": name, "language": "peer", "rung": None} for name in others]
            status = _check(record, operation, chosen, device, options, console)
        _compile_facts(record, *facts.result(), console)
        if device == "cuda" and not options.no_speed:
            status = max(status, _measure(record, operation, chosen, options, console))
        if device == "cuda" and options.full and (found := machine.latency()):
            record["latency"] = found
        if options.sanitize:
            status = max(status, _sanitize(record, operation, console))
        if tests:
            record["tests"] = tests | _when(record)
        if options.host or options.ncu:
            with console.status("host times, ncu"):
                _apart(record, operation, options)
    except KeyboardInterrupt:
        console.print("interrupted; what was found is kept")
        status = INTERRUPTED
    finally:
        if device == "cpu":
            record["reference"] = records.reference(sources.RESULTS, operation.name, sources.fingerprints(operation))
        record = _add(record, path)
    console.print(f"record: {path}")
    return status, record


def inspect(operation: Operation, options: argparse.Namespace, console: Console) -> None:
    """Compile facts down to the machine code, for options.target, into the record; the code itself beside it.

    Raises Environment if nothing could be compiled.
    """
    path, stages = options.output_dir / f"{operation.name}.json", options.output_dir.resolve() / "stages"
    command = shlex.join(["python", "-m", "compare", *sys.argv[1:]])
    record = records.new(operation.name, command, machine.describe("cpu"))
    _add(record, path)  # an unwritable folder shows now
    _lines(record, operation, console)
    dtypes = ",".join(options.dtype or ["float32"])
    facts, reasons = compiled.facts(operation.name, options.target, "--dtypes", dtypes, "--stages", str(stages))
    _compile_facts(record, facts, reasons, console)
    if not facts:
        raise Environment("nothing was compiled; the lines above say why")
    _add(record, path)
    console.print(f"record: {path}\ncode on its way down: {stages / operation.name}")


def _add(record: Record, path: Path) -> Record:
    """Merge the record with what the file holds by now, write it, and return it. Another run into the same folder waits
    meanwhile, so that neither is lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists():
            record = records.merge(records.load(path, record["operation"]), record)
        records.save(record, path)
    finally:
        os.close(folder)
    return record


def _lines(record: Record, operation: Operation, console: Console) -> None:
    """Count the lines of every implementation."""
    record["implementations"] += sources.implementations(operation)
    for baseline in baselines.baselines(operation):
        record["implementations"].append({"name": baseline.name, "language": "torch", "rung": None})
    console.print(tables.lines(record))


def _compile_facts(record: Record, facts: dict[str, list[Record]], reasons: list[str], console: Console) -> None:
    """What both compilers made of the kernels."""
    for entry in record["implementations"]:
        if entry["rung"]:
            entry["compiled"] = facts.get(entry["name"], [])
    console.print(inside.compiled(record))
    for reason in reasons:
        console.print(f"compile facts: {reason}")


def _check(record: Record, operation: Operation, chosen: list[Implementation], device: str,
           options: argparse.Namespace, console: Console) -> int:  # fmt: skip
    """Check every implementation that is to be had, on every check shape and dtype. Its status: OK or INCORRECT.

    torch.compile, which takes seconds a shape, is only checked where it is measured.
    """
    missing = {language: found for language in LANGUAGES if (found := _missing(language, device))}
    for language, found in missing.items():
        console.print(f"{language}: {found['error']}")
    shapes = operation.check_shapes + (operation.gpu_check_shapes if device == "cuda" else ())
    shapes = tuple(options.shapes or shapes)
    checked = [i for i in chosen if i.name != "torch.compile"]
    cells = [(i, dtype, shape) for dtype in options.dtype or DTYPES for shape in shapes for i in checked]
    with _progress(console, "checking", len(cells)) as advance:
        for implementation, dtype, shape in cells:
            advance(f"{implementation.name} {dtype}")
            if implementation.language in missing:
                entry: dict[str, Any] = {
                    "implementation": implementation.name, "shape": list(shape), "dtype": dtype,
                    "executor": operations.executor(implementation.language, device),
                    **missing[implementation.language],
                }  # fmt: skip
            else:
                entry = correctness.check(
                    implementation, operation, shape, getattr(torch, dtype), device, seed=options.seed
                )
            record["checks"].append(entry)
    correctness.drawn.cache_clear()
    console.print(tables.correctness(record))
    return INCORRECT if any(c["status"] in ("failed", "error") for c in record["checks"]) else OK


def _measure(
    record: Record, operation: Operation, chosen: list[Implementation], options: argparse.Namespace, console: Console
) -> int:
    """Measure what passed, cell by cell. Its status: OK or INCORRECT."""
    reason = timing.refuse_reason()
    if reason:
        console.print(f"nothing is timed: {reason}")
        return OK
    wrong = {(c["implementation"], c["dtype"]) for c in record["checks"] if c["status"] not in ("passed", "refused")}
    shapes = options.shapes or (operation.full_shapes if options.full else operation.default_shapes)
    dtypes = options.dtype or (["float32", "bfloat16"] if options.full else ["float32"])
    for other in record["machine"]["other_processes"] or ():
        console.print("another process is on the GPU: pid {pid}, {name}, {memory_bytes} bytes".format(**other))
    clock = timing.CudaClock("cuda", record["machine"]["peak_bytes_per_s"])
    with _progress(console, "measuring", len(dtypes) * len(shapes)) as advance:
        for dtype in dtypes:
            for shape in shapes:
                advance(f"{'x'.join(map(str, shape))} {dtype}")
                right = [i for i in chosen if (i.name, dtype) not in wrong]
                cell = timing.measure_cell(
                    operation, shape, getattr(torch, dtype), right, clock, correctness.recheck, seed=options.seed,
                    max_noise=options.max_noise / 100,
                )  # fmt: skip
                record["measurements"] += cell.measurements
                record["copies"] += cell.copies
    return INCORRECT if any(m["status"] in ("failed", "error") for m in record["measurements"]) else OK


def _apart(record: Record, operation: Operation, options: argparse.Namespace) -> None:
    """What --host and --ncu ask for."""
    from compare import apart  # for a GPU alone

    if reason := timing.refuse_reason():
        raise Environment(reason)
    torch.cuda.empty_cache()  # other processes need it now
    if options.host:
        record["host"] = apart.host(operation, record)
    if options.ncu:
        record["traffic"] = apart.traffic(operation, record)


def _sanitize(record: Record, operation: Operation, console: Console) -> int:
    """Every rung under compute-sanitizer. Its status: OK or INCORRECT."""
    with console.status("compute-sanitizer"):
        found = sanitizer.run(operation.name, operation.check_shapes)
    record["sanitizer"] = [entry | _when(record) for entry in found]
    for entry in record["sanitizer"]:
        console.print(f"compute-sanitizer {entry['tool']}: {entry['findings']} findings in {entry['launches']} calls")
    return OK if all(entry["findings"] == 0 for entry in record["sanitizer"]) else INCORRECT


def _when(record: Record) -> dict[str, Any]:
    """What dates a finding that is not measured cell by cell."""
    return {key: record["machine"][key] for key in ("date", "commit", "dirty")}


def _chosen(implementations: list[Implementation], patterns: list[str] | None) -> list[Implementation]:
    names = [i.name for i in implementations]
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise argparse.ArgumentTypeError(f"--only: got {pattern!r}, wanted some of {', '.join(names)}")
    return [i for i in implementations if patterns is None or any(fnmatch.fnmatch(i.name, p) for p in patterns)]


def _validate_shapes(operation: Operation, shapes: Sequence[Shape]) -> None:
    dimensions = 2 if operation.kind == "rows" else 1
    for shape in shapes:
        if len(shape) != dimensions:
            example = "4096x1024" if dimensions == 2 else "65536"
            found = "x".join(map(str, shape))
            raise argparse.ArgumentTypeError(f"--shapes: got {found}, wanted {operation.name} shapes such as {example}")


def _missing(language: str, device: str) -> dict[str, str] | None:
    """Why a language cannot run here, as the status and the error of its checks; None if it can."""
    try:
        if language == "cuda":
            bindings.load("gpu" if device == "cuda" else "cpu_model")
        else:
            sources.require_triton()
    except bindings.BuildFailed as reason:
        return {"status": "error", "error": str(reason)}
    except (bindings.NotBuilt, sources.MissingTriton) as reason:
        return {"status": "skipped", "error": f"not built: {reason}" if language == "cuda" else str(reason)}
    return None


def _progress(console: Console, what: str, total: int) -> AbstractContextManager[Callable[[str], None]]:
    """A context that gives `advance(text)`, called once before each step: a bar on a terminal, nothing in a pipe."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    @contextmanager
    def shown() -> Iterator[Callable[[str], None]]:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=total, completed=-1)
            yield lambda text: progress.update(task, advance=1, description=text)

    return shown()


def _test_counts(report: Path) -> dict[str, int]:
    """Counts of a pytest --junitxml report. Raises Environment if it is none."""
    import xml.etree.ElementTree as ET

    try:
        suites = list(ET.parse(report).getroot().iter("testsuite"))
        total, failures, errors, skipped = (
            sum(int(suite.attrib[key]) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
        )
    except (OSError, ET.ParseError, KeyError) as error:
        raise Environment(f"--tests: {report} is not a pytest --junitxml report ({error})") from error
    return {"passed": total - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}
