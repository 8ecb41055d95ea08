#include "signature.h"

#include <math.h>
#include <stdlib.h>

#define GRID 32     /* cells on each side of the grid from which the hash is computed */
#define HASH_SIDE 8 /* coefficients on each side of the block that becomes the hash */
#define GRID_ONE 16 /* cells have four fractional bits */
#define PREFETCHED 12 /* blocks ahead */

/* Luma is measured after it was halved until its shorter side is below MEASURED_SIDE, and so that its measures fit into
   64 bits. */
#define MEASURED_SIDE 128
#define MAX_MEASURED ((uint64_t)1 << 24)

/* cos((2 x + 1) u pi / 64) with 12 fractional bits. The factors of a row u > 0 add up to zero. */
static const int16_t cosine[HASH_SIDE][GRID] = {
    {4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096,
     4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096},
    {4091, 4052, 3973, 3857, 3703, 3513, 3290, 3035, 2751, 2440, 2106, 1751, 1380, 995, 601, 201, -201, -601,
     -995, -1380, -1751, -2106, -2440, -2751, -3035, -3290, -3513, -3703, -3857, -3973, -4052, -4091},
    {4076, 3920, 3612, 3166, 2598, 1931, 1189, 401, -401, -1189, -1931, -2598, -3166, -3612, -3920, -4076,
     -4076, -3920, -3612, -3166, -2598, -1931, -1189, -401, 401, 1189, 1931, 2598, 3166, 3612, 3920, 4076},
    {4052, 3703, 3035, 2106, 995, -201, -1380, -2440, -3290, -3857, -4091, -3973, -3513, -2751, -1751, -601,
     601, 1751, 2751, 3513, 3973, 4091, 3857, 3290, 2440, 1380, 201, -995, -2106, -3035, -3703, -4052},
    {4017, 3406, 2276, 799, -799, -2276, -3406, -4017, -4017, -3406, -2276, -799, 799, 2276, 3406, 4017,
     4017, 3406, 2276, 799, -799, -2276, -3406, -4017, -4017, -3406, -2276, -799, 799, 2276, 3406, 4017},
    {3973, 3035, 1380, -601, -2440, -3703, -4091, -3513, -2106, -201, 1751, 3290, 4052, 3857, 2751, 995,
     -995, -2751, -3857, -4052, -3290, -1751, 201, 2106, 3513, 4091, 3703, 2440, 601, -1380, -3035, -3973},
    {3920, 2598, 401, -1931, -3612, -4076, -3166, -1189, 1189, 3166, 4076, 3612, 1931, -401, -2598, -3920,
     -3920, -2598, -401, 1931, 3612, 4076, 3166, 1189, -1189, -3166, -4076, -3612, -1931, 401, 2598, 3920},
    {3857, 2106, -601, -3035, -4091, -3290, -995, 1751, 3703, 3973, 2440, -201, -2751, -4052, -3513, -1380,
     1380, 3513, 4052, 2751, 201, -2440, -3973, -3703, -1751, 995, 3290, 4091, 3035, 601, -2106, -3857},
};

/* The average over the samples of each quarter or eighth of a row or column, for each coefficient, with 14 fractional
   bits. Only as many coefficients count as there are averages. */
static const int16_t averages_4[16] = {5793, 7423, 5352, 2607, 5793, 3075, -5352, -6293, 5793, -3075, -5352, 6293, 5793, -7423, 5352, -2607};
static const int16_t averages_8[64] = {
    5793, 8035, 7568, 6811, 5793, 4551, 3135, 1598,
    5793, 6811, 3135, -1598, -5793, -8035, -7568, -4551,
    5793, 4551, -3135, -8035, -5793, 1598, 7568, 6811,
    5793, 1598, -7568, -4551, 5793, 6811, -3135, -8035,
    5793, -1598, -7568, 4551, 5793, -6811, -3135, 8035,
    5793, -4551, -3135, 8035, -5793, -1598, 7568, -6811,
    5793, -6811, 3135, 1598, -5793, 8035, -7568, 4551,
    5793, -8035, 7568, -6811, 5793, -4551, 3135, -1598,
};

void luma_free(Luma *luma)
{
    buffer_free(&luma->samples);
    buffer_free(&luma->line);
}

/* Returns how many samples a block becomes on each side: one if the shorter side of the image has 64 blocks, otherwise
   two or four, so that it has at least 32 samples, and all eight in small images. */
static int samples_per_block(int height, int width)
{
    int side = height < width ? height : width;
    return side >= 512 ? 1 : side >= 128 ? 2 : side >= 64 ? 4 : BLOCK_SIDE;
}

#define MAX_COEFFICIENT 2047 /* those of samples with 8 bits are at most 1024, and a little more after quantization */

