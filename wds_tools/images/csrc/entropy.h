/* Entropy decoding of the MCUs of a sequential scan (T.81, F.2). */
#ifndef WDS_TOOLS_ENTROPY_H
#define WDS_TOOLS_ENTROPY_H

#include "intervals.h"

/* The position of each coefficient in a block, indexed by its zigzag index. The additional entries
   are for the indexes after EOB_ADVANCE or ESCAPE_ADVANCE was added. They are the position of the last
   coefficient, which is still zero at that time: the decoder writes a zero there, or removes what it wrote. */
typedef struct {
    uint8_t position[BLOCK_SIZE + ESCAPE_ADVANCE];
} CoefficientOrder;

/* The blocks of an MCU in coding order: their components and Huffman tables. */
typedef struct {
    int block_count;
    uint8_t component[MAX_MCU_BLOCKS];
    const HuffmanTable *dc[MAX_MCU_BLOCKS], *ac[MAX_MCU_BLOCKS];
} McuLayout;

/* The state of decoding a restart interval. */
typedef struct {
    BitReader reader;
    const uint8_t *start, *end;
    int16_t prediction[MAX_COMPONENTS]; /* DC predictions */
} IntervalState;

/* Where decoded blocks are written. The caller sets the blocks to zero. */
typedef struct {
    int16_t *blocks;     /* [MCUs][blocks of an MCU][BLOCK_SIZE] */
    uint8_t *last_index; /* zigzag index of the last coefficient of each block */
} BlockOutput;

static inline void interval_start(IntervalState *state, const Interval *interval)
{
    *state = (IntervalState){
        .reader = {0, 0, interval->data}, .start = interval->data, .end = interval->data + interval->size};
}

/* Returns whether all data of an interval was decoded, and not more: less than a byte is left. */
static inline int is_consumed(const IntervalState *state)
{
    int64_t bits_left = 8 * (int64_t)(state->end - state->start) - bits_consumed(&state->reader, state->start);
    return bits_left >= 0 && bits_left < 8;
}

/* Consecutive MCUs of a restart interval, and where their blocks are written. */
typedef struct {
    const McuLayout *layout;
    IntervalState *state; /* at the first of these MCUs; updated when they are decoded */
    int mcu_count;        /* at least 1 */
    BlockOutput output;
} McuRange;

/* A callback that writes the next MCUs for a lane to `range`. When it is called again for the same
   lane, these MCUs were decoded; `failed` is true if their data is damaged. `source` is the
   argument of DecodeMcuRanges. Returns 0 if there are no more MCUs; it is not called for this lane
   again. */
typedef int NextMcuRange(void *source, int lane, int failed, McuRange *range);

/* Decodes MCUs until `next` returns 0 for both lanes. Two MCU ranges are decoded in turn: while one
   lane waits for its table entry, the other one continues. */
typedef void DecodeMcuRanges(const CoefficientOrder *order, NextMcuRange *next, void *source);

#endif
