// One small kernel a feature of the CPU model; tests/test_cpu_model.py calls the extern "C" functions and knows the
// answers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include <cassert>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const char* error_text() { return cpu_model::last_error_text(); }
EXPORT const char* error_string(cudaError_t error) { return cudaGetErrorString(error); }
EXPORT const char* error_name(cudaError_t error) { return cudaGetErrorName(error); }
EXPORT cudaError_t last_error() { return cudaGetLastError(); }
EXPORT void set_thread_order(bool descending) { cpu_model::set_thread_order(descending); }

// ---- shuffles and votes

__global__ void shuffle_kernel(int kind, int width, int operand, int* out) {
    const int lane = threadIdx.x;
    if (kind == 0) out[lane] = __shfl_sync(0xffffffff, lane, operand, width);
    if (kind == 1) out[lane] = __shfl_up_sync(0xffffffff, lane, operand, width);
    if (kind == 2) out[lane] = __shfl_down_sync(0xffffffff, lane, operand, width);
    if (kind == 3) out[lane] = __shfl_xor_sync(0xffffffff, lane, operand, width);
}
EXPORT cudaError_t shuffle(int kind, int width, int operand, int* out) {
    shuffle_kernel<<<1, 32>>>(kind, width, operand, out);
    return cudaGetLastError();
}

template <typename T>
__device__ int from_next(float value) {
    return int(float(__shfl_down_sync(0xffffffff, T(value), 1)));
}
__global__ void shuffle_types_kernel(int* out) {
    const int lane = threadIdx.x;
    int* row = out + lane * 9;
    row[0] = from_next<float>(lane);
    row[1] = from_next<int>(lane);
    row[2] = from_next<unsigned>(lane);
    row[3] = from_next<long long>(lane);
    row[4] = from_next<unsigned long long>(lane);
    row[5] = from_next<double>(lane);
    row[6] = from_next<__half>(lane);
    row[7] = from_next<__nv_bfloat16>(lane);
    row[8] = int(__high2float(__shfl_down_sync(0xffffffff, __floats2half2_rn(0.0f, lane), 1)));
}
EXPORT cudaError_t shuffle_types(int* out) {
    shuffle_types_kernel<<<1, 32>>>(out);
    return cudaGetLastError();
}

// Two halves of a warp exchange apart, several times and out of step; lanes 24 and up have returned.
__global__ void votes_kernel(unsigned* out) {
    const unsigned lane = threadIdx.x;
    if (lane >= 24) return;
    const unsigned half = lane < 12 ? 0x00000fff : 0x00fff000;
    int sum = lane;
    if (lane < 12)
        for (int i = 0; i < 3; ++i) sum = __shfl_sync(half, sum + 1, lane % 12);
    out[lane * 6 + 0] = __ballot_sync(half, lane % 2);
    out[lane * 6 + 1] = __any_sync(half, lane == 13);
    out[lane * 6 + 2] = __all_sync(half, lane < 12);
    out[lane * 6 + 3] = __ballot_sync(0xffffffff, lane > 20);
    __syncwarp();
    out[lane * 6 + 4] = __activemask();
    __syncwarp();
    out[lane * 6 + 5] = sum;
}
EXPORT cudaError_t votes(unsigned* out) {
    votes_kernel<<<1, 32>>>(out);
    return cudaGetLastError();
}

// ---- barriers

// Sums the block's values; every thread receives the sum. The block may have two or three dimensions.
__global__ void block_sum_kernel(const float* x, float* out) {
    __shared__ float partial[32];
    const int i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int n = blockDim.x * blockDim.y * blockDim.z;
    float value = x[blockIdx.x * n + i];
    for (int offset = warpSize / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    if (i % warpSize == 0) partial[i / warpSize] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < n / warpSize; ++warp) sum += partial[warp];
    out[blockIdx.x * n + i] = sum;
}
EXPORT cudaError_t block_sum(int blocks, int x, int y, int z, const float* in, float* out) {
    block_sum_kernel<<<blocks, dim3(x, y, z)>>>(in, out);
    return cudaGetLastError();
}

