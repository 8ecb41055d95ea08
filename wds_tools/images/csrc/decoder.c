/* Decoding no more of a JPEG than a region needs.

      Of a sequential scan only those restart intervals are decoded that the region touches, or,
   without restart markers, the rows down to its end; and only blocks that it touches are
   transformed. Planes are left as they are stored: to resize them and then turn the result into
   RGB is less work than the other way round, by the factor of the resizing, and half as much
   again for chroma. */
#include "decoder.h"

#include <math.h>
#include <stdlib.h>

#include "coefficients.h"
#include "kernels.h"

#define ROW_SLACK (2 * STRIP) /* what may be read and written behind a row of a plane */

/* The blocks of a component that a region needs, and the plane that they become. */
typedef struct {
    int left, right, top, bottom; /* [left, right) x [top, bottom), in blocks */
    int side;                     /* samples of a block in the plane */
    size_t stride;
    Quantization quantization;
} Part;

/* A picture while it is decoded. */
typedef struct {
    Picture picture;
    Header header;
    Tables tables;
    Mcu mcu;
    Intervals intervals;
    McuBox needed;
    Part part[MAX_COMPONENTS];
    GrowBuffer plane[MAX_COMPONENTS];
    int begun;   /* intervals */
    int lanes;   /* how many decode it now */
    int is_open; /* it has intervals that have not been decoded yet */
    int failed;
} Opened;

/* One of two lanes, in an interval of a picture. */
typedef struct {
    Opened *opened; /* NULL: in none */
    const Interval *interval;
    int mcu, count; /* those that it decodes: a row of MCUs at most, so that their coefficients stay in the cache */
    Stream stream;
    GrowBuffer blocks, last;
} PictureLane;

struct Decoder {
    size_t max_pixels;
    Order order;
    Opened opened[2];
    PictureLane lane[2];
    Coefficients coefficients; /* of a picture with several scans */
    const Pictures *pictures;
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
    for (int i = 0; i < 2; i++) {
        Opened *opened = &decoder->opened[i];
        intervals_free(&opened->intervals);
        for (int c = 0; c < MAX_COMPONENTS; c++)
            buffer_free(&opened->plane[c]);
        buffer_free(&decoder->lane[i].blocks);
        buffer_free(&decoder->lane[i].last);
    }
    coefficients_free(&decoder->coefficients);
    free(decoder);
}

