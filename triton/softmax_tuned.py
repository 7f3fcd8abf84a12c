"""softmax, tuned: everything it takes to be near the memory limit at every width

Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
Traffic   1 read + 1 write an element (rows beyond 208 KiB, in 16 bits 128, a second read that hits L2)
Owns      ROWS short rows a program, or one row; the longest rows, two programs a slice
Limits    columns contiguous; rows of any length and alignment; exchange is zero before its first launch
Twin      cuda/softmax_tuned.cu
"""

import triton
import triton.language as tl


# What to subtract before exp: the maximum, but 0 while only -inf was seen (-inf - -inf would be NaN; exp(-inf) is 0).
@triton.jit
def shift(maximum):
    return tl.where(maximum == -float("inf"), 0.0, maximum)


# log2(e), which makes an exponent of e one of 2. Rows of 16 bits are bound by instructions: there the product and the
# difference of an exponent are one, and the rounding of shift * log2(e), common to the row, cancels in the quotient.
# From 2^20 on it would not be small, but there 16-bit numbers differ by 0 or by more than exp knows, and any exact
# factor does.
@triton.jit
def log2_e(shift, DTYPE: tl.constexpr):
    factor = 1.4426950408889634
    if DTYPE != tl.float32:
        factor = tl.where(tl.abs(shift) < 1048576.0, factor, 0.5)
    return factor


# exp(x - shift).
@triton.jit
def exponential(x, shift):
    factor = log2_e(shift, x.dtype)
    if x.dtype == tl.float32:
        return tl.exp2((x - shift) * factor)
    return tl.exp2(tl.fma(x.to(tl.float32), factor, -tl.fma(shift, factor, 0.0)))


# exp(start - to), of two shifts: by it, what exponential(x, start) gave becomes what exponential(x, to) gives.
@triton.jit
def rescale(start, to, DTYPE: tl.constexpr):
    factor = log2_e(to, DTYPE)
    if DTYPE == tl.float32:
        return tl.exp2((start - to) * factor)
    return tl.exp2(tl.fma(start, factor, 0.0) - tl.fma(to, factor, 0.0))


# Hide 16-bit elements from the compiler, which else would keep each as a float32 from one pass to the next. MOVE hides
# them from LLVM only: ptxas may keep what it has registers for. CLEAR, by a zero that nobody knows (n is no constant),
# hides all.
MOVE = "mov.b32 $0, $1;"
CLEAR = "or.b32 $0, $1, $2;"


