
// The rows of the op table. Written by the test `texts_are_those_of_the_table`.
template <class T> GT_FN T gt_u_neg(T x) { return -x; }
GT_FN i64 gt_u_neg(i64 y) { u64 x = y; return (i64)(-x); }
template <class T> GT_FN T gt_u_abs(T x) { return fabs(x); }
GT_FN i64 gt_u_abs(i64 x) { typedef i64 T; return (T)(fabs(x)); }
template <class T> GT_FN T gt_u_sign(T x) { return T((x > T(0)) - (x < T(0))); }
GT_FN i64 gt_u_sign(i64 x) { typedef i64 T; return (T)(T((x > T(0)) - (x < T(0)))); }
template <class T> GT_FN T gt_u_exp(T x) { x = gt_unknown(x); return exp(x); }
template <class T> GT_FN T gt_u_expm1(T x) { x = gt_unknown(x); return expm1(x); }
template <class T> GT_FN T gt_u_log(T x) { x = gt_unknown(x); return log(x); }
template <class T> GT_FN T gt_u_log1p(T x) { x = gt_unknown(x); return log1p(x); }
template <class T> GT_FN T gt_u_sqrt(T x) { return sqrt(x); }
template <class T> GT_FN T gt_u_rsqrt(T x) { x = gt_unknown(x); return rsqrt(x); }
template <class T> GT_FN T gt_u_recip(T x) { return T(1) / x; }
template <class T> GT_FN T gt_u_sin(T x) { x = gt_unknown(x); return sin(x); }
template <class T> GT_FN T gt_u_cos(T x) { x = gt_unknown(x); return cos(x); }
template <class T> GT_FN T gt_u_tanh(T x) { x = gt_unknown(x); return gt_tanh(x); }
template <class T> GT_FN T gt_u_sigmoid(T x) { x = gt_unknown(x); return gt_sigmoid(x); }
template <class T> GT_FN T gt_u_relu(T x) { return x > T(0) || x != x ? x : T(0); }
GT_FN i64 gt_u_relu(i64 x) { typedef i64 T; return (T)(x > T(0) || x != x ? x : T(0)); }
template <class T> GT_FN T gt_u_gelu(T x) { x = gt_unknown(x); return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440))); }
template <class T> GT_FN T gt_u_gelugrad(T x) { x = gt_unknown(x); return gt_gelu_grad(x); }
template <class T> GT_FN T gt_u_silu(T x) { x = gt_unknown(x); return x * gt_sigmoid(x); }
template <class T> GT_FN T gt_u_erf(T x) { x = gt_unknown(x); return erf(x); }
template <class T> GT_FN T gt_u_floor(T x) { return floor(x); }
GT_FN i64 gt_u_floor(i64 x) { typedef i64 T; return (T)(floor(x)); }
template <class T> GT_FN T gt_u_ceil(T x) { return ceil(x); }
GT_FN i64 gt_u_ceil(i64 x) { typedef i64 T; return (T)(ceil(x)); }
template <class T> GT_FN T gt_u_round(T x) { return rint(x); }
GT_FN i64 gt_u_round(i64 x) { typedef i64 T; return (T)(rint(x)); }
template <class T> GT_FN T gt_u_trunc(T x) { return trunc(x); }
GT_FN i64 gt_u_trunc(i64 x) { typedef i64 T; return (T)(trunc(x)); }
GT_FN i64 gt_u_not(i64 x) { typedef i64 T; return (T)(~x); }
template <class T> GT_FN T gt_u_asin(T x) { x = gt_unknown(x); return asin(x); }
template <class T> GT_FN T gt_u_acos(T x) { x = gt_unknown(x); return acos(x); }
template <class T> GT_FN T gt_u_atan(T x) { x = gt_unknown(x); return atan(x); }
template <class T> GT_FN T gt_u_lnot(T x) { return x == T(0); }
template <class T> GT_FN T gt_u_square(T x) { return x * x; }
template <class T> GT_FN T gt_u_cube(T x) { return x * x * x; }
template <class T> GT_FN T gt_b_add(T a, T b) { return a + b; }
GT_FN i64 gt_b_add(i64 c, i64 d) { u64 a = c, b = d; return (i64)(a + b); }
template <class T> GT_FN T gt_b_sub(T a, T b) { return a - b; }
GT_FN i64 gt_b_sub(i64 c, i64 d) { u64 a = c, b = d; return (i64)(a - b); }
template <class T> GT_FN T gt_b_mul(T a, T b) { return a * b; }
GT_FN i64 gt_b_mul(i64 c, i64 d) { u64 a = c, b = d; return (i64)(a * b); }
template <class T> GT_FN T gt_b_div(T a, T b) { return a / b; }
template <class T> GT_FN T gt_b_floordiv(T a, T b) { return gt_floor_div(a, b); }
GT_FN i64 gt_b_floordiv(i64 a, i64 b) { return gt_floor_div(a, b); }
template <class T> GT_FN T gt_b_rem(T a, T b) { return gt_mod(a, b); }
GT_FN i64 gt_b_rem(i64 a, i64 b) { return gt_mod(a, b); }
template <class T> GT_FN T gt_b_pow(T a, T b) { a = gt_unknown(a); return pow(a, b); }
GT_FN i64 gt_b_pow(i64 a, i64 b) { return pow(a, b); }
template <class T> GT_FN T gt_b_max(T a, T b) { return a > b || a != a ? a : b; }
GT_FN i64 gt_b_max(i64 a, i64 b) { return a > b || a != a ? a : b; }
template <class T> GT_FN T gt_b_min(T a, T b) { return a < b || a != a ? a : b; }
GT_FN i64 gt_b_min(i64 a, i64 b) { return a < b || a != a ? a : b; }
template <class T> GT_FN bool gt_b_eq(T a, T b) { return a == b; }
GT_FN bool gt_b_eq(i64 a, i64 b) { return a == b; }
template <class T> GT_FN bool gt_b_ne(T a, T b) { return a != b; }
GT_FN bool gt_b_ne(i64 a, i64 b) { return a != b; }
template <class T> GT_FN bool gt_b_lt(T a, T b) { return a < b; }
GT_FN bool gt_b_lt(i64 a, i64 b) { return a < b; }
template <class T> GT_FN bool gt_b_le(T a, T b) { return a <= b; }
GT_FN bool gt_b_le(i64 a, i64 b) { return a <= b; }
template <class T> GT_FN bool gt_b_gt(T a, T b) { return a > b; }
GT_FN bool gt_b_gt(i64 a, i64 b) { return a > b; }
template <class T> GT_FN bool gt_b_ge(T a, T b) { return a >= b; }
GT_FN bool gt_b_ge(i64 a, i64 b) { return a >= b; }
GT_FN i64 gt_b_and(i64 a, i64 b) { return a & b; }
GT_FN i64 gt_b_or(i64 a, i64 b) { return a | b; }
GT_FN i64 gt_b_xor(i64 a, i64 b) { return a ^ b; }
template <class T> GT_FN T gt_b_atan2(T a, T b) { a = gt_unknown(a); return atan2(a, b); }
