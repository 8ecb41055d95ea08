/* Resizing by a triangle filter that is widened when it shrinks, as Pillow and torchvision (antialias=True) do it.

   Two passes over columns: one down, then, turned, one across. A column pass is the same few instructions for each of a
   row's neighbours, which the compiler makes vectors of; a pass along a row is not. Weights have 8 bits and sum to 256
   exactly, so that flat areas stay as they are and 16-bit sums cannot overflow. */
#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TAPS 64 /* samples under one filter: shrinking by 31 */
#define LANES 32 /* columns at a time */

typedef struct {
    int first, count;
    uint16_t weight[TAPS];
} Filter;

typedef uint8_t Bytes __attribute__((vector_size(16)));
#if defined(__clang__)
#define INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (Bytes){__VA_ARGS__})
#endif

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

uint8_t *room_for(Room *room, size_t size)
{
    if (room->size < size) {
        free(room->bytes);
        size += size / 2; /* the next picture may be larger: fresh memory costs a page fault per 4 kB */
        room->bytes = malloc(size + SLACK);
        room->size = room->bytes ? size : 0;
    }
    return room->bytes;
}

void resampler_free(Resampler *resampler)
{
    free(resampler->rows.bytes);
    free(resampler->columns.bytes);
    free(resampler->turned.bytes);
    free(resampler->down.bytes);
    free(resampler->across.bytes);
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

/* Each result row is a weighted sum of source rows, the first of which is row `from`; `width` is a multiple of
   LANES. */
VECTORIZED
static void filter_columns(
    const uint8_t *in, size_t stride, int from, size_t width, const Filter *filters, int rows, uint8_t *out)
{
    for (int y = 0; y < rows; y++, out += width) {
        const Filter *filter = &filters[y];
        for (size_t x = 0; x < width; x += LANES) {
            const uint8_t *sample = in + (size_t)(filter->first - from) * stride + x;
            uint16_t sum[LANES];
            for (size_t i = 0; i < LANES; i++)
                sum[i] = 128;
            for (int k = 0; k < filter->count; k++, sample += stride)
                for (size_t i = 0; i < LANES; i++)
                    sum[i] = (uint16_t)(sum[i] + (uint16_t)(sample[i] * filter->weight[k]));
            for (size_t i = 0; i < LANES; i++)
                out[x + i] = (uint8_t)(sum[i] >> 8);
        }
    }
}

/* Rows become columns, in blocks of 16 x 16: four rounds of interleaving each row with the one half a block below. */
VECTORIZED
static void transpose(const uint8_t *in, size_t width, size_t height, uint8_t *out)
{
    for (size_t y = 0; y < height; y += 16)
        for (size_t x = 0; x < width; x += 16) {
            Bytes row[16], next[16];
            for (size_t i = 0; i < 16; i++)
                memcpy(&row[i], in + (y + i) * width + x, 16);
            for (int round = 0; round < 4; round++) {
                for (size_t i = 0; i < 8; i++) {
                    next[2 * i] =
                        INTERLEAVE(row[i], row[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                    next[2 * i + 1] =
                        INTERLEAVE(row[i], row[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                }
                memcpy(row, next, sizeof row);
            }
            for (size_t i = 0; i < 16; i++)
                memcpy(out + (x + i) * height + y, &row[i], 16);
        }
}

int resample(Resampler *resampler, const Box *box, const View *view, uint8_t *out)
{
    const Filter *rows = (const Filter *)(void *)resampler->rows.bytes;
    const Filter *columns = (const Filter *)(void *)resampler->columns.bytes;
    size_t height = rounded_up(view->height), width = rounded_up(box->last_column - box->first_column);
    uint8_t *down = room_for(&resampler->down, height * width);
    uint8_t *turned = room_for(&resampler->turned, height * width);
    uint8_t *across = room_for(&resampler->across, height * row_stride(view->width));
    if (!down || !turned || !across)
        return -1;
    filter_columns(box->samples + box->first_column, box->stride, 0, width, rows, view->height, down);
    transpose(down, width, height, turned);
    filter_columns(turned, height, box->first_column, height, columns, view->width, across);
    transpose(across, height, rounded_up(view->width), out);
    return 0;
}

static uint8_t clipped(int16_t value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* One row, in 16 bits: of the factors 1.402, 0.714, 0.344 and 1.772 whole numbers are taken out, the rest are 1/256. */
VECTORIZED
static void row_to_rgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t width,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    for (size_t x = 0; x < width; x++) {
        int16_t light = y[x], blue = (int16_t)(cb[x] - 128), red = (int16_t)(cr[x] - 128);
        int16_t more_red = (int16_t)((int16_t)(103 * red + 128) >> 8);
        int16_t more_green = (int16_t)((int16_t)(73 * red - 88 * blue + 128) >> 8);
        int16_t less_blue = (int16_t)((int16_t)(58 * blue + 127) >> 8);
        r[x] = clipped((int16_t)(light + red + more_red));
        g[x] = clipped((int16_t)(light - red + more_green));
        b[x] = clipped((int16_t)(light + 2 * blue - less_blue));
    }
}

void to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, int height, uint8_t *out)
{
    size_t plane = (size_t)width * (size_t)height, stride = row_stride(width);
    for (int row = 0; row < height; row++, out += width, y += stride, cb += stride, cr += stride)
        row_to_rgb(y, cb, cr, (size_t)width, out, out + plane, out + 2 * plane);
}
