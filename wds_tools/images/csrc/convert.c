#include "convert.h"

#include <string.h>

/* `bytes` is a constant where these are called, so each memcpy() is one load and one store. The table of a plane is 0.5
   to 2 kB and stays in the nearest cache, so that this takes about as long as arithmetic with the values would, and the
   results have any type, rounded as whoever made the table rounds. */
static inline void convert_plane(
    const uint8_t *pixels, size_t count, const char *values, size_t bytes, char *restrict out)
{
    for (size_t i = 0; i < count; i++)
        memcpy(out + i * bytes, values + pixels[i] * bytes, bytes);
}

static inline void convert_interleaved(
    const uint8_t *pixels, size_t count, const char *values, size_t bytes, char *restrict out)
{
    for (size_t i = 0; i < count; i++)
        for (size_t c = 0; c < 3; c++)
            memcpy(out + (3 * i + c) * bytes, values + (256 * c + pixels[c * count + i]) * bytes, bytes);
}

static inline void convert(
    const uint8_t *pixels, size_t count, const char *values, size_t bytes, int is_interleaved, char *restrict out)
{
    if (is_interleaved)
        convert_interleaved(pixels, count, values, bytes, out);
    else
        for (size_t c = 0; c < 3; c++)
            convert_plane(pixels + c * count, count, values + 256 * c * bytes, bytes, out + c * count * bytes);
}

void convert_image(
    const uint8_t *pixels, size_t count, const ConversionTable *table, int is_interleaved, char *restrict out)
{
    if (table->value_bytes == 2)
        convert(pixels, count, table->values, 2, is_interleaved, out);
    else if (table->value_bytes == 4)
        convert(pixels, count, table->values, 4, is_interleaved, out);
    else
        convert(pixels, count, table->values, 8, is_interleaved, out);
}
