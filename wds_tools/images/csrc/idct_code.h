/* The transforms of idct.h. Compiled once for each instruction set (kernels.h). */
#include "idct.h"

/* Constants have 13 fractional bits. The pass over the columns keeps two fractional bits. The pass
   over the rows removes these, and divides by 8 because each pass scales by sqrt(8). */
#define ONE 8192
#define COLUMN_PASS_SHIFT (13 - 2)
#define ROW_PASS_SHIFT (13 + 2 + 3)

/* Results of the pass over the columns are too large from here on: the sum of two of them may not fit into 16 bits. One
   of them is at least 4 times as large as the largest coefficient of its column, so this finds all coefficients from
   COEFFICIENT_LIMIT on. Those of samples with 8 bits are at most 1024, or 2048 after quantization. */
#define COLUMN_LIMIT (1 << 14)
#define COEFFICIENT_LIMIT (COLUMN_LIMIT / 4)

/* Returns -1 if a value is `limit` or -limit, or beyond them, and otherwise 0. `limit` is a power of two. */
static inline __attribute__((always_inline)) int check_values(const int16_t *values, int count, int limit)
{
    uint16_t sizes = 0;
    for (int i = 0; i < count; i++)
        sizes |= (uint16_t)(values[i] < 0 ? -values[i] : values[i]);
    return -((sizes & -limit) != 0);
}

static inline int32_t rounding_shift(uint32_t value, int shift)
{
    return (int32_t)(value + (1u << (shift - 1))) >> shift;
}

static inline int16_t saturate(int32_t value)
{
    return (int16_t)(value < INT16_MIN ? INT16_MIN : value > INT16_MAX ? INT16_MAX : value);
}