size_t decoder_size(const Decoder *decoder)
{
    size_t bytes = decoder->coefficients.blocks.size + decoder->coefficients.last.size;
    for (int i = 0; i < 2; i++) {
        const Opened *opened = &decoder->opened[i];
        bytes += opened->intervals.bytes.size + opened->intervals.items.size;
        bytes += decoder->lane[i].blocks.size + decoder->lane[i].last.size;
        for (int c = 0; c < MAX_COMPONENTS; c++)
            bytes += opened->plane[c].size;
    }
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

/* Returns whether a picture is one of ours, holds the region, and takes no more memory than the
   length of its file explains; what that means is told in Python, in jpeg.check_effort(). */
static int is_ours(const Header *header, const Region *region, size_t max_pixels)
{
    size_t width = (size_t)header->width, height = (size_t)header->height;
    return is_sampled_evenly(header) && header->adobe_transform <= 1 && width * height <= max_pixels &&
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

/* Returns how many samples a block becomes on each side: of chroma more than of luma, as long as
   it gets no finer than that. */
static int side_of(const Header *header, const Component *component, int side)
{
    int most_across = header->most_across * side, most_down = header->most_down * side;
    while (side < SIDE && most_across % (component->across * side * 2) == 0 &&
           most_down % (component->down * side * 2) == 0)
        side *= 2;
    return side;
}

/* Finds which blocks are needed, and makes room for what they become. */
static int make_parts(Opened *opened)
{
    const Header *header = &opened->header;
    for (int c = 0; c < header->count; c++) {
        const Component *component = &header->component[c];
        Part *part = &opened->part[c];
        const Region *needed = &opened->picture.needed;
        int across = component->across, down = component->down;
        Region finer = {needed->left * across, needed->top * down, needed->width * across, needed->height * down};
        McuBox blocks = cells_of(&finer, SIDE * header->most_across, SIDE * header->most_down);
        part->left = blocks.left;
        part->right = blocks.right;
        part->top = blocks.top;
        part->bottom = blocks.bottom;
        part->side = side_of(header, component, SIDE / opened->picture.scale_denominator);
        part->stride = (size_t)(part->right - part->left) * (size_t)part->side + ROW_SLACK;
        size_t rows = (size_t)(part->bottom - part->top) * (size_t)part->side;
        if (!buffer_reserve(&opened->plane[c], rows * part->stride))
            return -1;
    }
    return 0;
}

/* Takes the quantization tables, which a component has once its first scan was read. */
static void take_quantization(Opened *opened)
{
    for (int c = 0; c < opened->header.count; c++)
        pair_quantization(opened->header.component[c].quantization, &opened->part[c].quantization);
}

/* Transforms a block into its plane, if it is needed. */
static inline void transform_block(
    Opened *opened, InverseDct *inverse_dct, int c, int row, int column, const int16_t *block, int last)
{
    const Part *part = &opened->part[c];
    if (column < part->left || column >= part->right || row < part->top || row >= part->bottom)
        return;
    size_t y = (size_t)(row - part->top) * (size_t)part->side, x = (size_t)(column - part->left) * (size_t)part->side;
    inverse_dct(
        block, last, &part->quantization, part->side, opened->plane[c].bytes + y * part->stride + x, part->stride);
}

/* Transforms the blocks of MCUs. */
static void transform_mcus(Opened *opened, int first, int count, const int16_t *block, const uint8_t *last)
{
    const Header *header = &opened->header;
    InverseDct *inverse_dct = kernels()->inverse_dct;
    int row = first / header->mcus_across, column = first % header->mcus_across;
    for (int mcu = 0; mcu < count; mcu++) {
        for (int c = 0; c < header->count; c++) {
            const Component *component = &header->component[c];
            for (int y = 0; y < component->down; y++)
                for (int x = 0; x < component->across; x++, block += BLOCK, last++)
                    transform_block(
                        opened, inverse_dct, c, row * component->down + y, column * component->across + x, block,
                        *last);
        }
        if (++column == header->mcus_across) {
            column = 0;
            row++;
        }
    }
}

static int decode_all_scans(Decoder *decoder, Opened *opened)
{
    Header *header = &opened->header;
    Coefficients *coefficients = &decoder->coefficients;
    if (decode_all(
            coefficients, header, &opened->tables, &opened->intervals, &decoder->order, decoder->max_pixels))
        return -1;
    opened->intervals.count = 0; /* none is left */
    take_quantization(opened);
    int mcus = header->mcus_across * header->mcus_down;
    memset(coefficients->last.bytes, BLOCK - 1, (size_t)mcus * (size_t)coefficients->of_mcu);
    for (int row = opened->needed.top; row < opened->needed.bottom; row++) {
        size_t first = (size_t)row * (size_t)header->mcus_across * (size_t)coefficients->of_mcu;
        transform_mcus(
            opened, row * header->mcus_across, header->mcus_across, blocks_of(coefficients) + first * BLOCK,
            coefficients->last.bytes + first);
    }
    return 0;
}

/* Says where the box is in a plane, and what is there of it. */
static Box box_in_plane(const Opened *opened, int c)
{
    const Header *header = &opened->header;
    const Region *box = &opened->picture.box, *needed = &opened->picture.needed;
    const Part *part = &opened->part[c];
    int left = part->left * part->side, top = part->top * part->side;
    double x = header->component[c].across * part->side / (double)(header->most_across * SIDE);
    double y = header->component[c].down * part->side / (double)(header->most_down * SIDE);
    return (Box){
        .samples = opened->plane[c].bytes,
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

/* Reads the header of a picture and finds what must be decoded of it. Returns 0, or -1 if Python
   must decode it. */
static int open_picture(Decoder *decoder, Opened *opened)
{
    const Picture *picture = &opened->picture;
    Header *header = &opened->header;
    opened->begun = opened->lanes = opened->intervals.count = 0;
    header_start(header, picture->data, picture->size);
    if (next_scan(header) != A_SCAN || !is_ours(header, &picture->needed, decoder->max_pixels))
        return -1;
    opened->needed = cells_of(&picture->needed, SIDE * header->most_across, SIDE * header->most_down);
    if (!is_one_scan(header))
        return 0;
    return find_intervals(&opened->intervals, header, header->mcus_across, header->mcus_down, &opened->needed);
}

/* Prepares the decoding of a picture that was opened; one with several scans is decoded whole. */
static int begin_picture(Decoder *decoder, Opened *opened)
{
    if (make_parts(opened))
        return -1;
    if (!is_one_scan(&opened->header))
        return decode_all_scans(decoder, opened);
    take_quantization(opened);
    return plan_mcu(&opened->mcu, &opened->tables, &opened->header);
}

static int has_intervals(const Opened *opened)
{
    return !opened->failed && opened->begun < opened->intervals.count;
}

/* Returns whether a picture of one scan that was decoded to its end has nothing behind it. */
static int is_last_scan(Opened *opened)
{
    if (!opened->intervals.count || opened->needed.bottom < opened->header.mcus_down)
        return 1; /* what comes behind is not looked at */
    opened->header.position = opened->intervals.end;
    return next_scan(&opened->header) == NO_MORE_SCANS;
}

/* Hands on the planes of a picture. */
static void finish_picture(const Decoder *decoder, Opened *opened)
{
    const Pictures *pictures = decoder->pictures;
    const Header *header = &opened->header;
    Planes planes = {.planes = header->count, .is_rgb = is_rgb(header)};
    int failed = opened->failed || !is_last_scan(opened);
    for (int c = 0; c < header->count && !failed; c++)
        planes.box[c] = box_in_plane(opened, c);
    add_elapsed(pictures->watch, &pictures->watch->spent.decode);
    pictures->take(pictures->of, opened->picture.number, failed ? NULL : &planes);
}

/* Returns a picture that has intervals to be decoded: the one that is open, or the next. NULL:
   there is none. */
static Opened *find_picture(Decoder *decoder)
{
    const Pictures *pictures = decoder->pictures;
    for (int i = 0; i < 2; i++)
        if (decoder->opened[i].is_open && has_intervals(&decoder->opened[i]))
            return &decoder->opened[i];
    Opened *opened = &decoder->opened[decoder->opened[0].is_open]; /* a lane is in none, so one of them is free */
    while (pictures->next(pictures->of, &opened->picture)) {
        add_elapsed(pictures->watch, &pictures->watch->spent.decode);
        opened->failed = open_picture(decoder, opened);
        add_elapsed(pictures->watch, &pictures->watch->spent.slice);
        opened->failed = opened->failed || begin_picture(decoder, opened);
        opened->is_open = has_intervals(opened);
        if (opened->is_open)
            return opened;
        finish_picture(decoder, opened);
    }
    return NULL;
}

/* Begins the next interval of a picture. Returns 0, or -1 where memory has run out. */
static int begin_interval(PictureLane *lane, Opened *opened)
{
    const Interval *interval = &opened->intervals.list[opened->begun++];
    int across = opened->header.mcus_across, most = across < interval->count ? across : interval->count;
    size_t blocks = (size_t)most * (size_t)opened->mcu.blocks;
    lane->opened = opened;
    lane->interval = interval;
    lane->mcu = interval->first;
    lane->count = 0;
    opened->lanes++;
    stream_start(&lane->stream, interval);
    if (!buffer_reserve(&lane->blocks, blocks * BLOCK * sizeof(int16_t)) || !buffer_reserve(&lane->last, blocks))
        return -1;
    return 0;
}

/* Finds the next MCUs of a lane's interval. Returns 0 where there are none that are needed. */
static int next_mcus(PictureLane *lane)
{
    const Opened *opened = lane->opened;
    int across = opened->header.mcus_across, left = lane->interval->first + lane->interval->count - lane->mcu;
    lane->count = left < across ? left : across;
    return left > 0 && lane->mcu < opened->needed.bottom * across;
}

/* Takes what a lane has decoded, and makes it ready for the next MCUs of its interval. Returns 0
   if there are none. */
static int go_on(PictureLane *lane, int failed)
{
    Opened *opened = lane->opened;
    opened->failed = opened->failed || failed;
    if (opened->failed)
        return 0;
    transform_mcus(opened, lane->mcu, lane->count, (int16_t *)(void *)lane->blocks.bytes, lane->last.bytes);
    lane->mcu += lane->count;
    if (lane->mcu == lane->interval->first + lane->interval->count && !is_used_up(&lane->stream))
        opened->failed = 1;
    return !opened->failed && next_mcus(lane);
}

/* Ends a lane's work for a picture, which is finished if there is no other. */
static void leave(const Decoder *decoder, PictureLane *lane)
{
    Opened *opened = lane->opened;
    opened->lanes--;
    lane->opened = NULL;
    if (!opened->lanes && !has_intervals(opened)) {
        opened->is_open = 0;
        finish_picture(decoder, opened);
    }
}

/* NextWork: more of the lane's interval; or else the next interval of a picture that is open, so
   that both lanes are in one picture where it has restart markers; or else the next picture. */
static int next_of_pictures(void *giver, int number, int failed, Work *work)
{
    Decoder *decoder = giver;
    PictureLane *lane = &decoder->lane[number];
    if (lane->opened && !go_on(lane, failed))
        leave(decoder, lane);
    while (!lane->opened) {
        Opened *opened = find_picture(decoder);
        if (!opened)
            return 0;
        opened->failed = begin_interval(lane, opened) || !next_mcus(lane);
        if (opened->failed)
            leave(decoder, lane);
    }
    int16_t *blocks = (int16_t *)(void *)lane->blocks.bytes;
    memset(blocks, 0, (size_t)lane->count * (size_t)lane->opened->mcu.blocks * BLOCK * sizeof(int16_t));
    *work = (Work){&lane->opened->mcu, &lane->stream, lane->count, {blocks, lane->last.bytes}};
    return 1;
}

void decode_pictures(Decoder *decoder, const Pictures *pictures)
{
    decoder->pictures = pictures;
    kernels()->decode_work(&decoder->order, next_of_pictures, decoder);
    decoder->pictures = NULL;
}

/* A single picture, as `Pictures`. */
typedef struct {
    const Picture *picture; /* NULL once it was given */
    Planes *planes;
    int failed;
} Single;

static int next_single(void *of, Picture *picture)
{
    Single *single = of;
    if (!single->picture)
        return 0;
    *picture = *single->picture;
    single->picture = NULL;
    return 1;
}

static void take_single(void *of, size_t number, const Planes *planes)
{
    Single *single = of;
    (void)number;
    if (planes)
        *single->planes = *planes;
    single->failed = !planes;
}

int decode_picture(Decoder *decoder, const Picture *picture, Planes *planes)
{
    Stopwatch watch;
    Single single = {picture, planes, 1};
    stopwatch_start(&watch, 0);
    decode_pictures(decoder, &(Pictures){&single, next_single, take_single, &watch});
    return single.failed ? -1 : 0;
}
