/* Decoding no more of a JPEG than a region needs.

   Of a sequential scan only those restart intervals are decoded that the region touches, or, without restart markers, the
   rows down to its end; and only blocks that it touches are transformed. Planes are left as they are stored: to resize
   them and then turn the result into RGB is less work than the other way round, by the factor of the resizing, and half
   as much again for chroma. */
#include "picture.h"

#include <math.h>
#include <stdlib.h>

#include "coefficients.h"
#include "kernels.h"

#define ROW_SLACK (2 * LANES) /* what may be read and written behind a row of a plane */

/* The blocks of a component that a region needs, and the plane that they become. */
typedef struct {
    int left, right, top, bottom; /* [left, right) x [top, bottom), in blocks */
    int side;                     /* samples of a block in the plane */
    size_t stride;
    Quantization quantization;
} Part;

struct Decoder {
    size_t max_pixels;
    Picture picture;
    Header header;
    Tables tables;
    Intervals intervals;
    Coefficients coefficients;
    Order order;
    McuBox needed;
    Part part[MAX_COMPONENTS];
    Room plane[MAX_COMPONENTS], blocks, last;
};

Decoder *decoder_new(void)
{
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return NULL;
    pair_order(&decoder->order);
    return decoder;
}

void decoder_limit(Decoder *decoder, size_t max_pixels)
{
    decoder->max_pixels = max_pixels;
}

void decoder_free(Decoder *decoder)
{
    intervals_free(&decoder->intervals);
    coefficients_free(&decoder->coefficients);
    for (int c = 0; c < MAX_COMPONENTS; c++)
        room_free(&decoder->plane[c]);
    room_free(&decoder->blocks);
    room_free(&decoder->last);
    free(decoder);
}

size_t decoder_size(const Decoder *decoder)
{
    size_t bytes = decoder->intervals.bytes.size + decoder->intervals.items.size + decoder->coefficients.blocks.size +
                   decoder->coefficients.last.size + decoder->blocks.size + decoder->last.size;
    for (int c = 0; c < MAX_COMPONENTS; c++)
        bytes += decoder->plane[c].size;
    return bytes;
}

/* Returns whether chroma is stored as encoders do it: both planes alike, and no finer than luma. */
static int is_sampled_evenly(const Header *header)
{
    const Component *one = &header->component[0], *two = &header->component[1], *three = &header->component[2];
    return header->count == 1 ||
           (one->across % two->across == 0 && one->down % two->down == 0 && two->across == three->across &&
            two->down == three->down);
}

/* Returns whether a picture is one of ours, holds the region, and takes no more memory than the length of its file
   explains; what that means is told in Python, in jpeg.check_effort(). */
static int is_ours(const Decoder *decoder, const Region *region)
{
    const Header *header = &decoder->header;
    size_t width = (size_t)header->width, height = (size_t)header->height;
    return is_sampled_evenly(header) && header->adobe_transform <= 1 && width * height <= decoder->max_pixels &&
           (size_t)region->left + (size_t)region->width <= width &&
           (size_t)region->top + (size_t)region->height <= height &&
           8 * header->size >= ((width + 7) / 8) * ((height + 7) / 8);
}

/* Returns whether one scan brings all there is. */
static int is_one_scan(const Header *header)
{
    return !header->is_progressive && header->scan.count == header->count;
}

/* Returns what a region covers of a grid of cells. */
static McuBox cells_of(const Region *region, int width, int height)
{
    return (McuBox){
        region->left / width, quotient_up(region->left + region->width, width), region->top / height,
        quotient_up(region->top + region->height, height)};
}

int open_picture(Decoder *decoder, const Picture *picture)
{
    Header *header = &decoder->header;
    decoder->picture = *picture;
    header_start(header, picture->data, picture->size);
    if (next_scan(header) != A_SCAN || !is_ours(decoder, &picture->needed))
        return -1;
    decoder->needed = cells_of(&picture->needed, SIDE * header->most_across, SIDE * header->most_down);
    if (!is_one_scan(header))
        return 0;
    return find_intervals(
        &decoder->intervals, header, header->mcus_across, header->mcus_down, &decoder->needed);
}

