/* Resizing with a triangle filter that is widened when it shrinks, as in Pillow and torchvision
   (antialias=True).

   The vertical filter runs twice: on the plane, and on the transposed result. The compiler
   vectorises a vertical filter, because the weights are the same for all samples of a row. It does
   not vectorise a horizontal one. Weights have 8 fractional bits and their sum is exactly 256, so flat
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
    int first = (int)fmax(centre - radius + 0.5, low), end = (int)fmin(centre + radius + 0.5, high);
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

int prepare_filters(Resampler *resampler, int kind, const PlaneBox *box, const ResizeGeometry *geometry)
{
    FilterAxis rows = {box->top,        box->height,   geometry->resized_height, geometry->top,
                       box->first_row,  box->last_row, geometry->height,         geometry->flip_rows};
    FilterAxis columns = {box->left,         box->width,       geometry->resized_width, geometry->left,
                          box->first_column, box->last_column, geometry->width,         geometry->flip_columns};
    int failed = compute_filters(&resampler->rows[kind], &rows) || compute_filters(&resampler->columns[kind], &columns);
    return failed ? -1 : 0;
}

int resample(Resampler *resampler, int kind, const PlaneBox *box, const ResizeGeometry *geometry, uint8_t *out)
{
    const Filter *rows = (const Filter *)(void *)resampler->rows[kind].buffer.bytes;
    const Filter *columns = (const Filter *)(void *)resampler->columns[kind].buffer.bytes;
    size_t height = round_up_to_strip(geometry->height);
    size_t width = round_up_to_strip(box->last_column - box->first_column);
    uint8_t *vertical = buffer_reserve(&resampler->vertical, height * width);
    uint8_t *transposed = buffer_reserve(&resampler->transposed, height * width);
    uint8_t *horizontal = buffer_reserve(&resampler->horizontal, height * row_stride(geometry->width));
    const Kernels *fast = kernels();
    if (!vertical || !transposed || !horizontal)
        return -1;
    fast->filter_vertically(box->samples + box->first_column, box->stride, 0, width, rows, geometry->height, vertical);
    fast->transpose(vertical, width, height, transposed);
    fast->filter_vertically(transposed, height, box->first_column, height, columns, geometry->width, horizontal);
    fast->transpose(horizontal, height, round_up_to_strip(geometry->width), out);
    return 0;
}
