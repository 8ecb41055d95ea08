/* What the two parts of the fuzzer share: fuzz_loop.c generates inputs, fuzz_target.c tests one
   input. */
#ifndef WDS_TOOLS_FUZZ_H
#define WDS_TOOLS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Number of bytes after the JPEG of an input; they choose what is tested. */
#define REQUEST_BYTES 8

/* Tests one input. It has the name that clang's libFuzzer calls, so that libFuzzer can replace
   fuzz_loop.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
