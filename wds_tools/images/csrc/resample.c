/* Resizing by a triangle filter that is widened when it shrinks, as Pillow and torchvision
   (antialias=True) do it.

      Two passes over columns: one down, then, turned, one across. A column pass is the same few
   instructions for each of a row's neighbours, which the compiler makes vectors of; a pass along
   a row is not. Weights have 8 bits and sum to 256 exactly, so that flat areas stay as they are
   and 16-bit sums cannot overflow. */
#include "resample.h"

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t rounded_up(int n)
{
    return ((size_t)n + STRIP - 1) / STRIP * STRIP;
}

size_t row_stride(int width)
{
    return rounded_up(width);
}

size_t plane_bytes(int width, int height)
{
    return row_stride(width) * rounded_up(height);
}

void resampler_free(Resampler *resampler)
{
    for (int kind = 0; kind < 2; kind++) {
        buffer_free(&resampler->rows[kind].buffer);
        buffer_free(&resampler->columns[kind].buffer);
    }
    buffer_free(&resampler->turned);
    buffer_free(&resampler->down);
    buffer_free(&resampler->across);
}

/* Weights of 1/256. It is their running sum that is rounded, so that none is negative and they
   sum to 256. */
static void quantize(Filter *filter, const double *weight, double sum)
{
    double share = 0;
    int given = 0;
    for (int k = 0; k < filter->count; k++) {
        share += weight[k] / sum;
        int upto = k == filter->count - 1 ? 256 : (int)(256 * share + 0.5);
        filter->weight[k] = (uint16_t)(upto - given);
        given = upto;
    }
}

/* Filters one sample of the result at `centre`, from samples in [low, high). */
static int make_filter(Filter *filter, double centre, double reach, int low, int high)
{
    int first = (int)fmax(centre - reach + 0.5, low), last = (int)fmin(centre + reach + 0.5, high);
    double weight[TAPS], sum = 0;
    filter->first = first;
    filter->count = last - first;
    if (filter->count < 1 || filter->count > TAPS)
        return -1;
    for (int k = 0; k < filter->count; k++) {
        double distance = fabs(first + k + 0.5 - centre) / reach;
        weight[k] = distance < 1 ? 1 - distance : 0;
        sum += weight[k];
    }
    if (sum <= 0)
        return -1;
    quantize(filter, weight, sum);
    return 0;
}

/* Makes the filters of an axis, unless they are those of the picture before. */
static int make_filters(Filters *filters, const Axis *axis)
{
    if (!memcmp(&filters->axis, axis, sizeof *axis))
        return 0;
    Filter *to = (Filter *)(void *)buffer_reserve(&filters->buffer, (size_t)axis->count * sizeof(Filter));
    double scale = axis->length / axis->resized, reach = scale < 1 ? 1 : scale;
    int low = (int)fmax(axis->start, axis->low), high = (int)fmin(ceil(axis->start + axis->length), axis->high);
    filters->axis = (Axis){0}; /* until they are all made */
    for (int i = 0; to && i < axis->count; i++)
        if (make_filter(
                &to[axis->flip ? axis->count - 1 - i : i], axis->start + (axis->from + i + 0.5) * scale, reach, low,
                high))
            return -1;
    if (!to)
        return -1;
    filters->axis = *axis;
    return 0;
}

int prepare(Resampler *resampler, int kind, const Box *box, const View *view)
{
    Axis rows = {
        box->top, box->height, box->first_row, box->last_row, view->resized_height, view->top, view->height, 0};
    Axis columns = {box->left, box->width, box->first_column, box->last_column, view->resized_width, view->left,
                    view->width, view->flip};
    return make_filters(&resampler->rows[kind], &rows) || make_filters(&resampler->columns[kind], &columns) ? -1 : 0;
}

int resample(Resampler *resampler, int kind, const Box *box, const View *view, uint8_t *out)
{
    const Filter *rows = (const Filter *)(void *)resampler->rows[kind].buffer.bytes;
    const Filter *columns = (const Filter *)(void *)resampler->columns[kind].buffer.bytes;
    size_t height = rounded_up(view->height), width = rounded_up(box->last_column - box->first_column);
    uint8_t *down = buffer_reserve(&resampler->down, height * width);
    uint8_t *turned = buffer_reserve(&resampler->turned, height * width);
    uint8_t *across = buffer_reserve(&resampler->across, height * row_stride(view->width));
    const Kernels *fast = kernels();
    if (!down || !turned || !across)
        return -1;
    fast->filter_columns(box->samples + box->first_column, box->stride, 0, width, rows, view->height, down);
    fast->transpose(down, width, height, turned);
    fast->filter_columns(turned, height, box->first_column, height, columns, view->width, across);
    fast->transpose(across, height, rounded_up(view->width), out);
    return 0;
}

void to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, int height, uint8_t *out)
{
    size_t plane = (size_t)width * (size_t)height, stride = row_stride(width);
    for (int row = 0; row < height; row++, out += width, y += stride, cb += stride, cr += stride)
        kernels()->row_to_rgb(y, cb, cr, (size_t)width, out, out + plane, out + 2 * plane);
}
