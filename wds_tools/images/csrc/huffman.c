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

/* Writes `count` equal entries. Returns the next one. */
static uint32_t *fill(uint32_t *entries, int count, uint32_t entry)
{
    while (count--)
        *entries++ = entry;
    return entries;
}

/* Returns the entry of `lookup` for a code of `length` bits. */
static uint32_t make_entry(int code, int length, int symbol, int is_dc, int is_negative)
{
    int run = symbol >> 4, size = symbol & 15;
    unsigned advance = is_dc ? 0 : !size && run < 15 ? EOB_ADVANCE : (unsigned)run + 1;
    int base = (is_negative ? 1 - (1 << size) : 0) - (int)((unsigned)code << size); /* EXTEND (F.2.2.1) */
    return (uint32_t)base << 16 | advance << 8 | (unsigned)(length + size);
}

static int is_valid_symbol(int symbol, int is_dc)
{
    return is_dc ? symbol <= MAX_DC_SIZE : (symbol & 15) <= MAX_AC_SIZE;
}

/* Writes the entries that begin with one code: first those with a negative value. Returns the next entry. */
static uint32_t *fill_entries(uint32_t *entries, int code, int length, int symbol, int is_dc)
{
    int size = symbol & 15, free_bits = LOOKUP_BITS - length;
    if (!is_valid_symbol(symbol, is_dc) || (size && !free_bits) || length + size > MAX_ENTRY_BITS)
        return fill(entries, 1 << free_bits, ESCAPE_ENTRY);
    if (!size)
        return fill(entries, 1 << free_bits, make_entry(code, length, symbol, is_dc, 0));
    entries = fill(entries, 1 << (free_bits - 1), make_entry(code, length, symbol, is_dc, 1));
    return fill(entries, 1 << (free_bits - 1), make_entry(code, length, symbol, is_dc, 0));
}

int build_lookup_table(HuffmanTable *table, const HuffmanSpec *spec, int is_dc)
{
    if (is_built_from(table, spec, HAS_LOOKUP))
        return 0;
    if (build_symbol_lookup(table, spec))
        return -1;
    uint32_t *entries = table->lookup;
    const uint8_t *symbol = spec->symbols;
    int code = 0;
    for (int length = 1; length <= LOOKUP_BITS; length++, code <<= 1)
        for (int i = 0; i < spec->counts[length]; i++)
            entries = fill_entries(entries, code++, length, *symbol++, is_dc);
    fill(entries, (int)(table->lookup + (1 << LOOKUP_BITS) - entries), ESCAPE_ENTRY);
    table->state = HAS_LOOKUP;
    return 0;
}

uint32_t decode_entry(const HuffmanTable *table, uint64_t bits, int is_dc)
{
    BitReader reader = {bits, 64, NULL};
    int symbol = decode_symbol(table, &reader), length = 64 - (int)reader.count;
    if (symbol < 0 || !is_valid_symbol(symbol, is_dc))
        return 0;
    return make_entry((int)(bits >> reader.count), length, symbol, is_dc, !(reader.bits >> 63));
}
