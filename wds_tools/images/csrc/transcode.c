#include "transcode.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "coefficients.h"
#include "huffman_codes.h"

#define MAX_HEADER_BYTES 4096                /* of all marker segments that are written */
#define MAX_CACHED_BYTES ((size_t)64 << 20) /* of tokens: enough for images of about 5 megapixels */

/* A symbol and the value bits that follow its code: bits << 16 | number of bits << 10 | table << 8
   | symbol. */
typedef uint32_t Token;

/* The largest DC difference. AC coefficients are at most half of it. */
#define MAX_DC_DIFFERENCE ((1 << (MAX_AC_SIZE + 1)) - 1)
#define MAX_AC_VALUE (MAX_DC_DIFFERENCE / 2)

#define RESTART_TOKEN 0xFFFFFFFFu /* stands for a restart marker */

/* The Huffman tables that are written. */
enum { LUMA_DC, LUMA_AC, CHROMA_DC, CHROMA_AC, TABLE_COUNT };

struct Transcoder {
    Header header, written_header;
    HuffmanTables tables;
    Intervals intervals;
    Coefficients coefficients, written_coefficients;
    CoefficientOrder order;
    GrowBuffer tokens, file;
    Luma luma;
    uint32_t counts[TABLE_COUNT][256]; /* how often each symbol occurs */
    HuffmanSpec spec[TABLE_COUNT];
    HuffmanCode codes[TABLE_COUNT][256];
    Token value_tokens[2 * MAX_DC_DIFFERENCE + 1]; /* value_token() of -MAX_DC_DIFFERENCE and the following values */
};

/* Returns a bit mask of the coefficients that are not zero. */
#if defined(__SSE2__)
static inline uint64_t nonzero_mask(const int16_t *block)
{
    const __m128i *at = (const __m128i *)(const void *)block, none = _mm_setzero_si128();
    uint64_t zero = 0;
    for (int i = 0; i < 4; i++) {
        __m128i first = _mm_cmpeq_epi16(_mm_loadu_si128(at + 2 * i), none);
        __m128i second = _mm_cmpeq_epi16(_mm_loadu_si128(at + 2 * i + 1), none);
        zero |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_packs_epi16(first, second)) << 16 * i;
    }
    return ~zero;
}
#else
static inline uint64_t nonzero_mask(const int16_t *block)
{
    uint64_t mask = 0;
    for (int k = 0; k < BLOCK_SIZE; k += 4) {
        uint64_t four;
        memcpy(&four, block + k, sizeof four);
        if (four)
            for (int i = 0; i < 4; i++)
                mask |= (uint64_t)(block[k + i] != 0) << (k + i);
    }
    return mask;
}
#endif

/* Returns the part of a token that depends on the value: its size and value bits (F.1.2.1). */
static Token value_token(int value)
{
    int size = value ? 32 - __builtin_clz((unsigned)(value < 0 ? -value : value)) : 0;
    uint32_t bits = (uint32_t)(value < 0 ? value - 1 : value) & ((1u << size) - 1);
    return bits << 16 | (uint32_t)(size << 10 | size);
}

static inline int token_size(Token token)
{
    return token >> 10 & 15;
}

static Transcoder *transcoder_new(void)
{
    Transcoder *transcoder = calloc(1, sizeof *transcoder);
    for (int k = 0; transcoder && k < (int)sizeof transcoder->order.position; k++)
        transcoder->order.position[k] = (uint8_t)(k < BLOCK_SIZE ? k : BLOCK_SIZE - 1); /* zigzag order */
    for (int value = -MAX_DC_DIFFERENCE; transcoder && value <= MAX_DC_DIFFERENCE; value++)
        transcoder->value_tokens[value + MAX_DC_DIFFERENCE] = value_token(value);
    return transcoder;
}

