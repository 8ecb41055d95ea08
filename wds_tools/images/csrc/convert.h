/* Converts bytes to numbers of another type, by a table. */
#ifndef WDS_TOOLS_CONVERT_H
#define WDS_TOOLS_CONVERT_H

#include <stddef.h>
#include <stdint.h>

/* What each byte of each plane becomes: values[3][256] of 2, 4 or 8 bytes. */
typedef struct {
    const char *values;
    size_t value_bytes;
} ConversionTable;

/* Converts the planes of an image, pixels[3][count], to out[3][count], or to out[count][3] if `is_interleaved`. */
void convert_image(
    const uint8_t *pixels, size_t count, const ConversionTable *table, int is_interleaved, char *restrict out);

#endif
