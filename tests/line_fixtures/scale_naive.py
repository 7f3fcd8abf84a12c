"""scale, naive: one element a thread

Computes  out[i] = factor * x[i]
Traffic   1 read + 1 write an element
Owns      one block of BLOCK elements a program
Limits    n_elements <= (2^31 - 1) * BLOCK,
          contiguous
Twin      cuda/scale_naive.cu
"""

import triton
import triton.language as tl


@triton.jit
def scale_naive_kernel(x_ptr, out_ptr, factor, n_elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)

    # 1. read, scale, write
    x = tl.load(x_ptr + i, mask=i < n_elements).to(tl.float32)
    tl.store(out_ptr + i, factor * x, mask=i < n_elements)


# 2. launch: the last program may be partly masked
def scale_naive(x, out, factor, n_elements):
    block = 1024
    scale_naive_kernel[(triton.cdiv(n_elements, block),)](x, out, factor, n_elements, block)