/* Returns a dequantized coefficient. */
static inline int32_t dequantize(int16_t coefficient, uint16_t quantization)
{
    int32_t value = coefficient * (int32_t)quantization;
    return value < -MAX_COEFFICIENT ? -MAX_COEFFICIENT : value > MAX_COEFFICIENT ? MAX_COEFFICIENT : value;
}

/* Rounds a sum with `bits` fractional bits to a sample. */
static inline uint8_t to_sample(int32_t sum, int bits)
{
    int32_t sample = 128 + ((sum + (1 << (bits - 1))) >> bits);
    return (uint8_t)(sample < 0 ? 0 : sample > 255 ? 255 : sample);
}

/* Each average_* function below transforms a block in zigzag order to averages. `quantization` is in row order. */

static inline void average_to_1(const int16_t *block, const uint16_t *quantization, uint8_t *out)
{
    *out = to_sample(dequantize(block[0], quantization[0]), 3);
}

/* The products of two averages of a block's halves, with 14 fractional bits. */
enum { HALF_00 = 2048, HALF_01 = 1856, HALF_11 = 1682 };

static inline void average_to_2(const int16_t *block, const uint16_t *quantization, uint8_t *out, size_t stride)
{
    int32_t mean = HALF_00 * dequantize(block[0], quantization[0]);
    int32_t across = HALF_01 * dequantize(block[1], quantization[1]);
    int32_t down = HALF_01 * dequantize(block[2], quantization[BLOCK_SIDE]);
    int32_t both = HALF_11 * dequantize(block[4], quantization[BLOCK_SIDE + 1]);
    out[0] = to_sample(mean + across + down + both, 14);
    out[1] = to_sample(mean - across + down - both, 14);
    out[stride] = to_sample(mean + across - down - both, 14);
    out[stride + 1] = to_sample(mean - across - down + both, 14);
}

static inline __attribute__((always_inline)) void average_to_size(
    const int16_t *block, const uint16_t *quantization, const uint8_t *order, int size, const int16_t *averages,
    uint8_t *out, size_t stride)
{
    int32_t rows[BLOCK_SIDE][BLOCK_SIDE] = {{0}}; /* of averages, and columns of coefficients; two fractional bits */
    for (int v = 0; v < size; v++) {
        int32_t coefficients[BLOCK_SIDE];
        for (int u = 0; u < size; u++)
            coefficients[u] = dequantize(block[order[v * BLOCK_SIDE + u]], quantization[v * BLOCK_SIDE + u]);
        for (int y = 0; y < size; y++)
            for (int u = 0; u < size; u++)
                rows[y][u] += coefficients[u] * averages[y * size + v];
    }
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) {
            int32_t sum = 0;
            for (int u = 0; u < size; u++)
                sum += ((rows[y][u] + (1 << 11)) >> 12) * averages[x * size + u];
            out[(size_t)y * stride + (size_t)x] = to_sample(sum, 16);
        }
}

/* Transforms all blocks of luma to size x size averages each. */
static void average_blocks(
    const Coefficients *coefficients, const Component *component, int size, uint8_t *out, size_t stride)
{
    uint8_t order[BLOCK_SIZE];
    for (int k = 0; k < BLOCK_SIZE; k++)
        order[zigzag[k]] = (uint8_t)k;
    for (int row = 0; row < component->block_rows; row++, out += (size_t)size * stride) {
        const int16_t *block = block_at(coefficients, 0, row, 0);
        uint8_t *at = out;
        for (int column = 0, left = component->h_factor; column < component->block_columns; column++, at += size) {
            __builtin_prefetch(block + PREFETCHED * BLOCK_SIZE); /* one line of each block is needed */
            if (size == 1)
                average_to_1(block, component->quantization, at);
            else if (size == 2)
                average_to_2(block, component->quantization, at, stride);
            else if (size == 4)
                average_to_size(block, component->quantization, order, 4, averages_4, at, stride);
            else
                average_to_size(block, component->quantization, order, BLOCK_SIDE, averages_8, at, stride);
            block += BLOCK_SIZE;
            if (!--left) { /* the next block of luma is in the next MCU */
                left = component->h_factor;
                block += (coefficients->mcu_blocks - component->h_factor) * BLOCK_SIZE;
            }
        }
    }
}

