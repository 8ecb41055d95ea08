#include "huffman_codes.h"

#include <stdlib.h>

#define MOST_SYMBOLS 257 /* with the one that takes the code of ones */
#define MOST_ITEMS (2 * MOST_SYMBOLS)

/* A symbol, or a package of two items of the level below. */
typedef struct {
    uint64_t weight;
    int16_t symbol; /* -1: a package */
} Item;

typedef struct {
    Item items[MOST_ITEMS];
    int count;
} Level;

static int by_weight(const void *one, const void *two)
{
    const Item *a = one, *b = two;
    if (a->weight != b->weight)
        return a->weight < b->weight ? -1 : 1;
    return a->symbol - b->symbol;
}

/* Merges the symbols with the packages that pairs of the level below make, in the order of their
   weights. */
static void merge(const Item *symbols, int count, const Level *below, Level *level)
{
    int taken = 0, packages = below ? below->count / 2 : 0, made = 0;
    level->count = 0;
    while (taken < count || made < packages) {
        uint64_t weight = made < packages ? below->items[2 * made].weight + below->items[2 * made + 1].weight : 0;
        if (made == packages || (taken < count && symbols[taken].weight <= weight))
            level->items[level->count++] = symbols[taken++];
        else {
            level->items[level->count++] = (Item){weight, -1};
            made++;
        }
    }
}

/* Finds code lengths by the package-merge algorithm (Larmore and Hirschberg, 1990): a symbol's
   code has as many bits as there are levels at which it is among the items that are needed. */
static int find_lengths(const Item *symbols, int count, int longest, uint8_t *length)
{
    Level *levels = malloc((size_t)longest * sizeof *levels);
    if (!levels)
        return -1;
    for (int i = 0; i < longest; i++)
        merge(symbols, count, i ? &levels[i - 1] : NULL, &levels[i]);
    for (int i = longest - 1, needed = 2 * count - 2; i >= 0; i--) {
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

int make_codes(const uint32_t counts[256], int longest, HuffmanSpec *spec, HuffmanCode codes[256])
{
    Item symbols[MOST_SYMBOLS];
    uint8_t length[MOST_SYMBOLS] = {0};
    int count = 0, code = 0, first = 0;
    symbols[count++] = (Item){0, 256}; /* it gets one of the longest codes, and the last of them */
    for (int symbol = 0; symbol < 256; symbol++)
        if (counts[symbol])
            symbols[count++] = (Item){counts[symbol], (int16_t)symbol};
    qsort(symbols, (size_t)count, sizeof *symbols, by_weight);
    if (find_lengths(symbols, count, longest, length))
        return -1;
    *spec = (HuffmanSpec){.counts = {1}};
    memset(codes, 0, 256 * sizeof *codes);
    for (int bits = 1; bits <= MAX_CODE; bits++, code <<= 1)
        for (int i = count - 1; i >= 0; i--) {
            int symbol = symbols[i].symbol;
            if (length[symbol] != bits || symbol == 256)
                continue;
            spec->counts[bits]++;
            spec->symbols[first++] = (uint8_t)symbol;
            codes[symbol] = (HuffmanCode){(uint16_t)code++, (uint16_t)bits};
        }
    return 0;
}
