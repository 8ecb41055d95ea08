#include "header.h"

enum { SOF0 = 0xC0, SOF2 = 0xC2, DHT = 0xC4, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD,
       APP0 = 0xE0, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };

const uint8_t zigzag[BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

void header_start(Header *header, const uint8_t *data, size_t size)
{
    memset(header, 0, sizeof *header);
    header->data = data;
    header->size = size;
    header->adobe_transform = -1;
}

/* Each of the following reads a segment: `size` bytes behind its length. They return 0, or -1. */

static int read_quantization(Header *header, const uint8_t *at, size_t size)
{
    while (size) {
        int is_wide = at[0] >> 4, number = at[0] & 15;
        size_t bytes = 1 + ((size_t)BLOCK << is_wide);
        if (is_wide > 1 || number > 3 || size < bytes)
            return -1;
        for (int i = 0; i < BLOCK; i++)
            header->quantization[number][zigzag[i]] = (uint16_t)(is_wide ? be16(at + 1 + 2 * i) : at[1 + i]);
        header->has_quantization[number] = 1;
        at += bytes;
        size -= bytes;
    }
    return 0;
}

static int read_huffman(Header *header, const uint8_t *at, size_t size)
{
    while (size) {
        int is_ac = at[0] >> 4, number = at[0] & 15;
        size_t symbols = 0;
        if (is_ac > 1 || number > 3 || size < 1 + MAX_CODE)
            return -1;
        HuffmanSpec *spec = is_ac ? &header->ac[number] : &header->dc[number];
        memset(spec, 0, sizeof *spec);
        spec->counts[0] = 1;
        for (int length = 1; length <= MAX_CODE; length++)
            symbols += spec->counts[length] = at[length];
        if (symbols > 256 || size < 1 + MAX_CODE + symbols)
            return -1;
        memcpy(spec->symbols, at + 1 + MAX_CODE, symbols);
        for (size_t i = 0; !is_ac && i < symbols; i++)
            if (spec->symbols[i] > 15) /* the size of a number has four bits */
                return -1;
        at += 1 + MAX_CODE + symbols;
        size -= 1 + MAX_CODE + symbols;
    }
    return 0;
}

/* Works out what the sampling factors mean (A.1.1, A.2). */
static int measure(Header *header)
{
    int across = 1, down = 1;
    for (int c = 0; c < header->count; c++) {
        Component *component = &header->component[c];
        if (header->count == 1) /* then a picture is coded block by block, whatever its factors say (A.2.2) */
            component->across = component->down = 1;
        across = component->across > across ? component->across : across;
        down = component->down > down ? component->down : down;
    }
    header->most_across = across;
    header->most_down = down;
    header->mcus_across = quotient_up(header->width, SIDE * across);
    header->mcus_down = quotient_up(header->height, SIDE * down);
    for (int c = 0; c < header->count; c++) {
        Component *component = &header->component[c];
        component->columns = quotient_up(header->width * component->across, SIDE * across);
        component->rows = quotient_up(header->height * component->down, SIDE * down);
    }
    return blocks_of_mcu(header) <= MAX_BLOCKS ? 0 : -1;
}

static int read_frame(Header *header, const uint8_t *at, size_t size)
{
    if (size < 6 || at[0] != 8 || header->width)
        return -1;
    header->height_at = (size_t)(at + 1 - header->data);
    header->height = be16(at + 1);
    header->width = be16(at + 3);
    header->count = at[5];
    if (!header->width || !header->height || (header->count != 1 && header->count != 3) ||
        size != 6 + 3 * (size_t)header->count)
        return -1;
    for (int c = 0; c < header->count; c++, at += 3) {
        Component *component = &header->component[c];
        component->id = at[6];
        component->across = at[7] >> 4;
        component->down = at[7] & 15;
        component->table = at[8];
        memset(component->missing, -1, sizeof component->missing);
        if (component->across < 1 || component->across > 4 || component->down < 1 || component->down > 4 ||
            component->table > 3)
            return -1;
        for (int before = 0; before < c; before++)
            if (header->component[before].id == component->id)
                return -1;
    }
    return measure(header);
}

/* Reads which components a scan has, into header->scan. */
static int read_members(Header *header, const uint8_t *at)
{
    Scan *scan = &header->scan;
    for (int i = 0, c; i < scan->count; i++, at += 2) {
        for (c = 0; c < header->count && header->component[c].id != at[0]; c++)
            ;
        if (c == header->count || (i && scan->component[i - 1] >= c) || at[1] >> 4 > 3 || (at[1] & 15) > 3)
            return -1;
        Component *component = &header->component[c];
        component->dc = at[1] >> 4;
        component->ac = at[1] & 15;
        scan->component[i] = c;
        if (!header->has_quantization[component->table])
            return -1;
        if (!component->is_quantized)
            memcpy(component->quantization, header->quantization[component->table], sizeof component->quantization);
        component->is_quantized = 1;
    }
    return 0;
}

/* Returns 0 if a scan continues what the ones before it have brought (G.1.1.1), and notes what
   it brings. */
static int follows(Header *header)
{
    const Scan *scan = &header->scan;
    int is_dc = scan->first == 0;
    if (!header->is_progressive && (scan->last != BLOCK - 1 || !is_dc || scan->high || scan->low))
        return -1;
    if (header->is_progressive &&
        (scan->last >= BLOCK || scan->first > scan->last || (is_dc && scan->last) || (!is_dc && scan->count != 1) ||
         scan->low > 13 || (scan->high && scan->high != scan->low + 1)))
        return -1;
    for (int i = 0; i < scan->count; i++) {
        int8_t *missing = header->component[scan->component[i]].missing;
        if (!is_dc && missing[0] < 0)
            return -1;
        for (int k = scan->first; k <= scan->last; k++) {
            if (missing[k] != (scan->high ? scan->high : -1))
                return -1;
            missing[k] = (int8_t)scan->low;
        }
    }
    return 0;
}

static int read_scan(Header *header, const uint8_t *at, size_t size)
{
    Scan *scan = &header->scan;
    if (!header->width || size < 1 || at[0] < 1 || at[0] > header->count || size != 4 + 2 * (size_t)at[0])
        return -1;
    scan->count = at[0];
    if (read_members(header, at + 1))
        return -1;
    at += 1 + 2 * scan->count;
    scan->first = at[0];
    scan->last = at[1];
    scan->high = at[2] >> 4;
    scan->low = at[2] & 15;
    return follows(header);
}

static void read_application(Header *header, int marker, const uint8_t *at, size_t size)
{
    if (marker == APP0 && size >= 14 && !memcmp(at, "JFIF", 5)) {
        header->has_jfif = 1;
        memcpy(header->density, at + 5, sizeof header->density);
    }
    if (marker == APP14 && size >= 12 && !memcmp(at, "Adobe", 5))
        header->adobe_transform = at[11];
}

static int read_segment(Header *header, int marker, const uint8_t *at, size_t size)
{
    switch (marker) {
    case SOF0:
    case SOF0 + 1:
    case SOF2:
        header->is_progressive = marker == SOF2;
        return read_frame(header, at, size);
    case DHT:
        return read_huffman(header, at, size);
    case DQT:
        return read_quantization(header, at, size);
    case DRI:
        if (size == 2)
            header->restart = be16(at);
        return size == 2 ? 0 : -1;
    case SOS:
        return read_scan(header, at, size);
    default:
        read_application(header, marker, at, size);
        return (marker >= APP0 && marker <= APP15) || marker == COM ? 0 : -1;
    }
}

int next_scan(Header *header)
{
    const uint8_t *data = header->data;
    if (!header->position) {
        if (header->size < 2 || data[0] != 0xFF || data[1] != 0xD8)
            return NOT_OURS;
        header->position = 2;
    }
    for (;;) {
        size_t at = header->position;
        if (at + 2 > header->size || data[at] != 0xFF)
            return NOT_OURS;
        int marker = data[at + 1];
        if (marker == EOI)
            return header->width ? NO_MORE_SCANS : NOT_OURS;
        if (at + 4 > header->size)
            return NOT_OURS;
        size_t length = (size_t)be16(data + at + 2);
        if (length < 2 || at + 2 + length > header->size ||
            read_segment(header, marker, data + at + 4, length - 2))
            return NOT_OURS;
        header->position = at + 2 + length;
        if (marker == SOS) {
            header->scan.coded_at = header->position;
            return A_SCAN;
        }
    }
}

int is_rgb(const Header *header)
{
    const Component *one = header->component;
    if (header->count != 3 || header->has_jfif)
        return 0;
    if (header->adobe_transform >= 0)
        return header->adobe_transform == 0;
    return one[0].id == 'R' && one[1].id == 'G' && one[2].id == 'B';
}
