#include "binding.h"
#include "cuda/add_relu_fused.cu"

BIND(add_relu_fused, "x, y, out, n_elements")
