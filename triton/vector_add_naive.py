"""vector_add, naive: one block of elements a program

Computes  out[i] = x[i] + y[i], added in float32
Traffic   2 reads + 1 write an element
Owns      one block of BLOCK elements a program
Limits    n_elements <= (2^31 - 1) * BLOCK, contiguous
Twin      cuda/vector_add_naive.cu
"""

import triton
import triton.language as tl


@triton.jit
def vector_add_naive_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)

    # 1. read, add, write
    x = tl.load(x_ptr + i, mask=i < n_elements).to(tl.float32)
    y = tl.load(y_ptr + i, mask=i < n_elements).to(tl.float32)
    tl.store(out_ptr + i, x + y, mask=i < n_elements)


# 2. launch: the last program may be partly masked
def vector_add_naive(x, y, out, n_elements):
    block = 1024
    vector_add_naive_kernel[(triton.cdiv(n_elements, block),)](x, y, out, n_elements, block)
