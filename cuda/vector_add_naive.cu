// vector_add, naive: one element a thread
//
// Computes  out[i] = x[i] + y[i], added in float32
// Traffic   2 reads + 1 write an element
// Owns      one element a thread
// Limits    n_elements <= (2^31 - 1) * THREADS, contiguous
// Twin      triton/vector_add_naive.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

constexpr int THREADS = 256;

template <typename T>
__global__ void vector_add_naive_kernel(const T* x, const T* y, T* out, int64_t n_elements) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;

    // 1. read, add, write
    if (i < n_elements) out[i] = T(float(x[i]) + float(y[i]));
}

// 2. launch: the last block may be partly idle
template <typename T>
cudaError_t vector_add_naive(const T* x, const T* y, T* out, int64_t n_elements, cudaStream_t stream) {
    const int64_t grid = (n_elements + THREADS - 1) / THREADS;
    vector_add_naive_kernel<<<grid, THREADS, 0, stream>>>(x, y, out, n_elements);
    return cudaGetLastError();
}
