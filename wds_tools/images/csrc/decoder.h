/* A part of a JPEG as planes: luma and chroma as they are stored, before chroma is made as fine
   as luma and all becomes RGB. */
#ifndef WDS_TOOLS_DECODER_H
#define WDS_TOOLS_DECODER_H

#include "resample.h"
#include "stopwatch.h"

typedef struct {
    int left, top, width, height;
} Region;

/* A JPEG and, in its pixels, the box that is resized and the region of it that is needed. */
typedef struct {
    const uint8_t *data;
    size_t size;
    Region box, needed;
    int scale_denominator;     /* it is decoded at 1/2, 1/4 or 1/8 of its size if this is 2, 4 or 8 */
    size_t number; /* tells it from others */
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

/* Where pictures come from, and where their planes go. */
typedef struct {
    void *of; /* the first argument of both functions */

    /* Gives the next picture. Returns 0 if there is none. */
    int (*next)(void *of, Picture *picture);

    /* Takes the planes of a picture, which are good until it returns. NULL: Python must decode
       it, as it is damaged, unusual (CMYK, 12 bits), smaller than the region, or too large.
       Pictures need not come in their order. */
    void (*take)(void *of, size_t number, const Planes *planes);

    Stopwatch *watch; /* gets the time of the steps slice and decode */
} Pictures;

/* Decodes no more of pictures than is needed, where restart markers allow that. Two intervals
   are decoded in turn, of one picture or of two. */
void decode_pictures(Decoder *decoder, const Pictures *pictures);

/* Decodes a single picture. The planes belong to the decoder and are good until the next call.
   Returns 0, or -1 if Python must decode it. */
int decode_picture(Decoder *decoder, const Picture *picture, Planes *planes);

#endif