/* Level shift (A.3.1) and clamp to 0 to 255. */
static inline uint8_t to_sample(int32_t value)
{
    value += 128;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Returns the dequantized coefficient: the low 16 bits of the product, as with AVX2 below. */
static inline int16_t dequantize(const int16_t *block, const PairedQuantization *quantization, int row, int column)
{
    return (int16_t)((uint16_t)block[PAIRED_POSITION(row, column)] *
                     (uint32_t)(uint16_t)quantization->value[PAIRED_POSITION(row, column)]);
}

/* The factors of the eight coefficients of a row or column in each of the first half of its
   samples. For the mirrored sample of the second half, the factors of odd coefficients change their
   sign. The factors are those of T.81, A.3.3, as sums of the rounded constants of libjpeg. */
static const int32_t factors_2[1][BLOCK_SIDE] = {{4 * ONE, 29692, 0, -10426, 0, 6967, 0, -5906}};
static const int32_t factors_4[2][BLOCK_SIDE] = {
    {2 * ONE, 20995, 15137, 7373, 0, -4926, -6270, -4176},
    {2 * ONE, 8697, -15137, -17799, 0, 11893, 6270, -1730},
};
#if !USE_AVX2
static const int32_t factors_8[4][BLOCK_SIDE] = {
    {ONE, 11363, 10703, 9633, ONE, 6437, 4433, 2260},
    {ONE, 9633, 4433, -2259, -ONE, -11362, -10704, -6436},
    {ONE, 6437, -4433, -11362, -ONE, 2261, 10704, 9633},
    {ONE, 2260, -10703, -6436, ONE, 9633, -4433, -11363},
};
#endif

/* Transforms eight coefficients, `step` apart, to `size` values. */
static inline __attribute__((always_inline)) void transform_line(
    const int16_t *in, int step, const int32_t (*factors)[BLOCK_SIDE], int size, int shift, int32_t *out)
{
    for (int i = 0; i < (size + 1) / 2; i++) {
        uint32_t even = 0, odd = 0;
        for (int k = 0; k < BLOCK_SIDE; k += 2) {
            even += (uint32_t)in[k * step] * (uint32_t)factors[i][k];
            odd += (uint32_t)in[(k + 1) * step] * (uint32_t)factors[i][k + 1];
        }
        out[size - 1 - i] = rounding_shift(even - odd, shift);
        out[i] = rounding_shift(even + odd, shift);
    }
}

/* Transforms a block to size x size samples. The factors are scaled by 2^bits in each pass. Returns 0, or -1 if
   coefficients are too large. Factors of smaller sizes leave coefficients out, so these are checked separately. */
static inline __attribute__((always_inline)) int transform_block(
    const int16_t *block, const PairedQuantization *quantization, const int32_t (*factors)[BLOCK_SIDE], int size,
    int bits, uint8_t *out, size_t stride)
{
    int16_t in[BLOCK_SIZE], columns[BLOCK_SIZE] = {0};
    int32_t result[BLOCK_SIDE];
    for (int row = 0; row < BLOCK_SIDE; row++)
        for (int column = 0; column < BLOCK_SIDE; column++)
            in[row * BLOCK_SIDE + column] = dequantize(block, quantization, row, column);
    for (int column = 0; column < BLOCK_SIDE; column++) {
        transform_line(in + column, BLOCK_SIDE, factors, size, COLUMN_PASS_SHIFT + bits, result);
        for (int row = 0; row < size; row++)
            columns[row * BLOCK_SIDE + column] = saturate(result[row]);
    }
    for (int row = 0; row < size; row++, out += stride) {
        transform_line(columns + row * BLOCK_SIDE, 1, factors, size, ROW_PASS_SHIFT + bits, result);
        for (int column = 0; column < size; column++)
            out[column] = to_sample(result[column]);
    }
    int coefficients = size < BLOCK_SIDE ? check_values(in, BLOCK_SIZE, COEFFICIENT_LIMIT) : 0;
    return coefficients | check_values(columns, size * BLOCK_SIDE, COLUMN_LIMIT);
}

#if USE_AVX2

typedef __m256i Vector;

/* Two 16-bit constants, in each of eight pairs. */
#define PAIR(first, second) _mm256_set1_epi32((int)((uint32_t)(uint16_t)(second) << 16 | (uint16_t)(first)))

/* Transforms eight lines at once, one in each 32-bit lane. The arguments are the coefficients 0 and
   4, 2 and 6, 1 and 5, 3 and 7 of each line, as pairs. Writes one vector per sample to `out`. */
static inline __attribute__((always_inline)) void transform_lines(
    Vector c04, Vector c26, Vector c15, Vector c37, int shift, Vector *out)
{
    Vector half = _mm256_set1_epi32(1 << (shift - 1));
    Vector sum = _mm256_add_epi32(_mm256_madd_epi16(c04, PAIR(ONE, ONE)), half);
    Vector difference = _mm256_add_epi32(_mm256_madd_epi16(c04, PAIR(ONE, -ONE)), half);
    Vector outer = _mm256_madd_epi16(c26, PAIR(10703, 4433)), inner = _mm256_madd_epi16(c26, PAIR(4433, -10704));
    Vector even[4] = {_mm256_add_epi32(sum, outer), _mm256_add_epi32(difference, inner),
                      _mm256_sub_epi32(difference, inner), _mm256_sub_epi32(sum, outer)};
    Vector odd[4] = {
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

/* Returns the rows i and i + 4 in 16 bits, each with its columns in pairs: 0 and 4, 1 and 5, 2 and
   6, 3 and 7. */
static inline __attribute__((always_inline)) Vector pair_columns(Vector row, Vector row_plus_4)
{
    const Vector interleave = _mm256_setr_epi8(
        0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    Vector packed = _mm256_packs_epi32(row, row_plus_4);
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(packed, 0xD8), interleave);
}

static int transform_8x8(const int16_t *block, const PairedQuantization *quantization, uint8_t *out, size_t stride)
{
    Vector in[4], rows[8], paired[4], transposed[4], columns[8];
    for (int i = 0; i < 4; i++)
        in[i] = _mm256_mullo_epi16(
            _mm256_loadu_si256((const Vector *)(const void *)(block + 16 * i)),
            _mm256_loadu_si256((const Vector *)(const void *)(quantization->value + 16 * i)));
    transform_lines(in[0], in[1], in[2], in[3], COLUMN_PASS_SHIFT, rows);
    for (int i = 0; i < 4; i++)
        paired[i] = pair_columns(rows[i], rows[i + 4]);
    Vector sizes = _mm256_or_si256(
        _mm256_or_si256(_mm256_abs_epi16(paired[0]), _mm256_abs_epi16(paired[1])),
        _mm256_or_si256(_mm256_abs_epi16(paired[2]), _mm256_abs_epi16(paired[3])));
    Vector low01 = _mm256_unpacklo_epi32(paired[0], paired[1]), high01 = _mm256_unpackhi_epi32(paired[0], paired[1]);
    Vector low23 = _mm256_unpacklo_epi32(paired[2], paired[3]), high23 = _mm256_unpackhi_epi32(paired[2], paired[3]);
    transposed[0] = _mm256_unpacklo_epi64(low01, low23);   /* columns 0 and 4, of the rows 0 to 3 and 4 to 7 */
    transposed[1] = _mm256_unpackhi_epi64(low01, low23);   /* columns 1 and 5 */
    transposed[2] = _mm256_unpacklo_epi64(high01, high23); /* columns 2 and 6 */
    transposed[3] = _mm256_unpackhi_epi64(high01, high23); /* columns 3 and 7 */
    transform_lines(transposed[0], transposed[2], transposed[1], transposed[3], ROW_PASS_SHIFT, columns);
    const Vector to_rows = _mm256_setr_epi8(
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    Vector left = _mm256_packs_epi16(
        _mm256_packs_epi32(columns[0], columns[1]), _mm256_packs_epi32(columns[2], columns[3]));
    Vector right = _mm256_packs_epi16(
        _mm256_packs_epi32(columns[4], columns[5]), _mm256_packs_epi32(columns[6], columns[7]));
    left = _mm256_shuffle_epi8(_mm256_xor_si256(left, _mm256_set1_epi8(-128)), to_rows);
    right = _mm256_shuffle_epi8(_mm256_xor_si256(right, _mm256_set1_epi8(-128)), to_rows);
    Vector half[2] = {_mm256_unpacklo_epi32(left, right), _mm256_unpackhi_epi32(left, right)};
    for (int i = 0; i < 2; i++) {
        __m128i upper = _mm256_castsi256_si128(half[i]), lower = _mm256_extracti128_si256(half[i], 1);
        _mm_storel_epi64((__m128i *)(void *)(out + (size_t)(2 * i) * stride), upper);
        _mm_storeh_pd((double *)(void *)(out + (size_t)(2 * i + 1) * stride), _mm_castsi128_pd(upper));
        _mm_storel_epi64((__m128i *)(void *)(out + (size_t)(4 + 2 * i) * stride), lower);
        _mm_storeh_pd((double *)(void *)(out + (size_t)(5 + 2 * i) * stride), _mm_castsi128_pd(lower));
    }
    return -!_mm256_testz_si256(sizes, _mm256_set1_epi16(-COLUMN_LIMIT)); /* as in check_values() */
}

#else

static int transform_8x8(const int16_t *block, const PairedQuantization *quantization, uint8_t *out, size_t stride)
{
    return transform_block(block, quantization, factors_8, BLOCK_SIDE, 0, out, stride);
}

#endif

/* Transforms a block that has only a DC coefficient: all samples are equal. */
static int fill_block(
    const int16_t *block, const PairedQuantization *quantization, int size, uint8_t *out, size_t stride)
{
    int16_t value = dequantize(block, quantization, 0, 0);
    int sample = to_sample(rounding_shift((uint32_t)(int32_t)value, 3));
    uint64_t samples = (uint64_t)sample * 0x0101010101010101u;
    for (int row = 0; row < size; row++, out += stride)
        if (size == BLOCK_SIDE)
            memcpy(out, &samples, BLOCK_SIDE); /* one instruction, not a call */
        else
            memset(out, sample, (size_t)size);
    return check_values(&value, 1, COEFFICIENT_LIMIT);
}

/* Transforms a block to a single sample, its mean. */
static int average_block(const int16_t *block, const PairedQuantization *quantization, uint8_t *out)
{
    int16_t coefficients[BLOCK_SIZE];
    for (int i = 0; i < BLOCK_SIZE; i++)
        coefficients[i] = (int16_t)((uint16_t)block[i] * (uint32_t)(uint16_t)quantization->value[i]);
    return fill_block(block, quantization, 1, out, 1) | check_values(coefficients, BLOCK_SIZE, COEFFICIENT_LIMIT);
}

static int inverse_dct(
    const int16_t *block, int last_index, const PairedQuantization *quantization, int size, uint8_t *out,
    size_t stride)
{
    if (last_index == 0)
        return fill_block(block, quantization, size, out, stride);
    if (size == 1)
        return average_block(block, quantization, out);
    if (size == BLOCK_SIDE)
        return transform_8x8(block, quantization, out, stride);
    if (size == 4)
        return transform_block(block, quantization, factors_4, 4, 1, out, stride);
    return transform_block(block, quantization, factors_2, 2, 2, out, stride);
}
