// An emulation that knows nothing of attention leaves it out.
#if !defined(GTA_PARTS) && (!defined(GT_EMULATE) || defined(GTA_FN))
#define GTA_PARTS
// What the kernels of attention share: their parameters, element types, and the instructions they are written with.

typedef long long gta_int;
typedef unsigned int gta_word;
typedef unsigned short gta_half;

// A tensor [batch, head, row, element]; distances in elements, those of a row's elements are 1.
struct GtaView {
    const char *at;
    gta_int start, batch, head, row;
};

// A result [batch, head, row, element], batches counted over all launches; distances as above.
struct GtaResult {
    char *at;
    gta_int batch, head, row;
};

struct GtaParams {
    GtaView q, k, v, out, dout, lse, mask;
    gta_int mask_col;
    gta_int mask_kind; // 0: none, 1: true where seen, 2: added, of q's type, 3: added, f32.
    GtaResult to[3]; // out and lse, or dq, dk and dv.
    char *delta; // Dense [batch, head, row]: scalar products of dout and out; after them other numbers of rows.
    const unsigned long long *failed;
    gta_int batches, heads, key_heads, rows, cols, d, e, causal;
    gta_int first, total; // The first of these batches among all of them, and how many those are.
    double scale;
};

#ifndef GT_EMULATE
#define GTA_FN __device__ __forceinline__
extern __shared__ __align__(1024) unsigned char gta_shared[];

GTA_FN float gta_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
GTA_FN float gta_of_f16(gta_half b) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(b)); return x; }
GTA_FN gta_half gta_to_f16(float x) { gta_half b; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(x)); return b; }
GTA_FN gta_half gta_to_bf16(float x) { gta_half b; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x)); return b; }
GTA_FN gta_word gta_two_f16(float lo, float hi) {
    gta_word b;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(hi), "f"(lo));
    return b;
}
GTA_FN gta_word gta_two_bf16(float lo, float hi) {
    gta_word b;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(hi), "f"(lo));
    return b;
}
typedef gta_word gta_addr; // In shared memory.
GTA_FN gta_addr gta_address(const void *at) { return (gta_addr)__cvta_generic_to_shared(at); }
GTA_FN gta_word gta_shared_offset(gta_addr at) { return at; }
// c += a b, 16 x 16 by 16 x 8, spread over the warp.
GTA_FN void gta_mma_f16(float *c, const gta_word *a, gta_word b0, gta_word b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
GTA_FN void gta_mma_bf16(float *c, const gta_word *a, gta_word b0, gta_word b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
GTA_FN void gta_ldmatrix(gta_word *r, gta_addr from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}
GTA_FN void gta_ldmatrix_trans(gta_word *r, gta_addr from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}
// Copies 16 bytes aside, or zeros where `bytes` is 0.
GTA_FN void gta_copy16(gta_addr at, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
GTA_FN void gta_copy4(gta_addr at, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
GTA_FN void gta_copies_sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }
GTA_FN void gta_copies_done() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
#endif

#define GTA_LOG2E 1.4426950408889634f
#define GTA_LN2 0.6931471805599453f

GTA_FN float gta_fma(float a, float b, float c) { return fmaf(a, b, c); }
GTA_FN double gta_fma(double a, double b, double c) { return fma(a, b, c); }
GTA_FN float gta_exp(float x) { return expf(x); }
GTA_FN double gta_exp(double x) { return exp(x); }
GTA_FN float gta_log(float x) { return logf(x); }
GTA_FN double gta_log(double x) { return log(x); }
GTA_FN float gta_max(float a, float b) { return fmaxf(a, b); }
GTA_FN double gta_max(double a, double b) { return fmax(a, b); }
template <class T> GTA_FN T gta_least() { return (T)__uint_as_float(0xff800000u); }

// Element types: E in memory, T to compute in.
struct GtaF16 {
    typedef gta_half E;
    typedef float T;
    static GTA_FN float get(gta_half x) { return gta_of_f16(x); }
    static GTA_FN gta_half put(float x) { return gta_to_f16(x); }
    static GTA_FN gta_word two(float lo, float hi) { return gta_two_f16(lo, hi); }
    static GTA_FN void mma(float *c, const gta_word *a, gta_word b0, gta_word b1) { gta_mma_f16(c, a, b0, b1); }
};
struct GtaBF16 {
    typedef gta_half E;
    typedef float T;
    static GTA_FN float get(gta_half x) { return __uint_as_float((gta_word)x << 16); }
    static GTA_FN gta_half put(float x) { return gta_to_bf16(x); }
    static GTA_FN gta_word two(float lo, float hi) { return gta_two_bf16(lo, hi); }
    static GTA_FN void mma(float *c, const gta_word *a, gta_word b0, gta_word b1) { gta_mma_bf16(c, a, b0, b1); }
};
template <class N> struct GtaSame {
    typedef N E;
    typedef N T;
    static GTA_FN N get(N x) { return x; }
    static GTA_FN N put(N x) { return x; }
};
typedef GtaSame<float> GtaF32;
typedef GtaSame<double> GtaF64;

// The first element of a row.
template <class E> GTA_FN const E *gta_row(const GtaView &x, gta_int batch, gta_int head, gta_int row) {
    return (const E *)x.at + (x.start + batch * x.batch + head * x.head + row * x.row);
}

// The first element of a row of a result.
template <class E> GTA_FN E *gta_to(const GtaParams &p, int i, gta_int batch, gta_int head, gta_int row) {
    const GtaResult &to = p.to[i];
    return (E *)to.at + ((p.first + batch) * to.batch + head * to.head + row * to.row);
}

// A score with its mask.
template <class D> GTA_FN typename D::T gta_masked(
    typename D::T s, int kind, const GtaParams &p, gta_int batch, gta_int head, gta_int row, gta_int col) {
    typedef typename D::T T;
    if (kind == 0) return s;
    gta_int at = p.mask.start + batch * p.mask.batch + head * p.mask.head + row * p.mask.row + col * p.mask_col;
    if (kind == 1) return ((const unsigned char *)p.mask.at)[at] ? s : gta_least<T>();
    if (kind == 2) return s + D::get(((const typename D::E *)p.mask.at)[at]);
    return s + (T)((const float *)p.mask.at)[at];
}

GTA_FN bool gta_stop(const GtaParams &p) { return p.failed && *p.failed; }

template <class T> GTA_FN T gta_warp_sum(T x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
template <class T> GTA_FN T gta_warp_max(T x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x = gta_max(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
#endif
