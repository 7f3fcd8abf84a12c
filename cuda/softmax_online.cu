// softmax, online: one kernel, tiles with a running maximum and sum
//
// Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
// Traffic   2 reads + 1 write an element (the second read may hit L2)
// Owns      one block a row; it walks the row in tiles of THREADS columns, one a thread
// Limits    n_rows < 2^31, columns contiguous; rows of any length
// Twin      triton/softmax_online.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

constexpr int THREADS = 1024;

// Combine one value a thread into one value that every thread of the block receives, through one partial a warp.
template <typename Combine>
static __device__ float block_reduce(float* partial, float value, Combine combine) {
    for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();  // every warp has written its partial
    value = partial[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) value = combine(value, partial[warp]);
    __syncthreads();  // every thread has read them: the next call may write
    return value;
}

// What to subtract before exp: the maximum, but 0 while only -inf was seen (-inf - -inf would be NaN; exp(-inf) is 0).
static __device__ float shift(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

template <typename T>
__global__ void softmax_online_kernel(const T* x, T* out, int64_t n_cols, int64_t x_row_stride,
                                      int64_t out_row_stride) {
    __shared__ float partial[THREADS / 32];
    const T* x_row = x + blockIdx.x * x_row_stride;
    T* out_row = out + blockIdx.x * out_row_stride;

    // 1. running maximum and sum: a larger maximum rescales the sum so far
    float maximum = -INFINITY, sum = 0.0f;
    for (int64_t col = threadIdx.x; col < n_cols; col += THREADS) {
        const float value = float(x_row[col]);
        const float larger = fmaxf(maximum, value);
        sum = sum * __expf(maximum - shift(larger)) + __expf(value - shift(larger));
        maximum = larger;
    }

    // 2. row maximum and row sum
    const float row_max = block_reduce(partial, maximum, [](float a, float b) { return fmaxf(a, b); });
    const float row_sum =
        block_reduce(partial, sum * __expf(maximum - shift(row_max)), [](float a, float b) { return a + b; });

    // 3. read the row again, divide by the row sum, write the row
    for (int64_t col = threadIdx.x; col < n_cols; col += THREADS)
        out_row[col] = T(__expf(float(x_row[col]) - row_max) / row_sum);
}

// 4. launch: the grid is the rows
template <typename T>
cudaError_t softmax_online(const T* x, T* out, int64_t n_rows, int64_t n_cols, int64_t x_row_stride,
                           int64_t out_row_stride, cudaStream_t stream) {
    softmax_online_kernel<<<n_rows, THREADS, 0, stream>>>(x, out, n_cols, x_row_stride, out_row_stride);
    return cudaGetLastError();
}
