#include "batch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels.h"
#include "picture.h"

/* What is used again from picture to picture. */
typedef struct {
    Decoder *decoder;
    Resampler resampler;
    Room plane[3];
    Timings *timings;
} Worker;

#define MOST_KEPT ((size_t)64 << 20) /* bytes: enough for pictures of 10 megapixels */

/* The worker of the last batch, unless another one is at work with it: its memory is used again. */
static _Atomic(Worker *) idle;

static void worker_free(Worker *worker)
{
    decoder_free(worker->decoder);
    resampler_free(&worker->resampler);
    for (int c = 0; c < 3; c++)
        room_free(&worker->plane[c]);
    free(worker);
}

/* Returns NULL where memory has run out. */
static Worker *take_worker(void)
{
    Worker *worker = atomic_exchange(&idle, NULL);
    if (worker || !(worker = calloc(1, sizeof *worker)))
        return worker;
    if (!(worker->decoder = decoder_new())) {
        free(worker);
        return NULL;
    }
    return worker;
}

static void give_back(Worker *worker)
{
    if (decoder_size(worker->decoder) <= MOST_KEPT)
        worker = atomic_exchange(&idle, worker);
    if (worker)
        worker_free(worker);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Adds the time since `*since`, which becomes now. */
static void count(const Worker *worker, double *step, double *since)
{
    if (worker->timings) {
        double now = seconds();
        *step += now - *since;
        *since = now;
    }
}

/* How much smaller a picture can be decoded so that half of what is left is still no less than the result. Averaged
   over a picture, the difference to decoding it whole is then 0.5 of 255, at most 1.9 on the photographs that were
   tried; with 3/2 in place of 2 it was 4.2. */
static int spare_of(const Place *place)
{
    int spare = 8;
    while (spare > 1 &&
           (place->width < 2 * spare * place->resized_width || place->height < 2 * spare * place->resized_height))
        spare /= 2;
    return spare;
}

/* Puts finished planes into their place. */
static void write_planes(uint8_t *const *planes, const Planes *kinds, int height, int width, uint8_t *out)
{
    if (kinds->planes == 3 && !kinds->is_rgb) {
        to_rgb(planes[0], planes[1], planes[2], width, height, out);
        return;
    }
    for (int c = 0; c < 3; c++) {
        const uint8_t *row = planes[kinds->planes == 3 ? c : 0];
        for (int y = 0; y < height; y++, out += width, row += row_stride(width))
            memcpy(out, row, (size_t)width);
    }
}

/* Returns 0 once the picture is in `out`. */
static int make(Worker *worker, const File *file, const Place *place, int height, int width, uint8_t *out)
{
    Timings unused, *timings = worker->timings ? worker->timings : &unused;
    double since = worker->timings ? seconds() : 0;
    Picture picture = {
        file->data,
        file->size,
        {place->left, place->top, place->width, place->height},
        {place->needed_left, place->needed_top, place->needed_width, place->needed_height},
    };
    View view = {
        place->resized_width, place->resized_height, place->corner_left, place->corner_top, width, height, place->flip};
    uint8_t *made[3];
    Planes planes;
    if (open_picture(worker->decoder, &picture))
        return -1;
    count(worker, &timings->slice, &since);
    if (decode_planes(worker->decoder, spare_of(place), &planes))
        return -1;
    count(worker, &timings->decode, &since);
    for (int c = 0; c < planes.planes; c++) {
        made[c] = room_for(&worker->plane[c], plane_bytes(width, height));
        int kind = c > 0; /* both planes of chroma are alike */
        if (c < 2 && prepare(&worker->resampler, kind, &planes.box[c], &view))
            return -1;
        if (!made[c] || resample(&worker->resampler, kind, &planes.box[c], &view, made[c]))
            return -1;
    }
    count(worker, &timings->resize, &since);
    write_planes(made, &planes, height, width, out);
    count(worker, &timings->write, &since);
    return 0;
}

/* Numbers come from Python, where a mistake must not become a wrong address. */
static int is_sound(const Place *place, int height, int width)
{
    const int32_t *numbers = &place->left;
    for (size_t i = 0; i < sizeof *place / sizeof *numbers; i++)
        if (numbers[i] < 0 || numbers[i] > 1 << 20)
            return 0;
    return place->needed_width && place->needed_height && place->needed_left >= place->left &&
           place->needed_top >= place->top &&
           place->needed_left + place->needed_width <= place->left + place->width &&
           place->needed_top + place->needed_height <= place->top + place->height &&
           place->corner_top + height <= place->resized_height && place->corner_left + width <= place->resized_width;
}

void make_batch(
    const File *files, const Place *places, size_t number, int height, int width, size_t max_pixels, uint8_t *out,
    char *done, Timings *timings)
{
    Worker *worker = take_worker();
    size_t bytes = 3 * (size_t)height * (size_t)width;
    if (worker) {
        worker->timings = timings;
        decoder_limit(worker->decoder, max_pixels);
    }
    for (size_t i = 0; i < number; i++) {
        Place place = places[i]; /* a copy: another thread may write to the caller's memory after the check */
        done[i] = worker && files[i].data && is_sound(&place, height, width) &&
                  !make(worker, &files[i], &place, height, width, out + i * bytes);
    }
    if (worker)
        give_back(worker);
}

void to_planes(const uint8_t *pixels, int height, int width, uint8_t *out)
{
    size_t count = (size_t)height * (size_t)width;
    kernels()->row_to_planes(pixels, count, out, out + count, out + 2 * count);
}
