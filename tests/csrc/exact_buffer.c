/* In place of csrc/grow_buffer.c where the fuzzer is built: memory of exactly the size that was
   asked for, new at each call, and full of something else each time. So AddressSanitizer sees
   what is written behind it, and what is used after the next call; and samples that nothing was
   written to differ from run to run. */
#include <stdlib.h>
#include <string.h>

#include "grow_buffer.h"

#define ALIGNMENT 64
#define MOST_FILLED 8192

uint8_t *buffer_reserve(GrowBuffer *buffer, size_t size)
{
    static uint8_t filler;
    size_t whole = size + SLACK;
    free(buffer->bytes);
    buffer->bytes = NULL;
    buffer->size = size;
    if (posix_memalign((void **)(void *)&buffer->bytes, ALIGNMENT, whole))
        return NULL;
    memset(buffer->bytes, filler += 85, whole < MOST_FILLED ? whole : MOST_FILLED);
    return buffer->bytes;
}

void buffer_free(GrowBuffer *buffer)
{
    free(buffer->bytes);
    *buffer = (GrowBuffer){0};
}
