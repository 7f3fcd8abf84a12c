"""softmax, naive: three kernels, each a pass over global memory

Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
Traffic   3 reads + 2 writes an element, plus row_max and row_sum (float32, n_rows each)
Owns      one program a row; it walks the row in tiles of BLOCK columns
Limits    n_rows < 2^31, columns contiguous; 16-bit: exp is rounded to the output type, so results round twice
Twin      cuda/softmax_naive.cu
"""

import triton
import triton.language as tl


# 1. row maximum
@triton.jit
def softmax_naive_max_kernel(x_ptr, row_max_ptr, n_cols, x_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    maximum = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        maximum = tl.maximum(maximum, x)
    tl.store(row_max_ptr + row, tl.max(maximum, axis=0))


# 2. exponentials and row sum
@triton.jit
def softmax_naive_exp_kernel(
    x_ptr, out_ptr, row_max_ptr, row_sum_ptr, n_cols, x_row_stride, out_row_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    maximum = tl.load(row_max_ptr + row)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - maximum)
        tl.store(out_ptr + row * out_row_stride + cols, e, mask=cols < n_cols)
        total += tl.where(cols < n_cols, e, 0.0)
    tl.store(row_sum_ptr + row, tl.sum(total, axis=0))


# 3. divide by the row sum
@triton.jit
def softmax_naive_divide_kernel(out_ptr, row_sum_ptr, n_cols, out_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.load(row_sum_ptr + row)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        e = tl.load(out_ptr + row * out_row_stride + cols, mask=cols < n_cols).to(tl.float32)
        tl.store(out_ptr + row * out_row_stride + cols, e / total, mask=cols < n_cols)


# 4. launch: the grid is the rows; kernels on one stream run in order
def softmax_naive(x, out, row_max, row_sum, n_rows, n_cols, x_row_stride, out_row_stride):
    grid, block = (n_rows,), 1024
    softmax_naive_max_kernel[grid](x, row_max, n_cols, x_row_stride, block)
    softmax_naive_exp_kernel[grid](x, out, row_max, row_sum, n_cols, x_row_stride, out_row_stride, block)
    softmax_naive_divide_kernel[grid](out, row_sum, n_cols, out_row_stride, block)
