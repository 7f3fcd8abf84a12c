"""A file of everything that is hard to count.

Computes  # no comment, and no import:
import os
"""  # a comment after the docstring

import triton
import triton.language as tl  # trailing

ROWS = 4  # named by the kernel
LAUNCH_ROWS = [
    # named by the host only
    1,
    2,
]
TEXT = "# not a comment"
"A bare string that is not first is no docstring: it counts."


class Options:
    "The docstring of a class."

    size = 1
    """Not a docstring, although documentation tools read it as one:
    it counts, on both of its lines."""


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128}, num_warps=4),  # nested ( [ { brackets
    ],
    key=["n_cols"],
)
# a comment between decorators
@triton.jit

# and one between decorator and def
def hard_kernel(
    x_ptr,
    n_cols,
    BLOCK: tl.constexpr,
):
    ("The docstring of a kernel, "  # in two pieces and in brackets
     "over two lines.")
    # 1. a phase
    cols = tl.arange(0, BLOCK)  # 2. not a phase: it does not begin its line
    x = tl.load(x_ptr + cols) \
        + ROWS
    text = r"\"; # not a comment" f"{x:>{n_cols}} # {'nested'}" 'the third piece'
    lines = f"""
    # 2. not a phase, but a line of {text}

    """
    tl.store(x_ptr + cols, x)


@triton.jit
def helper(x):
    """Only a docstring."""


if LAUNCH_ROWS:
    EXTRA = 1
else:
    EXTRA = 2


# 2. launch
def hard(x, n_cols):
    """Launch it.

    if x: pass
    """
    for _ in range(2): pass; x = x  # noqa
    hard_kernel[(len(LAUNCH_ROWS),)](
        x,
        n_cols,
    )
    def inner(): "A docstring on the line of its function."
    return {**{}}[
        0
    ]
    # the last comment, without a line end