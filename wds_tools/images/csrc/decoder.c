/* Decodes no more of a JPEG than a region needs.

   If the image has one scan, only the restart intervals that overlap the region are decoded;
   without restart markers, the MCU rows down to the end of the region. The inverse DCT is computed
   only for blocks that overlap it.

   Chroma planes are not upsampled: the planes are resized first, and only the result is converted
   to RGB. That is less work than upsampling and converting at full size. */
#include "decoder.h"

#include <math.h>
#include <stdlib.h>

#include "coefficients.h"
#include "kernels.h"

#define ROW_SLACK (2 * STRIP) /* bytes that may be read and written after a row of a plane */

/* The blocks of a component that a region needs, and the layout of the plane that they become. */
typedef struct {
    int left, right, top, bottom; /* blocks: columns left to right - 1, rows top to bottom - 1 */
    int block_size;               /* a block becomes block_size x block_size samples: 8, 4, 2 or 1 */
    size_t stride;
    PairedQuantization quantization;
} PlaneLayout;

/* An image that is being decoded. */
typedef struct {
    Image image;
    Header header;
    HuffmanTables tables;
    McuLayout mcu_layout;
    Intervals intervals;
    McuBox needed;
    PlaneLayout layout[MAX_COMPONENTS];
    GrowBuffer plane[MAX_COMPONENTS];
    int next_interval; /* index of the next interval to start */
    int lanes;         /* number of lanes that decode it */
    int in_use;        /* it has intervals that are not decoded yet */
    int failed;
} ActiveImage;

/* The interval of an image that one of two lanes decodes. */
typedef struct {
    ActiveImage *active; /* NULL: none */
    const Interval *interval;
    int first_mcu, mcu_count; /* decoded together: one MCU row at most, so that the coefficients stay in the cache */
    IntervalState state;
    GrowBuffer blocks, last_index; /* of these MCUs */
} ImageLane;

struct Decoder {
    size_t max_pixels;
    CoefficientOrder order;
    ActiveImage active[2];
    ImageLane lane[2];
    Coefficients coefficients; /* of an image with more than one scan */
    const ImageStream *stream;
};

Decoder *decoder_new(void)
{
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return NULL;
    set_paired_order(&decoder->order);
    return decoder;
}

void decoder_set_limit(Decoder *decoder, size_t max_pixels)
{
    decoder->max_pixels = max_pixels;
}

void decoder_free(Decoder *decoder)
{
    for (int i = 0; i < 2; i++) {
        ActiveImage *active = &decoder->active[i];
        intervals_free(&active->intervals);
        for (int c = 0; c < MAX_COMPONENTS; c++)
            buffer_free(&active->plane[c]);
        buffer_free(&decoder->lane[i].blocks);
        buffer_free(&decoder->lane[i].last_index);
    }
    coefficients_free(&decoder->coefficients);
    free(decoder);
}

size_t decoder_bytes(const Decoder *decoder)
{
    size_t bytes = decoder->coefficients.blocks.size + decoder->coefficients.last_index.size;
    for (int i = 0; i < 2; i++) {
        const ActiveImage *active = &decoder->active[i];
        bytes += active->intervals.data.size + active->intervals.items.size;
        bytes += decoder->lane[i].blocks.size + decoder->lane[i].last_index.size;
        for (int c = 0; c < MAX_COMPONENTS; c++)
            bytes += active->plane[c].size;
    }
    return bytes;
}

/* Returns whether both chroma components have the same sampling factors, and these divide the
   factors of luma. */
static int has_supported_sampling(const Header *header)
{
    const Component *luma = &header->component[0], *cb = &header->component[1], *cr = &header->component[2];
    return header->component_count == 1 ||
           (luma->h_factor % cb->h_factor == 0 && luma->v_factor % cb->v_factor == 0 &&
            cb->h_factor == cr->h_factor && cb->v_factor == cr->v_factor);
}

