/* The signature of an image: what finds near duplicates, and blank and blurred images. Integer arithmetic, so that all
   processors give the same result. */
#ifndef WDS_TOOLS_SIGNATURE_H
#define WDS_TOOLS_SIGNATURE_H

#include "coefficients.h"

typedef struct {
    uint64_t hash;     /* perceptual hash: 64 bits, the first one is the most significant */
    double brightness; /* mean of luma, 0 to 255 */
    double contrast;   /* standard deviation of luma */
    double sharpness;  /* root mean square of the second derivative of luma at the reduced size */
} Signature;

/* Luma of an image at a reduced size. */
typedef struct {
    GrowBuffer samples; /* [height][width] */
    GrowBuffer line;    /* memory that is reused */
    int width, height;
} Luma;

void luma_free(Luma *luma);

/* Reduces the luma of an image with these coefficients, in zigzag order. Returns 0, or -1 if the image is RGB or memory
   ran out. */
int reduce_coefficients(const Coefficients *coefficients, const Header *header, Luma *luma);

/* Reduces luma [height][width] of a whole image. Returns 0, or -1 if memory ran out. */
int reduce_pixels(const uint8_t *pixels, int height, int width, Luma *luma);

/* Computes the signature of an image with an EXIF orientation of 1 to 8. Changes `luma`. Returns 0, or -1 if memory ran
   out. */
int compute_signature(Luma *luma, int orientation, Signature *signature);

#endif
