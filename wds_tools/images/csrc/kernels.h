/* The loops in which the time goes, for the processor that this is.

      Their code is in entropy_code.h, idct_code.h and resample_code.h. It is compiled twice on
   x86-64: for every processor, and for those with AVX2 and BMI2. On other processors once, with
   the vectors that all of them have. */
#ifndef WDS_TOOLS_KERNELS_H
#define WDS_TOOLS_KERNELS_H

#include "entropy.h"
#include "idct.h"
#include "resample.h"

typedef struct {
    const char *simd; /* "avx2", "neon" or "none" */
    DecodeWork *decode_work;
    InverseDct *inverse_dct;
    FilterColumns *filter_columns;
    Transpose *transpose;
    RowToRgb *row_to_rgb;
    RowToPlanes *row_to_planes;
} Kernels;

/* Returns the fastest that this processor can run. */
const Kernels *kernels(void);

/* Chooses those that every processor has, or the best again: for tests. */
void use_simd(int is_wanted);

extern const Kernels plain_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
#endif

#define KERNELS(name) \
    {name, decode_work, inverse_dct, filter_columns, transpose, row_to_rgb, row_to_planes}

#endif