@triton.jit
def hide(x, n, HOW: tl.constexpr):
    if HOW is not None:
        zero = tl.minimum(n, 0).to(tl.int16)
        x = tl.inline_asm_elementwise(HOW, "=r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2)
    return x


# Whole rows as a tile in registers. Width and strides are constants: lanes beyond a row cost nothing, and the compiler
# knows how every row is aligned.
@triton.jit(do_not_specialize=["n_rows"])
def softmax_tuned_rows_kernel(
    x_ptr, out_ptr, n_rows, N_COLS: tl.constexpr, X_ROW_STRIDE: tl.constexpr, OUT_ROW_STRIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (rows < n_rows) & (cols < N_COLS)

    # 1. read the rows
    x = tl.load(x_ptr + rows * X_ROW_STRIDE + cols, mask=inside, other=-float("inf"))

    # 2. row maximum
    maximum = tl.max(x.to(tl.float32), axis=1)[:, None]

    # 3. exponentials and row sum
    x = hide(x, n_rows, FIRST)
    total = tl.sum(tl.where(cols < N_COLS, exponential(x, maximum), 0.0), axis=1)[:, None]

    # 4. divide by the row sum, write the rows
    x = hide(x, n_rows, SECOND)
    tl.store(out_ptr + rows * OUT_ROW_STRIDE + cols, exponential(x, maximum) * (1.0 / total), mask=inside)


# One row that begins anywhere: whole packs of 16 bytes on the grid of the memory, and the elements before and behind.
@triton.jit(do_not_specialize=["x_row_stride"])
def softmax_tuned_odd_kernel(
    x_ptr, out_ptr, x_row_stride, out_row_stride, N_COLS: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.minimum((PACK - row * x_row_stride % PACK) % PACK, N_COLS).to(tl.int32)
    packed = (N_COLS - head) // PACK * PACK
    cols = tl.arange(0, BLOCK)
    edges = tl.arange(0, 2 * PACK)
    edge_cols = tl.where(edges < head, edges, edges + packed)
    x_start = tl.multiple_of(row * x_row_stride + head, PACK)
    out_start = tl.multiple_of(row * out_row_stride + head, PACK)
    possible = cols < N_COLS // PACK * PACK  # known to the compiler, which then drops the lanes beyond
    inside = possible & (cols < packed)

    # 1. read the rows
    x = tl.load(x_ptr + x_start + cols, mask=inside, other=-float("inf"))
    edge = tl.load(x_ptr + row * x_row_stride + edge_cols, mask=edges < N_COLS - packed, other=-float("inf"))

    # 2. row maximum
    maximum = tl.maximum(tl.max(x.to(tl.float32), axis=0), tl.max(edge.to(tl.float32), axis=0))

    # 3. exponentials and row sum
    x = hide(x, x_row_stride, FIRST)
    edge_e = exponential(edge, maximum)
    total = tl.sum(tl.where(possible, exponential(x, maximum), 0.0), axis=0) + tl.sum(edge_e, axis=0)

    # 4. divide by the row sum, write the rows
    x = hide(x, x_row_stride, SECOND)
    tl.store(out_ptr + out_start + cols, exponential(x, maximum) * (1.0 / total), mask=inside)
    tl.store(out_ptr + row * out_row_stride + edge_cols, edge_e * (1.0 / total), mask=edges < N_COLS - packed)


# Two programs a slice: the first reads it and leaves maximum and sum in exchange; the second, `delay` rows later, reads
# it again, from L2, and writes. Programs take their work in the order of a ticket: none waits for one yet to start.
# L2 is told to keep the slice for the second look, and to give it up after that.
@triton.jit
def softmax_tuned_relay_kernel(
    x_ptr, out_ptr, exchange_ptr, n_rows, n_cols, x_row_stride, out_row_stride, members, delay,
    PACK: tl.constexpr, SLICE: tl.constexpr, WORDS: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x_ptr.dtype.element_ty
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

    head = tl.minimum((PACK - row * x_row_stride % PACK) % PACK, n_cols).to(tl.int32) if ODD else 0
    packed = (n_cols - head) // PACK * PACK
    cols = member * SLICE + tl.arange(0, SLICE)
    edges = member * SLICE + tl.arange(0, 2 * PACK)  # all of them are the first member's
    edge_cols = tl.where(edges < head, edges, edges + packed)
    x_start = tl.multiple_of(row * x_row_stride + head, PACK)
    out_start = tl.multiple_of(row * out_row_stride + head, PACK)
    if (row >= 0) & (row < n_rows):
        # 1. read the slice: for the first time, or again
        if ODD:
            edge = tl.load(x_ptr + row * x_row_stride + edge_cols, mask=edges < n_cols - packed, other=-float("inf"))
        if second == 0:
            x = tl.load(x_ptr + x_start + cols, mask=cols < packed, other=-float("inf"), eviction_policy="evict_last")

            # 2. maximum and sum of the slice
            maximum = tl.max(x.to(tl.float32), axis=0)
            if ODD:
                maximum = tl.maximum(maximum, tl.max(edge.to(tl.float32), axis=0))
            x = hide(x, n_rows, FIRST)
            total = tl.sum(exponential(x, shift(maximum)), axis=0)
            if ODD:
                total += tl.sum(exponential(edge, shift(maximum)), axis=0)
            high = maximum.to(tl.int32, bitcast=True).to(tl.int64) << 32
            low = total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFE
            tl.atomic_xchg(words_ptr + member, high | low | parity, sem="relaxed")
        else:
            x = tl.load(x_ptr + x_start + cols, mask=cols < packed, other=-float("inf"), eviction_policy="evict_first")

            # 3. row maximum and row sum
            row_max = -float("inf")
            row_sum = 0.0
            for start in range(0, members, WORDS):
                others = start + tl.arange(0, WORDS)
                words = tl.load(words_ptr + others, mask=others < members, other=parity, volatile=True)
                while tl.sum((words & 1) ^ parity, axis=0) > 0:
                    words = tl.load(words_ptr + others, mask=others < members, other=parity, volatile=True)
                maxima = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
                maxima = tl.where(others < members, maxima, -float("inf"))
                totals = (words & 0xFFFFFFFE).to(tl.int32).to(tl.float32, bitcast=True)
                larger = tl.maximum(row_max, tl.max(maxima, axis=0))
                row_sum *= rescale(row_max, shift(larger), dtype)
                row_sum += tl.sum(totals * rescale(maxima, shift(larger), dtype), axis=0)
                row_max = larger

            # 4. divide by the row sum, write the slice
            scale = 1.0 / row_sum
            e = exponential(x, row_max)
            tl.store(out_ptr + out_start + cols, e * scale, mask=cols < packed, cache_modifier=".cs")
            if ODD:
                edge_e = exponential(edge, row_max)
                tl.store(out_ptr + row * out_row_stride + edge_cols, edge_e * scale, mask=edges < n_cols - packed)


# By the bytes of an element, then of a tile: (up to, warps, most registers a lane, what is hidden before the sum, and
# before the write), with the ratio to a copy on an H200, of aligned rows and of odd ones. docs/tuning.md has what else
# was tried.
TILES = {
    4: (
        (4096, 4, None, None, None),  # 1.00 to 1.01; 1.00
        (8192, 8, None, None, None),  # 0.99; 0.97
        (32768, 16, None, None, None),  # 0.99; 0.98
        (212992, 32, None, None, None),  # 0.96 to 0.99; 0.92 to 0.98
    ),
    2: (
        (2048, 1, None, None, None),  # -; 1.01
        (4096, 4, None, None, None),  # 1.00; 0.99
        (8192, 8, None, None, None),  # 0.98; 0.98
        (32768, 8, None, MOVE, MOVE),  # 0.98 to 0.99; 0.96 to 0.99
        (81920, 16, 64, MOVE, CLEAR),  # 0.95 to 0.97; 0.95 to 0.97
        (106496, 8, 128, MOVE, CLEAR),  # 0.92; 0.89
        (131072, 32, None, MOVE, MOVE),  # 0.88 to 0.90; 0.85
    ),
}
SLICE = 8192
DELAY = 8 << 20  # bytes of x between the first and the second look: what the programs of a large GPU hold at a time


# 1. launch
def softmax_tuned(x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride):
    size = x.element_size()
    pack = 16 // size
    block = triton.next_power_of_2(n_cols)
    odd = n_cols % pack or x_row_stride % pack or out_row_stride % pack
    if (x_row_stride - out_row_stride) % pack:
        pack = 1  # no pack of a row of x is one of its row of out
    cut = odd and block > 512  # at 16 bytes; a shorter row is not worth it
    rows = 1 if cut else max(1, (2048 if odd else 4096 // size) // block)
    hides = size == 2 and not triton.knobs.runtime.interpret  # which knows no assembly
    tiles = [tile for tile in TILES[size] if (n_cols * size if rows == 1 else 4096) <= tile[0]]
    if not tiles:  # 0.82 to 0.89, 0.74 to 0.76
        slice_ = SLICE if n_rows * n_cols * size > 1 << 20 else SLICE // 2  # few rows: over more SMs
        members = triton.cdiv(n_cols, slice_)
        delay = min(n_rows - 1, max(1, DELAY // (n_cols * size)))
        softmax_tuned_relay_kernel[(2 * (n_rows + delay) * members,)](
            x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride, members, delay, pack, slice_,
            min(1024, triton.next_power_of_2(members)), bool(odd), MOVE if hides else None, num_warps=4,
        )  # fmt: skip
        return
    _, warps, registers, first, second = tiles[0]
    options = dict(num_warps=warps, maxnreg=registers, FIRST=first if hides else None, SECOND=second if hides else None)
    if cut:
        softmax_tuned_odd_kernel[(n_rows,)](
            x, out, x_row_stride, out_row_stride, n_cols, pack, max(block, 16), **options
        )
    else:
        softmax_tuned_rows_kernel[(triton.cdiv(n_rows, rows),)](
            x, out, n_rows, n_cols, x_row_stride, out_row_stride, rows, block, **options
        )
