// Runs CUDA kernels on the CPU, one block after the other, so that tests can hold them against the reference where there
// is no GPU. The threads of a block are fibers; a barrier, or an exchange within a warp, hands over to the next one.
#pragma once
#define GT_EMULATE 1
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>
using namespace std;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define GT_SHARED(name) unsigned char* name = gt_emulated::shared

struct uint2 { unsigned int x, y; } __align__(8);
struct uint4 { unsigned int x, y, z, w; } __align__(16);
struct gt_dim { unsigned int x, y, z; };

namespace gt_emulated {
struct Fiber {
    ucontext_t context;
    bool done;
};
inline gt_dim thread, block, threads, grid;
alignas(16) inline unsigned char shared[232448];
inline std::vector<Fiber> fibers;
inline std::vector<char> stacks;
inline ucontext_t home;
inline unsigned now, alive, dynamic;
inline void (*body)(void*);
inline void* given;
inline unsigned arrived, passed;
inline unsigned warp_arrived[64], warp_passed[64];
alignas(16) inline char exchange[2048][16];
constexpr size_t STACK = 64 << 10;

inline void enter() {
    body(given);
    fibers[now].done = true;
    alive--;
    swapcontext(&fibers[now].context, &home);
}
// Lets the others run.
inline void pass() {
    swapcontext(&fibers[now].context, &home);
    thread.x = now;
}
inline void wait(unsigned& arrived, unsigned& passed, unsigned all) {
    const unsigned mine = passed;
    if (++arrived == all) {
        arrived = 0;
        passed++;
        return;
    }
    for (unsigned turns = 0; passed == mine; turns++) {
        if (turns > 4096) {
            fprintf(stderr, "emulate: a barrier that not all threads reach\n");
            abort();
        }
        pass();
    }
}
inline unsigned warp_size() {
    const unsigned first = now / 32 * 32;
    return threads.x - first < 32 ? threads.x - first : 32;
}
inline void warp_wait() { wait(warp_arrived[now / 32], warp_passed[now / 32], warp_size()); }

inline void run_block() {
    const unsigned n = threads.x;
    if (fibers.size() < n) fibers.resize(n);
    if (stacks.size() < n * STACK) stacks.resize(n * STACK);
    memset(shared, 0xff, dynamic);
    arrived = passed = 0;
    memset(warp_arrived, 0, sizeof warp_arrived);
    memset(warp_passed, 0, sizeof warp_passed);
    alive = n;
    for (unsigned t = 0; t < n; t++) {
        Fiber& f = fibers[t];
        f.done = false;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stacks.data() + t * STACK;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        makecontext(&f.context, enter, 0);
    }
    while (alive > 0)
        for (unsigned t = 0; t < n; t++)
            if (!fibers[t].done) {
                now = t;
                thread.x = t;
                swapcontext(&home, &fibers[t].context);
            }
}
template <class... A> struct Call {
    void (*f)(A...);
    void** args;
    template <size_t... I> void go(std::index_sequence<I...>) { f(*(std::remove_reference_t<A>*)args[I]...); }
};
template <class... A> inline void run(void (*f)(A...), const unsigned* size, void** args) {
    grid = {size[0], size[1], size[2]};
    threads = {size[3], 1, 1};
    dynamic = size[4];
    Call<A...> call{f, args};
    given = &call;
    body = [](void* c) { ((Call<A...>*)c)->go(std::index_sequence_for<A...>{}); };
    for (block.z = 0; block.z < grid.z; block.z++)
        for (block.y = 0; block.y < grid.y; block.y++)
            for (block.x = 0; block.x < grid.x; block.x++) run_block();
}
}  // namespace gt_emulated

#define threadIdx gt_emulated::thread
#define blockIdx gt_emulated::block
#define blockDim gt_emulated::threads
#define gridDim gt_emulated::grid

inline void __syncthreads() { gt_emulated::wait(gt_emulated::arrived, gt_emulated::passed, gt_emulated::threads.x); }
inline void __syncwarp(unsigned = ~0u) { gt_emulated::warp_wait(); }
inline void __threadfence() {}
template <class T> T gt_emulated_exchange(T v, unsigned from) {
    memcpy(gt_emulated::exchange[gt_emulated::now], &v, sizeof v);
    gt_emulated::warp_wait();
    T out;
    memcpy(&out, gt_emulated::exchange[gt_emulated::now / 32 * 32 + from % 32], sizeof out);
    gt_emulated::warp_wait();
    return out;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int m) { return gt_emulated_exchange(v, gt_emulated::now % 32 ^ m); }
template <class T> T __shfl_sync(unsigned, T v, int from) { return gt_emulated_exchange(v, from); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned by) {
    const unsigned lane = gt_emulated::now % 32;
    return gt_emulated_exchange(v, lane >= by ? lane - by : lane);
}
template <class T> T __shfl_down_sync(unsigned, T v, unsigned by) {
    const unsigned lane = gt_emulated::now % 32;
    return gt_emulated_exchange(v, lane + by < 32 ? lane + by : lane);
}
template <class T> T atomicCAS(T* p, T old, T x) {
    T was = *p;
    if (was == old) *p = x;
    return was;
}
template <class T> T atomicAdd(T* p, T x) {
    T was = *p;
    *p += x;
    return was;
}
template <class A, class B> A bits_as(B x) {
    A out;
    static_assert(sizeof(A) == sizeof(B));
    memcpy(&out, &x, sizeof out);
    return out;
}
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
inline float __int_as_float(int x) { return bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return bits_as<double>(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
template <class T> T gt_unknown(T x) { return x; }
inline float gt_ex2(float x) { return exp2f(x); }
inline float gt_rcp(float x) { return 1.0f / x; }
inline unsigned short gt_bf16_of(float x) {
    unsigned b = __float_as_uint(x);
    return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
inline unsigned short gt_f16_of(float x) {
    _Float16 h = (_Float16)x;
    return x != x ? 0x7fff : bits_as<unsigned short>(h);
}
inline float gt_of_f16(unsigned short b) { return (float)bits_as<_Float16>(b); }