/* Returns how many samples a block becomes on each side: of chroma more than of luma, as long as it gets no finer than
   that. */
static int side_of(const Header *header, const Component *component, int side)
{
    int most_across = header->most_across * side, most_down = header->most_down * side;
    while (side < SIDE && most_across % (component->across * side * 2) == 0 &&
           most_down % (component->down * side * 2) == 0)
        side *= 2;
    return side;
}

/* Finds which blocks are needed, and makes room for what they become. */
static int make_parts(Decoder *decoder, int spare)
{
    const Header *header = &decoder->header;
    for (int c = 0; c < header->count; c++) {
        const Component *component = &header->component[c];
        Part *part = &decoder->part[c];
        const Region *needed = &decoder->picture.needed;
        int across = component->across, down = component->down;
        Region finer = {needed->left * across, needed->top * down, needed->width * across, needed->height * down};
        McuBox blocks = cells_of(&finer, SIDE * header->most_across, SIDE * header->most_down);
        part->left = blocks.left;
        part->right = blocks.right;
        part->top = blocks.top;
        part->bottom = blocks.bottom;
        part->side = side_of(header, component, SIDE / spare);
        part->stride = (size_t)(part->right - part->left) * (size_t)part->side + ROW_SLACK;
        size_t rows = (size_t)(part->bottom - part->top) * (size_t)part->side;
        if (!room_for(&decoder->plane[c], rows * part->stride))
            return -1;
    }
    return 0;
}

/* Takes the quantization tables, which a component has once its first scan was read. */
static void take_quantization(Decoder *decoder)
{
    for (int c = 0; c < decoder->header.count; c++)
        pair_quantization(decoder->header.component[c].quantization, &decoder->part[c].quantization);
}

/* Transforms a block into its plane, if it is needed. */
static inline void place_block(
    Decoder *decoder, InverseDct *inverse_dct, int c, int row, int column, const int16_t *block, int last)
{
    const Part *part = &decoder->part[c];
    if (column < part->left || column >= part->right || row < part->top || row >= part->bottom)
        return;
    size_t y = (size_t)(row - part->top) * (size_t)part->side, x = (size_t)(column - part->left) * (size_t)part->side;
    inverse_dct(block, last, &part->quantization, part->side, decoder->plane[c].bytes + y * part->stride + x, part->stride);
}

/* Transforms the blocks of MCUs. */
static void place_mcus(Decoder *decoder, int first, int count, const int16_t *block, const uint8_t *last)
{
    const Header *header = &decoder->header;
    InverseDct *inverse_dct = kernels()->inverse_dct;
    int row = first / header->mcus_across, column = first % header->mcus_across;
    for (int mcu = 0; mcu < count; mcu++) {
        for (int c = 0; c < header->count; c++) {
            const Component *component = &header->component[c];
            for (int y = 0; y < component->down; y++)
                for (int x = 0; x < component->across; x++, block += BLOCK, last++)
                    place_block(
                        decoder, inverse_dct, c, row * component->down + y, column * component->across + x, block,
                        *last);
        }
        if (++column == header->mcus_across) {
            column = 0;
            row++;
        }
    }
}

