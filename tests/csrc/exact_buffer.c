/* Replaces csrc/grow_buffer.c in the fuzzer. Each call allocates new memory of exactly the
   requested size, so AddressSanitizer detects writes after the end and uses after the next call.
   The memory is filled with another value each time, so samples that are never written differ
   between runs. */
#include <stdlib.h>
#include <string.h>

#include "grow_buffer.h"

#define ALIGNMENT 64
#define MAX_FILLED_BYTES 8192

uint8_t *buffer_reserve(GrowBuffer *buffer, size_t size)
{
    static uint8_t filler;
    size_t allocated = size + SLACK;
    free(buffer->bytes);
    buffer->bytes = NULL;
    buffer->size = size;
    if (posix_memalign((void **)(void *)&buffer->bytes, ALIGNMENT, allocated))
        return NULL;
    memset(buffer->bytes, filler += 85, allocated < MAX_FILLED_BYTES ? allocated : MAX_FILLED_BYTES);
    return buffer->bytes;
}

void buffer_free(GrowBuffer *buffer)
{
    free(buffer->bytes);
    *buffer = (GrowBuffer){0};
}
