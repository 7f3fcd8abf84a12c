// A row in the registers of LANES threads, two to eight packs each: one read, two reductions, one write.
// Rows of up to 32 KiB: a few lanes, a warp or a block a row; several rows a block where a warp or less owns one.
// Few packs a lane, because every load is issued before the first reduction and many lanes hide each other's waiting.
#pragma once
#include "softmax_tuned.cuh"

template <typename T, bool ALIGNED, int LANES, int PACKS, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS < 256 ? 1 : 1024 / THREADS)
    softmax_tuned_lanes_kernel(const T* x, T* out, int64_t n_rows, int64_t n_cols, int64_t x_row_stride,
                               int64_t out_row_stride) {
    __shared__ float partial[2][LANES / 32 + 1];
    const int64_t row = int64_t(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const bool inside = row < n_rows;  // lanes without a row share in the shuffles all the same

    // 1. read the rows
    Share<T, ALIGNED, PACKS, LANES, ROOM<T, PACKS>> share(x + (inside ? row : 0) * x_row_stride,
                                                          inside ? int(n_cols) : 0, threadIdx.x % LANES, LANES);

    // 2. row maximum
    const float maximum = reduce<LANES>(partial[0], share.maximum(), Max());

    // 3. exponentials and row sum
    const float sum = reduce<LANES>(partial[1], share.sum(maximum), Sum());

    // 4. divide by the row sum, write the rows
    share.write(out + row * out_row_stride, maximum, 1.0f / sum);
}

template <typename T, bool ALIGNED, int LANES, int PACKS>
static cudaError_t softmax_tuned_lanes(const T* x, T* out, int64_t n_rows, int64_t n_cols, int64_t x_row_stride,
                                       int64_t out_row_stride, cudaStream_t stream) {
    constexpr int THREADS = LANES > 32 ? LANES : 128;
    const int64_t grid = (n_rows + THREADS / LANES - 1) / (THREADS / LANES);
    softmax_tuned_lanes_kernel<T, ALIGNED, LANES, PACKS, THREADS>
        <<<grid, THREADS, 0, stream>>>(x, out, n_rows, n_cols, x_row_stride, out_row_stride);
    return cudaGetLastError();
}
