#include "kernels.h"

#define USE_AVX2 0

#include "cluster_code.h"
#include "color_code.h"
#include "entropy_code.h"
#include "idct_code.h"
#include "resample_code.h"

#if defined(__aarch64__)
const Kernels plain_kernels = KERNELS("neon", NULL);
#else
const Kernels plain_kernels = KERNELS("none", NULL);
#endif
