// A row in the registers of a cluster of up to 16 blocks, which exchange maximum and sum in distributed shared memory.
// Rows of up to 1 MiB where a GPU takes 16, as Hopper does. The exchange is one asynchronous store to each block,
// counted by its mbarrier: cluster.sync() would first make every load and store of the block visible to the whole GPU.
#pragma once
#include "softmax_tuned.cuh"

static __device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return unsigned(__cvta_generic_to_shared(pointer));
}

// Threads of an SM: a lane has 48 registers for 4 packs, 64 for 8, and 80 (float32), 96 or, in blocks of 256, 128
// for 16.
template <typename T, int PACKS>
static constexpr int RESIDENT = PACKS <= 4       ? 1280
                                : PACKS <= 8     ? 1024
                                : sizeof(T) == 4 ? 768
                                                 : 640;

template <typename T, bool ALIGNED, int PACKS, int THREADS>
__global__ void __launch_bounds__(THREADS, RESIDENT<T, PACKS> / THREADS)
    softmax_tuned_cluster_kernel(const T* x, T* out, int64_t n_cols, int64_t x_row_stride, int64_t out_row_stride,
                                 int members) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ float partial[2][THREADS / 32];
    __shared__ Part parts[16];
    __shared__ uint64_t arrived;  // the mbarrier
    const int member = blockIdx.x % members;
    const int64_t row = blockIdx.x / members;
    if (threadIdx.x == 0) {  // the phase ends when the parts of all members are here
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&arrived)) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&arrived)),
                     "r"(members * int(sizeof(Part)))
                     : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    // 1. read the slice
    Share<T, ALIGNED, PACKS, THREADS, ROOM<T, PACKS>> share(x + row * x_row_stride, int(n_cols),
                                                            member * THREADS + threadIdx.x, members * THREADS);
    asm volatile("barrier.cluster.arrive.relaxed.aligned;");

    // 2. maximum and sum of the slice
    const float maximum = reduce<THREADS>(partial[0], share.maximum(), Max());
    const float sum = reduce<THREADS>(partial[1], share.sum(shift(maximum)), Sum());

    // 3. exchange: thread i sends to member i
    asm volatile("barrier.cluster.wait.aligned;");  // every member has started, and its mbarrier counts
    if (threadIdx.x < members) {
        unsigned slot, barrier;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(slot)
            : "r"(shared_address(parts + member)), "r"(threadIdx.x));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(shared_address(&arrived)), "r"(threadIdx.x));
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(slot),
                     "f"(maximum), "f"(sum), "r"(barrier)
                     : "memory");
    }
    for (unsigned done = 0; !done;)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, "
            "p; }"
            : "=r"(done)
            : "r"(shared_address(&arrived))
            : "memory");
    const int lane = threadIdx.x % 32;
    const Part whole = merge<T>(lane < members ? parts[lane] : Part{-INFINITY, 0.0f});

    // 4. divide by the row sum, write the slice; of one that is all -inf the factor is 0
    const float factor = rescale<T>(maximum, shift(whole.maximum)) / whole.sum;
    share.write(out + row * out_row_stride, shift(maximum), factor);
#endif
}

template <typename T, bool ALIGNED, int PACKS, int THREADS>
static cudaError_t softmax_tuned_cluster(const T* x, T* out, int64_t n_rows, int64_t n_cols, int64_t x_row_stride,
                                         int64_t out_row_stride, int members, cudaStream_t stream) {
    const auto kernel = softmax_tuned_cluster_kernel<T, ALIGNED, PACKS, THREADS>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);  // beyond 8 blocks
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(members), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(n_rows * members));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, x, out, n_cols, x_row_stride, out_row_stride, members);
}
