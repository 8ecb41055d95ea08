#include "coefficients.h"

#include "kernels.h"

#define MAX_SCANS 16       /* of an image with max_pixels; as in check_effort() of wds_tools/format/jpeg.py */
#define MAX_EOBRUN_BITS 14 /* after an EOBn code (G.1.2.2) */

void coefficients_free(Coefficients *coefficients)
{
    buffer_free(&coefficients->blocks);
    buffer_free(&coefficients->last_index);
}

int set_up_mcu_layout(McuLayout *layout, HuffmanTables *tables, const Header *header)
{
    const Scan *scan = &header->scan;
    int needs_dc = scan->ss == 0 && !scan->ah, needs_ac = scan->se > 0;
    layout->block_count = 0;
    for (int i = 0; i < scan->component_count; i++) {
        int c = scan->component[i];
        const Component *component = &header->component[c];
        const HuffmanSpec *dc = &header->dc[component->dc_table], *ac = &header->ac[component->ac_table];
        int blocks = scan->component_count == 1 ? 1 : component->h_factor * component->v_factor;
        if (needs_dc && (!dc->counts[0] || (header->is_progressive
                                                ? build_table(&tables->dc[component->dc_table], dc)
                                                : build_lookup_table(&tables->dc[component->dc_table], dc, 1))))
            return -1;
        if (needs_ac && (!ac->counts[0] || (header->is_progressive
                                                ? build_table(&tables->ac[component->ac_table], ac)
                                                : build_lookup_table(&tables->ac[component->ac_table], ac, 0))))
            return -1;
        while (blocks--) {
            layout->component[layout->block_count] = (uint8_t)c;
            layout->dc[layout->block_count] = &tables->dc[component->dc_table];
            layout->ac[layout->block_count++] = &tables->ac[component->ac_table];
        }
    }
    return 0;
}

/* Makes at least `count` bits valid. */
static inline void ensure_bits(BitReader *reader, int count)
{
    if ((int)(reader->count & 63) < count)
        refill(reader);
}

/* The state of decoding a restart interval of a progressive scan. */
typedef struct {
    const Scan *scan;
    const CoefficientOrder *order;
    const McuLayout *layout;
    IntervalState *state;
    int eobrun; /* EOBRUN: number of following blocks without new coefficients in the band */
} ProgressiveScan;

/* Each decode_* function below decodes what the scan contains of one block: block `number` of its
   MCU. It returns 0, or -1 if the data is damaged. */

static int decode_dc_first(ProgressiveScan *progressive, int number, int16_t *block)
{
    BitReader *reader = &progressive->state->reader;
    int16_t *prediction = &progressive->state->prediction[progressive->layout->component[number]];
    ensure_bits(reader, MAX_CODE_LENGTH + MAX_AC_SIZE + 1);
    int size = decode_symbol(progressive->layout->dc[number], reader);
    if (size < 0 || size > MAX_AC_SIZE + 1)
        return -1;
    *prediction = (int16_t)(*prediction + receive_extend(reader, size));
    block[progressive->order->position[0]] = (int16_t)((uint32_t)*prediction << progressive->scan->al);
    return 0;
}

static int decode_dc_refinement(ProgressiveScan *progressive, int16_t *block)
{
    BitReader *reader = &progressive->state->reader;
    ensure_bits(reader, 1);
    if (read_bits(reader, 1))
        block[progressive->order->position[0]] |= (int16_t)(1 << progressive->scan->al);
    return 0;
}

static int decode_ac_first(ProgressiveScan *progressive, int number, int16_t *block)
{
    BitReader *reader = &progressive->state->reader;
    if (progressive->eobrun) {
        progressive->eobrun--;
        return 0;
    }
    for (int k = progressive->scan->ss; k <= progressive->scan->se; k++) {
        ensure_bits(reader, MAX_CODE_LENGTH + MAX_EOBRUN_BITS);
        int symbol = decode_symbol(progressive->layout->ac[number], reader);
        int run = symbol >> 4, size = symbol & 15;
        if (symbol < 0 || size > MAX_AC_SIZE)
            return -1;
        if (!size && run < 15) {
            progressive->eobrun = (1 << run) - 1 + read_bits(reader, run);
            return 0;
        }
        k += run;
        if (size && k > progressive->scan->se)
            return -1;
        if (size)
            block[progressive->order->position[k]] =
                (int16_t)((uint32_t)receive_extend(reader, size) << progressive->scan->al);
    }
    return 0;
}

