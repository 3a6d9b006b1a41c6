// Runs kernels on the host: every thread of a block is a fibre, and threads switch where they wait for each other. Copies
// aside land only when they are waited for, and shared memory starts as not-a-number, so that a missing wait shows.
#define GT_EMULATE 1
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csetjmp>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define GTA_FN inline

struct dim3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
static dim3 gridDim, blockDim, blockIdx, threadIdx;
alignas(1024) static unsigned char gta_shared[227 << 10];

namespace emu {
struct Copy { void *to; const void *from; int size, bytes; };
struct Fibre {
    ucontext_t start;
    jmp_buf at;
    bool begun, done;
    std::vector<Copy> sent, waiting;
    std::vector<char> stack;
};
static std::vector<Fibre> fibres;
static size_t now;
static jmp_buf home;
static void (*body)(const void *);
static const void *params;

struct Barrier { unsigned arrived = 0, round = 0; };
static Barrier block_barrier, warp_barriers[64];
static unsigned gone_block, gone_warp[64];
static uint64_t box[64][32][12];


static void enter() {
    body(params);
    Fibre &f = fibres[now];
    assert(f.sent.empty() && f.waiting.empty() && "a copy nobody waited for");
    f.done = true;
    gone_block++;
    gone_warp[now / 32]++;
    longjmp(home, 1);
}

// Goes on with the next thread that is not done.
static void yield() {
    if (!_setjmp(fibres[now].at)) _longjmp(home, 1);
}

static void run_block(unsigned threads, size_t shared) {
    memset(gta_shared, 0xff, sizeof gta_shared);
    fibres.resize(threads);
    block_barrier = Barrier();
    gone_block = 0;
    for (auto &b : warp_barriers) b = Barrier();
    memset(gone_warp, 0, sizeof gone_warp);
    for (auto &f : fibres) f.begun = f.done = false;
    volatile size_t left = threads, i = 0;
    while (left > 0) {
        now = i;
        threadIdx = {(unsigned)i, 0, 0};
        if (!fibres[i].done) {
            if (!_setjmp(home)) {
                if (fibres[i].begun) _longjmp(fibres[i].at, 1);
                fibres[i].begun = true;
                Fibre &f = fibres[i];
                f.stack.resize(64 << 10);
                getcontext(&f.start);
                f.start.uc_stack.ss_sp = f.stack.data();
                f.start.uc_stack.ss_size = f.stack.size();
                f.start.uc_link = nullptr;
                makecontext(&f.start, enter, 0);
                setcontext(&f.start);
            }
            if (fibres[i].done) left = left - 1;
        }
        i = i + 1 == threads ? 0 : i + 1;
    }
    for (size_t j = shared; j < sizeof gta_shared; j++) {
        if (gta_shared[j] != 0xff) {
            fprintf(stderr, "byte %zu of shared memory written, of %zu\n", j, shared);
            abort();
        }
    }
}

static void meet(Barrier &b, unsigned count, const unsigned &gone) {
    unsigned round = b.round;
    b.arrived++;
    while (b.round == round) {
        if (b.arrived + gone >= count) {
            b.arrived = 0;
            b.round++;
            return;
        }
        yield();
    }
}
static unsigned lanes_of(size_t warp) {
    unsigned left = blockDim.x - (unsigned)warp * 32;
    return left < 32 ? left : 32;
}
static void meet_warp() { size_t w = now / 32; meet(warp_barriers[w], lanes_of(w), gone_warp[w]); }
static void meet_block() { meet(block_barrier, blockDim.x, gone_block); }

// Every lane's value, seen by all.
template <class T> static T trade(T x, int from) {
    size_t w = now / 32;
    memcpy(box[w][now % 32], &x, sizeof x);
    meet_warp();
    T y;
    memcpy(&y, box[w][from & 31], sizeof y);
    meet_warp();
    return y;
}
static void copy_aside(void *to, const void *from, int size, int bytes) {
    assert((uintptr_t)to % size == 0 && (bytes == 0 || (uintptr_t)from % size == 0));
    fibres[now].sent.push_back({to, from, size, bytes});
}
} // namespace emu

