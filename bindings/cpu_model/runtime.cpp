// The CPU model's engine: runs grids, lets threads meet, holds shared memory, and says what went wrong.
//
// Compile this file without -fsanitize, also for a sanitizer build: what it does for the threads is not their doing.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cpu_model {
namespace {

constexpr unsigned warp_size = 32;
constexpr int default_shared_limit = 48 << 10, largest_shared_limit = 227 << 10;

struct Thread {
    enum State { ready, at_block_barrier, at_warp_meeting, returned };
    std::unique_ptr<Fiber> fiber;
    uint3 index;
    State state;
    Meeting meeting;  // what it waits for
    Place place;
    std::uint64_t result;  // what the meeting gave it
};

std::vector<Thread> threads;  // of the running block, and more: fibers and stacks serve block after block
[[maybe_unused]] std::vector<Thread> resting_threads;
unsigned n_threads;  // of the running block
Thread* current;     // null in the scheduler and in host code
Fiber* scheduler;    // the fiber that launches
struct {
    const char* kernel;
    void (*thread)(void*);
    void* data;
    std::size_t dynamic_bytes, shared_limit;
    unsigned long long number;  // counts the launches
} grid;

bool descending = false;
int deleted_barrier = 0;
std::map<std::string, int> dynamic_limits;  // by the kernel's name

// ---- Errors ---------------------------------------------------------------------------------------------------------

cudaError_t error = cudaSuccess;
std::string error_text;

template <class... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
    char text[512];
    std::snprintf(text, sizeof text, pattern, arguments...);
    return text;
}

std::string text_of(const char* what, Place place) {
    const char* slash = std::strrchr(place.file, '/');
    return format("%s at %s:%d", what, slash ? slash + 1 : place.file, place.line);
}

void set_error(cudaError_t code, const std::string& text) {
    if (error != cudaSuccess) return;  // the first is the cause
    error = code;
    error_text = std::string(grid.kernel) + text;
}

