/* The loop of color.h. Compiled once for each instruction set (kernels.h). */
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
