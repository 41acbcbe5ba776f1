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
#include <unordered_map>
#include <unordered_set>
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
    u64* counts;  // of Count; null: nothing is counted, which is faster
};
enum Count { READS, WRITES, SECTORS_READ, SECTORS_WRITTEN, SHARED_ACCESSES, SHARED_CYCLES, EXCHANGES,
             PRODUCTS, BARRIERS };
struct Mark {  // who touched a byte last, and when
    u32 writer, write_epoch, reader, read_epoch, coming;
};
enum { STACK = 1 << 18, SHARED = 1 << 18, MANY = 0xffffffff };

extern "C" {
alignas(128) unsigned char shared[SHARED];
void lm_switch(void** from, void** to);
}

struct Coming {  // a copy to shared memory that has not arrived
    u64 to, size, bytes, group;
    const char* from;
};
struct Fibre {
    std::vector<Coming> coming;
    u64 groups = 0;
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
struct Words {
    u32 at[6];
};
static std::vector<Words> operands[2];  // what each thread holds of two matrices
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
    f.groups = 0;
    f.coming.clear();
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
    for (Mark& m : shared_marks) m = Mark{MANY, 0, MANY, 0, 0};
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

// One access of a warp: what its threads touch at one place of the text, for the nth time.
struct Access {
    u64 size;
    bool write, in_block;
    std::vector<u64> at;
};
static std::unordered_map<u64, Access> warp_accesses;
static std::unordered_map<u64, u64> turns;

static void note(const void* site, u64 address, u64 size, bool write, bool in_block) {
    u64 mine = (u64)site * 1024 + current;
    u64 key = ((u64)site * 1024 + current / job->warp) * 0x9e3779b97f4a7c15ull + turns[mine]++;
    Access& a = warp_accesses[key];
    a.size = size, a.write = write, a.in_block = in_block;
    a.at.push_back(address);
}

// Sectors of 32 bytes for global memory; cycles of 32 banks for shared memory: neighbouring threads
// that together ask for 128 bytes are served at once.
static void settle() {
    for (auto& [key, a] : warp_accesses) {
        if (!a.in_block) {
            std::unordered_set<u64> sectors;
            for (u64 p : a.at)
                for (u64 s = p / 32; s <= (p + a.size - 1) / 32; ++s) sectors.insert(s);
            job->counts[a.write ? WRITES : READS] += 1;
            job->counts[a.write ? SECTORS_WRITTEN : SECTORS_READ] += sectors.size();
            continue;
        }
        job->counts[SHARED_ACCESSES] += 1;
        u64 group = a.size > 4 ? 128 / a.size : 32;
        for (u64 first = 0; first < a.at.size(); first += group) {
            std::unordered_set<u64> words;
            u64 banks[32] = {}, most = 0;
            for (u64 n = first; n < first + group && n < a.at.size(); ++n)
                for (u64 w = a.at[n] / 4; w <= (a.at[n] + a.size - 1) / 4; ++w)
                    if (words.insert(w).second && ++banks[w % 32] > most) most = banks[w % 32];
            job->counts[SHARED_CYCLES] += most;
        }
    }
    warp_accesses.clear();
    turns.clear();
}

static void count(Count what) {
    if (job->counts && current % job->warp == 0) job->counts[what] += 1;
}

static void race(Mark& m, u64 size, bool write, bool in_block, const char* where, u64 offset) {
    u32 me = name_of();
    for (u64 i = 0; i < size; ++i) {
        Mark& k = (&m)[i];
        if (k.coming)
            fail("%s of byte %llu of %s, which a copy has not brought yet", write ? "write" : "read",
                 (unsigned long long)(offset + i), where);
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

static void check(void* address, u64 size, bool write, bool aligned, const void* site) {
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
        if (job->counts) note(site, offset, size, write, true);
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
        if (job->counts && !range.shared_word && r + 2 < job->range_count)
            note(site, (u64)p, size, write, false);
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
    for (auto& o : operands) o.resize(job->threads);
    shared_marks.assign(job->shared_bytes, Mark{MANY, 0, MANY, 0, 0});
    marks.assign(job->range_count, {});
    for (u64 r = 0; r < job->range_count; ++r)
        if (job->ranges[r].writable && !job->ranges[r].shared_word)
            marks[r].assign(job->ranges[r].size, Mark{MANY, 0, MANY, 0, 0});
    for (block = 0; block < job->blocks && !failed; ++block) {
        run_block();
        if (job->counts) settle();
    }
    return failed;
}

u32 lm_thread() { return current; }
u32 lm_block() { return (u32)block; }
void lm_aligned(const void* p, u64 size) {
    if ((u64)p % size) fail("misaligned access of %llu bytes", (unsigned long long)size);
}
void lm_barrier(const void* site) {
    count(BARRIERS);
    wait_at(site, false);
}

u64 lm_exchange(u64 value, u32 mask, const void* site) {
    u32 partner = current ^ mask, turn = fibres[current].turn++ & 1;
    if (partner >= job->threads || current / job->warp != partner / job->warp)
        fail("an exchange reaches beyond the warp");
    slots[turn][current] = value;
    count(EXCHANGES);
    wait_at(site, true);
    return slots[turn][partner];
}

// Where operands of mma.sync lie: rows are groups of four threads, each with two words of a row.
static float element(const char* kind, u32 word, u32 n) {
    float x;
    if (!strcmp(kind, "f16")) {
        _Float16 h;
        word >>= 16 * n;
        memcpy(&h, &word, 2);
        return h;
    }
    if (!strcmp(kind, "s8")) return (int8_t)(word >> 8 * n);
    word = !strcmp(kind, "bf16") ? word >> 16 * n << 16 : word & ~0x1fffu;
    memcpy(&x, &word, 4);
    return x;
}

static const Words* gather(const u32* words, u32 size, const void* site) {
    u32 turn = fibres[current].turn++ & 1;
    memcpy(operands[turn][current].at, words, size * 4);
    count(PRODUCTS);
    wait_at(site, true);
    return &operands[turn][current - current % job->warp];
}

static void mma(const char* kind, u32 size, void** args, const void* site) {
    u32 own[6], lane = current % job->warp;
    union { int i; float f; } made[4];
    for (u32 n = 0; n < 6; ++n) own[n] = *(u32*)args[4 + n];
    const Words* all = gather(own, 6, site);
    u32 per = size / 8;  // elements of a word: a row has eight of them
    for (u32 n = 0; n < 4; ++n) {
        u32 row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2, half = size / 2;
        float sum = 0;
        int whole = 0;
        for (u32 k = 0; k < size; ++k) {
            u32 thread = k % half / per, high = k >= half;
            float a = element(kind, all[row % 8 * 4 + thread].at[(row >= 8) + 2 * high], k % per);
            float b = element(kind, all[column * 4 + thread].at[4 + high], k % per);
            sum += a * b;
            whole += (int)a * (int)b;
        }
        memcpy(&made[n], args[10 + n], 4);
        if (!strcmp(kind, "s8")) made[n].i += whole;
        else made[n].f += sum;
    }
    for (u32 n = 0; n < 4; ++n) memcpy(args[n], &made[n], 4);
}

static void copy(u64 to, const char* from, u64 size, u64 bytes, const void* site) {
    check(shared + to, size, true, true, site);
    if (bytes) check((void*)from, bytes, false, true, site);
    memset(shared + to, 0xff, size);
    for (u64 i = 0; i < size; ++i) shared_marks[to + i].coming = 1;
    fibres[current].coming.push_back(Coming{to, size, bytes, fibres[current].groups, from});
}

static void arrive(u64 left) {
    Fibre& f = fibres[current];
    std::vector<Coming> rest;
    for (const Coming& c : f.coming) {
        if (c.group + left >= f.groups) {
            rest.push_back(c);
            continue;
        }
        memset(shared + c.to, 0, c.size);
        memcpy(shared + c.to, c.from, c.bytes);
        for (u64 i = 0; i < c.size; ++i) {
            Mark& m = shared_marks[c.to + i];
            m.coming = 0;
            m.writer = name_of();
            m.write_epoch = epoch;
        }
    }
    f.coming = rest;
}

// An instruction in the text of a kernel, on the addresses of its operands.
void lm_asm(const char* text, void** given, u32 count, const void* site) {
    char kind[8] = "";
    u32 size = 0, used = 0;
    void* args[16];
    for (const char* p = strchr(text, '%'); p && used < 16; p = strchr(p + 1, '%')) {
        u32 n = 0;
        sscanf(p + 1, "%u", &n);
        if (n >= count) fail("operand %u of %u in %s", n, count, text);
        args[used++] = given[n];
    }
    if (sscanf(text, "mma.sync.aligned.m16n8k%u.row.col.%*[a-z0-9].%7[a-z0-9].", &size, kind) == 2 &&
        used == 14)
        mma(kind, size, args, site);
    else if (!strncmp(text, "cvt.rna.tf32.f32 ", 17) && used == 2)
        *(u32*)args[0] = (*(u32*)args[1] + 0x1000u) & ~0x1fffu;
    else if (sscanf(text, "cp.async.c%*[ag].shared.global [%%0], [%%1], %u, %%2;", &size) == 1 &&
             used == 3)
        copy(*(u32*)args[0], *(const char**)args[1], size, *(u32*)args[2], site);
    else if (!strcmp(text, "cp.async.commit_group;"))
        ++fibres[current].groups;
    else if (sscanf(text, "cp.async.wait_group %u;", &size) == 1)
        arrive(size);
    else if (!strncmp(text, "cvt.f32.f16 ", 12) && used == 2)
        *(float*)args[0] = *(_Float16*)args[1];
    else if (!strncmp(text, "cvt.rn.f16.f32 ", 15) && used == 2)
        *(_Float16*)args[0] = *(float*)args[1];
    else
        fail("the emulator knows no instruction %s", text);
}

// Two neighbours of a row of each operand in every thread, rows as Apple's GPUs spread them.
void lm_simdgroup(float* c, const float* a, const float* b, const void* site) {
    u32 own[4], lane = current % job->warp;
    memcpy(own, a, 8);
    memcpy(own + 2, b, 8);
    const Words* all = gather(own, 4, site);
    u32 row = lane / 16 * 4 + lane / 2 % 4, column = lane / 8 % 2 * 4 + lane % 2 * 2;
    for (u32 n = 0; n < 2; ++n)
        for (u32 k = 0; k < 8; ++k) {
            u32 far = row / 4 * 16 + row % 4 * 2 + k / 4 * 8 + k % 4 / 2;
            u32 near = k / 4 * 16 + k % 4 * 2 + column / 4 * 8 + column % 4 / 2;
            float x, y;
            memcpy(&x, &all[far].at[k % 2], 4);
            memcpy(&y, &all[near].at[2 + n], 4);
            c[n] += x * y;
        }
}

void __ubsan_handle_out_of_bounds(void*, void* index) {
    fail("out of bounds: element %llu of a local array", (unsigned long long)(u64)index);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define PLACE __builtin_return_address(0)
#define HOOKS(n)                                                        \
    void __tsan_read##n(void* p) { check(p, n, false, true, PLACE); }            \
    void __tsan_write##n(void* p) { check(p, n, true, true, PLACE); }            \
    void __tsan_unaligned_read##n(void* p) { check(p, n, false, false, PLACE); } \
    void __tsan_unaligned_write##n(void* p) { check(p, n, true, false, PLACE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, u64 n) { check(p, n, false, false, PLACE); }
void __tsan_write_range(void* p, u64 n) { check(p, n, true, false, PLACE); }
}
