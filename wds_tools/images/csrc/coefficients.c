#include "coefficients.h"

#include "kernels.h"

#define MOST_PASSES 16 /* as in jpeg.py: over pictures of the largest size */
#define MAX_RUN 14 /* bits of the length of a run of blocks: EOBn, G.1.2.2 */

void coefficients_free(Coefficients *coefficients)
{
    buffer_free(&coefficients->blocks);
    buffer_free(&coefficients->last);
}

int plan_mcu(Mcu *mcu, Tables *tables, const Header *header)
{
    const Scan *scan = &header->scan;
    int takes_dc = scan->first == 0 && !scan->high, takes_ac = scan->last > 0;
    mcu->blocks = 0;
    for (int i = 0; i < scan->count; i++) {
        int c = scan->component[i];
        const Component *component = &header->component[c];
        const HuffmanSpec *dc = &header->dc[component->dc], *ac = &header->ac[component->ac];
        int blocks = scan->count == 1 ? 1 : component->across * component->down;
        if (takes_dc && (!dc->counts[0] || make_table(&tables->dc[component->dc], dc)))
            return -1;
        if (takes_ac && (!ac->counts[0] || (header->is_progressive ? make_table(&tables->ac[component->ac], ac)
                                                                   : make_ac_table(&tables->ac[component->ac], ac))))
            return -1;
        while (blocks--) {
            mcu->component[mcu->blocks] = (uint8_t)c;
            mcu->dc[mcu->blocks] = &tables->dc[component->dc];
            mcu->ac[mcu->blocks++] = &tables->ac[component->ac];
        }
    }
    return 0;
}

/* Makes at least `count` bits known. */
static inline void need(BitReader *reader, int count)
{
    if ((int)(reader->count & 63) < count)
        refill(reader);
}

/* A progressive scan while it is decoded. */
typedef struct {
    const Scan *scan;
    const Order *order;
    const Mcu *mcu;
    Stream *stream;
    int run; /* blocks to come that get no new coefficient */
} Progress;

/* Each of the following decodes what a scan brings to one block, and returns 0, or -1 if the
   data is damaged. */

static int first_dc(Progress *progress, int number, int16_t *block)
{
    BitReader *reader = &progress->stream->reader;
    int16_t *prediction = &progress->stream->prediction[progress->mcu->component[number]];
    need(reader, MAX_CODE + MAX_SIZE + 1);
    int size = take_symbol(progress->mcu->dc[number], reader);
    if (size < 0 || size > MAX_SIZE + 1)
        return -1;
    *prediction = (int16_t)(*prediction + take_signed(reader, size));
    block[progress->order->at[0]] = (int16_t)((uint32_t)*prediction << progress->scan->low);
    return 0;
}

static int refine_dc(Progress *progress, int16_t *block)
{
    BitReader *reader = &progress->stream->reader;
    need(reader, 1);
    if (take_bits(reader, 1))
        block[progress->order->at[0]] |= (int16_t)(1 << progress->scan->low);
    return 0;
}

static int first_ac(Progress *progress, int number, int16_t *block)
{
    BitReader *reader = &progress->stream->reader;
    if (progress->run) {
        progress->run--;
        return 0;
    }
    for (int k = progress->scan->first; k <= progress->scan->last; k++) {
        need(reader, MAX_CODE + MAX_RUN);
        int symbol = take_symbol(progress->mcu->ac[number], reader);
        int run = symbol >> 4, size = symbol & 15;
        if (symbol < 0 || size > MAX_SIZE)
            return -1;
        if (!size && run < 15) {
            progress->run = (1 << run) - 1 + take_bits(reader, run);
            return 0;
        }
        k += run;
        if (size && k > progress->scan->last)
            return -1;
        if (size)
            block[progress->order->at[k]] = (int16_t)((uint32_t)take_signed(reader, size) << progress->scan->low);
    }
    return 0;
}

/* Takes one more bit of a coefficient that is not zero. */
static void refine(BitReader *reader, int16_t *coefficient, int bit)
{
    need(reader, 1);
    if (take_bits(reader, 1) && !(*coefficient & bit))
        *coefficient = (int16_t)(*coefficient + (*coefficient < 0 ? -bit : bit));
}

