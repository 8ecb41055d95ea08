/* The loops of resample.h. Compiled once for each instruction set (kernels.h). */
#include "resample.h"

#include <string.h>

#if USE_AVX2

#define BIAS ((short)0x8080) /* rounds, and replaces what is subtracted from the samples to make them signed */

static inline __m256i load_strip(const uint8_t *samples)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)samples);
}

/* Filters a row in pairs of input rows. One instruction multiplies the bytes of both rows by their weights, and adds the
   products. Weights are at most 255 here, and the samples minus 128 are signed, so 16-bit sums cannot overflow. */
static inline __attribute__((always_inline)) void filter_row(
    const uint8_t *in, size_t stride, size_t width, const uint16_t *weight, int count, uint8_t *out)
{
    const __m256i sign = _mm256_set1_epi8(-128);
    for (size_t x = 0; x < width; x += STRIP) {
        __m256i low = _mm256_set1_epi16(BIAS), high = low;
        const uint8_t *sample = in + x;
        for (int k = 0; k < count; k += 2, sample += 2 * stride) {
            int is_last = k + 1 == count; /* its pair is the same row again, with a weight of 0 */
            __m256i weights = _mm256_set1_epi16((short)(weight[k] | (is_last ? 0 : weight[k + 1]) << 8));
            __m256i first = _mm256_xor_si256(load_strip(sample), sign);
            __m256i second = _mm256_xor_si256(load_strip(sample + (is_last ? 0 : stride)), sign);
            low = _mm256_add_epi16(low, _mm256_maddubs_epi16(weights, _mm256_unpacklo_epi8(first, second)));
            high = _mm256_add_epi16(high, _mm256_maddubs_epi16(weights, _mm256_unpackhi_epi8(first, second)));
        }
        __m256i row = _mm256_packus_epi16(_mm256_srli_epi16(low, 8), _mm256_srli_epi16(high, 8));
        _mm256_storeu_si256((__m256i *)(void *)(out + x), row);
    }
}

static void filter_vertically(
    const uint8_t *in, size_t stride, int in_row, size_t width, const Filter *filters, int rows, uint8_t *out)
{
    for (int y = 0; y < rows; y++, out += width) {
        const Filter *filter = &filters[y];
        const uint8_t *row = in + (size_t)(filter->first - in_row) * stride;
        int only = 0; /* the sample that has all of the weight, if there is one */
        while (only < filter->count && filter->weight[only] < 256)
            only++;
        if (only < filter->count)
            memcpy(out, row + (size_t)only * stride, width);
        else if (filter->count == 2) /* in most cases */
            filter_row(row, stride, width, filter->weight, 2, out);
        else
            filter_row(row, stride, width, filter->weight, filter->count, out);
    }
}

/* Returns the columns of the blocks `number` and `number` + 1 of a strip, in 16 bits. */
static inline __attribute__((always_inline)) __m256i filter_blocks(
    const uint8_t *row, const ColumnStrip *strip, int number, int pairs)
{
    const uint8_t *lower = row + strip->first[number], *upper = row + strip->first[number + 1];
    __m256i order = _mm256_loadu_si256((const __m256i *)(const void *)strip->order[number]);
    __m256i sum = _mm256_set1_epi16(BIAS);
    for (int k = 0; k < pairs; k++) {
        __m256i samples = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(lower + 2 * k))),
            _mm_loadu_si128((const __m128i *)(const void *)(upper + 2 * k)), 1);
        __m256i weights = _mm256_loadu_si256((const __m256i *)(const void *)strip->weight[k][number]);
        samples = _mm256_xor_si256(_mm256_shuffle_epi8(samples, order), _mm256_set1_epi8(-128));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, samples)); /* as in filter_row() */
    }
    return _mm256_srli_epi16(sum, 8);
}

static inline __attribute__((always_inline)) void filter_strips(
    const uint8_t *in, size_t stride, const ColumnStrip *strip, size_t strips, int pairs, int rows, uint8_t *out)
{
    for (int y = 0; y < rows; y++, in += stride)
        for (size_t i = 0; i < strips; i++, out += STRIP) {
            __m256i both = _mm256_packus_epi16(
                filter_blocks(in, &strip[i], 0, pairs), filter_blocks(in, &strip[i], 2, pairs));
            _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute4x64_epi64(both, 0xD8));
        }
}

static void filter_horizontally(
    const uint8_t *in, size_t stride, const ColumnStrip *strip, size_t strips, int pairs, int rows, uint8_t *out)
{
    if (pairs == 1) /* in most cases */
        filter_strips(in, stride, strip, strips, 1, rows, out);
    else if (pairs == 2)
        filter_strips(in, stride, strip, strips, 2, rows, out);
    else
        filter_strips(in, stride, strip, strips, pairs, rows, out);
}

/* Transposes two blocks of 16 x 16, one above the other, in the two halves of vectors. In each of four rounds the rows i
   and i + 8 are interleaved. */