/* Returns whether an image is supported, has the expected size, contains the needed region, has at most `max_pixels`,
   and has a file that is long enough for its size: at least one bit per block. check_effort() in
   wds_tools/format/jpeg.py explains the limits. */
static int is_supported(const Header *header, const Image *image, size_t max_pixels)
{
    size_t width = (size_t)header->width, height = (size_t)header->height;
    const Region *region = &image->needed;
    return has_supported_sampling(header) && (!image->width || image->width == header->width) &&
           (!image->height || image->height == header->height) && header->adobe_transform <= 1 && width * height <= max_pixels &&
           (size_t)region->left + (size_t)region->width <= width &&
           (size_t)region->top + (size_t)region->height <= height &&
           8 * header->size >= ((width + 7) / 8) * ((height + 7) / 8);
}

/* Returns whether the current scan is sequential and has all components. */
static int is_only_scan(const Header *header)
{
    return !header->is_progressive && header->scan.component_count == header->component_count;
}

/* Returns the cells of a grid that overlap a region; a cell is width x height. */
static McuBox cells_of(const Region *region, int width, int height)
{
    return (McuBox){
        region->left / width, ceil_div(region->left + region->width, width), region->top / height,
        ceil_div(region->top + region->height, height)};
}

/* Returns the number of samples on each side of a decoded block of `component`, if a block of luma
   gets `size`. Blocks of subsampled chroma get more, so that chroma loses no more resolution than
   luma; at most 8, and not so many that chroma becomes finer than luma. */
static int decoded_block_size(const Header *header, const Component *component, int size)
{
    int max_h = header->max_h_factor * size, max_v = header->max_v_factor * size;
    while (size < BLOCK_SIDE && max_h % (component->h_factor * size * 2) == 0 &&
           max_v % (component->v_factor * size * 2) == 0)
        size *= 2;
    return size;
}

/* Computes which blocks of each component are needed, and reserves memory for the planes. Returns
   0, or -1 if memory ran out. */
static int set_up_planes(ActiveImage *active)
{
    const Header *header = &active->header;
    for (int c = 0; c < header->component_count; c++) {
        const Component *component = &header->component[c];
        PlaneLayout *layout = &active->layout[c];
        const Region *needed = &active->image.needed;
        int h_factor = component->h_factor, v_factor = component->v_factor;
        /* in units of 1/max_h_factor and 1/max_v_factor samples of the component */
        Region scaled = {
            needed->left * h_factor, needed->top * v_factor, needed->width * h_factor, needed->height * v_factor};
        McuBox blocks = cells_of(&scaled, BLOCK_SIDE * header->max_h_factor, BLOCK_SIDE * header->max_v_factor);
        layout->left = blocks.left;
        layout->right = blocks.right;
        layout->top = blocks.top;
        layout->bottom = blocks.bottom;
        layout->block_size = decoded_block_size(header, component, BLOCK_SIDE / active->image.scale_denominator);
        layout->stride = (size_t)(layout->right - layout->left) * (size_t)layout->block_size + ROW_SLACK;
        size_t rows = (size_t)(layout->bottom - layout->top) * (size_t)layout->block_size;
        if (!buffer_reserve(&active->plane[c], rows * layout->stride))
            return -1;
    }
    return 0;
}

/* Converts the quantization tables. A component has one as soon as its first scan header is
   read. */
static void set_quantization(ActiveImage *active)
{
    for (int c = 0; c < active->header.component_count; c++)
        set_paired_quantization(active->header.component[c].quantization, &active->layout[c].quantization);
}

/* Transforms a block of component `c` into its plane, if it is needed. Returns 0, or -1 on failure. */
static inline int transform_block(
    ActiveImage *active, InverseDct *inverse_dct, int c, int row, int column, const int16_t *block, int last_index)
{
    const PlaneLayout *layout = &active->layout[c];
    if (column < layout->left || column >= layout->right || row < layout->top || row >= layout->bottom)
        return 0;
    size_t y = (size_t)(row - layout->top) * (size_t)layout->block_size;
    size_t x = (size_t)(column - layout->left) * (size_t)layout->block_size;
    return inverse_dct(
        block, last_index, &layout->quantization, layout->block_size, active->plane[c].bytes + y * layout->stride + x,
        layout->stride);
}

