// Fibers: stacks that one host thread runs in turn, and what the sanitizers must be told of them.
//
// CPU_MODEL_ADDRESS or CPU_MODEL_THREAD says which sanitizer the kernels are compiled with.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#if defined(CPU_MODEL_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(CPU_MODEL_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

namespace cpu_model {

inline char* map_memory(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) return static_cast<char*>(memory);
    std::perror("cpu_model: no memory for a block");
    std::abort();
}

// Made by makecontext, entered by setcontext, from then on switched by _setjmp and _longjmp, which unlike swapcontext
// make no system call: five times cheaper. The sanitizers watch longjmp, so for them it is swapcontext throughout.
class Fiber {
  public:
    Fiber() : started_(true) {  // the one that runs already
#if defined(CPU_MODEL_THREAD)
        tsan_ = __tsan_get_current_fiber();
#endif
    }
    // To TSan it is one thread with `same`, if given.
    explicit Fiber(void (*loop)(), [[maybe_unused]] const Fiber* same = nullptr)
        : owned_(map_memory(stack_bytes)), stack_(owned_), bytes_(stack_bytes) {
        mprotect(owned_, 4096, PROT_NONE);  // an overflow stops here, not in another thread's stack
        getcontext(&context_);
        context_.uc_stack.ss_sp = owned_;
        context_.uc_stack.ss_size = stack_bytes;
        makecontext(&context_, loop, 0);
#if defined(CPU_MODEL_THREAD)
        owns_tsan_ = same == nullptr;
        tsan_ = same ? same->tsan_ : __tsan_create_fiber(0);
#endif
    }
    ~Fiber() {
        if (owned_ == nullptr) return;
#if defined(CPU_MODEL_ADDRESS)
        __asan_unpoison_memory_region(owned_, stack_bytes);
#elif defined(CPU_MODEL_THREAD)
        if (owns_tsan_) __tsan_destroy_fiber(tsan_);
#endif
        munmap(owned_, stack_bytes);
    }
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Stops here, goes on there; returns when that one switches back.
    void switch_to(Fiber& next) {
#if defined(CPU_MODEL_ADDRESS)
        __sanitizer_start_switch_fiber(&fake_stack_, next.stack_, next.bytes_);
        swapcontext(&context_, &next.context_);
        arrive_from(next);
#elif defined(CPU_MODEL_THREAD)
        __tsan_switch_to_fiber(next.tsan_, __tsan_switch_to_fiber_no_sync);
        swapcontext(&context_, &next.context_);
#else
        if (_setjmp(registers_) != 0) return;
        if (next.started_) _longjmp(next.registers_, 1);
        next.started_ = true;
        setcontext(&next.context_);
#endif
    }
    // loop() says so first of all.
    void arrive_from([[maybe_unused]] Fiber& other) {
#if defined(CPU_MODEL_ADDRESS)
        __sanitizer_finish_switch_fiber(fake_stack_, &other.stack_, &other.bytes_);
#endif
    }

    // To TSan, what this fiber did before release(address) happens before what any does after its acquire(address).
    void release([[maybe_unused]] void* address) {
#if defined(CPU_MODEL_THREAD)
        as_this([&] { __tsan_release(address); });
#endif
    }
    void acquire([[maybe_unused]] void* address) {
#if defined(CPU_MODEL_THREAD)
        as_this([&] { __tsan_acquire(address); });
#endif
    }

  private:
#if defined(CPU_MODEL_ADDRESS) || defined(CPU_MODEL_THREAD)
    static constexpr std::size_t stack_bytes = 512 << 10;  // a sanitizer reports on the stack of the fiber
#else
    static constexpr std::size_t stack_bytes = 64 << 10;
#endif
#if defined(CPU_MODEL_THREAD)
    template <class Action>
    void as_this(Action action) {
        void* caller = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(tsan_, __tsan_switch_to_fiber_no_sync);
        action();
        __tsan_switch_to_fiber(caller, __tsan_switch_to_fiber_no_sync);
    }
    void* tsan_ = nullptr;
    bool owns_tsan_ = false;
#endif
    char* owned_ = nullptr;  // the stack, unless this is the fiber that ran already
    [[maybe_unused]] const void* stack_ = nullptr;
    [[maybe_unused]] std::size_t bytes_ = 0;
    [[maybe_unused]] void* fake_stack_ = nullptr;
    [[maybe_unused]] bool started_ = false;
    jmp_buf registers_;
    ucontext_t context_;
};

}  // namespace cpu_model
