// Runs the threads of a block as fibres and watches every access to memory.
//
// Kernels are compiled with -fsanitize=thread, whose hooks (__tsan_read4 and so on) are defined here
// and not taken from libtsan: each access is looked up among the buffers of the launch, the memory
// that the block shares and the stack of the fibre. See emulated.py for what is checked.
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

typedef uint64_t u64;
typedef uint32_t u32;

struct Range {  // one buffer; `checked` is its shadow, if a kernel writes to it
    char* base;
    u64 size;
    int writable, shared_word;
};
struct Job {
    void (*kernel)(u64*);
    u64* words;
    u64 word_count;
    Range* ranges;
    u64 range_count;
    int64_t blocks;
    u32 threads, warp, shared_bytes;
    char* message;
    u64 message_bytes;
    u64 accesses, bytes;
};
struct Mark {  // who touched a byte last, and when
    u32 writer, write_epoch, reader, read_epoch;
};
enum { STACK = 1 << 18, SHARED = 1 << 18, MANY = 0xffffffff };

extern "C" {
alignas(128) unsigned char shared[SHARED];
void lm_switch(void** from, void** to);
}

struct Fibre {
    char* stack = nullptr;
    void* context = nullptr;
    const void* site = nullptr;  // where it waits; null: it may run
    bool warp_only = false, done = false;
    u32 turn = 0;
#if !defined(__x86_64__)
    ucontext_t machine;
#endif
};

static Job* job;
static std::vector<Fibre> fibres;
static std::vector<Mark> shared_marks;
static std::vector<std::vector<Mark>> marks;
static std::vector<u64> slots[2];
static u32 current, epoch;
static int64_t block;
static bool failed;
static void* scheduler;
#if !defined(__x86_64__)
static ucontext_t scheduler_machine;
#endif

