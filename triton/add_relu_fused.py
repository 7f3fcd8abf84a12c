"""add_relu, fused: one kernel, the sum stays in a register

Computes  out[i] = max(x[i] + y[i], 0), added in float32; NaN stays NaN
Traffic   2 reads + 1 write an element
Owns      one block of BLOCK elements a program
Limits    n_elements <= (2^31 - 1) * BLOCK, contiguous
Twin      cuda/add_relu_fused.cu
"""

import triton
import triton.language as tl


@triton.jit
def add_relu_fused_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)

    # 1. add
    x = tl.load(x_ptr + i, mask=i < n_elements).to(tl.float32)
    y = tl.load(y_ptr + i, mask=i < n_elements).to(tl.float32)
    total = x + y

    # 2. relu, in a register
    tl.store(out_ptr + i, tl.where(total < 0.0, 0.0, total), mask=i < n_elements)  # not tl.maximum, which drops a NaN


# 3. launch: the last program may be partly masked
def add_relu_fused(x, y, out, n_elements):
    block = 1024
    add_relu_fused_kernel[(triton.cdiv(n_elements, block),)](x, y, out, n_elements, block)
