/* Coefficients from coded data: the decoding procedures of T.81, F.2 and G.2. */
#ifndef WDS_TOOLS_ENTROPY_H
#define WDS_TOOLS_ENTROPY_H

#include "intervals.h"

/* Where each coefficient goes in its block, from its place in the order of the file. The entries
   for the end of a block and for long codes write a zero behind the 64 places: it goes to the
   last coefficient, which is still zero then. */
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

/* Consecutive MCUs of an interval of a sequential scan, and where their blocks go. */
typedef struct {
    const Mcu *mcu;
    Stream *stream; /* where the interval has got to */
    int mcus;       /* at least one */
    Blocks to;
} Work;

/* Gives a lane its next work. What the lane was given before has been decoded then, or was found
   to be damaged, which `failed` tells. Returns 0 if there is no more work; the lane does not ask
   again. */
typedef int NextWork(void *giver, int lane, int failed, Work *work);

/* Decodes all work there is, in two lanes that take turns: while one waits for its next table
   entry, the other goes on. */
typedef void DecodeWork(const Order *order, NextWork *next, void *giver);

#endif
