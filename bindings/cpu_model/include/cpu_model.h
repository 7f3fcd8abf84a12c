// What CUDA's names in cuda_runtime.h are made of: types, launches, meetings of threads, shared memory, errors.
//
// A block's threads are fibers: each has a stack, and the host thread that launches runs one at a time, until it meets
// others at __syncthreads, __syncwarp, a shuffle or a vote. runtime.cpp switches between them, holds shared memory, and
// reports what a GPU would leave undefined. Not thread-safe: one launch at a time (from Python, the GIL sees to it).
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define CPU_MODEL 1

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
};
using cudaStream_t = struct CUstream_st*;  // ignored: a launch has finished when it returns

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
// Set at each switch, by code that no sanitizer instruments.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace cpu_model {

// Threads (and blocks) run one after another in this order. A result that depends on it lacks a barrier.
void set_thread_order(bool descending);
// __syncthreads() in this line does nothing; 0 for none. Shows whether a test would see that it is missing.
void delete_barrier(int line);

// The first error since cudaGetLastError() was read: what, where, which thread. Kept until the next error.
const char* last_error_text();

// The line of a call, as a default argument.
struct Place {
    const char* file;
    int line;
    static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

// A thread that goes wrong leaves by here: its launch ends, cudaGetLastError() and last_error_text() say why.
[[noreturn]] void fail(cudaError_t code, const char* what, Place place = Place::here());
void check_aligned(const void* address, std::size_t bytes);

// Waits for the block's other threads (those that have returned need not come); how many came with a true predicate.
int meet_block(const char* what, bool predicate, Place place);

// What a thread brings to a meeting. A warp's lanes meet those in `mask`, all at the same `what`.
struct Meeting {
    const char* what;
    unsigned mask;
    std::uint64_t value;  // shuffle: what it offers; vote: the predicate
    int source;           // shuffle: the lane whose value it wants; else one of:
    static constexpr int votes = -1, nothing = -2;
};
std::uint64_t meet_warp(const Meeting& meeting, Place place);
int lane();               // threadIdx as one number, modulo 32
unsigned active_lanes();  // those of this warp that have not returned

// One variable declared __shared__. Constant-initialised: no guard, no code when the program starts.
struct Shared {
    const char* name;
    std::size_t bytes, alignment;
    std::size_t offset = 0;
    unsigned long long launch = 0;  // the launch in which `offset` was given

    constexpr Shared(const char* name, std::size_t bytes, std::size_t alignment)
        : name(name), bytes(bytes), alignment(alignment) {}
    void* address();  // in the running block
};
constexpr std::size_t dynamic_bytes = static_cast<std::size_t>(-1);  // as many as the launch asked for

constexpr std::size_t larger(std::size_t a, std::size_t b) { return a > b ? a : b; }

// rewrite.py writes these for `__shared__ T name[sizes];` and `extern __shared__ T name[];`.
#define CPU_MODEL_SHARED(name, alignment, ...)                                                    \
    static cpu_model::Shared name##_in_arena(#name, sizeof(__VA_ARGS__),                          \
                                             cpu_model::larger(alignment, alignof(__VA_ARGS__))); \
    auto& name = *static_cast<cpu_model::Same<__VA_ARGS__>*>(name##_in_arena.address())
#define CPU_MODEL_DYNAMIC_SHARED(name, alignment, ...)                                                           \
    static cpu_model::Shared name##_in_arena(#name, cpu_model::dynamic_bytes, cpu_model::larger(alignment, 16)); \
    auto* const name = static_cast<cpu_model::Same<__VA_ARGS__>*>(name##_in_arena.address())

template <class T>
using Same = std::remove_reference_t<T>;  // float[32] as a name that * can follow; no type to deduce from

// Runs every thread of every block, each a thread(data). What no GPU would launch becomes the error of one.
void run_grid(const char* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, void (*thread)(void*), void* data);

// kernel<<<grid, block, shared_bytes, stream>>>(arguments) is launch(name, kernel, grid, block, ...)(arguments).
// Arguments are evaluated once and converted as in a call, once a thread; so a null pointer must be nullptr, not 0.
template <class Kernel>
struct Launch {
    const char* name;
    Kernel kernel;
    dim3 grid, block;
    std::size_t shared_bytes;

    template <class... Arguments>
    void operator()(Arguments... arguments) const {
        auto thread = [&] { kernel(arguments...); };
        run_grid(
            name, grid, block, shared_bytes, [](void* data) { (*static_cast<decltype(thread)*>(data))(); }, &thread);
    }
};
template <class Kernel>
Launch<Kernel> launch(const char* name, Kernel kernel, dim3 grid, dim3 block, std::size_t shared_bytes = 0,
                      cudaStream_t = nullptr) {
    return {name, kernel, grid, block, shared_bytes};
}

// The largest dynamic shared memory that a kernel may ask for, by its name without template arguments.
cudaError_t set_dynamic_shared_limit(const char* kernel, int bytes);

}  // namespace cpu_model
