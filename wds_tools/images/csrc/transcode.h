/* Lossless transcoding of JPEGs: new Huffman codes and restart markers, the same coefficients. */
#ifndef WDS_TOOLS_TRANSCODE_H
#define WDS_TOOLS_TRANSCODE_H

#include <stddef.h>
#include <stdint.h>

#include "signature.h"

typedef struct Transcoder Transcoder;

/* Returns the cached transcoder or a new one, or NULL if memory ran out. */
Transcoder *acquire_transcoder(void);

/* Caches the transcoder for the next call, or frees it. */
void release_transcoder(Transcoder *transcoder);

/* Writes a sequential or progressive JPEG as a sequential one with one scan, with a restart marker
   every `restart_interval` MCUs and optimal Huffman codes of at most `max_code_length` bits. Of the
   application segments only JFIF and Adobe are kept, which define the colour space. The result is
   decoded, and its coefficients are compared with those of the original.

   Returns the new file and writes its size to *written. The file belongs to the transcoder and is
   valid until its next call. Returns NULL if the file is damaged or not supported, has more than
   `max_pixels`, or memory ran out. */
const uint8_t *transcode(
    Transcoder *transcoder, const uint8_t *data, size_t size, int restart_interval, int max_code_length,
    size_t max_pixels, size_t *written);

/* Computes the signature of the file of the last successful transcode() with this transcoder, which is shown in an EXIF
   orientation. Returns 0, or -1 if the image is RGB or memory ran out. */
int sign_transcoded(Transcoder *transcoder, int orientation, Signature *signature);

/* Computes the signature of a JPEG. Returns 0, or -1 if it is damaged, not supported, RGB, has more than `max_pixels`, or
   memory ran out. */
int sign_file(
    Transcoder *transcoder, const uint8_t *data, size_t size, int orientation, size_t max_pixels, Signature *signature);

#endif
