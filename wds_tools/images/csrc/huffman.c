#include "huffman.h"

/* Returns whether `table` was already built from `spec`, up to `state` at least. Consecutive files
   usually have the same tables. */
static int is_built_from(const HuffmanTable *table, const HuffmanSpec *spec, enum table_state state)
{
    return table->state >= state && !memcmp(&table->spec, spec, sizeof *spec);
}

static int build_symbol_lookup(HuffmanTable *table, const HuffmanSpec *spec)
{
    int32_t code = 0;
    int index = 0;
    memset(table->symbol_lookup, 0, sizeof table->symbol_lookup);
    table->spec = *spec;
    table->state = TABLE_EMPTY;
    for (int length = 1; length <= MAX_CODE_LENGTH; length++) {
        table->symbol_offset[length] = index - code;
        for (int i = 0; i < spec->counts[length]; i++, code++, index++)
            if (length <= SYMBOL_LOOKUP_BITS && code < 1 << length) {
                int free_bits = SYMBOL_LOOKUP_BITS - length;
                for (int rest = 0; rest < 1 << free_bits; rest++)
                    table->symbol_lookup[(code << free_bits) + rest] = (uint16_t)(length << 8 | spec->symbols[index]);
            }
        if (code >= 1 << length) /* the code of only ones is not allowed (C.2) */
            return -1;
        table->code_end[length] = code << (MAX_CODE_LENGTH - length);
        code <<= 1;
    }
    table->code_end[MAX_CODE_LENGTH + 1] = INT32_MAX;
    table->state = HAS_SYMBOL_LOOKUP;
    return 0;
}

int build_table(HuffmanTable *table, const HuffmanSpec *spec)
{
    return is_built_from(table, spec, HAS_SYMBOL_LOOKUP) ? 0 : build_symbol_lookup(table, spec);
}

int decode_long_code(const HuffmanTable *table, BitReader *reader)
{
    int32_t next = (int32_t)peek_bits(reader, MAX_CODE_LENGTH);
    int length = SYMBOL_LOOKUP_BITS + 1;
    while (next >= table->code_end[length])
        length++;
    if (length > MAX_CODE_LENGTH)
        return -1;
    skip_bits(reader, length);
    return table->spec.symbols[((next >> (MAX_CODE_LENGTH - length)) + table->symbol_offset[length]) & 0xFF];
}

/* Writes the entries of `ac_lookup` that begin with one code: for each value of `size` bits after
   the code, one entry for each combination of the remaining bits. Returns the next entry. */
static uint32_t *fill_entries(uint32_t *entries, int length, int symbol)
{
    int run = symbol >> 4, size = symbol & 15, free_bits = AC_LOOKUP_BITS - length - size;
    unsigned advance = !size && run < 15 ? EOB_ADVANCE : (unsigned)run + 1;
    if (free_bits < 0 || size > MAX_AC_SIZE) {
        for (int rest = 0; rest < 1 << (AC_LOOKUP_BITS - length); rest++)
            *entries++ = ESCAPE_ENTRY;
        return entries;
    }
    for (int bits = 0; bits < 1 << size; bits++) {
        int value = bits - ((((bits << 1) >> size) - 1) & ((1 << size) - 1)); /* EXTEND (F.2.2.1) */
        uint32_t entry = (uint32_t)value << 16 | advance << 8 | (unsigned)(length + size);
        for (int rest = 0; rest < 1 << free_bits; rest++)
            *entries++ = entry;
    }
    return entries;
}

int build_ac_table(HuffmanTable *table, const HuffmanSpec *spec)
{
    if (is_built_from(table, spec, HAS_AC_LOOKUP))
        return 0;
    if (build_symbol_lookup(table, spec))
        return -1;
    uint32_t *entries = table->ac_lookup;
    const uint8_t *symbol = spec->symbols;
    for (int length = 1; length <= AC_LOOKUP_BITS; length++)
        for (int i = 0; i < spec->counts[length]; i++)
            entries = fill_entries(entries, length, *symbol++);
    while (entries < table->ac_lookup + (1 << AC_LOOKUP_BITS))
        *entries++ = ESCAPE_ENTRY;
    table->state = HAS_AC_LOOKUP;
    return 0;
}
