/* Changes of the colours of images that are stored as planes. */
#ifndef WDS_TOOLS_COLOR_H
#define WDS_TOOLS_COLOR_H

#include <stddef.h>
#include <stdint.h>

/* How colours change: the hue by `hue` times once around its circle, from -0.5 to 0.5; the saturation and the value by
   a factor from 0 to 2, up to full saturation and value. */
typedef struct {
    float hue, saturation, value;
} HsvChange;

/* Changes the colours of `count` pixels. */
typedef void ChangeHsv(
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t count, const HsvChange *change);

/* A value becomes `gain` times itself, plus `offset`, plus `grey` times the grey of its pixel. */
typedef struct {
    float gain, offset, grey;
} Blend;

/* Blends the colours of `count` pixels, clamped and rounded down, and returns the sum of the new greys. */
typedef uint64_t BlendColors(
    uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t count, const Blend *blend);

#endif
