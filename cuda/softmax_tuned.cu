// softmax, tuned: everything it takes to be near the memory limit at every width
//
// Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
// Traffic   1 read + 1 write an element (of rows that fit no cluster, beyond 1 MiB, a second read that hits L2)
// Owns      a few lanes, a warp, a block or a cluster a row; the longest rows, two blocks a slice
// Limits    columns contiguous; rows of any length and alignment; exchange is zero before its first launch
// Twin      triton/softmax_tuned.py
#include <type_traits>

#include "softmax_tuned_lanes.cuh"
#include "softmax_tuned_relay.cuh"
#ifdef __CUDACC__  // the CPU model has no clusters
#include "softmax_tuned_cluster.cuh"
#endif

// 1. launch: the regime by the 16-byte packs of a row, with its ratio to a copy on an H200 (float32, bfloat16);
// docs/tuning.md has what else was tried
template <typename T>
cudaError_t softmax_tuned(const T* x, T* out, unsigned long long* exchange, int64_t n_rows, int64_t n_cols,
                          int64_t x_row_stride, int64_t out_row_stride, cudaStream_t stream) {
    const int64_t n_packs = n_cols / Pack<T>::SIZE;
    int device = 0, n_sms = 1, major = 0, l2_bytes = 0;  // what a query that fails leaves: a poor choice
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device);
    const int64_t load = n_rows * n_packs / n_sms;  // packs an SM
    constexpr int PACKS = 8 / sizeof(T), LANES = 1024 / PACKS;
    const auto launch = [&](auto aligned) {
        constexpr bool ALIGNED = decltype(aligned)::value;
        const auto lanes = [&](auto f) { return f(x, out, n_rows, n_cols, x_row_stride, out_row_stride, stream); };
        if constexpr (ALIGNED) {
            if (n_packs <= 4) return lanes(softmax_tuned_lanes<T, true, 2, 2>);      // -, 0.997
            if (n_packs <= 8) return lanes(softmax_tuned_lanes<T, true, 4, 2>);      // 1.011, 0.995
            if (n_packs <= 16) return lanes(softmax_tuned_lanes<T, true, 8, 2>);     // 1.002, 0.992
            if (n_packs <= 32) return lanes(softmax_tuned_lanes<T, true, 16, 2>);    // 1.011, 0.992
            if (n_packs <= 64) return lanes(softmax_tuned_lanes<T, true, 32, 2>);    // 1.010, 0.993
            if (n_packs <= 128) return lanes(softmax_tuned_lanes<T, true, 64, 2>);   // 1.009, 0.997
            if (n_packs <= 256) return lanes(softmax_tuned_lanes<T, true, 128, 2>);  // 1.010, 0.997
            if (n_packs <= 512) return lanes(softmax_tuned_lanes<T, true, 256, 2>);  // 0.984, 0.972
        } else {
            if (n_packs <= 4) return lanes(softmax_tuned_lanes<T, false, 4, 2>);      // -, 0.563
            if (n_packs <= 16) return lanes(softmax_tuned_lanes<T, false, 8, 2>);     // 0.855, 0.867
            if (n_packs <= 32) return lanes(softmax_tuned_lanes<T, false, 16, 2>);    // 0.978, 1.005
            if (n_packs <= 64) return lanes(softmax_tuned_lanes<T, false, 16, 4>);    // 0.973, 0.985
            if (n_packs <= 128) return lanes(softmax_tuned_lanes<T, false, 32, 4>);   // 0.990, 1.007
            if (n_packs <= 256) return lanes(softmax_tuned_lanes<T, false, 64, 4>);   // 0.997, 1.002
            if (n_packs <= 512) return lanes(softmax_tuned_lanes<T, false, 128, 4>);  // 0.978, 0.999
        }
#ifdef __CUDACC__
        const int most = major < 9 ? 0 : major <= 10 ? 16 : 8;  // blocks of a cluster; every GPU with clusters takes 8
        const auto fits = [&](int64_t slice) { return n_packs <= most * slice; };
        const auto cluster = [&](auto f, int64_t slice) {
            const int members = int((n_packs + slice - 1) / slice);
            return f(x, out, n_rows, n_cols, x_row_stride, out_row_stride, members, stream);
        };
        if (load < 4096 && n_packs > 1024 && n_packs <= 4096 && fits(512))  // few rows: over more SMs
            return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 128>, 512);
        if (load < 4096 && n_packs > 4096 && fits(1024))
            return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 256>, 1024);
        if (load < 8192 && !fits(1024) && fits(2048)) return cluster(softmax_tuned_cluster<T, ALIGNED, 8, 256>, 2048);
        const bool full = (n_packs + 511) / 512 * 448 <= n_packs;  // slices of 512 packs, 7/8 of them used
        if (load >= 4096 && full && n_packs <= (sizeof(T) == 4 ? 2048 : 1024) && fits(512))
            return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 128>, 512);  // 1.002, 0.980
        if (sizeof(T) == 2 && n_packs > 2000 && n_packs <= 7 * 768 && fits(768))
            return cluster(softmax_tuned_cluster<T, ALIGNED, 6, 128>, 768);  // -, 0.987 to 0.996
        if (n_packs > (ALIGNED ? 2048 : 1024)) {
            if (fits(1024)) return cluster(softmax_tuned_cluster<T, ALIGNED, 8, 128>, 1024);   // 1.000, 0.990
            if (fits(2048)) return cluster(softmax_tuned_cluster<T, ALIGNED, 16, 128>, 2048);  // 0.999, 0.959
            if (fits(4096)) return cluster(softmax_tuned_cluster<T, ALIGNED, 16, 256>, 4096);  // 0.973, 0.862
        }
#endif
        if (ALIGNED && n_packs <= 1024) return lanes(softmax_tuned_lanes<T, ALIGNED, LANES, PACKS>);  // 0.990, 0.975
        if (n_packs <= 1024) return lanes(softmax_tuned_lanes<T, ALIGNED, 256, 4>);                   // 0.955, 0.985
        if (n_packs <= 2048) return lanes(softmax_tuned_lanes<T, ALIGNED, 256, 8>);                   // 0.971, 0.978
        const auto relay = [&](auto f) {
            return f(x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride, l2_bytes, stream);
        };
        if (load < 8192) return relay(softmax_tuned_relay<T, ALIGNED, 8, 256>);
        return relay(softmax_tuned_relay<T, ALIGNED, 16, 256>);  // 0.863, 0.829
    };
    const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(out) | n_cols * sizeof(T) |
                          x_row_stride * sizeof(T) | out_row_stride * sizeof(T)) %
                             16 ==
                         0;
    return aligned ? launch(std::true_type()) : launch(std::false_type());
}
