/* Bits of coded data, read from the highest of each byte on (T.81, F.1.2.3). The zeros that are
   stuffed behind each FF were taken out before (intervals.h). */
#ifndef WDS_TOOLS_BITS_H
#define WDS_TOOLS_BITS_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t bits;       /* those that come next, from the highest on */
    uint32_t count;      /* how many of them are counted; correct ones may follow */
    const uint8_t *next; /* the byte behind them */
} BitReader;

/* What may be read behind the end of the data: a block takes at most 27 + 63 * 26 bits, and its
   end is checked then. */
#define READ_AHEAD 256

static inline uint64_t be64(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Makes at least 56 bits known. */
static inline void refill(BitReader *reader)
{
    reader->count &= 63; /* see skip_entry() */
    reader->bits |= be64(reader->next) >> reader->count;
    reader->next += (63 - reader->count) >> 3;
    reader->count |= 56;
}

/* Returns the next bits, 1 to 32 of them. */
static inline unsigned peek(const BitReader *reader, int count)
{
    return (unsigned)(reader->bits >> (64 - count));
}

static inline void skip(BitReader *reader, int count)
{
    reader->bits <<= count;
    reader->count -= (uint32_t)count;
}

/* Skips as many bits as the lowest six bits of an entry say. What else is in it only makes the
   higher bits of `count` wrong, until the next refill. */
static inline void skip_entry(BitReader *reader, uint32_t entry)
{
    reader->bits <<= entry & 63;
    reader->count -= entry;
}

/* Takes 0 to 16 bits. */
static inline int take_bits(BitReader *reader, int count)
{
    int value = (int)(reader->bits >> 1 >> (63 - count));
    skip(reader, count);
    return value;
}

/* Takes a number of `size` bits, of which those that begin with a zero are negative (RECEIVE and
   EXTEND: F.2.2.1). */
static inline int take_signed(BitReader *reader, int size)
{
    int value = take_bits(reader, size);
    return value - ((((value << 1) >> size) - 1) & ((1 << size) - 1));
}

/* Returns how many bits have been taken since `start`. */
static inline int64_t taken(const BitReader *reader, const uint8_t *start)
{
    return 8 * (int64_t)(reader->next - start) - (reader->count & 63);
}

#endif
