// softmax, naive: three kernels, each a pass over global memory
//
// Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
// Traffic   3 reads + 2 writes an element, plus row_max and row_sum (float32, n_rows each)
// Owns      one block a row; a thread takes every THREADS-th column
// Limits    n_rows < 2^31, columns contiguous; 16-bit: exp is rounded to the output type, so results round twice
// Twin      triton/softmax_naive.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

constexpr int THREADS = 256;

// Combine one value a thread into one value that every thread of the block receives, through one partial a warp.
template <typename Combine>
static __device__ float block_reduce(float* partial, float value, Combine combine) {
    for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();  // every warp has written its partial
    value = partial[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) value = combine(value, partial[warp]);
    return value;
}

// 1. row maximum
template <typename T>
__global__ void softmax_naive_max_kernel(const T* x, float* row_max, int64_t n_cols, int64_t x_row_stride) {
    __shared__ float partial[THREADS / 32];
    const T* x_row = x + blockIdx.x * x_row_stride;
    float maximum = -INFINITY;
    for (int64_t col = threadIdx.x; col < n_cols; col += THREADS) maximum = fmaxf(maximum, float(x_row[col]));
    maximum = block_reduce(partial, maximum, [](float a, float b) { return fmaxf(a, b); });
    if (threadIdx.x == 0) row_max[blockIdx.x] = maximum;
}

// 2. exponentials and row sum
template <typename T>
__global__ void softmax_naive_exp_kernel(const T* x, T* out, const float* row_max, float* row_sum, int64_t n_cols,
                                         int64_t x_row_stride, int64_t out_row_stride) {
    __shared__ float partial[THREADS / 32];
    const T* x_row = x + blockIdx.x * x_row_stride;
    T* out_row = out + blockIdx.x * out_row_stride;
    const float maximum = row_max[blockIdx.x];
    float sum = 0.0f;
    for (int64_t col = threadIdx.x; col < n_cols; col += THREADS) {
        const float e = __expf(float(x_row[col]) - maximum);
        out_row[col] = T(e);
        sum += e;
    }
    sum = block_reduce(partial, sum, [](float a, float b) { return a + b; });
    if (threadIdx.x == 0) row_sum[blockIdx.x] = sum;
}

// 3. divide by the row sum
template <typename T>
__global__ void softmax_naive_divide_kernel(T* out, const float* row_sum, int64_t n_cols, int64_t out_row_stride) {
    T* out_row = out + blockIdx.x * out_row_stride;
    const float sum = row_sum[blockIdx.x];
    for (int64_t col = threadIdx.x; col < n_cols; col += THREADS) out_row[col] = T(float(out_row[col]) / sum);
}

// 4. launch: the grid is the rows; kernels on one stream run in order
template <typename T>
cudaError_t softmax_naive(const T* x, T* out, float* row_max, float* row_sum, int64_t n_rows, int64_t n_cols,
                          int64_t x_row_stride, int64_t out_row_stride, cudaStream_t stream) {
    softmax_naive_max_kernel<<<n_rows, THREADS, 0, stream>>>(x, row_max, n_cols, x_row_stride);
    softmax_naive_exp_kernel<<<n_rows, THREADS, 0, stream>>>(x, out, row_max, row_sum, n_cols, x_row_stride,
                                                             out_row_stride);
    softmax_naive_divide_kernel<<<n_rows, THREADS, 0, stream>>>(out, row_sum, n_cols, out_row_stride);
    return cudaGetLastError();
}