// A third of the threads returns before the barriers: hardware counts them as arrived.
__global__ void barrier_votes_kernel(int* out) {
    const int i = threadIdx.x;
    if (i % 3 == 2) return;
    out[i * 4 + 0] = __syncthreads_count(i % 3 == 0);
    out[i * 4 + 1] = __syncthreads_or(i == 1);
    out[i * 4 + 2] = __syncthreads_or(i == 2);
    out[i * 4 + 3] = __syncthreads_and(i % 3 < 2);
}
EXPORT cudaError_t barrier_votes(int threads, int* out) {
    barrier_votes_kernel<<<1, threads>>>(out);
    return cudaGetLastError();
}

__global__ void order_kernel(int* ticket, int* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[atomicAdd(ticket, 1)] = i;
    __syncthreads();
    out[atomicAdd(ticket, 1)] = i;
}
EXPORT cudaError_t order(int* out) {
    int ticket = 0;
    order_kernel<<<2, 40>>>(&ticket, out);
    return cudaGetLastError();
}

// 0: half a warp at __syncwarp, half at __syncthreads. 1: two different barriers. 2: a lane that has returned. 3: the
// caller itself not in its mask. 4: a source outside the mask. 5: lanes that never come. 6: all wait for thread 0,
// which waits. 7: no such lane.
__global__ void divergence_kernel(int kind) {
    const int lane = threadIdx.x % 32;
    if (kind == 0 && lane < 16) __syncwarp();
    if (kind == 0 && lane >= 16) __syncthreads();
    if (kind == 1) {
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
    }
    if (kind == 2 && lane == 5) return;
    if (kind == 2 || kind == 7) __shfl_xor_sync(0xffffffff, lane, 1);
    if (kind == 3) __shfl_sync(0x0000000f, lane, 0);
    if (kind == 4 && lane < 16) __shfl_down_sync(0x0000ffff, lane, 1);
    if (kind == 5 && lane < 16) __ballot_sync(0xffffffff, 1);
    if (kind == 5 && lane >= 16) __ballot_sync(0xffff0000, 1), __syncthreads();
    if (kind == 6 && threadIdx.x == 0) __syncwarp();
    if (kind == 6) __syncthreads();
}
EXPORT cudaError_t divergence(int kind, int threads) {
    divergence_kernel<<<1, threads>>>(kind);
    return cudaGetLastError();
}

// ---- shared memory

__global__ void uninitialised_kernel(float* out) {
    __shared__ float tile[4];
    __shared__ __half halves[4];
    __shared__ alignas(16) __nv_bfloat16 narrow[2][3];
    __shared__ int count;
    extern __shared__ double doubles[];
    out[blockIdx.x * 5 + 0] = tile[3];
    out[blockIdx.x * 5 + 1] = halves[3];
    out[blockIdx.x * 5 + 2] = narrow[1][2];
    out[blockIdx.x * 5 + 3] = doubles[1];
    out[blockIdx.x * 5 + 4] = count;
    tile[3] = 1.0f, halves[3] = 1.0f, narrow[1][2] = 1.0f, doubles[1] = 1.0, count = 1;
}
EXPORT cudaError_t uninitialised(float* out) {
    uninitialised_kernel<<<2, 1, 2 * sizeof(double)>>>(out);
    return cudaGetLastError();
}

__global__ void shared_access_kernel(bool dynamic, bool write, int index, float* out) {
    __shared__ float before[8], tile[16], after[8];
    extern __shared__ __align__(16) float row[];
    before[threadIdx.x] = after[threadIdx.x] = 1.0f;
    float* p = (dynamic ? row : tile) + index;
    if (threadIdx.x == 0 && blockIdx.x == 1) {
        if (write)
            *p = 1.0f;
        else
            *out = *p;
    }
}
EXPORT cudaError_t shared_access(bool dynamic, bool write, int index, float* out) {
    shared_access_kernel<<<3, 8, 16 * sizeof(float)>>>(dynamic, write, index, out);
    return cudaGetLastError();
}

// The same variable for each thread and call; another for each instantiation.
template <int N>
__device__ float* instance() {
    __shared__ float memory[N];
    return memory;
}
__global__ void instances_kernel(int* out) {
    out[0] = instance<4>() == instance<4>();
    out[1] = instance<8>() != instance<4>();
}
EXPORT cudaError_t instances(int* out) {
    instances_kernel<<<1, 1>>>(out);
    return cudaGetLastError();
}

