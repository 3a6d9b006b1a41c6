
// The interpreter: elementwise work from a description in words (see `plain.rs`), for shapes, strides and types of any
// kind. Registers are words; what a word holds is known to the instruction.
struct gt_words_500 {
    u64 w[500];
};

GT_FN u64 gt_word(float x) { return __float_as_uint(x); }
GT_FN u64 gt_word(double x) { return (u64)__double_as_longlong(x); }
GT_FN u64 gt_word(i64 x) { return (u64)x; }
template <class T> GT_FN T gt_value(u64 w);
template <> GT_FN float gt_value<float>(u64 w) { return __uint_as_float((u32)w); }
template <> GT_FN double gt_value<double>(u64 w) { return __longlong_as_double((i64)w); }
template <> GT_FN i64 gt_value<i64>(u64 w) { return (i64)w; }

#define GT_EACH_DTYPE(dtype, X)                                                                                     \
    switch (dtype) {                                                                                                \
        case 0: X(D_bool) break;                                                                                    \
        case 1: X(D_u8) break;                                                                                      \
        case 2: X(D_i8) break;                                                                                      \
        case 3: X(D_i16) break;                                                                                     \
        case 4: X(D_i32) break;                                                                                     \
        case 5: X(D_i64) break;                                                                                     \
        case 6: X(D_f16) break;                                                                                     \
        case 7: X(D_bf16) break;                                                                                    \
        case 8: X(D_f32) break;                                                                                     \
        default: X(D_f64) break;                                                                                    \
    }

__device__ inline u64 gt_load_word(int dtype, const char* p, i64 at) {
    u64 out = 0;
#define X(D) out = gt_word(gt_get<D>(p, at));
    GT_EACH_DTYPE(dtype, X)
#undef X
    return out;
}
__device__ inline void gt_store_word(int dtype, char* p, i64 at, u64 word) {
#define X(D) gt_set<D>(p, at, gt_value<D::T>(word));
    GT_EACH_DTYPE(dtype, X)
#undef X
}
// A value of a computing type, rounded to an element type.
template <class S> __device__ u64 gt_rounded(int dtype, S x) {
    u64 out = 0;
#define X(D) out = gt_word(D::of(x));
    GT_EACH_DTYPE(dtype, X)
#undef X
    return out;
}
__device__ inline u64 gt_cast_word(int kind, int dtype, u64 w) {
    if (kind == 0) return gt_rounded(dtype, gt_value<float>(w));
    if (kind == 1) return gt_rounded(dtype, gt_value<double>(w));
    return gt_rounded(dtype, gt_value<i64>(w));
}
__device__ inline bool gt_true_word(int kind, u64 w) {
    return kind == 0 ? gt_value<float>(w) != 0 : kind == 1 ? gt_value<double>(w) != 0 : w != 0;
}

// Where element i of a space of `dims` is under `strides`.
__device__ inline i64 gt_place(const u64* dims, int nd, const u64* strides, u64 i) {
    i64 at = 0;
    for (int d = nd - 1; d > 0; d--) {
        u64 n = dims[d], q;
        if ((i | n) >> 32 == 0) q = (u32)i / (u32)n; else q = i / n;
        at += (i64)(i - q * n) * (i64)strides[d];
        i = q;
    }
    return nd > 0 ? at + (i64)i * (i64)strides[0] : 0;
}

