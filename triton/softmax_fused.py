"""softmax, fused: one kernel, the row stays on chip

Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
Traffic   1 read + 1 write an element
Owns      one program a row, kept in registers; the compiler deals the columns to the threads
Limits    n_cols <= 12288 (48 KiB of float32 a program), n_rows < 2^31, columns contiguous; longer rows: online
Twin      cuda/softmax_fused.cu
"""

import triton
import triton.language as tl


@triton.jit
def softmax_fused_kernel(x_ptr, out_ptr, n_cols, x_row_stride, out_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)  # a power of two: the columns from n_cols on are masked

    # 1. read the row, its maximum
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    maximum = tl.max(x, axis=0)

    # 2. exponentials and row sum
    e = tl.exp(x - maximum)
    total = tl.sum(tl.where(cols < n_cols, e, 0.0), axis=0)

    # 3. divide by the row sum, write the row
    tl.store(out_ptr + row * out_row_stride + cols, e / total, mask=cols < n_cols)


# 4. launch: the grid is the rows; about 4 columns a thread, 1 to 16 warps
def softmax_fused(x, out, n_rows, n_cols, x_row_stride, out_row_stride):
    block = triton.next_power_of_2(n_cols)
    num_warps = min(max(block // 128, 1), 16)
    softmax_fused_kernel[(n_rows,)](x, out, n_cols, x_row_stride, out_row_stride, block, num_warps=num_warps)
