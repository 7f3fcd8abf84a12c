#include "binding.h"
#include "cuda/softmax_fused.cu"

BIND(softmax_fused, "x, out, n_rows, n_cols, x_row_stride, out_row_stride")
