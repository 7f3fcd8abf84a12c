#include "binding.h"
#include "cuda/softmax_online.cu"

BIND(softmax_online, "x, out, n_rows, n_cols, x_row_stride, out_row_stride")
