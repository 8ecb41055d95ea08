/* The loops of color.h. Compiled once for each instruction set (kernels.h). */
#include "color.h"

#include <string.h>

#define COLOR_STRIP 32 /* pixels whose colours are changed together */

#define FACTOR_BITS 14 /* fractional bits of factors, which are less than 4 */
#define VALUE_BITS 6   /* fractional bits of values */
#define FULL_VALUE (255 << VALUE_BITS)

/* A change of colours as numbers for integer arithmetic. */
typedef struct {
    int16_t turn[3]; /* of the hue, plus 0, 2 and -2 sixths of the circle: -3 to 3 sixths, with 13 fractional bits */
    uint16_t saturation, value, gain; /* both factors, and their product, with FACTOR_BITS */
    float inverse;                    /* of the factor of the saturation */
} HsvTerms;

static inline uint16_t to_factor(float x)
{
    float factor = x * (1 << FACTOR_BITS) + 0.5f;
    return (uint16_t)(int)(factor < 65535 ? factor : 65535);
}

static inline HsvTerms hsv_terms(const HsvChange *change)
{
    HsvTerms terms = {
        .saturation = to_factor(change->saturation),
        .value = to_factor(change->value),
        .gain = to_factor(change->saturation * change->value),
        .inverse = 1 / (change->saturation > 1e-6f ? change->saturation : 1e-6f)};
    for (int i = 0; i < 3; i++) {
        float turn = 6 * change->hue + (float)(i == 2 ? -2 : 2 * i);
        turn = turn > 3 ? turn - 6 : turn < -3 ? turn + 6 : turn;
        terms.turn[i] = (int16_t)((int)(8192 * turn + 32768.5f) - 32768); /* rounds */
    }
    return terms;
}

/* Let `high` and `low` be the largest and the smallest of the three colours of a pixel, and chroma their difference;
   `after` and `before` are the colours that follow the largest one on the circle of hues red, green, blue. Then a colour
   becomes

       new value - gain * clamp(distance - chroma, 0, chroma),   distance = |turn * chroma + after - before|

   where `turn` is terms.turn[0] for the largest colour, [1] for the one before it and [2] for the one after it. Nothing
   is divided by the chroma. The gain is the product of both factors. Only where value or saturation would become too
   large, it is the new value divided by the larger one of high / saturation and chroma. The result differs by less than
   0.6 from the exact one, of which 0.5 are rounding. */
#if USE_AVX2

static inline __m256i load_colors(const uint8_t *colors)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)colors);
}

static inline __m256i select_colors(__m256i otherwise, __m256i colors, __m256i mask)
{
    return _mm256_blendv_epi8(otherwise, colors, mask);
}

/* Returns the gains of eight pixels where they are not that of the change. */
static inline __attribute__((always_inline)) __m256i divide_gains(
    __m256i value, __m256i high, __m256i chroma, float inverse)
{
    __m256 divisor = _mm256_max_ps(
        _mm256_mul_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(inverse)), _mm256_cvtepi32_ps(chroma));
    __m256 dividend = _mm256_cvtepi32_ps(_mm256_slli_epi32(value, FACTOR_BITS - VALUE_BITS));
    __m256 gain = _mm256_div_ps(dividend, _mm256_max_ps(divisor, _mm256_set1_ps(0.25f)));
    return _mm256_cvttps_epi32(_mm256_add_ps(gain, _mm256_set1_ps(0.5f)));
}

/* Returns the gains of 16 pixels; high and chroma have 8 fractional bits. Few pixels need a division. */
static inline __attribute__((always_inline)) __m256i find_gains(
    __m256i value, __m256i high, __m256i chroma, __m256i is_clamped, const HsvTerms *terms)
{
    const __m256i zero = _mm256_setzero_si256(), gain = _mm256_set1_epi16((short)terms->gain);
    if (_mm256_testz_si256(is_clamped, is_clamped))
        return gain;
    high = _mm256_srli_epi16(high, 8);
    chroma = _mm256_srli_epi16(chroma, 8);
    __m256i divided = _mm256_packus_epi32(
        divide_gains(
            _mm256_unpacklo_epi16(value, zero), _mm256_unpacklo_epi16(high, zero), _mm256_unpacklo_epi16(chroma, zero),
            terms->inverse),
        divide_gains(
            _mm256_unpackhi_epi16(value, zero), _mm256_unpackhi_epi16(high, zero), _mm256_unpackhi_epi16(chroma, zero),
            terms->inverse));
    return select_colors(gain, divided, is_clamped);
}

/* Computes the three colours of 16 pixels that are at the angles `turn` from the largest one. High and chroma have 8
   fractional bits, `next` is what comes after the largest one minus what comes before it. */
