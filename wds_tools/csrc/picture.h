/* A part of a JPEG as planes: what libjpeg decodes before it makes chroma as fine as luma and turns it into RGB. */
#ifndef WDS_TOOLS_PICTURE_H
#define WDS_TOOLS_PICTURE_H

#include "resample.h"

typedef struct {
    int left, top, width, height;
} Region;

/* A JPEG and, in its pixels, the box that is resized and the region of it that is needed. */
typedef struct {
    const uint8_t *data;
    size_t size;
    Region box, needed;
} Picture;

typedef struct {
    Box box[3];
    int planes; /* 1 grey, 3 colour: then the last two are alike */
    int is_rgb; /* the three are not luma and chroma but red, green and blue */
} Planes;

typedef struct Decoder Decoder;

/* Returns NULL where memory has run out. `max_pixels` is the largest picture that is decoded. */
Decoder *decoder_new(size_t max_pixels);
void decoder_free(Decoder *decoder);

/* Where restart markers allow it, returns the picture cut down to what is needed: a JPEG that belongs to the
   decoder and is good until the next call. Else returns the picture as it is. */
Picture cut_picture(Decoder *decoder, const Picture *picture);

/* Decodes what is needed, at 1/2, 1/4 or 1/8 of the size if `spare` is 2, 4 or 8. The planes belong to the decoder
   and are good until the next call. Returns 0, or -1 if this is for another decoder to judge: whatever is damaged,
   unusual (CMYK, 12 bits), smaller than the region, or too large. */
int decode_picture(Decoder *decoder, const Picture *picture, int spare, Planes *planes);

#endif