/* Reads the correction bit of a coefficient that is not zero (G.1.2.3). `bit` is 1 << Al. */
static void correct_coefficient(BitReader *reader, int16_t *coefficient, int bit)
{
    ensure_bits(reader, 1);
    if (read_bits(reader, 1) && !(*coefficient & bit))
        *coefficient = (int16_t)(*coefficient + (*coefficient < 0 ? -bit : bit));
}

static int decode_ac_refinement(ProgressiveScan *progressive, int number, int16_t *block)
{
    BitReader *reader = &progressive->state->reader;
    const uint8_t *position = progressive->order->position;
    int k = progressive->scan->ss, se = progressive->scan->se, bit = 1 << progressive->scan->al;
    for (; !progressive->eobrun && k <= se; k++) {
        ensure_bits(reader, MAX_CODE_LENGTH + MAX_EOBRUN_BITS);
        int symbol = decode_symbol(progressive->layout->ac[number], reader), value = 0;
        int run = symbol >> 4, size = symbol & 15;
        if (symbol < 0 || size > 1)
            return -1;
        if (!size && run < 15) {
            progressive->eobrun = (1 << run) + read_bits(reader, run);
            break;
        }
        if (size)
            value = read_bits(reader, 1) ? bit : -bit;
        for (; k <= se; k++) {
            if (block[position[k]])
                correct_coefficient(reader, &block[position[k]], bit);
            else if (--run < 0)
                break;
        }
        if (value && k > se)
            return -1;
        if (value)
            block[position[k]] = (int16_t)value;
    }
    if (progressive->eobrun) {
        for (; k <= se; k++)
            if (block[position[k]])
                correct_coefficient(reader, &block[position[k]], bit);
        progressive->eobrun--;
    }
    return 0;
}

static int decode_block(ProgressiveScan *progressive, int number, int16_t *block)
{
    const Scan *scan = progressive->scan;
    if (progressive->state->reader.next > progressive->state->end + 16)
        return -1;
    if (scan->ss == 0)
        return scan->ah ? decode_dc_refinement(progressive, block) : decode_dc_first(progressive, number, block);
    return scan->ah ? decode_ac_refinement(progressive, number, block) : decode_ac_first(progressive, number, block);
}

/* Decodes the MCUs of a restart interval of a progressive scan. Returns 0, or -1 if the data is
   damaged. */
static int decode_progressive_interval(
    Coefficients *coefficients, const Header *header, ProgressiveScan *progressive, const Interval *interval)
{
    const Scan *scan = &header->scan;
    const Component *only = &header->component[scan->component[0]];
    for (int mcu = interval->first_mcu; mcu < interval->first_mcu + interval->mcu_count; mcu++) {
        if (scan->component_count == 1) {
            int16_t *block =
                block_at(coefficients, scan->component[0], mcu / only->block_columns, mcu % only->block_columns);
            if (decode_block(progressive, 0, block))
                return -1;
            continue;
        }
        int16_t *mcu_blocks =
            frame_blocks(coefficients) + (size_t)mcu * (size_t)coefficients->mcu_blocks * BLOCK_SIZE;
        for (int number = 0, i = 0; i < scan->component_count; i++) {
            const Component *component = &header->component[scan->component[i]];
            int16_t *first = mcu_blocks + coefficients->first_block[scan->component[i]] * BLOCK_SIZE;
            for (int n = 0; n < component->h_factor * component->v_factor; n++)
                if (decode_block(progressive, number++, first + n * BLOCK_SIZE))
                    return -1;
        }
    }
    return 0;
}

/* Returns whether the MCUs of the current scan are those of the frame. */
static int has_frame_mcus(const Coefficients *coefficients, const Header *header)
{
    return header->scan.component_count == header->component_count &&
           (header->component_count > 1 || coefficients->mcu_blocks == 1);
}

/* The interval that one of two lanes decodes. */
typedef struct {
    const Interval *interval; /* NULL before the first one */
    int mcu;                  /* the current MCU, or the first one of a range */
    IntervalState state;
    _Alignas(32) int16_t blocks[MAX_MCU_BLOCKS * BLOCK_SIZE]; /* of one MCU, if the scan has not the frame's MCUs */
    uint8_t last_index[MAX_MCU_BLOCKS];
} ScanLane;

/* The state of decoding a sequential scan. */
typedef struct {
    Coefficients *coefficients;   /* of the frame; with `expected`, memory for an interval of each lane */
    const Coefficients *expected; /* with which every interval is compared, or NULL */
    const Header *header;
    const McuLayout *layout;
    const Intervals *intervals;
    int has_frame_mcus; /* then an interval is decoded as one range, directly into `coefficients` */
    int next_interval;  /* index of the next interval to start */
    int failed;
    ScanLane lane[2];
} SequentialScan;

