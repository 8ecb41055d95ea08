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

/* Writes resized planes to an output, in RGB. */
static void write_rgb(uint8_t *const *resized, const Planes *planes, const Output *output)
{
    size_t stride = row_stride(output->width), width = (size_t)output->width;
    const Kernels *fast = kernels();
    for (int y = 0; y < output->height; y++) {
        uint8_t *out = output->pixels + (size_t)y * output->row_stride;
        const uint8_t *row[3];
        for (int c = 0; c < 3; c++)
            row[c] = resized[planes->count == 3 ? c : 0] + (size_t)y * stride;
        if (planes->count == 3 && !planes->is_rgb) {
            fast->row_to_rgb(
                row[0], row[1], row[2], width, out, out + output->plane_stride, out + 2 * output->plane_stride);
            continue;
        }
        for (size_t c = 0; c < 3; c++)
            memcpy(out + c * output->plane_stride, row[c], width);
    }
}

#define CORNER_TOP (offsetof(CropGeometry, corner_top) / sizeof(double))
#define CORNER_LEFT (offsetof(CropGeometry, corner_left) / sizeof(double))
#define MARGIN (0.5 + 1e-6) /* the outermost pixels have their centres in the resized box */

/* Returns whether the geometry is consistent. It comes from Python, and an error there must not
   cause an access outside the buffers. */
static int is_valid_geometry(const CropGeometry *crop, int height, int width)
{
    double numbers[sizeof *crop / sizeof(double)];
    memcpy(numbers, crop, sizeof *crop);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i] >= (i == CORNER_TOP || i == CORNER_LEFT ? -MARGIN : 0) && numbers[i] <= 1 << 20)) /* NaN too */
            return 0;
    return crop->flip <= FLIP_COLUMNS + FLIP_ROWS && crop->needed_width >= 1 && crop->needed_height >= 1 && crop->needed_left >= crop->left &&
           crop->needed_top >= crop->top &&
           crop->needed_left + crop->needed_width <= crop->left + crop->width &&
           crop->needed_top + crop->needed_height <= crop->top + crop->height &&
           crop->corner_top + height <= crop->resized_height + MARGIN &&
           crop->corner_left + width <= crop->resized_width + MARGIN;
}

/* A batch that is being rendered. */
typedef struct {
    RenderContext *context;
    const ByteSpan *files;
    const CropGeometry *crops; /* [count][crops_per_image] */
    size_t count, next;        /* number of images; index of the next one to decode */
    const Output *outputs;     /* [count][crops_per_image] */
    size_t crops_per_image;
    char *done; /* [count][crops_per_image] */
} Batch;

static Region box_of(const CropGeometry *crop)
{
    return (Region){(int)crop->left, (int)crop->top, (int)crop->width, (int)crop->height};
}

static Region needed_of(const CropGeometry *crop)
{
    return (Region){(int)crop->needed_left, (int)crop->needed_top, (int)crop->needed_width, (int)crop->needed_height};
}

/* Returns the smallest region that contains both. */
static Region unite(const Region *a, const Region *b)
{
    int left = a->left < b->left ? a->left : b->left, top = a->top < b->top ? a->top : b->top;
    int right = a->left + a->width, bottom = a->top + a->height;
    if (right < b->left + b->width)
        right = b->left + b->width;
    if (bottom < b->top + b->height)
        bottom = b->top + b->height;
    return (Region){left, top, right - left, bottom - top};
}

/* Returns the index of crop k of an image in the arrays of a batch. */
static size_t index_of(const Batch *batch, size_t number, size_t k)
{
    return number * batch->crops_per_image + k;
}

static int is_valid_crop(const Batch *batch, size_t index)
{
    const Output *output = &batch->outputs[index];
    return is_valid_geometry(&batch->crops[index], output->height, output->width);
}

/* Describes what all valid crops of image `number` need: the union of their regions, at the finest
   scale that one of them needs. Returns the number of valid crops. */