static void transcoder_free(Transcoder *transcoder)
{
    intervals_free(&transcoder->intervals);
    coefficients_free(&transcoder->coefficients);
    coefficients_free(&transcoder->written_coefficients);
    luma_free(&transcoder->luma);
    buffer_free(&transcoder->tokens);
    buffer_free(&transcoder->file);
    free(transcoder);
}

/* The transcoder of the last file; NULL while a thread uses it. */
static _Atomic(Transcoder *) cached_transcoder;

Transcoder *acquire_transcoder(void)
{
    Transcoder *transcoder = atomic_exchange(&cached_transcoder, NULL);
    return transcoder ? transcoder : transcoder_new();
}

void release_transcoder(Transcoder *transcoder)
{
    if (transcoder->tokens.size <= MAX_CACHED_BYTES)
        transcoder = atomic_exchange(&cached_transcoder, transcoder);
    if (transcoder)
        transcoder_free(transcoder);
}

/* Writes the tokens of a block to `to` and counts their symbols. `value_tokens` points to the token
   of the value 0, `prediction` is the DC prediction, `table` is LUMA_DC or CHROMA_DC. Returns the
   end of the tokens, or NULL if a value is too large for a sequential JPEG with 8 bits per
   sample. */
static inline Token *tokenize_block(
    const Token *value_tokens, const int16_t *block, int prediction, int table, uint32_t (*counts)[256], Token *to)
{
    uint64_t remaining = nonzero_mask(block) & ~(uint64_t)1;
    uint32_t *ac_counts = counts[table + 1], ac = (uint32_t)(table + 1) << 8;
    int previous = 0, difference = block[0] - prediction;
    unsigned is_too_large = (unsigned)(difference + MAX_DC_DIFFERENCE) > 2 * MAX_DC_DIFFERENCE;
    *to = value_tokens[is_too_large ? 0 : difference] | (uint32_t)table << 8;
    counts[table][*to++ & 0xFF]++;
    for (; remaining; remaining &= remaining - 1) {
        int k = __builtin_ctzll(remaining), run = k - previous - 1, value = block[k];
        for (; run > 15; run -= 16, ac_counts[0xF0]++)
            *to++ = ac | 0xF0; /* ZRL */
        if (__builtin_expect((unsigned)(value + MAX_AC_VALUE) > 2 * MAX_AC_VALUE, 0))
            return NULL;
        *to = value_tokens[value] | ac | (uint32_t)run << 4;
        ac_counts[*to++ & 0xFF]++;
        previous = k;
    }
    if (previous < BLOCK_SIZE - 1) {
        *to++ = ac; /* EOB */
        ac_counts[0]++;
    }
    return is_too_large ? NULL : to;
}

typedef struct {
    uint64_t bits; /* not written yet; the last one is the least significant */
    int count;     /* of these bits */
    uint8_t *next; /* where the next byte is written */
} BitWriter;

/* Writes eight bytes of entropy-coded data, with a zero byte after each FF. */
static inline void put_word(BitWriter *writer, uint64_t word)
{
    uint64_t inverted = ~word;
    if (((inverted - 0x0101010101010101u) & word & 0x8080808080808080u) == 0) {
        uint64_t swapped = __builtin_bswap64(word);
        memcpy(writer->next, &swapped, 8);
        writer->next += 8;
        return;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        *writer->next++ = (uint8_t)(word >> shift);
        if (writer->next[-1] == 0xFF)
            *writer->next++ = 0;
    }
}

/* Writes `count` bits, at most 32. */
static inline void put_bits(BitWriter *writer, uint32_t bits, int count)
{
    int free = 64 - writer->count;
    if (count < free) {
        writer->bits = writer->bits << count | bits;
        writer->count += count;
        return;
    }
    int rest = count - free;
    put_word(writer, writer->bits << (free & 63) | bits >> rest);
    writer->bits = bits & ((1ull << rest) - 1);
    writer->count = rest;
}

