#include "intervals.h"

#include <stdlib.h>

enum { RST0 = 0xD0 };

void intervals_free(Intervals *intervals)
{
    buffer_free(&intervals->data);
    buffer_free(&intervals->items);
}

/* Copies entropy-coded data from `from` to *to without the stuffed zero bytes, and advances *to.
   Returns the address of the next marker, or `end` if there is none. */
static const uint8_t *unstuff(const uint8_t *from, const uint8_t *end, uint8_t **to)
{
    uint8_t *out = *to;
    while (end - from >= 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        memcpy(out, &word, 8);
        if (!has_ff(word)) {
            from += 8;
            out += 8;
            continue;
        }
        while (*from != 0xFF)
            *out++ = *from++;
        if (end - from < 2 || from[1]) {
            *to = out;
            return end - from < 2 ? end : from;
        }
        *out++ = 0xFF;
        from += 2;
    }
    for (; end - from >= 2; from++) {
        *out++ = *from;
        if (*from == 0xFF && from[1]) {
            *to = out - 1;
            return from;
        }
        from += *from == 0xFF;
    }
    *to = out;
    return end;
}

/* Returns the same as unstuff(), without copying. */
static const uint8_t *find_marker(const uint8_t *from, const uint8_t *end)
{
    while ((from = memchr(from, 0xFF, (size_t)(end - from))) && end - from >= 2 && !from[1])
        from += 2;
    return from && end - from >= 2 ? from : end;
}

/* Returns how many MCUs of an interval, `count` from `first` on, must be decoded: up to the last one in `needed`. */
static int count_needed(int first, int count, int mcu_columns, const McuBox *needed)
{
    int end = first + count, row = (end - 1) / mcu_columns; /* the last row that may have needed ones */
    if (row >= needed->bottom)
        row = needed->bottom - 1;
    if (row * mcu_columns + needed->left >= end)
        row--;
    int needed_end = row * mcu_columns + needed->right;
    if (row < needed->top || needed_end <= first)
        return 0;
    return (needed_end < end ? needed_end : end) - first;
}

int find_intervals(
    Intervals *intervals, const Header *header, int mcu_columns, int mcu_rows, const McuBox *needed)
{
    const uint8_t *from = header->data + header->scan.data_offset, *end = header->data + header->size;
    int total = mcu_columns * mcu_rows, step = header->restart_interval ? header->restart_interval : total;
    int mcu_end = needed->bottom * mcu_columns; /* later MCUs are not read */
    int number = (mcu_end + step - 1) / step;
    if (2 * (size_t)number > header->size) /* so that a false header cannot ask for too much memory */
        return -1;
    uint8_t *to = buffer_reserve(&intervals->data, header->size);
    intervals->list = (Interval *)(void *)buffer_reserve(&intervals->items, (size_t)number * sizeof(Interval));
    intervals->count = 0;
    if (!to || !intervals->list)
        return -1;
    for (int i = 0; i < number; i++) {
        int first = i * step, count = first + step < total ? step : total - first, is_last = first + count == total;
        uint8_t *start = to;
        int needed_count = count_needed(first, count, mcu_columns, needed);
        const uint8_t *marker = needed_count ? unstuff(from, end, &to) : find_marker(from, end);
        if (!is_last && (marker == end || marker[1] != (RST0 | (i & 7))))
            return -1;
        if (needed_count)
            intervals->list[intervals->count++] = (Interval){start, (size_t)(to - start), first, count, needed_count};
        intervals->end_offset = (size_t)(marker - header->data);
        from = marker + 2;
    }
    memset(to, 0, READ_AHEAD);
    return 0;
}
