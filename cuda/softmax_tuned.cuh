// What the regimes of the tuned softmax share: a row cut at 16 bytes, a lane's share of it in registers, reductions.
//
// A lane reads and writes 16 bytes at once, so that a warp moves 512 neighbouring bytes. Elements before and behind the
// 16-byte grid of the row go one by one, so no other row is touched, and a row may begin anywhere.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// Two 16-bit elements in one register; float32 goes without, and has a stand-in.
template <typename T>
struct Pair {
    using Type = float2;
};
template <>
struct Pair<__half> {
    using Type = __half2;
};
template <>
struct Pair<__nv_bfloat16> {
    using Type = __nv_bfloat162;
};

// 16 bytes as they are in memory, and as the elements in them.
template <typename T>
union Pack {
    static constexpr int SIZE = 16 / sizeof(T);
    int4 bits;
    T element[SIZE];
    typename Pair<T>::Type pair[SIZE / 2];
    __device__ Pack() {}
};

// 2^x, zero where that is no normal number: one instruction.
static __device__ __forceinline__ float power_of_2(float x) {
#ifdef __CUDA_ARCH__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return exp2f(x);
#endif
}

// log2(e), which makes an exponent of e one of 2. Rows of 16 bits are bound by instructions: there the product and the
// difference of an exponent are one, and the rounding of shift * log2(e), common to the row, cancels in the quotient.
// From 2^20 on it would not be small, but there 16-bit numbers differ by 0 or by more than exp knows, and any exact
// factor does.
template <typename T>
static __device__ __forceinline__ float log2_e(float shift) {
    return sizeof(T) == 4 || fabsf(shift) < 1048576.0f ? 1.4426950408889634f : 0.5f;
}

// exp(x - shift).
template <typename T>
static __device__ __forceinline__ float exponential(float x, float shift) {
    const float factor = log2_e<T>(shift);
    if constexpr (sizeof(T) == 4) return power_of_2((x - shift) * factor);
    return power_of_2(__fmaf_rn(x, factor, -__fmul_rn(shift, factor)));
}

// exp(from - to), of two shifts: by it, what exponential(x, from) gave becomes what exponential(x, to) gives.
template <typename T>
static __device__ __forceinline__ float rescale(float from, float to) {
    const float factor = log2_e<T>(to);
    if constexpr (sizeof(T) == 4) return power_of_2((from - to) * factor);
    return power_of_2(__fmul_rn(from, factor) - __fmul_rn(to, factor));
}

