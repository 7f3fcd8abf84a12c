// CUDA's names, for host and device code, on the CPU model. Not all of CUDA: what such kernels as this project's use.
#pragma once
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "cpu_model.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#if !defined(__clang__)
#define __builtin_assume(condition) ((void)0)
#endif

constexpr int warpSize = 32;

// ---- Host -----------------------------------------------------------------------------------------------------------

cudaError_t cudaGetLastError();  // also clears it
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
// rewrite.py adds the kernel's name in front: at a launch the model knows no more of a kernel than that.
template <class Kernel>
cudaError_t cudaFuncSetAttribute(const char* name, Kernel*, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorInvalidValue;
    return cpu_model::set_dynamic_shared_limit(name, value);
}

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaPeekAtLastError(); }
inline cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t = nullptr) {
    return std::memset(address, value, bytes), cudaSuccess;
}

// ---- Vector types ---------------------------------------------------------------------------------------------------

namespace cpu_model {

// The base of a type that hardware loads and stores whole: each copy looks at both addresses.
template <std::size_t bytes>
struct alignas(bytes) Aligned {
    Aligned() = default;
    Aligned(const Aligned& other) { *this = other; }
    Aligned& operator=(const Aligned& other) {
        check_aligned(this, bytes);
        check_aligned(&other, bytes);
        return *this;
    }
};
template <class T>
struct Vector2 : Aligned<2 * sizeof(T)> {
    T x, y;
    Vector2() = default;
    constexpr Vector2(T x, T y) : x(x), y(y) {}
};
template <class T>
struct Vector4 : Aligned<4 * sizeof(T)> {
    T x, y, z, w;
    Vector4() = default;
    constexpr Vector4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
};

}  // namespace cpu_model

#define CPU_MODEL_VECTORS(T, name)                                       \
    using name##2 = cpu_model::Vector2<T>;                               \
    using name##4 = cpu_model::Vector4<T>;                               \
    constexpr name##2 make_##name##2(T x, T y) { return name##2(x, y); } \
    constexpr name##4 make_##name##4(T x, T y, T z, T w) { return name##4(x, y, z, w); }
CPU_MODEL_VECTORS(float, float)
CPU_MODEL_VECTORS(int, int)
CPU_MODEL_VECTORS(unsigned, uint)
CPU_MODEL_VECTORS(short, short)
CPU_MODEL_VECTORS(unsigned short, ushort)
CPU_MODEL_VECTORS(unsigned char, uchar)
#undef CPU_MODEL_VECTORS
using double2 = cpu_model::Vector2<double>;

// ---- Meeting other threads ------------------------------------------------------------------------------------------

#define CPU_MODEL_HERE cpu_model::Place place = cpu_model::Place::here()

inline void __syncthreads(CPU_MODEL_HERE) { cpu_model::meet_block("__syncthreads", false, place); }
inline int __syncthreads_count(int predicate, CPU_MODEL_HERE) {
    return cpu_model::meet_block("__syncthreads_count", predicate != 0, place);
}
inline int __syncthreads_or(int predicate, CPU_MODEL_HERE) {
    return cpu_model::meet_block("__syncthreads_or", predicate != 0, place) != 0;
}
inline int __syncthreads_and(int predicate, CPU_MODEL_HERE) {
    return cpu_model::meet_block("__syncthreads_and", predicate == 0, place) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff, CPU_MODEL_HERE) {
    cpu_model::meet_warp({"__syncwarp", mask, 0, cpu_model::Meeting::nothing}, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, CPU_MODEL_HERE) {
    return unsigned(cpu_model::meet_warp({"__ballot_sync", mask, predicate != 0, cpu_model::Meeting::votes}, place));
}
inline int __any_sync(unsigned mask, int predicate, CPU_MODEL_HERE) {
    return cpu_model::meet_warp({"__any_sync", mask, predicate != 0, cpu_model::Meeting::votes}, place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CPU_MODEL_HERE) {
    return cpu_model::meet_warp({"__all_sync", mask, predicate == 0, cpu_model::Meeting::votes}, place) == 0;
}
inline void __trap(CPU_MODEL_HERE) { cpu_model::fail(cudaErrorLaunchFailure, "__trap()", place); }
// Those that have not returned. Hardware may answer with fewer, so nothing may rest on it.
inline unsigned __activemask() { return cpu_model::active_lanes(); }

namespace cpu_model {

template <class T>
T shuffle(const char* what, unsigned mask, T value, int source, Place place) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_destructible<T>::value, "a shuffle moves up to 8 bytes");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = meet_warp({what, mask, bits, source}, place);
    std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
    return value;
}

}  // namespace cpu_model