static inline void __syncthreads() { emu::meet_block(); }
static inline void __syncwarp() { emu::meet_warp(); }
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int by) { return emu::trade(x, (int)(emu::now % 32) ^ by); }
template <class T> static inline T __shfl_sync(unsigned, T x, int from) { return emu::trade(x, from); }
static inline bool __any_sync(unsigned, bool x) {
    size_t w = emu::now / 32;
    emu::box[w][emu::now % 32][0] = x;
    emu::meet_warp();
    bool any = false;
    for (unsigned i = 0; i < emu::lanes_of(w); i++) any |= emu::box[w][i][0] != 0;
    emu::meet_warp();
    return any;
}
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }

static inline int __float_as_int(float x) { return (int)__float_as_uint(x); }

static inline float gta_exp2(float x) { return exp2f(x); }
static inline float gta_of_f16(unsigned short b) { _Float16 h; memcpy(&h, &b, 2); return (float)h; }
static inline unsigned short gta_to_f16(float x) { _Float16 h = (_Float16)x; unsigned short b; memcpy(&b, &h, 2); return b; }
static inline float emu_of_bf16(unsigned short b) { return __uint_as_float((unsigned)b << 16); }
static inline unsigned short gta_to_bf16(float x) {
    unsigned u = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline unsigned gta_two_f16(float lo, float hi) { return gta_to_f16(lo) | (unsigned)gta_to_f16(hi) << 16; }
static inline unsigned gta_two_bf16(float lo, float hi) { return gta_to_bf16(lo) | (unsigned)gta_to_bf16(hi) << 16; }

// The warp's product, from every lane's part of the operands.
static void emu_mma(float *c, const unsigned *a, unsigned b0, unsigned b1, float (*of)(unsigned short)) {
    size_t w = emu::now / 32, lane = emu::now % 32;
    for (int i = 0; i < 4; i++) emu::box[w][lane][i] = a[i];
    emu::box[w][lane][4] = b0;
    emu::box[w][lane][5] = b1;
    emu::meet_warp();
    auto half = [](uint64_t word, int k) { return (unsigned short)(word >> (16 * (k & 1))); };
    for (int i = 0; i < 4; i++) {
        int row = (int)lane / 4 + (i >> 1) * 8, col = (int)lane % 4 * 2 + (i & 1);
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            uint64_t x = emu::box[w][(row & 7) * 4 + (k & 7) / 2][(row >> 3) + 2 * (k >> 3)];
            uint64_t y = emu::box[w][col * 4 + (k & 7) / 2][4 + (k >> 3)];
            sum += of(half(x, k)) * of(half(y, k));
        }
        c[i] += sum;
    }
    emu::meet_warp();
}
static inline void gta_mma_f16(float *c, const unsigned *a, unsigned b0, unsigned b1) { emu_mma(c, a, b0, b1, gta_of_f16); }
static inline void gta_mma_bf16(float *c, const unsigned *a, unsigned b0, unsigned b1) { emu_mma(c, a, b0, b1, emu_of_bf16); }
typedef uintptr_t gta_addr;
static inline gta_addr gta_address(const void *at) { return (gta_addr)at; }
static inline unsigned gta_shared_offset(gta_addr at) { return (unsigned)(at - (gta_addr)gta_shared); }
static void emu_ldmatrix(unsigned *r, gta_addr at, bool trans) {
    size_t w = emu::now / 32, lane = emu::now % 32;
    assert(at % 16 == 0);
    emu::box[w][lane][0] = at;
    emu::meet_warp();
    for (int m = 0; m < 4; m++) {
        unsigned halves[2];
        for (int h = 0; h < 2; h++) {
            int row = trans ? (int)lane % 4 * 2 + h : (int)lane / 4, col = trans ? (int)lane / 4 : (int)lane % 4 * 2 + h;
            halves[h] = ((const unsigned short *)(uintptr_t)emu::box[w][m * 8 + row][0])[col];
        }
        r[m] = halves[0] | halves[1] << 16;
    }
    emu::meet_warp();
}
static inline void gta_ldmatrix(unsigned *r, gta_addr at) { emu_ldmatrix(r, at, false); }
static inline void gta_ldmatrix_trans(unsigned *r, gta_addr at) { emu_ldmatrix(r, at, true); }
static inline void gta_copy16(gta_addr to, const void *from, int bytes) { emu::copy_aside((void *)to, from, 16, bytes); }
static inline void gta_copy4(gta_addr to, const void *from, int bytes) { emu::copy_aside((void *)to, from, 4, bytes); }
static inline void gta_copies_sent() {
    auto &f = emu::fibres[emu::now];
    f.waiting.insert(f.waiting.end(), f.sent.begin(), f.sent.end());
    f.sent.clear();
}
static inline void gta_copies_done() {
    auto &f = emu::fibres[emu::now];
    for (auto &c : f.waiting) {
        memset(c.to, 0, c.size);
        memcpy(c.to, c.from, c.bytes);
    }
    f.waiting.clear();
}

