
// The rows by number. Written by the test `texts_are_those_of_the_table`.
template <class T> __device__ T gt_unary_real(int op, T x) {
    switch (op) {
        case 0: return gt_u_neg(x);
        case 1: return gt_u_abs(x);
        case 2: return gt_u_sign(x);
        case 3: return gt_u_exp(x);
        case 4: return gt_u_expm1(x);
        case 5: return gt_u_log(x);
        case 6: return gt_u_log1p(x);
        case 7: return gt_u_sqrt(x);
        case 8: return gt_u_rsqrt(x);
        case 9: return gt_u_recip(x);
        case 10: return gt_u_sin(x);
        case 11: return gt_u_cos(x);
        case 12: return gt_u_tanh(x);
        case 13: return gt_u_sigmoid(x);
        case 14: return gt_u_relu(x);
        case 15: return gt_u_gelu(x);
        case 16: return gt_u_gelugrad(x);
        case 17: return gt_u_silu(x);
        case 18: return gt_u_erf(x);
        case 19: return gt_u_floor(x);
        case 20: return gt_u_ceil(x);
        case 21: return gt_u_round(x);
        case 22: return gt_u_trunc(x);
        case 24: return gt_u_asin(x);
        case 25: return gt_u_acos(x);
        case 26: return gt_u_atan(x);
        case 28: return gt_u_square(x);
        case 29: return gt_u_cube(x);
        default: return x;
    }
}
__device__ inline i64 gt_unary_int(int op, i64 x) {
    switch (op) {
        case 0: return gt_u_neg(x);
        case 1: return gt_u_abs(x);
        case 2: return gt_u_sign(x);
        case 14: return gt_u_relu(x);
        case 19: return gt_u_floor(x);
        case 20: return gt_u_ceil(x);
        case 21: return gt_u_round(x);
        case 22: return gt_u_trunc(x);
        case 23: return gt_u_not(x);
        case 27: return gt_u_lnot(x);
        default: return x;
    }
}
template <class T> __device__ T gt_binary_real(int op, T a, T b) {
    switch (op) {
        case 0: return gt_b_add(a, b);
        case 1: return gt_b_sub(a, b);
        case 2: return gt_b_mul(a, b);
        case 3: return gt_b_div(a, b);
        case 4: return gt_b_floordiv(a, b);
        case 5: return gt_b_rem(a, b);
        case 6: return gt_b_pow(a, b);
        case 7: return gt_b_max(a, b);
        case 8: return gt_b_min(a, b);
        case 18: return gt_b_atan2(a, b);
        default: return a;
    }
}
__device__ inline i64 gt_binary_int(int op, i64 a, i64 b) {
    switch (op) {
        case 0: return gt_b_add(a, b);
        case 1: return gt_b_sub(a, b);
        case 2: return gt_b_mul(a, b);
        case 4: return gt_b_floordiv(a, b);
        case 5: return gt_b_rem(a, b);
        case 6: return gt_b_pow(a, b);
        case 7: return gt_b_max(a, b);
        case 8: return gt_b_min(a, b);
        case 15: return gt_b_and(a, b);
        case 16: return gt_b_or(a, b);
        case 17: return gt_b_xor(a, b);
        default: return a;
    }
}
template <class T> __device__ bool gt_compare(int op, T a, T b) {
    switch (op) {
        case 9: return gt_b_eq(a, b);
        case 10: return gt_b_ne(a, b);
        case 11: return gt_b_lt(a, b);
        case 12: return gt_b_le(a, b);
        case 13: return gt_b_gt(a, b);
        case 14: return gt_b_ge(a, b);
        default: return false;
    }
}