template <int BYTES>
__global__ void static_bytes_kernel() {
    __shared__ char memory[BYTES];
    extern __shared__ char dynamic[];
    memory[threadIdx.x] = dynamic[threadIdx.x] = 0;
}
// raised: 0 leaves the limit, otherwise sets it.
template <int BYTES>
cudaError_t launch_static_bytes(int dynamic, int raised) {
    cudaError_t error = cudaSuccess;
    if (raised)
        error = cudaFuncSetAttribute((const void*)static_bytes_kernel<BYTES>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, raised);
    if (error != cudaSuccess) return error;
    static_bytes_kernel<BYTES><<<1, 1, dynamic>>>();
    return cudaGetLastError();
}
EXPORT cudaError_t shared_bytes(int dynamic) { return launch_static_bytes<1024>(dynamic, 0); }
EXPORT cudaError_t too_many_static_bytes() { return launch_static_bytes<49153>(1, 0); }
template <typename T>
__global__ void raised_kernel(T* out) {
    extern __shared__ T large[];
    large[threadIdx.x] = 1;
    *out = large[threadIdx.x];
}
EXPORT cudaError_t raised_shared_bytes(int limit, int bytes, int* out) {
    cudaError_t error = cudaFuncSetAttribute(raised_kernel<int>, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    if (error != cudaSuccess) return error;
    raised_kernel<<<1, 1, bytes>>>(out);
    return cudaGetLastError();
}

// ---- vectors

template <typename V>
__global__ void vector_copy_kernel(const char* in, char* out) {
    *reinterpret_cast<V*>(out) = __ldg(reinterpret_cast<const V*>(in));
}
EXPORT cudaError_t vector_copy(int bytes, const char* in, char* out) {
    if (bytes == 16) vector_copy_kernel<float4><<<1, 1>>>(in, out);
    if (bytes == 8) vector_copy_kernel<int2><<<1, 1>>>(in, out);
    if (bytes == 4) vector_copy_kernel<__half2><<<1, 1>>>(in, out);
    if (bytes == 2) vector_copy_kernel<__nv_bfloat16><<<1, 1>>>(in, out);
    return cudaGetLastError();
}
// Shared arrays of float are aligned to 4 bytes, whatever address they happen to get; this asks for 16.
template <bool aligned>
__global__ void shared_vector_kernel() {
    __shared__ alignas(aligned ? 16 : 4) float tile[32];
    reinterpret_cast<float4*>(tile)[threadIdx.x] = make_float4(1, 2, 3, 4);
}
EXPORT cudaError_t shared_vector(bool aligned) {
    if (aligned)
        shared_vector_kernel<true><<<1, 8>>>();
    else
        shared_vector_kernel<false><<<1, 8>>>();
    return cudaGetLastError();
}

// ---- launches

__global__ void count_kernel(unsigned long long* count) { atomicAdd(count, 1); }
EXPORT cudaError_t count_threads(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned long long* count) {
    count_kernel<<<dim3(gx, gy, gz), dim3(bx, by, bz)>>>(count);
    return cudaGetLastError();
}

namespace space {
template <typename T, int N = 2>
__global__ void fill_kernel(T* out, int64_t n, T value) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = value * T(N);
}
}  // namespace space
// Each of the ways to write a launch adds one to `calls` and fills one row.
template <typename T>
cudaError_t launch_ways(T* out, cudaStream_t stream) {
    int calls = 0;
    const auto next = [&] { return out + 4 * calls++; };
    using space::fill_kernel;
    fill_kernel<<<1, 4>>>(next(), 4, T(1));
    fill_kernel<T><<<1, 4, 0>>>(next(), 4, 1);
    space::fill_kernel<T, 3><<<(4 + 2 - 1) / 2, dim3(2), 2 * sizeof(T), stream>>>(next(), int(4), 1);
    ::space::fill_kernel<T, (5 > 4) ? 4 : 0><<<dim3(2, 1),  // a comment with <<<
                                               2, 0, stream>>>(next(), 4, 1);
    void (*pointer)(T*, int64_t, T) = fill_kernel<T, 5>;
    pointer<<<1, 4>>>(next(), 4, 1);
    (*pointer)<<<1, max(4, 1)>>>(next(), 4, T(2));
    if (const char* text = "kernel<<<1, 1>>>(x)"; text[0] == 'k') fill_kernel<T><<<(16 >> 2), 1 << 0>>>(next(), 4, 8);
    return calls == 7 ? cudaGetLastError() : cudaErrorInvalidValue;
}
EXPORT cudaError_t launches(float* out) { return launch_ways(out, nullptr); }

