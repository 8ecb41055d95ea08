/* The inverse DCT of a block. The result is the same, bit for bit, as that of libjpeg's accurate
   integer method ("islow").

   That method is exact integer arithmetic with constants of 13 fractional bits. It rounds once
   after the columns and once after the rows, so the order of the additions does not matter. The
   order here suits SIMD instructions that multiply pairs of numbers and add the products.

   A file can have coefficients that are far larger than those of any image. Then 16-bit sums in libjpeg's SIMD code wrap
   around, and results depend on the decoder. Such blocks are found here, and the image is left to libjpeg. */
#ifndef WDS_TOOLS_IDCT_H
#define WDS_TOOLS_IDCT_H

#include "entropy.h"

/* The paired layout of a block: two coefficients of the same column are adjacent, from the rows 0
   and 4, 2 and 6, 1 and 5, 3 and 7. Returns the position of a coefficient. */
#define PAIRED_POSITION(row, column) (16 * (((row) & 1) << 1 | (((row) >> 1) & 1)) + 2 * (column) + ((row) >> 2))

/* Fills in the order in which the entropy decoder writes blocks in the paired layout. */
void set_paired_order(CoefficientOrder *order);

/* A quantization table in the paired layout. */
typedef struct {
    int16_t value[BLOCK_SIZE];
} PairedQuantization;

/* Converts a quantization table from row order. */
void set_paired_quantization(const uint16_t *row_order, PairedQuantization *out);

/* Dequantizes and transforms a block in the paired layout, and writes size x size samples to `out`,
   in rows that are `stride` bytes apart. `size` is 8, 4, 2 or 1. `last_index` is the zigzag index
   of the block's last coefficient. Returns 0, or -1 if coefficients are too large. */
typedef int InverseDct(
    const int16_t *block, int last_index, const PairedQuantization *quantization, int size, uint8_t *out,
    size_t stride);

#endif