/* Copies the blocks of a lane's MCU into the coefficients of the frame. */
static void scatter_blocks(const SequentialScan *sequential, const ScanLane *lane)
{
    const Header *header = sequential->header;
    const Scan *scan = &header->scan;
    const int16_t *block = lane->blocks;
    for (int s = 0; s < scan->component_count; s++) {
        int c = scan->component[s];
        const Component *component = &header->component[c];
        int h_factor = scan->component_count == 1 ? 1 : component->h_factor;
        int v_factor = scan->component_count == 1 ? 1 : component->v_factor;
        int mcu_columns = scan->component_count == 1 ? component->block_columns : header->mcu_columns;
        int row = lane->mcu / mcu_columns * v_factor, column = lane->mcu % mcu_columns * h_factor;
        for (int n = 0; n < h_factor * v_factor; n++, block += BLOCK_SIZE)
            memcpy(
                block_at(sequential->coefficients, c, row + n / h_factor, column + n % h_factor), block,
                BLOCK_SIZE * sizeof *block);
    }
}

/* Returns where a lane writes the blocks of its interval. */
static BlockOutput interval_output(const SequentialScan *sequential, int number)
{
    const Coefficients *coefficients = sequential->coefficients;
    int longest = sequential->intervals->list->mcu_count; /* only the last interval may be shorter */
    int first_mcu = sequential->expected ? number * longest : sequential->lane[number].interval->first_mcu;
    size_t first = (size_t)first_mcu * (size_t)coefficients->mcu_blocks;
    return (BlockOutput){frame_blocks(coefficients) + first * BLOCK_SIZE, coefficients->last_index.bytes + first};
}

/* Returns the size in bytes of the blocks of an interval. */
static size_t interval_bytes(const SequentialScan *sequential, const Interval *interval)
{
    return (size_t)interval->mcu_count * (size_t)sequential->coefficients->mcu_blocks * BLOCK_SIZE * sizeof(int16_t);
}

/* Returns whether the interval that a lane has decoded differs from the expected one. */
static int differs(const SequentialScan *sequential, int number)
{
    const Coefficients *expected = sequential->expected;
    const Interval *interval = sequential->lane[number].interval;
    size_t first = (size_t)interval->first_mcu * (size_t)expected->mcu_blocks * BLOCK_SIZE;
    return memcmp(
        interval_output(sequential, number).blocks, frame_blocks(expected) + first,
        interval_bytes(sequential, interval));
}

/* Stores the range that a lane has decoded. Returns whether its interval has more MCUs. */
static int store_range(SequentialScan *sequential, int number, int failed)
{
    ScanLane *lane = &sequential->lane[number];
    int end = lane->interval->first_mcu + lane->interval->mcu_count;
    if (!sequential->has_frame_mcus && !failed) {
        scatter_blocks(sequential, lane);
        if (++lane->mcu < end)
            return 1;
    }
    if (failed || !is_consumed(&lane->state) || (sequential->expected && differs(sequential, number)))
        sequential->failed = 1;
    return 0;
}

/* The NextMcuRange of a sequential scan; `source` is a SequentialScan. */
static int next_scan_range(void *source, int number, int failed, McuRange *range)
{
    SequentialScan *sequential = source;
    ScanLane *lane = &sequential->lane[number];
    if (!lane->interval || !store_range(sequential, number, failed)) {
        if (sequential->failed || sequential->next_interval == sequential->intervals->count)
            return 0;
        lane->interval = &sequential->intervals->list[sequential->next_interval++];
        lane->mcu = lane->interval->first_mcu;
        interval_start(&lane->state, lane->interval);
    }
    *range = (McuRange){sequential->layout, &lane->state, 1, {lane->blocks, lane->last_index}};
    if (sequential->has_frame_mcus) {
        range->mcu_count = lane->interval->mcu_count;
        range->output = interval_output(sequential, number);
        if (sequential->expected)
            memset(range->output.blocks, 0, interval_bytes(sequential, lane->interval));
    } else
        memset(lane->blocks, 0, sizeof lane->blocks);
    return 1;
}

/* Decodes a sequential scan to `coefficients`. If `expected` is not NULL, the blocks of the scan, whose MCUs must be
   those of the frame, are only compared with it. Returns 0, or -1 if the data is damaged or a block differs. */
static int decode_sequential_scan(
    Coefficients *coefficients, const Coefficients *expected, const Header *header, const McuLayout *layout,
    const Intervals *intervals, const CoefficientOrder *order)
{
    SequentialScan sequential = {
        coefficients, expected, header, layout, intervals, .has_frame_mcus = has_frame_mcus(coefficients, header)};
    kernels()->decode_mcu_ranges(order, next_scan_range, &sequential);
    return sequential.failed ? -1 : 0;
}

