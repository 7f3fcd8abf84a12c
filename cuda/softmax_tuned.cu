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
    constexpr int PACKS = 8 / sizeof(T);  // of a lane of a long row: 16-bit elements are twice the work a pack
    const auto lanes = [&](auto f) { return f(x, out, n_rows, n_cols, x_row_stride, out_row_stride, stream); };
    const auto launch = [&](auto aligned) {
        constexpr bool ALIGNED = decltype(aligned)::value;
        if constexpr (ALIGNED) {
            if (n_packs <= 4) return lanes(softmax_tuned_lanes<T, true, 2, 2>);                        // -, 0.997
            if (n_packs <= 8) return lanes(softmax_tuned_lanes<T, true, 4, 2>);                        // 1.013, 0.993
            if (n_packs <= 16) return lanes(softmax_tuned_lanes<T, true, 8, 2>);                       // 1.001, 0.988
            if (n_packs <= 32) return lanes(softmax_tuned_lanes<T, true, 16, 2>);                      // 1.012, 0.997
            if (n_packs <= 64) return lanes(softmax_tuned_lanes<T, true, 32, 2>);                      // 1.010, 0.997
            if (n_packs <= 128) return lanes(softmax_tuned_lanes<T, true, 64, 2>);                     // 1.011, 0.994
            if (n_packs <= 256) return lanes(softmax_tuned_lanes<T, true, 128, 2>);                    // 1.014, 1.000
            if (n_packs <= 512) return lanes(softmax_tuned_lanes<T, true, 512 / PACKS, PACKS>);        // 0.989, 0.975
            if (n_packs <= 1024) return lanes(softmax_tuned_lanes<T, true, 1024 / PACKS, PACKS>);      // 0.992, 0.975
            if (n_packs <= 2048) return lanes(softmax_tuned_lanes<T, true, 1024 / PACKS, 2 * PACKS>);  // 0.987, 0.965
        } else {
            if (n_packs <= 16) return lanes(softmax_tuned_lanes<T, false, 8, 2>);
            if (n_packs <= 112) return lanes(softmax_tuned_lanes<T, false, 16, 7>);   // -, 0.978
            if (n_packs <= 256) return lanes(softmax_tuned_lanes<T, false, 64, 4>);   // 0.998, 0.906
            if (n_packs <= 512) return lanes(softmax_tuned_lanes<T, false, 128, 4>);  // 0.957, -
            if (n_packs <= 2048) return lanes(softmax_tuned_lanes<T, false, 256, 8>);
        }
        int device = 0, n_sms = 0, major = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
#ifdef __CUDACC__
        const auto cluster = [&](auto f, int64_t slice) {
            const int members = int((n_packs + slice - 1) / slice);
            return f(x, out, n_rows, n_cols, x_row_stride, out_row_stride, members, stream);
        };
        const int most = major < 9 ? 0 : major <= 10 ? 16 : 8;  // blocks of a cluster; every GPU with clusters takes 8
        if (n_packs <= most * 1024 && n_rows * n_packs / 1024 < 4 * n_sms)  // few rows, over more SMs
            return cluster(softmax_tuned_cluster<T, ALIGNED, 4, 256>, 1024);
        if (n_packs <= most * 2048)
            return cluster(softmax_tuned_cluster<T, ALIGNED, 8, 256>, 2048);  // 0.987 to 0.992, 0.968 to 0.970
        if (n_packs <= most * 4096) return cluster(softmax_tuned_cluster<T, ALIGNED, 8, 512>, 4096);  // 0.920, -
#endif
        return softmax_tuned_relay<T, ALIGNED, 8, 256>(x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride,
                                                       n_sms, stream);  // 0.820, 0.814
    };
    const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(out) | n_cols * sizeof(T) |
                          x_row_stride * sizeof(T) | out_row_stride * sizeof(T)) %
                             16 ==
                         0;
    return aligned ? launch(std::true_type()) : launch(std::false_type());
}
