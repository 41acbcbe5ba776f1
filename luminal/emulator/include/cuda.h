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