// Runs the instructions from `pc` to `end` for element i.
__device__ __noinline__ void gt_exec(u64* r, const u64* pc, const u64* end, const u64* dims, int nd, u64 i, bool stores) {
    while (pc < end) {
        const u64 in = *pc++;
        const int op = in & 255, kind = in >> 8 & 255, dtype = in >> 16 & 255, sub = in >> 56;
        u64& out = r[in >> 24 & 255];
        const u64 a = r[in >> 32 & 255];
        const u64 b = r[in >> 40 & 255];
        switch (op) {
            case 0:
                out = gt_load_word(dtype, (const char*)pc[0], (i64)pc[1] + gt_place(dims, nd, pc + 2, i));
                pc += 2 + nd;
                break;
            case 1: out = *pc++; break;
            case 2: {
                i64 at = (i64)pc[2] + gt_place(dims, nd, pc + 3, i);
                if (dtype >= 6)
                    out = gt_rounded(dtype, __longlong_as_double((i64)pc[0]) + (double)at * __longlong_as_double((i64)pc[1]));
                else
                    out = gt_rounded(dtype, (i64)(pc[0] + (u64)at * pc[1]));
                pc += 3 + nd;
                break;
            }
            case 3:
                if (kind == 0) out = gt_rounded(dtype, gt_unary_real(sub, gt_value<float>(a)));
                else if (kind == 1) out = gt_word(gt_unary_real(sub, gt_value<double>(a)));
                else out = gt_rounded(dtype, gt_unary_int(sub, (i64)a));
                break;
            case 4:
                if (kind == 0) out = gt_rounded(dtype, gt_binary_real(sub, gt_value<float>(a), gt_value<float>(b)));
                else if (kind == 1) out = gt_word(gt_binary_real(sub, gt_value<double>(a), gt_value<double>(b)));
                else out = gt_rounded(dtype, gt_binary_int(sub, (i64)a, (i64)b));
                break;
            case 5:
                if (kind == 0) out = gt_compare(sub, gt_value<float>(a), gt_value<float>(b));
                else if (kind == 1) out = gt_compare(sub, gt_value<double>(a), gt_value<double>(b));
                else out = gt_compare(sub, (i64)a, (i64)b);
                break;
            case 6: {
                const u64 c = r[in >> 48 & 255];
                out = gt_true_word(kind, a) ? b : c;
                break;
            }
            case 7: out = gt_cast_word(kind, dtype, a); break;
            default:
                if (stores) gt_store_word(dtype, (char*)pc[0], (i64)pc[1] + gt_place(dims, nd, pc + 2, i), a);
                pc += 2 + nd;
                break;
        }
    }
}

GT_FN bool gt_failed(u64 flag) { return flag != 0 && *(volatile u64*)flag != 0; }

// A description too long for a launch is first written to memory.
extern "C" __global__ void gt_words(const __grid_constant__ gt_words_500 from, u64* to, i64 n) {
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) to[i] = from.w[i];
}

// One thread per element. Words: failure record, elements, dimensions, words of code, sizes, code.
template <int N> __device__ void gt_map_run(const u64* w) {
    if (gt_failed(w[0])) return;
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w[1]) return;
    u64 r[N];
    const u64* code = w + 4 + w[2];
    gt_exec(r, code, code + w[3], w + 4, (int)w[2], i, true);
}
extern "C" __global__ void __launch_bounds__(128) gt_map(const __grid_constant__ gt_words_500 d) { gt_map_run<24>(d.w); }
extern "C" __global__ void __launch_bounds__(128) gt_map_long(const u64* w) { gt_map_run<128>(w); }

template <class T> struct gt_row_room {
    gt_room<T> room;
    T parts[GT_MOST_PARTS];
};

// Reduces register `a` over the elements first..last of the row at `base`, in blocks.
template <int N, class J, class T>
__device__ T gt_row_fold(u64* r, const u64* code, const u64* end, const u64* dims, int nd, u64 base, u64 first, u64 last,
                         int a, int width, bool live, gt_row_room<T>& shared, int& turn) {
    const int t = threadIdx.x % width;
    T v = J::template none<T>();
    const u64 blocks = (last - first + GT_BLOCK - 1) / GT_BLOCK;
    for (u64 b = 0; b < blocks; b++) {
        const u64 start = first + b * GT_BLOCK, stop = start + GT_BLOCK < last ? start + GT_BLOCK : last;
        T acc[4] = {J::template none<T>(), J::template none<T>(), J::template none<T>(), J::template none<T>()};
        for (u64 e = start + t * 4; e < stop; e += 4 * width)
            for (int j = 0; j < 4; j++)
                if (e + j < stop) {
                    gt_exec(r, code, end, dims, nd, base + e + j, live);
                    acc[j] = J::join(acc[j], gt_value<T>(r[a]));
                }
        v = gt_row_join<J>(J::join(J::join(acc[0], acc[1]), J::join(acc[2], acc[3])), width, shared.room, turn);
        if (blocks > 1 && threadIdx.x == 0) shared.parts[b] = v;
    }
    if (blocks > 1) {
        __syncthreads();
        v = gt_parts_join<J>(shared.parts, (int)blocks);
    }
    return v;
}

