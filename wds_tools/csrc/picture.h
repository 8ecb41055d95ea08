/* A part of a JPEG as planes: luma and chroma as they are stored, before chroma is made as fine as luma and all becomes
   RGB. */
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

/* Returns NULL where memory has run out. */
Decoder *decoder_new(void);

/* Larger pictures are not decoded. */
void decoder_limit(Decoder *decoder, size_t max_pixels);
void decoder_free(Decoder *decoder);

/* Bytes that it keeps for the next picture. */
size_t decoder_size(const Decoder *decoder);

/* Reads the headers of a picture and finds what must be decoded of it. A part of it is enough where restart markers
   allow that. Returns 0, or -1 if Python must decode the picture: it is damaged, unusual (CMYK, 12 bits), smaller
   than the region, or too large. */
int open_picture(Decoder *decoder, const Picture *picture);

/* Decodes what is needed of the picture that was opened, at 1/2, 1/4 or 1/8 of the size if `spare` is 2, 4 or 8. The
   planes belong to the decoder and are good until the next call. Returns 0, or -1 as above. */
int decode_planes(Decoder *decoder, int spare, Planes *planes);

#endif
