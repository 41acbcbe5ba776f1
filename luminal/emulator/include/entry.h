// Calls a kernel whose arguments are words; what a kernel sees of the engine.
#pragma once
extern "C" unsigned lm_thread();
extern "C" unsigned lm_block();
extern "C" void lm_barrier(const void* site);
extern "C" unsigned long long lm_exchange(unsigned long long value, unsigned mask,
                                          const void* site);
extern "C" unsigned char shared[];
extern "C" {  // <math.h> takes longer to read than a kernel
double exp2(double);
float exp2f(float);
double log2(double);
float log2f(float);
double sin(double);
float sinf(float);
double sqrt(double);
float sqrtf(float);
double fmod(double, double);
float fmodf(float, float);
double fma(double, double, double);
float fmaf(float, float, float);
}

template <class T> __attribute__((noinline, no_sanitize("thread"))) T lm_swap(T value, unsigned m) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = lm_exchange(bits, m, __builtin_return_address(0));
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> struct Word {
    static T of(unsigned long long* w) { return (T)*w; }
};
template <class T> struct Word<T*> {
    static T* of(unsigned long long* w) { return (T*)*w; }
};
template <class T> struct Word<T&> {
    static T& of(unsigned long long* w) { return *(T*)w; }
};
template <int... I> struct Numbers {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Numbers<I...> type; };

template <class... A, int... I>
__attribute__((no_sanitize("thread"))) void lm_spread(void (*kernel)(A...), unsigned long long* w,
                                                      Numbers<I...>) {
    kernel(Word<A>::of(w + I)...);
}
template <class... A>
__attribute__((no_sanitize("thread"))) void lm_apply(void (*kernel)(A...), unsigned long long* w) {
    lm_spread(kernel, w, typename Count<sizeof...(A)>::type());
}
#define LM_ENTRY(kernel) \
    extern "C" __attribute__((no_sanitize("thread"))) void lm_entry(unsigned long long* w) { \
        lm_apply(kernel, w); \
    }
// Vectors, which must lie at multiples of their size.
extern "C" void lm_aligned(const void* address, unsigned long long size);
#define LM_VECTOR(name, n, fields, take, ...) \
    struct alignas(4 * n) name { \
        unsigned fields; \
        name(__VA_ARGS__) { take } \
        name(const name& o) { lm_aligned(&o, 4 * n); __builtin_memcpy(this, &o, 4 * n); } \
        name(const volatile name& o) : name((const name&)o) {} \
        void operator=(const name& o) volatile { *(name*)this = o; } \
        name& operator=(const name& o) { \
            lm_aligned(this, 4 * n); \
            __builtin_memcpy(this, &o, 4 * n); \
            return *this; \
        } \
    }
#define LM_FIELDS2 x, y
#define LM_FIELDS4 x, y, z, w
LM_VECTOR(uint2, 2, LM_FIELDS2, x = a; y = b;, unsigned a, unsigned b);
LM_VECTOR(uint4, 4, LM_FIELDS4, x = a; y = b; z = c; w = d;, unsigned a, unsigned b, unsigned c,
          unsigned d);
inline uint2 make_uint2(unsigned a, unsigned b) { return uint2(a, b); }
inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return uint4(a, b, c, d); }
// A barrier is known by the place of its text.
#define LM_BARRIER() do { static const char site = 0; lm_barrier(&site); } while (0)