static inline __attribute__((always_inline)) void turn_colors(
    __m256i high, __m256i chroma, __m256i next, const HsvTerms *terms, __m256i *out)
{
    __m256i value = _mm256_mulhi_epu16(high, _mm256_set1_epi16((short)terms->value));
    __m256i saturated = _mm256_mulhi_epu16(chroma, _mm256_set1_epi16((short)terms->saturation));
    __m256i is_bright = _mm256_andnot_si256(
        _mm256_cmpeq_epi16(chroma, _mm256_setzero_si256()), _mm256_cmpgt_epi16(value, _mm256_set1_epi16(FULL_VALUE)));
    __m256i is_clamped = _mm256_or_si256(is_bright, _mm256_cmpgt_epi16(saturated, _mm256_srli_epi16(high, 2)));
    value = _mm256_min_epi16(value, _mm256_set1_epi16(FULL_VALUE));
    __m256i gain = find_gains(value, high, chroma, is_clamped, terms);
    __m256i half = _mm256_srli_epi16(chroma, 1), most = _mm256_srli_epi16(chroma, 3);
    next = _mm256_slli_epi16(next, 5);
    value = _mm256_add_epi16(value, _mm256_set1_epi16(1 << (VALUE_BITS - 1)));
    for (int i = 0; i < 3; i++) {
        __m256i turned = _mm256_mulhrs_epi16(half, _mm256_set1_epi16(terms->turn[i]));
        __m256i distance = _mm256_abs_epi16(_mm256_add_epi16(turned, next));
        __m256i less = _mm256_slli_epi16(_mm256_min_epi16(_mm256_subs_epu16(distance, most), most), 3);
        out[i] = _mm256_srli_epi16(_mm256_sub_epi16(value, _mm256_mulhi_epu16(less, gain)), VALUE_BITS);
    }
}

static inline __attribute__((always_inline)) void change_strip(
    uint8_t *red_out, uint8_t *green_out, uint8_t *blue_out, const HsvTerms *terms)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i red = load_colors(red_out), green = load_colors(green_out), blue = load_colors(blue_out);
    __m256i high = _mm256_max_epu8(_mm256_max_epu8(red, green), blue);
    __m256i chroma = _mm256_sub_epi8(high, _mm256_min_epu8(_mm256_min_epu8(red, green), blue));
    __m256i is_red = _mm256_cmpeq_epi8(high, red);
    __m256i is_green = _mm256_andnot_si256(is_red, _mm256_cmpeq_epi8(high, green));
    __m256i after = select_colors(select_colors(red, blue, is_green), green, is_red);
    __m256i before = select_colors(select_colors(green, red, is_green), blue, is_red);
    __m256i low[3], upper[3], turned[3];
    turn_colors(
        _mm256_unpacklo_epi8(zero, high), _mm256_unpacklo_epi8(zero, chroma),
        _mm256_sub_epi16(_mm256_unpacklo_epi8(after, zero), _mm256_unpacklo_epi8(before, zero)), terms, low);
    turn_colors(
        _mm256_unpackhi_epi8(zero, high), _mm256_unpackhi_epi8(zero, chroma),
        _mm256_sub_epi16(_mm256_unpackhi_epi8(after, zero), _mm256_unpackhi_epi8(before, zero)), terms, upper);
    for (int i = 0; i < 3; i++)
        turned[i] = _mm256_packus_epi16(low[i], upper[i]);
    red = select_colors(select_colors(turned[2], turned[1], is_green), turned[0], is_red);
    green = select_colors(select_colors(turned[1], turned[0], is_green), turned[2], is_red);
    blue = select_colors(select_colors(turned[0], turned[2], is_green), turned[1], is_red);
    _mm256_storeu_si256((__m256i *)(void *)red_out, red);
    _mm256_storeu_si256((__m256i *)(void *)green_out, green);
    _mm256_storeu_si256((__m256i *)(void *)blue_out, blue);
}

#else

/* The same, in loops over numbers of one size, as the compiler vectorises these. All alternatives are computed, and one
   is selected. */
