// Two blocks a slice: the first reads it and leaves maximum and sum in `exchange`; the second, some rows later, reads
// the slice again, from L2, and writes. Rows of any length on any GPU: no block waits for one that has not started,
// because blocks take their work in the order of a ticket, and a second block's row is finished long before.
#pragma once
#include "softmax_tuned.cuh"
#ifdef __CUDACC__
#include <cuda/annotated_ptr>
#endif

// x, and what L2 is to do with what is read through it: keep it for the second look, or give it up after that.
template <typename T>
static __device__ __forceinline__ const T* look(const T* x, bool second) {
#ifdef __CUDA_ARCH__
    using Property = cuda::access_property;
    return cuda::associate_access_property(x,
                                           second ? Property(Property::streaming()) : Property(Property::persisting()));
#else
    return x;
#endif
}

template <typename T, bool ALIGNED, int PACKS, int THREADS>
__global__ void __launch_bounds__(THREADS, (PACKS > 8 ? 768 : 1024) / THREADS)
    softmax_tuned_relay_kernel(const T* x, T* out, unsigned long long* exchange, int64_t n_rows, int64_t n_cols,
                               int64_t x_row_stride, int64_t out_row_stride, unsigned members, int64_t delay) {
    __shared__ float partial[4][THREADS / 32];
    __shared__ unsigned ticket;
    if (threadIdx.x == 0) ticket = atomicInc(reinterpret_cast<unsigned*>(exchange), 2 * gridDim.x - 1);
    __syncthreads();
    const unsigned parity = ticket < gridDim.x;  // of the launch: it tells this launch's words from the last one's
    const unsigned block = ticket - (parity ? 0 : gridDim.x), turn = block / members;
    const bool second = turn % 2;
    const int64_t row = int64_t(turn / 2) - (second ? delay : 0);
    if (row < 0 || row >= n_rows) return;
    const int place = block % members, member = second ? members - 1 - place : place;  // L2 keeps what was read last
    // A word: the bits of the maximum and of the sum, whose last one is the parity instead.
    volatile unsigned long long* words = exchange + 1 + row * members;

    // 1. read the slice
    Share<T, ALIGNED, PACKS, THREADS, 0> share(look(x + row * x_row_stride, second), int(n_cols),
                                               member * PACKS * THREADS + threadIdx.x, THREADS);
    if (!second) {
        // 2. maximum and sum of the slice
        const float maximum = reduce<THREADS>(partial[0], share.maximum(), Max());
        const float sum = reduce<THREADS>(partial[1], share.sum(shift(maximum)), Sum());
        if (threadIdx.x == 0)
            words[member] = uint64_t(__float_as_uint(maximum)) << 32 | (__float_as_uint(sum) & ~1u) | parity;
    } else {
        // 3. row maximum and row sum
        float maximum = -INFINITY, sum = 0.0f;
        for (unsigned i = threadIdx.x; i < members; i += THREADS) {
            unsigned long long word;
            do word = words[i];
            while ((unsigned(word) & 1) != parity);
            const Part part{__uint_as_float(unsigned(word >> 32)), __uint_as_float(unsigned(word) & ~1u)};
            const float larger = fmaxf(maximum, part.maximum);
            sum = sum * rescale<T>(maximum, shift(larger)) + part.sum * rescale<T>(part.maximum, shift(larger));
            maximum = larger;
        }
        const float row_max = reduce<THREADS>(partial[2], maximum, Max());
        const float row_sum = reduce<THREADS>(partial[3], sum * rescale<T>(maximum, shift(row_max)), Sum());

        // 4. divide by the row sum, write the slice
        share.template write<true>(out + row * out_row_stride, row_max, 1.0f / row_sum);
    }
}

template <typename T, bool ALIGNED, int PACKS, int THREADS>
static cudaError_t softmax_tuned_relay(const T* x, T* out, unsigned long long* exchange, int64_t n_rows, int64_t n_cols,
                                       int64_t x_row_stride, int64_t out_row_stride, int l2_bytes,
                                       cudaStream_t stream) {
    constexpr int SLICE = PACKS * THREADS * Pack<T>::SIZE;
    const int64_t members = (n_cols + SLICE - 1) / SLICE;
    // A quarter of L2 later a row is finished, and still there.
    const int64_t delay = min(n_rows - 1, max(int64_t(1), l2_bytes / 4 / int64_t(n_cols * sizeof(T))));
    softmax_tuned_relay_kernel<T, ALIGNED, PACKS, THREADS><<<2 * (n_rows + delay) * members, THREADS, 0, stream>>>(
        x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride, members, delay);
    return cudaGetLastError();
}
