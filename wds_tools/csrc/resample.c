/* Resizing by a triangle filter that is widened when it shrinks, as Pillow and torchvision (antialias=True) do it.

   Two passes over columns: one down, then, turned, one across. A column pass is the same few instructions for each of a
   row's neighbours, which the compiler makes vectors of; a pass along a row is not. Weights have 8 bits and sum to 256
   exactly, so that flat areas stay as they are and 16-bit sums cannot overflow. */
#include "resample.h"

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t rounded_up(int n)
{
    return ((size_t)n + LANES - 1) / LANES * LANES;
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
    room_free(&resampler->rows);
    room_free(&resampler->columns);
    room_free(&resampler->turned);
    room_free(&resampler->down);
    room_free(&resampler->across);
}

/* Weights of 1/256. It is their running sum that is rounded, so that none is negative and they sum to 256. */
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

/* Filters of results `from` to `from + count`, when `length` samples from `start` on become `resized`. */
static int make_filters(
    Room *room, double start, double length, int low, int high, int resized, int from, int count, int flip)
{
    Filter *filters = (Filter *)(void *)room_for(room, (size_t)count * sizeof(Filter));
    double scale = length / resized, reach = scale < 1 ? 1 : scale;
    low = (int)fmax(start, low);
    high = (int)fmin(ceil(start + length), high);
    for (int i = 0; filters && i < count; i++)
        if (make_filter(&filters[flip ? count - 1 - i : i], start + (from + i + 0.5) * scale, reach, low, high))
            return -1;
    return filters ? 0 : -1;
}

int prepare(Resampler *resampler, const Box *box, const View *view)
{
    if (make_filters(
            &resampler->rows, box->top, box->height, box->first_row, box->last_row, view->resized_height, view->top,
            view->height, 0))
        return -1;
    return make_filters(
        &resampler->columns, box->left, box->width, box->first_column, box->last_column, view->resized_width,
        view->left, view->width, view->flip);
}

int resample(Resampler *resampler, const Box *box, const View *view, uint8_t *out)
{
    const Filter *rows = (const Filter *)(void *)resampler->rows.bytes;
    const Filter *columns = (const Filter *)(void *)resampler->columns.bytes;
    size_t height = rounded_up(view->height), width = rounded_up(box->last_column - box->first_column);
    uint8_t *down = room_for(&resampler->down, height * width);
    uint8_t *turned = room_for(&resampler->turned, height * width);
    uint8_t *across = room_for(&resampler->across, height * row_stride(view->width));
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
