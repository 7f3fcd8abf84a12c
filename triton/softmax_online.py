"""softmax, online: one kernel, tiles with a running maximum and sum

Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
Traffic   2 reads + 1 write an element (the second read may hit L2)
Owns      one program a row; it walks the row in tiles of BLOCK columns, with a maximum and a sum a lane
Limits    n_rows < 2^31, columns contiguous; rows of any length
Twin      cuda/softmax_online.cu
"""

import triton
import triton.language as tl


# What to subtract before exp: the maximum, but 0 while only -inf was seen (-inf - -inf would be NaN; exp(-inf) is 0).
@triton.jit
def shift(maximum):
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def softmax_online_kernel(x_ptr, out_ptr, n_cols, x_row_stride, out_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)

    # 1. running maximum and sum: a larger maximum rescales the sum so far
    maximum = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(maximum, x)
        total = total * tl.exp(maximum - shift(larger)) + tl.exp(x - shift(larger))
        maximum = larger

    # 2. row maximum and row sum
    row_max = tl.max(maximum, axis=0)
    row_sum = tl.sum(total * tl.exp(maximum - shift(row_max)), axis=0)

    # 3. read the row again, divide by the row sum, write the row
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        tl.store(out_ptr + row * out_row_stride + cols, tl.exp(x - row_max) / row_sum, mask=cols < n_cols)


# 4. launch: the grid is the rows
def softmax_online(x, out, n_rows, n_cols, x_row_stride, out_row_stride):
    softmax_online_kernel[(n_rows,)](x, out, n_cols, x_row_stride, out_row_stride, 4096, num_warps=8)
