// scale, naive: one element a thread
//
// Computes  out[i] = factor * x[i]
// Traffic   1 read + 1 write an element
// Owns      one element a thread
// Limits    n_elements <= (2^31 - 1) * THREADS,
//           contiguous
// Twin      triton/scale_naive.py
#include <cstdint>

constexpr int THREADS = 256;

template <typename T>
__global__ void scale_naive_kernel(const T* x, T* out, float factor, int64_t n_elements) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;

    // 1. read, scale, write
    if (i < n_elements) out[i] = T(factor * float(x[i]));
}

// 2. launch: the last block may be partly idle
template <typename T>
cudaError_t scale_naive(const T* x, T* out, float factor, int64_t n_elements, cudaStream_t stream) {
    const int64_t grid = (n_elements + THREADS - 1) / THREADS;
    scale_naive_kernel<<<grid, THREADS, 0, stream>>>(x, out, factor, n_elements);
    return cudaGetLastError();
}
