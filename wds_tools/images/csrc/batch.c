#include "batch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "kernels.h"

/* Memory that is reused from image to image and from batch to batch. */
typedef struct {
    Decoder *decoder;
    Resampler resampler;
    GrowBuffer plane[3], crops;
    Stopwatch watch;
} RenderContext;

#define MAX_CACHED_BYTES ((size_t)64 << 20) /* enough for images of 10 megapixels */

/* The context of the last batch; NULL while a thread uses it. */
static _Atomic(RenderContext *) cached_context;

static void context_free(RenderContext *context)
{
    decoder_free(context->decoder);
    resampler_free(&context->resampler);
    for (int c = 0; c < 3; c++)
        buffer_free(&context->plane[c]);
    buffer_free(&context->crops);
    free(context);
}

/* Returns the cached context or a new one, or NULL if memory ran out. */
static RenderContext *acquire_context(void)
{
    RenderContext *context = atomic_exchange(&cached_context, NULL);
    if (context || !(context = calloc(1, sizeof *context)))
        return context;
    if (!(context->decoder = decoder_new())) {
        free(context);
        return NULL;
    }
    return context;
}

/* Caches a context, unless it is too large. */
static void release_context(RenderContext *context)
{
    if (decoder_bytes(context->decoder) <= MAX_CACHED_BYTES)
        context = atomic_exchange(&cached_context, context);
    if (context)
        context_free(context);
}

/* Returns the largest denominator for which the decoded box is at least twice as large as the
   result. On the photographs of a test, the mean difference per image from decoding at full size
   was 0.5 of 255, and at most 1.9; with 3/2 instead of 2 it was 4.2. */
static int choose_scale_denominator(const CropGeometry *crop)
{
    int scale_denominator = 8;
    while (scale_denominator > 1 &&
           (crop->width < 2 * scale_denominator * crop->resized_width ||
            crop->height < 2 * scale_denominator * crop->resized_height))
        scale_denominator /= 2;
    return scale_denominator;
}

/* Writes resized planes to the batch, in RGB. */
static void write_rgb(uint8_t *const *resized, const Planes *planes, int height, int width, uint8_t *out)
{
    if (planes->count == 3 && !planes->is_rgb) {
        to_rgb(resized[0], resized[1], resized[2], width, height, out);
        return;
    }
    for (int c = 0; c < 3; c++) {
        const uint8_t *row = resized[planes->count == 3 ? c : 0];
        for (int y = 0; y < height; y++, out += width, row += row_stride(width))
            memcpy(out, row, (size_t)width);
    }
}

/* Returns whether the geometry is consistent. It comes from Python, and an error there must not
   cause an access outside the buffers. */
static int is_valid_geometry(const CropGeometry *crop, int height, int width)
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

/* A batch that is being rendered. */
typedef struct {
    RenderContext *context;
    const ByteSpan *files;
    const CropGeometry *crops;
    size_t count, next; /* number of images; index of the next one to decode */
    int height, width;
    uint8_t *out;
    char *done;
} Batch;

/* next_image of the batch's ImageStream. */
static int next_image(void *context, Image *image)
{
    Batch *batch = context;
    while (batch->next < batch->count) {
        size_t i = batch->next++;
        const ByteSpan *file = &batch->files[i];
        const CropGeometry *crop = &batch->crops[i];
        if (!file->data || !is_valid_geometry(crop, batch->height, batch->width))
            continue;
        *image = (Image){
            file->data,
            file->size,
            {crop->left, crop->top, crop->width, crop->height},
            {crop->needed_left, crop->needed_top, crop->needed_width, crop->needed_height},
            choose_scale_denominator(crop),
            i,
        };
        return 1;
    }
    return 0;
}

/* Resizes the planes of an image and writes them to the batch. Returns 0, or -1 if Python must
   render the image. */
static int resize_image(const Batch *batch, const CropGeometry *crop, const Planes *planes, uint8_t *out)
{
    RenderContext *context = batch->context;
    Resampler *resampler = &context->resampler;
    ResizeGeometry geometry = {crop->resized_width, crop->resized_height, crop->corner_left, crop->corner_top,
                               batch->width,        batch->height,        crop->flip};
    uint8_t *resized[3];
    for (int c = 0; c < planes->count; c++) {
        resized[c] = buffer_reserve(&context->plane[c], plane_bytes(batch->width, batch->height));
        int kind = c > 0; /* both chroma planes have the same filters */
        if (c < 2 && prepare_filters(resampler, kind, &planes->box[c], &geometry))
            return -1;
        if (!resized[c] || resample(resampler, kind, &planes->box[c], &geometry, resized[c]))
            return -1;
    }
    add_elapsed(&context->watch, &context->watch.elapsed.resize);
    write_rgb(resized, planes, batch->height, batch->width, out);
    add_elapsed(&context->watch, &context->watch.elapsed.write);
    return 0;
}

/* store_planes of the batch's ImageStream. */
static void store_planes(void *context, size_t number, const Planes *planes)
{
    const Batch *batch = context;
    uint8_t *out = batch->out + number * 3 * (size_t)batch->height * (size_t)batch->width;
    batch->done[number] = planes && !resize_image(batch, &batch->crops[number], planes, out);
}

static void add_timings(Timings *total, const Timings *elapsed)
{
    total->slice += elapsed->slice;
    total->decode += elapsed->decode;
    total->resize += elapsed->resize;
    total->write += elapsed->write;
}

void render_batch(
    const ByteSpan *files, const CropGeometry *crops, size_t count, int height, int width, size_t max_pixels,
    uint8_t *out, char *done, Timings *timings)
{
    RenderContext *context = acquire_context();
    memset(done, 0, count);
    if (!context)
        return;
    CropGeometry *copy = (CropGeometry *)(void *)buffer_reserve(&context->crops, count * sizeof *crops);
    if (copy) {
        memcpy(copy, crops, count * sizeof *crops); /* another thread could change them after they were validated */
        Batch batch = {context, files, copy, count, 0, height, width, out, done};
        decoder_set_limit(context->decoder, max_pixels);
        stopwatch_start(&context->watch, timings != NULL);
        decode_images(context->decoder, &(ImageStream){&batch, next_image, store_planes, &context->watch});
        if (timings)
            add_timings(timings, &context->watch.elapsed);
    }
    release_context(context);
}

void to_planes(const uint8_t *pixels, int height, int width, uint8_t *out)
{
    size_t count = (size_t)height * (size_t)width;
    kernels()->row_to_planes(pixels, count, out, out + count, out + 2 * count);
}
