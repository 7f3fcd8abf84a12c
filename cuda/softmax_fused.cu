// softmax, fused: one kernel, the row stays on chip
//
// Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
// Traffic   1 read + 1 write an element
// Owns      one block a row, kept in shared memory; a thread takes every blockDim.x-th column
// Limits    n_cols <= 12288 (48 KiB of float32 a block), n_rows < 2^31, columns contiguous; longer rows: online
// Twin      triton/softmax_fused.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// Combine one value a thread into one value that every thread of the block receives, through one partial a warp.
template <typename Combine>
static __device__ float block_reduce(float* partial, float value, Combine combine) {
    for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();  // every warp has written its partial
    value = partial[0];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) value = combine(value, partial[warp]);
    __syncthreads();  // every thread has read them: the next call may write
    return value;
}

template <typename T>
__global__ void softmax_fused_kernel(const T* x, T* out, int64_t n_cols, int64_t x_row_stride, int64_t out_row_stride) {
    __shared__ float partial[32];
    extern __shared__ float row[];  // n_cols; a thread touches only its own columns, so this needs no barrier
    const T* x_row = x + blockIdx.x * x_row_stride;
    T* out_row = out + blockIdx.x * out_row_stride;

    // 1. read the row, its maximum
    float maximum = -INFINITY;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        row[col] = float(x_row[col]);
        maximum = fmaxf(maximum, row[col]);
    }
    maximum = block_reduce(partial, maximum, [](float a, float b) { return fmaxf(a, b); });

    // 2. exponentials and row sum
    float sum = 0.0f;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        row[col] = __expf(row[col] - maximum);
        sum += row[col];
    }
    sum = block_reduce(partial, sum, [](float a, float b) { return a + b; });

    // 3. divide by the row sum, write the row
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) out_row[col] = T(row[col] / sum);
}

// 4. launch: the grid is the rows; about 4 columns a thread, 1 to 16 warps
template <typename T>
cudaError_t softmax_fused(const T* x, T* out, int64_t n_rows, int64_t n_cols, int64_t x_row_stride,
                          int64_t out_row_stride, cudaStream_t stream) {
    int threads = 32;
    while (threads < 512 && threads * 4 < n_cols) threads *= 2;
    const int shared = n_cols * sizeof(float);
    // The partials come on top: the widest rows need a little more than the 48 KiB given unasked.
    cudaFuncSetAttribute(softmax_fused_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    softmax_fused_kernel<<<n_rows, threads, shared, stream>>>(x, out, n_cols, x_row_stride, out_row_stride);
    return cudaGetLastError();
}
