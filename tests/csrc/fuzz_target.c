/* Tests one input of the fuzzer: a JPEG, followed by a few bytes that choose what is tested. An input that is not a JPEG
   is used as numbers for the functions that do not decode.

   The sanitizers find memory errors and undefined behaviour. This file checks the rest: all kernels
   give the same samples, a region has the same samples as that part of the whole image, an image
   does not depend on the other images of its batch, a transcoded file decodes to the same
   samples, clusters are those that comparing all pairs gives, and converted values are those of their table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "convert.h"
#include "fuzz.h"
#include "kernels.h"
#include "decoder.h"
#include "transcode.h"

/* Limits the memory and the time of a test. */
#ifndef MAX_PIXELS
#define MAX_PIXELS (1 << 16)
#endif

#define MAX_SIDE 40 /* pixels on each side of a rendered image */

/* The bytes after the JPEG. Some of their bits are used for more than one purpose. */
typedef struct {
    uint8_t task, scale, left, top, width, height, resized_width, resized_height;
} Request;

_Static_assert(sizeof(Request) == REQUEST_BYTES, "the size must match fuzz.h");

/* Aborts with a message if a condition is false. */
static void check(int condition, const char *message)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_target: %s\n", message);
    abort();
}

/* Chooses a part of `length` pixels. It starts at start_256/256 of the length and has size_255/255
   of the remaining pixels, at least one. */
static void choose_part(int length, int start_256, int size_255, int *start, int *count)
{
    *start = length * start_256 / 256;
    *count = 1 + (length - *start - 1) * size_255 / 255;
}

/* Decodes a region. Returns 0, or -1 if it is not decoded. */
static int decode(
    Decoder *decoder, const uint8_t *data, size_t size, const Region *region, int scale_denominator, Planes *planes)
{
    Image image = {data, size, *region, *region, scale_denominator, 0, 0, 0};
    decoder_set_limit(decoder, MAX_PIXELS);
    return decode_image(decoder, &image, planes);
}

static size_t width_of(const PlaneBox *box)
{
    return (size_t)(box->last_column - box->first_column);
}

/* Returns a copy of the samples of all planes, without gaps between the rows. The caller frees
   it. */
static uint8_t *copy_samples(const Planes *planes)
{
    size_t size = 0;
    for (int c = 0; c < planes->count; c++) {
        const PlaneBox *box = &planes->box[c];
        check(box->first_column >= 0 && box->first_row >= 0, "a plane begins before its first sample");
        check(box->last_column > box->first_column && box->last_row > box->first_row, "a plane is empty");
        size += width_of(box) * (size_t)(box->last_row - box->first_row);
    }
    uint8_t *copy = malloc(size), *to = copy;
    check(copy != NULL, "out of memory");
    for (int c = 0; c < planes->count; c++) {
        const PlaneBox *box = &planes->box[c];
        for (int row = box->first_row; row < box->last_row; row++, to += width_of(box))
            memcpy(to, box->samples + (size_t)row * box->stride + box->first_column, width_of(box));
    }
    return copy;
}

/* Checks that the planes of a region have the same samples as that part of the whole image, whose
   samples are in `samples`. */
static void check_region(const Planes *whole, const uint8_t *samples, const Planes *part, const Region *region)
{
    check(part->count == whole->count && part->is_rgb == whole->is_rgb, "a region has other planes than the image");
    for (int c = 0; c < part->count; c++) {
        const PlaneBox *all = &whole->box[c], *box = &part->box[c];
        /* the offset of the region in the plane of the whole image */
        double across = box->width / region->width, down = box->height / region->height;
        size_t left = (size_t)(lround(region->left * across - box->left) + box->first_column);
        size_t top = (size_t)(lround(region->top * down - box->top) + box->first_row);
        check(left + width_of(box) <= width_of(all), "a region is wider than the image");
        for (int row = box->first_row; row < box->last_row; row++, top++) {
            check(top < (size_t)all->last_row, "a region is higher than the image");
            check(
                !memcmp(
                    box->samples + (size_t)row * box->stride + box->first_column,
                    samples + top * width_of(all) + left, width_of(box)),
                "the samples of a region differ from those of the whole image");
        }
        samples += width_of(all) * (size_t)all->last_row;
    }
}

