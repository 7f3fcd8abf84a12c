// One line binds a launcher: BIND(softmax_fused, "x, out, n_rows, n_cols, x_row_stride, out_row_stride").
//
// It instantiates the template for each dtype and enters it into the table that module.cpp offers to Python. Types
// come from the launcher's own signature: pointers and integers arrive as 64-bit integers, the stream as the last one.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <utility>
#include <vector>

struct Launcher {
    const char* name;
    const char* parameters;  // separated by ", ", in order, without the stream
    int n_parameters;
    cudaError_t (*launch)(int dtype, const long long* arguments);  // n_parameters of them, then the stream
};

// The names of the dtypes, as torch writes them; a dtype is its index here.
constexpr const char* DTYPES[] = {"float32", "float16", "bfloat16"};

// Every launcher of this module. A function, so that the table is there before the first entry.
std::vector<Launcher>& launchers();

template <typename... Parameters, std::size_t... I>
cudaError_t call(cudaError_t (*function)(Parameters...), const long long* arguments, std::index_sequence<I...>) {
    return function((Parameters)arguments[I]...);  // an address becomes its pointer, a size its int64_t
}

template <typename... Parameters>
cudaError_t call(cudaError_t (*function)(Parameters...), const long long* arguments) {
    return call(function, arguments, std::index_sequence_for<Parameters...>());
}

template <typename... Parameters>
constexpr int count_parameters(cudaError_t (*)(Parameters...)) {
    return sizeof...(Parameters) - 1;  // without the stream
}

// The dtypes that are instantiated: all or, for whoever wants only one of them compiled, the one of this index.
#ifndef BIND_ONLY
#define BIND_ONLY -1
#endif

template <typename T>
struct Dtype {
    using type = T;
};

template <typename Launch>
cudaError_t dispatch(int dtype, Launch launch) {
    if constexpr (BIND_ONLY < 0 || BIND_ONLY == 0)
        if (dtype == 0) return launch(Dtype<float>());
    if constexpr (BIND_ONLY < 0 || BIND_ONLY == 1)
        if (dtype == 1) return launch(Dtype<__half>());
    if constexpr (BIND_ONLY < 0 || BIND_ONLY == 2)
        if (dtype == 2) return launch(Dtype<__nv_bfloat16>());
    return cudaErrorInvalidValue;
}

#define BIND(function, parameters)                                                                               \
    static cudaError_t launch_##function(int dtype, const long long* arguments) {                                \
        return dispatch(dtype, [=](auto of) { return call(function<typename decltype(of)::type>, arguments); }); \
    }                                                                                                            \
    static const bool function##_is_bound =                                                                      \
        (launchers().push_back({#function, parameters, count_parameters(function<float>), launch_##function}), true);
