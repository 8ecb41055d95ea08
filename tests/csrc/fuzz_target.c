/* One input of the fuzzer: a file, and behind it a few bytes that say what is asked of it.

      Sanitizers look for wrong memory and undefined arithmetic. What else must hold is checked
   here: both kinds of kernels give the same samples, and a region has those of the whole
   picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "fuzz.h"
#include "kernels.h"
#include "decoder.h"
#include "transcode.h"

/* Bounds the memory and the time of a run. */
#ifndef MAX_PIXELS
#define MAX_PIXELS (1 << 16)
#endif

#define MOST_SIDE 40 /* of a result of make_batch() */

typedef struct {
    uint8_t task, scale_denominator, left, top, width, height, resized_width, resized_height;
} Wish;

_Static_assert(sizeof(Wish) == WISH_BYTES, "fuzz.h says how long it is");

static void check(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_target: %s\n", what);
    abort();
}

/* A part of a length: it begins at from/256 of it, and has share/255 of what follows, one pixel
   at least. */
static void part_of(int length, int from, int share, int *start, int *count)
{
    *start = length * from / 256;
    *count = 1 + (length - *start - 1) * share / 255;
}

static int decode(
    Decoder *decoder, const uint8_t *data, size_t size, const Region *region, int scale_denominator, Planes *planes)
{
    Picture picture = {data, size, *region, *region, scale_denominator, 0};
    decoder_limit(decoder, MAX_PIXELS);
    return decode_picture(decoder, &picture, planes);
}

static size_t width_of(const Box *box)
{
    return (size_t)(box->last_column - box->first_column);
}

/* The samples of planes are good until the next call: this copies them, one row behind the
   other. */
static uint8_t *copy_of(const Planes *planes)
{
    size_t size = 0;
    for (int c = 0; c < planes->planes; c++) {
        const Box *box = &planes->box[c];
        check(box->first_column >= 0 && box->first_row >= 0, "a plane begins before its first sample");
        check(box->last_column > box->first_column && box->last_row > box->first_row, "a plane is empty");
        size += width_of(box) * (size_t)(box->last_row - box->first_row);
    }
    uint8_t *copy = malloc(size), *to = copy;
    check(copy != NULL, "there is no memory");
    for (int c = 0; c < planes->planes; c++) {
        const Box *box = &planes->box[c];
        for (int row = box->first_row; row < box->last_row; row++, to += width_of(box))
            memcpy(to, box->samples + (size_t)row * box->stride + box->first_column, width_of(box));
    }
    return copy;
}

/* Compares a region of a picture with the same samples of the whole of it. */
static void check_region(const Planes *whole, const uint8_t *samples, const Planes *part, const Region *region)
{
    check(part->planes == whole->planes && part->is_rgb == whole->is_rgb, "a region has other planes");
    for (int c = 0; c < part->planes; c++) {
        const Box *all = &whole->box[c], *box = &part->box[c];
        /* The box says where the region begins in what was decoded: how far that is from the
           edge of the picture? */
        double across = box->width / region->width, down = box->height / region->height;
        size_t left = (size_t)(lround(region->left * across - box->left) + box->first_column);
        size_t top = (size_t)(lround(region->top * down - box->top) + box->first_row);
        check(left + width_of(box) <= width_of(all), "a region is wider than the picture");
        for (int row = box->first_row; row < box->last_row; row++, top++) {
            check(top < (size_t)all->last_row, "a region is higher than the picture");
            check(
                !memcmp(
                    box->samples + (size_t)row * box->stride + box->first_column,
                    samples + top * width_of(all) + left, width_of(box)),
                "a region has other samples than the whole picture");
        }
        samples += width_of(all) * (size_t)all->last_row;
    }
}

/* Decodes all of a picture by one kind of kernels, a part of it by both. */
static void try_planes(const uint8_t *data, size_t size, const Header *header, const Wish *wish)
{
    Region all = {0, 0, header->width, header->height}, region;
    Planes whole, part;
    int scale_denominator = 1 << (wish->scale_denominator & 3), simd = wish->scale_denominator >> 2 & 1;
    Decoder *decoder = decoder_new();
    check(decoder != NULL, "there is no memory");
    part_of(header->width, wish->left, wish->width, &region.left, &region.width);
    part_of(header->height, wish->top, wish->height, &region.top, &region.height);
    use_simd(simd);
    int failed = decode(decoder, data, size, &all, scale_denominator, &whole);
    uint8_t *samples = failed ? NULL : copy_of(&whole);
    if (wish->task & 4 || !failed)
        for (int other = 0; other < 2; other++) {
            use_simd(simd ^ other ^ 1);
            int part_failed = decode(decoder, data, size, &region, scale_denominator, &part);
            check(failed || !part_failed, "a region fails, and the whole picture does not");
            if (!failed)
                check_region(&whole, samples, &part, &region);
        }
    free(samples);
    decoder_free(decoder);
}

