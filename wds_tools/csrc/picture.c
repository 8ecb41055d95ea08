/* Decoding no more of a JPEG than a region needs.

   Of a file with restart markers (T.81, E.1.4) only the pieces that the region touches are given to libjpeg, as a
   smaller JPEG of their own; of any other only the rows down to its end, and above it no inverse transform is done.
   Planes are taken as they are stored (raw_data_out): to resize them and then turn the result into RGB is less work
   than the other way round, by the factor of the resizing, and half as much again for chroma. */
#include "picture.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#ifndef LIBJPEG_TURBO_VERSION
#error "another libjpeg scales components in other ways, and would write more rows than there is room for"
#endif

#define MOST_PASSES 16 /* as in jpeg.py */
#define MAX_LINES (4 * DCTSIZE) /* rows of one component in a row of MCUs: sampling factors are 4 at most */

#if JPEG_LIB_VERSION >= 70
#define BLOCK_SIDE(component) ((component)->DCT_h_scaled_size)
#define LEAST_SIDE(jpeg) ((jpeg)->min_DCT_h_scaled_size)
#else
#define BLOCK_SIDE(component) ((component)->DCT_scaled_size)
#define LEAST_SIDE(jpeg) ((jpeg)->min_DCT_scaled_size)
#endif

struct Decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
    size_t max_pixels;
    Room pieces, plane[3];
};

static void give_up(j_common_ptr jpeg)
{
    longjmp(((Decoder *)jpeg->client_data)->failed, 1);
}

/* A warning may mean lost pixels. Which ones do is told in one place, in Python. */
static void no_warnings(j_common_ptr jpeg, int level)
{
    if (level < 0)
        give_up(jpeg);
}

Decoder *decoder_new(size_t max_pixels)
{
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return NULL;
    decoder->max_pixels = max_pixels;
    decoder->jpeg.err = jpeg_std_error(&decoder->errors);
    decoder->jpeg.client_data = decoder;
    decoder->errors.error_exit = give_up;
    decoder->errors.emit_message = no_warnings;
    return decoder;
}

void decoder_free(Decoder *decoder)
{
    free(decoder->pieces.bytes);
    for (int c = 0; c < 3; c++)
        free(decoder->plane[c].bytes);
    free(decoder);
}

/* What is known of a file with restart markers before it is decoded. */
typedef struct {
    size_t height_at, scan_at;  /* bytes */
    int width, height;          /* pixels */
    int cell_width, cell_height; /* pixels of a piece between restart markers */
    int columns, rows;          /* pieces */
} Grid;

