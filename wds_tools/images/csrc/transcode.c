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

/* What is written: the code and the value bits of a small AC coefficient, a code alone, or value bits alone. Most
   coefficients are small, so that one lookup in Transcoder.bits finds all their bits. */
typedef uint16_t Token;

#define SMALL_SIZE 6 /* bits of the largest small value */
#define SMALL_VALUE ((1 << SMALL_SIZE) - 1)
#define RUN_TOKENS (2 << SMALL_SIZE)   /* tokens of small coefficients after the same zero run: of 0 in the middle */
#define TABLE_TOKENS (16 * RUN_TOKENS) /* tokens of small coefficients with the same Huffman table */
#define CODE_TOKENS (2 * TABLE_TOKENS) /* plus table << 8 | symbol: the token of a code */
#define VALUE_TOKENS (CODE_TOKENS + TABLE_COUNT * 256) /* plus 1 << size | value bits: the token of value bits */
#define NO_BITS (VALUE_TOKENS + 1)
#define TOKEN_COUNT (VALUE_TOKENS + (2 << MAX_DC_SIZE))
#define MAX_BLOCK_TOKENS (2 * BLOCK_SIZE + 1)

#define MAX_DC_DIFFERENCE ((1 << MAX_DC_SIZE) - 1)
#define MAX_AC_VALUE ((1 << MAX_AC_SIZE) - 1)

/* The bits of a token: bits << 5 | number of bits. */
typedef uint32_t TokenBits;

#define MAX_TOKEN_BITS 22 /* a code and the bits of a small value */

/* The Huffman tables that are written. */
enum { LUMA_DC, LUMA_AC, CHROMA_DC, CHROMA_AC, TABLE_COUNT };

