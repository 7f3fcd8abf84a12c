// How long one thread waits for a value: dependent reads of registers, shared memory, L1, L2 and global memory.
//
// A program of its own. Each line it prints: memory, cycles of the multiprocessor's clock, nanoseconds; both a step.
// A value read is the address of the next read (a pointer chase), so nothing overlaps and nothing is computed. A
// register has no address: there it is a chain of dependent multiply-adds, and its figure includes one.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

constexpr int LINE = 128;              // bytes of a cache line; a node of the chase fills one
constexpr int STEPS = 1 << 15;         // of a run
constexpr int RUNS = 7;                // the median is printed
constexpr int SHARED_NODES = 4096;     // of 4 bytes
constexpr int64_t L1_BYTES = 1 << 14;  // fits in any L1
constexpr int64_t L2_BYTES = 1 << 20;  // far above any L1, and fits in any L2
enum Memory { REGISTER, SHARED, L1, L2, GLOBAL };
constexpr const char* NAMES[] = {"register", "shared", "L1", "L2", "global"};

struct Result {
    long long cycles, nanoseconds;
    uint64_t at;  // where the chase ended; written, so that no read can be left out
};

static __device__ long long now() {
    long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

template <int MEMORY>
static __device__ uint64_t step(uint64_t at) {
    if (MEMORY == L1)
        asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at));
    else
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at));  // past L1
    return at;
}

// The clock may be read while the last step is under way: one of STEPS.
template <int MEMORY>
__global__ void chase(uint64_t start, int warm, Result* result) {
    uint64_t at = start;
    for (int i = 0; i < warm; ++i) at = step<MEMORY>(at);
    const long long time = now(), clock = clock64();
#pragma unroll 16
    for (int i = 0; i < STEPS; ++i) at = step<MEMORY>(at);
    *result = {clock64() - clock, now() - time, at};
}

__global__ void chase_shared(Result* result) {
    __shared__ uint32_t nodes[SHARED_NODES];
    const uint32_t first = __cvta_generic_to_shared(nodes);
    for (int i = 0; i < SHARED_NODES; ++i) nodes[i] = first + (i + 33) % SHARED_NODES * 4;  // 33: the next bank
    uint32_t at = first;
    const long long time = now(), clock = clock64();
#pragma unroll 16
    for (int i = 0; i < STEPS; ++i) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
    *result = {clock64() - clock, now() - time, at};
}

__global__ void multiply_adds(float factor, float summand, Result* result) {
    float value = factor;
    const long long time = now(), clock = clock64();
#pragma unroll 64
    for (int i = 0; i < STEPS; ++i)
        asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(value) : "f"(factor), "f"(summand));
    *result = {clock64() - clock, now() - time, __float_as_uint(value)};
}

static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "latency: error: %s (%s)\n", cudaGetErrorString(error), cudaGetErrorName(error));
    std::exit(1);
}

// A buffer with one cycle through each of its lines, in random order, so that nothing can be fetched ahead.
static uint64_t cycle(int64_t bytes) {
    char* buffer;
    check(cudaMalloc(&buffer, bytes));
    const int64_t lines = bytes / LINE;
    std::vector<int64_t> order(lines);
    std::vector<uint64_t> nodes(bytes / sizeof(uint64_t));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin() + 1, order.end(), std::mt19937_64(0));
    for (int64_t i = 0; i < lines; ++i)
        nodes[order[i] * (LINE / sizeof(uint64_t))] = uint64_t(buffer + order[(i + 1) % lines] * LINE);
    check(cudaMemcpy(buffer, nodes.data(), bytes, cudaMemcpyHostToDevice));
    return uint64_t(buffer);
}

template <int MEMORY>
static void measure(uint64_t at, int warm, Result* result) {
    std::vector<double> cycles, nanoseconds;
    for (int run = 0; run < RUNS; ++run) {
        if (MEMORY == REGISTER)
            multiply_adds<<<1, 1>>>(0.5f, 1.0f, result);
        else if (MEMORY == SHARED)
            chase_shared<<<1, 1>>>(result);
        else
            chase<MEMORY><<<1, 1>>>(at, warm, result);
        check(cudaGetLastError());
        check(cudaDeviceSynchronize());
        cycles.push_back(double(result->cycles) / STEPS);
        nanoseconds.push_back(double(result->nanoseconds) / STEPS);
        at = result->at;  // the next run goes on from there
    }
    std::sort(cycles.begin(), cycles.end());
    std::sort(nanoseconds.begin(), nanoseconds.end());
    std::printf("%s %.1f %.2f\n", NAMES[MEMORY], cycles[RUNS / 2], nanoseconds[RUNS / 2]);
}

int main() {
    int l2 = 0;
    Result* result;
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0));
    check(cudaMallocManaged(&result, sizeof *result));
    for (int i = 0; i < 200; ++i) multiply_adds<<<1, 1>>>(0.5f, 1.0f, result);  // until the clocks are up
    check(cudaDeviceSynchronize());
    measure<REGISTER>(0, 0, result);
    measure<SHARED>(0, 0, result);
    measure<L1>(cycle(L1_BYTES), L1_BYTES / LINE, result);
    measure<L2>(cycle(L2_BYTES), L2_BYTES / LINE, result);
    // More lines than all runs read, so none is read twice; what the copy left of them in L2, others drive out.
    const uint64_t first = cycle(std::max<int64_t>(4LL * l2, 2LL * RUNS * STEPS * LINE));
    void* others;
    check(cudaMalloc(&others, 2LL * l2));
    check(cudaMemset(others, 0, 2LL * l2));
    check(cudaDeviceSynchronize());
    measure<GLOBAL>(first, 0, result);
    return 0;
}