// What to subtract before exp: the maximum, but 0 while only -inf was seen (-inf - -inf would be NaN; exp(-inf) is 0).
static __device__ __forceinline__ float shift(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// Combine one value a lane into one for all LANES of a row: a part of a warp, a warp, or a block, which then needs a
// `partial` of one float a warp that no other reduction of the kernel uses.
template <int LANES, typename Combine>
static __device__ __forceinline__ float reduce(float* partial, float value, Combine combine) {
    constexpr int WARPS = LANES / 32;
    for (int offset = min(LANES, 32) / 2; offset > 0; offset /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();  // every warp has written its partial
        value = partial[threadIdx.x % WARPS];
        for (int offset = WARPS / 2; offset > 0; offset /= 2)
            value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    return value;
}

// A maximum, and the sum of exp(value - shift(maximum)): of a part of a row, or of all of it. One store moves both.
struct alignas(8) Part {
    float maximum, sum;
};

// Merge one part a lane of a warp.
template <typename T>
static __device__ __forceinline__ Part merge(Part part) {
    const float maximum = reduce<32>(nullptr, part.maximum, Max());
    return {maximum, reduce<32>(nullptr, part.sum * rescale<T>(part.maximum, shift(maximum)), Sum())};
}

// How many packs of exponentials a lane has room for: they take the place of a float32's pack, and twice that of
// others.
template <typename T, int PACKS>
static constexpr int ROOM = sizeof(T) == 4 || PACKS <= 6 ? PACKS
                            : PACKS <= 12                ? 12 - PACKS
                                                         : 0;

// One lane's share of a row: packs first, first + step, ... and, where the row is not ALIGNED to the 16-byte grid, as
// many of its elements before and behind it, of which there are less than two packs. KEPT: of so many packs the
// exponentials stay in registers from sum() to write(), which computes the others again, from the packs.
template <typename T, bool ALIGNED, int PACKS, int LANES, int KEPT>
struct Share {
    static constexpr int SIZE = Pack<T>::SIZE;
    static constexpr int EDGES = ALIGNED ? 0 : (2 * SIZE - 2 + LANES - 1) / LANES;
    const int first, step, head, n_packs, n_edges;  // head: elements before the grid; edges: those, and those behind it
    int4 pack[PACKS];
    float edge[EDGES + 1];
    float kept[KEPT + 1][SIZE], kept_edge[EDGES + 1];

    __device__ __forceinline__ Share(const T* x_row, int n_cols, int first, int step)
        : first(first),
          step(step),
          head(ALIGNED ? 0 : min(n_cols, int(-reinterpret_cast<uintptr_t>(x_row) % 16 / sizeof(T)))),
          n_packs((n_cols - head) / SIZE),
          n_edges(n_cols - n_packs * SIZE) {
        const int4* x_packs = reinterpret_cast<const int4*>(x_row + head) + first;
        Pack<T> none;
#pragma unroll
        for (int i = 0; i < SIZE; ++i) none.element[i] = T(-INFINITY);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) pack[p] = has(p) ? x_packs[p * step] : none.bits;
#pragma unroll
        for (int e = 0; e < EDGES; ++e)
            edge[e] = first + e * step < n_edges ? float(x_row[column(first + e * step)]) : -INFINITY;
    }

    __device__ __forceinline__ bool has(int p) const { return first + p * step < n_packs; }
    __device__ __forceinline__ int column(int edge) const { return edge < head ? edge : edge + n_packs * SIZE; }
    __device__ __forceinline__ float value(int p, int i) const {
        Pack<T> elements;
        elements.bits = pack[p];
        return float(elements.element[i]);
    }

    __device__ __forceinline__ float maximum() const {
        float maximum = -INFINITY;
        if constexpr (sizeof(T) == 2) {  // two at a time
            Pack<T> elements;
            elements.bits = pack[0];
            typename Pair<T>::Type larger = elements.pair[0];
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                elements.bits = pack[p];
#pragma unroll
                for (int i = 0; i < SIZE / 2; ++i) larger = __hmax2(larger, elements.pair[i]);
            }
            maximum = fmaxf(float(larger.x), float(larger.y));
        } else {
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
#pragma unroll
                for (int i = 0; i < SIZE; ++i) maximum = fmaxf(maximum, value(p, i));
        }
#pragma unroll
        for (int e = 0; e < EDGES; ++e) maximum = fmaxf(maximum, edge[e]);
        return maximum;
    }

    // The sum of exp(value - shift).
    __device__ __forceinline__ float sum(float shift) {
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            forget(p);
#pragma unroll
            for (int i = 0; i < SIZE; ++i) sum += kept[min(p, KEPT)][i] = exponential<T>(value(p, i), shift);
        }
#pragma unroll
        for (int e = 0; e < EDGES; ++e) sum += kept_edge[e] = exponential<T>(edge[e], shift);
        return sum;
    }

    // exp(value - shift) * scale, into the same columns of out_row. After sum(shift), unless KEPT is 0. STREAMING: the
    // packs are the first that L2 gives up.
    template <bool STREAMING = false>
    __device__ __forceinline__ void write(T* out_row, float shift, float scale) {
        T* to = out_row + head + first * SIZE;
        const bool on_grid = ALIGNED || reinterpret_cast<uintptr_t>(to) % 16 == 0;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (p >= KEPT && !has(p)) continue;
            forget(p);
            Pack<T> result;
#pragma unroll
            for (int i = 0; i < SIZE; ++i)
                result.element[i] = T((p < KEPT ? kept[min(p, KEPT)][i] : exponential<T>(value(p, i), shift)) * scale);
            int4* pack_to = reinterpret_cast<int4*>(to) + p * step;
            if (has(p) && on_grid && STREAMING) __stcs(pack_to, result.bits);
            if (has(p) && on_grid && !STREAMING) *pack_to = result.bits;
            if (has(p) && !on_grid)
#pragma unroll
                for (int i = 0; i < SIZE; ++i) to[p * step * SIZE + i] = result.element[i];
        }
#pragma unroll
        for (int e = 0; e < EDGES; ++e)
            if (first + e * step < n_edges)
                out_row[column(first + e * step)] = T((KEPT ? kept_edge[e] : exponential<T>(edge[e], shift)) * scale);
    }

    // Hide a pack from the compiler, which else would keep every element as a float32 from one pass to the next: twice
    // the registers of a 16-bit row, and half the threads.
    __device__ __forceinline__ void forget(int p) {
#ifdef __CUDA_ARCH__
        if (p >= KEPT && sizeof(T) == 2)
            asm volatile("" : "+r"(pack[p].x), "+r"(pack[p].y), "+r"(pack[p].z), "+r"(pack[p].w));
#endif
    }
};
