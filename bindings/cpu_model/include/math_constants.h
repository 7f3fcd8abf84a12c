// CUDA's header of this name.
#pragma once
#include "cuda_runtime.h"

#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_MAX_NORMAL_F __int_as_float(0x7f7fffff)
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.693147181f