#if defined(__x86_64__)
asm(R"(
.globl lm_switch
lm_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
static void leave(Fibre& f) { lm_switch(&f.context, &scheduler); }
static void enter(Fibre& f) { lm_switch(&scheduler, &f.context); }
#else
static void leave(Fibre& f) { swapcontext(&f.machine, &scheduler_machine); }
static void enter(Fibre& f) { swapcontext(&scheduler_machine, &f.machine); }
#endif

static void fail(const char* format, ...) {
    if (!failed) {
        int n = snprintf(job->message, job->message_bytes, "block %lld, thread %u: ",
                         (long long)block, current);
        va_list list;
        va_start(list, format);
        vsnprintf(job->message + n, job->message_bytes - n, format, list);
        va_end(list);
    }
    failed = true;
    leave(fibres[current]);  // and never come back
}

static void run() {
    job->words[job->word_count - 2] = (u64)block;  // where a kernel takes them as arguments
    job->words[job->word_count - 1] = current;
    job->kernel(job->words);
    fibres[current].done = true;
    leave(fibres[current]);
}

static void prepare(Fibre& f) {
    if (!f.stack) {
        f.stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    f.site = nullptr;
    f.done = false;
    f.turn = 0;
#if defined(__x86_64__)
    void** top = (void**)(f.stack + STACK - 64);
    *--top = nullptr;
    *--top = (void*)run;
    top -= 6;
    memset(top, 0, 6 * sizeof(void*));
    f.context = top;
#else
    getcontext(&f.machine);
    f.machine.uc_stack.ss_sp = f.stack;
    f.machine.uc_stack.ss_size = STACK;
    makecontext(&f.machine, run, 0);
#endif
}

// Fibres first .. last-1 wait at one place: they may go on. 0 if not all wait, -1 if they disagree.
static int released(u32 first, u32 last, bool warp_only) {
    const void* site = nullptr;
    u32 waiting = 0, done = 0;
    for (u32 t = first; t < last; ++t) {
        if (fibres[t].done) ++done;
        else if (fibres[t].site && fibres[t].warp_only == warp_only) {
            if (waiting++ && site != fibres[t].site) return -1;
            site = fibres[t].site;
        }
    }
    if (!waiting || waiting + done < last - first) return 0;
    if (done) return -1;
    for (u32 t = first; t < last; ++t) fibres[t].site = nullptr;
    return 1;
}

static void run_block() {
    memset(shared, 0xff, job->shared_bytes);
    for (Mark& m : shared_marks) m = Mark{MANY, 0, MANY, 0};
    ++epoch;
    for (u32 t = 0; t < job->threads; ++t) prepare(fibres[t]);
    for (;;) {
        bool ran = false;
        u32 done = 0;
        for (u32 t = 0; t < job->threads; ++t) {
            done += fibres[t].done;
            if (fibres[t].done || fibres[t].site) continue;
            current = t;
            ran = true;
            enter(fibres[t]);
            if (failed) return;
        }
        if (done == job->threads) return;
        for (u32 w = 0; w < job->threads; w += job->warp) {
            u32 end = w + job->warp < job->threads ? w + job->warp : job->threads;
            int all = released(w, end, true);
            if (all < 0) goto divergent;
            ran |= all > 0;
        }
        int all = released(0, job->threads, false);
        if (all < 0) goto divergent;
        if (all > 0) ++epoch;
        if (!ran && !all) goto divergent;
    }
divergent:
    snprintf(job->message, job->message_bytes,
             "block %lld: divergent: not all threads meet at the same barrier", (long long)block);
    failed = true;
}

static void wait_at(const void* site, bool warp_only) {
    Fibre& f = fibres[current];
    f.site = site;
    f.warp_only = warp_only;
    leave(f);
}

static u32 name_of() { return (u32)(block * job->threads + current); }

static void race(Mark& m, u64 size, bool write, bool in_block, const char* where, u64 offset) {
    u32 me = name_of();
    for (u64 i = 0; i < size; ++i) {
        Mark& k = (&m)[i];
        bool old = in_block || k.writer / job->threads == me / job->threads;
        if (k.writer != MANY && k.writer != me && !(old && k.write_epoch < epoch))
            fail("%s of byte %llu of %s, which thread %u wrote with no barrier in between",
                 write ? "write" : "read", (unsigned long long)(offset + i), where,
                 k.writer % job->threads);
        if (write && k.read_epoch == epoch && k.reader != me && in_block)
            fail("write of byte %llu of %s, which another thread read with no barrier in between",
                 (unsigned long long)(offset + i), where);
        if (write) {
            k.writer = me;
            k.write_epoch = epoch;
        } else {
            k.reader = k.read_epoch == epoch && k.reader != me ? MANY : me;
            k.read_epoch = epoch;
        }
    }
}

static void check(void* address, u64 size, bool write, bool aligned) {
    char* p = (char*)address;
    Fibre& f = fibres[current];
    if (p >= f.stack && p < f.stack + STACK) return;
    ++job->accesses;
    job->bytes += size;
    if (aligned && (u64)p % size)
        fail("misaligned %s of %llu bytes", write ? "write" : "read", (unsigned long long)size);
    if (p >= (char*)shared && p < (char*)shared + SHARED) {
        u64 offset = p - (char*)shared;
        if (offset + size > job->shared_bytes)
            fail("out of bounds: %s of byte %llu of %u shared ones", write ? "write" : "read",
                 (unsigned long long)offset, job->shared_bytes);
        race(shared_marks[offset], size, write, true, "shared memory", offset);
        return;
    }
    long long read_only = -1;
    for (u64 r = 0; r < job->range_count; ++r) {
        Range& range = job->ranges[r];
        if (p < range.base || p + size > range.base + range.size) continue;
        if (write && !range.writable) {  // another buffer may be the same memory
            read_only = r;
            continue;
        }
        if (range.shared_word || !range.writable) return;
        char where[32];
        snprintf(where, sizeof where, "buffer %llu", (unsigned long long)r);
        race(marks[r][p - range.base], size, write, false, where, p - range.base);
        return;
    }
    if (read_only >= 0) fail("write to buffer %lld, which is read only", read_only);
    long long best = 0;
    u64 near = 0;
    for (u64 r = 0; r < job->range_count; ++r) {
        long long d = p - job->ranges[r].base;
        if (!r || (d < 0 ? -d : d) < (best < 0 ? -best : best)) best = d, near = r;
    }
    fail("out of bounds: %s of %llu bytes at offset %lld of buffer %llu of %llu bytes",
         write ? "write" : "read", (unsigned long long)size, best, (unsigned long long)near,
         job->range_count ? (unsigned long long)job->ranges[near].size : 0ull);
}

extern "C" {

int lm_run(Job* given) {
    job = given;
    failed = false;
    epoch = 0;
    if (job->shared_bytes > SHARED) {
        snprintf(job->message, job->message_bytes, "too much shared memory");
        return 1;
    }
    if (fibres.size() < job->threads) fibres.resize(job->threads);
    for (auto& s : slots) s.resize(job->threads);
    shared_marks.assign(job->shared_bytes, Mark{MANY, 0, MANY, 0});
    marks.assign(job->range_count, {});
    for (u64 r = 0; r < job->range_count; ++r)
        if (job->ranges[r].writable && !job->ranges[r].shared_word)
            marks[r].assign(job->ranges[r].size, Mark{MANY, 0, MANY, 0});
    for (block = 0; block < job->blocks && !failed; ++block) run_block();
    return failed;
}

u32 lm_thread() { return current; }
u32 lm_block() { return (u32)block; }
void lm_aligned(const void* p, u64 size) {
    if ((u64)p % size) fail("misaligned access of %llu bytes", (unsigned long long)size);
}
void lm_barrier(const void* site) { wait_at(site, false); }

u64 lm_exchange(u64 value, u32 mask, const void* site) {
    u32 partner = current ^ mask, turn = fibres[current].turn++ & 1;
    if (partner >= job->threads || current / job->warp != partner / job->warp)
        fail("an exchange reaches beyond the warp");
    slots[turn][current] = value;
    wait_at(site, true);
    return slots[turn][partner];
}

void __ubsan_handle_out_of_bounds(void*, void* index) {
    fail("out of bounds: element %llu of a local array", (unsigned long long)(u64)index);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define HOOKS(n)                                                        \
    void __tsan_read##n(void* p) { check(p, n, false, true); }          \
    void __tsan_write##n(void* p) { check(p, n, true, true); }          \
    void __tsan_unaligned_read##n(void* p) { check(p, n, false, false); } \
    void __tsan_unaligned_write##n(void* p) { check(p, n, true, false); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, u64 n) { check(p, n, false, false); }
void __tsan_write_range(void* p, u64 n) { check(p, n, true, false); }
}
