/* The loops of entropy.h: compiled once for each kind of processor (kernels.h). */
#include "entropy.h"

/* A stream while blocks are decoded. */
typedef struct {
    BitReader reader;
    const uint32_t *direct;
    int16_t *block; /* behind the current one */
    uint8_t *last;
    unsigned k;     /* place of the coefficient that was decoded last */
    int left;       /* blocks */
    int number;     /* of the next block in its MCU */
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
INLINE int take_long(Lane *lane, const Mcu *mcu, const Order *order)
{
    lane->k -= NOT_DIRECT;
    refill(&lane->reader);
    uint32_t entry = long_entry(mcu->ac[lane->number], lane->reader.bits);
    if (!entry)
        return -1;
    apply(lane, order, entry);
    return 0;
}

/* Begins the next block. Returns -1 where its data is damaged. */
INLINE int begin(Lane *lane, const Mcu *mcu, Stream *stream)
{
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

/* Goes on where the last step has left the block: with a long code, or the next block. Returns 1 if there is none, -1 if
   the data is damaged. */
INLINE int go_on(Lane *lane, const Mcu *mcu, const Order *order, Stream *stream)
{
    if (is_long(lane)) {
        if (take_long(lane, mcu, order))
            return -1;
        if (is_inside(lane))
            return 0;
    }
    if (finish(lane))
        return -1;
    return lane->left ? begin(lane, mcu, stream) : 1;
}

INLINE Lane lane_of(const Mcu *mcu, const Stream *stream, int mcus, Blocks to)
{
    return (Lane){.reader = stream->reader, .block = to.blocks - BLOCK, .last = to.last,
                  .left = mcus * mcu->blocks, .number = mcu->blocks - 1};
}

#define STEPS 4

/* Decodes what is left of a lane, which is inside of a block. */
static int complete(Lane *of, const Mcu *mcu, const Order *order, Stream *stream)
{
    Lane lane = *of;
    int state = 0;
    while (!state) {
        refill(&lane.reader);
        for (int i = 0; i < STEPS && is_inside(&lane); i++)
            step(&lane, order);
        if (!is_inside(&lane))
            state = go_on(&lane, mcu, order, stream);
    }
    stream->reader = lane.reader;
    return state < 0 ? -1 : 0;
}

static int decode_mcus(const Mcu *mcu, const Order *order, Stream *stream, int mcus, Blocks to)
{
    Lane lane = lane_of(mcu, stream, mcus, to);
    return begin(&lane, mcu, stream) ? -1 : complete(&lane, mcu, order, stream);
}

static int decode_two(
    const Mcu *mcu, const Order *order, Stream *one, int mcus_one, Blocks to_one, Stream *two, int mcus_two,
    Blocks to_two)
{
    Lane a = lane_of(mcu, one, mcus_one, to_one), b = lane_of(mcu, two, mcus_two, to_two);
    int state = begin(&a, mcu, one) || begin(&b, mcu, two) ? -1 : 0;
    while (!state) {
        refill(&a.reader);
        refill(&b.reader);
        for (int i = 0; i < STEPS; i++) {
            step(&a, order);
            if (!is_inside(&a)) {
                state = go_on(&a, mcu, order, one);
                break;
            }
            step(&b, order);
            if (!is_inside(&b)) {
                state = go_on(&b, mcu, order, two);
                break;
            }
        }
    }
    one->reader = a.reader;
    two->reader = b.reader;
    if (state < 0)
        return -1;
    return a.left ? complete(&a, mcu, order, one) : complete(&b, mcu, order, two);
}