/* Some MCUs of one or two intervals at a time: a row of them at most, so that their coefficients stay in the cache. */
static int decode_intervals(Decoder *decoder, const Mcu *mcu, const Interval *interval, int lanes)
{
    const Header *header = &decoder->header;
    int most = header->mcus_across, stop = decoder->needed.bottom * header->mcus_across;
    size_t blocks = (size_t)(most < interval[0].count ? most : interval[0].count) * (size_t)mcu->blocks;
    int16_t *at = (int16_t *)(void *)room_for(&decoder->blocks, (size_t)lanes * blocks * BLOCK * sizeof(int16_t));
    uint8_t *last = room_for(&decoder->last, (size_t)lanes * blocks);
    Blocks to[2] = {{at, last}, {at + blocks * BLOCK, last + blocks}};
    Stream stream[2];
    if (!at || !last)
        return -1;
    for (int i = 0; i < lanes; i++)
        stream_start(&stream[i], &interval[i]);
    for (int done = 0; done < interval[0].count && interval[0].first + done < stop; done += most) {
        int count[2] = {0, 0}, failed;
        for (int i = 0; i < lanes; i++) {
            count[i] = interval[i].count - done < most ? interval[i].count - done : most;
            if (count[i] > 0)
                memset(to[i].blocks, 0, (size_t)count[i] * (size_t)mcu->blocks * BLOCK * sizeof(int16_t));
        }
        if (count[1] > 0)
            failed = kernels()->decode_two(
                mcu, &decoder->order, &stream[0], count[0], to[0], &stream[1], count[1], to[1]);
        else
            failed = kernels()->decode_mcus(mcu, &decoder->order, &stream[0], count[0], to[0]);
        if (failed)
            return -1;
        for (int i = 0; i < lanes; i++) {
            if (count[i] > 0)
                place_mcus(decoder, interval[i].first + done, count[i], to[i].blocks, to[i].last);
            if (done + most >= interval[i].count && count[i] > 0 && !is_used_up(&stream[i]))
                return -1;
        }
    }
    return 0;
}

static int decode_one_scan(Decoder *decoder)
{
    Intervals *intervals = &decoder->intervals;
    Mcu mcu;
    if (plan_mcu(&mcu, &decoder->tables, &decoder->header))
        return -1;
    take_quantization(decoder);
    for (int i = 0; i < intervals->count; i += 2)
        if (decode_intervals(decoder, &mcu, &intervals->list[i], i + 1 < intervals->count ? 2 : 1))
            return -1;
    if (decoder->needed.bottom < decoder->header.mcus_down)
        return 0; /* what comes behind is not looked at */
    decoder->header.position = intervals->end;
    return next_scan(&decoder->header) == NO_MORE_SCANS ? 0 : -1;
}

static int decode_all_scans(Decoder *decoder)
{
    Header *header = &decoder->header;
    Coefficients *coefficients = &decoder->coefficients;
    if (decode_all(
            coefficients, header, &decoder->tables, &decoder->intervals, &decoder->order, decoder->max_pixels))
        return -1;
    take_quantization(decoder);
    int mcus = header->mcus_across * header->mcus_down;
    memset(coefficients->last.bytes, BLOCK - 1, (size_t)mcus * (size_t)coefficients->of_mcu);
    for (int row = decoder->needed.top; row < decoder->needed.bottom; row++) {
        size_t first = (size_t)row * (size_t)header->mcus_across * (size_t)coefficients->of_mcu;
        place_mcus(
            decoder, row * header->mcus_across, header->mcus_across, blocks_of(coefficients) + first * BLOCK,
            coefficients->last.bytes + first);
    }
    return 0;
}

/* Says where the box is in a plane, and what is there of it. */
static Box place_in(const Decoder *decoder, int c)
{
    const Header *header = &decoder->header;
    const Region *box = &decoder->picture.box, *needed = &decoder->picture.needed;
    const Part *part = &decoder->part[c];
    int left = part->left * part->side, top = part->top * part->side;
    double x = header->component[c].across * part->side / (double)(header->most_across * SIDE);
    double y = header->component[c].down * part->side / (double)(header->most_down * SIDE);
    return (Box){
        .samples = decoder->plane[c].bytes,
        .stride = part->stride,
        .left = box->left * x - left,
        .top = box->top * y - top,
        .width = box->width * x,
        .height = box->height * y,
        .first_column = (int)(needed->left * x) - left,
        .last_column = (int)fmin(ceil((needed->left + needed->width) * x), ceil(header->width * x)) - left,
        .first_row = (int)(needed->top * y) - top,
        .last_row = (int)fmin(ceil((needed->top + needed->height) * y), ceil(header->height * y)) - top,
    };
}

int decode_planes(Decoder *decoder, int spare, Planes *planes)
{
    const Header *header = &decoder->header;
    if (make_parts(decoder, spare) || (is_one_scan(header) ? decode_one_scan(decoder) : decode_all_scans(decoder)))
        return -1;
    planes->planes = header->count;
    planes->is_rgb = is_rgb(header);
    for (int c = 0; c < header->count; c++)
        planes->box[c] = place_in(decoder, c);
    return 0;
}