static int decode_progressive_scan(
    Coefficients *coefficients, const Header *header, const McuLayout *layout, const Intervals *intervals,
    const CoefficientOrder *order)
{
    for (int i = 0; i < intervals->count; i++) {
        IntervalState state;
        ProgressiveScan progressive = {&header->scan, order, layout, &state, 0};
        interval_start(&state, &intervals->list[i]);
        if (decode_progressive_interval(coefficients, header, &progressive, &intervals->list[i]) ||
            progressive.eobrun || !is_consumed(&state))
            return -1;
    }
    return 0;
}

/* Decodes header->scan; `expected` is that of decode_sequential_scan(). Returns 0, or -1 on failure. */
static int decode_scan(
    Coefficients *coefficients, const Coefficients *expected, Header *header, HuffmanTables *tables,
    Intervals *intervals, const CoefficientOrder *order)
{
    const Scan *scan = &header->scan;
    const Component *only = &header->component[scan->component[0]];
    int mcu_columns = scan->component_count == 1 ? only->block_columns : header->mcu_columns;
    int mcu_rows = scan->component_count == 1 ? only->block_rows : header->mcu_rows;
    McuLayout layout;
    if (set_up_mcu_layout(&layout, tables, header) ||
        find_intervals(intervals, header, mcu_columns, mcu_rows, &(McuBox){0, mcu_columns, 0, mcu_rows}))
        return -1;
    int failed = header->is_progressive
                     ? decode_progressive_scan(coefficients, header, &layout, intervals, order)
                     : decode_sequential_scan(coefficients, expected, header, &layout, intervals, order);
    header->position = intervals->end_offset;
    return failed;
}

/* Reserves memory for the blocks of `mcus` MCUs. Returns 0, or -1 if memory ran out. */
static int reserve_blocks(Coefficients *coefficients, const Header *header, size_t mcus)
{
    int blocks = 0;
    for (int c = 0; c < header->component_count; c++) {
        coefficients->first_block[c] = blocks;
        coefficients->h_factor[c] = header->component[c].h_factor;
        coefficients->v_factor[c] = header->component[c].v_factor;
        blocks += header->component[c].h_factor * header->component[c].v_factor;
    }
    coefficients->mcu_blocks = blocks;
    coefficients->mcu_columns = header->mcu_columns;
    size_t bytes = mcus * (size_t)blocks * BLOCK_SIZE * sizeof(int16_t);
    int failed = !buffer_reserve(&coefficients->blocks, bytes) ||
                 !buffer_reserve(&coefficients->last_index, mcus * (size_t)blocks);
    return -failed;
}

/* Returns whether the scans contained every bit of every coefficient. Decoders differ in how they
   fill in what is missing. */
static int is_complete(const Header *header)
{
    for (int c = 0; c < header->component_count; c++)
        for (int k = 0; k < BLOCK_SIZE; k++)
            if (header->component[c].missing_bits[k])
                return 0;
    return 1;
}

int decode_all_scans(
    Coefficients *coefficients, Header *header, HuffmanTables *tables, Intervals *intervals,
    const CoefficientOrder *order, size_t max_pixels)
{
    size_t max_scans = MAX_SCANS * max_pixels / ((size_t)header->width * (size_t)header->height);
    size_t mcus = (size_t)header->mcu_columns * (size_t)header->mcu_rows;
    int result = SCAN_FOUND;
    if (reserve_blocks(coefficients, header, mcus))
        return -1;
    memset(coefficients->blocks.bytes, 0, mcus * (size_t)coefficients->mcu_blocks * BLOCK_SIZE * sizeof(int16_t));
    for (size_t scans = 1; result == SCAN_FOUND; scans++) {
        if (scans > max_scans || decode_scan(coefficients, NULL, header, tables, intervals, order))
            return -1;
        result = next_scan(header);
    }
    return result == END_OF_IMAGE && is_complete(header) ? 0 : -1;
}

int has_coefficients(
    const Coefficients *expected, Header *header, HuffmanTables *tables, Intervals *intervals,
    const CoefficientOrder *order, Coefficients *memory)
{
    size_t mcus = (size_t)header->mcu_columns * (size_t)header->mcu_rows, step = (size_t)header->restart_interval;
    return !header->is_progressive && has_frame_mcus(expected, header) &&
           !reserve_blocks(memory, header, 2 * (step && step < mcus ? step : mcus)) &&
           !decode_scan(memory, expected, header, tables, intervals, order) && next_scan(header) == END_OF_IMAGE &&
           is_complete(header);
}
