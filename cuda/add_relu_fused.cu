// add_relu, fused: one kernel, the sum stays in a register
//
// Computes  out[i] = max(x[i] + y[i], 0), added in float32; NaN stays NaN
// Traffic   2 reads + 1 write an element
// Owns      one element a thread
// Limits    n_elements <= (2^31 - 1) * THREADS, contiguous
// Twin      triton/add_relu_fused.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

constexpr int THREADS = 256;

template <typename T>
__global__ void add_relu_fused_kernel(const T* x, const T* y, T* out, int64_t n_elements) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n_elements) {
        // 1. add
        const float sum = float(x[i]) + float(y[i]);

        // 2. relu, in a register
        out[i] = T(sum < 0.0f ? 0.0f : sum);  // not fmaxf, which drops a NaN
    }
}

// 3. launch: the last block may be partly idle
template <typename T>
cudaError_t add_relu_fused(const T* x, const T* y, T* out, int64_t n_elements, cudaStream_t stream) {
    const int64_t grid = (n_elements + THREADS - 1) / THREADS;
    add_relu_fused_kernel<<<grid, THREADS, 0, stream>>>(x, y, out, n_elements);
    return cudaGetLastError();
}
