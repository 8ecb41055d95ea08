#include "transcode.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "coefficients.h"
#include "huffman_codes.h"

#define HEADERS 4096   /* bytes that are enough for all headers */
#define MOST_KEPT ((size_t)64 << 20) /* bytes of tokens: those of about 5 megapixels */

/* A symbol and the bits behind it: bits << 16 | their number << 10 | table << 8 | symbol. */
typedef uint32_t Token;

/* The largest DC difference; AC coefficients are half of that at most. */
#define MOST ((1 << (MAX_SIZE + 1)) - 1)

#define RESTART 0xFFFFFFFFu /* in place of a token */

/* The Huffman tables of the result. */
enum { LUMA_DC, LUMA_AC, CHROMA_DC, CHROMA_AC, TABLES };

struct Transcoder {
    Header header, again;
    Tables tables;
    Intervals intervals;
    Coefficients coefficients, written;
    Order order;
    GrowBuffer tokens, file;
    uint32_t counts[TABLES][256];
    HuffmanSpec spec[TABLES];
    HuffmanCode codes[TABLES][256];
    Token of_number[2 * MOST + 1]; /* from -MOST on */
};

/* Returns a bit for each coefficient that is not zero. */
#if defined(__SSE2__)
static inline uint64_t find_nonzero(const int16_t *block)
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
static inline uint64_t find_nonzero(const int16_t *block)
{
    uint64_t found = 0;
    for (int k = 0; k < BLOCK; k += 4) {
        uint64_t four;
        memcpy(&four, block + k, sizeof four);
        if (four)
            for (int i = 0; i < 4; i++)
                found |= (uint64_t)(block[k + i] != 0) << (k + i);
    }
    return found;
}
#endif

/* Returns the part of a token that follows from its number: size and bits (F.1.2.1). */
static Token token_of(int value)
{
    int size = value ? 32 - __builtin_clz((unsigned)(value < 0 ? -value : value)) : 0;
    uint32_t bits = (uint32_t)(value < 0 ? value - 1 : value) & ((1u << size) - 1);
    return bits << 16 | (uint32_t)(size << 10 | size);
}

static inline int size_of(Token token)
{
    return token >> 10 & 15;
}

static Transcoder *new_transcoder(void)
{
    Transcoder *transcoder = calloc(1, sizeof *transcoder);
    for (int k = 0; transcoder && k < (int)sizeof transcoder->order.at; k++)
        transcoder->order.at[k] = (uint8_t)(k < BLOCK ? k : BLOCK - 1); /* as in the file */
    for (int value = -MOST; transcoder && value <= MOST; value++)
        transcoder->of_number[value + MOST] = token_of(value);
    return transcoder;
}

static void free_transcoder(Transcoder *transcoder)
{
    intervals_free(&transcoder->intervals);
    coefficients_free(&transcoder->coefficients);
    coefficients_free(&transcoder->written);
    buffer_free(&transcoder->tokens);
    buffer_free(&transcoder->file);
    free(transcoder);
}

/* The transcoder of the last file, unless another thread is at work with it: its memory is used
   again. */
static _Atomic(Transcoder *) idle;

Transcoder *take_transcoder(void)
{
    Transcoder *transcoder = atomic_exchange(&idle, NULL);
    return transcoder ? transcoder : new_transcoder();
}

void give_back_transcoder(Transcoder *transcoder)
{
    if (transcoder->tokens.size <= MOST_KEPT)
        transcoder = atomic_exchange(&idle, transcoder);
    if (transcoder)
        free_transcoder(transcoder);
}

/* Writes the tokens of a block and counts their symbols. Returns where they end, or NULL if a
   number has more bits than a sequential file of 8 bits can hold. */
static inline Token *take_block(
    const Token *of_number, const int16_t *block, int prediction, int table, uint32_t (*counts)[256], Token *to)
{
    uint64_t left = find_nonzero(block) & ~(uint64_t)1;
    uint32_t *ac_counts = counts[table + 1], ac = (uint32_t)(table + 1) << 8;
    int before = 0, difference = block[0] - prediction;
    unsigned outside = (unsigned)(difference + MOST) > 2 * MOST;
    *to = of_number[outside ? 0 : difference] | (uint32_t)table << 8;
    counts[table][*to++ & 0xFF]++;
    for (; left; left &= left - 1) {
        int k = __builtin_ctzll(left), run = k - before - 1, value = block[k];
        for (; run > 15; run -= 16, ac_counts[0xF0]++)
            *to++ = ac | 0xF0;
        if (__builtin_expect((unsigned)(value + MOST / 2) > 2 * (MOST / 2), 0))
            return NULL;
        *to = of_number[value] | ac | (uint32_t)run << 4;
        ac_counts[*to++ & 0xFF]++;
        before = k;
    }
    if (before < BLOCK - 1) {
        *to++ = ac;
        ac_counts[0]++;
    }
    return outside ? NULL : to;
}

