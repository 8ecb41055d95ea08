/* The headers of a JPEG: what stands in front of the coded data of its scans (T.81, Annex B). */
#ifndef WDS_TOOLS_HEADER_H
#define WDS_TOOLS_HEADER_H

#include <stddef.h>
#include <stdint.h>

#include "huffman.h"

#define SIDE 8 /* of a block */
#define BLOCK (SIDE * SIDE)
#define MAX_COMPONENTS 3
#define MAX_BLOCKS 10 /* of an MCU (B.2.3) */

/* The place of a coefficient in a block, row by row, from its place in the order of a file
   (T.81, figure A.6). */
extern const uint8_t zigzag[BLOCK];

typedef struct {
    int id;
    int across, down;    /* sampling factors */
    int columns, rows;   /* of blocks that are shown */
    int table;           /* number of its quantization table */
    int dc, ac;          /* numbers of its Huffman tables in the scan that comes next */
    int is_quantized;    /* `quantization` is set: at the component's first scan */
    uint16_t quantization[BLOCK]; /* row by row */
    int8_t missing[BLOCK]; /* low bits that no scan has brought yet, in the order of the file; -1: all */
} Component;

/* A scan: which components it brings, and how much of each coefficient. */
typedef struct {
    int count, component[MAX_COMPONENTS];
    int first, last; /* coefficients, in the order of the file (Ss, Se) */
    int high, low;   /* low bits that were missing before and that are afterwards (Ah, Al) */
    size_t coded_at; /* first byte of its coded data */
} Scan;

typedef struct {
    const uint8_t *data;
    size_t size, position;
    int width, height; /* pixels; 0 before a frame header */
    size_t height_at;  /* byte where the frame header states them */
    int is_progressive;
    int count;
    Component component[MAX_COMPONENTS];
    int most_across, most_down;    /* the largest sampling factors */
    int mcus_across, mcus_down;    /* of the frame, all components interleaved */
    int restart;                   /* MCUs between restart markers, 0 without */
    int has_jfif, adobe_transform; /* -1: no Adobe segment */
    uint8_t density[7];            /* of the JFIF segment: version, unit, density */
    uint16_t quantization[4][BLOCK];
    uint8_t has_quantization[4];
    HuffmanSpec dc[4], ac[4];
    Scan scan;
} Header;

enum { NO_MORE_SCANS, A_SCAN, NOT_OURS = -1 };

void header_start(Header *header, const uint8_t *data, size_t size);

/* Reads on, to the coded data of the next scan. Returns A_SCAN, NO_MORE_SCANS at the end of the
   image, or NOT_OURS: damaged, or something other than Huffman-coded pictures of 8 bits with 1
   or 3 components. */
int next_scan(Header *header);

/* Whether the components are red, green and blue, rather than luma and chroma; by the same signs
   as libjpeg. */
int is_rgb(const Header *header);

static inline int be16(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

/* Returns a quotient, rounded up. */
static inline int quotient_up(int dividend, int divisor)
{
    return (dividend + divisor - 1) / divisor;
}

static inline int blocks_of_mcu(const Header *header)
{
    int blocks = 0;
    for (int c = 0; c < header->count; c++)
        blocks += header->component[c].across * header->component[c].down;
    return blocks;
}

#endif