/* Decodes an image with one set of kernels, and a part of it with both. */
static void test_planes(const uint8_t *data, size_t size, const Header *header, const Request *request)
{
    Region all = {0, 0, header->width, header->height}, region;
    Planes whole, part;
    int scale_denominator = 1 << (request->scale & 3), simd = request->scale >> 2 & 1;
    Decoder *decoder = decoder_new();
    check(decoder != NULL, "out of memory");
    choose_part(header->width, request->left, request->width, &region.left, &region.width);
    choose_part(header->height, request->top, request->height, &region.top, &region.height);
    use_simd(simd);
    int failed = decode(decoder, data, size, &all, scale_denominator, &whole);
    uint8_t *samples = failed ? NULL : copy_samples(&whole);
    if (request->task & 4 || !failed)
        for (int other = 0; other < 2; other++) {
            use_simd(simd ^ other ^ 1);
            int part_failed = decode(decoder, data, size, &region, scale_denominator, &part);
            check(failed || !part_failed, "a region is not decoded, but the whole image is");
            if (!failed)
                check_region(&whole, samples, &part, &region);
        }
    free(samples);
    decoder_free(decoder);
}

/* Returns an output whose pixels follow each other. */
static Output output_at(uint8_t *pixels, int height, int width)
{
    return (Output){pixels, height, width, (size_t)width, (size_t)(width * height)};
}

/* Renders two crops of a batch of three, and checks that the first crop of the file has the pixels
   that it has alone. The second one is the first one mirrored, or, if `other` is not NULL, another
   region, whose scale may differ: then the pixels of the first one may differ too. */
static void test_two_crops(
    const ByteSpan *files, const CropGeometry *crop, const CropGeometry *other, const uint8_t *single, char alone,
    int height, int width)
{
    CropGeometry second = other ? *other : *crop;
    if (!other)
        second.flip = FLIP_COLUMNS - second.flip;
    const CropGeometry crops[6] = {*crop, second, *crop, second, *crop, second};
    size_t bytes = (size_t)(3 * width * height);
    char done[6];
    uint8_t *out = malloc(6 * bytes);
    check(out != NULL, "out of memory");
    Output outputs[6];
    for (size_t i = 0; i < 6; i++) /* the first crop of each image, and then the second ones */
        outputs[i] = output_at(out + (i / 2 + i % 2 * 3) * bytes, height, width);
    render_batch(files, crops, 3, outputs, 2, MAX_PIXELS, done, NULL);
    check(done[2] == done[4], "whether a crop is rendered depends on the other images");
    check(!done[2] || !memcmp(out + bytes, out + 2 * bytes, bytes), "a crop depends on the other images");
    if (!other) {
        check(done[2] == alone && done[3] == alone, "whether a crop is rendered depends on the others");
        check(!alone || !memcmp(out + bytes, single, bytes), "a crop depends on the others");
        for (size_t i = 0; alone && i < bytes; i++) /* the mirrored row */
            check(
                out[4 * bytes + i] == single[i - i % (size_t)width + (size_t)width - 1 - i % (size_t)width],
                "a mirrored crop differs");
    }
    free(out);
}

/* Renders a batch of three: the first half of the file, which ends its lane early, and the file
   twice. Each image must be the same as when it is rendered alone. */
