/* Resizing with a triangle filter that is widened when it shrinks, as in Pillow and torchvision
   (antialias=True).

   The vertical filter runs twice: on the plane, and on the transposed result. The compiler
   vectorises a vertical filter, because the weights are the same for all samples of a row. It does
   not vectorise a horizontal one. With AVX2 there is a horizontal filter for images that become larger, or up to about
   1.9 times smaller: then the samples for eight columns are next to each other in 16 bytes. Weights have 8 fractional bits and their sum is exactly 256, so flat
   areas do not change and 16-bit sums cannot overflow. */
#include "resample.h"

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t round_up_to_strip(int n)
{
    return ((size_t)n + STRIP - 1) / STRIP * STRIP;
}

size_t row_stride(int width)
{
    return round_up_to_strip(width);
}

size_t plane_bytes(int width, int height)
{
    return row_stride(width) * round_up_to_strip(height);
}

void resampler_free(Resampler *resampler)
{
    for (int kind = 0; kind < 2; kind++) {
        buffer_free(&resampler->rows[kind].buffer);
        buffer_free(&resampler->columns[kind].buffer);
        buffer_free(&resampler->columns[kind].strips);
    }
    buffer_free(&resampler->transposed);
    buffer_free(&resampler->vertical);
    buffer_free(&resampler->horizontal);
}

/* Sets the weights of a filter to `weight`, divided by their `sum` and scaled to 256. The running
   sum is rounded, so no weight is negative and the total is exactly 256. */
static void quantize_weights(Filter *filter, const double *weight, double sum)
{
    double share = 0, scale = 1 / sum; /* dividing takes several times as long as multiplying */
    int previous = 0;
    for (int k = 0; k < filter->count; k++) {
        share += weight[k] * scale;
        int total = k == filter->count - 1 ? 256 : (int)(256 * share + 0.5);
        filter->weight[k] = (uint16_t)(total - previous);
        previous = total;
    }
}

/* Computes the filter of one output sample: a triangle around `centre` whose half width is
   `radius`, over the input samples low to high - 1. Returns 0, or -1 if it has no or too many
   samples. */
static int compute_filter(Filter *filter, double centre, double radius, int low, int high)
{
    double start = centre - radius + 0.5, stop = centre + radius + 0.5; /* fmax() and fmin() would be calls */
    int first = start > low ? (int)start : low, end = stop < high ? (int)stop : high;
    double weight[MAX_TAPS], sum = 0, scale = 1 / radius;
    filter->first = first;
    filter->count = end - first;
    if (filter->count < 1 || filter->count > MAX_TAPS)
        return -1;
    for (int k = 0; k < filter->count; k++) {
        double distance = fabs(first + k + 0.5 - centre) * scale;
        weight[k] = distance < 1 ? 1 - distance : 0;
        sum += weight[k];
    }
    if (sum <= 0)
        return -1;
    quantize_weights(filter, weight, sum);
    return 0;
}

/* Computes the filters of an axis, unless `filters` has them from the previous image. Returns 0, or
   -1 if one cannot be computed or memory ran out. */
static int compute_filters(AxisFilters *filters, const FilterAxis *axis)
{
    if (!memcmp(&filters->axis, axis, sizeof *axis))
        return 0;
    Filter *filter = (Filter *)(void *)buffer_reserve(&filters->buffer, (size_t)axis->count * sizeof(Filter));
    double scale = axis->length / axis->resized, radius = scale < 1 ? 1 : scale;
    int low = (int)fmax(axis->start, axis->low), high = (int)fmin(ceil(axis->start + axis->length), axis->high);
    filters->axis = (FilterAxis){0}; /* invalid until all filters are computed */
    filters->pairs = -1;
    for (int i = 0; filter && i < axis->count; i++)
        if (compute_filter(
                &filter[axis->flip ? axis->count - 1 - i : i], axis->start + (axis->first + i + 0.5) * scale, radius,
                low, high))
            return -1;
    if (!filter)
        return -1;
    filters->axis = *axis;
    return 0;
}

/* Returns the index of the sample with all of the weight of a filter, or -1 if there is none. */
static int only_sample(const Filter *filter)
{
    for (int k = 0; k < filter->count; k++)
        if (filter->weight[k] == 256)
            return k;
    return -1;
}

/* Arranges the filters of eight columns as block `number` of a strip. `low` is the first valid sample. Returns 0, or -1
   if their samples are too far apart. If there are fewer than eight columns, the last one is repeated. */
