"""`python -m compare OPERATION`: lines, correctness, speed, Ninja Gap, figures, in this order.

Exit status: 0 all went well, 1 something is incorrect, 2 usage, 3 the environment lacks something, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare.registry import DTYPES, OPERATIONS, Operation, Shape

if TYPE_CHECKING:
    from rich.console import Console

    from compare.record import Record

OK, INCORRECT, USAGE, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 130
TORCH_HINT = "torch is not installed; see the README, or: pip install torch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        return _list()
    if options.operation is None:
        _parser().error(f"name an operation: {', '.join(OPERATIONS)}, or all")
    names = list(OPERATIONS) if options.operation == "all" else [options.operation]
    if len(names) > 1 and (options.saved or options.shapes):
        _parser().error("--from and --shapes go with one operation, not with all")
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
    parser.add_argument("--no-speed", action="store_true", help="count and check, measure nothing")
    parser.add_argument("--output-dir", metavar="DIR", type=Path, default=Path("out"),
                        help="for the record and the figures; a record there is added to (default: out)")  # fmt: skip
    parser.add_argument("--from", dest="saved", metavar="RECORD", type=Path,
                        help="show a saved record and draw its figures; run nothing")  # fmt: skip
    parser.add_argument("--read", nargs="?", const="", metavar="RUNG",
                        help="instead: print CUDA and Triton side by side, of one rung or of all")  # fmt: skip
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda where a GPU is usable, else cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.add_argument("--tests", metavar="REPORT", type=Path,
                        help="a pytest --junitxml report from this machine; its counts go into the record")  # fmt: skip
    parser.add_argument("--self-test", action="store_true",
                        help="instead: give the checker wrong implementations, all to be rejected")  # fmt: skip
    parser.add_argument("--sanitize", action="store_true", help="on a GPU: also run compute-sanitizer's four tools")
    parser.add_argument("--list", action="store_true", help="list operations, rungs and implementations")
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted names separated by commas")
    return names


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
    from compare import tables
    from compare.record import RecordError
    from compare.sources import Environment

    console = tables.console()
    try:
        if options.read is not None:
            return _read(operation, options.read, console)
        if options.saved:
            return _show(operation, options, console)
        if options.self_test:
            return _self_test(operation, options, console)
        return _run(operation, options, console)
    except ModuleNotFoundError as error:
        missing = TORCH_HINT if error.name == "torch" else f"{error.name} is not installed; pip install {error.name}"
        print(f"python -m compare: {missing}", file=sys.stderr)
    except (Environment, RecordError, OSError) as error:
        print(f"python -m compare: {error}", file=sys.stderr)
    except argparse.ArgumentTypeError as error:
        print(f"python -m compare: {error}", file=sys.stderr)
        return USAGE
    except SyntaxError as error:  # of a Triton twin: lines cannot be counted, and no other half of it either
        print(f"python -m compare: {error.filename}:{error.lineno}: {error.msg}", file=sys.stderr)
        return INCORRECT
    return ENVIRONMENT


def _read(operation: Operation, rung: str, console: Console) -> int:
    """The sources themselves, a rung or all of them."""
    from compare import read

    names = [each.name for each in operation.rungs]
    if rung and rung not in names:
        raise argparse.ArgumentTypeError(f"--read: got {rung!r}, wanted one of {', '.join(names)}")
    for name in [rung] if rung else names:
        read.show(operation, name, console)
    return OK


def _show(operation: Operation, options: argparse.Namespace, console: Console) -> int:
    """Tables and figures of a saved record: nothing is run, and no torch is needed."""
    from compare import record as records
    from compare import sources, tables

    saved = records.load(options.saved, operation.name)
    options.output_dir.mkdir(parents=True, exist_ok=True)  # an unwritable folder shows before the tables
    saved["reference"] = records.describe(saved, options.saved, sources.fingerprints(operation))
    for table in (tables.lines, tables.correctness, tables.compiled):
        console.print(table(saved, saved["reference"]))
    _show_speed(saved, saved, options.output_dir, console)
    return OK


def _self_test(operation: Operation, options: argparse.Namespace, console: Console) -> int:
    """The checker's own test: a checker that a wrong implementation passes proves nothing of a right one."""
    import torch

    from compare import machine, wrong

    device = options.device or ("cuda" if machine.gpu_usable() else "cpu")
    status = OK
    for dtype in options.dtype or DTYPES:
        verdicts = wrong.self_test(operation, device, getattr(torch, dtype))
        passed = [f"{name}: {why}" for name, rejected, why in verdicts if not rejected]
        score = f"{len(verdicts) - len(passed)} of {len(verdicts)}"
        console.print(f"{operation.name} {dtype}: wrong implementations rejected: {score}")
        for line in passed:
            console.print(f"  not rejected: {line}")
        status = INCORRECT if passed else status
    return status


def _run(operation: Operation, options: argparse.Namespace, console: Console) -> int:
    """A live run, then the speed that it measured or, without a GPU, that of a saved record."""
    from compare import record as records
    from compare import run, sources

    status, record = run.compare(operation, options, console)
    source = record["reference"]
    saved = records.load(sources.RESULTS.parent / source["file"], operation.name) if source else None
    if status != INTERRUPTED:
        _show_speed(record, saved, options.output_dir, console)
    return status


def _show_speed(record: Record, saved: Record | None, output_dir: Path, console: Console) -> None:
    """Speed, gap, figures, page. `saved`: the record that record["reference"] describes, whose speed is shown."""
    from compare import figures, page, tables
    from compare import record as records

    shown = records.with_speed(record, saved) if saved and saved is not record else record
    source = record["reference"] if saved is record else None  # of what is not speed
    speed = [tables.speed(shown, record["reference"]), tables.ninja_gap(shown, record["reference"])]
    console.print(*speed)
    with console.status("drawing"):
        drawn = figures.write(record, output_dir, saved)
        sections = [tables.lines(record, source), tables.correctness(record, source), *speed,
                    tables.compiled(record, source)]  # fmt: skip
        pages = page.write(shown, sections, drawn, output_dir)
    for path in drawn + pages:
        console.print(f"{'page' if path in pages else 'figure'}: {path}")