static void test_batch(const uint8_t *data, size_t size, const Header *header, const Request *request)
{
    ByteSpan files[3] = {{data, size / 2}, {data, size}, {data, size}};
    char done[3], alone;
    int height = 1 + request->resized_height % MAX_SIDE, width = 1 + request->resized_width % MAX_SIDE;
    Region box, part;
    choose_part(header->width, request->left, request->width, &box.left, &box.width);
    choose_part(header->height, request->top, request->height, &box.top, &box.height);
    choose_part(box.width, request->resized_height, request->resized_width, &part.left, &part.width);
    choose_part(box.height, request->resized_width, request->resized_height, &part.top, &part.height);
    CropGeometry crop = {.left = box.left, .top = box.top, .width = box.width, .height = box.height,
                         .flip = request->scale >> 3 & 1, .needed_left = box.left + part.left,
                         .needed_top = box.top + part.top, .needed_width = part.width, .needed_height = part.height};
    if (request->task & 8) { /* extend the box beyond the image */
        crop.width += request->resized_width;
        crop.needed_width += request->resized_width;
        crop.height += request->resized_height;
        crop.needed_height += request->resized_height;
    }
    crop.corner_left = request->task >> 4 & 3;
    crop.corner_top = request->task >> 6;
    crop.resized_width = width + crop.corner_left + (request->scale >> 4 & 3);
    crop.resized_height = height + crop.corner_top + (request->scale >> 6) / 2.0;
    size_t bytes = (size_t)(3 * width * height);
    uint8_t *out = malloc(4 * bytes), *single = out + 3 * bytes;
    check(out != NULL, "out of memory");
    use_simd(request->scale >> 2 & 1);
    const Output one = output_at(single, height, width);
    const Output all[3] = {output_at(out, height, width), output_at(out + bytes, height, width),
                           output_at(out + 2 * bytes, height, width)};
    render_batch(files, (CropGeometry[]){crop, crop, crop}, 3, all, 1, MAX_PIXELS, done, NULL);
    for (int i = 0; i < 3; i++) {
        render_batch(&files[i], &crop, 1, &one, 1, MAX_PIXELS, &alone, NULL);
        check(done[i] == alone, "whether an image is rendered depends on the others");
        check(!alone || !memcmp(out + (size_t)i * bytes, single, bytes), "an image depends on the others");
    }
    CropGeometry whole = {.width = header->width, .height = header->height, .needed_width = header->width,
                          .needed_height = header->height, .resized_width = width, .resized_height = height};
    test_two_crops(files, &crop, NULL, single, alone, height, width);
    test_two_crops(files, &crop, &whole, single, alone, height, width);
    free(out);
}

/* Transcodes an image, and compares the decoded planes of the original and the result. */
static void test_transcoder(const uint8_t *data, size_t size, const Header *header, const Request *request)
{
    Region all = {0, 0, header->width, header->height};
    int restart_interval = 1 + ((request->left << 8 | request->top) % 0xFFFF >> (request->width & 15));
    int max_code_length = 9 + request->height % 8, scale_denominator = 1 << (request->scale & 3);
    size_t written;
    Planes before, after;
    Transcoder *transcoder = acquire_transcoder();
    Decoder *decoder = decoder_new(), *other = decoder_new();
    check(transcoder && decoder && other, "out of memory");
    use_simd(request->scale >> 2 & 1);
    const uint8_t *result =
        transcode(transcoder, data, size, restart_interval, max_code_length, MAX_PIXELS, &written);
    if (result) {
        Signature signature, again;
        int orientation = 1 + (request->task >> 5), is_signed = !sign_transcoded(transcoder, orientation, &signature);
        check(
            is_signed == !sign_file(transcoder, data, size, orientation, MAX_PIXELS, &again),
            "only one of the original and the transcoded file has a signature");
        check(!is_signed || !memcmp(&signature, &again, sizeof again), "the signature of a file changes");
        result = transcode(transcoder, data, size, restart_interval, max_code_length, MAX_PIXELS, &written);
        check(result != NULL, "a file is not transcoded again");
        int failed = decode(decoder, data, size, &all, scale_denominator, &before);
        check(
            failed == decode(other, result, written, &all, scale_denominator, &after),
            "only one of the original and the transcoded file is decoded");
        if (!failed) {
            uint8_t *samples = copy_samples(&before);
            check_region(&before, samples, &after, &all);
            free(samples);
        }
    }
    decoder_free(other);
    decoder_free(decoder);
    release_transcoder(transcoder);
}