/* Bits on their way into a file. */
typedef struct {
    uint64_t bits; /* those not yet written, the last one lowest */
    int count;
    uint8_t *next;
} BitWriter;

/* Writes eight bytes of coded data, with a zero behind each FF. */
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

/* `count` is 32 at most. */
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

/* Fills the last byte up with ones (F.1.2.3). */
static void put_rest(BitWriter *writer)
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

static inline void put_token(BitWriter *writer, Token token, const HuffmanCode *codes)
{
    HuffmanCode code = codes[token & 0x3FF]; /* table and symbol */
    int size = size_of(token);
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

static int table_of(int component)
{
    return component ? CHROMA_DC : LUMA_DC;
}

/* Writes the segments that say which colours the components are. */
static void put_colours(uint8_t **to, const Header *header)
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

/* Writes the quantization tables, one for each component that has one of its own. Returns
   whether one has 16 bits. */
static int put_quantization(uint8_t **to, const Header *header, int *number)
{
    int any_wide = 0;
    for (int c = 0; c < header->count; c++) {
        const uint16_t *table = header->component[c].quantization;
        int is_wide = 0, same = 0;
        for (same = 0; memcmp(header->component[same].quantization, table, BLOCK * sizeof *table); same++)
            ;
        number[c] = same;
        if (same < c)
            continue;
        for (int i = 0; i < BLOCK; i++)
            is_wide |= table[i] > 255;
        any_wide |= is_wide;
        put_marker(to, 0xDB, 3 + (BLOCK << is_wide));
        put_byte(to, is_wide << 4 | c);
        for (int k = 0; k < BLOCK; k++)
            is_wide ? put_be16(to, table[zigzag[k]]) : put_byte(to, table[zigzag[k]]);
    }
    return any_wide;
}

static void put_huffman(uint8_t **to, int is_ac, int number, const HuffmanSpec *spec)
{
    int symbols = 0;
    for (int length = 1; length <= MAX_CODE; length++)
        symbols += spec->counts[length];
    put_marker(to, 0xC4, 3 + MAX_CODE + symbols);
    put_byte(to, is_ac << 4 | number);
    memcpy(*to, spec->counts + 1, MAX_CODE);
    memcpy(*to + MAX_CODE, spec->symbols, (size_t)symbols);
    *to += MAX_CODE + symbols;
}

static void put_headers(uint8_t **to, const Transcoder *transcoder, int restart)
{
    const Header *header = &transcoder->header;
    int number[MAX_COMPONENTS];
    put_be16(to, 0xFFD8);
    put_colours(to, header);
    int is_wide = put_quantization(to, header, number);
    put_marker(to, is_wide ? 0xC1 : 0xC0, 8 + 3 * header->count);
    put_byte(to, 8);
    put_be16(to, header->height);
    put_be16(to, header->width);
    put_byte(to, header->count);
    for (int c = 0; c < header->count; c++) {
        put_byte(to, header->component[c].id);
        put_byte(to, header->component[c].across << 4 | header->component[c].down);
        put_byte(to, number[c]);
    }
    for (int table = 0; table <= table_of(header->count - 1) + 1; table++)
        put_huffman(to, table & 1, table >> 1, &transcoder->spec[table]);
    put_marker(to, 0xDD, 4);
    put_be16(to, restart);
    put_marker(to, 0xDA, 6 + 2 * header->count);
    put_byte(to, header->count);
    for (int c = 0; c < header->count; c++) {
        put_byte(to, header->component[c].id);
        put_byte(to, table_of(c) << 3 | table_of(c) >> 1);
    }
    put_byte(to, 0);
    put_byte(to, BLOCK - 1);
    put_byte(to, 0);
}

/* Writes the tokens of all blocks. Returns where they end, or NULL. */
static Token *tokenize(Transcoder *transcoder, int restart)
{
    const Header *header = &transcoder->header;
    int mcus = header->mcus_across * header->mcus_down;
    int16_t prediction[MAX_COMPONENTS] = {0};
    const int16_t *block = blocks_of(&transcoder->coefficients);
    const Token *of_number = transcoder->of_number + MOST;
    size_t blocks = (size_t)mcus * (size_t)blocks_of_mcu(header);
    Token *to = (Token *)(void *)buffer_reserve(
        &transcoder->tokens, (blocks * (BLOCK + 1) + (size_t)(mcus / restart)) * sizeof(Token));
    memset(transcoder->counts, 0, sizeof transcoder->counts);
    for (int mcu = 0, left = restart; to && mcu < mcus; mcu++, left--) {
        if (!left) {
            memset(prediction, 0, sizeof prediction);
            *to++ = RESTART;
            left = restart;
        }
        for (int c = 0; c < header->count; c++)
            for (int n = header->component[c].across * header->component[c].down; to && n > 0; n--, block += BLOCK) {
                to = take_block(of_number, block, prediction[c], table_of(c), transcoder->counts, to);
                prediction[c] = block[0];
            }
    }
    return to;
}

/* Returns how many bytes a scan may take. */
static size_t most_bytes(const Transcoder *transcoder, size_t markers)
{
    size_t bits = 0;
    for (int table = 0; table < TABLES; table++)
        for (int symbol = 0; symbol < 256; symbol++)
            bits += (size_t)transcoder->counts[table][symbol] *
                    (size_t)(transcoder->codes[table][symbol].length + (symbol & 15));
    return bits / 4 + 4 * markers + 64; /* twice as much where every byte is FF */
}

/* Writes the file. Returns its size, or 0. */
static size_t write_file(Transcoder *transcoder, int restart, int longest)
{
    const Header *header = &transcoder->header;
    size_t markers = (size_t)header->mcus_across * (size_t)header->mcus_down / (size_t)restart;
    const Token *end = tokenize(transcoder, restart);
    for (int table = 0; end && table < TABLES; table++)
        if (make_codes(transcoder->counts[table], longest, &transcoder->spec[table], transcoder->codes[table]))
            return 0;
    uint8_t *start = end ? buffer_reserve(&transcoder->file, HEADERS + most_bytes(transcoder, markers)) : NULL;
    if (!start)
        return 0;
    BitWriter writer = {.next = start};
    int number = 0;
    put_headers(&writer.next, transcoder, restart);
    for (const Token *token = (const Token *)(void *)transcoder->tokens.bytes; token < end; token++) {
        if (*token != RESTART) {
            put_token(&writer, *token, transcoder->codes[0]);
            continue;
        }
        put_rest(&writer);
        put_be16(&writer.next, 0xFFD0 | (number++ & 7));
    }
    put_rest(&writer);
    put_be16(&writer.next, 0xFFD9);
    return (size_t)(writer.next - start);
}

/* Decodes what was written. Returns whether it is what was to be written. */
static int is_right(Transcoder *transcoder, size_t size)
{
    const Header *header = &transcoder->header;
    Header *again = &transcoder->again;
    header_start(again, transcoder->file.bytes, size);
    if (next_scan(again) != A_SCAN || again->width != header->width || again->height != header->height ||
        again->count != header->count || is_rgb(again) != is_rgb(header) ||
        decode_all(
            &transcoder->written, again, &transcoder->tables, &transcoder->intervals, &transcoder->order,
            (size_t)header->width * (size_t)header->height))
        return 0;
    for (int c = 0; c < header->count; c++) {
        const Component *one = &header->component[c], *two = &again->component[c];
        if (one->id != two->id || one->across != two->across || one->down != two->down ||
            memcmp(one->quantization, two->quantization, sizeof one->quantization))
            return 0;
    }
    size_t mcus = (size_t)header->mcus_across * (size_t)header->mcus_down;
    return !memcmp(
        transcoder->coefficients.blocks.bytes, transcoder->written.blocks.bytes,
        mcus * (size_t)blocks_of_mcu(header) * BLOCK * sizeof(int16_t));
}

const uint8_t *transcode(
    Transcoder *transcoder, const uint8_t *data, size_t size, int restart, int longest, size_t max_pixels,
    size_t *written)
{
    Header *header = &transcoder->header;
    header_start(header, data, size);
    if (next_scan(header) != A_SCAN)
        return NULL;
    size_t pixels = (size_t)header->width * (size_t)header->height;
    if (pixels > max_pixels || 8 * size < pixels / BLOCK ||
        decode_all(
            &transcoder->coefficients, header, &transcoder->tables, &transcoder->intervals, &transcoder->order,
            max_pixels))
        return NULL;
    *written = write_file(transcoder, restart, longest);
    return *written && is_right(transcoder, *written) ? transcoder->file.bytes : NULL;
}