int reduce_coefficients(const Coefficients *coefficients, const Header *header, Luma *luma)
{
    const Component *component = &header->component[0];
    int size = samples_per_block(header->height, header->width);
    size_t stride = (size_t)component->block_columns * (size_t)size;
    if (is_rgb(header) || !buffer_reserve(&luma->samples, stride * (size_t)component->block_rows * (size_t)size))
        return -1;
    average_blocks(coefficients, component, size, luma->samples.bytes, stride);
    /* without the samples that only pad the last blocks */
    int width = ceil_div(header->width * component->h_factor, header->max_h_factor);
    int height = ceil_div(header->height * component->v_factor, header->max_v_factor);
    luma->width = ceil_div(width * size, BLOCK_SIDE);
    luma->height = ceil_div(height * size, BLOCK_SIDE);
    for (int row = 1; row < luma->height; row++)
        memmove(
            luma->samples.bytes + (size_t)row * (size_t)luma->width, luma->samples.bytes + (size_t)row * stride,
            (size_t)luma->width);
    return 0;
}

int reduce_pixels(const uint8_t *pixels, int height, int width, Luma *luma)
{
    int step = BLOCK_SIDE / samples_per_block(height, width);
    luma->width = ceil_div(width, step);
    luma->height = ceil_div(height, step);
    uint8_t *out = buffer_reserve(&luma->samples, (size_t)luma->width * (size_t)luma->height);
    if (!out)
        return -1;
    for (int top = 0; top < height; top += step)
        for (int left = 0; left < width; left += step) {
            int bottom = top + step < height ? top + step : height, right = left + step < width ? left + step : width;
            int sum = 0, count = (bottom - top) * (right - left);
            for (int y = top; y < bottom; y++)
                for (int x = left; x < right; x++)
                    sum += pixels[(size_t)y * (size_t)width + (size_t)x];
            *out++ = (uint8_t)((sum + count / 2) / count);
        }
    return 0;
}

/* The part of a line of samples that a cell covers, in units of which a sample has `GRID`. */
typedef struct {
    int first, last;              /* samples */
    uint32_t first_part, last_part; /* units of these that are covered; last_part is 0 if they are the same */
} Cell;

static Cell cell_of(int number, int samples)
{
    int start = number * samples, end = start + samples;
    Cell cell = {start / GRID, (end - 1) / GRID, 0, 0};
    if (cell.first == cell.last)
        cell.first_part = (uint32_t)(end - start);
    else {
        cell.first_part = (uint32_t)(GRID - start % GRID);
        cell.last_part = (uint32_t)(end - GRID * cell.last);
    }
    return cell;
}

/* Adds a multiple of a line of samples to sums. */
static void add_line(const uint8_t *samples, int count, uint32_t factor, uint32_t *sums)
{
    for (int i = 0; i < count; i++)
        sums[i] += samples[i] * factor;
}

/* Computes the mean of the samples in each cell of a grid; `sums` has memory for a line. */
static void fill_grid(const Luma *luma, uint32_t *sums, int16_t (*grid)[GRID])
{
    uint64_t area = (uint64_t)luma->width * (uint64_t)luma->height;
    size_t stride = (size_t)luma->width;
    for (int row = 0; row < GRID; row++) {
        Cell rows = cell_of(row, luma->height);
        const uint8_t *line = luma->samples.bytes + (size_t)rows.first * stride;
        memset(sums, 0, stride * sizeof *sums);
        add_line(line, luma->width, rows.first_part, sums);
        for (int y = rows.first + 1; y < rows.last; y++)
            add_line(line += stride, luma->width, GRID, sums);
        if (rows.last_part)
            add_line(line + stride, luma->width, rows.last_part, sums);
        for (int column = 0; column < GRID; column++) {
            Cell columns = cell_of(column, luma->width);
            uint64_t sum = (uint64_t)sums[columns.first] * columns.first_part, whole = 0;
            for (int x = columns.first + 1; x < columns.last; x++)
                whole += sums[x];
            sum += GRID * whole + (uint64_t)sums[columns.last] * columns.last_part;
            /* IEEE 754 gives the same quotient on all processors, sooner than a division of integers */
            grid[row][column] = (int16_t)((double)(GRID_ONE * sum + area / 2) / (double)area);
        }
    }
}

/* Turns a grid of an image as it is stored into that of the image as it is shown. */
static void orient(int16_t (*grid)[GRID], int orientation)
{
    int16_t stored[GRID][GRID];
    memcpy(stored, grid, sizeof stored);
    for (int row = 0; orientation > 1 && row < GRID; row++)
        for (int column = 0; column < GRID; column++) {
            int is_turned = orientation >= 5, y = is_turned ? column : row, x = is_turned ? row : column;
            if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
                y = GRID - 1 - y;
            if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
                x = GRID - 1 - x;
            grid[row][column] = stored[y][x];
        }
}

