/* A fuzzer guided by coverage: inputs that take new ways through the code are kept, and more inputs
   are made of them.

      It needs no more than a compiler that has -fsanitize-coverage=trace-pc: GCC, or clang. The
   same runs and the same number to begin with give the same inputs.

      fuzz_loop FINDING RUNS NUMBER SEEDS... tries every seed, then makes RUNS inputs. Where one
   fails, it is written to the file FINDING. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "fuzz.h"

#define WAYS (1 << 16)
#define MOST_BYTES 3000
#define MOST_SEED_BYTES (1 << 20) /* larger seeds than inputs may be are tried, and not changed */
#define MOST_INPUTS (1 << 16)
#define MOST_SECONDS 20 /* of the processor, for BETWEEN_ALARMS runs */
#define BETWEEN_ALARMS 64

typedef struct {
    uint8_t *bytes;
    size_t size;
} Input;

static uint8_t counts[WAYS]; /* how often this run went from one place of the code to another */
static uint8_t known[WAYS];  /* how often any run did: a bit for each of 1, 2, 3, 4 to 7, 8, 16, 32 and 128 times */
static uintptr_t place;

static Input inputs[MOST_INPUTS];
static int input_count;

static uint8_t current[MOST_SEED_BYTES];
static size_t current_size;
static const char *finding;

/* Called by the compiled code at each branch. */
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&LLVMFuzzerTestOneInput;
    uintptr_t reached = here * 0x9E3779B97F4A7C15u >> 48;
    uint8_t *count = &counts[(reached ^ place) % WAYS];
    place = reached >> 1; /* there and back are two ways */
    *count = (uint8_t)(*count + (*count < 255));
}

/* Returns the bit of a number of times, which is not 0. */
static int bit_of(int count)
{
    static const uint8_t from[] = {1, 2, 3, 4, 8, 16, 32, 128};
    int bit = 7;
    while (count < from[bit])
        bit--;
    return 1 << bit;
}

/* Returns whether the last run took a new way, and forgets it. */
static int is_new(void)
{
    int found = 0;
    for (size_t i = 0; i < WAYS; i += 8) {
        uint64_t eight;
        memcpy(&eight, counts + i, 8);
        for (size_t k = i; eight && k < i + 8; k++)
            if (counts[k]) {
                int bit = bit_of(counts[k]);
                found |= !(known[k] & bit);
                known[k] = (uint8_t)(known[k] | bit);
            }
    }
    memset(counts, 0, sizeof counts);
    place = 0;
    return found;
}

static uint64_t state;

/* Returns a number below `limit` (xorshift*). */
static size_t drawn(size_t limit)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * 0x2545F4914F6CDD1Du >> 32) % limit);
}

static void write_finding(void)
{
    FILE *file = fopen(finding, "wb");
    if (!file)
        return;
    fwrite(current, 1, current_size, file);
    fclose(file);
}

static void end(int number)
{
    write_finding();
    fprintf(stderr, "fuzz_loop: signal %d, the input is in %s\n", number, finding);
    _exit(1);
}

/* Ends the process if it works for too long without another call. */
static void set_alarm(void)
{
    struct itimerval time = {.it_value = {MOST_SECONDS, 0}};
    setitimer(ITIMER_VIRTUAL, &time, NULL);
}

static void keep(void)
{
    if (input_count == MOST_INPUTS)
        return;
    Input *input = &inputs[input_count++];
    input->size = current_size;
    input->bytes = malloc(current_size + 1);
    if (!input->bytes)
        exit(2);
    memcpy(input->bytes, current, current_size);
}

static void try_current(void)
{
    LLVMFuzzerTestOneInput(current, current_size);
    if (is_new() && current_size <= MOST_BYTES)
        keep();
}

