/* Decoding of Huffman codes (T.81, Annex C and F.2.2). */
#ifndef WDS_TOOLS_HUFFMAN_H
#define WDS_TOOLS_HUFFMAN_H

#include "bits.h"

#define MAX_CODE_LENGTH 16 /* in bits */

/* Codes of up to this many bits are decoded with one lookup in HuffmanTable.symbol_lookup. */
#define SYMBOL_LOOKUP_BITS 9

/* A code and the value bits that follow it are decoded with one lookup in HuffmanTable.lookup if the code and the sign of
   the value have up to LOOKUP_BITS, and everything up to MAX_ENTRY_BITS. Python reads the first number from the module. */
#define LOOKUP_BITS 11
#define MAX_ENTRY_BITS 18

/* A Huffman table as it is stored in a DHT segment. */
typedef struct {
    uint8_t counts[MAX_CODE_LENGTH + 1]; /* BITS: number of codes of each length; [0] is 1 if the table is defined */
    uint8_t symbols[256];                /* HUFFVAL: the symbols, in order of increasing code length */
} HuffmanSpec;

/* A Huffman table prepared for decoding. */
typedef struct {
    HuffmanSpec spec;
    enum table_state { TABLE_EMPTY, HAS_SYMBOL_LOOKUP, HAS_LOOKUP } state; /* each includes those before it */
    uint16_t symbol_lookup[1 << SYMBOL_LOOKUP_BITS]; /* length << 8 | symbol; 0: a longer or invalid code */
    int32_t code_end[MAX_CODE_LENGTH + 2]; /* one past the last code of each length, shifted left to 16 bits */
    int32_t symbol_offset[MAX_CODE_LENGTH + 1]; /* index in spec.symbols minus code, for each length */

    /* base << 16 | advance << 8 | number of bits of code and value, or ESCAPE_ENTRY. The value is the number that these
       bits are, plus `base`. So it does not have to fit into the index. `advance` is added to the zigzag index: the
       zero run + 1 or EOB_ADVANCE; 0 for a DC difference. */
    uint32_t lookup[1 << LOOKUP_BITS];
} HuffmanTable;

#define MAX_AC_SIZE 10     /* bits of an AC coefficient of an image with 8 bits per sample */
#define MAX_DC_SIZE 11     /* bits of a DC difference */
#define EOB_ADVANCE 128    /* end of block: moves the index beyond the block */
#define ESCAPE_ADVANCE 255 /* the code is invalid or does not fit: moves the index further than EOB_ADVANCE can */
#define ESCAPE_ENTRY (ESCAPE_ADVANCE << 8)

/* Prepares `table` for decode_symbol(). Does nothing if it was built from the same spec. Returns 0,
   or -1 if the spec has more codes than fit into their lengths. */
int build_table(HuffmanTable *table, const HuffmanSpec *spec);

/* Like build_table(), and builds `lookup` too. The symbols are those of a sequential scan: sizes of DC differences if
   `is_dc`, otherwise zero runs and sizes of AC coefficients. */
int build_lookup_table(HuffmanTable *table, const HuffmanSpec *spec, int is_dc);

/* Returns an entry in the format of `lookup` for bits that begin with a code of any length. Returns 0 if the code or its
   size is invalid. */
uint32_t decode_entry(const HuffmanTable *table, uint64_t bits, int is_dc);

/* Decodes a code that is longer than SYMBOL_LOOKUP_BITS. Arguments and result are those of
   decode_symbol(). */
int decode_long_code(const HuffmanTable *table, BitReader *reader);

/* Decodes a code: DECODE (F.2.2.3). `reader` must have 16 valid bits. Returns the symbol, or -1 if
   the bits are not a code of the table. */
static inline int decode_symbol(const HuffmanTable *table, BitReader *reader)
{
    unsigned entry = table->symbol_lookup[peek_bits(reader, SYMBOL_LOOKUP_BITS)];
    if (__builtin_expect(!entry, 0))
        return decode_long_code(table, reader);
    skip_bits(reader, (int)(entry >> 8));
    return (int)(entry & 0xFF);
}

#endif
