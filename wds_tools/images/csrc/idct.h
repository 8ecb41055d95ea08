/* The inverse DCT of a block: to the bit what libjpeg's accurate integer method makes of it (its
   "islow").

      That method is exact arithmetic with constants of 13 bits, rounded once after the columns
   and once after the rows. Any order of the additions gives the same numbers, so the one here is
   what suits vectors: products are summed in pairs. */
#ifndef WDS_TOOLS_IDCT_H
#define WDS_TOOLS_IDCT_H

#include "entropy.h"

/* Rows in pairs, so that two coefficients of a column lie side by side: 0 with 4, 2 with 6, 1
   with 5, 3 with 7. */
#define PLACE(row, column) (16 * (((row) & 1) << 1 | (((row) >> 1) & 1)) + 2 * (column) + ((row) >> 2))

/* Makes the order that puts the coefficients of a file into these places. */
void pair_order(Order *order);

/* A quantization table in the same places. */
typedef struct {
    int16_t at[BLOCK];
} Quantization;

void pair_quantization(const uint16_t *by_rows, Quantization *out);

/* Writes side x side samples of a block; side is 8, 4, 2 or 1. `last` is the place of its last
   coefficient in the order of the file. */
typedef void InverseDct(
    const int16_t *block, int last, const Quantization *by, int side, uint8_t *out, size_t stride);

#endif
