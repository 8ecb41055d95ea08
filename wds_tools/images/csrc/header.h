/* Reads the marker segments of a JPEG up to the entropy-coded data of each scan (T.81, Annex B). */
#ifndef WDS_TOOLS_HEADER_H
#define WDS_TOOLS_HEADER_H

#include <stddef.h>
#include <stdint.h>

#include "huffman.h"

#define BLOCK_SIDE 8 /* samples on each side of a block */
#define BLOCK_SIZE (BLOCK_SIDE * BLOCK_SIDE)
#define MAX_COMPONENTS 3
#define MAX_MCU_BLOCKS 10 /* blocks of an MCU (B.2.3) */

/* Index of a coefficient in row order, for each index in zigzag order (T.81, figure A.6). */
extern const uint8_t zigzag[BLOCK_SIZE];

typedef struct {
    int id;
    int h_factor, v_factor;            /* horizontal and vertical sampling factors */
    int block_columns, block_rows;     /* blocks of the component, without the padding of MCUs */
    int quantization_table;            /* Tq */
    int dc_table, ac_table;            /* Td and Ta in the current scan */
    int has_quantization;              /* `quantization` is set when the component's first scan is read */
    uint16_t quantization[BLOCK_SIZE]; /* in row order */

    /* For each coefficient in zigzag order, the number of low-order bits that are not received yet:
       Al of the last scan with this coefficient, or -1 before the first one. */
    int8_t missing_bits[BLOCK_SIZE];
} Component;

/* The parameters of a scan header (B.2.3). */
typedef struct {
    int component_count, component[MAX_COMPONENTS]; /* indexes into Header.component */
    int ss, se;         /* first and last coefficient, in zigzag order */
    int ah, al;         /* low-order bits missing before the scan and after it */
    size_t data_offset; /* of the entropy-coded data in the file */
} Scan;

typedef struct {
    const uint8_t *data;
    size_t size, position; /* bytes of the file; offset of the next marker */
    int width, height;     /* in pixels; 0 before the frame header is read */
    int is_progressive;
    int component_count;
    Component component[MAX_COMPONENTS];
    int max_h_factor, max_v_factor;
    int mcu_columns, mcu_rows;     /* of a scan in which all components are interleaved */
    int restart_interval;          /* in MCUs; 0: no restart markers */
    int has_jfif, adobe_transform; /* adobe_transform is -1 without an Adobe segment */
    uint8_t density[7];            /* from the JFIF segment: version, unit, densities */
    uint16_t quantization[4][BLOCK_SIZE];
    uint8_t has_quantization[4];
    HuffmanSpec dc[4], ac[4];
    Scan scan;
} Header;

/* Results of next_scan(). */
enum { END_OF_IMAGE, SCAN_FOUND, UNSUPPORTED = -1 };

/* Initializes `header` for a file of `size` bytes, which must outlive it. */
void header_start(Header *header, const uint8_t *data, size_t size);

/* Reads the marker segments from header->position to the next scan header, and fills in
   header->scan. Returns SCAN_FOUND, END_OF_IMAGE at the EOI marker, or UNSUPPORTED if the file is
   damaged or is not a Huffman-coded DCT image with 8 bits per sample and 1 or 3 components. */
int next_scan(Header *header);

/* Returns whether the components are RGB rather than YCbCr. The rules are those of libjpeg. */
int is_rgb(const Header *header);

static inline int be16(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

/* Returns the quotient, rounded up. */
static inline int ceil_div(int dividend, int divisor)
{
    return (dividend + divisor - 1) / divisor;
}

/* Returns the number of blocks in an MCU in which all components are interleaved. */
static inline int blocks_per_mcu(const Header *header)
{
    int blocks = 0;
    for (int c = 0; c < header->component_count; c++)
        blocks += header->component[c].h_factor * header->component[c].v_factor;
    return blocks;
}

#endif
