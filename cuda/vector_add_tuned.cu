// vector_add, tuned: 16 bytes a thread, any length and alignment
//
// Computes  out[i] = x[i] + y[i], added in float32
// Traffic   2 reads + 1 write an element
// Owns      one pack of 16 bytes a thread; the first threads also one of the elements off the 16-byte grid
// Limits    n_elements <= (2^31 - 1) * THREADS, contiguous
// Twin      triton/vector_add_tuned.py
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

constexpr int THREADS = 256;

template <typename T, int SIZE>
struct alignas(SIZE * sizeof(T)) Pack {
    T element[SIZE];
};

template <typename T, int SIZE>
__global__ void vector_add_tuned_kernel(const T* x, const T* y, T* out, int64_t head, int64_t n_packs,
                                        int64_t n_elements) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;

    // 1. read, add, write
    if (i < n_packs) {
        Pack<T, SIZE> sum = reinterpret_cast<const Pack<T, SIZE>*>(x + head)[i];
        const Pack<T, SIZE> other = reinterpret_cast<const Pack<T, SIZE>*>(y + head)[i];
#pragma unroll
        for (int k = 0; k < SIZE; ++k) sum.element[k] = T(float(sum.element[k]) + float(other.element[k]));
        reinterpret_cast<Pack<T, SIZE>*>(out + head)[i] = sum;
    }
    const int64_t edge = i < head ? i : i + n_packs * SIZE;  // before the packs or behind: less than two packs of them
    if (edge < n_elements) out[edge] = T(float(x[edge]) + float(y[edge]));
}

// 2. launch: packs of 16 bytes where x, y and out lie on one 16-byte grid, else of one element
template <typename T>
cudaError_t vector_add_tuned(const T* x, const T* y, T* out, int64_t n_elements, cudaStream_t stream) {
    constexpr int SIZE = 16 / sizeof(T);
    const int64_t off_grid = reinterpret_cast<uintptr_t>(out) % 16 / sizeof(T);
    const auto off_out = [&](const T* p) {
        return (reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(out)) % 16;
    };
    if (off_out(x) == 0 && off_out(y) == 0) {
        const int64_t to_grid = (SIZE - off_grid) % SIZE, head = to_grid < n_elements ? to_grid : n_elements;
        const int64_t n_packs = (n_elements - head) / SIZE, grid = n_packs / THREADS + 1;
        vector_add_tuned_kernel<T, SIZE><<<grid, THREADS, 0, stream>>>(x, y, out, head, n_packs, n_elements);
    } else {
        const int64_t grid = (n_elements + THREADS - 1) / THREADS;
        vector_add_tuned_kernel<T, 1><<<grid, THREADS, 0, stream>>>(x, y, out, 0, n_elements, n_elements);
    }
    return cudaGetLastError();
}
