/* Decodes all scans of an image, sequential or progressive, to its coefficients (T.81, Annexes F
   and G). */
#ifndef WDS_TOOLS_COEFFICIENTS_H
#define WDS_TOOLS_COEFFICIENTS_H

#include "entropy.h"

/* Huffman tables prepared for decoding. */
typedef struct {
    HuffmanTable dc[4], ac[4];
} HuffmanTables;

/* The coefficients of an image, in the order of the MCUs of its frame (all components
   interleaved). */
typedef struct {
    GrowBuffer blocks;     /* see frame_blocks() */
    GrowBuffer last_index; /* of each block, see BlockOutput */
    int mcu_blocks;                   /* blocks of an MCU */
    int first_block[MAX_COMPONENTS];  /* index of a component's first block in an MCU */
    int mcu_columns;
    int h_factor[MAX_COMPONENTS], v_factor[MAX_COMPONENTS]; /* sampling factors */
} Coefficients;

void coefficients_free(Coefficients *coefficients);

/* Returns all blocks: [MCUs][blocks of an MCU][BLOCK_SIZE]. */
static inline int16_t *frame_blocks(const Coefficients *coefficients)
{
    return (int16_t *)(void *)coefficients->blocks.bytes;
}

/* Returns the block of a component at `row` and `column`, counted in blocks of that component. */
static inline int16_t *block_at(const Coefficients *coefficients, int component, int row, int column)
{
    int h_factor = coefficients->h_factor[component], v_factor = coefficients->v_factor[component];
    size_t mcu = (size_t)(row / v_factor) * (size_t)coefficients->mcu_columns + (size_t)(column / h_factor);
    size_t block = (size_t)(coefficients->first_block[component] + row % v_factor * h_factor + column % h_factor);
    return frame_blocks(coefficients) + (mcu * (size_t)coefficients->mcu_blocks + block) * BLOCK_SIZE;
}

/* Builds the Huffman tables that header->scan uses, and fills in the layout of its MCUs. Returns 0,
   or -1 if a table is missing or invalid. */
int set_up_mcu_layout(McuLayout *layout, HuffmanTables *tables, const Header *header);

/* Decodes header->scan and all later scans, up to the end of the image. The number of scans is
   limited: an image with `max_pixels` may have MAX_SCANS, a smaller one accordingly more. The other
   arguments are memory that is reused. Returns 0, or -1 if the data is damaged or incomplete, there
   are too many scans, or memory ran out. */
int decode_all_scans(
    Coefficients *coefficients, Header *header, HuffmanTables *tables, Intervals *intervals,
    const CoefficientOrder *order, size_t max_pixels);

/* Decodes an image with one sequential scan. Returns whether it has the coefficients `expected`, which are those of an
   image with the same dimensions and sampling factors. The other arguments are memory that is reused. */
int has_coefficients(
    const Coefficients *expected, Header *header, HuffmanTables *tables, Intervals *intervals,
    const CoefficientOrder *order, Coefficients *memory);

#endif