static inline __attribute__((always_inline)) void change_strip(
    uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue, const HsvTerms *terms)
{
    uint8_t high[COLOR_STRIP], chroma[COLOR_STRIP], turned[3][COLOR_STRIP];
    int16_t next[COLOR_STRIP];
    uint16_t value[COLOR_STRIP], gain[COLOR_STRIP], are_clamped = 0;
    for (size_t i = 0; i < COLOR_STRIP; i++) {
        uint8_t larger = red[i] > green[i] ? red[i] : green[i], smaller = red[i] > green[i] ? green[i] : red[i];
        larger = larger > blue[i] ? larger : blue[i];
        smaller = smaller < blue[i] ? smaller : blue[i];
        high[i] = larger;
        chroma[i] = (uint8_t)(larger - smaller);
    }
    for (size_t i = 0; i < COLOR_STRIP; i++) {
        int16_t r = red[i], g = green[i], b = blue[i];
        next[i] = (int16_t)(high[i] == r ? g - b : high[i] == g ? b - r : r - g);
    }
    for (size_t i = 0; i < COLOR_STRIP; i++) {
        uint16_t new_value = (uint16_t)((uint32_t)(uint16_t)(high[i] << 8) * terms->value >> 16);
        uint16_t saturated = (uint16_t)((uint32_t)(uint16_t)(chroma[i] << 8) * terms->saturation >> 16);
        uint16_t is_clamped = (uint16_t)(((new_value > FULL_VALUE) & (chroma[i] > 0)) | (saturated > high[i] << 6));
        value[i] = new_value < FULL_VALUE ? new_value : FULL_VALUE;
        gain[i] = is_clamped ? 0xFFFF : 0;
        are_clamped |= is_clamped;
    }
    for (size_t i = 0; i < COLOR_STRIP && !are_clamped; i++)
        gain[i] = terms->gain;
    for (size_t i = 0; i < COLOR_STRIP && are_clamped; i++) {
        float share = (float)high[i] * terms->inverse, divisor = share > (float)chroma[i] ? share : (float)chroma[i];
        int divided = (int)((float)((int)value[i] << (FACTOR_BITS - VALUE_BITS)) / (divisor > 0.25f ? divisor : 0.25f) + 0.5f);
        gain[i] = gain[i] ? (uint16_t)(divided < 0xFFFF ? divided : 0xFFFF) : terms->gain;
    }
    for (int turn = 0; turn < 3; turn++)
        for (size_t i = 0; i < COLOR_STRIP; i++) {
            int16_t most = (int16_t)(chroma[i] << 5);
            int16_t distance = (int16_t)((((chroma[i] << 7) * terms->turn[turn] + (1 << 14)) >> 15) + (next[i] << 5));
            int16_t less = (int16_t)((distance < 0 ? -distance : distance) - most);
            less = less < 0 ? 0 : less < most ? less : most;
            uint16_t lost = (uint16_t)((uint32_t)(uint16_t)(less << 3) * gain[i] >> 16);
            turned[turn][i] = (uint8_t)((uint16_t)(value[i] + (1 << (VALUE_BITS - 1)) - lost) >> VALUE_BITS);
        }
    for (size_t i = 0; i < COLOR_STRIP; i++) {
        uint8_t is_red = high[i] == red[i], is_green = high[i] == green[i];
        red[i] = is_red ? turned[0][i] : is_green ? turned[1][i] : turned[2][i];
        green[i] = is_red ? turned[2][i] : is_green ? turned[0][i] : turned[1][i];
        blue[i] = is_red ? turned[1][i] : is_green ? turned[2][i] : turned[0][i];
    }
}

#endif

static void change_hsv(
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t count, const HsvChange *change)
{
    const HsvTerms terms = hsv_terms(change);
    size_t start = 0, rest = count % COLOR_STRIP;
    for (; start + COLOR_STRIP <= count; start += COLOR_STRIP)
        change_strip(r + start, g + start, b + start, &terms);
    uint8_t last[3][COLOR_STRIP] = {{0}};
    memcpy(last[0], r + start, rest);
    memcpy(last[1], g + start, rest);
    memcpy(last[2], b + start, rest);
    change_strip(last[0], last[1], last[2], &terms);
    memcpy(r + start, last[0], rest);
    memcpy(g + start, last[1], rest);
    memcpy(b + start, last[2], rest);
}

#define GREY_BLOCK 65536 /* pixels whose greys have a sum of less than 2^32 */

static inline int grey_of(float red, float green, float blue)
{
    return (int)(0.2989f * red + 0.587f * green + 0.114f * blue);
}

static inline uint8_t clamp_byte(float x)
{
    x = x < 0 ? 0 : x;
    return (uint8_t)(int)(x > 255 ? 255 : x);
}

static uint64_t blend_colors(
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t count, const Blend *blend)
{
    const float gain = blend->gain, offset = blend->offset, share = blend->grey;
    uint64_t sum = 0;
    for (size_t start = 0; start < count; start += GREY_BLOCK) {
        size_t stop = count - start < GREY_BLOCK ? count : start + GREY_BLOCK;
        uint32_t greys = 0;
        for (size_t i = start; i < stop; i++) {
            float red = r[i], green = g[i], blue = b[i], base = offset + share * (float)grey_of(red, green, blue);
            uint8_t new_red = clamp_byte(gain * red + base), new_green = clamp_byte(gain * green + base);
            uint8_t new_blue = clamp_byte(gain * blue + base);
            greys += (uint32_t)grey_of(new_red, new_green, new_blue);
            r[i] = new_red;
            g[i] = new_green;
            b[i] = new_blue;
        }
        sum += greys;
    }
    return sum;
}
