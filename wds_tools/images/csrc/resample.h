/* Resizes planes of 8-bit samples with antialiasing. */
#ifndef WDS_TOOLS_RESAMPLE_H
#define WDS_TOOLS_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "grow_buffer.h"

#define STRIP 32    /* samples processed together; this many may be read and written after a plane's row */
#define MAX_TAPS 64 /* samples under one filter: enough to shrink by 31 */

/* The weights of `count` samples from `first` on. They have 8 fractional bits. */
typedef struct {
    int first, count;
    uint16_t weight[MAX_TAPS];
} Filter;

/* Writes `rows` rows to `out`; row i is the sum of the input rows weighted by filters[i]. `in` is
   input row `in_row`. `width` is a multiple of STRIP. */
typedef void FilterVertically(
    const uint8_t *in, size_t stride, int in_row, size_t width, const Filter *filters, int rows, uint8_t *out);

#define MAX_PAIRS 3 /* pairs of samples of a filter that filter_horizontally() takes */

/* The filters of STRIP columns, in four blocks of eight. */
typedef struct {
    int first[4];                     /* the first input sample of a block, counted from the first valid one */
    uint8_t order[4][16];             /* for each column two samples, counted from the first one of the block */
    uint8_t weight[MAX_PAIRS][4][16]; /* the weights of these, and of those two and four samples after them */
} ColumnStrip;

/* Writes `rows` rows of `strips` strips to `out`; each column is the sum of input columns weighted by its filter, which
   has at most 2 * pairs of them. Up to SLACK bytes after the last row may be read. */
typedef void FilterHorizontally(
    const uint8_t *in, size_t stride, const ColumnStrip *strip, size_t strips, int pairs, int rows, uint8_t *out);

/* Transposes a plane. Width and height are multiples of STRIP. */
typedef void Transpose(const uint8_t *in, size_t width, size_t height, uint8_t *out);

/* Converts a row from YCbCr (JFIF: full range, BT.601) to RGB. */
typedef void RowToRgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t width,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b);

/* Splits `count` interleaved RGB pixels into planes. */
typedef void RowToPlanes(
    const uint8_t *restrict pixels, size_t count, uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b);

/* A box in a plane, in samples of the plane. Its edges may be between two samples, as chroma is
   subsampled, and outside the decoded columns and rows: only columns first_column to last_column -
   1 and rows first_row to last_row - 1 are valid. */
typedef struct {
    const uint8_t *samples;
    size_t stride; /* bytes from one row to the next */
    double left, top, width, height;
    int first_column, last_column, first_row, last_row;
} PlaneBox;

/* How a box is resized: to resized_width x resized_height, then cropped to `width` x `height` at
   `left`, `top`, all of which may be between two pixels, and mirrored left to right if `flip_columns` is set, top to
   bottom if `flip_rows` is. */
typedef struct {
    double resized_width, resized_height, left, top;
    int width, height;
    int flip_columns, flip_rows;
} ResizeGeometry;

/* All that determines the filters of one axis: `length` samples from `start` on, of which `low` to
   high - 1 are valid, are resized to `resized`; `count` of these from `first` on are kept. */
typedef struct {
    double start, length, resized, first;
    int low, high, count, flip;
} FilterAxis;

typedef struct {
    FilterAxis axis; /* for which `buffer` has the filters */
    GrowBuffer buffer;
    GrowBuffer strips; /* the same filters for filter_horizontally() */
    int pairs;         /* of these; 0: it does not take the filters, -1: they are not in `strips` yet */
} AxisFilters;

/* Filters and memory that are reused from image to image. The filters are indexed by the kind of
   plane: 0 luma or grey, 1 chroma. */
typedef struct {
    AxisFilters rows[2], columns[2];
    GrowBuffer transposed, vertical, horizontal; /* planes between the steps of resample() */
} Resampler;

void resampler_free(Resampler *resampler);

/* Returns the number of bytes from one row to the next in a plane written by resample(). */
size_t row_stride(int width);

/* Returns the size of the buffer for a plane written by resample(). */
size_t plane_bytes(int width, int height);

/* Computes the filters for a box. `kind` is 0 or 1, see Resampler. Returns 0, or -1 if the box is
   so much larger than the result that a filter would have more than MAX_TAPS samples, or memory ran
   out. */
int prepare_filters(Resampler *resampler, int kind, const PlaneBox *box, const ResizeGeometry *geometry);

/* Resizes a box with the filters that prepare_filters() computed for it, or for an equal box in
   another plane. Writes geometry->height rows of geometry->width samples, row_stride() apart, to
   `out`, which has plane_bytes(). Returns 0, or -1 if memory ran out. */
int resample(Resampler *resampler, int kind, const PlaneBox *box, const ResizeGeometry *geometry, uint8_t *out);

#endif
