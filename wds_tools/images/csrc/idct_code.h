/* The transform of idct.h: compiled once for each kind of processor (kernels.h). */
#include "idct.h"

/* Constants are 1/8192. A pass over the columns leaves two bits of the fraction; that over the
   rows takes them away, and three more, because each pass makes numbers larger by the square
   root of 8. */
#define ONE 8192
#define AFTER_COLUMNS (13 - 2)
#define AFTER_ROWS (13 + 2 + 3)

static inline int32_t rounded(uint32_t value, int shift)
{
    return (int32_t)(value + (1u << (shift - 1))) >> shift;
}

static inline int16_t saturated(int32_t value)
{
    return (int16_t)(value < INT16_MIN ? INT16_MIN : value > INT16_MAX ? INT16_MAX : value);
}

static inline uint8_t sample_of(int32_t value)
{
    value += 128;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Coefficients are products of 16 bits, as in the vectors below. */
static inline int16_t scaled(const int16_t *block, const Quantization *by, int row, int column)
{
    return (int16_t)((uint16_t)block[PLACE(row, column)] * (uint32_t)(uint16_t)by->at[PLACE(row, column)]);
}

/* What the coefficients of a row or column add to its first samples. In the sample that mirrors
   one of them, those of odd number count with the other sign. Constants of T.81, A.3.3, sums of
   those that libjpeg rounds. */
static const int32_t to_two_samples[1][SIDE] = {{4 * ONE, 29692, 0, -10426, 0, 6967, 0, -5906}};
static const int32_t to_four_samples[2][SIDE] = {
    {2 * ONE, 20995, 15137, 7373, 0, -4926, -6270, -4176},
    {2 * ONE, 8697, -15137, -17799, 0, 11893, 6270, -1730},
};
#if !USE_AVX2
static const int32_t to_eight_samples[4][SIDE] = {
    {ONE, 11363, 10703, 9633, ONE, 6437, 4433, 2260},
    {ONE, 9633, 4433, -2259, -ONE, -11362, -10704, -6436},
    {ONE, 6437, -4433, -11362, -ONE, 2261, 10704, 9633},
    {ONE, 2260, -10703, -6436, ONE, 9633, -4433, -11363},
};
#endif

/* Transforms eight coefficients, `step` apart, into `side` numbers. */
static inline __attribute__((always_inline)) void transform(
    const int16_t *in, int step, const int32_t (*to)[SIDE], int side, int shift, int32_t *out)
{
    for (int i = 0; i < (side + 1) / 2; i++) {
        uint32_t even = 0, odd = 0;
        for (int k = 0; k < SIDE; k += 2) {
            even += (uint32_t)in[k * step] * (uint32_t)to[i][k];
            odd += (uint32_t)in[(k + 1) * step] * (uint32_t)to[i][k + 1];
        }
        out[side - 1 - i] = rounded(even - odd, shift);
        out[i] = rounded(even + odd, shift);
    }
}

static inline __attribute__((always_inline)) void transform_block(
    const int16_t *block, const Quantization *by, const int32_t (*to)[SIDE], int side, int bits, uint8_t *out,
    size_t stride)
{
    int16_t in[BLOCK], between[SIDE * SIDE] = {0};
    int32_t result[SIDE];
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++)
            in[row * SIDE + column] = scaled(block, by, row, column);
    for (int column = 0; column < SIDE; column++) {
        transform(in + column, SIDE, to, side, AFTER_COLUMNS + bits, result);
        for (int row = 0; row < side; row++)
            between[row * SIDE + column] = saturated(result[row]);
    }
    for (int row = 0; row < side; row++, out += stride) {
        transform(between + row * SIDE, 1, to, side, AFTER_ROWS + bits, result);
        for (int column = 0; column < side; column++)
            out[column] = sample_of(result[column]);
    }
}

#if USE_AVX2

typedef __m256i V;

/* Two 16-bit constants, in each of eight pairs. */
#define PAIR(first, second) _mm256_set1_epi32((int)((uint32_t)(uint16_t)(second) << 16 | (uint16_t)(first)))

/* A pass: eight lanes, each with eight coefficients in pairs, become eight vectors, of a sample
   each. */
static inline __attribute__((always_inline)) void pass(V c04, V c26, V c15, V c37, int shift, V *out)
{
    V half = _mm256_set1_epi32(1 << (shift - 1));
    V sum = _mm256_add_epi32(_mm256_madd_epi16(c04, PAIR(ONE, ONE)), half);
    V difference = _mm256_add_epi32(_mm256_madd_epi16(c04, PAIR(ONE, -ONE)), half);
    V outer = _mm256_madd_epi16(c26, PAIR(10703, 4433)), inner = _mm256_madd_epi16(c26, PAIR(4433, -10704));
    V even[4] = {_mm256_add_epi32(sum, outer), _mm256_add_epi32(difference, inner),
                 _mm256_sub_epi32(difference, inner), _mm256_sub_epi32(sum, outer)};
    V odd[4] = {
        _mm256_add_epi32(_mm256_madd_epi16(c15, PAIR(11363, 6437)), _mm256_madd_epi16(c37, PAIR(9633, 2260))),
        _mm256_add_epi32(_mm256_madd_epi16(c15, PAIR(9633, -11362)), _mm256_madd_epi16(c37, PAIR(-2259, -6436))),
        _mm256_add_epi32(_mm256_madd_epi16(c15, PAIR(6437, 2261)), _mm256_madd_epi16(c37, PAIR(-11362, 9633))),
        _mm256_add_epi32(_mm256_madd_epi16(c15, PAIR(2260, 9633)), _mm256_madd_epi16(c37, PAIR(-6436, -11363))),
    };
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_srai_epi32(_mm256_add_epi32(even[i], odd[i]), shift);
        out[7 - i] = _mm256_srai_epi32(_mm256_sub_epi32(even[i], odd[i]), shift);
    }
}