static int refine_ac(Progress *progress, int number, int16_t *block)
{
    BitReader *reader = &progress->stream->reader;
    const uint8_t *at = progress->order->at;
    int k = progress->scan->first, last = progress->scan->last, bit = 1 << progress->scan->low;
    for (; !progress->run && k <= last; k++) {
        need(reader, MAX_CODE + MAX_RUN);
        int symbol = take_symbol(progress->mcu->ac[number], reader), value = 0;
        int run = symbol >> 4, size = symbol & 15;
        if (symbol < 0 || size > 1)
            return -1;
        if (!size && run < 15) {
            progress->run = (1 << run) + take_bits(reader, run);
            break;
        }
        if (size)
            value = take_bits(reader, 1) ? bit : -bit;
        for (; k <= last; k++) {
            if (block[at[k]])
                refine(reader, &block[at[k]], bit);
            else if (--run < 0)
                break;
        }
        if (value && k > last)
            return -1;
        if (value)
            block[at[k]] = (int16_t)value;
    }
    if (progress->run) {
        for (; k <= last; k++)
            if (block[at[k]])
                refine(reader, &block[at[k]], bit);
        progress->run--;
    }
    return 0;
}

static int decode_block(Progress *progress, int number, int16_t *block)
{
    const Scan *scan = progress->scan;
    if (progress->stream->reader.next > progress->stream->end + 16)
        return -1;
    if (scan->first == 0)
        return scan->high ? refine_dc(progress, block) : first_dc(progress, number, block);
    return scan->high ? refine_ac(progress, number, block) : first_ac(progress, number, block);
}

/* Decodes MCUs one after the other into their places. */
static int decode_progressive(
    Coefficients *coefficients, const Header *header, Progress *progress, const Interval *interval)
{
    const Scan *scan = &header->scan;
    const Component *only = &header->component[scan->component[0]];
    for (int mcu = interval->first; mcu < interval->first + interval->count; mcu++) {
        if (scan->count == 1) {
            int16_t *block = block_at(coefficients, scan->component[0], mcu / only->columns, mcu % only->columns);
            if (decode_block(progress, 0, block))
                return -1;
            continue;
        }
        int16_t *block = blocks_of(coefficients) + (size_t)mcu * (size_t)coefficients->of_mcu * BLOCK;
        for (int number = 0, i = 0; i < scan->count; i++) {
            const Component *component = &header->component[scan->component[i]];
            int16_t *first = block + coefficients->offset[scan->component[i]] * BLOCK;
            for (int n = 0; n < component->across * component->down; n++)
                if (decode_block(progress, number++, first + n * BLOCK))
                    return -1;
        }
    }
    return 0;
}

/* Returns whether the MCUs of a scan are those of the frame. */
static int is_of_frame(const Coefficients *coefficients, const Header *header)
{
    return header->scan.count == header->count && (header->count > 1 || coefficients->of_mcu == 1);
}

/* A lane in a sequential scan. */
typedef struct {
    const Interval *interval; /* NULL at first */
    int mcu;                  /* the first that it decodes, of the scan */
    Stream stream;
    _Alignas(32) int16_t blocks[MAX_BLOCKS * BLOCK]; /* where an MCU is decoded whose blocks do not lie together */
    uint8_t last[MAX_BLOCKS];
} ScanLane;

/* A sequential scan while it is decoded. */
typedef struct {
    Coefficients *coefficients;
    const Header *header;
    const Mcu *mcu;
    const Intervals *intervals;
    int is_whole; /* its MCUs are those of the frame: an interval's blocks lie together */
    int begun;    /* intervals */
    int failed;
    ScanLane lane[2];
} SequentialScan;

/* Copies the blocks of a lane's MCU to their places. */
static void scatter(const SequentialScan *sequential, const ScanLane *lane)
{
    const Header *header = sequential->header;
    const Scan *scan = &header->scan;
    const int16_t *block = lane->blocks;
    for (int s = 0; s < scan->count; s++) {
        int c = scan->component[s];
        const Component *component = &header->component[c];
        int across = scan->count == 1 ? 1 : component->across, down = scan->count == 1 ? 1 : component->down;
        int mcus = scan->count == 1 ? component->columns : header->mcus_across;
        int row = lane->mcu / mcus * down, column = lane->mcu % mcus * across;
        for (int n = 0; n < across * down; n++, block += BLOCK)
            memcpy(
                block_at(sequential->coefficients, c, row + n / across, column + n % across), block,
                BLOCK * sizeof *block);
    }
}

/* Takes what a lane has decoded. Returns whether its interval goes on. */
static int take_decoded(SequentialScan *sequential, ScanLane *lane, int failed)
{
    int end = lane->interval->first + lane->interval->count;
    if (!sequential->is_whole && !failed) {
        scatter(sequential, lane);
        if (++lane->mcu < end)
            return 1;
    }
    if (failed || !is_used_up(&lane->stream))
        sequential->failed = 1;
    return 0;
}

