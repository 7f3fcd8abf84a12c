#include "binding.h"
#include "cuda/vector_add_naive.cu"

BIND(vector_add_naive, "x, y, out, n_elements")
