/* A JPEG with other Huffman codes and restart markers, and the same coefficients. */
#ifndef WDS_TOOLS_TRANSCODE_H
#define WDS_TOOLS_TRANSCODE_H

#include <stddef.h>
#include <stdint.h>

typedef struct Transcoder Transcoder;

/* Returns NULL where memory has run out. */
Transcoder *take_transcoder(void);

/* Its memory is kept for the next one. */
void give_back_transcoder(Transcoder *transcoder);

/* Writes a sequential or progressive JPEG as a sequential one of one scan, with a restart marker
   every `restart` MCUs and Huffman codes of its own, of `longest` bits at most. Of its other
   segments only those are kept that say which colours the components are (JFIF, Adobe). The
   coefficients of the result are decoded and compared.

      Returns the new file. It belongs to the transcoder and is valid until the next call.
   Returns NULL if the file is damaged, is of a kind that the decoder does not support, has more
   than `max_pixels`, or if memory ran out. */
const uint8_t *transcode(
    Transcoder *transcoder, const uint8_t *data, size_t size, int restart, int longest, size_t max_pixels,
    size_t *written);

#endif