/* Pads the last byte with ones (F.1.2.3) and writes all bits. */
static void flush_bits(BitWriter *writer)
{
    int padding = -writer->count & 7;
    put_bits(writer, (1u << padding) - 1, padding);
    for (; writer->count; writer->count -= 8) {
        *writer->next++ = (uint8_t)(writer->bits >> (writer->count - 8));
        if (writer->next[-1] == 0xFF)
            *writer->next++ = 0;
    }
    writer->bits = 0;
}

/* Writes the code of a token and its value bits. `codes` are those of all tables. */
static inline void put_token(BitWriter *writer, Token token, const HuffmanCode *codes)
{
    HuffmanCode code = codes[token & 0x3FF]; /* table and symbol */
    int size = token_size(token);
    put_bits(writer, (uint32_t)code.bits << size | token >> 16, code.length + size);
}

static void put_byte(uint8_t **to, int value)
{
    *(*to)++ = (uint8_t)value;
}

static void put_be16(uint8_t **to, int value)
{
    put_byte(to, value >> 8);
    put_byte(to, value & 0xFF);
}

static void put_marker(uint8_t **to, int marker, int length)
{
    put_be16(to, 0xFF00 | marker);
    put_be16(to, length);
}

/* Returns the DC table of a component. The next table is its AC table. */
static int table_of(int component)
{
    return component ? CHROMA_DC : LUMA_DC;
}

/* Writes the JFIF and Adobe segments that the original has: they define the colour space. */
static void put_app_segments(uint8_t **to, const Header *header)
{
    if (header->has_jfif) {
        put_marker(to, 0xE0, 16);
        memcpy(*to, "JFIF", 5);
        memcpy(*to + 5, header->density, sizeof header->density);
        *to += 5 + sizeof header->density;
        put_be16(to, 0); /* no thumbnail */
    }
    if (header->adobe_transform >= 0) {
        put_marker(to, 0xEE, 14);
        memcpy(*to, "Adobe\0\x64\0\0\0\0", 11);
        *to += 11;
        put_byte(to, header->adobe_transform);
    }
}

/* Writes the different quantization tables of the components, and the table number of each
   component to `number`. Returns whether a table has 16-bit elements. */
static int put_dqt(uint8_t **to, const Header *header, int *number)
{
    int has_wide = 0;
    for (int c = 0; c < header->component_count; c++) {
        const uint16_t *table = header->component[c].quantization;
        int is_wide = 0, first = 0; /* the first component with this table */
        for (first = 0; memcmp(header->component[first].quantization, table, BLOCK_SIZE * sizeof *table); first++)
            ;
        number[c] = first;
        if (first < c)
            continue;
        for (int i = 0; i < BLOCK_SIZE; i++)
            is_wide |= table[i] > 255;
        has_wide |= is_wide;
        put_marker(to, 0xDB, 3 + (BLOCK_SIZE << is_wide));
        put_byte(to, is_wide << 4 | c);
        for (int k = 0; k < BLOCK_SIZE; k++)
            is_wide ? put_be16(to, table[zigzag[k]]) : put_byte(to, table[zigzag[k]]);
    }
    return has_wide;
}

static void put_dht(uint8_t **to, int is_ac, int number, const HuffmanSpec *spec)
{
    int symbols = 0;
    for (int length = 1; length <= MAX_CODE_LENGTH; length++)
        symbols += spec->counts[length];
    put_marker(to, 0xC4, 3 + MAX_CODE_LENGTH + symbols);
    put_byte(to, is_ac << 4 | number);
    memcpy(*to, spec->counts + 1, MAX_CODE_LENGTH);
    memcpy(*to + MAX_CODE_LENGTH, spec->symbols, (size_t)symbols);
    *to += MAX_CODE_LENGTH + symbols;
}