static int compare(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

/* Returns the hash of `imagehash.phash`: which of the 8 x 8 lowest coefficients of the DCT are above their median. */
static uint64_t hash_grid(int16_t (*grid)[GRID])
{
    int32_t rows[HASH_SIDE][GRID];
    int64_t coefficients[HASH_SIDE * HASH_SIDE], sorted[HASH_SIDE * HASH_SIDE];
    uint64_t hash = 0;
    for (int y = 0; y < GRID; y++)
        for (int u = 0; u < HASH_SIDE; u++) {
            int32_t sum = 0;
            for (int x = 0; x < GRID; x++)
                sum += cosine[u][x] * grid[y][x];
            rows[u][y] = sum;
        }
    for (int v = 0; v < HASH_SIDE; v++)
        for (int u = 0; u < HASH_SIDE; u++) {
            int64_t sum = 0;
            for (int y = 0; y < GRID; y++)
                sum += (int64_t)cosine[v][y] * rows[u][y];
            coefficients[v * HASH_SIDE + u] = sum;
        }
    memcpy(sorted, coefficients, sizeof sorted);
    qsort(sorted, HASH_SIDE * HASH_SIDE, sizeof *sorted, compare);
    int64_t twice_median = sorted[HASH_SIDE * HASH_SIDE / 2 - 1] + sorted[HASH_SIDE * HASH_SIDE / 2];
    for (int i = 0; i < HASH_SIDE * HASH_SIDE; i++)
        hash = hash << 1 | (uint64_t)(2 * coefficients[i] > twice_median);
    return hash;
}

/* Halves width and height; an odd last row or column is dropped. */
static void halve(Luma *luma)
{
    uint8_t *out = luma->samples.bytes;
    size_t stride = (size_t)luma->width;
    luma->width /= 2;
    luma->height /= 2;
    for (int y = 0; y < luma->height; y++) {
        const uint8_t *in = luma->samples.bytes + 2 * (size_t)y * stride;
        for (int x = 0; x < luma->width; x++, in += 2)
            *out++ = (uint8_t)((in[0] + in[1] + in[stride] + in[stride + 1] + 2) >> 2);
    }
}

static int must_be_halved(const Luma *luma)
{
    int side = luma->width < luma->height ? luma->width : luma->height;
    return side >= MEASURED_SIDE || (side > 1 && (uint64_t)luma->width * (uint64_t)luma->height > MAX_MEASURED);
}

#define MEASURED_TOGETHER 4096 /* samples of which the sums of squares have 32 bits */

/* Adds up the samples and their squares. */
static void add_values(const uint8_t *samples, int count, uint64_t *sum, uint64_t *squares)
{
    uint32_t some = 0, some_squares = 0;
    for (int i = 0; i < count; i++) {
        some += samples[i];
        some_squares += (uint32_t)(samples[i] * samples[i]);
    }
    *sum += some;
    *squares += some_squares;
}

/* Returns the sum of the squared second derivatives of samples that have neighbours. */
static uint32_t squared_derivatives(const uint8_t *samples, int count, size_t stride)
{
    const uint8_t *above = samples - stride, *below = samples + stride;
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) {
        int32_t second = 4 * samples[i] - samples[i - 1] - samples[i + 1] - above[i] - below[i];
        sum += (uint32_t)(second * second);
    }
    return sum;
}

static void measure(const Luma *luma, Signature *signature)
{
    uint64_t sum = 0, squares = 0, derivatives = 0, count = (uint64_t)luma->width * (uint64_t)luma->height, inner = 0;
    for (int y = 0; y < luma->height; y++) {
        const uint8_t *line = luma->samples.bytes + (size_t)y * (size_t)luma->width;
        for (int x = 0; x < luma->width; x += MEASURED_TOGETHER) {
            int left = luma->width - x;
            add_values(line + x, left < MEASURED_TOGETHER ? left : MEASURED_TOGETHER, &sum, &squares);
        }
        for (int x = 1; y > 0 && y < luma->height - 1 && x < luma->width - 1; x += MEASURED_TOGETHER) {
            int left = luma->width - 1 - x, some = left < MEASURED_TOGETHER ? left : MEASURED_TOGETHER;
            derivatives += squared_derivatives(line + x, some, (size_t)luma->width);
            inner += (uint64_t)some;
        }
    }
    signature->brightness = (double)sum / (double)count;
    signature->contrast = sqrt((double)(count * squares - sum * sum)) / (double)count;
    signature->sharpness = inner ? sqrt((double)derivatives / (double)inner) : 0;
}

int compute_signature(Luma *luma, int orientation, Signature *signature)
{
    int16_t grid[GRID][GRID];
    uint32_t *sums = (uint32_t *)(void *)buffer_reserve(&luma->line, (size_t)luma->width * sizeof(uint32_t));
    if (!sums)
        return -1;
    fill_grid(luma, sums, grid);
    orient(grid, orientation);
    signature->hash = hash_grid(grid);
    while (must_be_halved(luma))
        halve(luma);
    measure(luma, signature);
    return 0;
}