// Products of groups of four warps: every thread computes its own part of the result from the tiles that the descriptors
// tell of.
static inline void gta_wg_begin() {}
static inline void gta_wg_written() {}
static inline void gta_wg_sent() {}
template <int PENDING> static inline void gta_wg_wait() {}
template <int N> static inline void gta_wg_keep(float *) {}
template <int N> static inline void gta_wg_keep(unsigned *) {}
static inline void gta_before(int never) { assert(never >= 0); }
static inline int gta_even(int x) { return emu::trade(x, 0); }
static unsigned short emu_tile(uint64_t desc, bool rows_first, int outer, int k) {
    assert(desc >> 62 == 1);
    unsigned at = (desc & 0x3fff) << 4, across = (desc >> 16 & 0x3fff) << 4, group = (desc >> 32 & 0x3fff) << 4;
    if (rows_first) at += outer / 8 * group + outer % 8 * 128 + k * 2;
    else at += outer / 64 * across + outer % 64 * 2 + k / 8 * group + k % 8 * 128;
    at ^= (at >> 7 & 7) << 4;
    unsigned short x;
    memcpy(&x, gta_shared + at, 2);
    return x;
}
static inline float emu_number(const struct GtaF16 *, unsigned short x) { return gta_of_f16(x); }
static inline float emu_number(const struct GtaBF16 *, unsigned short x) { return emu_of_bf16(x); }
template <class H, int N> struct GtaWg {
    static void both(float *c, uint64_t a, uint64_t b, int add) {
        int warp = (int)(emu::now / 32 % 4), lane = (int)(emu::now % 32);
        for (int i = 0; i < N / 2; i++) {
            int row = warp * 16 + lane / 4 + (i >> 1 & 1) * 8, col = i / 4 * 8 + lane % 4 * 2 + (i & 1);
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += emu_number((H *)0, emu_tile(a, true, row, k)) * emu_number((H *)0, emu_tile(b, true, col, k));
            c[i] = (add ? c[i] : 0) + sum;
        }
        emu::meet_warp();
    }
    static void right(float *c, const unsigned *a, uint64_t b) {
        size_t w = emu::now / 32;
        int lane = (int)(emu::now % 32);
        for (int i = 0; i < 4; i++) emu::box[w][lane][i] = a[i];
        emu::meet_warp();
        for (int i = 0; i < N / 2; i++) {
            int row = lane / 4 + (i >> 1 & 1) * 8, col = i / 4 * 8 + lane % 4 * 2 + (i & 1);
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                uint64_t x = emu::box[w][(row & 7) * 4 + (k & 7) / 2][(row >> 3) + 2 * (k >> 3)];
                unsigned short half = (unsigned short)(x >> (16 * (k & 1)));
                sum += emu_number((H *)0, half) * emu_number((H *)0, emu_tile(b, false, col, k));
            }
            c[i] += sum;
        }
        emu::meet_warp();
    }
};

// Calls a kernel whose only parameter is a structure.
template <class P> static void emu_launch(void (*kernel)(P), const void *p, const unsigned *grid, unsigned block, size_t shared) {
    static void (*k)(P);
    k = kernel;
    emu::body = [](const void *p) { k(*(const P *)p); };
    emu::params = p;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                emu::run_block(block, shared);
            }
}
