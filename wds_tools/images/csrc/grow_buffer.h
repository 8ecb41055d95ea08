/* A block of memory that grows on demand and is reused. */
#ifndef WDS_TOOLS_GROW_BUFFER_H
#define WDS_TOOLS_GROW_BUFFER_H

#include <stddef.h>
#include <stdint.h>

_Static_assert(sizeof(size_t) >= 8, "sizes are multiplied without overflow checks");

/* Bytes after the requested size that may be read and written. */
#define SLACK 512

typedef struct {
    uint8_t *bytes;
    size_t size; /* without SLACK */
} GrowBuffer;

/* Returns at least `size` bytes with SLACK bytes after them, aligned to 64 bytes, or NULL if memory
   ran out. The previous contents may be lost. */
uint8_t *buffer_reserve(GrowBuffer *buffer, size_t size);

void buffer_free(GrowBuffer *buffer);

#endif
