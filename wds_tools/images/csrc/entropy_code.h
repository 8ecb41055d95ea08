/* The loops of entropy.h. Compiled once for each instruction set (kernels.h). */
#include "entropy.h"

/* One of the two MCU ranges that are decoded in turn. */
typedef struct {
    BitReader reader;
    const McuLayout *layout;
    IntervalState *state;
    const uint32_t *lookup; /* for the AC coefficients of the current block */
    int16_t *block;         /* the current block */
    uint8_t *last_index;    /* where the last index of the current block is written */
    unsigned k;             /* zigzag index of the last coefficient, plus the advance of an EOB or escape */
    int blocks_left;        /* with the current one */
    int number;             /* of the current block in its MCU */
    int ended;              /* 1: all blocks are decoded; -1: the data is damaged */
} Lane;

#define INLINE static inline __attribute__((always_inline))

/* Returns the entry of the next code. The reader must have LOOKUP_BITS valid bits. */
INLINE uint32_t look_up(const Lane *lane, const uint32_t *lookup)
{
    return lookup[lane->reader.bits >> (64 - LOOKUP_BITS)];
}

/* Returns the value of the entry of the next code. */
INLINE int16_t value_of(const Lane *lane, uint32_t entry)
{
    return (int16_t)((uint32_t)(lane->reader.bits >> (-entry & 63)) + (entry >> 16));
}

INLINE void apply_entry(Lane *lane, const CoefficientOrder *order, uint32_t entry)
{
    lane->k += entry >> 8 & 0xFF;
    lane->block[order->position[lane->k]] = value_of(lane, entry);
    skip_entry(&lane->reader, entry);
}

/* Decodes one AC coefficient, a ZRL or an EOB, or finds that an escape is needed. The reader must
   have MAX_ENTRY_BITS valid bits. */
INLINE void decode_coefficient(Lane *lane, const CoefficientOrder *order)
{
    apply_entry(lane, order, look_up(lane, lane->lookup));
}

/* Returns whether more AC coefficients follow: neither the last one, an EOB nor an escape was
   found. */
INLINE int is_in_block(const Lane *lane)
{
    return lane->k < BLOCK_SIZE - 1;
}

/* Returns whether the last code is not in `lookup`. */
INLINE int is_escape(const Lane *lane)
{
    return lane->k >= ESCAPE_ADVANCE;
}

/* Decodes a code that is not in `lookup`. Returns 0, or -1 if it is invalid. */
INLINE int decode_escape(Lane *lane, const CoefficientOrder *order)
{
    lane->block[order->position[lane->k]] = 0; /* apply_entry() wrote the next bits there */
    lane->k -= ESCAPE_ADVANCE;
    refill(&lane->reader);
    uint32_t entry = decode_entry(lane->layout->ac[lane->number], lane->reader.bits, 0);
    if (!entry)
        return -1;
    apply_entry(lane, order, entry);
    return 0;
}

/* Starts the next block and decodes its DC coefficient. Returns 0, or -1 if the data is damaged. */
INLINE int start_block(Lane *lane)
{
    const McuLayout *layout = lane->layout;
    IntervalState *state = lane->state;
    int number = lane->number + 1 < layout->block_count ? lane->number + 1 : 0;
    int component = layout->component[number];
    refill(&lane->reader);
    uint32_t entry = look_up(lane, layout->dc[number]->lookup);
    if (__builtin_expect(entry == ESCAPE_ENTRY, 0))
        entry = decode_entry(layout->dc[number], lane->reader.bits, 1);
    if (!entry || lane->reader.next > state->end + 16)
        return -1;
    lane->block += BLOCK_SIZE;
    lane->block[0] = state->prediction[component] = (int16_t)(state->prediction[component] + value_of(lane, entry));
    skip_entry(&lane->reader, entry);
    lane->lookup = layout->ac[number]->lookup;
    lane->number = number;
    lane->k = 0;
    return 0;
}

/* Ends the current block. Returns 0, or -1 if it has more than 64 coefficients. */
INLINE int end_block(Lane *lane)
{
    if (lane->k > BLOCK_SIZE - 1 && lane->k < EOB_ADVANCE)
        return -1;
    *lane->last_index++ = lane->k & (EOB_ADVANCE - 1);
    lane->blocks_left--;
    return 0;
}

/* Continues a lane for which is_in_block() is false: decodes the escape, or ends the block and
   starts the next one. Returns 0, 1 if all blocks are decoded, or -1 if the data is damaged. */
INLINE int leave_block(Lane *lane, const CoefficientOrder *order)
{
    if (is_escape(lane)) {
        if (decode_escape(lane, order))
            return -1;
        if (is_in_block(lane))
            return 0;
    }
    if (end_block(lane))
        return -1;
    return lane->blocks_left ? start_block(lane) : 1;
}

#define LOOKUPS_PER_REFILL (56 / MAX_ENTRY_BITS)

/* Decodes until one of the lanes has ended. Both must be in a block. */
static void __attribute__((noinline)) decode_two_lanes(Lane *first, Lane *second, const CoefficientOrder *order)
{
    Lane a = *first, b = *second;
    int ended = 0;
    while (!ended) {
        refill(&a.reader);
        refill(&b.reader);
        for (int i = 0; i < LOOKUPS_PER_REFILL; i++) {
            decode_coefficient(&a, order);
            if (!is_in_block(&a)) {
                ended = a.ended = leave_block(&a, order);
                break;
            }
            decode_coefficient(&b, order);
            if (!is_in_block(&b)) {
                ended = b.ended = leave_block(&b, order);
                break;
            }
        }
    }
    *first = a;
    *second = b;
}

/* Decodes a lane until it has ended. It must be in a block. */
static void __attribute__((noinline)) decode_one_lane(Lane *only, const CoefficientOrder *order)
{
    Lane lane = *only;
    while (!lane.ended) {
        refill(&lane.reader);
        for (int i = 0; i < LOOKUPS_PER_REFILL && is_in_block(&lane); i++)
            decode_coefficient(&lane, order);
        if (!is_in_block(&lane))
            lane.ended = leave_block(&lane, order);
    }
    *only = lane;
}

/* Gives the next MCU range to a lane that has ended. Returns whether there is one. */
static int start_range(Lane *lane, int number, NextMcuRange *next, void *source)
{
    McuRange range;
    do {
        if (lane->state)
            lane->state->reader = lane->reader;
        if (!next(source, number, lane->ended < 0, &range))
            return 0;
        /* start_block() moves to the first block of the first MCU */
        *lane = (Lane){.reader = range.state->reader, .layout = range.layout, .state = range.state,
                       .block = range.output.blocks - BLOCK_SIZE, .last_index = range.output.last_index,
                       .blocks_left = range.mcu_count * range.layout->block_count,
                       .number = range.layout->block_count - 1};
        lane->ended = start_block(lane);
    } while (lane->ended);
    return 1;
}

static void decode_mcu_ranges(const CoefficientOrder *order, NextMcuRange *next, void *source)
{
    Lane lane[2] = {{.ended = 1}, {.ended = 1}};
    int is_active[2] = {1, 1};
    while (is_active[0] || is_active[1]) {
        for (int i = 0; i < 2; i++)
            if (is_active[i] && lane[i].ended)
                is_active[i] = start_range(&lane[i], i, next, source);
        if (is_active[0] && is_active[1])
            decode_two_lanes(&lane[0], &lane[1], order);
        else if (is_active[0] || is_active[1])
            decode_one_lane(&lane[is_active[1]], order);
    }
}
