/* Coefficients from coded data: the decoding procedures of T.81, F.2 and G.2. */
#ifndef WDS_TOOLS_ENTROPY_H
#define WDS_TOOLS_ENTROPY_H

#include "intervals.h"

/* Where each coefficient goes in its block, from its place in the order of the file. The entries for the end of a
   block and for long codes write a zero behind the 64 places: it goes to the last coefficient, which is still zero then. */
typedef struct {
    uint8_t at[BLOCK + NOT_DIRECT];
} Order;

/* The blocks of an MCU, in their order. */
typedef struct {
    int blocks;
    uint8_t component[MAX_BLOCKS];
    const HuffmanTable *dc[MAX_BLOCKS], *ac[MAX_BLOCKS];
} Mcu;

/* An interval that is being decoded. */
typedef struct {
    BitReader reader;
    const uint8_t *start, *end;
    int16_t prediction[MAX_COMPONENTS]; /* of DC coefficients */
} Stream;

/* Where blocks go. They must be zero. */
typedef struct {
    int16_t *blocks; /* [mcus][blocks of an MCU][BLOCK] */
    uint8_t *last;   /* of each block, the place of its last coefficient in the order of the file */
} Blocks;

static inline void stream_start(Stream *stream, const Interval *interval)
{
    *stream = (Stream){
        .reader = {0, 0, interval->data}, .start = interval->data, .end = interval->data + interval->size};
}

/* Whether all of an interval has been decoded: no byte is left, and none was missing. */
static inline int is_used_up(const Stream *stream)
{
    int64_t left = 8 * (int64_t)(stream->end - stream->start) - taken(&stream->reader, stream->start);
    return left >= 0 && left < 8;
}

/* Decodes the next `mcus` MCUs of a sequential scan. Returns 0, or -1 if the data is damaged. */
typedef int DecodeMcus(const Mcu *mcu, const Order *order, Stream *stream, int mcus, Blocks to);

/* The same for two intervals at a time, in turn, which is faster: what one has to wait for, the other does not. */
typedef int DecodeTwo(
    const Mcu *mcu, const Order *order, Stream *one, int mcus_one, Blocks to_one, Stream *two, int mcus_two,
    Blocks to_two);

#endif
