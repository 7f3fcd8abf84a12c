// add_relu, naive: two kernels, the sum goes through global memory
//
// Computes  out[i] = max(x[i] + y[i], 0), added in float32; NaN stays NaN
// Traffic   3 reads + 2 writes an element
// Owns      one element a thread
// Limits    n_elements <= (2^31 - 1) * THREADS, contiguous
// Twin      triton/add_relu_naive.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

constexpr int THREADS = 256;

// 1. add
template <typename T>
__global__ void add_relu_naive_add_kernel(const T* x, const T* y, T* out, int64_t n_elements) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n_elements) out[i] = T(float(x[i]) + float(y[i]));
}

// 2. relu, in place
template <typename T>
__global__ void add_relu_naive_relu_kernel(T* out, int64_t n_elements) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n_elements) {
        const float sum = float(out[i]);
        out[i] = T(sum < 0.0f ? 0.0f : sum);  // not fmaxf, which drops a NaN
    }
}

// 3. launch: kernels on one stream run in order
template <typename T>
cudaError_t add_relu_naive(const T* x, const T* y, T* out, int64_t n_elements, cudaStream_t stream) {
    const int64_t grid = (n_elements + THREADS - 1) / THREADS;
    add_relu_naive_add_kernel<<<grid, THREADS, 0, stream>>>(x, y, out, n_elements);
    add_relu_naive_relu_kernel<<<grid, THREADS, 0, stream>>>(out, n_elements);
    return cudaGetLastError();
}
