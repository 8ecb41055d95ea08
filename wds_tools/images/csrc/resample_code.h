/* The loops of resample.h. Compiled once for each instruction set (kernels.h). */
#include "resample.h"

#include <string.h>

typedef uint8_t Bytes __attribute__((vector_size(16)));
#if defined(__clang__)
#define INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (Bytes){__VA_ARGS__})
#endif

static void filter_vertically(
    const uint8_t *in, size_t stride, int in_row, size_t width, const Filter *filters, int rows, uint8_t *out)
{
    for (int y = 0; y < rows; y++, out += width) {
        const Filter *filter = &filters[y];
        for (size_t x = 0; x < width; x += STRIP) {
            const uint8_t *sample = in + (size_t)(filter->first - in_row) * stride + x;
            uint16_t sum[STRIP];
            for (size_t i = 0; i < STRIP; i++)
                sum[i] = 128; /* rounds */
            for (int k = 0; k < filter->count; k++, sample += stride)
                for (size_t i = 0; i < STRIP; i++)
                    sum[i] = (uint16_t)(sum[i] + (uint16_t)(sample[i] * filter->weight[k]));
            for (size_t i = 0; i < STRIP; i++)
                out[x + i] = (uint8_t)(sum[i] >> 8);
        }
    }
}

/* Transposes blocks of 16 x 16 in four rounds; each interleaves the rows i and i + 8. */
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

static uint8_t clamp(int16_t value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* The factors are 1.402 = 1 + 103/256, 0.714 = 1 - 73/256, 0.344 = 88/256 and 1.772 = 2 - 58/256,
   rounded, so that 16-bit products do not overflow. */
static void row_to_rgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t width,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    for (size_t x = 0; x < width; x++) {
        int16_t luma = y[x], blue = (int16_t)(cb[x] - 128), red = (int16_t)(cr[x] - 128);
        int16_t more_red = (int16_t)((int16_t)(103 * red + 128) >> 8);
        int16_t more_green = (int16_t)((int16_t)(73 * red - 88 * blue + 128) >> 8);
        int16_t less_blue = (int16_t)((int16_t)(58 * blue + 127) >> 8);
        r[x] = clamp((int16_t)(luma + red + more_red));
        g[x] = clamp((int16_t)(luma - red + more_green));
        b[x] = clamp((int16_t)(luma + 2 * blue - less_blue));
    }
}

static void row_to_planes(
    const uint8_t *restrict pixels, size_t count, uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    for (size_t i = 0; i < count; i++) {
        r[i] = pixels[3 * i];
        g[i] = pixels[3 * i + 1];
        b[i] = pixels[3 * i + 2];
    }
}
