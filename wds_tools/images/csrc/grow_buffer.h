/* Memory that grows with what is asked of it and is used again. */
#ifndef WDS_TOOLS_GROW_BUFFER_H
#define WDS_TOOLS_GROW_BUFFER_H

#include <stddef.h>
#include <stdint.h>

_Static_assert(sizeof(size_t) >= 8, "sizes are multiplied without a check");

/* Bytes behind what was asked for that may be read and written. */
#define SLACK 512

typedef struct {
    uint8_t *bytes;
    size_t size;
} GrowBuffer;

/* Returns at least `size` bytes with SLACK behind them, aligned to 64 bytes, or NULL. What was
   there is lost. */
uint8_t *buffer_reserve(GrowBuffer *buffer, size_t size);
void buffer_free(GrowBuffer *buffer);

#endif