static int arrange_block(const Filter *filter, int columns, int pairs, int low, ColumnStrip *strip, int number)
{
    int first = filter->first;
    for (int i = 1; i < 8 && i < columns; i++)
        first = first < filter[i].first ? first : filter[i].first;
    strip->first[number] = first - low;
    for (int i = 0; i < 8; i++, filter += i < columns) {
        uint8_t *order = &strip->order[number][2 * i];
        int only = only_sample(filter), offset = filter->first - first + (only < 0 ? 0 : only);
        if (offset > (only < 0 ? 14 : 15))
            return -1;
        order[0] = (uint8_t)offset;
        order[1] = (uint8_t)(only < 0 ? offset + 1 : offset); /* 256 does not fit into a byte */
        for (int k = 0; k < 2 * pairs; k++) {
            int weight = only >= 0 ? (k < 2) * 128 : k < filter->count ? filter->weight[k] : 0;
            strip->weight[k / 2][number][2 * i + k % 2] = (uint8_t)weight;
        }
    }
    return 0;
}

/* Arranges filters for filter_horizontally(), if it takes them. Returns 0, or -1 if memory ran out. */
static int arrange_filters(AxisFilters *filters)
{
    const Filter *filter = (const Filter *)(void *)filters->buffer.bytes;
    int count = filters->axis.count, most = 0;
    if (filters->pairs >= 0)
        return 0;
    for (int i = 0; i < count; i++)
        most = most > filter[i].count ? most : filter[i].count;
    filters->pairs = 0;
    if (most > 2 * MAX_PAIRS)
        return 0;
    size_t strips = round_up_to_strip(count) / STRIP;
    ColumnStrip *strip = (ColumnStrip *)(void *)buffer_reserve(&filters->strips, strips * sizeof(ColumnStrip));
    if (!strip)
        return -1;
    int pairs = (most + 1) / 2, blocks = 4 * (int)strips;
    for (int i = 0; i < blocks; i++) {
        int column = 8 * i < count ? 8 * i : count - 1; /* blocks after the last column repeat it */
        if (arrange_block(&filter[column], count - column, pairs, filters->axis.low, &strip[i / 4], i % 4))
            return 0;
    }
    filters->pairs = pairs;
    return 0;
}

int prepare_filters(Resampler *resampler, int kind, const PlaneBox *box, const ResizeGeometry *geometry)
{
    FilterAxis rows = {box->top,        box->height,   geometry->resized_height, geometry->top,
                       box->first_row,  box->last_row, geometry->height,         geometry->flip_rows};
    FilterAxis columns = {box->left,         box->width,       geometry->resized_width, geometry->left,
                          box->first_column, box->last_column, geometry->width,         geometry->flip_columns};
    if (compute_filters(&resampler->rows[kind], &rows) || compute_filters(&resampler->columns[kind], &columns))
        return -1;
    return kernels()->filter_horizontally ? arrange_filters(&resampler->columns[kind]) : 0;
}

int resample(Resampler *resampler, int kind, const PlaneBox *box, const ResizeGeometry *geometry, uint8_t *out)
{
    const Filter *rows = (const Filter *)(void *)resampler->rows[kind].buffer.bytes;
    const AxisFilters *axis = &resampler->columns[kind];
    const Filter *columns = (const Filter *)(void *)axis->buffer.bytes;
    size_t height = round_up_to_strip(geometry->height);
    size_t width = round_up_to_strip(box->last_column - box->first_column);
    uint8_t *vertical = buffer_reserve(&resampler->vertical, height * width);
    const Kernels *fast = kernels();
    if (!vertical)
        return -1;
    fast->filter_vertically(box->samples + box->first_column, box->stride, 0, width, rows, geometry->height, vertical);
    if (fast->filter_horizontally && axis->pairs > 0) {
        fast->filter_horizontally(
            vertical, width, (const ColumnStrip *)(void *)axis->strips.bytes,
            row_stride(geometry->width) / STRIP, axis->pairs, geometry->height, out);
        return 0;
    }
    uint8_t *transposed = buffer_reserve(&resampler->transposed, height * width);
    uint8_t *horizontal = buffer_reserve(&resampler->horizontal, height * row_stride(geometry->width));
    if (!transposed || !horizontal)
        return -1;
    fast->transpose(vertical, width, height, transposed);
    fast->filter_vertically(transposed, height, box->first_column, height, columns, geometry->width, horizontal);
    fast->transpose(horizontal, height, round_up_to_strip(geometry->width), out);
    return 0;
}
