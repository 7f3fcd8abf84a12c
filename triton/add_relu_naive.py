"""add_relu, naive: two kernels, the sum goes through global memory

Computes  out[i] = max(x[i] + y[i], 0), added in float32; NaN stays NaN
Traffic   3 reads + 2 writes an element
Owns      one block of BLOCK elements a program
Limits    n_elements <= (2^31 - 1) * BLOCK, contiguous
Twin      cuda/add_relu_naive.cu
"""

import triton
import triton.language as tl


# 1. add
@triton.jit
def add_relu_naive_add_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n_elements).to(tl.float32)
    y = tl.load(y_ptr + i, mask=i < n_elements).to(tl.float32)
    tl.store(out_ptr + i, x + y, mask=i < n_elements)


# 2. relu, in place
@triton.jit
def add_relu_naive_relu_kernel(out_ptr, n_elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(out_ptr + i, mask=i < n_elements).to(tl.float32)
    tl.store(out_ptr + i, tl.where(total < 0.0, 0.0, total), mask=i < n_elements)  # not tl.maximum, which drops a NaN


# 3. launch: kernels on one stream run in order
def add_relu_naive(x, y, out, n_elements):
    block = 1024
    grid = (triton.cdiv(n_elements, block),)
    add_relu_naive_add_kernel[grid](x, y, out, n_elements, block)
    add_relu_naive_relu_kernel[grid](out, n_elements, block)
