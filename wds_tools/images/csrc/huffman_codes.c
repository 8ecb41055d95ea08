#include "huffman_codes.h"

#include <stdlib.h>

#define RESERVED_SYMBOL 256 /* gets the code of only ones, which is then left out */
#define MAX_SYMBOLS 257
#define MAX_ITEMS (2 * MAX_SYMBOLS)

/* A symbol, or a package of two items of the level below. */
typedef struct {
    uint64_t weight;
    int16_t symbol; /* -1: a package */
} Item;

typedef struct {
    Item items[MAX_ITEMS];
    int count;
} Level;

/* Compares two items for qsort(). */
static int compare_items(const void *one, const void *two)
{
    const Item *a = one, *b = two;
    if (a->weight != b->weight)
        return a->weight < b->weight ? -1 : 1;
    return a->symbol - b->symbol;
}

/* Fills `level` with the symbols and with packages of two items of the level below, in order of
   their weights. `below` is NULL for the first level. */
static void merge(const Item *symbols, int count, const Level *below, Level *level)
{
    int symbol = 0, packages = below ? below->count / 2 : 0, package = 0;
    level->count = 0;
    while (symbol < count || package < packages) {
        uint64_t weight =
            package < packages ? below->items[2 * package].weight + below->items[2 * package + 1].weight : 0;
        if (package == packages || (symbol < count && symbols[symbol].weight <= weight))
            level->items[level->count++] = symbols[symbol++];
        else {
            level->items[level->count++] = (Item){weight, -1};
            package++;
        }
    }
}

/* Finds code lengths by the package-merge algorithm (Larmore and Hirschberg, 1990): the length of a
   symbol's code is the number of levels in which the symbol is among the items that are needed.
   `symbols` is sorted by weight; the lengths are added to `length`, indexed by symbol. Returns 0,
   or -1 if memory ran out. */
static int package_merge(const Item *symbols, int count, int max_length, uint8_t *length)
{
    Level *levels = malloc((size_t)max_length * sizeof *levels);
    if (!levels)
        return -1;
    for (int i = 0; i < max_length; i++)
        merge(symbols, count, i ? &levels[i - 1] : NULL, &levels[i]);
    for (int i = max_length - 1, needed = 2 * count - 2; i >= 0; i--) {
        int packages = 0;
        for (int k = 0; k < needed; k++) {
            int symbol = levels[i].items[k].symbol;
            if (symbol < 0)
                packages++;
            else
                length[symbol]++;
        }
        needed = 2 * packages;
    }
    free(levels);
    return 0;
}

int build_optimal_codes(const uint32_t counts[256], int max_length, HuffmanSpec *spec, HuffmanCode codes[256])
{
    Item symbols[MAX_SYMBOLS];
    uint8_t length[MAX_SYMBOLS] = {0};
    int count = 0, code = 0, index = 0;
    symbols[count++] = (Item){0, RESERVED_SYMBOL}; /* weight 0: it gets the last of the longest codes */
    for (int symbol = 0; symbol < 256; symbol++)
        if (counts[symbol])
            symbols[count++] = (Item){counts[symbol], (int16_t)symbol};
    qsort(symbols, (size_t)count, sizeof *symbols, compare_items);
    if (package_merge(symbols, count, max_length, length))
        return -1;
    *spec = (HuffmanSpec){.counts = {1}};
    memset(codes, 0, 256 * sizeof *codes);
    for (int bits = 1; bits <= MAX_CODE_LENGTH; bits++, code <<= 1)
        for (int i = count - 1; i >= 0; i--) {
            int symbol = symbols[i].symbol;
            if (length[symbol] != bits || symbol == RESERVED_SYMBOL)
                continue;
            spec->counts[bits]++;
            spec->symbols[index++] = (uint8_t)symbol;
            codes[symbol] = (HuffmanCode){(uint16_t)code++, (uint16_t)bits};
        }
    return 0;
}
