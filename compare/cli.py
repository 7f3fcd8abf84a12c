"""`python -m compare OPERATION`: lines, correctness, speed, Ninja Gap, figures, in this order.

Exit status: 0 all went well, 1 something is incorrect, 2 usage, 3 the environment lacks something, 130 interrupted.
"""

from __future__ import annotations

import argparse
import fnmatch
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.registry import DTYPES, OPERATIONS, Operation, Shape

if TYPE_CHECKING:
    from rich.console import Console

    from compare.record import Record

OK, INCORRECT, USAGE, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 130
TORCH_HINT = "torch is not installed; see the README, or: pip install torch"


class Environment(Exception):
    """This machine lacks something that the run needs. The text is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        return _list()
    if options.operation is None:
        _parser().error(f"name an operation: {', '.join(OPERATIONS)}, or all")
    names = list(OPERATIONS) if options.operation == "all" else [options.operation]
    if len(names) > 1 and (options.saved or options.shapes or options.tests):
        _parser().error("--from, --shapes and --tests go with one operation, not with all")
    status = OK
    for name in names:
        status = max(status, _guarded(OPERATIONS[name], options))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m compare",
        description="Compare hand-written CUDA C++ with Triton: lines, correctness, speed, and the Ninja Gap.",
        epilog="Without an NVIDIA GPU both languages still run, on the CPU, and speed is shown from a saved record.",
    )
    parser.add_argument("operation", nargs="?", choices=[*OPERATIONS, "all"], metavar="OPERATION",
                        help=f"one of {', '.join(OPERATIONS)}, or all")  # fmt: skip
    parser.add_argument("--only", metavar="NAMES", type=_names,
                        help="implementations to run, as cuda/fused,triton/* or eager (default: all)")  # fmt: skip
    parser.add_argument("--dtype", metavar="DTYPES", type=_dtypes,
                        help=f"of {', '.join(DTYPES)} (default: check all, measure float32)")  # fmt: skip
    parser.add_argument(
        "--shapes", metavar="SHAPES", type=_shapes, help="to measure (and check), as 4096x1024,1823x781"
    )
    parser.add_argument("--full", action="store_true", help="the sweep that makes a record: every width, two dtypes")
    parser.add_argument("--output-dir", metavar="DIR", type=Path, default=Path("out"),
                        help="for the record and the figures; a record there is added to (default: out)")  # fmt: skip
    parser.add_argument("--from", dest="saved", metavar="RECORD", type=Path,
                        help="show a saved record and draw its figures; run nothing")  # fmt: skip
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda where a GPU is usable, else cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.add_argument("--tests", metavar="REPORT", type=Path,
                        help="a pytest --junitxml report from this machine; its counts go into the record")  # fmt: skip
    parser.add_argument("--sanitize", action="store_true", help="on a GPU: also run compute-sanitizer's four tools")
    parser.add_argument("--list", action="store_true", help="list operations, rungs and implementations")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _dtypes(text: str) -> list[str]:
    short = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    names = [short.get(name, name) for name in _names(text)]
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"got {name!r}, wanted some of {', '.join(DTYPES)}")
    return names


def _shapes(text: str) -> list[Shape]:
    try:
        shapes = [tuple(int(size) for size in shape.split("x")) for shape in _names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted shapes such as 4096x1024,1823x781") from None
    if not shapes or any(size < 1 for shape in shapes for size in shape):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted sizes of 1 or more")
    return shapes


def _list() -> int:
    for operation in OPERATIONS.values():
        print(f"{operation.name}: {operation.n_inputs} in, 1 out")
        for rung in operation.rungs:
            passes = f"{rung.reads}R + {rung.writes}W"
            print(f"  cuda/{rung.name:8} triton/{rung.name:8} {passes:8} {rung.idea}")
        beside = ["eager"] * (operation.composition_kernels > 1) + [operation.one_call] * (
            operation.one_call is not None
        )
        print(f"  beside them: {', '.join([*filter(None, beside), 'torch.compile'])}")
    return OK


def _guarded(operation: Operation, options: argparse.Namespace) -> int:
    """One operation; what goes wrong around it becomes one line and an exit status."""
    from compare.record import RecordError
    from compare.sources import MissingTriton

    try:
        from compare import tables

        console = tables.console()
        if options.saved:
            return _show(operation, options, console)
        return _compare(operation, options, console)
    except ModuleNotFoundError as error:
        missing = TORCH_HINT if error.name == "torch" else f"{error.name} is not installed; pip install {error.name}"
        print(f"python -m compare: {missing}", file=sys.stderr)
    except (Environment, RecordError, MissingTriton, OSError) as error:
        print(f"python -m compare: {error}", file=sys.stderr)
    except argparse.ArgumentTypeError as error:
        print(f"python -m compare: {error}", file=sys.stderr)
        return USAGE
    return ENVIRONMENT


def _show(operation: Operation, options: argparse.Namespace, console: Console) -> int:
    """Tables and figures of a saved record: nothing is run, and no torch is needed."""
    from compare import record as records
    from compare import tables

    saved = records.load(options.saved, operation.name)
    source = records.describe(saved, options.saved, _fingerprints(operation))
    for table in (tables.lines, tables.correctness, tables.speed, tables.ninja_gap):
        console.print(table(saved, source))
    saved["reference"] = source
    _draw(saved, saved, options.output_dir, console)
    return OK


def _compare(operation: Operation, options: argparse.Namespace, console: Console) -> int:
    """The whole job, live where it can be; the record is written even if it is interrupted."""
    from compare import machine, sources, tables
    from compare import record as records

    device = options.device or ("cuda" if machine.gpu_usable() else "cpu")
    if device == "cuda" and not machine.gpu_usable():
        raise Environment("--device cuda: no NVIDIA GPU is usable here; leave the option out to run without one")
    if device == "cpu":
        sources.use_interpreter()
    path = options.output_dir / f"{operation.name}.json"
    earlier = records.load(path, operation.name) if path.exists() else None
    command = shlex.join(["python", "-m", "compare", *sys.argv[1:]])
    record = records.new(operation.name, command, machine.describe(device))
    # An unwritable folder, or another GPU's record in it, shows now and not after the sweep.
    records.save(records.merge(earlier, record) if earlier else record, path)

    status = OK
    try:
        _lines(record, operation, device, console)
        status = _check(record, operation, device, options, console)
        if device == "cuda":
            status = max(status, _measure(record, operation, options, console))
        if options.sanitize:
            status = max(status, _sanitize(record, operation, device, console))
        if options.tests:
            record["tests"] = _test_counts(options.tests) | _when(record)
    except KeyboardInterrupt:
        console.print("interrupted; what was found is kept")
        status = INTERRUPTED
    source = None
    if device == "cpu":
        source = record["reference"] = records.reference(sources.RESULTS, operation.name, _fingerprints(operation))
    if earlier:
        record = records.merge(earlier, record)
    records.save(record, path)

    if status != INTERRUPTED:
        saved = records.load(sources.RESULTS.parent / source["file"], operation.name) if source else None
        shown = records.with_speed(record, saved) if saved else record
        console.print(tables.speed(shown, source))
        console.print(tables.ninja_gap(shown, source))
        _draw(record, saved, options.output_dir, console)
    console.print(f"record: {path}")
    return status


def _fingerprints(operation: Operation) -> dict[str, str]:
    from compare import lines, sources
    from compare.registry import LANGUAGES

    return {
        f"{language}/{rung.name}": lines.fingerprint(sources.sources(language, f"{operation.name}_{rung.name}"))
        for language in LANGUAGES
        for rung in operation.rungs
    }


def _lines(record: Record, operation: Operation, device: str, console: Console) -> None:
    """Count lines, and ask both compilers what they made of them."""
    from compare import baselines, compiled, lines, operations, sources, tables

    prints = _fingerprints(operation)
    target = f"sm_{record['machine']['compute_capability'].replace('.', '')}" if device == "cuda" else "sm_90"
    with console.status(f"compiling for {target}"):
        facts, reasons = compiled.facts(operation.name, target)
    for implementation in operations.implementations(operation):
        assert implementation.rung is not None
        stem = f"{operation.name}_{implementation.rung}"
        rung = operation.rung(implementation.rung)
        count = lines.count(sources.sources(implementation.language, stem)[0])
        binding = lines.count(sources.binding_source(stem), "binding") if implementation.language == "cuda" else None
        record["implementations"].append(
            {
                "name": implementation.name,
                "language": implementation.language,
                "rung": rung.name,
                "lines": {**count.lines, "binding": binding.lines["binding"] if binding else 0},
                "tokens": {**count.tokens, "binding": binding.tokens["binding"] if binding else 0},
                "passes": {"reads": rung.reads, "writes": rung.writes},
                "launches": rung.launches,
                "fingerprint": prints[implementation.name],
                "compiled": facts.get(implementation.name, []),
            }
        )
    for baseline in baselines.baselines(operation):
        record["implementations"].append({"name": baseline.name, "language": "torch", "rung": None})
    console.print(tables.lines(record))
    for reason in reasons:
        console.print(f"compile facts: {reason}")


def _check(record: Record, operation: Operation, device: str, options: argparse.Namespace, console: Console) -> int:
    """Check every implementation that is to be had, on every check shape and dtype. Its status: OK or INCORRECT."""
    import torch

    from compare import baselines, correctness, operations, tables

    wanted = [*operations.implementations(operation), *baselines.baselines(operation, compiled=False)]
    wanted = _chosen(wanted, options.only, [*(i.name for i in wanted), "torch.compile"])
    missing = {language: reason for language in ("cuda", "triton") if (reason := _missing(language, device))}
    for language, reason in missing.items():
        console.print(f"{language}: {reason}")
    shapes = operation.check_shapes + (operation.gpu_check_shapes if device == "cuda" else ())
    if options.shapes:
        _validate_shapes(operation, options.shapes)
        shapes = tuple(options.shapes)
    cells = [(i, dtype, shape) for i in wanted for dtype in options.dtype or DTYPES for shape in shapes]
    with _progress(console, "checking", len(cells)) as advance:
        for implementation, dtype, shape in cells:
            advance(f"{implementation.name} {dtype}")
            if implementation.language in missing:
                entry: dict[str, Any] = {
                    "implementation": implementation.name, "shape": list(shape), "dtype": dtype,
                    "executor": operations.executor(implementation.language, device), "status": "skipped",
                    "error": missing[implementation.language],
                }  # fmt: skip
            else:
                entry = correctness.check(
                    implementation, operation, shape, getattr(torch, dtype), device, seed=options.seed
                )
            record["checks"].append(entry)
    console.print(tables.correctness(record))
    return INCORRECT if any(c["status"] in ("failed", "error") for c in record["checks"]) else OK


def _measure(record: Record, operation: Operation, options: argparse.Namespace, console: Console) -> int:
    """Measure what passed, cell by cell. Its status: OK or INCORRECT."""
    import torch

    from compare import baselines, correctness, operations, timing

    reason = timing.refuse_reason()
    if reason:
        console.print(f"nothing is timed: {reason}")
        return OK
    everything = [*operations.implementations(operation), *baselines.baselines(operation)]
    chosen = _chosen(everything, options.only, [i.name for i in everything])
    wrong = {c["implementation"] for c in record["checks"] if c["status"] in ("failed", "error", "skipped")}
    chosen = [i for i in chosen if i.name not in wrong]
    shapes = options.shapes or (operation.full_shapes if options.full else operation.default_shapes)
    dtypes = options.dtype or (["float32", "bfloat16"] if options.full else ["float32"])
    clock = timing.CudaClock("cuda", record["machine"]["peak_bytes_per_s"])
    with _progress(console, "measuring", len(dtypes) * len(shapes)) as advance:
        for dtype in dtypes:
            for shape in shapes:
                advance(f"{'x'.join(map(str, shape))} {dtype}")
                cell = timing.measure_cell(
                    operation, shape, getattr(torch, dtype), chosen, clock, correctness.recheck, seed=options.seed
                )
                record["measurements"] += cell.measurements
                record["copies"] += cell.copies
    return INCORRECT if any(m["status"] in ("failed", "error") for m in record["measurements"]) else OK


def _sanitize(record: Record, operation: Operation, device: str, console: Console) -> int:
    """Every rung under compute-sanitizer. Its status: OK or INCORRECT."""
    from compare import sanitizer

    if device != "cuda":
        raise Environment("--sanitize needs an NVIDIA GPU; on the CPU the tests run the sanitizers of the CPU model")
    with console.status("compute-sanitizer"):
        found = sanitizer.run(operation.name, operation.check_shapes)
    record["sanitizer"] = [entry | _when(record) for entry in found]
    for entry in record["sanitizer"]:
        console.print(f"compute-sanitizer {entry['tool']}: {entry['findings']} findings in {entry['launches']} calls")
    return OK if all(entry["findings"] == 0 for entry in record["sanitizer"]) else INCORRECT


def _when(record: Record) -> dict[str, Any]:
    """What dates a finding that is not measured cell by cell."""
    return {key: record["machine"][key] for key in ("date", "commit", "dirty")}


def _chosen(implementations: list[Any], patterns: list[str] | None, known: list[str]) -> list[Any]:
    if patterns is None:
        return implementations
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise argparse.ArgumentTypeError(f"--only: got {pattern!r}, wanted some of {', '.join(known)}")
    return [i for i in implementations if any(fnmatch.fnmatch(i.name, pattern) for pattern in patterns)]


def _validate_shapes(operation: Operation, shapes: list[Shape]) -> None:
    dimensions = 2 if operation.kind == "rows" else 1
    for shape in shapes:
        if len(shape) != dimensions:
            example = "4096x1024" if dimensions == 2 else "65536"
            found = "x".join(map(str, shape))
            raise argparse.ArgumentTypeError(f"--shapes: got {found}, wanted {operation.name} shapes such as {example}")


def _missing(language: str, device: str) -> str | None:
    """Why a language cannot run here, in one line; None if it can."""
    import bindings
    from compare import sources

    try:
        if language == "cuda":
            bindings.load("gpu" if device == "cuda" else "cpu_model")
        else:
            sources.require_triton()
    except (bindings.NotBuilt, sources.MissingTriton) as reason:
        return f"not built: {reason}" if language == "cuda" else str(reason)
    return None


def _progress(console: Console, what: str, total: int) -> Any:
    """A context that gives `advance(text)`, called once before each step: a bar on a terminal, nothing in a pipe."""
    import contextlib

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    @contextlib.contextmanager
    def shown() -> Any:
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


def _draw(record: Record, saved: Record | None, output_dir: Path, console: Console) -> None:
    from compare import figures

    with console.status("drawing"):
        written = figures.write(record, output_dir, saved)
    for path in written:
        console.print(f"figure: {path}")
