/* Two hashes that differ in at most d bits agree in one of any d + 1 parts of their bits. So the hashes are sorted by each
   part in turn, and only those that agree in it are compared. As long as many do, their other bits are divided into d + 1
   parts again. */
#include "cluster.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define MAX_PART_BITS 11
#define MIN_DIVIDED 256 /* fewer hashes are compared with each other */

/* Measured costs, in units of a comparison: to count a hash, and to sort it. */
#define COUNT_COST 4
#define SORT_COST 16

typedef struct {
    uint64_t *hashes;
    uint32_t *numbers; /* of the hashes, in the order of the caller */
} Items;

typedef struct {
    int distance;
    FindNear *find_near;
    _Atomic(uint32_t) *parents;
} Search;

static Items items_from(Items items, size_t start)
{
    return (Items){items.hashes + start, items.numbers + start};
}

static uint32_t find_root(const Search *search, uint32_t number)
{
    for (;;) {
        uint32_t parent = atomic_load_explicit(&search->parents[number], memory_order_relaxed);
        uint32_t next = atomic_load_explicit(&search->parents[parent], memory_order_relaxed);
        if (parent == next)
            return parent;
        atomic_store_explicit(&search->parents[number], next, memory_order_relaxed); /* any ancestor is right */
        number = next;
    }
}

/* Joins two clusters: the larger root gets the smaller one as its parent, unless another thread was faster. */
static void join(const Search *search, uint32_t one, uint32_t two)
{
    for (;;) {
        uint32_t smaller = find_root(search, one), larger = find_root(search, two);
        if (smaller == larger)
            return;
        if (smaller > larger) {
            uint32_t swapped = smaller;
            smaller = larger;
            larger = swapped;
        }
        if (atomic_compare_exchange_strong(&search->parents[larger], &larger, smaller))
            return;
    }
}

static void swap(Items items, size_t one, size_t two)
{
    uint64_t hash = items.hashes[one];
    uint32_t number = items.numbers[one];
    items.hashes[one] = items.hashes[two];
    items.numbers[one] = items.numbers[two];
    items.hashes[two] = hash;
    items.numbers[two] = number;
}

/* Compares all items, cluster by cluster: those that have been reached are not compared with each other. */
static void compare_all(const Search *search, Items items, size_t count)
{
    size_t reached = 0;
    for (size_t at = 0; at < count; at++) {
        if (at == reached)
            reached++; /* the first item of the next cluster */
        for (size_t i = reached; (i = search->find_near(items.hashes, i, count, items.hashes[at], search->distance)) < count;
             i++) {
            join(search, items.numbers[at], items.numbers[i]);
            swap(items, i, reached++);
        }
    }
}

/* The bits of a hash in a part. */
typedef struct {
    int count;
    uint8_t bit[MAX_PART_BITS];
    uint64_t mask;
} Part;

/* Divides bits into `count` parts, and limits the size of each. Neighbouring bits, which depend on each other, go to
   different parts. */
static void divide(uint64_t bits, int count, Part *parts)
{
    memset(parts, 0, (size_t)count * sizeof *parts);
    for (int bit = 0, next = 0; bit < 64; bit++) {
        if (!(bits >> bit & 1))
            continue;
        Part *part = &parts[next++ % count];
        if (part->count < MAX_PART_BITS) {
            part->bit[part->count++] = (uint8_t)bit;
            part->mask |= (uint64_t)1 << bit;
        }
    }
}

static inline uint32_t value_of(const Part *part, uint64_t hash)
{
    uint32_t value = 0;
    for (int i = 0; i < part->count; i++)
        value |= (uint32_t)(hash >> part->bit[i] & 1) << i;
    return value;
}

static void count_values(const Part *part, Items items, size_t count, uint32_t *counts)
{
    memset(counts, 0, sizeof *counts << part->count);
    for (size_t i = 0; i < count; i++)
        counts[value_of(part, items.hashes[i])]++;
}

/* Returns whether dividing items takes less time than comparing all. */
static int is_worth_dividing(const Part *parts, int part_count, Items items, size_t count)
{
    uint32_t counts[1 << MAX_PART_BITS];
    double all = (double)count * (double)count / 2, divided = 0;
    for (int i = 0; i < part_count && divided < all; i++) {
        count_values(&parts[i], items, count, counts);
        divided += (double)count * (COUNT_COST + SORT_COST);
        for (size_t value = 0; value < (size_t)1 << parts[i].count; value++)
            divided += (double)counts[value] * counts[value] / 2;
    }
    return divided < all;
}

/* Sorts items by a part; `other` is memory for as many items. Writes the end of each value's items to `ends`. */
static void sort_by_part(const Part *part, Items items, Items other, size_t count, uint32_t *ends)
{
    uint32_t total = 0;
    count_values(part, items, count, ends);
    for (size_t value = 0; value < (size_t)1 << part->count; value++) {
        uint32_t some = ends[value];
        ends[value] = total;
        total += some;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t to = ends[value_of(part, items.hashes[i])]++;
        other.hashes[to] = items.hashes[i];
        other.numbers[to] = items.numbers[i];
    }
    memcpy(items.hashes, other.hashes, count * sizeof *items.hashes);
    memcpy(items.numbers, other.numbers, count * sizeof *items.numbers);
}

static void join_near(const Search *search, Items items, Items other, size_t count, uint64_t bits);

/* Joins the near pairs of items that agree in a part of `bits`. */
static void join_in_part(
    const Search *search, const Part *part, Items items, Items other, size_t count, uint64_t bits)
{
    uint32_t ends[1 << MAX_PART_BITS];
    sort_by_part(part, items, other, count, ends);
    for (size_t value = 0, start = 0; value < (size_t)1 << part->count; start = ends[value++])
        join_near(
            search, items_from(items, start), items_from(other, start), ends[value] - start, bits & ~part->mask);
}

/* Joins all near pairs of items. They may differ in `bits` only. Changes the order of the items; `other` is memory for as
   many. */
static void join_near(const Search *search, Items items, Items other, size_t count, uint64_t bits)
{
    Part parts[MAX_DISTANCE + 1];
    int part_count = search->distance + 1;
    if (count >= MIN_DIVIDED) {
        divide(bits, part_count, parts);
        if (is_worth_dividing(parts, part_count, items, count)) {
            for (int i = 0; i < part_count; i++)
                join_in_part(search, &parts[i], items, other, count, bits);
            return;
        }
    }
    compare_all(search, items, count);
}

int join_clusters(
    const uint64_t *hashes, uint32_t count, int distance, int first, int step, uint32_t *parents)
{
    Search search = {distance, kernels()->find_near, (_Atomic(uint32_t) *)(void *)parents};
    Items items = {malloc(count * sizeof *items.hashes + 1), malloc(count * sizeof *items.numbers + 1)};
    Items other = {malloc(count * sizeof *other.hashes + 1), malloc(count * sizeof *other.numbers + 1)};
    int failed = !items.hashes || !items.numbers || !other.hashes || !other.numbers;
    if (!failed) {
        Part parts[MAX_DISTANCE + 1];
        memcpy(items.hashes, hashes, count * sizeof *hashes);
        for (uint32_t i = 0; i < count; i++)
            items.numbers[i] = i;
        divide(~(uint64_t)0, distance + 1, parts);
        for (int i = first; i <= distance; i += step)
            join_in_part(&search, &parts[i], items, other, count, ~(uint64_t)0);
    }
    free(items.hashes);
    free(items.numbers);
    free(other.hashes);
    free(other.numbers);
    return -failed;
}
