/* Reads bits of entropy-coded data, most significant bit first (T.81, F.1.2.3). The data has no
   stuffed zero bytes any more: intervals.c removes them. */
#ifndef WDS_TOOLS_BITS_H
#define WDS_TOOLS_BITS_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t bits;       /* the next bits, from the most significant one on */
    uint32_t count;      /* number of valid bits; the bits below them are correct or zero */
    const uint8_t *next; /* first byte that is not counted in `bits` */
} BitReader;

/* Number of bytes that may be read after the end of the data. A block takes at most 27 + 63 * 26
   bits, and each block is checked against the end. */
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

static inline void put_be64(uint8_t *to, uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(to, &word, 8);
}

/* Returns whether one of eight bytes is FF. */
static inline int has_ff(uint64_t word)
{
    uint64_t inverted = ~word;
    return ((inverted - 0x0101010101010101u) & word & 0x8080808080808080u) != 0;
}

/* Loads bytes until at least 56 bits are valid. */
static inline void refill(BitReader *reader)
{
    reader->count &= 63; /* skip_entry() leaves wrong upper bits */
    reader->bits |= be64(reader->next) >> reader->count;
    reader->next += (63 - reader->count) >> 3;
    reader->count |= 56;
}

/* Returns the next `count` bits, 1 to 32, without consuming them. */
static inline unsigned peek_bits(const BitReader *reader, int count)
{
    return (unsigned)(reader->bits >> (64 - count));
}

static inline void skip_bits(BitReader *reader, int count)
{
    reader->bits <<= count;
    reader->count -= (uint32_t)count;
}

/* Skips the number of bits in the low six bits of a table entry. To save an instruction, the whole
   entry is subtracted from `count`, which leaves wrong upper bits in it until the next refill(). */
static inline void skip_entry(BitReader *reader, uint32_t entry)
{
    reader->bits <<= entry & 63;
    reader->count -= entry;
}

/* Reads 0 to 16 bits. */
static inline int read_bits(BitReader *reader, int count)
{
    int value = (int)(reader->bits >> 1 >> (63 - count));
    skip_bits(reader, count);
    return value;
}

/* Reads a signed value of `size` bits: RECEIVE and EXTEND (F.2.2.1). */
static inline int receive_extend(BitReader *reader, int size)
{
    int value = read_bits(reader, size);
    return value - ((((value << 1) >> size) - 1) & ((1 << size) - 1));
}

/* Returns the number of bits consumed since the reader was at byte `start`. */
static inline int64_t bits_consumed(const BitReader *reader, const uint8_t *start)
{
    return 8 * (int64_t)(reader->next - start) - (reader->count & 63);
}

#endif
