"""vector_add, tuned: 16 bytes a thread, any length and alignment

Computes  out[i] = x[i] + y[i], added in float32
Traffic   2 reads + 1 write an element
Owns      one block of BLOCK elements a program, 16 bytes a thread; only the last program needs a mask
Limits    n_elements <= (2^31 - 1) * BLOCK, contiguous
Twin      cuda/vector_add_tuned.cu
"""

import triton
import triton.language as tl


@triton.jit
def vector_add_tuned_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)

    # 1. read, add, write
    if start + BLOCK <= n_elements:
        x = tl.load(x_ptr + i).to(tl.float32)
        y = tl.load(y_ptr + i).to(tl.float32)
        tl.store(out_ptr + i, x + y)
    else:
        x = tl.load(x_ptr + i, mask=i < n_elements).to(tl.float32)
        y = tl.load(y_ptr + i, mask=i < n_elements).to(tl.float32)
        tl.store(out_ptr + i, x + y, mask=i < n_elements)


# 2. launch: packs of 16 bytes where x, y and out lie on the 16-byte grid; the compiler sees to it
def vector_add_tuned(x, y, out, n_elements):
    block = 4096 // x.element_size()
    vector_add_tuned_kernel[(triton.cdiv(n_elements, block),)](x, y, out, n_elements, block, num_warps=8)
