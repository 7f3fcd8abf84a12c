// A file of everything that is hard to count. "This is no string" and it's no character.
#include <cuda_fp16.h>  // the comment after it is none of its tokens
#include "other//header.h" /* nor is this one,
   nor this */
#pragma once

#define SQUARE(value) \
    /* a comment in a macro */ \
    ((value) * (value)) \

#define URL "http://example.com/*"  // two comment signs in a string, one outside
#define NAME(x) #x "::" x##_suffix

#if 0
int disabled = '"';
#endif

constexpr int THREADS = 256;
constexpr int BLOCKS = THREADS *  // named by the host only
                       4;
constexpr int WARPS = THREADS / 32, n = -1;

struct __align__(8) Pair {
    float maximum;
    /* a comment
       with a { in it */ float sum;
};

namespace
{

template <typename T, int kColumns = (4 > 3 ? 4 : 3)>
__launch_bounds__(THREADS)
__global__ void hard_kernel(const T* x,  // it's the input, not "the output) {
                            T* out /* ) */,
                            Pair state
)
{
    __shared__ float partial[WARPS];  // } no end of the function
    #pragma unroll
    for (int i = 0; i < kColumns; ++i)
    {
        out[i] = SQUARE(x[i]) - -1 + n-1; // 1. not a phase: it does not begin its line
    }
    // 1. a phase
    if (x[0] == T('"')) printf("// not a comment %d \" /* \n", 1'000);
    // a comment that goes on \
    out[0] = 0;
    const char* raw = R"(
        // 2. not a phase, but a line of a string

    )";
    ;
}

}  // namespace

template <typename T>
static inline __device__ Pair join(Pair a, Pair b) { return a.maximum >= b.maximum ? a : b; }

extern "C" {
// 2. launch
cudaError_t hard(const float* x, float* out, cudaStream_t stream) {
    hard_kernel<float,
                4>
        <<<
            BLOCKS,
            THREADS, 0, stream
        >>>(
            x, out, Pair{}
        );
    const char* text = "one string "  // in two pieces
                       "is one token";
    return cudaGetLastError();
}
}
