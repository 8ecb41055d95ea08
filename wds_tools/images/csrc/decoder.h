/* Decodes regions of JPEGs to planes: luma and chroma at the resolution at which they are stored,
   before upsampling and colour conversion. */
#ifndef WDS_TOOLS_DECODER_H
#define WDS_TOOLS_DECODER_H

#include "resample.h"
#include "stopwatch.h"

/* A rectangle of pixels. */
typedef struct {
    int left, top, width, height;
} Region;

/* A JPEG file, and what is decoded of it. */
typedef struct {
    const uint8_t *data;
    size_t size;
    Region box;            /* is resized later */
    Region needed;         /* the part of the box that is decoded */
    int scale_denominator; /* 1, 2, 4 or 8: decodes at full size, 1/2, 1/4 or 1/8 */
    size_t number;         /* passed on to store_planes() */
    int width, height;     /* expected size in pixels; 0: any */
} Image;

/* A decoded plane. Its samples are those of whole blocks, so it may begin before the needed part and
   end after it. */
typedef struct {
    const uint8_t *samples;
    size_t stride;      /* bytes from one row to the next */
    double x, y;        /* samples per pixel of the image */
    int left, top;      /* position of the first sample in the plane of the whole image */
    int columns, rows;  /* size of the plane of the whole image */
} Plane;

/* The decoded planes of an image. */
typedef struct {
    Plane plane[3];
    PlaneBox box[3]; /* the box of the image in each of them */
    int count;       /* 1 grey, 3 colour; the last two planes of YCbCr have the same size */
    int is_rgb;      /* the three planes are RGB, not YCbCr */
} Planes;

/* Returns the position of a box of the image in a plane. Of the box, only `needed` will be read,
   which must have been decoded. */
PlaneBox box_in_plane(const Plane *plane, const Region *box, const Region *needed);

/* Memory and tables that are reused from image to image. */
typedef struct Decoder Decoder;

/* Returns a decoder with a limit of 0 pixels, or NULL if memory ran out. */
Decoder *decoder_new(void);

/* Sets the limit: larger images are not decoded. */
void decoder_set_limit(Decoder *decoder, size_t max_pixels);

void decoder_free(Decoder *decoder);

/* Returns the number of bytes that the decoder keeps for the next image. */
size_t decoder_bytes(const Decoder *decoder);

/* The source of the images, and where their planes go. */
typedef struct {
    void *context; /* the first argument of both functions */

    /* Writes the next image to `image`. Returns 0 if there is none. */
    int (*next_image)(void *context, Image *image);

    /* Receives the planes of image `number`. They are valid until it returns. `planes` is NULL if
       Python must decode the image: it is damaged, not supported (CMYK, 12 bits), of another size than
       expected, smaller than the region, or too large. The order of the calls may differ from that of the images. */
    void (*store_planes)(void *context, size_t number, const Planes *planes);

    Stopwatch *watch; /* measures the steps `slice` and `decode` */
} ImageStream;

/* Decodes all images of a stream. Of an image with restart markers, only the restart intervals that
   have needed MCUs are decoded. Two intervals are decoded in turn, of one image or of two. */
void decode_images(Decoder *decoder, const ImageStream *stream);

/* Decodes one image. The planes belong to the decoder and are valid until its next call. Returns 0,
   or -1 if Python must decode the image. */
int decode_image(Decoder *decoder, const Image *image, Planes *planes);

#endif