/* Writes everything up to the entropy-coded data. */
static void put_headers(uint8_t **to, const Transcoder *transcoder, int restart_interval)
{
    const Header *header = &transcoder->header;
    int number[MAX_COMPONENTS];
    put_be16(to, 0xFFD8);
    put_app_segments(to, header);
    int is_wide = put_dqt(to, header, number);
    put_marker(to, is_wide ? 0xC1 : 0xC0, 8 + 3 * header->component_count);
    put_byte(to, 8);
    put_be16(to, header->height);
    put_be16(to, header->width);
    put_byte(to, header->component_count);
    for (int c = 0; c < header->component_count; c++) {
        put_byte(to, header->component[c].id);
        put_byte(to, header->component[c].h_factor << 4 | header->component[c].v_factor);
        put_byte(to, number[c]);
    }
    for (int table = 0; table <= table_of(header->component_count - 1) + 1; table++)
        put_dht(to, table & 1, table >> 1, &transcoder->spec[table]);
    put_marker(to, 0xDD, 4);
    put_be16(to, restart_interval);
    put_marker(to, 0xDA, 6 + 2 * header->component_count);
    put_byte(to, header->component_count);
    for (int c = 0; c < header->component_count; c++) {
        put_byte(to, header->component[c].id);
        put_byte(to, table_of(c) << 3 | table_of(c) >> 1);
    }
    put_byte(to, 0);
    put_byte(to, BLOCK_SIZE - 1);
    put_byte(to, 0);
}

/* Writes the tokens of all blocks to transcoder->tokens. Returns their end, or NULL on failure. */
static Token *tokenize(Transcoder *transcoder, int restart_interval)
{
    const Header *header = &transcoder->header;
    int mcus = header->mcu_columns * header->mcu_rows;
    int16_t prediction[MAX_COMPONENTS] = {0};
    const int16_t *block = frame_blocks(&transcoder->coefficients);
    const Token *value_tokens = transcoder->value_tokens + MAX_DC_DIFFERENCE;
    size_t blocks = (size_t)mcus * (size_t)blocks_per_mcu(header);
    Token *to = (Token *)(void *)buffer_reserve(
        &transcoder->tokens, (blocks * (BLOCK_SIZE + 1) + (size_t)(mcus / restart_interval)) * sizeof(Token));
    memset(transcoder->counts, 0, sizeof transcoder->counts);
    for (int mcu = 0, left = restart_interval; to && mcu < mcus; mcu++, left--) {
        if (!left) {
            memset(prediction, 0, sizeof prediction);
            *to++ = RESTART_TOKEN;
            left = restart_interval;
        }
        for (int c = 0; c < header->component_count; c++) {
            const Component *component = &header->component[c];
            for (int n = component->h_factor * component->v_factor; to && n > 0; n--, block += BLOCK_SIZE) {
                to = tokenize_block(value_tokens, block, prediction[c], table_of(c), transcoder->counts, to);
                prediction[c] = block[0];
            }
        }
    }
    return to;
}

/* Returns an upper limit of the bytes of the scan. */
static size_t max_scan_bytes(const Transcoder *transcoder, size_t markers)
{
    size_t bits = 0;
    for (int table = 0; table < TABLE_COUNT; table++)
        for (int symbol = 0; symbol < 256; symbol++)
            bits += (size_t)transcoder->counts[table][symbol] *
                    (size_t)(transcoder->codes[table][symbol].length + (symbol & 15));
    return bits / 4 + 4 * markers + 64; /* twice the bits, as every byte could be FF */
}

