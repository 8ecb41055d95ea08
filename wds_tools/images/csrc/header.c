#include "header.h"

enum { SOF0 = 0xC0, SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD,
       APP0 = 0xE0, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };

const uint8_t zigzag[BLOCK_SIZE] = {
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

/* Each read_* function below reads one marker segment: `size` bytes at `at`, after the length
   field. It returns 0, or -1 if the segment is invalid or not supported. */

static int read_dqt(Header *header, const uint8_t *at, size_t size)
{
    while (size) {
        int is_wide = at[0] >> 4, number = at[0] & 15;
        size_t bytes = 1 + ((size_t)BLOCK_SIZE << is_wide);
        if (is_wide > 1 || number > 3 || size < bytes)
            return -1;
        for (int i = 0; i < BLOCK_SIZE; i++)
            header->quantization[number][zigzag[i]] = (uint16_t)(is_wide ? be16(at + 1 + 2 * i) : at[1 + i]);
        header->has_quantization[number] = 1;
        at += bytes;
        size -= bytes;
    }
    return 0;
}

static int read_dht(Header *header, const uint8_t *at, size_t size)
{
    while (size) {
        int is_ac = at[0] >> 4, number = at[0] & 15;
        size_t symbols = 0;
        if (is_ac > 1 || number > 3 || size < 1 + MAX_CODE_LENGTH)
            return -1;
        HuffmanSpec *spec = is_ac ? &header->ac[number] : &header->dc[number];
        memset(spec, 0, sizeof *spec);
        spec->counts[0] = 1;
        for (int length = 1; length <= MAX_CODE_LENGTH; length++)
            symbols += spec->counts[length] = at[length];
        if (symbols > 256 || size < 1 + MAX_CODE_LENGTH + symbols)
            return -1;
        memcpy(spec->symbols, at + 1 + MAX_CODE_LENGTH, symbols);
        for (size_t i = 0; !is_ac && i < symbols; i++)
            if (spec->symbols[i] > 15) /* a DC symbol is a size, which has four bits */
                return -1;
        at += 1 + MAX_CODE_LENGTH + symbols;
        size -= 1 + MAX_CODE_LENGTH + symbols;
    }
    return 0;
}

/* Computes the numbers of blocks and MCUs from the image size and the sampling factors (A.1.1,
   A.2). Returns 0, or -1 if an MCU has too many blocks. */
static int compute_dimensions(Header *header)
{
    int max_h = 1, max_v = 1;
    for (int c = 0; c < header->component_count; c++) {
        Component *component = &header->component[c];
        if (header->component_count == 1) /* not interleaved: an MCU is one block, whatever the factors are (A.2.2) */
            component->h_factor = component->v_factor = 1;
        max_h = component->h_factor > max_h ? component->h_factor : max_h;
        max_v = component->v_factor > max_v ? component->v_factor : max_v;
    }
    header->max_h_factor = max_h;
    header->max_v_factor = max_v;
    header->mcu_columns = ceil_div(header->width, BLOCK_SIDE * max_h);
    header->mcu_rows = ceil_div(header->height, BLOCK_SIDE * max_v);
    for (int c = 0; c < header->component_count; c++) {
        Component *component = &header->component[c];
        component->block_columns = ceil_div(header->width * component->h_factor, BLOCK_SIDE * max_h);
        component->block_rows = ceil_div(header->height * component->v_factor, BLOCK_SIDE * max_v);
    }
    return blocks_per_mcu(header) <= MAX_MCU_BLOCKS ? 0 : -1;
}

static int read_sof(Header *header, const uint8_t *at, size_t size)
{
    if (size < 6 || at[0] != 8 || header->width)
        return -1;
    header->height = be16(at + 1);
    header->width = be16(at + 3);
    header->component_count = at[5];
    if (!header->width || !header->height || (header->component_count != 1 && header->component_count != 3) ||
        size != 6 + 3 * (size_t)header->component_count)
        return -1;
    for (int c = 0; c < header->component_count; c++, at += 3) {
        Component *component = &header->component[c];
        component->id = at[6];
        component->h_factor = at[7] >> 4;
        component->v_factor = at[7] & 15;
        component->quantization_table = at[8];
        memset(component->missing_bits, -1, sizeof component->missing_bits);
        if (component->h_factor < 1 || component->h_factor > 4 || component->v_factor < 1 ||
            component->v_factor > 4 || component->quantization_table > 3)
            return -1;
        for (int other = 0; other < c; other++)
            if (header->component[other].id == component->id)
                return -1;
    }
    return compute_dimensions(header);
}

/* Reads the component specifications of a scan header at `at` into header->scan, and sets the table
   numbers of these components. Returns 0, or -1 if they are invalid. */
static int read_scan_components(Header *header, const uint8_t *at)
{
    Scan *scan = &header->scan;
    for (int i = 0, c; i < scan->component_count; i++, at += 2) {
        for (c = 0; c < header->component_count && header->component[c].id != at[0]; c++)
            ;
        if (c == header->component_count || (i && scan->component[i - 1] >= c) || at[1] >> 4 > 3 || (at[1] & 15) > 3)
            return -1;
        Component *component = &header->component[c];
        component->dc_table = at[1] >> 4;
        component->ac_table = at[1] & 15;
        scan->component[i] = c;
        if (!header->has_quantization[component->quantization_table])
            return -1;
        if (!component->has_quantization)
            memcpy(
                component->quantization, header->quantization[component->quantization_table],
                sizeof component->quantization);
        component->has_quantization = 1;
    }
    return 0;
}

/* Checks that header->scan is a valid continuation of the scans before it (G.1.1.1), and updates
   `missing_bits` of its components. Returns 0, or -1 if it is not valid. */
static int update_missing_bits(Header *header)
{
    const Scan *scan = &header->scan;
    int is_dc = scan->ss == 0;
    if (!header->is_progressive && (scan->se != BLOCK_SIZE - 1 || !is_dc || scan->ah || scan->al))
        return -1;
    if (header->is_progressive &&
        (scan->se >= BLOCK_SIZE || scan->ss > scan->se || (is_dc && scan->se) ||
         (!is_dc && scan->component_count != 1) || scan->al > 13 || (scan->ah && scan->ah != scan->al + 1)))
        return -1;
    for (int i = 0; i < scan->component_count; i++) {
        int8_t *missing = header->component[scan->component[i]].missing_bits;
        if (!is_dc && missing[0] < 0)
            return -1;
        for (int k = scan->ss; k <= scan->se; k++) {
            if (missing[k] != (scan->ah ? scan->ah : -1))
                return -1;
            missing[k] = (int8_t)scan->al;
        }
    }
    return 0;
}

static int read_sos(Header *header, const uint8_t *at, size_t size)
{
    Scan *scan = &header->scan;
    if (!header->width || size < 1 || at[0] < 1 || at[0] > header->component_count || size != 4 + 2 * (size_t)at[0])
        return -1;
    scan->component_count = at[0];
    if (read_scan_components(header, at + 1))
        return -1;
    at += 1 + 2 * scan->component_count;
    scan->ss = at[0];
    scan->se = at[1];
    scan->ah = at[2] >> 4;
    scan->al = at[2] & 15;
    return update_missing_bits(header);
}

static void read_app(Header *header, int marker, const uint8_t *at, size_t size)
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
    case SOF1:
    case SOF2:
        header->is_progressive = marker == SOF2;
        return read_sof(header, at, size);
    case DHT:
        return read_dht(header, at, size);
    case DQT:
        return read_dqt(header, at, size);
    case DRI:
        if (size == 2)
            header->restart_interval = be16(at);
        return size == 2 ? 0 : -1;
    case SOS:
        return read_sos(header, at, size);
    default:
        read_app(header, marker, at, size);
        return (marker >= APP0 && marker <= APP15) || marker == COM ? 0 : -1;
    }
}

int next_scan(Header *header)
{
    const uint8_t *data = header->data;
    if (!header->position) {
        if (header->size < 2 || data[0] != 0xFF || data[1] != 0xD8)
            return UNSUPPORTED;
        header->position = 2;
    }
    for (;;) {
        size_t at = header->position;
        if (at + 2 > header->size || data[at] != 0xFF)
            return UNSUPPORTED;
        int marker = data[at + 1];
        if (marker == EOI)
            return header->width ? END_OF_IMAGE : UNSUPPORTED;
        if (at + 4 > header->size)
            return UNSUPPORTED;
        size_t length = (size_t)be16(data + at + 2);
        if (length < 2 || at + 2 + length > header->size ||
            read_segment(header, marker, data + at + 4, length - 2))
            return UNSUPPORTED;
        header->position = at + 2 + length;
        if (marker == SOS) {
            header->scan.data_offset = header->position;
            return SCAN_FOUND;
        }
    }
}

int is_rgb(const Header *header)
{
    const Component *component = header->component;
    if (header->component_count != 3 || header->has_jfif)
        return 0;
    if (header->adobe_transform >= 0)
        return header->adobe_transform == 0;
    return component[0].id == 'R' && component[1].id == 'G' && component[2].id == 'B';
}