/* Puts bytes into the input; what no longer fits is left out. */
static void insert(size_t at, const uint8_t *bytes, size_t size)
{
    size = size < MOST_BYTES - current_size ? size : MOST_BYTES - current_size;
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

static uint8_t odd_byte(void)
{
    static const uint8_t odd[] = {0, 1, 2, 3, 7, 8, 9, 16, 63, 64, 127, 128, 254, 255, 0x11, 0x21, 0x22, 0x41, 0xD0, 0xD1,
                                  0xD7, 0xD9, 0xDA, 0xC0, 0xC2, 0xC4, 0xDB, 0xDD, 0xF0, 0x12, 0x14, 0x24, 0x42, 0x44};
    return drawn(2) ? (uint8_t)drawn(256) : odd[drawn(sizeof odd)];
}

/* Finds a segment of the headers: its marker, and the bytes up to the next one. */
static size_t find_segment(size_t *size)
{
    size_t at = 2, found = 0, segments = 0;
    *size = 0;
    while (at + 4 <= current_size && current[at] == 0xFF) {
        size_t length = 2 + ((size_t)current[at + 2] << 8 | current[at + 3]);
        length = length < current_size - at ? length : current_size - at;
        if (!drawn(++segments)) {
            found = at;
            *size = length;
        }
        at += length;
    }
    return found;
}

/* Changes a segment as a whole: it is lost, comes again, or comes from another input. */
static void change_segment(void)
{
    uint8_t copy[MOST_BYTES];
    size_t size, at = find_segment(&size), way = drawn(8);
    memcpy(copy, current + at, size);
    if (way == 0)
        erase(at, size);
    else if (way == 1)
        insert(at, copy, size);
    else if (way == 2) {
        size_t unused;
        insert(find_segment(&unused), copy, size);
    } else if (size > 4)
        current[at + 4 + drawn(size - 4)] = odd_byte();
}

static void splice(void)
{
    const Input *other = &inputs[drawn((size_t)input_count)];
    if (!other->size)
        return;
    size_t at = current_size ? drawn(current_size) : 0, from = drawn(other->size), size = 1 + drawn(other->size - from);
    if (current_size && drawn(2))
        erase(at, size);
    insert(at, other->bytes + from, size);
}

static void copy_inside(void)
{
    uint8_t copy[MOST_BYTES];
    size_t from = drawn(current_size), size = 1 + drawn(current_size - from), at = drawn(current_size);
    memcpy(copy, current + from, size);
    if (drawn(2))
        erase(at, size);
    insert(at, copy, size);
}

/* Changes something. */
static void change(void)
{
    if (current_size <= WISH_BYTES) {
        splice();
        return;
    }
    size_t at = drawn(current_size);
    switch (drawn(11)) {
    case 0:
    case 1:
        current[at] = (uint8_t)(current[at] ^ 1 << drawn(8));
        break;
    case 2:
        current[at] = odd_byte();
        break;
    case 3:
        current[at] = (uint8_t)(current[at] + drawn(9) - 4);
        break;
    case 4:
        erase(at, 1 + drawn(drawn(4) ? 4 : current_size));
        break;
    case 5: {
        uint8_t bytes[16];
        size_t size = 1 + drawn(sizeof bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = i && drawn(2) ? bytes[i - 1] : odd_byte();
        insert(at, bytes, size);
        break;
    }
    case 6:
        copy_inside();
        break;
    case 7:
        splice();
        break;
    case 8:
    case 9:
        change_segment();
        break;
    default:
        current[current_size - 1 - drawn(WISH_BYTES)] = (uint8_t)drawn(256);
    }
}

/* Makes an input of one that is known. */
static void make_input(void)
{
    size_t count = (size_t)input_count, recent = count / 4 + 1;
    const Input *from = &inputs[drawn(2) ? drawn(count) : count - 1 - drawn(recent)];
    memcpy(current, from->bytes, from->size);
    current_size = from->size;
    do
        change();
    while (drawn(3));
}

static void read_seed(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (!file) {
        perror(name);
        exit(2);
    }
    current_size = fread(current, 1, sizeof current, file);
    fclose(file);
}

/* There is such a function where AddressSanitizer is. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*call)(void));

int main(int count, char **words)
{
    if (count < 5)
        return 2;
    finding = words[1];
    long runs = atol(words[2]);
    state = 0x9E3779B97F4A7C15u ^ (uint64_t)atol(words[3]);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(write_finding);
    else
        signal(SIGSEGV, end);
    for (int i = 0, ends[] = {SIGABRT, SIGILL, SIGTRAP, SIGFPE, SIGVTALRM}; i < 5; i++)
        signal(ends[i], end);
    for (int i = 4; i < count; i++) {
        set_alarm();
        read_seed(words[i]);
        try_current();
    }
    for (long run = 0; run < runs; run++) {
        if (run % BETWEEN_ALARMS == 0)
            set_alarm();
        make_input();
        try_current();
    }
    int ways = 0;
    for (size_t i = 0; i < WAYS; i++)
        ways += known[i] != 0;
    printf("%ld runs, %d inputs kept, %d ways\n", runs, input_count, ways);
    for (int i = 0; i < input_count; i++)
        free(inputs[i].bytes);
    return 0;
}