__global__ void fault_kernel(int kind) {
    if (kind == 0 && threadIdx.x == 3) __trap();
    if (kind == 1) assert(threadIdx.x < 5 && "few threads");
    if (kind == 2) shuffle_types_kernel<<<1, 32>>>(nullptr);
}
EXPORT cudaError_t fault(int kind) {
    fault_kernel<<<2, 8>>>(kind);
    fault_kernel<<<2, 8>>>(1 - kind);  // does not run, does not hide the first error
    return cudaGetLastError();
}

// ---- arithmetic

EXPORT void half_to_float(const uint16_t* bits, float* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = __half2float(__ushort_as_half(bits[i]));
}
EXPORT void bfloat16_to_float(const uint16_t* bits, float* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = __bfloat162float(__ushort_as_bfloat16(bits[i]));
}
EXPORT void float_to_half(const float* x, uint16_t* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = __half_as_ushort(__float2half_rn(x[i]));
}
EXPORT void float_to_bfloat16(const float* x, uint16_t* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = __bfloat16_as_ushort(__float2bfloat16(x[i]));
}
// add, subtract, multiply, divide, __hmax, __hmin, __hmax_nan, and whether a < b
template <typename T>
void narrow_arithmetic(const uint16_t* a, const uint16_t* b, uint16_t* out, int n) {
    for (int i = 0; i < n; ++i) {
        const T x = cpu_model::bit_cast<T>(a[i]), y = cpu_model::bit_cast<T>(b[i]);
        const T results[] = {x + y, x - y, x * y, x / y, __hmax(x, y), __hmin(x, y), __hmax_nan(x, y), T(float(x < y))};
        for (int k = 0; k < 8; ++k) out[8 * i + k] = results[k].bits;
    }
}
EXPORT void half_arithmetic(const uint16_t* a, const uint16_t* b, uint16_t* out, int n) {
    narrow_arithmetic<__half>(a, b, out, n);
}
EXPORT void bfloat16_arithmetic(const uint16_t* a, const uint16_t* b, uint16_t* out, int n) {
    narrow_arithmetic<__nv_bfloat16>(a, b, out, n);
}

__global__ void arithmetic_kernel(float* out) {
    const float2 pair = __half22float2(__hmax2(__floats2half2_rn(1, 5), __halves2half2(__half(4.0f), __half(2.0f))));
    const float2 narrow = __bfloat1622float2(__floats2bfloat162_rn(3, 4) * __floats2bfloat162_rn(2, 2));
    const float results[] = {pair.x,
                             pair.y,
                             narrow.x,
                             narrow.y,
                             rsqrtf(16.0f),
                             __frcp_rn(4.0f),
                             __fdividef(1, 4),
                             exp2f(3),
                             __expf(0),
                             __logf(1),
                             max(1.0f, CUDART_NAN_F),
                             min(-CUDART_INF_F, INFINITY),
                             float(max(3, 4)),
                             float(min(3LL, 4LL)),
                             __int_as_float(__float_as_int(2.5f)),
                             float(__popc(255)),
                             fmaf(2, 3, 4)};
    for (float value : results) *out++ = value;
}
EXPORT cudaError_t arithmetic(float* out) {
    arithmetic_kernel<<<1, 1>>>(out);
    return cudaGetLastError();
}

__global__ void atomics_kernel(int* ints, unsigned long long* wide, float* floats) {
    const int i = threadIdx.x;
    atomicAdd(&ints[0], i);
    atomicMax(&ints[1], i);
    atomicMin(&ints[2], -i);
    atomicExch(&ints[3], 7);
    atomicCAS(&ints[4], i, i + 1);  // in ascending order each thread finds its number
    atomicAdd(wide, 1ull << 40);
    atomicAdd(floats, 0.5f);
    __threadfence();
    __stcs(&floats[1], __ldcs(&floats[2]));
}
EXPORT cudaError_t atomics(int* ints, unsigned long long* wide, float* floats) {
    atomics_kernel<<<1, 64>>>(ints, wide, floats);
    return cudaGetLastError();
}

EXPORT int attribute(int which) {
    int value = -1;
    return cudaDeviceGetAttribute(&value, cudaDeviceAttr(which), 0) == cudaSuccess ? value : -1;
}
