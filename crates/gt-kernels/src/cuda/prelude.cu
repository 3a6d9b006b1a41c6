// What every kernel builds on: how each element type is read, rounded and written, the functions the op table names,
// and how values are joined in reductions. Integers and bool compute as i64, half types as float.
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

#define GT_FN __device__ __forceinline__
#ifndef GT_EMULATE
// Made texts declare indices that not all of their parts use.
#pragma nv_diag_suppress 177
#define GT_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
// A number of which the compiler knows nothing: where it can work out a function, be it on one path of a branch, it rounds
// otherwise than the device (C7). The assembler does so as well, and looks through this; `gt_joined` is for what it may know.
GT_FN float gt_unknown(float x) { asm("" : "+f"(x)); return x; }
GT_FN double gt_unknown(double x) { asm("" : "+d"(x)); return x; }
GT_FN float gt_ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
GT_FN float gt_rcp(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
GT_FN u16 gt_f16_of(float x) { u16 b; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(x)); return b; }
GT_FN float gt_of_f16(u16 b) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(b)); return x; }
GT_FN u16 gt_bf16_of(float x) { u16 b; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x)); return b; }
GT_FN u32 gt_two_f16(float lo, float hi) {
    u32 b;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(hi), "f"(lo));
    return b;
}
GT_FN u32 gt_two_bf16(float lo, float hi) {
    u32 b;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(hi), "f"(lo));
    return b;
}
#endif

GT_FN float gt_joined(float x, i64 bits) { return __uint_as_float(__float_as_uint(x) | (u32)bits); }
GT_FN double gt_joined(double x, i64 bits) { return __longlong_as_double(__double_as_longlong(x) | bits); }
GT_FN float gt_of_bf16(u16 b) { return __uint_as_float((u32)b << 16); }

// Conversions between computing types, as the language has them: to integers by truncation and saturation with NaN as 0,
// to singles through the double.
GT_FN i64 gt_i64(i64 x) { return x; }
GT_FN i64 gt_i64(bool x) { return x; }
GT_FN i64 gt_i64(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffll;
    if (x < -9223372036854775808.0) return -0x7fffffffffffffffll - 1;
    return (i64)x;
}
GT_FN i64 gt_i64(float x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0f) return 0x7fffffffffffffffll;
    if (x < -9223372036854775808.0f) return -0x7fffffffffffffffll - 1;
    return (i64)x;
}
GT_FN double gt_f64(i64 x) { return (double)x; }
GT_FN double gt_f64(bool x) { return (double)x; }
GT_FN double gt_f64(double x) { return x; }
GT_FN double gt_f64(float x) { return (double)x; }
GT_FN float gt_f32(float x) { return x; }
GT_FN float gt_f32(bool x) { return (float)x; }
GT_FN float gt_f32(double x) { return (float)x; }
GT_FN float gt_f32(i64 x) { return (float)(double)x; }
// The single that rounds to a half as the number itself would: what does not fit is made odd in its last bit.
GT_FN float gt_odd(float x) { return x; }
GT_FN float gt_odd(bool x) { return (float)x; }
GT_FN float gt_odd(double x) {
    float y = (float)x;
    if ((double)y == x || y != y || fabs(y) == __int_as_float(0x7f800000)) return y;
    u32 bits = __float_as_uint(y);
    if (fabs((double)y) > fabs(x)) bits -= 1;
    return __uint_as_float(bits | 1);
}
GT_FN float gt_odd(i64 x) { return gt_odd((double)x); }
GT_FN i64 gt_truth(i64 x) { return x != 0; }
GT_FN i64 gt_truth(bool x) { return x; }
GT_FN i64 gt_truth(float x) { return x != 0.0f; }
GT_FN i64 gt_truth(double x) { return x != 0.0; }

// An element type: E in memory, T to compute in. `of` takes any computing type to the T that stands for this type, rounded.
#define GT_TYPE(name, EE, TT, GET, PUT, OF)                                                                         \
    struct D_##name {                                                                                               \
        typedef EE E;                                                                                               \
        typedef TT T;                                                                                               \
        GT_FN static T get(E x) { return GET; }                                                                     \
        GT_FN static E put(T x) { return PUT; }                                                                     \
        template <class S> GT_FN static T of(S x) { return OF; }                                                    \
    };
GT_TYPE(bool, unsigned char, i64, (i64)(x != 0), (unsigned char)(x != 0), gt_truth(x))
GT_TYPE(u8, unsigned char, i64, (i64)x, (unsigned char)x, (i64)(unsigned char)gt_i64(x))
GT_TYPE(i8, signed char, i64, (i64)x, (signed char)x, (i64)(signed char)gt_i64(x))
GT_TYPE(i16, short, i64, (i64)x, (short)x, (i64)(short)gt_i64(x))
GT_TYPE(i32, int, i64, (i64)x, (int)x, (i64)(int)gt_i64(x))
GT_TYPE(i64, i64, i64, x, x, gt_i64(x))
GT_TYPE(f16, u16, float, gt_of_f16(x), gt_f16_of(x), gt_of_f16(gt_f16_of(gt_odd(x))))
GT_TYPE(bf16, u16, float, gt_of_bf16(x), gt_bf16_of(x), gt_of_bf16(gt_bf16_of(gt_odd(x))))
GT_TYPE(f32, float, float, x, x, gt_f32(x))
GT_TYPE(f64, double, double, x, x, gt_f64(x))

