/* The loop of cluster.h. Compiled once for each instruction set (kernels.h). */
#include "cluster.h"

static size_t find_near(const uint64_t *hashes, size_t start, size_t count, uint64_t hash, int distance)
{
    for (size_t i = start; i < count; i++)
        if (__builtin_popcountll(hashes[i] ^ hash) <= distance)
            return i;
    return count;
}
