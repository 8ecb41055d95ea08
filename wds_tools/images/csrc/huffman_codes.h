/* Huffman codes that are as short as can be for given counts of symbols, none longer than
   allowed. */
#ifndef WDS_TOOLS_HUFFMAN_CODES_H
#define WDS_TOOLS_HUFFMAN_CODES_H

#include "huffman.h"

typedef struct {
    uint16_t bits, length; /* 0: the symbol does not occur */
} HuffmanCode;

/* Makes a table for symbols that occur `counts` times each, and the codes that it stands for.
   `longest` is 9 to 16. The code of ones alone is left free (T.81, C.2). Returns 0, or -1 if
   memory ran out. */
int make_codes(const uint32_t counts[256], int longest, HuffmanSpec *spec, HuffmanCode codes[256]);

#endif
