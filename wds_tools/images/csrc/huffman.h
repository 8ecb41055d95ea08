/* Huffman codes (T.81, Annex C and F.2.2). */
#ifndef WDS_TOOLS_HUFFMAN_H
#define WDS_TOOLS_HUFFMAN_H

#include "bits.h"

#define MAX_CODE 16    /* bits */
#define SYMBOL_BITS 9  /* codes up to this length are found by one look into a table */
#define DIRECT_BITS 11 /* codes that fit into this together with the number behind them, too: the number as well */

/* A table as a file states it. */
typedef struct {
    uint8_t counts[MAX_CODE + 1]; /* BITS: how many codes there are of each length; [0] is 1 if there is such a table */
    uint8_t symbols[256];         /* HUFFVAL: what they mean, from the shortest code on */
} HuffmanSpec;

/* A table made for decoding. */
typedef struct {
    HuffmanSpec spec;
    enum made { NOTHING, CODES, CODES_AND_NUMBERS } made;
    uint16_t symbol[1 << SYMBOL_BITS]; /* length << 8 | symbol; 0: longer */
    int32_t end[MAX_CODE + 2];         /* behind the last code of each length; shifted to 16 bits */
    int32_t offset[MAX_CODE + 1];      /* from a code to its place in `symbols` */
    /* value << 16 | advance << 8 | length of code and value; LONG: they do not fit, or are not
       allowed */
    uint32_t direct[1 << DIRECT_BITS];
} HuffmanTable;

#define MAX_SIZE 10   /* bits of an AC coefficient of 8-bit pictures */
#define END_OF_BLOCK 128    /* an advance that goes beyond every block */
#define NOT_DIRECT 255      /* another one */
#define LONG (NOT_DIRECT << 8)

/* Makes a table of codes. Returns 0, or -1 if there are more codes than fit. */
int make_table(HuffmanTable *table, const HuffmanSpec *spec);

/* Makes `direct` too, in which symbols mean runs of zeros and sizes of AC coefficients. */
int make_ac_table(HuffmanTable *table, const HuffmanSpec *spec);

int find_long_code(const HuffmanTable *table, BitReader *reader);

/* Takes a code. Returns its symbol, or -1. There must be 16 bits. */
static inline int take_symbol(const HuffmanTable *table, BitReader *reader)
{
    unsigned entry = table->symbol[peek(reader, SYMBOL_BITS)];
    if (__builtin_expect(!entry, 0))
        return find_long_code(table, reader);
    skip(reader, (int)(entry >> 8));
    return (int)(entry & 0xFF);
}

#endif
