#include "huffman.h"

/* Most files have the tables of the one before. */
static int is_made_of(const HuffmanTable *table, const HuffmanSpec *spec, enum made made)
{
    return table->made >= made && !memcmp(&table->spec, spec, sizeof *spec);
}

static int make_spec_codes(HuffmanTable *table, const HuffmanSpec *spec)
{
    int32_t code = 0;
    int first = 0;
    memset(table->symbol, 0, sizeof table->symbol);
    table->spec = *spec;
    table->made = NOTHING;
    for (int length = 1; length <= MAX_CODE; length++) {
        table->offset[length] = first - code;
        for (int i = 0; i < spec->counts[length]; i++, code++, first++)
            if (length <= SYMBOL_BITS && code < 1 << length) {
                int scale_denominator = SYMBOL_BITS - length;
                for (int rest = 0; rest < 1 << scale_denominator; rest++)
                    table->symbol[(code << scale_denominator) + rest] = (uint16_t)(length << 8 | spec->symbols[first]);
            }
        if (code >= 1 << length) /* a code of ones alone is not allowed either (C.2) */
            return -1;
        table->end[length] = code << (MAX_CODE - length);
        code <<= 1;
    }
    table->end[MAX_CODE + 1] = INT32_MAX;
    table->made = CODES;
    return 0;
}

int make_table(HuffmanTable *table, const HuffmanSpec *spec)
{
    return is_made_of(table, spec, CODES) ? 0 : make_spec_codes(table, spec);
}

int find_long_code(const HuffmanTable *table, BitReader *reader)
{
    int32_t next = (int32_t)peek(reader, MAX_CODE);
    int length = SYMBOL_BITS + 1;
    while (next >= table->end[length])
        length++;
    if (length > MAX_CODE)
        return -1;
    skip(reader, length);
    return table->spec.symbols[((next >> (MAX_CODE - length)) + table->offset[length]) & 0xFF];
}

/* Fills in what begins with one code: its numbers, of which each fills the places that differ
   only in what follows. */
static uint32_t *fill(uint32_t *to, int length, int symbol)
{
    int run = symbol >> 4, size = symbol & 15, scale_denominator = DIRECT_BITS - length - size;
    unsigned advance = !size && run < 15 ? END_OF_BLOCK : (unsigned)run + 1;
    if (scale_denominator < 0 || size > MAX_SIZE) {
        for (int rest = 0; rest < 1 << (DIRECT_BITS - length); rest++)
            *to++ = LONG;
        return to;
    }
    for (int value = 0; value < 1 << size; value++) {
        int number = value - ((((value << 1) >> size) - 1) & ((1 << size) - 1));
        uint32_t entry = (uint32_t)number << 16 | advance << 8 | (unsigned)(length + size);
        for (int rest = 0; rest < 1 << scale_denominator; rest++)
            *to++ = entry;
    }
    return to;
}

int make_ac_table(HuffmanTable *table, const HuffmanSpec *spec)
{
    if (is_made_of(table, spec, CODES_AND_NUMBERS))
        return 0;
    if (make_spec_codes(table, spec))
        return -1;
    uint32_t *to = table->direct;
    const uint8_t *symbol = spec->symbols;
    for (int length = 1; length <= DIRECT_BITS; length++)
        for (int i = 0; i < spec->counts[length]; i++)
            to = fill(to, length, *symbol++);
    while (to < table->direct + (1 << DIRECT_BITS))
        *to++ = LONG;
    table->made = CODES_AND_NUMBERS;
    return 0;
}