/* Transforms the needed blocks of `count` MCUs from `first` on. The image has failed if one of them cannot be
   transformed as libjpeg does. */
static void transform_mcus(
    ActiveImage *active, int first, int count, const int16_t *block, const uint8_t *last_index)
{
    const Header *header = &active->header;
    InverseDct *inverse_dct = kernels()->inverse_dct;
    int row = first / header->mcu_columns, column = first % header->mcu_columns, failed = 0;
    for (int mcu = 0; mcu < count; mcu++) {
        for (int c = 0; c < header->component_count; c++) {
            const Component *component = &header->component[c];
            for (int y = 0; y < component->v_factor; y++)
                for (int x = 0; x < component->h_factor; x++, block += BLOCK_SIZE, last_index++)
                    failed |= transform_block(
                        active, inverse_dct, c, row * component->v_factor + y, column * component->h_factor + x,
                        block, *last_index);
        }
        if (++column == header->mcu_columns) {
            column = 0;
            row++;
        }
    }
    active->failed |= failed;
}

/* Decodes an image with more than one scan to its planes. Returns 0, or -1 on failure. */
static int decode_multiple_scans(Decoder *decoder, ActiveImage *active)
{
    Header *header = &active->header;
    Coefficients *coefficients = &decoder->coefficients;
    if (decode_all_scans(
            coefficients, header, &active->tables, &active->intervals, &decoder->order, decoder->max_pixels))
        return -1;
    active->intervals.count = 0; /* none is left to decode */
    set_quantization(active);
    int mcus = header->mcu_columns * header->mcu_rows;
    memset(coefficients->last_index.bytes, BLOCK_SIZE - 1, (size_t)mcus * (size_t)coefficients->mcu_blocks);
    for (int row = active->needed.top; row < active->needed.bottom; row++) {
        size_t first = (size_t)row * (size_t)header->mcu_columns * (size_t)coefficients->mcu_blocks;
        transform_mcus(
            active, row * header->mcu_columns, header->mcu_columns, frame_blocks(coefficients) + first * BLOCK_SIZE,
            coefficients->last_index.bytes + first);
    }
    return active->failed;
}

/* Returns the decoded plane of component `c`. */
static Plane plane_of(const ActiveImage *active, int c)
{
    const Header *header = &active->header;
    const PlaneLayout *layout = &active->layout[c];
    double x = header->component[c].h_factor * layout->block_size / (double)(header->max_h_factor * BLOCK_SIDE);
    double y = header->component[c].v_factor * layout->block_size / (double)(header->max_v_factor * BLOCK_SIDE);
    return (Plane){
        .samples = active->plane[c].bytes,
        .stride = layout->stride,
        .x = x,
        .y = y,
        .left = layout->left * layout->block_size,
        .top = layout->top * layout->block_size,
        .columns = (int)ceil(header->width * x),
        .rows = (int)ceil(header->height * y),
    };
}

PlaneBox box_in_plane(const Plane *plane, const Region *box, const Region *needed)
{
    double x = plane->x, y = plane->y;
    return (PlaneBox){
        .samples = plane->samples,
        .stride = plane->stride,
        .left = box->left * x - plane->left,
        .top = box->top * y - plane->top,
        .width = box->width * x,
        .height = box->height * y,
        .first_column = (int)(needed->left * x) - plane->left,
        .last_column = (int)fmin(ceil((needed->left + needed->width) * x), plane->columns) - plane->left,
        .first_row = (int)(needed->top * y) - plane->top,
        .last_row = (int)fmin(ceil((needed->top + needed->height) * y), plane->rows) - plane->top,
    };
}

/* Reads the headers of active->image and finds the intervals to decode. Returns 0, or -1 if Python
   must decode it. */
