#include "batch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "decoder.h"

/* What is used again from picture to picture. */
typedef struct {
    Decoder *decoder;
    Resampler resampler;
    GrowBuffer plane[3], crops;
    Stopwatch watch;
} Worker;

#define MOST_KEPT ((size_t)64 << 20) /* bytes: enough for pictures of 10 megapixels */

/* The worker of the last batch, unless another one is at work with it: its memory is used again. */
static _Atomic(Worker *) idle;

static void worker_free(Worker *worker)
{
    decoder_free(worker->decoder);
    resampler_free(&worker->resampler);
    for (int c = 0; c < 3; c++)
        buffer_free(&worker->plane[c]);
    buffer_free(&worker->crops);
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

/* How much smaller a picture can be decoded so that half of what is left is still no less than
   the result. Averaged over a picture, the difference to decoding it whole is then 0.5 of 255,
   at most 1.9 on the photographs that were tried; with 3/2 in place of 2 it was 4.2. */
static int scale_denominator_of(const CropGeometry *crop)
{
    int scale_denominator = 8;
    while (scale_denominator > 1 &&
           (crop->width < 2 * scale_denominator * crop->resized_width ||
            crop->height < 2 * scale_denominator * crop->resized_height))
        scale_denominator /= 2;
    return scale_denominator;
}

/* Writes finished planes into the batch. */
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

/* Numbers come from Python, where a mistake must not become a wrong address. */
static int is_sound(const CropGeometry *crop, int height, int width)
{
    int32_t numbers[sizeof *crop / sizeof(int32_t)];
    memcpy(numbers, crop, sizeof *crop);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] < 0 || numbers[i] > 1 << 20)
            return 0;
    return crop->needed_width && crop->needed_height && crop->needed_left >= crop->left &&
           crop->needed_top >= crop->top &&
           crop->needed_left + crop->needed_width <= crop->left + crop->width &&
           crop->needed_top + crop->needed_height <= crop->top + crop->height &&
           crop->corner_top + height <= crop->resized_height && crop->corner_left + width <= crop->resized_width;
}

/* A batch while it is made. */
typedef struct {
    Worker *worker;
    const ByteSpan *files;
    const CropGeometry *crops;
    size_t number, begun; /* pictures */
    int height, width;
    uint8_t *out;
    char *done;
} Batch;

static int next_picture(void *of, Picture *picture)
{
    Batch *batch = of;
    while (batch->begun < batch->number) {
        size_t i = batch->begun++;
        const ByteSpan *file = &batch->files[i];
        const CropGeometry *crop = &batch->crops[i];
        if (!file->data || !is_sound(crop, batch->height, batch->width))
            continue;
        *picture = (Picture){
            file->data,
            file->size,
            {crop->left, crop->top, crop->width, crop->height},
            {crop->needed_left, crop->needed_top, crop->needed_width, crop->needed_height},
            scale_denominator_of(crop),
            i,
        };
        return 1;
    }
    return 0;
}

/* Resizes the planes of a picture and writes them into the batch. Returns 0, or -1 if Python
   must do it. */
static int finish(const Batch *batch, const CropGeometry *crop, const Planes *planes, uint8_t *out)
{
    Worker *worker = batch->worker;
    Resampler *resampler = &worker->resampler;
    View view = {crop->resized_width, crop->resized_height, crop->corner_left, crop->corner_top,
                 batch->width,         batch->height,         crop->flip};
    uint8_t *made[3];
    for (int c = 0; c < planes->planes; c++) {
        made[c] = buffer_reserve(&worker->plane[c], plane_bytes(batch->width, batch->height));
        int kind = c > 0; /* both planes of chroma are alike */
        if (c < 2 && prepare(resampler, kind, &planes->box[c], &view))
            return -1;
        if (!made[c] || resample(resampler, kind, &planes->box[c], &view, made[c]))
            return -1;
    }
    add_elapsed(&worker->watch, &worker->watch.spent.resize);
    write_planes(made, planes, batch->height, batch->width, out);
    add_elapsed(&worker->watch, &worker->watch.spent.write);
    return 0;
}

static void take_picture(void *of, size_t number, const Planes *planes)
{
    const Batch *batch = of;
    uint8_t *out = batch->out + number * 3 * (size_t)batch->height * (size_t)batch->width;
    batch->done[number] = planes && !finish(batch, &batch->crops[number], planes, out);
}

static void add_timings(Timings *to, const Timings *spent)
{
    to->slice += spent->slice;
    to->decode += spent->decode;
    to->resize += spent->resize;
    to->write += spent->write;
}

void make_batch(
    const ByteSpan *files, const CropGeometry *crops, size_t number, int height, int width, size_t max_pixels,
    uint8_t *out, char *done, Timings *timings)
{
    Worker *worker = take_worker();
    memset(done, 0, number);
    if (!worker)
        return;
    CropGeometry *own = (CropGeometry *)(void *)buffer_reserve(&worker->crops, number * sizeof *crops);
    if (own) {
        memcpy(own, crops, number * sizeof *crops); /* another thread may write to them after they were checked */
        Batch batch = {worker, files, own, number, 0, height, width, out, done};
        decoder_limit(worker->decoder, max_pixels);
        stopwatch_start(&worker->watch, timings != NULL);
        decode_pictures(worker->decoder, &(Pictures){&batch, next_picture, take_picture, &worker->watch});
        if (timings)
            add_timings(timings, &worker->watch.spent);
    }
    give_back(worker);
}

void to_planes(const uint8_t *pixels, int height, int width, uint8_t *out)
{
    size_t count = (size_t)height * (size_t)width;
    kernels()->row_to_planes(pixels, count, out, out + count, out + 2 * count);
}