// Rows, `width` threads each. Words: failure record, rows, length of a row, dimensions, threads of a row, parts of a row,
// where the parts' results go, sections; sizes; sections. A section is a word that describes it, its length, and its
// code: once per row, or for every element and perhaps ending in a reduction.
template <int N> __device__ void gt_rows_run(const u64* w) {
    __shared__ gt_row_room<double> room;
    if (gt_failed(w[0])) return;
    const int width = (int)w[4];
    const u64 id = (u64)blockIdx.x * (blockDim.x / width) + threadIdx.x / width, parts = w[5];
    const bool live = id < w[1] * parts;
    const u64 row = live ? id / parts : 0, part = live ? id % parts : 0;
    const u64 len = w[2], base = row * len;
    const u64 first = part * GT_BLOCK, last = parts > 1 && first + GT_BLOCK < len ? first + GT_BLOCK : len;
    const int nd = (int)w[3], t = threadIdx.x % width;
    const u64* dims = w + 8;
    const u64* at = dims + nd;
    u64 r[N];
    int turn = 0;
    for (u64 s = 0; s < w[7]; s++) {
        const u64 head = at[0];
        const u64 *code = at + 2, *end = code + at[1];
        at = end;
        if ((head & 255) == 0) {
            gt_exec(r, code, end, dims, nd, base, live && t == 0);
        } else if ((head >> 8 & 255) == 0) {
            for (u64 e = first + t; e < last; e += width) gt_exec(r, code, end, dims, nd, base + e, live);
        } else {
            const int joins = head >> 16 & 255, kind = head >> 24 & 255, a = head >> 32 & 255, dtype = head >> 48 & 255;
            u64& out = r[head >> 40 & 255];
#define FOLD(J, T)                                                                                                  \
    {                                                                                                               \
        T v = gt_row_fold<N, J, T>(r, code, end, dims, nd, base, first, last, a, width, live,                       \
                                   (gt_row_room<T>&)room, turn);                                                    \
        if (parts > 1) {                                                                                            \
            if (live && t == 0) ((T*)w[6])[id] = v;                                                                 \
        } else                                                                                                      \
            out = gt_rounded(dtype, v);                                                                             \
    }
#define EACH(T)                                                                                                     \
    if (joins == 0) FOLD(J_sum, T) else if (joins == 1) FOLD(J_prod, T) else if (joins == 2) FOLD(J_max, T) else FOLD(J_min, T)
            if (kind == 0) { EACH(float) } else if (kind == 1) { EACH(double) } else { EACH(i64) }
#undef FOLD
#undef EACH
        }
    }
}
extern "C" __global__ void __launch_bounds__(512) gt_rows(const __grid_constant__ gt_words_500 d) { gt_rows_run<24>(d.w); }
extern "C" __global__ void __launch_bounds__(512) gt_rows_long(const u64* w) { gt_rows_run<128>(w); }

// Columns: 32 of them and 8 lanes per block. Words: failure record, columns, rows, dimensions, blocks of rows, how to
// join (kind of reduction, computing type, register, element type), where the result goes, words of code; sizes; code.
template <int N, class J, class T> __device__ void gt_columns_of(const u64* w, u64* r) {
    __shared__ T room[GT_COLUMN_LANES * 32];
    const u64 columns = w[1], rows = w[2], blocks = w[4], across = (columns + 31) / 32;
    const int nd = (int)w[3], x = threadIdx.x % 32, y = threadIdx.x / 32, a = w[5] >> 16 & 255;
    const u64 block = blockIdx.x / across, c = blockIdx.x % across * 32 + x;
    const u64* code = w + 8 + nd;
    T v = J::template none<T>();
    if (c < columns)
        for (u64 i = block * GT_COLUMN_BLOCK + y; i < rows && i < (block + 1) * GT_COLUMN_BLOCK; i += GT_COLUMN_LANES) {
            gt_exec(r, code, code + w[7], w + 8, nd, i * columns + c, true);
            v = J::join(v, gt_value<T>(r[a]));
        }
    v = gt_columns_join<J>(v, room, x, y, 32);
    if (y == 0 && c < columns) {
        if (blocks > 1) {
            ((T*)w[6])[block * columns + c] = v;
        } else {
            const int dtype = w[5] >> 24 & 255;
            gt_store_word(dtype, (char*)w[6], c, gt_rounded(dtype, v));
        }
    }
}
template <int N> __device__ void gt_columns_run(const u64* w) {
    if (gt_failed(w[0])) return;
    u64 r[N];
    const int joins = w[5] & 255, kind = w[5] >> 8 & 255;
#define EACH(T)                                                                                                     \
    if (joins == 0) gt_columns_of<N, J_sum, T>(w, r);                                                               \
    else if (joins == 1) gt_columns_of<N, J_prod, T>(w, r);                                                         \
    else if (joins == 2) gt_columns_of<N, J_max, T>(w, r);                                                          \
    else gt_columns_of<N, J_min, T>(w, r);
    if (kind == 0) { EACH(float) } else if (kind == 1) { EACH(double) } else { EACH(i64) }
#undef EACH
}
extern "C" __global__ void __launch_bounds__(256) gt_columns(const __grid_constant__ gt_words_500 d) { gt_columns_run<24>(d.w); }
extern "C" __global__ void __launch_bounds__(256) gt_columns_long(const u64* w) { gt_columns_run<128>(w); }