// V elements next to each other, read or written by the widest accesses their size allows.
template <int BYTES> struct gt_raw;
template <> struct gt_raw<1> { typedef unsigned char R; };
template <> struct gt_raw<2> { typedef u16 R; };
template <> struct gt_raw<4> { typedef u32 R; };
template <> struct gt_raw<8> { typedef uint2 R; };
template <> struct gt_raw<16> { typedef uint4 R; };
template <class E, int V> union gt_pack {
    static constexpr int BYTES = sizeof(E) * V;
    static constexpr int WIDE = BYTES > 16 ? 16 : BYTES;
    typedef typename gt_raw<WIDE>::R R;
    R raw[BYTES / WIDE];
    E e[V];
};
template <class D, int V> GT_FN void gt_load(const char* p, i64 at, typename D::T* x) {
    typedef gt_pack<typename D::E, V> P;
    P q;
    const typename P::R* from = (const typename P::R*)(p + at * (i64)sizeof(typename D::E));
#pragma unroll
    for (int k = 0; k < P::BYTES / P::WIDE; k++) q.raw[k] = from[k];
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = D::get(q.e[j]);
}
template <class D, int V> struct gt_put_all {
    GT_FN static void put(gt_pack<typename D::E, V>& q, const typename D::T* x) {
#pragma unroll
        for (int j = 0; j < V; j++) q.e[j] = D::put(x[j]);
    }
};
#ifndef GT_EMULATE
#define GT_PUT_TWO(name)                                                                                            \
    template <int V> GT_FN void gt_put_##name(gt_pack<u16, V>& q, const float* x) {                                 \
        union { u32 w[V / 2]; typename gt_pack<u16, V>::R raw[sizeof(q.raw) / sizeof(q.raw[0])]; } u;               \
        _Pragma("unroll") for (int j = 0; j < V / 2; j++) u.w[j] = gt_two_##name(x[2 * j], x[2 * j + 1]);           \
        _Pragma("unroll") for (int k = 0; k < (int)(sizeof(q.raw) / sizeof(q.raw[0])); k++) q.raw[k] = u.raw[k];    \
    }                                                                                                               \
    template <> struct gt_put_all<D_##name, 2> { GT_FN static void put(gt_pack<u16, 2>& q, const float* x) { gt_put_##name<2>(q, x); } }; \
    template <> struct gt_put_all<D_##name, 4> { GT_FN static void put(gt_pack<u16, 4>& q, const float* x) { gt_put_##name<4>(q, x); } }; \
    template <> struct gt_put_all<D_##name, 8> { GT_FN static void put(gt_pack<u16, 8>& q, const float* x) { gt_put_##name<8>(q, x); } };
GT_PUT_TWO(f16)
GT_PUT_TWO(bf16)
#endif
template <class D, int V> GT_FN void gt_store(char* p, i64 at, const typename D::T* x) {
    typedef gt_pack<typename D::E, V> P;
    P q;
    gt_put_all<D, V>::put(q, x);
    typename P::R* to = (typename P::R*)(p + at * (i64)sizeof(typename D::E));
#pragma unroll
    for (int k = 0; k < P::BYTES / P::WIDE; k++) to[k] = q.raw[k];
}
template <class D> GT_FN typename D::T gt_get(const char* p, i64 at) { return D::get(((const typename D::E*)p)[at]); }
template <class D> GT_FN void gt_set(char* p, i64 at, typename D::T x) { ((typename D::E*)p)[at] = D::put(x); }

// Functions of the op table. Those of C that stand for integers too:
GT_FN i64 fabs(i64 x) { return x < 0 ? (i64)(0ull - (u64)x) : x; }
GT_FN i64 floor(i64 x) { return x; }
GT_FN i64 ceil(i64 x) { return x; }
GT_FN i64 rint(i64 x) { return x; }
GT_FN i64 trunc(i64 x) { return x; }
__device__ inline i64 pow(i64 a, i64 b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
    u64 base = a, out = 1;
    for (; b > 0; b >>= 1, base *= base)
        if (b & 1) out *= base;
    return (i64)out;
}
template <class T> GT_FN T gt_mod(T a, T b) {
    T r = fmod(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}
template <> GT_FN i64 gt_mod(i64 a, i64 b) {
    i64 r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class T> GT_FN T gt_floor_div(T a, T b) {
    if (b == T(0)) return a / b;
    T r = fmod(a, b);
    return rint((a - r) / b) - (r != T(0) && (r < T(0)) != (b < T(0)) ? T(1) : T(0));
}
template <> GT_FN i64 gt_floor_div(i64 a, i64 b) {
    if (b == 0) return 0;
    if (b == -1) return (i64)(0ull - (u64)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
GT_FN double gt_tanh(double x) { return tanh(x); }
// Within three units in the last place of the true value. Small arguments by a polynomial in x * x, others by 1 - 2 / (exp(2x) + 1).
GT_FN float gt_tanh(float x) {
    float a = fabsf(x);
    float big = __fmaf_rn(-2.0f, gt_rcp(gt_ex2(a * 2.885390081777927f) + 1.0f), 1.0f);
    float s = x * x;
    float p = __fmaf_rn(s, -0.006274237763136625f, 0.021071678027510643f);
    p = __fmaf_rn(s, p, -0.05385230854153633f);
    p = __fmaf_rn(s, p, 0.13332585990428925f);
    p = __fmaf_rn(s, p, -0.33333316445350647f);
    float small = __fmaf_rn(x * s, p, x);
    return a < 0.55f ? small : copysignf(big, x);
}
// Within three units in the last place: an exact division costs as much as all the rest of a gated product.
GT_FN float gt_sigmoid(float x) { return gt_rcp(1.0f + expf(-x)); }
GT_FN double gt_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
template <class T> GT_FN T gt_gelu_grad(T x) {
    T cdf = T(0.5) * (T(1) + erf(x * T(0.70710678118654752440)));
    T bell = T(0.39894228040143267794) * exp(T(-0.5) * x * x);
    // Far out the bell is zero, and infinity times that would be NaN.
    return bell == T(0) ? cdf : cdf + x * bell;
}