/* Writes the new file to transcoder->file. Returns its size, or 0 on failure. */
static size_t write_file(Transcoder *transcoder, int restart_interval, int max_code_length)
{
    const Header *header = &transcoder->header;
    size_t markers = (size_t)header->mcu_columns * (size_t)header->mcu_rows / (size_t)restart_interval;
    const Token *end = tokenize(transcoder, restart_interval);
    for (int table = 0; end && table < TABLE_COUNT; table++)
        if (build_optimal_codes(
                transcoder->counts[table], max_code_length, &transcoder->spec[table], transcoder->codes[table]))
            return 0;
    uint8_t *start =
        end ? buffer_reserve(&transcoder->file, MAX_HEADER_BYTES + max_scan_bytes(transcoder, markers)) : NULL;
    if (!start)
        return 0;
    BitWriter writer = {.next = start};
    int marker_number = 0;
    put_headers(&writer.next, transcoder, restart_interval);
    for (const Token *token = (const Token *)(void *)transcoder->tokens.bytes; token < end; token++) {
        if (*token != RESTART_TOKEN) {
            put_token(&writer, *token, transcoder->codes[0]);
            continue;
        }
        flush_bits(&writer);
        put_be16(&writer.next, 0xFFD0 | (marker_number++ & 7));
    }
    flush_bits(&writer);
    put_be16(&writer.next, 0xFFD9);
    return (size_t)(writer.next - start);
}

/* Decodes the new file of `size` bytes. Returns whether its dimensions, sampling factors, colour
   space, quantization tables and coefficients are those of the original. */
static int verify_file(Transcoder *transcoder, size_t size)
{
    const Header *header = &transcoder->header;
    Header *written = &transcoder->written_header;
    header_start(written, transcoder->file.bytes, size);
    if (next_scan(written) != SCAN_FOUND || written->width != header->width || written->height != header->height ||
        written->component_count != header->component_count || is_rgb(written) != is_rgb(header) ||
        decode_all_scans(
            &transcoder->written_coefficients, written, &transcoder->tables, &transcoder->intervals,
            &transcoder->order, (size_t)header->width * (size_t)header->height))
        return 0;
    for (int c = 0; c < header->component_count; c++) {
        const Component *one = &header->component[c], *two = &written->component[c];
        if (one->id != two->id || one->h_factor != two->h_factor || one->v_factor != two->v_factor ||
            memcmp(one->quantization, two->quantization, sizeof one->quantization))
            return 0;
    }
    size_t mcus = (size_t)header->mcu_columns * (size_t)header->mcu_rows;
    return !memcmp(
        transcoder->coefficients.blocks.bytes, transcoder->written_coefficients.blocks.bytes,
        mcus * (size_t)blocks_per_mcu(header) * BLOCK_SIZE * sizeof(int16_t));
}

/* Decodes a file to transcoder->coefficients. Returns 0, or -1 on failure. */
static int decode_file(Transcoder *transcoder, const uint8_t *data, size_t size, size_t max_pixels)
{
    Header *header = &transcoder->header;
    header_start(header, data, size);
    if (next_scan(header) != SCAN_FOUND)
        return -1;
    size_t pixels = (size_t)header->width * (size_t)header->height;
    if (pixels > max_pixels || 8 * size < pixels / BLOCK_SIZE)
        return -1;
    return decode_all_scans(
        &transcoder->coefficients, header, &transcoder->tables, &transcoder->intervals, &transcoder->order, max_pixels);
}

const uint8_t *transcode(
    Transcoder *transcoder, const uint8_t *data, size_t size, int restart_interval, int max_code_length,
    size_t max_pixels, size_t *written)
{
    if (decode_file(transcoder, data, size, max_pixels))
        return NULL;
    *written = write_file(transcoder, restart_interval, max_code_length);
    return *written && verify_file(transcoder, *written) ? transcoder->file.bytes : NULL;
}

int sign_transcoded(Transcoder *transcoder, int orientation, Signature *signature)
{
    if (reduce_coefficients(&transcoder->coefficients, &transcoder->header, &transcoder->luma))
        return -1;
    return compute_signature(&transcoder->luma, orientation, signature);
}

int sign_file(
    Transcoder *transcoder, const uint8_t *data, size_t size, int orientation, size_t max_pixels, Signature *signature)
{
    if (decode_file(transcoder, data, size, max_pixels))
        return -1;
    return sign_transcoded(transcoder, orientation, signature);
}
