/* The coded data of a scan, in the pieces between its restart markers (T.81, B.2.1): restart
   intervals. */
#ifndef WDS_TOOLS_INTERVALS_H
#define WDS_TOOLS_INTERVALS_H

#include "header.h"
#include "grow_buffer.h"

/* One interval, without the zeros that are stuffed behind each FF. */
typedef struct {
    const uint8_t *data;
    size_t size;
    int first, count; /* MCUs of the scan */
} Interval;

/* The MCUs of a scan that are needed: those in a rectangle. */
typedef struct {
    int left, right, top, bottom; /* [left, right) x [top, bottom) */
} McuBox;

typedef struct {
    Interval *list;
    int count;
    size_t end;        /* byte of the marker behind the last of them, or the end of the data */
    GrowBuffer bytes, items;
} Intervals;

void intervals_free(Intervals *intervals);

/* Finds the intervals of header->scan, of `across` x `down` MCUs, that bring needed MCUs.
   Returns 0, or -1 if markers are missing or others than those that are due, or memory ran out. */
int find_intervals(Intervals *intervals, const Header *header, int across, int down, const McuBox *needed);

#endif
