/* Decodes and renders JPEG files, changes their colours, and prints a checksum of every plane and of every rendered image.
   The output must not depend on the compiler, the processor or the instruction set.
   tests/images/test_csrc.py compiles and runs this program.

   Usage: checksums FILE... */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "decoder.h"
#include "kernels.h"

enum { SIDE = 64 }; /* of the rendered images, in pixels */

/* Returns the FNV-1a hash of bytes, continued from `hash`. */
static uint64_t update_hash(uint64_t hash, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t hash_plane(const PlaneBox *box)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int row = box->first_row; row < box->last_row; row++)
        hash = update_hash(
            hash, box->samples + (size_t)row * box->stride + box->first_column,
            (size_t)(box->last_column - box->first_column));
    return hash;
}

/* Reads the image size from the frame header. Returns 0, or -1 if there is none. */
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

/* Returns the bytes of a file, or NULL if it cannot be read. */
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

/* Prints the checksums of all planes at all scales. */
static void print_planes(Decoder *decoder, Image image, const char *name)
{
    for (int scale_denominator = 1; scale_denominator <= 8; scale_denominator *= 2) {
        Planes planes;
        image.scale_denominator = scale_denominator;
        if (decode_image(decoder, &image, &planes)) {
            printf("%s 1/%d not decoded\n", name, scale_denominator);
            continue;
        }
        for (int i = 0; i < planes.count; i++) {
            const PlaneBox *box = &planes.box[i];
            printf(
                "%s 1/%d plane %d %dx%d %016" PRIx64 "\n", name, scale_denominator, i,
                box->last_column - box->first_column, box->last_row - box->first_row, hash_plane(box));
        }
    }
}

/* Prints the checksums of the rendered image, as it is and mirrored. */
static void print_rendered(const uint8_t *data, size_t size, int width, int height, const char *name)
{
    static uint8_t out[3 * SIDE * SIDE];
    for (int flip = 0; flip < 2; flip++) {
        CropGeometry crop = {.width = width, .height = height, .resized_height = SIDE, .resized_width = SIDE,
                             .flip = flip, .needed_width = width, .needed_height = height};
        ByteSpan file = {data, size};
        char done = 0;
        memset(out, 0, sizeof out);
        render_batch(&file, &crop, 1, &(Output){out, SIDE, SIDE, SIDE, SIDE * SIDE}, 1, (size_t)1 << 28, &done, NULL);
        printf("%s rendered %d, flip %d: %016" PRIx64 "\n", name, done, flip, update_hash(0, out, sizeof out));
        uint8_t *green = out + SIDE * SIDE, *blue = green + SIDE * SIDE;
        kernels()->change_hsv(out, green, blue, SIDE * SIDE, &(HsvChange){flip ? -0.21f : 0.013f, 1.3f, 0.9f});
        printf("%s other colours, flip %d: %016" PRIx64 "\n", name, flip, update_hash(0, out, sizeof out));
        kernels()->blend_colors(out, green, blue, SIDE * SIDE, &(Blend){1.3f, -20.3f, -0.3f});
        printf("%s blended colours, flip %d: %016" PRIx64 "\n", name, flip, update_hash(0, out, sizeof out));
    }
}

int main(int count, char **paths)
{
    Decoder *decoder = decoder_new();
    if (!decoder)
        return 1;
    decoder_set_limit(decoder, (size_t)1 << 28);
    for (int i = 1; i < count; i++) {
        size_t size = 0;
        int width = 0, height = 0;
        uint8_t *data = read_file(paths[i], &size);
        const char *slash = strrchr(paths[i], '/'), *name = slash ? slash + 1 : paths[i];
        if (!data || find_size(data, size, &width, &height)) {
            fprintf(stderr, "%s: not a JPEG\n", paths[i]);
            return 1;
        }
        Region whole = {0, 0, width, height};
        Image image = {.data = data, .size = size, .box = whole, .needed = whole};
        print_planes(decoder, image, name);
        print_rendered(data, size, width, height, name);
        free(data);
    }
    decoder_free(decoder);
    return 0;
}
