// softmax, tuned: everything it takes to be near the memory limit at every width
//
// Computes  out[r, c] = exp(x[r, c] - max_r) / sum_r, accumulated in float32
// Traffic   1 read + 1 write an element (beyond 1 MiB a row, a second read that hits L2)
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
    int device = 0, n_sms = 0, major = 0, l2_bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device);
    const int64_t load = n_rows * n_packs / n_sms;  // packs an SM
    const auto launch = [&](auto aligned) {
        constexpr bool ALIGNED = decltype(aligned)::value;
        const auto lanes = [&](auto f) { return f(x, out, n_rows, n_cols, x_row_stride, out_row_stride, stream); };
        if constexpr (ALIGNED) {
            if (n_packs <= 4) return lanes(softmax_tuned_lanes<T, true, 2, 2>);      // -, 0.997
            if (n_packs <= 8) return lanes(softmax_tuned_lanes<T, true, 4, 2>);      // 1.013, 1.001
            if (n_packs <= 16) return lanes(softmax_tuned_lanes<T, true, 8, 2>);     // 1.001, 0.989
            if (n_packs <= 32) return lanes(softmax_tuned_lanes<T, true, 16, 2>);    // 1.012, 0.994
            if (n_packs <= 64) return lanes(softmax_tuned_lanes<T, true, 32, 2>);    // 1.010, 0.990
            if (n_packs <= 128) return lanes(softmax_tuned_lanes<T, true, 64, 2>);   // 1.011, 0.994
            if (n_packs <= 256) return lanes(softmax_tuned_lanes<T, true, 128, 2>);  // 1.014, 0.998
            if (n_packs <= 512) return lanes(softmax_tuned_lanes<T, true, 256, 2>);  // 0.989, 0.977
        } else {
            if (n_packs <= 16) return lanes(softmax_tuned_lanes<T, false, 8, 2>);
            if (n_packs <= 128) return lanes(softmax_tuned_lanes<T, false, 32, 4>);   // -, 1.008
            if (n_packs <= 256) return lanes(softmax_tuned_lanes<T, false, 64, 4>);   // 0.998, 0.987
            if (n_packs <= 512) return lanes(softmax_tuned_lanes<T, false, 128, 4>);  // 0.957, 0.981
        }
#ifdef __CUDACC__
        const int most = major < 9 ? 0 : major <= 10 ? 16 : 8;  // blocks of a cluster; every GPU with clusters takes 8
        const auto fits = [&](int64_t slice) { return n_packs <= most * slice; };
        const auto cluster = [&](auto f, int64_t slice) {
            const int members = int((n_packs + slice - 1) / slice);
            return f(x, out, n_rows, n_cols, x_row_stride, out_row_stride, members, stream);
        };
        if (load < 4096 && n_packs <= 4096 && fits(512))  // few rows: over more SMs
            return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 128>, 512);
        if (load < 4096 && fits(1024)) return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 256>, 1024);
        if (load < 8192 && fits(2048) && !fits(1024)) return cluster(softmax_tuned_cluster<T, ALIGNED, 8, 256>, 2048);
        if (n_packs <= (sizeof(T) == 4 ? 2048 : 1024) && fits(512))
            return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 128>, 512);  // 1.010, 0.985
        if (sizeof(T) == 2 && n_packs > 2000 && n_packs <= 7 * 768 && fits(768))
            return cluster(softmax_tuned_cluster<T, ALIGNED, 6, 128>, 768);                // -, 0.995
        if (fits(1024)) return cluster(softmax_tuned_cluster<T, ALIGNED, 8, 128>, 1024);   // 1.004, 0.980
        if (fits(2048)) return cluster(softmax_tuned_cluster<T, ALIGNED, 16, 128>, 2048);  // 1.004, 0.963
        if (fits(4096)) return cluster(softmax_tuned_cluster<T, ALIGNED, 16, 256>, 4096);  // 0.973, 0.851
#endif
        if (n_packs <= 2048) return lanes(softmax_tuned_lanes<T, ALIGNED, 256, 8>);  // where there are no clusters
        const auto relay = [&](auto f) {
            return f(x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride, l2_bytes, stream);
        };
        if (load < 8192) return relay(softmax_tuned_relay<T, ALIGNED, 8, 256>);
        return relay(softmax_tuned_relay<T, ALIGNED, 16, 256>);  // 0.855 to 0.864, 0.829 to 0.843
    };
    const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(out) | n_cols * sizeof(T) |
                          x_row_stride * sizeof(T) | out_row_stride * sizeof(T)) %
                             16 ==
                         0;
    return aligned ? launch(std::true_type()) : launch(std::false_type());
}
