/* Splits the entropy-coded data of a scan into restart intervals (T.81, B.2.1). */
#ifndef WDS_TOOLS_INTERVALS_H
#define WDS_TOOLS_INTERVALS_H

#include "header.h"
#include "grow_buffer.h"

/* A restart interval: its data without stuffed zero bytes, and its MCUs. */
typedef struct {
    const uint8_t *data;
    size_t size;
    int first_mcu, mcu_count; /* MCUs are numbered in the order of the scan */
    int needed_count;         /* of these MCUs, up to the last needed one: the others are not decoded */
} Interval;

/* A rectangle of MCUs of a scan: columns left to right - 1, rows top to bottom - 1. */
typedef struct {
    int left, right, top, bottom;
} McuBox;

typedef struct {
    Interval *list;
    int count;
    size_t end_offset;      /* in the file, of the marker after the last interval, or the end of the data */
    GrowBuffer data, items; /* the memory of the intervals' data and of `list` */
} Intervals;

void intervals_free(Intervals *intervals);

/* Fills in `intervals` with those restart intervals of header->scan that have MCUs in `needed`. The
   scan has mcu_columns x mcu_rows MCUs. Without restart markers, the whole scan is one interval.
   Returns 0, or -1 if a restart marker is missing or wrong, or memory ran out. */
int find_intervals(
    Intervals *intervals, const Header *header, int mcu_columns, int mcu_rows, const McuBox *needed);

#endif