// An error of the running block and, if it is one thread's, of that.
void set_block_error(cudaError_t code, const std::string& text) {
    std::string where = format(", block (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z);
    if (current) where += format(", thread (%u, %u, %u)", threadIdx.x, threadIdx.y, threadIdx.z);
    set_error(code, where + ": " + text);
}

[[noreturn]] void fail(cudaError_t code, const std::string& text) {
    if (current) {
        set_block_error(code, text);
        current->fiber->switch_to(*scheduler);  // which never comes back
    }
    std::fprintf(stderr, "cpu_model: %s\n", text.c_str());
    std::abort();
}

// ---- Shared memory --------------------------------------------------------------------------------------------------

// A block's shared variables lie in one arena: guard, variable, guard, variable, guard. Between blocks each byte is
// 0xFF, which reads as NaN in float, half and bfloat16: so does a variable that is read before it was written, and so
// does a guard. A byte of a guard that is not 0xFF when the block has ended was written out of bounds.
struct Arena {
    static constexpr std::size_t capacity = 1 << 20, guard = 4 << 10;
    static constexpr int poison = 0xFF;
    struct Variable {
        const char* name;
        std::size_t begin, end;
    };
    char* memory = nullptr;
    std::vector<Variable> variables;  // in order of address, each from when the launch first came to its declaration
    std::size_t used = 0;             // their bytes

    void begin_launch() {
        variables.clear();
        used = 0;
#if defined(CPU_MODEL_ADDRESS)
        if (memory) __asan_poison_memory_region(memory, capacity);
#endif
    }

    void begin_block() {
        if (memory) return;
        memory = map_memory(capacity);
        std::memset(memory, poison, capacity);
#if defined(CPU_MODEL_ADDRESS)
        __asan_poison_memory_region(memory, capacity);
#endif
    }

    std::size_t place(const char* name, std::size_t bytes, std::size_t alignment) {
        // No better aligned than declared: what needs more would work by chance. ASan cannot do less than 8.
        alignment = larger(alignment, 8);
        std::size_t begin = (variables.empty() ? 0 : variables.back().end) + guard;
        begin = (begin + alignment - 1) / alignment * alignment;
        if (begin % (2 * alignment) == 0) begin += alignment;
        used += bytes;
        if (used > grid.shared_limit || begin + bytes + guard > capacity)
            fail(cudaErrorInvalidValue, format("with %s[] the block has %zu bytes of shared memory, the limit is %zu",
                                               name, used, grid.shared_limit));
        variables.push_back({name, begin, begin + bytes});
#if defined(CPU_MODEL_ADDRESS)
        __asan_unpoison_memory_region(memory + begin, bytes);
#endif
        return begin;
    }

    void end_block() {
        for (std::size_t i = 0; i < variables.size(); ++i) {
            const Variable& variable = variables[i];
            const bool first = i == 0, last = i + 1 == variables.size();
            // Half of the guard on either side is this variable's, at the ends all of it.
            const std::size_t from = first ? variable.begin - guard : (variables[i - 1].end + variable.begin) / 2;
            const std::size_t to = last ? variable.end + guard : (variable.end + variables[i + 1].begin) / 2;
            check(variable, from, variable.begin);
            check(variable, variable.end, to);
        }
#if defined(CPU_MODEL_THREAD)
        munmap(memory, capacity);  // to TSan the next block's shared memory is another
        memory = nullptr;
#else
        for (const Variable& variable : variables)
            std::memset(memory + variable.begin, poison, variable.end - variable.begin);
#endif
    }

    void check(const Variable& variable, std::size_t from, std::size_t to) {
        for (std::size_t at = from; at < to; ++at) {
            if (static_cast<unsigned char>(memory[at]) == poison) continue;
            const bool before = at < variable.begin;
            set_block_error(
                cudaErrorIllegalAddress,
                format("shared memory written out of bounds, %zu bytes %s %s[] of %zu bytes",
                       before ? variable.begin - at : at - variable.end, before ? "before" : "after the end of",
                       variable.name, variable.end - variable.begin));
            memory[at] = static_cast<char>(poison);
        }
    }
} arena;

// ---- Meetings -------------------------------------------------------------------------------------------------------

unsigned warp_end(unsigned first) { return first + warp_size < n_threads ? first + warp_size : n_threads; }

std::uint64_t wait(Thread::State state, const Meeting& meeting, Place place) {
    current->meeting = meeting;
    current->place = place;
    current->state = state;
    current->fiber->switch_to(*scheduler);
    return current->result;
}

// What all of them did before happens before what any of them does next.
void order_memory(const std::vector<Thread*>& group) {
    for (Thread* thread : group) thread->fiber->release(group[0]);
    for (Thread* thread : group) thread->fiber->acquire(group[0]);
}

// Collects the lanes that meet lane `i`; empty while some have not come.
std::vector<Thread*> meeting_lanes(unsigned first, const Thread& caller) {
    std::vector<Thread*> group;
    const Meeting& wanted = caller.meeting;
    for (unsigned lane = 0; lane < warp_size; ++lane) {
        if (!(wanted.mask >> lane & 1)) continue;
        Thread* thread = first + lane < warp_end(first) ? &threads[first + lane] : nullptr;
        if (!thread || thread->state == Thread::returned) {
            if (wanted.source < 0) continue;  // __syncwarp and votes do without those that have returned
            set_block_error(
                cudaErrorLaunchFailure,
                format("%s: mask 0x%08x names lane %u of warp %u, which %s", text_of(wanted.what, caller.place).c_str(),
                       wanted.mask, lane, first / warp_size, thread ? "has returned" : "does not exist"));
            return {};
        }
        if (thread->state != Thread::at_warp_meeting || thread->meeting.mask != wanted.mask ||
            std::strcmp(thread->meeting.what, wanted.what) != 0)
            return {};
        group.push_back(thread);
    }
    return group;
}

// Lets go lanes of the warp that wait for each other; false if there are none.
bool release_warp(unsigned first) {
    for (unsigned i = first; i < warp_end(first); ++i) {
        if (threads[i].state != Thread::at_warp_meeting) continue;
        const std::vector<Thread*> group = meeting_lanes(first, threads[i]);
        if (group.empty()) continue;
        std::uint64_t votes = 0;
        for (Thread* thread : group) votes |= std::uint64_t{thread->meeting.value != 0} << (thread - &threads[first]);
        for (Thread* thread : group) {
            const int source = thread->meeting.source;
            thread->result = source < 0 ? votes : threads[first + source].meeting.value;
            thread->state = Thread::ready;
        }
        // Shuffles and votes exchange registers; __syncwarp alone orders memory.
        if (threads[i].meeting.source == Meeting::nothing) order_memory(group);
        return true;
    }
    return false;
}

// Lets go the threads that have not returned, if all of them wait at one and the same barrier.
bool release_block() {
    std::vector<Thread*> group;
    std::uint64_t count = 0;
    for (unsigned i = 0; i < n_threads; ++i) {
        if (threads[i].state == Thread::returned) continue;
        group.push_back(&threads[i]);
        const Place &here = threads[i].place, &there = group[0]->place;
        if (threads[i].state != Thread::at_block_barrier || here.line != there.line ||
            std::strcmp(here.file, there.file) != 0)
            return false;
        count += threads[i].meeting.value;
    }
    for (Thread* thread : group) {
        thread->result = count;
        thread->state = Thread::ready;
    }
    order_memory(group);
    return true;
}

// Which threads wait where.
std::string waiting() {
    std::map<std::string, std::pair<unsigned, unsigned>> groups;  // place -> first thread, how many
    for (unsigned i = 0; i < n_threads; ++i) {
        const Thread& thread = threads[i];
        if (thread.state == Thread::returned) continue;
        std::string what = text_of(thread.meeting.what, thread.place);
        if (thread.state == Thread::at_warp_meeting) what += format(" with mask 0x%08x", thread.meeting.mask);
        groups.insert({what, {i, 0}}).first->second.second += 1;
    }
    std::string text;
    for (const auto& [what, group] : groups)
        text += format("; %u threads (first: thread %u) wait in %s", group.second, group.first, what.c_str());
    return text;
}

// ---- Scheduler ------------------------------------------------------------------------------------------------------

// A fiber's life: one thread after another.
void run_threads() {
    current->fiber->arrive_from(*scheduler);
    for (;;) {
        grid.thread(grid.data);
        wait(Thread::returned, {}, {});
    }
}

// The k-th of n in the order asked for.
template <class T>
T in_order(T k, T n) {
    return descending ? n - 1 - k : k;
}

void run_warp(unsigned first) {
    const unsigned n = warp_end(first) - first;
    do {
        for (unsigned k = 0; k < n && error == cudaSuccess; ++k) {
            Thread& thread = threads[first + in_order(k, n)];
            if (thread.state != Thread::ready) continue;
            current = &thread;
            threadIdx = thread.index;
            scheduler->switch_to(*thread.fiber);
            current = nullptr;
        }
    } while (error == cudaSuccess && release_warp(first));
}

void run_block() {
    const unsigned n_warps = (n_threads + warp_size - 1) / warp_size;
    for (;;) {
        for (unsigned k = 0; k < n_warps; ++k) run_warp(in_order(k, n_warps) * warp_size);
        bool done = true;
        for (unsigned i = 0; i < n_threads; ++i) done = done && threads[i].state == Thread::returned;
        if (done || error != cudaSuccess) return;
        if (!release_block()) set_block_error(cudaErrorLaunchTimeout, "threads wait for ever" + waiting());
    }
}

// ThreadSanitizer of LLVM 14 and GCC 13 tells 255 threads apart; the next takes the place of the oldest, with all that
// was known of it. So two blocks and the host make do with that, and larger blocks share. None that share are a power
// of two, a number of warps, or one less than either apart: those race most often.
constexpr unsigned tsan_threads = 125;

void prepare_threads() {
    n_threads = blockDim.x * blockDim.y * blockDim.z;
    if (threads.size() < n_threads) threads.resize(n_threads);
    for (unsigned i = 0; i < n_threads; ++i) {
        Thread& thread = threads[i];
        if (!thread.fiber) {
            const Fiber* same = i < tsan_threads ? nullptr : threads[i % tsan_threads].fiber.get();
            thread.fiber = std::make_unique<Fiber>(run_threads, same);
            // TSan remembers four accesses to eight bytes; which one a fifth replaces goes by the number of events of
            // its thread. Were that equal in all threads, each access would replace the neighbour's; releases count.
            for (unsigned k = 0; !same && k < i % 4; ++k) thread.fiber->release(&thread);
        }
        thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        thread.state = Thread::ready;
    }
}

void check_launch(dim3 grid_size, dim3 block, int dynamic_limit) {
    const std::uint64_t n = std::uint64_t{block.x} * block.y * block.z;
    const bool is_grid = grid_size.x && grid_size.y && grid_size.z && grid_size.x <= 0x7fffffff &&
                         grid_size.y <= 65535 && grid_size.z <= 65535;
    if (n == 0 || n > 1024 || block.z > 64)
        set_error(cudaErrorInvalidConfiguration,
                  format(": a block of (%u, %u, %u) threads, wanted 1 to 1024, z <= 64", block.x, block.y, block.z));
    if (!is_grid)
        set_error(cudaErrorInvalidConfiguration,
                  format(": a grid of (%u, %u, %u) blocks, wanted at least 1, at most (2147483647, 65535, 65535)",
                         grid_size.x, grid_size.y, grid_size.z));
    if (grid.dynamic_bytes > static_cast<std::size_t>(dynamic_limit))
        set_error(cudaErrorInvalidValue,
                  format(": %zu bytes of dynamic shared memory, the limit is %d (cudaFuncSetAttribute raises it)",
                         grid.dynamic_bytes, dynamic_limit));
}

}  // namespace

