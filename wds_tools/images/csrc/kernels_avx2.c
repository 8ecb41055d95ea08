#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2")
#endif

#define USE_AVX2 1

#include "cluster_code.h"
#include "color_code.h"
#include "entropy_code.h"
#include "idct_code.h"
#include "resample_code.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

const Kernels avx2_kernels = KERNELS("avx2", filter_horizontally);

#endif
