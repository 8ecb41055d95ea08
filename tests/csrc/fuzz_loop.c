/* A coverage-guided fuzzer: inputs that reach new edges of the code are kept, and new inputs are
   derived from them.

   It needs only a compiler with -fsanitize-coverage=trace-pc, GCC or clang. The same arguments give
   the same inputs.

   Usage: fuzz_loop FINDING RUNS RANDOM_SEED INPUTS...

   Tests all INPUTS, then RUNS generated ones. If one fails, it is written to the file FINDING. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "fuzz.h"

#define EDGES (1 << 16)             /* size of the coverage map */
#define MAX_BYTES 3000              /* of a generated input */
#define MAX_INITIAL_BYTES (1 << 20) /* of an initial input; larger ones than MAX_BYTES are tested, but not changed */
#define MAX_INPUTS (1 << 16)
#define MAX_SECONDS 20              /* of processor time for RUNS_PER_ALARM runs */
#define RUNS_PER_ALARM 64

typedef struct {
    uint8_t *bytes;
    size_t size;
} Input;

static uint8_t counts[EDGES]; /* how often the current run took each edge */
static uint8_t known[EDGES];  /* for each edge, a bit mask of the counts of all runs: see count_bit() */
static uintptr_t previous;    /* the last branch, hashed */

static Input inputs[MAX_INPUTS];
static int input_count;

static uint8_t current[MAX_INITIAL_BYTES];
static size_t current_size;
static const char *finding;

/* The compiled code calls this at each branch. */
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&LLVMFuzzerTestOneInput;
    uintptr_t hash = here * 0x9E3779B97F4A7C15u >> 48;
    uint8_t *count = &counts[(hash ^ previous) % EDGES];
    previous = hash >> 1; /* shifted, so that A to B and B to A are different edges */
    *count = (uint8_t)(*count + (*count < 255));
}

/* Returns the bit of a count, which is at least 1: the counts 1, 2, 3, 4 to 7, 8 to 15, 16 to 31,
   32 to 127 and 128 to 255 have one bit each. */
static int count_bit(int count)
{
    static const uint8_t first[] = {1, 2, 3, 4, 8, 16, 32, 128};
    int bit = 7;
    while (count < first[bit])
        bit--;
    return 1 << bit;
}

/* Returns whether the last run has new coverage, and resets the counts. */
static int has_new_coverage(void)
{
    int found = 0;
    for (size_t i = 0; i < EDGES; i += 8) {
        uint64_t eight;
        memcpy(&eight, counts + i, 8);
        for (size_t k = i; eight && k < i + 8; k++)
            if (counts[k]) {
                int bit = count_bit(counts[k]);
                found |= !(known[k] & bit);
                known[k] = (uint8_t)(known[k] | bit);
            }
    }
    memset(counts, 0, sizeof counts);
    previous = 0;
    return found;
}

static uint64_t random_state;

/* Returns a random number below `limit` (xorshift*). */
static size_t draw(size_t limit)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (size_t)((random_state * 0x2545F4914F6CDD1Du >> 32) % limit);
}

/* Writes the current input to the file FINDING. */
static void write_finding(void)
{
    FILE *file = fopen(finding, "wb");
    if (!file)
        return;
    fwrite(current, 1, current_size, file);
    fclose(file);
}

/* The signal handler of a run that crashed or took too long. */
static void exit_with_finding(int number)
{
    write_finding();
    fprintf(stderr, "fuzz_loop: signal %d; the input is in %s\n", number, finding);
    _exit(1);
}

/* Sends a signal if the next runs take too long. */
static void set_alarm(void)
{
    struct itimerval time = {.it_value = {MAX_SECONDS, 0}};
    setitimer(ITIMER_VIRTUAL, &time, NULL);
}

/* Adds the current input to `inputs`, if there is space. */
static void keep_current(void)
{
    if (input_count == MAX_INPUTS)
        return;
    Input *input = &inputs[input_count++];
    input->size = current_size;
    input->bytes = malloc(current_size + 1);
    if (!input->bytes)
        exit(2);
    memcpy(input->bytes, current, current_size);
}

static void test_current(void)
{
    LLVMFuzzerTestOneInput(current, current_size);
    if (has_new_coverage() && current_size <= MAX_BYTES)
        keep_current();
}

/* Inserts bytes into the current input. Those that exceed MAX_BYTES are left out. */
static void insert(size_t at, const uint8_t *bytes, size_t size)
{
    size = size < MAX_BYTES - current_size ? size : MAX_BYTES - current_size;
    memmove(current + at + size, current + at, current_size - at);
    memmove(current + at, bytes, size);
    current_size += size;
}

static void erase(size_t at, size_t size)
{
    size = size < current_size - at ? size : current_size - at;
    memmove(current + at, current + at + size, current_size - at - size);
    current_size -= size;
}

