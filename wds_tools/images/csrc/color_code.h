/* The loops of color.h. Compiled once for each instruction set (kernels.h). */
#include "color.h"

static inline float clamp_unit(float x)
{
    x = x < 0 ? 0 : x;
    return x > 1 ? 1 : x;
}

static inline float distance(float x, float y)
{
    return x < y ? y - x : x - y;
}

/* Hue is 0 to 6: red at 0, green at 2, blue at 4. All alternatives are computed, and one is selected, so that the
   compiler can vectorise. GCC does so only with -fno-trapping-math (pyproject.toml): ten times as fast. */
static void change_hsv(
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t count, const HsvChange *change)
{
    const float shift = 6 * change->hue, saturation_gain = change->saturation, value_gain = change->value;
    for (size_t i = 0; i < count; i++) {
        float red = r[i], green = g[i], blue = b[i];
        float high = red > green ? red : green, low = red > green ? green : red;
        high = high > blue ? high : blue;
        low = low < blue ? low : blue;
        float chroma = high - low, reciprocal = 1 / (chroma > 0 ? chroma : 1);
        float if_red = (green - blue) * reciprocal, if_green = 2 + (blue - red) * reciprocal;
        float if_blue = 4 + (red - green) * reciprocal;
        float hue = (high == red ? if_red : high == green ? if_green : if_blue) + shift;
        hue = hue < 0 ? hue + 6 : hue;
        hue = hue >= 6 ? hue - 6 : hue;
        float value = high * value_gain, saturation = chroma / (high > 0 ? high : 1) * saturation_gain;
        value = value > 255 ? 255 : value;
        chroma = value * (saturation > 1 ? 1 : saturation);
        low = value - chroma + 0.5f; /* rounds */
        r[i] = (uint8_t)(int)(low + chroma * clamp_unit(distance(hue, 3) - 1));
        g[i] = (uint8_t)(int)(low + chroma * clamp_unit(2 - distance(hue, 2)));
        b[i] = (uint8_t)(int)(low + chroma * clamp_unit(2 - distance(hue, 4)));
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