struct Transcoder {
    Header header, written_header;
    HuffmanTables tables;
    Intervals intervals;
    Coefficients coefficients, compared; /* `compared`: memory of has_coefficients() */
    CoefficientOrder order;
    GrowBuffer tokens, interval_ends, unstuffed, file;
    Luma luma;
    uint32_t counts[TABLE_COUNT][256];        /* how often each symbol occurs */
    uint32_t small_counts[2][16][RUN_TOKENS]; /* how often each token of a small coefficient occurs */
    HuffmanSpec spec[TABLE_COUNT];
    HuffmanCode codes[TABLE_COUNT][256];
    TokenBits bits[TOKEN_COUNT];
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

/* Returns the number of bits of a value (F.1.2.1). */
static inline int size_of(int value)
{
    return value ? 32 - __builtin_clz((unsigned)(value < 0 ? -value : value)) : 0;
}

static Transcoder *transcoder_new(void)
{
    Transcoder *transcoder = calloc(1, sizeof *transcoder);
    for (int k = 0; transcoder && k < (int)sizeof transcoder->order.position; k++)
        transcoder->order.position[k] = (uint8_t)(k < BLOCK_SIZE ? k : BLOCK_SIZE - 1); /* zigzag order */
    for (int size = 0; transcoder && size <= MAX_DC_SIZE; size++)
        for (int bits = 0; bits < 1 << size; bits++)
            transcoder->bits[VALUE_TOKENS + (1 << size | bits)] = (TokenBits)(bits << 5 | size);
    return transcoder;
}

static void transcoder_free(Transcoder *transcoder)
{
    intervals_free(&transcoder->intervals);
    coefficients_free(&transcoder->coefficients);
    coefficients_free(&transcoder->compared);
    luma_free(&transcoder->luma);
    buffer_free(&transcoder->tokens);
    buffer_free(&transcoder->interval_ends);
    buffer_free(&transcoder->unstuffed);
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

/* Writes the token of a code without value bits, and counts its symbol. Returns the end of the tokens. */
static inline Token *put_code_token(uint32_t (*counts)[256], int table, int symbol, Token *to)
{
    counts[table][symbol]++;
    *to = (Token)(CODE_TOKENS + (table << 8 | symbol));
    return to + 1;
}

/* Writes the two tokens of a value after a zero run, and counts its symbol. Returns the end of the tokens. */
static inline Token *tokenize_value(uint32_t (*counts)[256], int table, int run, int value, Token *to)
{
    int size = size_of(value), symbol = run << 4 | size;
    counts[table][symbol]++;
    to[0] = (Token)(CODE_TOKENS + (table << 8 | symbol));
    to[1] = (Token)(VALUE_TOKENS + (1 << size | ((value - (value < 0)) & ((1 << size) - 1))));
    return to + 2;
}

/* Writes the tokens of a block to `to` and counts its symbols. `prediction` is the DC prediction, `table` is LUMA_DC or
   CHROMA_DC. Returns the end of the tokens, or NULL if a value is too large for a sequential JPEG with 8 bits per
   sample. */
static inline Token *tokenize_block(Transcoder *transcoder, const int16_t *block, int prediction, int table, Token *to)
{
    uint32_t *small_counts = transcoder->small_counts[table >> 1][0];
    int previous = 0, difference = block[0] - prediction, first_small = (table >> 1) * TABLE_TOKENS;
    if (difference < -MAX_DC_DIFFERENCE || difference > MAX_DC_DIFFERENCE)
        return NULL;
    to = tokenize_value(transcoder->counts, table++, 0, difference, to);
    for (uint64_t remaining = nonzero_mask(block) & ~(uint64_t)1; remaining; remaining &= remaining - 1) {
        int k = __builtin_ctzll(remaining), run = k - previous - 1, value = block[k];
        previous = k;
        if (__builtin_expect(run < 16 && (unsigned)(value + SMALL_VALUE) <= 2 * SMALL_VALUE, 1)) {
            int small = run * RUN_TOKENS + RUN_TOKENS / 2 + value;
            small_counts[small]++;
            *to++ = (Token)(first_small + small);
            continue;
        }
        if (value < -MAX_AC_VALUE || value > MAX_AC_VALUE)
            return NULL;
        for (; run > 15; run -= 16)
            to = put_code_token(transcoder->counts, table, 0xF0, to); /* ZRL */
        to = tokenize_value(transcoder->counts, table, run, value, to);
    }
    return previous < BLOCK_SIZE - 1 ? put_code_token(transcoder->counts, table, 0, to) : to; /* EOB */
}

/* Writes entropy-coded data to `to`, with a zero byte after each FF. Returns its end. */
static uint8_t *stuff(const uint8_t *from, const uint8_t *end, uint8_t *to)
{
    while (from < end) {
        uint64_t word;
        memcpy(&word, from, 8);
        memcpy(to, &word, 8);
        if (end - from >= 8 && !has_ff(word)) {
            from += 8;
            to += 8;
            continue;
        }
        for (int i = 0; i < 8 && from < end; i++) {
            *to++ = *from;
            if (*from++ == 0xFF)
                *to++ = 0;
        }
    }
    return to;
}

/* Writes the bits of an even number of tokens to `to`, padded with ones (F.1.2.3). Returns their end. */
static uint8_t *write_bits(const TokenBits *token_bits, const Token *token, const Token *end, uint8_t *to)
{
    uint64_t bits = 0; /* the last one is the least significant */
    int count = 0;     /* of the bits that are not written yet: less than 8 after each step */
    for (; token < end; token += 2) {
        TokenBits one = token_bits[token[0]], two = token_bits[token[1]];
        int one_count = one & 31, two_count = two & 31;
        bits = bits << (one_count + two_count) | ((uint64_t)(one >> 5) << two_count | two >> 5);
        count += one_count + two_count;
        put_be64(to, bits << (-count & 63)); /* if there is no bit, nothing of this is kept */
        to += count >> 3;
        count &= 7;
    }
    if (count)
        *to++ = (uint8_t)(bits << (8 - count) | 0xFFu >> count);
    return to;
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

/* Adds the counts of small coefficients to those of their symbols. */
static void count_small_symbols(Transcoder *transcoder)
{
    for (int chroma = 0; chroma < 2; chroma++)
        for (int run = 0; run < 16; run++)
            for (int size = 1; size <= SMALL_SIZE; size++) {
                const uint32_t *zero = transcoder->small_counts[chroma][run] + RUN_TOKENS / 2;
                uint32_t *count = &transcoder->counts[2 * chroma + LUMA_AC][run << 4 | size];
                for (int value = 1 << (size - 1); value < 1 << size; value++)
                    *count += zero[value] + zero[-value];
            }
}

/* Writes the tokens of all blocks to transcoder->tokens, an even number for each restart interval. Returns 0, or -1 on
   failure. */
static int tokenize(Transcoder *transcoder, int restart_interval)
{
    const Header *header = &transcoder->header;
    int mcus = header->mcu_columns * header->mcu_rows, intervals = (mcus - 1) / restart_interval + 1;
    const int16_t *block = frame_blocks(&transcoder->coefficients);
    size_t blocks = (size_t)mcus * (size_t)blocks_per_mcu(header);
    Token *first = (Token *)(void *)buffer_reserve(
        &transcoder->tokens, (blocks * MAX_BLOCK_TOKENS + (size_t)intervals) * sizeof(Token));
    Token **end = (Token **)(void *)buffer_reserve(&transcoder->interval_ends, (size_t)intervals * sizeof(Token *));
    if (!first || !end)
        return -1;
    memset(transcoder->counts, 0, sizeof transcoder->counts);
    memset(transcoder->small_counts, 0, sizeof transcoder->small_counts);
    for (int mcu = 0; mcu < mcus;) {
        int16_t prediction[MAX_COMPONENTS] = {0};
        Token *to = first;
        for (int left = restart_interval; left && mcu < mcus; left--, mcu++)
            for (int c = 0; c < header->component_count; c++) {
                const Component *component = &header->component[c];
                for (int n = component->h_factor * component->v_factor; n > 0; n--, block += BLOCK_SIZE) {
                    to = tokenize_block(transcoder, block, prediction[c], table_of(c), to);
                    if (!to)
                        return -1;
                    prediction[c] = block[0];
                }
            }
        if ((to - first) & 1)
            *to++ = NO_BITS;
        *end++ = first = to;
    }
    count_small_symbols(transcoder);
    return 0;
}

/* Writes the bits of the tokens, except those of value bits alone, which never change. */
static void set_token_bits(Transcoder *transcoder)
{
    for (int table = 0; table < TABLE_COUNT; table++)
        for (int symbol = 0; symbol < 256; symbol++) {
            HuffmanCode code = transcoder->codes[table][symbol];
            int size = symbol & 15, end = 1 << size;
            transcoder->bits[CODE_TOKENS + (table << 8 | symbol)] = (TokenBits)(code.bits << 5 | code.length);
            if (!code.length || !(table & 1) || !size || size > SMALL_SIZE)
                continue;
            TokenBits *zero =
                transcoder->bits + (table >> 1) * TABLE_TOKENS + (symbol >> 4) * RUN_TOKENS + RUN_TOKENS / 2;
            for (int bits = 0; bits < end; bits++)
                zero[bits < end / 2 ? bits + 1 - end : bits] =
                    (TokenBits)((code.bits << size | bits) << 5 | (code.length + size));
        }
}

/* Returns an upper limit of the bytes of the scan. */
static size_t max_scan_bytes(const Transcoder *transcoder, size_t intervals)
{
    size_t bits = 0;
    for (int table = 0; table < TABLE_COUNT; table++)
        for (int symbol = 0; symbol < 256; symbol++)
            bits += (size_t)transcoder->counts[table][symbol] *
                    (size_t)(transcoder->codes[table][symbol].length + (symbol & 15));
    return bits / 4 + 4 * intervals + 64; /* twice the bits, as every byte could be FF */
}

/* Returns the bytes of the longest restart interval without stuffed bytes, or more. */
static size_t max_interval_bytes(const Token *token, Token *const *ends, int intervals)
{
    size_t longest = 0;
    for (int i = 0; i < intervals; token = ends[i++])
        longest = (size_t)(ends[i] - token) > longest ? (size_t)(ends[i] - token) : longest;
    return longest * MAX_TOKEN_BITS / 8 + 1;
}

/* Writes the new file to transcoder->file. Returns its size, or 0 on failure. */
static size_t write_file(Transcoder *transcoder, int restart_interval, int max_code_length)
{
    const Header *header = &transcoder->header;
    int intervals = (header->mcu_columns * header->mcu_rows - 1) / restart_interval + 1;
    if (tokenize(transcoder, restart_interval))
        return 0;
    for (int table = 0; table < TABLE_COUNT; table++)
        if (build_optimal_codes(
                transcoder->counts[table], max_code_length, &transcoder->spec[table], transcoder->codes[table]))
            return 0;
    const Token *token = (const Token *)(void *)transcoder->tokens.bytes;
    Token *const *ends = (Token *const *)(void *)transcoder->interval_ends.bytes;
    size_t max_bytes = MAX_HEADER_BYTES + max_scan_bytes(transcoder, (size_t)intervals);
    uint8_t *start = buffer_reserve(&transcoder->file, max_bytes);
    uint8_t *unstuffed = buffer_reserve(&transcoder->unstuffed, max_interval_bytes(token, ends, intervals));
    if (!start || !unstuffed)
        return 0;
    uint8_t *to = start;
    put_headers(&to, transcoder, restart_interval);
    set_token_bits(transcoder);
    for (int i = 0; i < intervals; token = ends[i++]) {
        to = stuff(unstuffed, write_bits(transcoder->bits, token, ends[i], unstuffed), to);
        put_be16(&to, i < intervals - 1 ? 0xFFD0 | (i & 7) : 0xFFD9); /* RST or EOI */
    }
    return (size_t)(to - start);
}

/* Decodes the new file of `size` bytes. Returns whether its dimensions, sampling factors, colour
   space, quantization tables and coefficients are those of the original. */
static int verify_file(Transcoder *transcoder, size_t size)
{
    const Header *header = &transcoder->header;
    Header *written = &transcoder->written_header;
    header_start(written, transcoder->file.bytes, size);
    if (next_scan(written) != SCAN_FOUND || written->width != header->width || written->height != header->height ||
        written->component_count != header->component_count || is_rgb(written) != is_rgb(header))
        return 0;
    for (int c = 0; c < header->component_count; c++) {
        const Component *one = &header->component[c], *two = &written->component[c];
        if (one->id != two->id || one->h_factor != two->h_factor || one->v_factor != two->v_factor ||
            memcmp(one->quantization, two->quantization, sizeof one->quantization))
            return 0;
    }
    return has_coefficients(
        &transcoder->coefficients, written, &transcoder->tables, &transcoder->intervals, &transcoder->order,
        &transcoder->compared);
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
