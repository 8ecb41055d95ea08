/* Optimal Huffman codes of limited length. */
#ifndef WDS_TOOLS_HUFFMAN_CODES_H
#define WDS_TOOLS_HUFFMAN_CODES_H

#include "huffman.h"

typedef struct {
    uint16_t bits, length; /* length 0: the symbol does not occur */
} HuffmanCode;

/* Builds the optimal Huffman code for symbols that occur `counts` times each, with codes of at most
   `max_length` bits, 9 to 16. Writes the table to `spec` and the code of each symbol to `codes`.
   The code of only ones is not used (T.81, C.2). Returns 0, or -1 if memory ran out. */
int build_optimal_codes(const uint32_t counts[256], int max_length, HuffmanSpec *spec, HuffmanCode codes[256]);

#endif