/* Returns a random byte; half of the time one that is likely to be special in a JPEG. */
static uint8_t special_byte(void)
{
    static const uint8_t special[] = {0,    1,    2,    3,    7,    8,    9,    16,   63,   64,   127,  128,
                                      254,  255,  0x11, 0x21, 0x22, 0x41, 0xD0, 0xD1, 0xD7, 0xD9, 0xDA, 0xC0,
                                      0xC2, 0xC4, 0xDB, 0xDD, 0xF0, 0x12, 0x14, 0x24, 0x42, 0x44};
    return draw(2) ? (uint8_t)draw(256) : special[draw(sizeof special)];
}

/* Returns the offset of a random marker segment of the headers, and writes its size with the marker
   to *size. */
static size_t find_segment(size_t *size)
{
    size_t at = 2, found = 0, segments = 0;
    *size = 0;
    while (at + 4 <= current_size && current[at] == 0xFF) {
        size_t length = 2 + ((size_t)current[at + 2] << 8 | current[at + 3]);
        length = length < current_size - at ? length : current_size - at;
        if (!draw(++segments)) {
            found = at;
            *size = length;
        }
        at += length;
    }
    return found;
}

/* Removes, repeats or copies a marker segment, or changes one of its bytes. */
static void change_segment(void)
{
    uint8_t copy[MAX_BYTES];
    size_t size, at = find_segment(&size), operation = draw(8);
    memcpy(copy, current + at, size);
    if (operation == 0)
        erase(at, size);
    else if (operation == 1)
        insert(at, copy, size);
    else if (operation == 2) {
        size_t unused;
        insert(find_segment(&unused), copy, size);
    } else if (size > 4)
        current[at + 4 + draw(size - 4)] = special_byte();
}

/* Copies a part of another input into the current one. */
static void splice(void)
{
    const Input *other = &inputs[draw((size_t)input_count)];
    if (!other->size)
        return;
    size_t at = current_size ? draw(current_size) : 0, from = draw(other->size), size = 1 + draw(other->size - from);
    if (current_size && draw(2))
        erase(at, size);
    insert(at, other->bytes + from, size);
}

/* Copies a part of the current input to another offset. */
static void copy_within(void)
{
    uint8_t copy[MAX_BYTES];
    size_t from = draw(current_size), size = 1 + draw(current_size - from), at = draw(current_size);
    memcpy(copy, current + from, size);
    if (draw(2))
        erase(at, size);
    insert(at, copy, size);
}

/* Makes one random change to the current input. */
static void mutate(void)
{
    if (current_size <= REQUEST_BYTES) {
        splice();
        return;
    }
    size_t at = draw(current_size);
    switch (draw(11)) {
    case 0:
    case 1:
        current[at] = (uint8_t)(current[at] ^ 1 << draw(8));
        break;
    case 2:
        current[at] = special_byte();
        break;
    case 3:
        current[at] = (uint8_t)(current[at] + draw(9) - 4);
        break;
    case 4:
        erase(at, 1 + draw(draw(4) ? 4 : current_size));
        break;
    case 5: {
        uint8_t bytes[16];
        size_t size = 1 + draw(sizeof bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = i && draw(2) ? bytes[i - 1] : special_byte();
        insert(at, bytes, size);
        break;
    }
    case 6:
        copy_within();
        break;
    case 7:
        splice();
        break;
    case 8:
    case 9:
        change_segment();
        break;
    default:
        current[current_size - 1 - draw(REQUEST_BYTES)] = (uint8_t)draw(256);
    }
}

/* Derives a new input from a kept one. */
static void generate_input(void)
{
    size_t count = (size_t)input_count, recent = count / 4 + 1;
    const Input *from = &inputs[draw(2) ? draw(count) : count - 1 - draw(recent)];
    memcpy(current, from->bytes, from->size);
    current_size = from->size;
    do
        mutate();
    while (draw(3));
}

/* Reads a file into the current input. */
static void read_input(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (!file) {
        perror(name);
        exit(2);
    }
    current_size = fread(current, 1, sizeof current, file);
    fclose(file);
}

/* Defined if the program is linked with AddressSanitizer. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    finding = arguments[1];
    long runs = atol(arguments[2]);
    random_state = 0x9E3779B97F4A7C15u ^ (uint64_t)atol(arguments[3]);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(write_finding);
    else
        signal(SIGSEGV, exit_with_finding);
    for (int i = 0, signals[] = {SIGABRT, SIGILL, SIGTRAP, SIGFPE, SIGVTALRM}; i < 5; i++)
        signal(signals[i], exit_with_finding);
    for (int i = 4; i < count; i++) {
        set_alarm();
        read_input(arguments[i]);
        test_current();
    }
    for (long run = 0; run < runs; run++) {
        if (run % RUNS_PER_ALARM == 0)
            set_alarm();
        generate_input();
        test_current();
    }
    int edges = 0;
    for (size_t i = 0; i < EDGES; i++)
        edges += known[i] != 0;
    printf("%ld runs, %d inputs kept, %d edges\n", runs, input_count, edges);
    for (int i = 0; i < input_count; i++)
        free(inputs[i].bytes);
    return 0;
}