static int unite_crops(const Batch *batch, size_t number, Image *image)
{
    int count = 0;
    for (size_t k = 0; k < batch->crops_per_image; k++) {
        size_t index = index_of(batch, number, k);
        if (!is_valid_crop(batch, index))
            continue;
        const CropGeometry *crop = &batch->crops[index];
        Region box = box_of(crop), needed = needed_of(crop);
        int scale_denominator = choose_scale_denominator(crop);
        image->box = count ? unite(&image->box, &box) : box;
        image->needed = count ? unite(&image->needed, &needed) : needed;
        image->width = (int)crop->image_width;
        image->height = (int)crop->image_height;
        if (!count || scale_denominator < image->scale_denominator)
            image->scale_denominator = scale_denominator;
        count++;
    }
    return count;
}

/* next_image of the batch's ImageStream. */
static int next_image(void *context, Image *image)
{
    Batch *batch = context;
    while (batch->next < batch->count) {
        size_t number = batch->next++;
        const ByteSpan *file = &batch->files[number];
        if (!file->data || !unite_crops(batch, number, image))
            continue;
        image->data = file->data;
        image->size = file->size;
        image->number = number;
        return 1;
    }
    return 0;
}

/* Resizes a crop of the planes of an image and writes it to its output. Returns 0, or -1 if Python
   must render it. */
static int resize_crop(RenderContext *context, const CropGeometry *crop, const Planes *planes, const Output *output)
{
    Resampler *resampler = &context->resampler;
    int flip = (int)crop->flip;
    ResizeGeometry geometry = {crop->resized_width,     crop->resized_height,  crop->corner_left, crop->corner_top,
                               output->width,           output->height,        (flip & FLIP_COLUMNS) != 0,
                               (flip & FLIP_ROWS) != 0};
    Region region = box_of(crop), needed = needed_of(crop);
    uint8_t *resized[3];
    for (int c = 0; c < planes->count; c++) {
        PlaneBox box = box_in_plane(&planes->plane[c], &region, &needed);
        resized[c] = buffer_reserve(&context->plane[c], plane_bytes(output->width, output->height));
        int kind = c > 0; /* both chroma planes have the same filters */
        if (c < 2 && prepare_filters(resampler, kind, &box, &geometry))
            return -1;
        if (!resized[c] || resample(resampler, kind, &box, &geometry, resized[c]))
            return -1;
    }
    add_elapsed(&context->watch, &context->watch.elapsed.resize);
    write_rgb(resized, planes, output);
    add_elapsed(&context->watch, &context->watch.elapsed.write);
    return 0;
}

/* store_planes of the batch's ImageStream. */
static void store_planes(void *context, size_t number, const Planes *planes)
{
    const Batch *batch = context;
    for (size_t k = 0; planes && k < batch->crops_per_image; k++) {
        size_t index = index_of(batch, number, k);
        if (is_valid_crop(batch, index))
            batch->done[index] = !resize_crop(batch->context, &batch->crops[index], planes, &batch->outputs[index]);
    }
}

static void add_timings(Timings *total, const Timings *elapsed)
{
    total->slice += elapsed->slice;
    total->decode += elapsed->decode;
    total->resize += elapsed->resize;
    total->write += elapsed->write;
}

void render_batch(
    const ByteSpan *files, const CropGeometry *crops, size_t count, const Output *outputs, size_t crops_per_image,
    size_t max_pixels, char *done, Timings *timings)
{
    RenderContext *context = acquire_context();
    size_t total = count * crops_per_image;
    memset(done, 0, total);
    if (!context)
        return;
    CropGeometry *copy = (CropGeometry *)(void *)buffer_reserve(&context->crops, total * sizeof *crops);
    if (copy) {
        memcpy(copy, crops, total * sizeof *crops); /* another thread could change them after they were validated */
        Batch batch = {context, files, copy, count, 0, outputs, crops_per_image, done};
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