static int open_image(Decoder *decoder, ActiveImage *active)
{
    const Image *image = &active->image;
    Header *header = &active->header;
    active->next_interval = active->lanes = active->intervals.count = 0;
    header_start(header, image->data, image->size);
    if (next_scan(header) != SCAN_FOUND || !is_supported(header, image, decoder->max_pixels))
        return -1;
    active->needed = cells_of(&image->needed, BLOCK_SIDE * header->max_h_factor, BLOCK_SIDE * header->max_v_factor);
    if (!is_only_scan(header))
        return 0;
    return find_intervals(&active->intervals, header, header->mcu_columns, header->mcu_rows, &active->needed);
}

/* Prepares an opened image for decoding. One with more than one scan is decoded completely. Returns
   0, or -1 on failure. */
static int start_image(Decoder *decoder, ActiveImage *active)
{
    if (set_up_planes(active))
        return -1;
    if (!is_only_scan(&active->header))
        return decode_multiple_scans(decoder, active);
    set_quantization(active);
    return set_up_mcu_layout(&active->mcu_layout, &active->tables, &active->header);
}

/* Returns whether an image has intervals that no lane has started. */
static int has_intervals(const ActiveImage *active)
{
    return !active->failed && active->next_interval < active->intervals.count;
}

/* Returns whether the image ends after its decoded scan. If the end of the scan was not needed,
   this is not checked. */
static int ends_after_scan(ActiveImage *active)
{
    if (!active->intervals.count || active->needed.bottom < active->header.mcu_rows)
        return 1;
    active->header.position = active->intervals.end_offset;
    return next_scan(&active->header) == END_OF_IMAGE;
}

/* Passes the planes of an image to store_planes(). */
static void finish_image(const Decoder *decoder, ActiveImage *active)
{
    const ImageStream *stream = decoder->stream;
    const Header *header = &active->header;
    Planes planes = {.count = header->component_count, .is_rgb = is_rgb(header)};
    int failed = active->failed || !ends_after_scan(active);
    for (int c = 0; c < header->component_count && !failed; c++) {
        planes.plane[c] = plane_of(active, c);
        planes.box[c] = box_in_plane(&planes.plane[c], &active->image.box, &active->image.needed);
    }
    add_elapsed(stream->watch, &stream->watch->elapsed.decode);
    stream->store_planes(stream->context, active->image.number, failed ? NULL : &planes);
}

/* Returns an image that has intervals to start: one that is in use, or the next one of the stream.
   Returns NULL if there is none. */
static ActiveImage *find_image(Decoder *decoder)
{
    const ImageStream *stream = decoder->stream;
    for (int i = 0; i < 2; i++)
        if (decoder->active[i].in_use && has_intervals(&decoder->active[i]))
            return &decoder->active[i];
    /* one of the two is free, as the lane that calls this has no image */
    ActiveImage *active = &decoder->active[decoder->active[0].in_use];
    while (stream->next_image(stream->context, &active->image)) {
        add_elapsed(stream->watch, &stream->watch->elapsed.decode);
        active->failed = open_image(decoder, active);
        add_elapsed(stream->watch, &stream->watch->elapsed.slice);
        active->failed = active->failed || start_image(decoder, active);
        active->in_use = has_intervals(active);
        if (active->in_use)
            return active;
        finish_image(decoder, active);
    }
    return NULL;
}

/* Starts the next interval of an image in `lane`. Returns 0, or -1 if memory ran out. */
static int start_interval(ImageLane *lane, ActiveImage *active)
{
    const Interval *interval = &active->intervals.list[active->next_interval++];
    int mcu_columns = active->header.mcu_columns;
    int max_mcus = mcu_columns < interval->mcu_count ? mcu_columns : interval->mcu_count;
    size_t blocks = (size_t)max_mcus * (size_t)active->mcu_layout.block_count;
    lane->active = active;
    lane->interval = interval;
    lane->first_mcu = interval->first_mcu;
    lane->mcu_count = 0;
    active->lanes++;
    interval_start(&lane->state, interval);
    if (!buffer_reserve(&lane->blocks, blocks * BLOCK_SIZE * sizeof(int16_t)) ||
        !buffer_reserve(&lane->last_index, blocks))
        return -1;
    return 0;
}

