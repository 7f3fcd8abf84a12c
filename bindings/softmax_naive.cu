#include "binding.h"
#include "cuda/softmax_naive.cu"

BIND(softmax_naive, "x, out, row_max, row_sum, n_rows, n_cols, x_row_stride, out_row_stride")