static void transpose(const uint8_t *in, size_t width, size_t height, uint8_t *out)
{
    for (size_t y = 0; y < height; y += 32)
        for (size_t x = 0; x < width; x += 16) {
            __m256i row[16], next[16];
            for (size_t i = 0; i < 16; i++) {
                const uint8_t *upper = in + (y + i) * width + x, *lower = upper + 16 * width;
                row[i] = _mm256_inserti128_si256(
                    _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)upper)),
                    _mm_loadu_si128((const __m128i *)(const void *)lower), 1);
            }
            for (int round = 0; round < 4; round++) {
                for (size_t i = 0; i < 8; i++) {
                    next[2 * i] = _mm256_unpacklo_epi8(row[i], row[i + 8]);
                    next[2 * i + 1] = _mm256_unpackhi_epi8(row[i], row[i + 8]);
                }
                memcpy(row, next, sizeof row);
            }
            for (size_t i = 0; i < 16; i++)
                _mm256_storeu_si256((__m256i *)(void *)(out + (x + i) * height + y), row[i]);
        }
}

#else

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

#endif

static uint8_t clamp(int16_t value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* The factors are 1.402 = 1 + 103/256, 0.714 = 1 - 73/256, 0.344 = 88/256 and 1.772 = 2 - 58/256,
   rounded, so that 16-bit products do not overflow. */
static inline void pixels_to_rgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t start, size_t stop,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    for (size_t x = start; x < stop; x++) {
        int16_t luma = y[x], blue = (int16_t)(cb[x] - 128), red = (int16_t)(cr[x] - 128);
        int16_t more_red = (int16_t)((int16_t)(103 * red + 128) >> 8);
        int16_t more_green = (int16_t)((int16_t)(73 * red - 88 * blue + 128) >> 8);
        int16_t less_blue = (int16_t)((int16_t)(58 * blue + 127) >> 8);
        r[x] = clamp((int16_t)(luma + red + more_red));
        g[x] = clamp((int16_t)(luma - red + more_green));
        b[x] = clamp((int16_t)(luma + 2 * blue - less_blue));
    }
}

#if USE_AVX2

/* The same for 16 pixels in 16-bit integers, not clamped. mulhrs() returns (x * 128 * factor + 2^14) >> 15, which is
   (x * factor + 128) >> 8 in one instruction. */
static inline __attribute__((always_inline)) void convert_16(
    __m256i luma, __m256i blue, __m256i red, __m256i *r, __m256i *g, __m256i *b)
{
    blue = _mm256_sub_epi16(blue, _mm256_set1_epi16(128));
    red = _mm256_sub_epi16(red, _mm256_set1_epi16(128));
    __m256i more_red = _mm256_mulhrs_epi16(red, _mm256_set1_epi16(128 * 103));
    __m256i more_blue = _mm256_mulhrs_epi16(blue, _mm256_set1_epi16(128 * -58));
    __m256i more_green = _mm256_sub_epi16(
        _mm256_mullo_epi16(red, _mm256_set1_epi16(73)), _mm256_mullo_epi16(blue, _mm256_set1_epi16(88)));
    more_green = _mm256_srai_epi16(_mm256_add_epi16(more_green, _mm256_set1_epi16(128)), 8);
    *r = _mm256_add_epi16(_mm256_add_epi16(luma, red), more_red);
    *g = _mm256_add_epi16(_mm256_sub_epi16(luma, red), more_green);
    *b = _mm256_add_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(blue, blue)), more_blue);
}

static void row_to_rgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t width,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    const __m256i zero = _mm256_setzero_si256();
    size_t x = 0;
    for (; x + STRIP <= width; x += STRIP) {
        __m256i luma = load_strip(y + x), blue = load_strip(cb + x), red = load_strip(cr + x), low[3], high[3];
        convert_16(
            _mm256_unpacklo_epi8(luma, zero), _mm256_unpacklo_epi8(blue, zero), _mm256_unpacklo_epi8(red, zero),
            &low[0], &low[1], &low[2]);
        convert_16(
            _mm256_unpackhi_epi8(luma, zero), _mm256_unpackhi_epi8(blue, zero), _mm256_unpackhi_epi8(red, zero),
            &high[0], &high[1], &high[2]);
        _mm256_storeu_si256((__m256i *)(void *)(r + x), _mm256_packus_epi16(low[0], high[0])); /* clamps */
        _mm256_storeu_si256((__m256i *)(void *)(g + x), _mm256_packus_epi16(low[1], high[1]));
        _mm256_storeu_si256((__m256i *)(void *)(b + x), _mm256_packus_epi16(low[2], high[2]));
    }
    pixels_to_rgb(y, cb, cr, x, width, r, g, b);
}

#else

static void row_to_rgb(
    const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, size_t width,
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    pixels_to_rgb(y, cb, cr, 0, width, r, g, b);
}

#endif

static void row_to_planes(
    const uint8_t *restrict pixels, size_t count, uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b)
{
    for (size_t i = 0; i < count; i++) {
        r[i] = pixels[3 * i];
        g[i] = pixels[3 * i + 1];
        b[i] = pixels[3 * i + 2];
    }
}
