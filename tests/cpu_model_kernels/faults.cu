// Kernels with one fault each, for the sanitizer runner; `fault` picks. tests/test_cpu_model.py finds the lines by
// their marks.
#include "binding.h"

template <typename T>
__device__ float block_sum(float value) {
    __shared__ float partial[4];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;  // mark: next write
    __syncthreads();                                               // mark: barrier before reading
    value = partial[0] + partial[1] + partial[2] + partial[3];     // mark: last read
    __syncthreads();                                               // mark: barrier before the next write
    return value;
}

template <typename T>
__global__ void faults_kernel(const T* x, T* out, int64_t n_elements, int fault) {
    __shared__ float tile[128];
    extern __shared__ T row[];
    const int i = threadIdx.x;
    tile[i] = row[i] = T(1.0f);
    const float sum = block_sum<T>(i) + block_sum<T>(1.0f);
    const int beyond = i == 77 ? 128 : i;
    if (fault == 1) out[i] = x[i == 77 ? n_elements : i];        // mark: global read
    if (fault == 2) out[i == 77 ? n_elements : i] = x[i];        // mark: global write
    if (fault == 3) out[i] = T(tile[beyond]);                    // mark: static read
    if (fault == 4) tile[beyond] = 2.0f;                         // mark: static write
    if (fault == 5) out[i] = row[beyond];                        // mark: dynamic read
    if (fault == 6) row[beyond] = T(2.0f);                       // mark: dynamic write
    if (fault == 7) {                                            // a misaligned load, and a misaligned store
        float4 value = *reinterpret_cast<const float4*>(x + 1);  // mark: vector load
        *reinterpret_cast<float4*>(out) = value;
    }
    if (fault == 8) *reinterpret_cast<float4*>(out + 2) = float4();  // mark: vector store
    if (fault == 9 && i == 0) out[0] = T(float(blockIdx.x));         // mark: race of blocks
    if (fault == 10) tile[i / 2] = float(i);                         // mark: race in a warp
    if (fault == 11) {
        if (i % 32 == 0) tile[i] = 3.0f;
        __syncwarp();
        if (tile[i / 32 * 32] != 3.0f) out[i] = T(0.0f);
    }
    if (fault == 12) {
        if (i % 32 == 0) tile[i] = 3.0f;                  // mark: before the shuffle
        __shfl_sync(0xffffffff, i, 0);                    // exchanges registers, orders no memory
        if (tile[i / 32 * 32] != 3.0f) out[i] = T(0.0f);  // mark: after the shuffle
    }
    if (fault == 13) atomicAdd(reinterpret_cast<unsigned*>(out), 1u);
    if (fault == 0 && blockIdx.x == 0) out[i] = T(sum + float(x[i]));
}

template <typename T>
cudaError_t faults(const T* x, T* out, int64_t n_elements, int fault, cudaStream_t stream) {
    faults_kernel<<<fault == 0 || fault == 9 || fault == 13 ? 2 : 1, 128, 128 * sizeof(T), stream>>>(x, out, n_elements,
                                                                                                     fault);
    return cudaGetLastError();
}

BIND(faults, "x, out, n_elements, fault")