// ---- What cpu_model.h promises --------------------------------------------------------------------------------------

void set_thread_order(bool descending_) { descending = descending_; }
void delete_barrier(int line) { deleted_barrier = line; }
const char* last_error_text() { return error_text.c_str(); }

void fail(cudaError_t code, const char* what, Place place) { fail(code, text_of(what, place)); }

void check_aligned(const void* address, std::size_t bytes) {
    if (current && reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
        fail(cudaErrorMisalignedAddress,
             format("a vector of %zu bytes at %p, no multiple of its size", bytes, address));
}

int meet_block(const char* what, bool predicate, Place place) {
    if (place.line == deleted_barrier) return predicate;
    return static_cast<int>(wait(Thread::at_block_barrier, {what, 0, predicate, Meeting::nothing}, place));
}

std::uint64_t meet_warp(const Meeting& meeting, Place place) {
    const char* wrong = nullptr;
    int named = lane();
    if (!(meeting.mask >> named & 1)) wrong = "calls it";
    if (!wrong && meeting.source >= 0 && !(meeting.mask >> (named = meeting.source) & 1)) wrong = "it reads";
    if (wrong)
        fail(cudaErrorLaunchFailure, format("%s: mask 0x%08x does not name lane %d, which %s",
                                            text_of(meeting.what, place).c_str(), meeting.mask, named, wrong));
    return wait(Thread::at_warp_meeting, meeting, place);
}

int lane() { return static_cast<int>((current - threads.data()) % warp_size); }

unsigned active_lanes() {
    unsigned mask = 0;
    const unsigned first = static_cast<unsigned>(current - threads.data()) / warp_size * warp_size;
    for (unsigned i = first; i < warp_end(first); ++i)
        mask |= unsigned{threads[i].state != Thread::returned} << (i - first);
    return mask;
}

void* Shared::address() {
    if (launch != grid.number) {
        offset = arena.place(name, bytes == dynamic_bytes ? grid.dynamic_bytes : bytes, alignment);
        launch = grid.number;
    }
    return arena.memory + offset;
}

cudaError_t set_dynamic_shared_limit(const char* kernel, int bytes) {
    if (bytes < 0 || bytes > largest_shared_limit) return cudaErrorInvalidValue;
    dynamic_limits[kernel] = bytes;
    return cudaSuccess;
}

void run_grid(const char* kernel, dim3 grid_size, dim3 block, std::size_t bytes, void (*thread)(void*), void* data) {
    if (current) fail(cudaErrorLaunchFailure, std::string("launches ") + kernel + ": a kernel cannot, in this model");
    if (error != cudaSuccess) return;  // as on a GPU: after an error nothing runs until it was read
    std::string name = kernel;         // "space::kernel<float, 4>" is "kernel" here
    name.erase(name.find('<') == std::string::npos ? name.size() : name.find('<'));
    name.erase(0, name.rfind(':') + 1);
    const auto limit = dynamic_limits.find(name);
    const bool raised = limit != dynamic_limits.end();
    grid = {kernel,         thread, data, bytes, std::size_t(raised ? largest_shared_limit : default_shared_limit),
            grid.number + 1};
    check_launch(grid_size, block, raised ? limit->second : default_shared_limit);

    static Fiber host;  // static: fibers that wait for the next block, or launch, still know it
    scheduler = &host;
    gridDim = grid_size;
    blockDim = block;
    arena.begin_launch();
    const std::uint64_t n_blocks = std::uint64_t{gridDim.x} * gridDim.y * gridDim.z;
    for (std::uint64_t k = 0; k < n_blocks && error == cudaSuccess; ++k) {
        const std::uint64_t i = in_order(k, n_blocks);
        blockIdx = {unsigned(i % gridDim.x), unsigned(i / gridDim.x % gridDim.y), unsigned(i / gridDim.x / gridDim.y)};
#if defined(CPU_MODEL_THREAD)
        if (k > 0) threads.swap(resting_threads);  // nothing orders blocks: to TSan the next one's threads are others
#endif
        arena.begin_block();
        prepare_threads();
        host.release(&blockIdx);
        for (unsigned t = 0; t < n_threads; ++t) threads[t].fiber->acquire(&blockIdx);
        run_block();
        for (unsigned t = 0; t < n_threads; ++t) threads[t].fiber->release(&gridDim);
        arena.end_block();
        if (error != cudaSuccess) threads.clear();  // some stopped midway
    }
    host.acquire(&gridDim);
}

}  // namespace cpu_model

// ---- CUDA's own functions -------------------------------------------------------------------------------------------

static constexpr struct {
    cudaError_t code;
    const char *name, *text;
} error_names[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const char* cudaGetErrorName(cudaError_t error) {
    for (const auto& known : error_names)
        if (known.code == error) return known.name;
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    for (const auto& known : error_names)
        if (known.code == error) return known.text;
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError() { return cpu_model::error; }

cudaError_t cudaGetLastError() {
    const cudaError_t error = cpu_model::error;
    cpu_model::error = cudaSuccess;
    return error;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    static const std::map<int, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxSharedMemoryPerBlock, cpu_model::default_shared_limit},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMultiProcessorCount, 4},
        {cudaDevAttrL2CacheSize, 4 << 20},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrComputeCapabilityMajor, 8},
        {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, cpu_model::largest_shared_limit},
    };
    const auto found = values.find(attribute);
    if (found == values.end()) return cudaErrorInvalidValue;
    *value = found->second;
    return cudaSuccess;
}
