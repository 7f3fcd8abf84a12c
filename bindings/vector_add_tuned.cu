#include "binding.h"
#include "cuda/vector_add_tuned.cu"

BIND(vector_add_tuned, "x, y, out, n_elements")
