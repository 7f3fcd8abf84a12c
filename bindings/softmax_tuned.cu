#include "binding.h"
#include "cuda/softmax_tuned.cu"

BIND(softmax_tuned, "x, out, exchange, n_rows, n_cols, x_row_stride, out_row_stride")
