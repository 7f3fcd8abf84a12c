"""`python -m compare OPERATION`: lines, correctness, speed, Ninja Gap, figures, in this order.

Exit status: 0 all went well, 1 something is incorrect, 2 usage, 3 the environment lacks something, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare.compiled import LIMITS
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
    if not 0 < options.max_noise <= 100:
        _parser().error(f"--max-noise: got {options.max_noise}, wanted a percentage above 0, such as 0.5")
    names = list(OPERATIONS) if options.operation == "all" else [options.operation]
    if len(names) > 1 and (options.saved or options.shapes or options.against):
        _parser().error("--from, --against and --shapes go with one operation, not with all")
    if options.target and not options.inspect:
        _parser().error("--target goes with --inspect")
    status = OK
    for name in names:
        status = max(status, _guarded(name, options))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m compare",
        description="Compare hand-written CUDA C++ with Triton: lines, correctness, speed, and the Ninja Gap.",
        epilog="Without an NVIDIA GPU both languages still run, on the CPU, and speed is shown from a saved record.",
    )
    parser.add_argument("operation", nargs="?", choices=[*OPERATIONS, "all", "claims"], metavar="OPERATION",
                        help=f"one of {', '.join(OPERATIONS)}, or all; or claims: what the records prove")  # fmt: skip
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
                        help="show a saved record and draw its figures (claims: a folder); run nothing")  # fmt: skip
    parser.add_argument("--style", choices=["paper", "talk", "dark"], default="paper",
                        help="of the figures: for a page, for 16:9 slides, or on a dark ground")  # fmt: skip
    parser.add_argument("--read", nargs="?", const="", metavar="RUNG",
                        help="instead: print CUDA and Triton side by side, of one rung or of all")  # fmt: skip
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda where a GPU is usable, else cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.add_argument("--tests", metavar="REPORT", type=Path,
                        help="a pytest --junitxml report from this machine; its counts go into the record")  # fmt: skip
    parser.add_argument("--max-noise", metavar="PERCENT", type=float, default=0.5,
                        help="of every median, at which a cell's rounds end (default: 0.5)")  # fmt: skip
    parser.add_argument("--against", metavar="RECORD", type=Path, action="append", default=[],
                        help="an earlier record to judge by; status 1 if one of ours became slower")  # fmt: skip
    parser.add_argument("--format", choices=["table", "markdown", "csv"], default="table", help="of the tables")
    parser.add_argument("--peers", action="store_true", help="also the softmax of liger-kernel and quack-kernels")
    parser.add_argument("--host", action="store_true", help="on a GPU: also the host time of a call, and first calls")
    parser.add_argument("--ncu", action="store_true", help="on a GPU: also Nsight Compute's bytes and times")
    parser.add_argument("--self-test", action="store_true",
                        help="instead: give the checker wrong implementations, all to be rejected")  # fmt: skip
    parser.add_argument("--inspect", action="store_true",
                        help="instead: compile both languages, count instructions, write every stage")  # fmt: skip
    parser.add_argument("--target", metavar="SM", choices=LIMITS, help="of --inspect, as sm_90 (default: this GPU)")
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
        beside = ["eager" if operation.composition_kernels > 1 else None, operation.one_call, "torch.compile"]
        print(f"  beside them: {', '.join(filter(None, beside))}")
    return OK


def _guarded(name: str, options: argparse.Namespace) -> int:
    """One operation, or the claims; what goes wrong around it becomes one line and an exit status."""
    from compare import tables
    from compare.record import RecordError
    from compare.sources import Environment

    console = tables.console(form=options.format)
    try:
        if name == "claims":
            from compare import claims, sources

            console.print(claims.report(claims.records(options.saved or sources.RESULTS)))
            return OK
        operation = OPERATIONS[name]
        if options.read is not None:
            return _read(operation, options.read, tables.console())
        if options.saved:
            return _show(operation, options, console)
        if options.inspect:
            from compare import run

            run.inspect(operation, options, console)
            return OK
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
    from compare import sources

    saved = records.load(options.saved, operation.name)
    options.output_dir.mkdir(parents=True, exist_ok=True)  # an unwritable folder shows before the tables
    saved["reference"] = records.describe(saved, options.saved, sources.fingerprints(operation))
    earlier = _earlier(operation, options)
    _show_record(saved, saved, options, console)
    return _judge(saved, earlier, console)


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

    earlier = _earlier(operation, options)
    status, record = run.compare(operation, options, console)
    source = record["reference"]
    saved = records.load(sources.RESULTS.parent / source["file"], operation.name) if source else None
    if status != INTERRUPTED:
        _show_record(record, saved, options, console)
        status = max(status, _judge(saved or record, earlier, console))
    return status


def _earlier(operation: Operation, options: argparse.Namespace) -> list[tuple[Record, Record]]:
    """The records of --against and what they are: what is none shows before anything is run."""
    from compare import record as records

    return [(old := records.load(path, operation.name), records.describe(old, path)) for path in options.against]


def _judge(record: Record, earlier: list[tuple[Record, Record]], console: Console) -> int:
    """What --against asks for. Its status: INCORRECT where one of ours became slower, or fails."""
    from compare import tables, verdicts

    for old, source in earlier:
        console.print(tables.against(record, old, source))
    return INCORRECT if any(verdicts.regressions(record, old) for old, _ in earlier) else OK


def _show_record(record: Record, saved: Record | None, options: argparse.Namespace, console: Console) -> None:
    """Tables, figures and page. `saved`: the record that record["reference"] describes, whose speed is shown; a run has
    printed the other tables as they came."""
    from compare import claims, figures, inside, page, tables
    from compare import record as records

    shown = records.with_speed(record, saved) if saved and saved is not record else record
    source = record["reference"] if saved is record else None  # of what is not speed
    found = [table(record, source) for table in (tables.lines, tables.correctness, inside.compiled)]
    speed = [table(shown, record["reference"])
             for table in (tables.speed, tables.decided, tables.ninja_gap, tables.host, tables.traffic)]  # fmt: skip
    for section in found * (saved is record) + speed:
        if section.parts:
            console.print(section)
    with console.status("drawing"):
        drawn = figures.write(record, options.output_dir, saved)
        sections = [*found[:2], *speed, *found[2:], claims.report({record["operation"]: shown})]
        pages = page.write(shown, sections, drawn, options.output_dir)
        if options.style != "paper":
            drawn += figures.write(record, options.output_dir, saved, options.style)
    for path in (path for path in drawn if path.suffix == ".svg"):
        console.print(f"figure: {path}, .png, .pdf")
    for path in pages:
        console.print(f"page: {path}")
