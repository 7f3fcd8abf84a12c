// In a kernel a false assert() is an error of the launch, as on a GPU. No include guard: NDEBUG may change in between.
#include "cuda_runtime.h"

#undef assert
#if defined(NDEBUG)
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : cpu_model::fail(cudaErrorAssert, "assert(" #condition ")"))
#endif