/* Rows i and i + 4, each as pairs of columns: 0 with 4, 1 with 5, 2 with 6, 3 with 7. */
static inline __attribute__((always_inline)) V pairs_of(V row, V row_4_below)
{
    const V interleave = _mm256_setr_epi8(
        0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    V packed = _mm256_packs_epi32(row, row_4_below);
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(packed, 0xD8), interleave);
}

static void transform_vectors(const int16_t *block, const Quantization *by, uint8_t *out, size_t stride)
{
    V in[4], rows[8], between[4], turned[4], columns[8];
    for (int i = 0; i < 4; i++)
        in[i] = _mm256_mullo_epi16(
            _mm256_loadu_si256((const V *)(const void *)(block + 16 * i)),
            _mm256_loadu_si256((const V *)(const void *)(by->at + 16 * i)));
    pass(in[0], in[1], in[2], in[3], AFTER_COLUMNS, rows);
    for (int i = 0; i < 4; i++)
        between[i] = pairs_of(rows[i], rows[i + 4]);
    V low01 = _mm256_unpacklo_epi32(between[0], between[1]), high01 = _mm256_unpackhi_epi32(between[0], between[1]);
    V low23 = _mm256_unpacklo_epi32(between[2], between[3]), high23 = _mm256_unpackhi_epi32(between[2], between[3]);
    turned[0] = _mm256_unpacklo_epi64(low01, low23);   /* columns 0 and 4 of the rows 0 to 3 and 4 to 7 */
    turned[1] = _mm256_unpackhi_epi64(low01, low23);   /* 1 and 5 */
    turned[2] = _mm256_unpacklo_epi64(high01, high23); /* 2 and 6 */
    turned[3] = _mm256_unpackhi_epi64(high01, high23); /* 3 and 7 */
    pass(turned[0], turned[2], turned[1], turned[3], AFTER_ROWS, columns);
    const V by_rows = _mm256_setr_epi8(
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    V left = _mm256_packs_epi16(
        _mm256_packs_epi32(columns[0], columns[1]), _mm256_packs_epi32(columns[2], columns[3]));
    V right = _mm256_packs_epi16(
        _mm256_packs_epi32(columns[4], columns[5]), _mm256_packs_epi32(columns[6], columns[7]));
    left = _mm256_shuffle_epi8(_mm256_xor_si256(left, _mm256_set1_epi8(-128)), by_rows);
    right = _mm256_shuffle_epi8(_mm256_xor_si256(right, _mm256_set1_epi8(-128)), by_rows);
    V half[2] = {_mm256_unpacklo_epi32(left, right), _mm256_unpackhi_epi32(left, right)};
    for (int i = 0; i < 2; i++) {
        __m128i upper = _mm256_castsi256_si128(half[i]), lower = _mm256_extracti128_si256(half[i], 1);
        _mm_storel_epi64((__m128i *)(void *)(out + (size_t)(2 * i) * stride), upper);
        _mm_storeh_pd((double *)(void *)(out + (size_t)(2 * i + 1) * stride), _mm_castsi128_pd(upper));
        _mm_storel_epi64((__m128i *)(void *)(out + (size_t)(4 + 2 * i) * stride), lower);
        _mm_storeh_pd((double *)(void *)(out + (size_t)(5 + 2 * i) * stride), _mm_castsi128_pd(lower));
    }
}

#else

static void transform_vectors(const int16_t *block, const Quantization *by, uint8_t *out, size_t stride)
{
    transform_block(block, by, to_eight_samples, SIDE, 0, out, stride);
}

#endif

/* All samples of a block that has no coefficient but the first are alike. */
static void fill_block(const int16_t *block, const Quantization *by, int side, uint8_t *out, size_t stride)
{
    int sample = sample_of(rounded((uint32_t)(int32_t)scaled(block, by, 0, 0), 3));
    for (int row = 0; row < side; row++, out += stride)
        memset(out, sample, (size_t)side);
}

static void inverse_dct(const int16_t *block, int last, const Quantization *by, int side, uint8_t *out, size_t stride)
{
    if (last == 0 || side == 1)
        fill_block(block, by, side, out, stride);
    else if (side == SIDE)
        transform_vectors(block, by, out, stride);
    else if (side == 4)
        transform_block(block, by, to_four_samples, 4, 1, out, stride);
    else
        transform_block(block, by, to_two_samples, 2, 2, out, stride);
}
