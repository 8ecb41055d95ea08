/* Renders a batch of images: decodes, crops, resizes and mirrors them. Each image may have several crops, for which it
   is decoded once. */
#ifndef WDS_TOOLS_BATCH_H
#define WDS_TOOLS_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "stopwatch.h"

/* How an image is cropped and resized: the fields of `Regions` in views.py, and the size of the image for which they
   were chosen, in the order in which native.py concatenates them. All are whole numbers, except the size of the resized
   box and the corner, which may be between two pixels. */
typedef struct {
    double left, top, width, height;      /* the box, in pixels of the image */
    double resized_height, resized_width; /* the size to which the box is resized */
    double corner_top, corner_left;       /* where the output begins in the resized box, or up to half a pixel before */
    double flip;                          /* FLIP_COLUMNS, FLIP_ROWS, their sum, or 0 */
    double needed_left, needed_top, needed_width, needed_height; /* the part of the box that the output depends on */
    double image_width, image_height; /* as the index records them; 0 if they are not known */
} CropGeometry;

#define FLIP_COLUMNS 1 /* mirror left to right */
#define FLIP_ROWS 2    /* mirror top to bottom */

typedef struct {
    const uint8_t *data; /* NULL: the image is skipped */
    size_t size;
} ByteSpan;

/* Where a crop of an image is written: pixels[3][height][width]. It may be a rectangle in larger planes. */
typedef struct {
    uint8_t *pixels;
    int height, width;
    size_t row_stride, plane_stride; /* bytes from one row to the next, and from one plane to the next */
} Output;

/* Renders crops_per_image crops of each of `count` images. `crops`, `outputs` and `done` are
   [count][crops_per_image]. Sets done[i][k] to 1 if crop k of image i was rendered, or to 0 if Python
   must render it; its pixels are then not written. A crop whose geometry is invalid is not rendered,
   and does not affect the others. An image of another size than its crops state is not rendered. Images larger than `max_pixels` are not rendered. Adds the time of
   each step to `timings`, which may be NULL. */
void render_batch(
    const ByteSpan *files, const CropGeometry *crops, size_t count, const Output *outputs, size_t crops_per_image,
    size_t max_pixels, char *done, Timings *timings);

/* Converts interleaved pixels [height][width][3] to planes [3][height][width]. */
void to_planes(const uint8_t *pixels, int height, int width, uint8_t *out);

#endif
