// What NVRTC knows without headers, for a C++ compiler.
#pragma once
#include "entry.h"
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __align__(n)
#define __launch_bounds__(n)
struct LmIndex { unsigned x; };
#define blockIdx (LmIndex{lm_block()})
#define threadIdx (LmIndex{lm_thread()})
#define __syncthreads() LM_BARRIER()
#define __shfl_xor_sync(mask, value, m) lm_swap(value, (unsigned)(m))
#define __uint_as_float(x) __builtin_bit_cast(float, (unsigned)(x))
#define __float_as_uint(x) __builtin_bit_cast(unsigned, (float)(x))
#define __longlong_as_double(x) __builtin_bit_cast(double, (long long)(x))
#define __cvta_generic_to_shared(p) ((unsigned long long)((unsigned char*)(p) - shared))
extern "C" void lm_asm(const char* text, void** args, unsigned count, const void* site);
template <class... T>
__attribute__((no_sanitize("thread"))) inline void lm_run_asm(const char* text, const void* site,
                                                              T&&... args) {
    void* at[sizeof...(args) + 1] = {(void*)&args...};
    lm_asm(text, at, sizeof...(args), site);
}
#define LM_ASM(text, ...) \
    do { static const char site = 0; lm_run_asm(text, &site, ##__VA_ARGS__); } while (0)
