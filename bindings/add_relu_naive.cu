#include "binding.h"
#include "cuda/add_relu_naive.cu"

BIND(add_relu_naive, "x, y, out, n_elements")
