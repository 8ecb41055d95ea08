/* Decodes files and prints a checksum of every plane, and of the picture made of them: the same
   lines from every compiler, processor and set of instructions. Built and run by
   tests/images/test_csrc.py.

      Usage: checksums FILE... */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "decoder.h"

enum { SIDE = 64 }; /* of the pictures that are made */

static uint64_t hashed(uint64_t hash, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211); /* FNV-1a */
    return hash;
}

static uint64_t hash_of(const Box *box)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int row = box->first_row; row < box->last_row; row++)
        hash = hashed(
            hash, box->samples + (size_t)row * box->stride + box->first_column,
            (size_t)(box->last_column - box->first_column));
    return hash;
}

/* Finds the size in the frame header. Returns 0, or -1 where there is none. */
static int find_size(const uint8_t *data, size_t size, int *width, int *height)
{
    for (size_t at = 2; at + 9 < size && data[at] == 0xFF;) {
        int marker = data[at + 1];
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
            *height = data[at + 5] << 8 | data[at + 6];
            *width = data[at + 7] << 8 | data[at + 8];
            return 0;
        }
        at += 2 + (size_t)(data[at + 2] << 8 | data[at + 3]);
    }
    return -1;
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        return NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size + 1);
    if (data && fread(data, 1, *size, file) != *size) {
        free(data);
        data = NULL;
    }
    fclose(file);
    return data;
}

static void print_planes(Decoder *decoder, Picture picture, const char *name)
{
    for (int scale_denominator = 1; scale_denominator <= 8; scale_denominator *= 2) {
        Planes planes;
        picture.scale_denominator = scale_denominator;
        if (decode_picture(decoder, &picture, &planes)) {
            printf("%s 1/%d refused\n", name, scale_denominator);
            continue;
        }
        for (int i = 0; i < planes.planes; i++) {
            const Box *box = &planes.box[i];
            printf(
                "%s 1/%d plane %d %dx%d %016" PRIx64 "\n", name, scale_denominator, i,
                box->last_column - box->first_column, box->last_row - box->first_row, hash_of(box));
        }
    }
}

static void print_resized(const uint8_t *data, size_t size, int width, int height, const char *name)
{
    static uint8_t out[3 * SIDE * SIDE];
    for (int flip = 0; flip < 2; flip++) {
        CropGeometry crop = {.width = width, .height = height, .resized_height = SIDE, .resized_width = SIDE,
                             .flip = flip, .needed_width = width, .needed_height = height};
        ByteSpan file = {data, size};
        char done = 0;
        memset(out, 0, sizeof out);
        make_batch(&file, &crop, 1, SIDE, SIDE, (size_t)1 << 28, out, &done, NULL);
        printf("%s resized, flip %d: made %d, %016" PRIx64 "\n", name, flip, done, hashed(0, out, sizeof out));
    }
}

int main(int count, char **paths)
{
    Decoder *decoder = decoder_new();
    if (!decoder)
        return 1;
    decoder_limit(decoder, (size_t)1 << 28);
    for (int i = 1; i < count; i++) {
        size_t size = 0;
        int width = 0, height = 0;
        uint8_t *data = read_file(paths[i], &size);
        const char *slash = strrchr(paths[i], '/'), *name = slash ? slash + 1 : paths[i];
        if (!data || find_size(data, size, &width, &height)) {
            fprintf(stderr, "%s: no JPEG\n", paths[i]);
            return 1;
        }
        Region whole = {0, 0, width, height};
        Picture picture = {.data = data, .size = size, .box = whole, .needed = whole};
        print_planes(decoder, picture, name);
        print_resized(data, size, width, height, name);
        free(data);
    }
    decoder_free(decoder);
    return 0;
}
