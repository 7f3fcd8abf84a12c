"""--inspect: reading machine code, and what both compilers really made of a pair."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_compiled import needs_nvcc, needs_triton

from compare import cli, compiled, inside, record, run

# cuobjdump -sass, three lines of code each followed by the second half of its encoding.
SASS = """\
\t\tFunction : k
        /*0000*/                   LDC R1, c[0x0][0x28] ;                      /* 0x00000a00ff017b82 */
                                                                               /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR6][R2.64] ;   /* 0x0000000602047981 */
        /*0020*/              @!P0 LDG.E R0, desc[UR6][R2.64] ;                /* 0x0000000602007981 */
        /*0030*/              @P1  LDG.E.U16 R0, desc[UR6][R2.64] ;            /* 0x0000000602007981 */
        /*0040*/                   LDGSTS.E.BYPASS.128 [R5], [R2.64] ;         /* 0x0000000602007981 */
        /*0050*/                   UBLKCP.S.G [UR8], [UR4], UR6 ;              /* 0x00000008040073ba */
        /*0060*/                   STS.64 [R5], R0 ;                           /* 0x0000000005007388 */
        /*0070*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;               /* 0x0000000000007b1d */
        /*0080*/             @!UP0 SHFL.BFLY PT, R7, R4, 0x10, 0x1f ;          /* 0x0e001f0004077f89 */
        /*0090*/                   MUFU.EX2 R7, R4 ;                           /* 0x0000000400077308 */
        /*00a0*/                   FFMA.FTZ R7, R4, R4, R7 ;                   /* 0x0000000404077223 */
        /*00b0*/                   STG.E.EF.128 desc[UR6][R2.64], R4 ;         /* 0x0000000402007986 */
        /*00c0*/                   EXIT ;                                      /* 0x000000000000794d */
        /*00d0*/                   NOP;                                        /* 0x0000000000007918 */
"""


def test_instructions_are_counted_by_width_predicated_ones_too_and_padding_is_not():
    assert compiled.instructions(SASS) == {
        "BAR": 1, "FFMA": 1, "LDG.128": 1, "LDG.16": 1, "LDG.32": 1, "LDGSTS.128": 1, "MUFU.EX2": 1, "SHFL": 1,
        "STG.128": 1, "STS.64": 1, "UBLKCP": 1, "all": 13,
    }  # fmt: skip


def test_widths_tell_loads_that_pass_the_registers_by():
    counts = compiled.instructions(SASS)
    assert inside.widths(counts, "LDG", "LDGSTS", "UBLKCP") == "1x128 1x16 1x32 1x128 async 1 bulk"
    assert inside.widths(counts, "STG") == "1x128" and inside.number(counts, "LDG", "MUFU.EX2") == 4


@pytest.fixture(scope="module")
def inspected(tmp_path_factory) -> tuple[Path, dict, str]:
    """The folder, the record and the output of one real inspection of the smallest operation."""
    needs_nvcc()
    needs_triton()
    folder = tmp_path_factory.mktemp("inspected")
    command = [sys.executable, "-m", "compare", "vector_add", "--inspect", "--target", "sm_90", "--output-dir"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=200, cwd=cli.__file__[:-15])
    assert done.returncode == 0, done.stderr
    return folder, record.load(folder / "vector_add.json"), done.stdout


def test_coalescing_shows_in_the_machine_code(inspected):
    facts = {
        (fact["name"], fact["shape"][0]): fact for fact in inside.facts(inspected[1]) if fact["dtype"] == "float32"
    }
    assert facts["triton/naive", 2**24]["instructions"]["LDG.128"] >= 2  # a tile, so wide loads; nobody wrote them
    assert facts["cuda/naive", 2**24]["instructions"]["LDG.32"] == 2  # one element a thread
    assert "LDG.128" not in facts["triton/naive", 2**24 - 1]["instructions"]  # the mask's end is no multiple of 16
    assert facts["triton/naive", 2**24]["multiples"] == ["n_elements"]
    assert facts["triton/naive", 2**24 - 1]["multiples"] == []


def test_variants_of_the_jit_are_those_of_dtype_one_and_multiples_of_16(inspected):
    (counts,) = {str(fact["jit"]) for fact in inside.facts(inspected[1]) if "jit" in fact}
    sizes, dtypes = 3, 3  # n is 1; a multiple of 16; neither
    assert counts == str({"launches": dtypes * len(compiled.SWEEP), "variants": sizes * dtypes})


def test_every_stage_is_written_out(inspected):
    stages = inspected[0] / "stages" / "vector_add"
    names = {"triton_naive": "vector_add_naive_kernel.BLOCK=1024.num_warps=4.16777216.float32",
             "cuda_naive": "vector_add_naive_kernel.threads=256.16777216.float32"}  # fmt: skip
    kinds = {"triton_naive": ("ttir", "ttgir", "llir", "ptx", "sass"), "cuda_naive": ("ptx", "sass")}
    for folder, name in names.items():
        for kind in kinds[folder]:
            assert (stages / folder / f"{name}.{kind}").stat().st_size > 300
    assert "tt.load" in (stages / "triton_naive" / f"{names['triton_naive']}.ttir").read_text()
    assert "ld.global" in (stages / "cuda_naive" / f"{names['cuda_naive']}.ptx").read_text()


def test_kernels_of_a_rung_are_named_without_what_they_share():
    entry = {"name": "cuda/tuned", "rung": "tuned", "language": "cuda", "compiled": [
        {"variant": f"softmax_tuned_{name} threads=256", "dtype": "float32", "target": "sm_90", "threads": 256}
        for name in ("narrow_kernel<8, 4>", "kernel")]}  # fmt: skip
    made = {**record.new("softmax", "", {"date": "2026-01-01"}), "implementations": [entry]}
    assert [fact["name"] for fact in inside.facts(made)] == ["cuda/tuned narrow", "cuda/tuned"]


def test_the_tables_stand_in_80_columns(inspected):
    assert all(len(line) <= 80 for line in inspected[2].splitlines() if str(inspected[0]) not in line)
    for words in ("Machine code", "triton/naive", "2x128", "variants", "code on its way down"):
        assert words in inspected[2]


def test_a_later_inspection_of_other_dtypes_keeps_what_was_found_before():
    one = {"name": "cuda/naive", "language": "cuda", "rung": "naive", "fingerprint": "a"}
    facts = [{"dtype": dtype, "target": "sm_90", "variant": "k", "registers": 9} for dtype in ("float32", "float16")]
    machine = {"gpu": None, "date": "2026-01-01"}
    old, new = (
        {**record.new("softmax", "", machine), "implementations": [{**one, "compiled": [fact]}]} for fact in facts
    )
    assert record.merge(old, new)["implementations"][0]["compiled"] == facts
    again = {**new, "implementations": [{**one, "compiled": [{**facts[0], "registers": 8}]}]}
    assert record.merge(old, again)["implementations"][0]["compiled"] == [{**facts[0], "registers": 8}]


def test_nothing_compiled_is_status_3_and_says_why(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run.compiled, "facts", lambda *arguments: ({}, ["cuda/naive: no nvcc"]))
    assert cli.main(["vector_add", "--inspect", "--output-dir", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert "cuda/naive: no nvcc" in said.out and "nothing was compiled" in said.err
