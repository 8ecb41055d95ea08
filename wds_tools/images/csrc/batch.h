/* A batch of pictures of one size. */
#ifndef WDS_TOOLS_BATCH_H
#define WDS_TOOLS_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "stopwatch.h"

/* How a picture is cropped and resized: the fields of `Regions` in views.py, in the order of
   native.py. */
typedef struct {
    int32_t left, top, width, height;       /* the box, in pixels */
    int32_t resized_height, resized_width;  /* what it becomes */
    int32_t corner_top, corner_left;        /* what is cut from that: as much as the batch holds */
    int32_t flip;
    int32_t needed_left, needed_top, needed_width, needed_height; /* the part of the box that this depends on */
} CropGeometry;

typedef struct {
    const uint8_t *data; /* NULL: left alone */
    size_t size;
} ByteSpan;

/* Makes pictures into out[count][3][height][width]; done[i] is 1 for those that were made. The
   time of each step is added to `timings`, which may be NULL. */
void make_batch(
    const ByteSpan *files, const CropGeometry *crops, size_t count, int height, int width, size_t max_pixels,
    uint8_t *out, char *done, Timings *timings);

/* Turns pixels [height][width][3] into planes [3][height][width]. */
void to_planes(const uint8_t *pixels, int height, int width, uint8_t *out);

#endif
