#include "grow_buffer.h"

#include <stdlib.h>

#define ALIGNMENT 64

uint8_t *buffer_reserve(GrowBuffer *buffer, size_t size)
{
    if (buffer->size < size || !buffer->bytes) {
        free(buffer->bytes);
        size += size / 2; /* the next image may be larger, and fresh memory costs a page fault per 4 kB */
        size_t allocated = (size + SLACK + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        buffer->bytes = aligned_alloc(ALIGNMENT, allocated);
        buffer->size = buffer->bytes ? size : 0;
    }
    return buffer->bytes;
}

void buffer_free(GrowBuffer *buffer)
{
    free(buffer->bytes);
    *buffer = (GrowBuffer){0};
}
