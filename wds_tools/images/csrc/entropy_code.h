/* The loops of entropy.h: compiled once for each kind of processor (kernels.h). */
#include "entropy.h"

/* Work while it is decoded. */
typedef struct {
    BitReader reader;
    const Mcu *mcu;
    Stream *stream;
    const uint32_t *direct;
    int16_t *block; /* behind the current one */
    uint8_t *last;
    unsigned k;     /* place of the coefficient that was decoded last */
    int left;       /* blocks */
    int number;     /* of the next block in its MCU */
    int ended;      /* 1: all blocks are decoded; -1: the data is damaged */
} Lane;

#define INLINE static inline __attribute__((always_inline))

/* Returns an entry such as those of `direct` for a code that has none there; 0: not allowed. */
static uint32_t __attribute__((noinline)) long_entry(const HuffmanTable *table, uint64_t bits)
{
    BitReader reader = {bits, 64, NULL};
    int symbol = take_symbol(table, &reader);
    int run = symbol >> 4, size = symbol & 15;
    if (symbol < 0 || size > MAX_SIZE)
        return 0;
    unsigned advance = !size && run < 15 ? END_OF_BLOCK : (unsigned)run + 1;
    int value = take_signed(&reader, size);
    return (uint32_t)value << 16 | advance << 8 | (64 - reader.count);
}

INLINE void apply(Lane *lane, const Order *order, uint32_t entry)
{
    lane->k += entry >> 8 & 0xFF;
    lane->block[order->at[lane->k]] = (int16_t)(entry >> 16);
    skip_entry(&lane->reader, entry);
}

/* Takes one coefficient, or the end of the block. There must be DIRECT_BITS bits. Afterwards,
   `is_inside` tells whether the block goes on. */
INLINE void step(Lane *lane, const Order *order)
{
    apply(lane, order, lane->direct[lane->reader.bits >> (64 - DIRECT_BITS)]);
}

INLINE int is_inside(const Lane *lane)
{
    return lane->k < BLOCK - 1;
}

/* Returns whether the last step found a code that is not in `direct`. */
INLINE int is_long(const Lane *lane)
{
    return lane->k >= NOT_DIRECT;
}

/* Takes such a code. Returns -1 where it is not allowed. */
INLINE int take_long(Lane *lane, const Order *order)
{
    lane->k -= NOT_DIRECT;
    refill(&lane->reader);
    uint32_t entry = long_entry(lane->mcu->ac[lane->number], lane->reader.bits);
    if (!entry)
        return -1;
    apply(lane, order, entry);
    return 0;
}

/* Begins the next block. Returns -1 where its data is damaged. */
INLINE int begin(Lane *lane)
{
    const Mcu *mcu = lane->mcu;
    Stream *stream = lane->stream;
    int number = lane->number + 1 < mcu->blocks ? lane->number + 1 : 0;
    int component = mcu->component[number];
    refill(&lane->reader);
    int size = take_symbol(mcu->dc[number], &lane->reader);
    if (size < 0 || size > MAX_SIZE + 1 || lane->reader.next > stream->end + 16)
        return -1;
    stream->prediction[component] = (int16_t)(stream->prediction[component] + take_signed(&lane->reader, size));
    lane->block += BLOCK;
    lane->block[0] = stream->prediction[component];
    lane->direct = mcu->ac[number]->direct;
    lane->number = number;
    lane->k = 0;
    return 0;
}

/* Ends a block. Returns -1 where its coefficients were more than there is room for. */
INLINE int finish(Lane *lane)
{
    if (lane->k > BLOCK - 1 && lane->k < END_OF_BLOCK)
        return -1;
    *lane->last++ = (uint8_t)(lane->k == BLOCK - 1 ? BLOCK - 1 : lane->k - END_OF_BLOCK);
    lane->left--;
    return 0;
}

/* Goes on where the last step has left the block: with a long code, or the next block. Returns 1
   if there is none, -1 if the data is damaged. */
INLINE int go_on(Lane *lane, const Order *order)
{
    if (is_long(lane)) {
        if (take_long(lane, order))
            return -1;
        if (is_inside(lane))
            return 0;
    }
    if (finish(lane))
        return -1;
    return lane->left ? begin(lane) : 1;
}

#define STEPS (56 / DIRECT_BITS) /* as many as there are bits for */

/* Decodes until a lane has ended. Both are inside of a block. */
static void __attribute__((noinline)) decode_both(Lane *first, Lane *second, const Order *order)
{
    Lane a = *first, b = *second;
    int ended = 0;
    while (!ended) {
        refill(&a.reader);
        refill(&b.reader);
        for (int i = 0; i < STEPS; i++) {
            step(&a, order);
            if (!is_inside(&a)) {
                ended = a.ended = go_on(&a, order);
                break;
            }
            step(&b, order);
            if (!is_inside(&b)) {
                ended = b.ended = go_on(&b, order);
                break;
            }
        }
    }
    *first = a;
    *second = b;
}

/* Decodes a lane to its end. It is inside of a block. */
static void __attribute__((noinline)) decode_alone(Lane *only, const Order *order)
{
    Lane lane = *only;
    while (!lane.ended) {
        refill(&lane.reader);
        for (int i = 0; i < STEPS && is_inside(&lane); i++)
            step(&lane, order);
        if (!is_inside(&lane))
            lane.ended = go_on(&lane, order);
    }
    *only = lane;
}

/* Replaces the work of a lane, which has ended, by the next. Returns 0 if there is none. */
static int take_work(Lane *lane, int number, NextWork *next, void *giver)
{
    Work work;
    do {
        if (lane->stream)
            lane->stream->reader = lane->reader;
        if (!next(giver, number, lane->ended < 0, &work))
            return 0;
        *lane = (Lane){.reader = work.stream->reader, .mcu = work.mcu, .stream = work.stream,
                       .block = work.to.blocks - BLOCK, .last = work.to.last, .left = work.mcus * work.mcu->blocks,
                       .number = work.mcu->blocks - 1};
        lane->ended = begin(lane);
    } while (lane->ended);
    return 1;
}

static void decode_work(const Order *order, NextWork *next, void *giver)
{
    Lane lane[2] = {{.ended = 1}, {.ended = 1}};
    int has[2] = {1, 1};
    while (has[0] || has[1]) {
        for (int i = 0; i < 2; i++)
            if (has[i] && lane[i].ended)
                has[i] = take_work(&lane[i], i, next, giver);
        if (has[0] && has[1])
            decode_both(&lane[0], &lane[1], order);
        else if (has[0] || has[1])
            decode_alone(&lane[has[1]], order);
    }
}
