/* A box of a plane of 8-bit samples, resized with antialiasing. */
#ifndef WDS_TOOLS_RESAMPLE_H
#define WDS_TOOLS_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

_Static_assert(sizeof(size_t) >= 8, "sizes of planes are multiplied without a check");

/* Compiled for two kinds of processor, of which one is chosen when the module is loaded: by a means that glibc has and
   musl has not. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx2", "default")))
#elif defined(__x86_64__) && defined(__GLIBC__)
#define VECTORIZED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define VECTORIZED
#endif

/* Samples that may be read behind the last one of a row, and rows behind the last one of a plane. */
#define SLACK 64

/* A box in a plane. Its edges may lie between samples, as chroma has half as many as luma, and outside of what is
   there: only [first_column, last_column) and [first_row, last_row) were decoded. */
typedef struct {
    const uint8_t *samples;
    size_t stride; /* samples from a row to the next one */
    double left, top, width, height;
    int first_column, last_column, first_row, last_row;
} Box;

/* What becomes of a box: all of it is resized, and of that a part is kept. */
typedef struct {
    int resized_width, resized_height;
    int left, top, width, height;
    int flip; /* mirrored left to right */
} View;

/* Memory that grows with what is asked of it and is used again. */
typedef struct {
    uint8_t *bytes;
    size_t size;
} Room;

/* Returns at least `size` bytes with SLACK behind them, or NULL. */
uint8_t *room_for(Room *room, size_t size);

/* What `resample` needs, used again from picture to picture. */
typedef struct {
    Room rows, columns, turned, down, across;
} Resampler;

void resampler_free(Resampler *resampler);

/* Samples from a row of a result to the next one. */
size_t row_stride(int width);

/* Bytes of a result. */
size_t plane_bytes(int width, int height);

/* Makes the filters for a box. Returns 0, or -1 where it is so much larger than the result that there is no filter for
   it, or memory ran out. */
int prepare(Resampler *resampler, const Box *box, const View *view);

/* Writes view->height rows of view->width samples, row_stride() apart, into plane_bytes(), by the filters of
   `prepare` for this box or one like it in another plane. Returns 0, or -1 where memory ran out. */
int resample(Resampler *resampler, const Box *box, const View *view, uint8_t *out);

/* Turns YCbCr (JFIF: full range, BT.601) into RGB planes of width * height bytes each. */
void to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, int height, uint8_t *out);

#endif
