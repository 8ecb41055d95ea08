/* What the two halves of the fuzzer share: fuzz_target.c, which tries one input, and
   fuzz_loop.c, which makes them. */
#ifndef WDS_TOOLS_FUZZ_H
#define WDS_TOOLS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Bytes behind the file, which say what is asked of it. */
#define WISH_BYTES 8

/* Tries one input. This is the name that clang's libFuzzer calls, which can take the place of
   fuzz_loop.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
