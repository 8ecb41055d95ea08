#include "kernels.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Returns whether the processor has AVX2 and BMI2, and the operating system saves the registers of
   AVX. */
static int has_avx2(void)
{
    unsigned a, b, c, d, saved;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX))
        return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if ((saved & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    return (b & bit_AVX2) && (b & bit_BMI) && (b & bit_BMI2);
}

static const Kernels *fastest(void)
{
    return has_avx2() ? &avx2_kernels : &plain_kernels;
}
#else
static const Kernels *fastest(void)
{
    return &plain_kernels;
}
#endif

static _Atomic(const Kernels *) selected;

const Kernels *kernels(void)
{
    const Kernels *current = atomic_load_explicit(&selected, memory_order_relaxed);
    if (!current)
        atomic_store_explicit(&selected, current = fastest(), memory_order_relaxed);
    return current;
}

void use_simd(int enable)
{
    atomic_store_explicit(&selected, enable ? fastest() : &plain_kernels, memory_order_relaxed);
}