/* Converts the bytes of an input as pixels, with a table of bytes of which each is different in its value. */
static void test_conversion(const uint8_t *data, size_t size, const Request *request)
{
    size_t count = size / 3, bytes = (size_t)2 << request->task % 3;
    int is_interleaved = request->scale & 1;
    char *table = malloc(3 * 256 * bytes), *out = malloc(3 * count * bytes + 1);
    check(table && out, "out of memory");
    for (size_t i = 0; i < 3 * 256 * bytes; i++)
        table[i] = (char)(i / bytes >> i % bytes ^ i);
    convert_image(data, count, &(ConversionTable){table, bytes}, is_interleaved, out);
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < count; i++)
            check(
                !memcmp(
                    out + (is_interleaved ? 3 * i + c : c * count + i) * bytes,
                    table + (256 * c + data[c * count + i]) * bytes, bytes),
                "a converted value is not that of the table");
    free(out);
    free(table);
}

static int compare_hashes(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return (first > second) - (first < second);
}

static uint32_t root_of(const uint32_t *parents, uint32_t number)
{
    while (parents[number] != number)
        number = parents[number];
    return number;
}

/* Joins hashes that are made of the bytes of an input: many differ in a few bits. Compares the clusters with those that
   result from comparing all pairs. */
static void test_clusters(const uint8_t *data, size_t size, const Request *request)
{
    uint32_t count = 0, all = (uint32_t)(size < 320 ? size : 320);
    int distance = 1 + request->width % MAX_DISTANCE, step = 1 + request->height % 3;
    uint64_t *hashes = malloc(all * sizeof *hashes + 1);
    uint32_t *parents = malloc(all * sizeof *parents + 1), *expected = malloc(all * sizeof *expected + 1);
    check(hashes && parents && expected, "out of memory");
    for (uint32_t i = 0; i < all; i++)
        hashes[i] = (data[i] & 7) * UINT64_C(0x9E3779B97F4A7C15) ^ UINT64_C(1) << (data[i] >> 3) ^
                    UINT64_C(1) << (32 + data[all - 1 - i] % 32);
    qsort(hashes, all, sizeof *hashes, compare_hashes);
    for (uint32_t i = 0; i < all; i++)
        if (!count || hashes[i] != hashes[count - 1])
            hashes[count++] = hashes[i];
    for (uint32_t i = 0; i < count; i++)
        parents[i] = expected[i] = i;
    for (int first = 0; first < step; first++)
        check(!join_clusters(hashes, count, distance, first, step, parents), "out of memory");
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (__builtin_popcountll(hashes[i] ^ hashes[k]) <= distance) {
                uint32_t one = root_of(expected, i), two = root_of(expected, k);
                expected[one > two ? one : two] = one > two ? two : one;
            }
    for (uint32_t i = 0; i < count; i++)
        check(root_of(parents, i) == root_of(expected, i), "a cluster differs");
    free(expected);
    free(parents);
    free(hashes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Request request;
    Header header;
    if (size < REQUEST_BYTES)
        return 0;
    size -= REQUEST_BYTES;
    memcpy(&request, data + size, REQUEST_BYTES);
    uint8_t *file = malloc(size + !size); /* an exact copy, so that reads after the end are found */
    check(file != NULL, "out of memory");
    memcpy(file, data, size);
    header_start(&header, file, size);
    if (next_scan(&header) == SCAN_FOUND)
        switch (request.task & 3) {
        case 0:
            test_batch(file, size, &header, &request);
            break;
        case 1:
            test_transcoder(file, size, &header, &request);
            break;
        default:
            test_planes(file, size, &header, &request);
        }
    else {
        use_simd(request.scale >> 2 & 1);
        test_conversion(file, size, &request);
        test_clusters(file, size, &request);
    }
    free(file);
    return 0;
}