// A warp acts as 32 / width groups of `width` lanes (a power of two). A source outside the group is the lane itself.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, CPU_MODEL_HERE) {
    const int first = cpu_model::lane() & -width;
    return cpu_model::shuffle("__shfl_sync", mask, value, first + (source & (width - 1)), place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, CPU_MODEL_HERE) {
    const int lane = cpu_model::lane(), in_group = lane & (width - 1);
    return cpu_model::shuffle("__shfl_up_sync", mask, value, delta > unsigned(in_group) ? lane : lane - int(delta),
                              place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, CPU_MODEL_HERE) {
    const int lane = cpu_model::lane(), in_group = lane & (width - 1);
    return cpu_model::shuffle("__shfl_down_sync", mask, value,
                              delta > unsigned(width - 1 - in_group) ? lane : lane + int(delta), place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize, CPU_MODEL_HERE) {
    const int lane = cpu_model::lane(), source = lane ^ lanes, last = lane | (width - 1);
    return cpu_model::shuffle("__shfl_xor_sync", mask, value, source > last ? lane : source, place);
}

// ---- Atomics --------------------------------------------------------------------------------------------------------

namespace cpu_model {

template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(static_cast<void*>(&to), &from, sizeof to);
    return to;
}

// Atomic for the sake of TSan alone. It orders memory as well, so a missing __threadfence does not show.
template <class T, class Next>
T atomic_update(T* address, Next next) {
    using Word = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
    typedef Word __attribute__((may_alias)) Bits;
    auto* bits = reinterpret_cast<Bits*>(address);
    Word old = __atomic_load_n(bits, __ATOMIC_ACQUIRE), result;
    do result = bit_cast<Word>(next(bit_cast<T>(old)));
    while (!__atomic_compare_exchange_n(bits, &old, result, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return bit_cast<T>(old);
}

}  // namespace cpu_model

#define CPU_MODEL_ATOMIC(name, result)                                                               \
    template <class T>                                                                               \
    T name(T* address, cpu_model::Same<T> value) {                                                   \
        return cpu_model::atomic_update(address, [=]([[maybe_unused]] T old) { return T(result); }); \
    }
CPU_MODEL_ATOMIC(atomicAdd, old + value)
CPU_MODEL_ATOMIC(atomicMax, old < value ? value : old)
CPU_MODEL_ATOMIC(atomicMin, value < old ? value : old)
CPU_MODEL_ATOMIC(atomicExch, value)
CPU_MODEL_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef CPU_MODEL_ATOMIC
template <class T>
T atomicCAS(T* address, cpu_model::Same<T> compare, cpu_model::Same<T> value) {
    return cpu_model::atomic_update(address, [=](T old) { return old == compare ? value : old; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- Loads, stores and bits -----------------------------------------------------------------------------------------

#define CPU_MODEL_LOAD(name)   \
    template <class T>         \
    T name(const T* address) { \
        return *address;       \
    }
#define CPU_MODEL_STORE(name)                         \
    template <class T>                                \
    void name(T* address, cpu_model::Same<T> value) { \
        *address = value;                             \
    }
CPU_MODEL_LOAD(__ldg)
CPU_MODEL_LOAD(__ldca)
CPU_MODEL_LOAD(__ldcg)
CPU_MODEL_LOAD(__ldcs)
CPU_MODEL_STORE(__stcg)
CPU_MODEL_STORE(__stcs)
CPU_MODEL_STORE(__stwt)
#undef CPU_MODEL_LOAD
#undef CPU_MODEL_STORE

inline int __float_as_int(float x) { return cpu_model::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return cpu_model::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return cpu_model::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return cpu_model::bit_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }

// ---- Arithmetic -----------------------------------------------------------------------------------------------------

// The fast functions are as accurate here as their slow twins; a GPU's are off by a few ulps.
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
namespace cpu_model {
inline float reciprocal_root(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
}  // namespace cpu_model
#define rsqrtf cpu_model::reciprocal_root  // newer C libraries declare one of their own

// As in CUDA: for floats the one that is not NaN.
#define CPU_MODEL_MAX_MIN(T)                            \
    constexpr T max(T a, T b) { return a < b ? b : a; } \
    constexpr T min(T a, T b) { return b < a ? b : a; }
CPU_MODEL_MAX_MIN(int)
CPU_MODEL_MAX_MIN(unsigned)
CPU_MODEL_MAX_MIN(long)
CPU_MODEL_MAX_MIN(unsigned long)
CPU_MODEL_MAX_MIN(long long)
CPU_MODEL_MAX_MIN(unsigned long long)
#undef CPU_MODEL_MAX_MIN
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
