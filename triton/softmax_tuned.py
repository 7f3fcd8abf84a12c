"""softmax, tuned: everything it takes to be near the memory limit at every width

Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
Traffic   1 read + 1 write an element (rows beyond 128 KiB, a second read that hits L2)
Owns      ROWS short rows a program, or one row; the longest rows, two programs a slice
Limits    columns contiguous; rows of any length and alignment; exchange is zero before its first launch
Twin      cuda/softmax_tuned.cu
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


# What to subtract before exp: the maximum, but 0 while only -inf was seen (-inf - -inf would be NaN; exp(-inf) is 0).
@triton.jit
def shift(maximum):
    return tl.where(maximum == -float("inf"), 0.0, maximum)


# Whole rows as a tile in registers. Width and strides are constants: lanes beyond a row cost nothing, and the compiler
# knows how every row is aligned.
@triton.jit
def softmax_tuned_rows_kernel(
    x_ptr, out_ptr, n_rows, N_COLS: tl.constexpr, X_ROW_STRIDE: tl.constexpr, OUT_ROW_STRIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (rows < n_rows) & (cols < N_COLS)

    # 1. read the rows
    x = tl.load(x_ptr + rows * X_ROW_STRIDE + cols, mask=inside, other=-float("inf")).to(tl.float32)

    # 2. row maximum
    maximum = tl.max(x, axis=1)[:, None]

    # 3. exponentials and row sum
    e = tl.exp2((x - maximum) * LOG2E)
    total = tl.sum(tl.where(cols < N_COLS, e, 0.0), axis=1)[:, None]

    # 4. divide by the row sum, write the rows
    tl.store(out_ptr + rows * OUT_ROW_STRIDE + cols, e * (1.0 / total), mask=inside)


# One row that begins anywhere: whole packs of 16 bytes on the grid of the memory, and the elements before and behind.
@triton.jit
def softmax_tuned_odd_kernel(
    x_ptr, out_ptr, n_cols, x_row_stride, out_row_stride, PACK: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.minimum((PACK - row * x_row_stride % PACK) % PACK, n_cols).to(tl.int32)
    packed = (n_cols - head) // PACK * PACK
    cols = tl.arange(0, BLOCK)
    edges = tl.arange(0, 2 * PACK)
    edge_cols = tl.where(edges < head, edges, edges + packed)
    x_start = tl.multiple_of(row * x_row_stride + head, PACK)
    out_start = tl.multiple_of(row * out_row_stride + head, PACK)

    # 1. read the rows
    x = tl.load(x_ptr + x_start + cols, mask=cols < packed, other=-float("inf")).to(tl.float32)
    edge = tl.load(x_ptr + row * x_row_stride + edge_cols, mask=edges < n_cols - packed, other=-float("inf"))
    edge = edge.to(tl.float32)

    # 2. row maximum
    maximum = tl.maximum(tl.max(x, axis=0), tl.max(edge, axis=0))

    # 3. exponentials and row sum
    e = tl.exp2((x - maximum) * LOG2E)
    edge_e = tl.exp2((edge - maximum) * LOG2E)
    total = tl.sum(e, axis=0) + tl.sum(edge_e, axis=0)

    # 4. divide by the row sum, write the rows
    tl.store(out_ptr + out_start + cols, e * (1.0 / total), mask=cols < packed)
    tl.store(out_ptr + row * out_row_stride + edge_cols, edge_e * (1.0 / total), mask=edges < n_cols - packed)


# Two programs a slice: the first reads it and leaves maximum and sum in exchange; the second, `delay` rows later, reads
# it again, from L2, and writes. Programs take their work in the order of a ticket: none waits for one yet to start.
@triton.jit
def softmax_tuned_relay_kernel(
    x_ptr, out_ptr, exchange_ptr, n_rows, n_cols, x_row_stride, out_row_stride, members, delay,
    PACK: tl.constexpr, SLICE: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    ticket = tl.atomic_add(exchange_ptr, 1, sem="relaxed")
    parity = 1 - ticket // tl.num_programs(0) % 2  # of the launch: it tells this launch's words from the last one's
    block = (ticket % tl.num_programs(0)).to(tl.int32)
    turn = block // members
    second = turn % 2
    row = (turn // 2 - second * delay).to(tl.int64)
    place = block % members
    member = tl.where(second == 1, members - 1 - place, place)  # L2 keeps what was read last
    # A word: the bits of the maximum and of the sum, whose last one is the parity instead.
    words_ptr = exchange_ptr + 1 + row * members

    head = tl.minimum((PACK - row * x_row_stride % PACK) % PACK, n_cols).to(tl.int32)
    packed = (n_cols - head) // PACK * PACK
    cols = member * SLICE + tl.arange(0, SLICE)
    edges = member * SLICE + tl.arange(0, 2 * PACK)  # all of them are the first member's
    edge_cols = tl.where(edges < head, edges, edges + packed)
    x_start = tl.multiple_of(row * x_row_stride + head, PACK)
    out_start = tl.multiple_of(row * out_row_stride + head, PACK)
    if (row >= 0) & (row < n_rows):
        # 1. read the slice
        x = tl.load(x_ptr + x_start + cols, mask=cols < packed, other=-float("inf")).to(tl.float32)
        edge = tl.load(x_ptr + row * x_row_stride + edge_cols, mask=edges < n_cols - packed, other=-float("inf"))
        edge = edge.to(tl.float32)
        if second == 0:
            # 2. maximum and sum of the slice
            maximum = tl.maximum(tl.max(x, axis=0), tl.max(edge, axis=0))
            total = tl.sum(tl.exp2((x - shift(maximum)) * LOG2E), axis=0)
            total += tl.sum(tl.exp2((edge - shift(maximum)) * LOG2E), axis=0)
            high = maximum.to(tl.int32, bitcast=True).to(tl.int64) << 32
            low = total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFE
            tl.atomic_xchg(words_ptr + member, high | low | parity, sem="relaxed")
        else:
            # 3. row maximum and row sum
            others = tl.arange(0, WORDS)
            words = tl.load(words_ptr + others, mask=others < members, other=parity, volatile=True)
            while tl.sum((words & 1) ^ parity, axis=0) > 0:
                words = tl.load(words_ptr + others, mask=others < members, other=parity, volatile=True)
            maxima = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            maxima = tl.where(others < members, maxima, -float("inf"))
            totals = (words & 0xFFFFFFFE).to(tl.int32).to(tl.float32, bitcast=True)
            row_max = tl.max(maxima, axis=0)
            row_sum = tl.sum(totals * tl.exp2((maxima - shift(row_max)) * LOG2E), axis=0)

            # 4. divide by the row sum, write the slice
            scale = 1.0 / row_sum
            e = tl.exp2((x - row_max) * LOG2E)
            tl.store(out_ptr + out_start + cols, e * scale, mask=cols < packed)
            edge_e = tl.exp2((edge - row_max) * LOG2E)
            tl.store(out_ptr + row * out_row_stride + edge_cols, edge_e * scale, mask=edges < n_cols - packed)


# Warps by the bytes of a tile: (up to, float32, 16-bit), with the ratio to a copy on an H200. docs/tuning.md has what
# else was tried.
WARPS = (
    (4096, 4, 4),  # 1.00 to 1.01, 1.00
    (8192, 8, 4),  # 0.99, 0.98
    (16384, 16, 8),  # 0.99, 0.98
    (32768, 16, 8),  # 0.98, 0.97
    (131072, 32, 32),  # 0.98 to 0.99, 0.65 to 0.79
)
ODD_WARPS = (
    (2048, 2, 1),  # , 1.01
    (4096, 4, 4),  # 1.01, 0.97
    (8192, 8, 8),  # 0.97 to 0.98, 0.98
    (16384, 16, 4),  # 0.99, 0.97
    (32768, 16, 4),  # 0.96, 0.93
    (131072, 32, 16),  # 0.95, 0.61 to 0.74
)
SLICE = 8192
DELAY = 8 << 20  # bytes of x between the first and the second look: what the programs of a large GPU hold at a time


# 1. launch
def softmax_tuned(x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride):
    size = x.element_size()
    pack = 16 // size
    block = triton.next_power_of_2(n_cols)
    aligned = n_cols % pack == 0 and x_row_stride % pack == 0 and out_row_stride % pack == 0
    if (x_row_stride - out_row_stride) % pack:
        pack = 1  # no pack of a row of x is one of its row of out
    if block * size > WARPS[-1][0]:  # 0.82 to 0.87, 0.67 to 0.74
        members = triton.cdiv(n_cols, SLICE)
        delay = min(n_rows - 1, DELAY // (n_cols * size))
        softmax_tuned_relay_kernel[(2 * (n_rows + delay) * members,)](
            x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride, members, delay,
            pack, SLICE, triton.next_power_of_2(members), num_warps=4,
        )  # fmt: skip
        return
    table = WARPS if aligned else ODD_WARPS
    warps = next(row[1 if size == 4 else 2] for row in table if block * size <= row[0])
    if aligned:
        rows = max(1, 4096 // (block * size))
        softmax_tuned_rows_kernel[(triton.cdiv(n_rows, rows),)](
            x, out, n_rows, n_cols, x_row_stride, out_row_stride, rows, block, num_warps=warps
        )
    else:
        softmax_tuned_odd_kernel[(n_rows,)](
            x, out, n_cols, x_row_stride, out_row_stride, pack, max(block, 16), num_warps=warps
        )
