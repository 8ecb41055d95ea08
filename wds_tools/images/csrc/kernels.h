/* The loops that take most of the time, compiled for different instruction sets.

   Their code is in entropy_code.h, idct_code.h, resample_code.h, color_code.h and
   cluster_code.h. On x86-64 it is compiled twice:
   for every processor, and for those with AVX2 and BMI2. On other processors it is compiled once;
   on 64-bit Arm the compiler uses NEON. */
#ifndef WDS_TOOLS_KERNELS_H
#define WDS_TOOLS_KERNELS_H

#include "cluster.h"
#include "color.h"
#include "entropy.h"
#include "idct.h"
#include "resample.h"

typedef struct {
    const char *simd; /* "avx2", "neon" or "none" */
    DecodeMcuRanges *decode_mcu_ranges;
    InverseDct *inverse_dct;
    FilterVertically *filter_vertically;
    FilterHorizontally *filter_horizontally; /* NULL: there is none */
    Transpose *transpose;
    RowToRgb *row_to_rgb;
    RowToPlanes *row_to_planes;
    ChangeHsv *change_hsv;
    BlendColors *blend_colors;
    FindNear *find_near;
} Kernels;

/* Returns the selected kernels: by default, the fastest that this processor can run. */
const Kernels *kernels(void);

/* Selects the fastest kernels, or those for every processor if `enable` is 0. For tests. */
void use_simd(int enable);

extern const Kernels plain_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
#endif

/* The initializer of the kernels in the file that includes the *_code.h files. */
#define KERNELS(simd, filter_horizontally) \
    {simd, decode_mcu_ranges, inverse_dct, filter_vertically, filter_horizontally, transpose, row_to_rgb, row_to_planes, \
     change_hsv, blend_colors, find_near}

#endif
