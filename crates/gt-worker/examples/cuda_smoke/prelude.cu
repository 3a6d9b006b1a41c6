// What every generated kernel may use: how each element type is loaded, rounded and stored, and the functions the op
// table names. Integers and bool compute as i64, half types as float.
typedef long long i64;

#define GT_TYPE(name, E, T)                                                                                 \
    __device__ __forceinline__ T load_##name(const void* p, i64 i) { return (T)((const E*)p)[i]; }          \
    __device__ __forceinline__ T round_##name(T x) { return (T)(E)x; }                                      \
    __device__ __forceinline__ void store_##name(void* p, i64 i, T x) { ((E*)p)[i] = (E)x; }

GT_TYPE(bool, bool, i64)
GT_TYPE(u8, unsigned char, i64)
GT_TYPE(i8, signed char, i64)
GT_TYPE(i16, short, i64)
GT_TYPE(i32, int, i64)
GT_TYPE(i64, long long, i64)
GT_TYPE(f32, float, float)
GT_TYPE(f64, double, double)

// Half types as bits, so that no CUDA header is needed.
struct half_f16 {
    unsigned short bits;
    __device__ __forceinline__ explicit half_f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
    __device__ __forceinline__ explicit operator float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
};
struct half_bf16 {
    unsigned short bits;
    __device__ __forceinline__ explicit half_bf16(float x) {
        unsigned int b = __float_as_uint(x);
        bits = x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
    }
    __device__ __forceinline__ explicit operator float() const { return __uint_as_float((unsigned int)bits << 16); }
};
GT_TYPE(f16, half_f16, float)
GT_TYPE(bf16, half_bf16, float)

// Rows of the table that call C's functions on reals also stand for integers.
__device__ __forceinline__ i64 fabs(i64 x) { return x < 0 ? (i64)(0ull - (unsigned long long)x) : x; }
__device__ __forceinline__ i64 floor(i64 x) { return x; }
__device__ __forceinline__ i64 ceil(i64 x) { return x; }
__device__ __forceinline__ i64 rint(i64 x) { return x; }
__device__ __forceinline__ i64 trunc(i64 x) { return x; }
__device__ inline i64 pow(i64 a, i64 b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
    unsigned long long base = a, out = 1;
    for (; b > 0; b >>= 1, base *= base)
        if (b & 1) out *= base;
    return (i64)out;
}

template <typename T> __device__ __forceinline__ T gt_mod(T a, T b) {
    T r = fmod(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}
template <> __device__ __forceinline__ i64 gt_mod(i64 a, i64 b) {
    i64 r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <typename T> __device__ __forceinline__ T gt_floor_div(T a, T b) {
    if (b == T(0)) return a / b;
    T r = fmod(a, b);
    return rint((a - r) / b) - (r != T(0) && (r < T(0)) != (b < T(0)) ? T(1) : T(0));
}
template <> __device__ __forceinline__ i64 gt_floor_div(i64 a, i64 b) {
    if (b == 0) return 0;
    if (b == -1) return (i64)(0ull - (unsigned long long)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
template <typename T> __device__ __forceinline__ T gt_tanh(T x) { return tanh(x); }
template <typename T> __device__ __forceinline__ T gt_gelu_grad(T x) {
    T bell = T(0.39894228040143267794) * exp(T(-0.5) * x * x);
    return T(0.5) * (T(1) + erf(x * T(0.70710678118654752440))) + (bell == T(0) ? T(0) : x * bell);
}
