// Floats of 16 bits, bit by bit: half has 5 bits of exponent and 10 of mantissa, bfloat16 8 and 7.
#pragma once
#include "cuda_runtime.h"

namespace cpu_model {

template <int exponent_bits, int mantissa_bits>
struct NarrowFloat {
    std::uint16_t bits;

    static constexpr int shift = 23 - mantissa_bits;                          // mantissa bits that float has more
    static constexpr int bias_difference = 128 - (1 << (exponent_bits - 1));  // float's bias is 127
    static constexpr std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;

    NarrowFloat() = default;

    // Rounds to nearest, ties to even. What is too small to be normal has the smallest exponent and fewer mantissa
    // bits.
    NarrowFloat(float value) {
        const std::uint32_t wide = bit_cast<std::uint32_t>(value), magnitude = wide & 0x7fffffff;
        if (magnitude > 0x7f800000) {
            bits = 0x7fff;  // CUDA has one NaN
            return;
        }
        const int exponent = max(static_cast<int>(magnitude >> 23), 1);
        const std::uint32_t significand = (magnitude & 0x7fffff) | (magnitude >> 23 ? 0x800000 : 0);
        const int smallest = bias_difference + 1;
        const int lost = min(shift + max(smallest - exponent, 0), 26);
        const std::uint32_t half_ulp = 1u << (lost - 1), kept = significand >> lost;
        const std::uint32_t rounded = (significand + (half_ulp - 1) + (kept & 1)) >> lost;
        // A carry out of the mantissa adds one to the exponent, as it should; beyond the last exponent is infinity.
        const std::uint32_t result =
            rounded + (static_cast<std::uint32_t>(max(exponent - smallest, 0)) << mantissa_bits);
        bits = static_cast<std::uint16_t>(wide >> 31 << 15 | min(result, infinity));
    }

    operator float() const {
        const std::uint32_t sign = static_cast<std::uint32_t>(bits) >> 15 << 31, magnitude = bits & 0x7fff;
        if (magnitude >= infinity) return bit_cast<float>(sign | 0x7f800000 | magnitude << shift);
        if (magnitude >= 1u << mantissa_bits)
            return bit_cast<float>(sign | ((magnitude << shift) + (static_cast<std::uint32_t>(bias_difference) << 23)));
        const float smallest =
            bit_cast<float>(bias_difference > 0 ? (bias_difference + 1u - mantissa_bits) << 23 : 1u << shift);
        return bit_cast<float>(sign | bit_cast<std::uint32_t>(static_cast<float>(magnitude) * smallest));
    }

    // float holds every product and enough of every sum and quotient that rounding twice rounds right.
    friend NarrowFloat operator+(NarrowFloat a, NarrowFloat b) { return float(a) + float(b); }
    friend NarrowFloat operator-(NarrowFloat a, NarrowFloat b) { return float(a) - float(b); }
    friend NarrowFloat operator*(NarrowFloat a, NarrowFloat b) { return float(a) * float(b); }
    friend NarrowFloat operator/(NarrowFloat a, NarrowFloat b) { return float(a) / float(b); }
    friend NarrowFloat operator-(NarrowFloat a) { return -float(a); }
    NarrowFloat& operator+=(NarrowFloat b) { return *this = *this + b; }
    NarrowFloat& operator-=(NarrowFloat b) { return *this = *this - b; }
    NarrowFloat& operator*=(NarrowFloat b) { return *this = *this * b; }
    NarrowFloat& operator/=(NarrowFloat b) { return *this = *this / b; }
    friend bool operator==(NarrowFloat a, NarrowFloat b) { return float(a) == float(b); }
    friend bool operator!=(NarrowFloat a, NarrowFloat b) { return float(a) != float(b); }
    friend bool operator<(NarrowFloat a, NarrowFloat b) { return float(a) < float(b); }
    friend bool operator<=(NarrowFloat a, NarrowFloat b) { return float(a) <= float(b); }
    friend bool operator>(NarrowFloat a, NarrowFloat b) { return float(a) > float(b); }
    friend bool operator>=(NarrowFloat a, NarrowFloat b) { return float(a) >= float(b); }
};

template <class T>
struct NarrowFloat2 : Aligned<4> {
    T x, y;
    NarrowFloat2() = default;
    NarrowFloat2(T x, T y) : x(x), y(y) {}
    friend NarrowFloat2 operator+(NarrowFloat2 a, NarrowFloat2 b) { return {a.x + b.x, a.y + b.y}; }
    friend NarrowFloat2 operator-(NarrowFloat2 a, NarrowFloat2 b) { return {a.x - b.x, a.y - b.y}; }
    friend NarrowFloat2 operator*(NarrowFloat2 a, NarrowFloat2 b) { return {a.x * b.x, a.y * b.y}; }
    friend NarrowFloat2 operator/(NarrowFloat2 a, NarrowFloat2 b) { return {a.x / b.x, a.y / b.y}; }
};

}  // namespace cpu_model

// The intrinsics that half and bfloat16 share. __hmax prefers a number to NaN and +0 to -0; __hmax_nan gives NaN.
#define CPU_MODEL_NARROW_INTRINSICS(T, T2)                                                           \
    inline T __hadd(T a, T b) { return a + b; }                                                      \
    inline T __hsub(T a, T b) { return a - b; }                                                      \
    inline T __hmul(T a, T b) { return a * b; }                                                      \
    inline T __hdiv(T a, T b) { return a / b; }                                                      \
    inline T __hneg(T a) { return -a; }                                                              \
    inline bool __hisnan(T a) { return std::isnan(float(a)); }                                       \
    inline T __hmax_nan(T a, T b) {                                                                  \
        if (__hisnan(a) || __hisnan(b)) return T(NAN);                                               \
        return a > b || (a == b && !std::signbit(float(a))) ? a : b;                                 \
    }                                                                                                \
    inline T __hmin_nan(T a, T b) { return -__hmax_nan(-a, -b); }                                    \
    inline T __hmax(T a, T b) {                                                                      \
        return __hisnan(a) && !__hisnan(b) ? b : !__hisnan(a) && __hisnan(b) ? a : __hmax_nan(a, b); \
    }                                                                                                \
    inline T __hmin(T a, T b) { return -__hmax(-a, -b); }                                            \
    inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                  \
    inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                  \
    inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                  \
    inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                   \
    inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                   \
    inline float __low2float(T2 a) { return a.x; }                                                   \
    inline float __high2float(T2 a) { return a.y; }