/* NextWork for a sequential scan. */
static int next_of_scan(void *giver, int number, int failed, Work *work)
{
    SequentialScan *sequential = giver;
    const Coefficients *coefficients = sequential->coefficients;
    ScanLane *lane = &sequential->lane[number];
    if (!lane->interval || !take_decoded(sequential, lane, failed)) {
        if (sequential->failed || sequential->begun == sequential->intervals->count)
            return 0;
        lane->interval = &sequential->intervals->list[sequential->begun++];
        lane->mcu = lane->interval->first;
        stream_start(&lane->stream, lane->interval);
    }
    *work = (Work){sequential->mcu, &lane->stream, 1, {lane->blocks, lane->last}};
    if (sequential->is_whole) {
        size_t first = (size_t)lane->mcu * (size_t)coefficients->of_mcu;
        work->mcus = lane->interval->count;
        work->to = (Blocks){blocks_of(coefficients) + first * BLOCK, coefficients->last.bytes + first};
    } else
        memset(lane->blocks, 0, sizeof lane->blocks);
    return 1;
}

static int decode_sequential_scan(
    Coefficients *coefficients, const Header *header, const Mcu *mcu, const Intervals *intervals, const Order *order)
{
    SequentialScan sequential = {coefficients, header, mcu, intervals, .is_whole = is_of_frame(coefficients, header)};
    kernels()->decode_work(order, next_of_scan, &sequential);
    return sequential.failed ? -1 : 0;
}

static int decode_progressive_scan(
    Coefficients *coefficients, const Header *header, const Mcu *mcu, const Intervals *intervals, const Order *order)
{
    for (int i = 0; i < intervals->count; i++) {
        Stream stream;
        Progress progress = {&header->scan, order, mcu, &stream, 0};
        stream_start(&stream, &intervals->list[i]);
        if (decode_progressive(coefficients, header, &progress, &intervals->list[i]) || progress.run ||
            !is_used_up(&stream))
            return -1;
    }
    return 0;
}

static int decode_scan(
    Coefficients *coefficients, Header *header, Tables *tables, Intervals *intervals, const Order *order)
{
    const Scan *scan = &header->scan;
    const Component *only = &header->component[scan->component[0]];
    int across = scan->count == 1 ? only->columns : header->mcus_across;
    int down = scan->count == 1 ? only->rows : header->mcus_down;
    Mcu mcu;
    if (plan_mcu(&mcu, tables, header) ||
        find_intervals(intervals, header, across, down, &(McuBox){0, across, 0, down}))
        return -1;
    int failed = header->is_progressive ? decode_progressive_scan(coefficients, header, &mcu, intervals, order)
                                        : decode_sequential_scan(coefficients, header, &mcu, intervals, order);
    header->position = intervals->end;
    return failed;
}

/* Makes room for all blocks, which are zero. */
static int reserve_blocks(Coefficients *coefficients, const Header *header)
{
    size_t mcus = (size_t)header->mcus_across * (size_t)header->mcus_down;
    int blocks = 0;
    for (int c = 0; c < header->count; c++) {
        coefficients->offset[c] = blocks;
        coefficients->across[c] = header->component[c].across;
        coefficients->down[c] = header->component[c].down;
        blocks += header->component[c].across * header->component[c].down;
    }
    coefficients->of_mcu = blocks;
    coefficients->mcus_across = header->mcus_across;
    size_t bytes = mcus * (size_t)blocks * BLOCK * sizeof(int16_t);
    if (!buffer_reserve(&coefficients->blocks, bytes) || !buffer_reserve(&coefficients->last, mcus * (size_t)blocks))
        return -1;
    memset(coefficients->blocks.bytes, 0, bytes);
    return 0;
}

/* Returns whether the scans have brought every bit of every coefficient. What is left out,
   decoders make up in ways of their own. */
static int is_complete(const Header *header)
{
    for (int c = 0; c < header->count; c++)
        for (int k = 0; k < BLOCK; k++)
            if (header->component[c].missing[k])
                return 0;
    return 1;
}

int decode_all(
    Coefficients *coefficients, Header *header, Tables *tables, Intervals *intervals, const Order *order,
    size_t max_pixels)
{
    size_t most_scans = MOST_PASSES * max_pixels / ((size_t)header->width * (size_t)header->height);
    int found = A_SCAN;
    if (reserve_blocks(coefficients, header))
        return -1;
    for (size_t scans = 1; found == A_SCAN; scans++) {
        if (scans > most_scans || decode_scan(coefficients, header, tables, intervals, order))
            return -1;
        found = next_scan(header);
    }
    return found == NO_MORE_SCANS && is_complete(header) ? 0 : -1;
}