/* Sets mcu_count to the number of MCUs that the lane decodes next. Returns whether there are any. */
static int select_mcus(ImageLane *lane)
{
    int mcu_columns = lane->active->header.mcu_columns;
    int left = lane->interval->first_mcu + lane->interval->needed_count - lane->first_mcu;
    lane->mcu_count = left < mcu_columns ? left : mcu_columns;
    return left > 0;
}

/* Transforms the MCUs that a lane has decoded, and selects the next ones of its interval. Returns
   whether there are any. */
static int continue_interval(ImageLane *lane, int failed)
{
    ActiveImage *active = lane->active;
    active->failed = active->failed || failed;
    if (active->failed)
        return 0;
    transform_mcus(
        active, lane->first_mcu, lane->mcu_count, (int16_t *)(void *)lane->blocks.bytes, lane->last_index.bytes);
    lane->first_mcu += lane->mcu_count;
    if (lane->first_mcu == lane->interval->first_mcu + lane->interval->mcu_count && !is_consumed(&lane->state))
        active->failed = 1;
    return !active->failed && select_mcus(lane);
}

/* Removes a lane from its image. The image is finished if this was the last lane and no interval is
   left. */
static void leave_image(const Decoder *decoder, ImageLane *lane)
{
    ActiveImage *active = lane->active;
    active->lanes--;
    lane->active = NULL;
    if (!active->lanes && !has_intervals(active)) {
        active->in_use = 0;
        finish_image(decoder, active);
    }
}

/* The NextMcuRange of a decoder; `source` is a Decoder. Chooses the next MCUs of the lane's
   interval, or the next interval of an image in use, or the next image. So both lanes decode the
   same image while it has intervals. */
static int next_image_range(void *source, int number, int failed, McuRange *range)
{
    Decoder *decoder = source;
    ImageLane *lane = &decoder->lane[number];
    if (lane->active && !continue_interval(lane, failed))
        leave_image(decoder, lane);
    while (!lane->active) {
        ActiveImage *active = find_image(decoder);
        if (!active)
            return 0;
        active->failed = start_interval(lane, active) || !select_mcus(lane);
        if (active->failed)
            leave_image(decoder, lane);
    }
    int16_t *blocks = (int16_t *)(void *)lane->blocks.bytes;
    memset(
        blocks, 0,
        (size_t)lane->mcu_count * (size_t)lane->active->mcu_layout.block_count * BLOCK_SIZE * sizeof(int16_t));
    *range = (McuRange){
        &lane->active->mcu_layout, &lane->state, lane->mcu_count, {blocks, lane->last_index.bytes}};
    return 1;
}

void decode_images(Decoder *decoder, const ImageStream *stream)
{
    decoder->stream = stream;
    kernels()->decode_mcu_ranges(&decoder->order, next_image_range, decoder);
    decoder->stream = NULL;
}

/* The context of an ImageStream with one image. */
typedef struct {
    const Image *image; /* NULL after next_single() */
    Planes *planes;
    int failed;
} SingleImage;

static int next_single(void *context, Image *image)
{
    SingleImage *single = context;
    if (!single->image)
        return 0;
    *image = *single->image;
    single->image = NULL;
    return 1;
}

static void store_single(void *context, size_t number, const Planes *planes)
{
    SingleImage *single = context;
    (void)number;
    if (planes)
        *single->planes = *planes;
    single->failed = !planes;
}

int decode_image(Decoder *decoder, const Image *image, Planes *planes)
{
    Stopwatch watch;
    SingleImage single = {image, planes, 1};
    stopwatch_start(&watch, 0);
    decode_images(decoder, &(ImageStream){&single, next_single, store_single, &watch});
    return single.failed ? -1 : 0;
}
