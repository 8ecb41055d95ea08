/* A box of a plane of 8-bit samples, resized with antialiasing. */
#ifndef WDS_TOOLS_RESAMPLE_H
#define WDS_TOOLS_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "grow_buffer.h"

#define STRIP 32 /* samples at a time: as many may be read behind the last one of a row, and be written */
#define TAPS 64  /* samples under one filter: shrinking by 31 */

/* The weights of some samples, of 1/256. */
typedef struct {
    int first, count;
    uint16_t weight[TAPS];
} Filter;

/* Each row of the result is a weighted sum of rows, of which the first one given is row `from`;
   `width` is a multiple of STRIP. */
typedef void FilterColumns(
    const uint8_t *in, size_t stride, int from, size_t width, const Filter *filters, int rows, uint8_t *out);

/* Rows become columns; both sides are multiples of 16. */
typedef void Transpose(const uint8_t *in, size_t width, size_t height, uint8_t *out);

/* Turns a row of YCbCr (JFIF: full range, BT.601) into RGB. */
typedef void RowToRgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t width,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b);

/* Takes RGB pixels apart. */
typedef void RowToPlanes(
    const uint8_t *restrict pixels, size_t count, uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b);

/* A box in a plane. Its edges may lie between samples, as chroma has half as many as luma, and
   outside of what is there: only [first_column, last_column) and [first_row, last_row) were
   decoded. */
typedef struct {
    const uint8_t *samples;
    size_t stride; /* samples from a row to the next one */
    double left, top, width, height;
    int first_column, last_column, first_row, last_row;
} Box;

/* What becomes of a box: all of it is resized, and of that a part is kept. */
typedef struct {
    int resized_width, resized_height;
    int left, top, width, height;
    int flip; /* mirrored left to right */
} View;

/* What the filters along one side of a box follow from: `length` samples from `start` on, of
   which [low, high) are there, become `resized`; of those, `count` from `from` on are kept. */
typedef struct {
    double start, length;
    int low, high, resized, from, count, flip;
} Axis;

typedef struct {
    Axis axis;
    GrowBuffer buffer;
} Filters;

/* What `resample` needs, used again from picture to picture. Filters are those of two kinds of
   planes: luma and chroma. */
typedef struct {
    Filters rows[2], columns[2];
    GrowBuffer turned, down, across;
} Resampler;

void resampler_free(Resampler *resampler);

/* Samples from a row of a result to the next one. */
size_t row_stride(int width);

/* Bytes of a result. */
size_t plane_bytes(int width, int height);

/* Makes the filters for a box. Returns 0, or -1 where it is so much larger than the result that
   there is no filter for it, or memory ran out. */
int prepare(Resampler *resampler, int kind, const Box *box, const View *view);

/* Writes view->height rows of view->width samples, row_stride() apart, into plane_bytes(), by
   the filters of `prepare` for this box or one like it in another plane. Returns 0, or -1 where
   memory ran out. */
int resample(Resampler *resampler, int kind, const Box *box, const View *view, uint8_t *out);

/* Turns YCbCr (JFIF: full range, BT.601) into RGB planes of width * height bytes each. */
void to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, int height, uint8_t *out);

#endif