static int be16(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

/* Reads a frame header (T.81, B.2.2) of `size` bytes behind its length. */
static int read_frame(const uint8_t *at, size_t size, Grid *grid, int *components)
{
    int across = 1, down = 1;
    if (size < 6 || at[0] != 8 || grid->width)
        return -1;
    grid->height = be16(at + 1);
    grid->width = be16(at + 3);
    *components = at[5];
    if (!grid->width || !grid->height || size < 6 + 3 * (size_t)*components)
        return -1;
    for (int c = 0; *components > 1 && c < *components; c++) {
        int factors = at[7 + 3 * c];
        across = factors >> 4 > across ? factors >> 4 : across;
        down = (factors & 15) > down ? factors & 15 : down;
    }
    grid->cell_width = DCTSIZE * across;
    grid->cell_height = DCTSIZE * down;
    return 0;
}

/* Frames that are progressive, lossless or arithmetic, and markers that have no length. */
static int is_strange(int marker)
{
    return (marker > 0xC1 && marker < 0xDA && marker != 0xC4) || marker < 0x02 || marker == 0xFF;
}

/* Returns 0 for a sequential JPEG of one scan whose restart markers divide each row of MCUs into equal pieces. */
static int find_grid(const uint8_t *data, size_t size, Grid *grid)
{
    int restart = 0, components = 0;
    memset(grid, 0, sizeof *grid);
    for (size_t at = 2, next; at + 10 < size && data[at] == 0xFF; at = next) {
        int marker = data[at + 1];
        next = at + 2 + (size_t)be16(data + at + 2);
        if (next > size || next < at + 4)
            return -1;
        if (marker == 0xC0 || marker == 0xC1) {
            grid->height_at = at + 5;
            if (read_frame(data + at + 4, next - at - 4, grid, &components))
                return -1;
        } else if (marker == 0xDD) {
            restart = be16(data + at + 4);
        } else if (marker == 0xDA) {
            int row = grid->width ? (grid->width + grid->cell_width - 1) / grid->cell_width : 0;
            if (!row || data[at + 4] != components || !restart || row % restart)
                return -1;
            grid->scan_at = next;
            grid->columns = row / restart;
            grid->rows = (grid->height + grid->cell_height - 1) / grid->cell_height;
            grid->cell_width *= restart;
            return 0;
        } else if (is_strange(marker)) {
            return -1;
        }
    }
    return -1;
}

/* Returns the end of the piece at `from`, its marker included, or NULL if that is not the one that is due. */
static const uint8_t *piece_end(const uint8_t *from, const uint8_t *end, int due)
{
    while ((from = memchr(from, 0xFF, (size_t)(end - from))) && from + 1 < end && !from[1])
        from += 2; /* a coded FF */
    return from && from + 1 < end && from[1] == due ? from + 2 : NULL;
}

/* Returns what pieces [left, right) x [top, bottom) make up, in pixels. */
static Region covered(const Grid *grid, int left, int right, int top, int bottom)
{
    int x = left * grid->cell_width, y = top * grid->cell_height;
    int end_x = right == grid->columns ? grid->width : right * grid->cell_width;
    int end_y = bottom == grid->rows ? grid->height : bottom * grid->cell_height;
    return (Region){x, y, end_x - x, end_y - y};
}

/* Copies the pieces that are needed, their markers numbered anew. Returns where they end, or NULL if the markers
   are not those that the header promises. */
static uint8_t *copy_pieces(
    const Picture *picture, const Grid *grid, int left, int right, int top, int bottom, uint8_t *to)
{
    const uint8_t *from = picture->data + grid->scan_at, *end = picture->data + picture->size;
    int kept = 0;
    for (int row = 0; row < bottom; row++)
        for (int column = 0; column < grid->columns; column++) {
            int number = row * grid->columns + column;
            int is_last = number == grid->columns * grid->rows - 1;
            const uint8_t *next = piece_end(from, end, is_last ? 0xD9 : 0xD0 | (number & 7));
            if (!next)
                return NULL;
            if (row >= top && column >= left && column < right) {
                memcpy(to, from, (size_t)(next - from));
                to += next - from;
                to[-1] = (uint8_t)(0xD0 | (kept++ & 7));
            }
            from = next;
        }
    to[-1] = 0xD9;
    return to;
}

static void put_be16(uint8_t *at, int value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

Picture cut_picture(Decoder *decoder, const Picture *picture)
{
    const Region *needed = &picture->needed;
    Grid grid;
    if (find_grid(picture->data, picture->size, &grid) || needed->left + needed->width > grid.width ||
        needed->top + needed->height > grid.height)
        return *picture;
    int left = needed->left / grid.cell_width, right = (needed->left + needed->width - 1) / grid.cell_width + 1;
    int top = needed->top / grid.cell_height, bottom = (needed->top + needed->height - 1) / grid.cell_height + 1;
    uint8_t *out = room_for(&decoder->pieces, picture->size);
    if (!out || (right - left == grid.columns && bottom - top == grid.rows))
        return *picture;
    uint8_t *end = copy_pieces(picture, &grid, left, right, top, bottom, out + grid.scan_at);
    if (!end)
        return *picture;
    Region there = covered(&grid, left, right, top, bottom);
    memcpy(out, picture->data, grid.scan_at);
    put_be16(out + grid.height_at, there.height);
    put_be16(out + grid.height_at + 2, there.width);
    Picture cut = {out, (size_t)(end - out), picture->box, picture->needed};
    cut.box.left -= there.left;
    cut.box.top -= there.top;
    cut.needed.left -= there.left;
    cut.needed.top -= there.top;
    return cut;
}

/* Returns whether chroma is stored as encoders do it. Else libjpeg itself makes no pixels, or the two planes
   differ, and the filters made for one would read beyond the other. */
static int is_sampled_evenly(const struct jpeg_decompress_struct *jpeg)
{
    const jpeg_component_info *one = &jpeg->comp_info[0], *two = &jpeg->comp_info[1], *three = &jpeg->comp_info[2];
    return one->h_samp_factor % two->h_samp_factor == 0 && one->v_samp_factor % two->v_samp_factor == 0 &&
           three->h_samp_factor == two->h_samp_factor && three->v_samp_factor == two->v_samp_factor;
}

/* Returns 0 if the picture that libjpeg has begun is one of ours and holds the region. */
static int check(const Decoder *decoder, const Region *region)
{
    const struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    int grey = jpeg->jpeg_color_space == JCS_GRAYSCALE && jpeg->num_components == 1;
    int three = jpeg->jpeg_color_space == JCS_YCbCr || jpeg->jpeg_color_space == JCS_RGB;
    int colour = three && jpeg->num_components == 3;
    if (jpeg->data_precision != 8 || !(grey || (colour && is_sampled_evenly(jpeg))))
        return -1;
    if ((size_t)jpeg->image_width * jpeg->image_height > decoder->max_pixels)
        return -1;
    if ((size_t)region->left + (size_t)region->width > jpeg->image_width)
        return -1;
    return (size_t)region->top + (size_t)region->height > jpeg->image_height ? -1 : 0;
}

/* Returns whether the picture takes no more memory and time than its size and the length of its file explain; what that
   means is told in Python, in jpeg.check_effort(). Scans are counted with what only looks like one. */
static int is_worth_the_effort(Decoder *decoder, const Picture *picture)
{
    struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    const uint8_t *at = picture->data, *end = picture->data + picture->size;
    size_t width = jpeg->image_width, height = jpeg->image_height, scans = 0;
    if (!jpeg->arith_code && 8 * picture->size < ((width + 7) / 8) * ((height + 7) / 8))
        return 0;
    if (!jpeg_has_multiple_scans(jpeg))
        return 1;
    for (; (at = memchr(at, 0xFF, (size_t)(end - at))) && at + 1 < end; at++)
        scans += at[1] == 0xDA;
    return scans * width * height <= MOST_PASSES * decoder->max_pixels;
}

/* Decodes the rows down to the region's end into the decoder's planes. */
static void decode_rows(Decoder *decoder, const Region *region, const size_t *stride)
{
    struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    int side = LEAST_SIDE(jpeg);
    JDIMENSION step = (JDIMENSION)(jpeg->max_v_samp_factor * side), row_of_mcus = 0;
    double scale = side / (double)DCTSIZE;
    double first = region->top * scale, last = (region->top + region->height) * scale;
    JSAMPROW lines[3][MAX_LINES];
    JSAMPARRAY planes[3] = {lines[0], lines[1], lines[2]};
    for (; row_of_mcus * step < last; row_of_mcus++) {
        for (int c = 0; c < jpeg->num_components; c++) {
            jpeg_component_info *component = &jpeg->comp_info[c];
            int count = component->v_samp_factor * BLOCK_SIDE(component);
            for (int i = 0; i < count; i++)
                lines[c][i] = decoder->plane[c].bytes + (row_of_mcus * (size_t)count + (size_t)i) * stride[c];
            component->component_needed = (row_of_mcus + 1) * step > first; /* above, no inverse transform */
        }
        if (jpeg_read_raw_data(jpeg, planes, step) != step)
            give_up((j_common_ptr)jpeg);
    }
}

/* Says where a box is in a plane, and what is there of it. */
static Box place_in(const Decoder *decoder, const Region *box, const Region *needed, int c, size_t stride)
{
    const struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    const jpeg_component_info *component = &jpeg->comp_info[c];
    double x = component->h_samp_factor * BLOCK_SIDE(component) / (double)(jpeg->max_h_samp_factor * DCTSIZE);
    double y = component->v_samp_factor * BLOCK_SIDE(component) / (double)(jpeg->max_v_samp_factor * DCTSIZE);
    return (Box){
        .samples = decoder->plane[c].bytes,
        .stride = stride,
        .left = box->left * x,
        .top = box->top * y,
        .width = box->width * x,
        .height = box->height * y,
        .first_column = (int)(needed->left * x),
        .last_column = (int)fmin(ceil((needed->left + needed->width) * x), component->downsampled_width),
        .first_row = (int)(needed->top * y),
        .last_row = (int)fmin(ceil((needed->top + needed->height) * y), component->downsampled_height),
    };
}

/* Makes room for the planes, and says how long their rows are. */
static void make_room(Decoder *decoder, size_t *stride)
{
    struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    for (int c = 0; c < jpeg->num_components; c++) {
        jpeg_component_info *component = &jpeg->comp_info[c];
        int lines = component->v_samp_factor * BLOCK_SIDE(component);
        stride[c] = (size_t)component->width_in_blocks * (size_t)BLOCK_SIDE(component) + SLACK;
        if (lines > MAX_LINES || !room_for(&decoder->plane[c], stride[c] * (size_t)lines * jpeg->total_iMCU_rows))
            give_up((j_common_ptr)jpeg);
    }
}

int decode_picture(Decoder *decoder, const Picture *picture, int spare, Planes *planes)
{
    struct jpeg_decompress_struct *jpeg = &decoder->jpeg;
    size_t stride[3];
    if (setjmp(decoder->failed)) {
        jpeg_destroy_decompress(jpeg);
        return -1;
    }
    jpeg_create_decompress(jpeg); /* anew: it keeps tables, and the next picture may have none of its own */
    jpeg_mem_src(jpeg, picture->data, picture->size);
    jpeg_read_header(jpeg, TRUE);
    if (check(decoder, &picture->needed) || !is_worth_the_effort(decoder, picture))
        give_up((j_common_ptr)jpeg);
    jpeg->raw_data_out = TRUE;
    jpeg->scale_num = 1;
    jpeg->scale_denom = (unsigned)spare;
    jpeg_start_decompress(jpeg);
    make_room(decoder, stride);
    decode_rows(decoder, &picture->needed, stride);
    planes->planes = jpeg->num_components;
    planes->is_rgb = jpeg->jpeg_color_space == JCS_RGB;
    for (int c = 0; c < jpeg->num_components; c++)
        planes->box[c] = place_in(decoder, &picture->box, &picture->needed, c, stride[c]);
    if (jpeg->output_scanline >= jpeg->output_height)
        jpeg_finish_decompress(jpeg); /* warns where the end of the file is missing */
    jpeg_destroy_decompress(jpeg);
    return 0;
}
