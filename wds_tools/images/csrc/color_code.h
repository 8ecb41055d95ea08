/* The loops of color.h. Compiled once for each instruction set (kernels.h). */
#include "color.h"

#define COLOR_BLOCK 256 /* pixels whose intermediate values stay in the cache */

/* The circle of hues has 2^16 units, so that 16-bit sums wrap around once around it: red is at 0, green after two
   sectors of six, blue before two. */
#define SECTOR (65536 / 6.0f)
#define TWO_SECTORS 21845

/* Pixels by hue, value and chroma, which is the largest of red, green and blue minus the smallest one. */
typedef struct {
    uint8_t high[COLOR_BLOCK], chroma[COLOR_BLOCK];
    int16_t sextant[COLOR_BLOCK];     /* the position of the hue, times chroma, from -1 to 1 around that of `high` */
    int16_t hue[COLOR_BLOCK];         /* at first that of the colour with the value `high` */
    uint16_t new_low[COLOR_BLOCK];    /* the smallest of red, green and blue, with 7 fractional bits, and a half */
    uint16_t new_chroma[COLOR_BLOCK]; /* with 8 fractional bits */
} ColorBlock;

static inline float at_most(float x, float y)
{
    return x < y ? x : y;
}

/* All alternatives are computed, and one is selected, so that the compiler can vectorise. */
static inline void split_colors(
    const uint8_t *r, const uint8_t *g, const uint8_t *b, size_t count, int16_t shift, ColorBlock *block)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t high = r[i] > g[i] ? r[i] : g[i], low = r[i] > g[i] ? g[i] : r[i];
        high = high > b[i] ? high : b[i];
        low = low < b[i] ? low : b[i];
        block->high[i] = high;
        block->chroma[i] = (uint8_t)(high - low);
    }
    for (size_t i = 0; i < count; i++) {
        int16_t red = r[i], green = g[i], blue = b[i], high = block->high[i];
        block->sextant[i] = (int16_t)(high == red ? green - blue : high == green ? blue - red : red - green);
        block->hue[i] = (int16_t)(shift + (high == red ? 0 : high == green ? TWO_SECTORS : -TWO_SECTORS));
    }
}

/* Divides and multiplies in floating point, and adds in integers where it can. GCC vectorises the minima only with
   -fno-trapping-math: ten times as fast. With -ffp-contract=off the results are the same on all processors, also where
   one instruction multiplies and adds (pyproject.toml). */
static inline void scale_colors(ColorBlock *block, size_t count, float saturation_gain, float value_gain)
{
    for (size_t i = 0; i < count; i++) {
        float high = block->high[i], chroma = block->chroma[i], divisor = chroma > 1 ? chroma : 1;
        float value = at_most(high * (128 * value_gain), 128 * 255);
        float saturation = at_most(chroma / (high > 1 ? high : 1) * saturation_gain, 1);
        int turn = (int)((float)block->sextant[i] * (SECTOR / divisor) + 32768.5f) - 32768; /* rounds */
        chroma = value * saturation;
        block->hue[i] = (int16_t)(block->hue[i] + (int16_t)turn);
        block->new_chroma[i] = (uint16_t)(int)(2 * chroma + 0.5f);
        block->new_low[i] = (uint16_t)(int)(value - chroma + 65);
    }
}

/* Computes the samples of one colour, whose hue is `peak`: all of the chroma up to one sector from it, and none from two
   sectors on. */
static inline void merge_color(const ColorBlock *block, size_t count, int16_t peak, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        int16_t after = (int16_t)(block->hue[i] - peak), before = (int16_t)(peak - block->hue[i]);
        int16_t share = (int16_t)(TWO_SECTORS - (after > before ? after : before));
        share = share < 0 ? 0 : share;
        share = share > (TWO_SECTORS + 1) / 2 ? (TWO_SECTORS + 1) / 2 : share;
        uint16_t chroma = (uint16_t)((uint32_t)block->new_chroma[i] * (uint16_t)(3 * share) >> 16);
        out[i] = (uint8_t)((uint16_t)(block->new_low[i] + chroma) >> 7);
    }
}

/* In 16-bit integers as far as possible, as twice as many of them as of floating-point numbers are computed at once. The
   loops are separate, as the compiler mixes sizes of numbers badly. The result differs by less than 0.54 from the exact
   one, of which 0.5 are rounding. */
static void change_hsv(
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t count, const HsvChange *change)
{
    int16_t shift = (int16_t)((int)(65536 * (change->hue + 1) + 0.5f) - 65536);
    ColorBlock block;
    for (size_t start = 0; start < count; start += COLOR_BLOCK) {
        size_t size = count - start < COLOR_BLOCK ? count - start : COLOR_BLOCK;
        split_colors(r + start, g + start, b + start, size, shift, &block);
        scale_colors(&block, size, change->saturation, change->value);
        merge_color(&block, size, 0, r + start);
        merge_color(&block, size, TWO_SECTORS, g + start);
        merge_color(&block, size, -TWO_SECTORS, b + start);
    }
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