/* Makes a picture in a batch: with the first half of its file before it, whose lane ends early,
   and itself behind it. All that are made must be as they are alone. */
static void try_batch(const uint8_t *data, size_t size, const Header *header, const Wish *wish)
{
    CropGeometry crop = {.flip = wish->scale_denominator >> 3 & 1};
    ByteSpan files[3] = {{data, size / 2}, {data, size}, {data, size}};
    char done[3], alone;
    int height = 1 + wish->resized_height % MOST_SIDE, width = 1 + wish->resized_width % MOST_SIDE;
    part_of(header->width, wish->left, wish->width, &crop.left, &crop.width);
    part_of(header->height, wish->top, wish->height, &crop.top, &crop.height);
    part_of(crop.width, wish->resized_height, wish->resized_width, &crop.needed_left, &crop.needed_width);
    part_of(crop.height, wish->resized_width, wish->resized_height, &crop.needed_top, &crop.needed_height);
    crop.needed_left += crop.left;
    crop.needed_top += crop.top;
    if (wish->task & 8) { /* more than there is of the picture */
        crop.width += wish->resized_width;
        crop.needed_width += wish->resized_width;
        crop.height += wish->resized_height;
        crop.needed_height += wish->resized_height;
    }
    crop.corner_left = wish->task >> 4 & 3;
    crop.corner_top = wish->task >> 6;
    crop.resized_width = width + crop.corner_left + (wish->scale_denominator >> 4 & 3);
    crop.resized_height = height + crop.corner_top + (wish->scale_denominator >> 6);
    size_t bytes = (size_t)(3 * width * height);
    uint8_t *out = malloc(4 * bytes), *single = out + 3 * bytes;
    check(out != NULL, "there is no memory");
    use_simd(wish->scale_denominator >> 2 & 1);
    make_batch(files, (CropGeometry[]){crop, crop, crop}, 3, height, width, MAX_PIXELS, out, done, NULL);
    for (int i = 0; i < 3; i++) {
        make_batch(&files[i], &crop, 1, height, width, MAX_PIXELS, single, &alone, NULL);
        check(done[i] == alone, "whether a picture is made depends on others");
        check(!alone || !memcmp(out + (size_t)i * bytes, single, bytes), "a picture depends on others");
    }
    free(out);
}

/* Transcodes a picture, and decodes the result and the file that it was made of. */
static void try_transcoder(const uint8_t *data, size_t size, const Header *header, const Wish *wish)
{
    Region all = {0, 0, header->width, header->height};
    int restart = 1 + ((wish->left << 8 | wish->top) % 0xFFFF >> (wish->width & 15));
    int longest = 9 + wish->height % 8, scale_denominator = 1 << (wish->scale_denominator & 3);
    size_t written;
    Planes before, after;
    Transcoder *transcoder = take_transcoder();
    Decoder *decoder = decoder_new(), *other = decoder_new();
    check(transcoder && decoder && other, "there is no memory");
    use_simd(wish->scale_denominator >> 2 & 1);
    const uint8_t *made = transcode(transcoder, data, size, restart, longest, MAX_PIXELS, &written);
    if (made) {
        int failed = decode(decoder, data, size, &all, scale_denominator, &before);
        check(
            failed == decode(other, made, written, &all, scale_denominator, &after),
            "one of a file and what it was transcoded to is decoded, and the other is not");
        if (!failed) {
            uint8_t *samples = copy_of(&before);
            check_region(&before, samples, &after, &all);
            free(samples);
        }
    }
    decoder_free(other);
    decoder_free(decoder);
    give_back_transcoder(transcoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Wish wish;
    Header header;
    if (size < WISH_BYTES)
        return 0;
    size -= WISH_BYTES;
    memcpy(&wish, data + size, WISH_BYTES);
    uint8_t *file = malloc(size + !size); /* of exactly this size, so that what is read behind it is found */
    check(file != NULL, "there is no memory");
    memcpy(file, data, size);
    header_start(&header, file, size);
    if (next_scan(&header) == A_SCAN)
        switch (wish.task & 3) {
        case 0:
            try_batch(file, size, &header, &wish);
            break;
        case 1:
            try_transcoder(file, size, &header, &wish);
            break;
        default:
            try_planes(file, size, &header, &wish);
        }
    free(file);
    return 0;
}
