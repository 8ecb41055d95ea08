/* All coefficients of a picture, from however many scans: sequential or progressive (T.81,
   Annexes F and G). */
#ifndef WDS_TOOLS_COEFFICIENTS_H
#define WDS_TOOLS_COEFFICIENTS_H

#include "entropy.h"

/* The Huffman tables of the scans, made for decoding. */
typedef struct {
    HuffmanTable dc[4], ac[4];
} Tables;

typedef struct {
    GrowBuffer blocks, last;
    int of_mcu;                        /* blocks of an MCU of the frame */
    int offset[MAX_COMPONENTS];        /* of a component's first block in an MCU */
    int mcus_across;
    int across[MAX_COMPONENTS], down[MAX_COMPONENTS]; /* sampling factors */
} Coefficients;

void coefficients_free(Coefficients *coefficients);

/* Returns the blocks of the frame, in the order of its MCUs: [mcus][blocks of an MCU][BLOCK]. */
static inline int16_t *blocks_of(const Coefficients *coefficients)
{
    return (int16_t *)(void *)coefficients->blocks.bytes;
}

static inline int16_t *block_at(const Coefficients *coefficients, int component, int row, int column)
{
    int across = coefficients->across[component], down = coefficients->down[component];
    size_t mcu = (size_t)(row / down) * (size_t)coefficients->mcus_across + (size_t)(column / across);
    size_t inside = (size_t)(coefficients->offset[component] + row % down * across + column % across);
    return blocks_of(coefficients) + (mcu * (size_t)coefficients->of_mcu + inside) * BLOCK;
}

/* Makes the Huffman tables that header->scan takes, and says how its MCUs are made. Returns 0,
   or -1. */
int plan_mcu(Mcu *mcu, Tables *tables, const Header *header);

/* Decodes the scan that the header is at, and all that follow, up to the end of the image.
   `max_pixels` bounds the work: how many pixels all scans pass over is in proportion to it.
   Returns 0, or -1: damaged, incomplete, too many scans, or not enough memory. */
int decode_all(
    Coefficients *coefficients, Header *header, Tables *tables, Intervals *intervals, const Order *order,
    size_t max_pixels);

#endif
