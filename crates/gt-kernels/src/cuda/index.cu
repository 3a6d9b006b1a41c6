
// Steps that are no elementwise work. Each takes a description in words (see `works.rs`). Indices have been checked by an
// earlier step; one that is out of bounds is passed over, since the check's failure is known to the host only later.
struct gt_words_64 {
    u64 w[64];
};
#define GT_STEP(name, threads) extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ gt_words_64 d)

GT_FN i64 gt_index(int dtype, u64 p, i64 at) { return (i64)gt_load_word(dtype, (const char*)p, at); }
GT_FN u64 gt_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
GT_FN u64 gt_quotient(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u64)((u32)a / (u32)b) : a / b; }

// Words: failure record, what to write there, type, address, start, elements, least, most.
GT_STEP(gt_check_index, 256) {
    const u64* w = d.w;
    for (u64 i = gt_thread(); i < w[5]; i += (u64)gridDim.x * blockDim.x) {
        i64 x = gt_index((int)w[2], w[3], (i64)(w[4] + i));
        if (x < (i64)w[6] || x >= (i64)w[7]) atomicCAS((u64*)w[0], (u64)0, w[1]);
    }
}

// Words: failure record, what to write there, type, address (0: a number), start or the number, elements.
GT_STEP(gt_check_nonzero, 256) {
    const u64* w = d.w;
    for (u64 i = gt_thread(); i < w[5]; i += (u64)gridDim.x * blockDim.x) {
        u64 x = w[3] == 0 ? w[4] : gt_load_word((int)w[2], (const char*)w[3], (i64)(w[4] + i));
        if (x == 0) atomicCAS((u64*)w[0], (u64)0, w[1]);
    }
}

// Philox4x32-10 of the counter (block, 0).
GT_FN void gt_philox(u64 key, u64 counter, u32* c) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    c[0] = (u32)counter, c[1] = (u32)(counter >> 32), c[2] = 0, c[3] = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        if (round > 0) k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        u32 c1 = c[1], c3 = c[3];
        c[0] = (u32)(p1 >> 32) ^ c1 ^ k0, c[1] = (u32)p1;
        c[2] = (u32)(p0 >> 32) ^ c3 ^ k1, c[3] = (u32)p0;
    }
}

// One thread per block of the stream. Words: failure record, address, elements, key, offset, distribution (uniform, normal,
// int), low, high, type.
GT_STEP(gt_random, 256) {
    const u64* w = d.w;
    if (gt_failed(w[0])) return;
    const int dist = (int)w[5], dtype = (int)w[8];
    const int lanes = dist == 0 && dtype != 9 ? 4 : 2;
    const u64 b = gt_thread();
    if (b * lanes >= w[2]) return;
    u32 c[4];
    gt_philox(w[3], w[4] + b, c);
    char* out = (char*)w[1];
    for (int l = 0; l < lanes; l++) {
        const u64 i = b * lanes + l;
        if (i >= w[2]) break;
        const u32 word = l == 0 ? c[0] : l == 1 ? c[1] : l == 2 ? c[2] : c[3];
        const u32 lo = l == 0 ? c[0] : c[2], hi = l == 0 ? c[1] : c[3];
        const u64 both = lo | (u64)hi << 32;
        if (dist == 0) {
            if (dtype == 8) gt_set<D_f32>(out, i, (float)(word >> 8) * (1.0f / 16777216.0f));
            else if (dtype == 6) gt_set<D_f16>(out, i, (float)(word >> 21) * (1.0f / 2048.0f));
            else if (dtype == 7) gt_set<D_bf16>(out, i, (float)(word >> 24) * (1.0f / 256.0f));
            else if (dtype == 9) gt_set<D_f64>(out, i, (double)(both >> 11) * (1.0 / 9007199254740992.0));
        } else if (dist == 1) {
            const double u1 = ((double)lo + 1.0) * (1.0 / 4294967296.0), u2 = (double)hi * (1.0 / 4294967296.0);
            const double x = sqrt(-2.0 * log(u1)) * cos(6.283185307179586 * u2);
            if (dtype >= 6) gt_store_word(dtype, out, i, gt_rounded(dtype, x));
        } else {
            const i64 x = (i64)(w[6] + __umul64hi(both, w[7] - w[6]));
            gt_store_word(dtype, out, i, dtype >= 6 ? gt_rounded(dtype, (double)x) : gt_rounded(dtype, x));
        }
    }
}

GT_FN void gt_copy_element(int size, char* to, u64 i, const char* from, u64 j) {
    if (size == 1) to[i] = from[j];
    else if (size == 2) ((u16*)to)[i] = ((const u16*)from)[j];
    else if (size == 4) ((u32*)to)[i] = ((const u32*)from)[j];
    else ((u64*)to)[i] = ((const u64*)from)[j];
}

// Words: failure record, result, elements, x, start of x, index, start of the index, type of the index, bytes of an element,
// size of x along the dimension, its stride, dimensions; sizes of the index; strides of x, 0 along the dimension.
GT_STEP(gt_gather, 256) {
    const u64* w = d.w;
    if (gt_failed(w[0])) return;
    const u64 i = gt_thread();
    if (i >= w[2]) return;
    const i64 k = gt_index((int)w[7], w[5], (i64)(w[6] + i));
    if (k < 0 || k >= (i64)w[9]) return;
    const int nd = (int)w[11];
    const i64 at = (i64)w[4] + gt_place(w + 12, nd, w + 12 + nd, i) + k * (i64)w[10];
    gt_copy_element((int)w[8], (char*)w[1], i, (const char*)w[3], (u64)at);
}

template <class U> GT_FN void gt_take_units(const u64* w) {
    const u64 units = w[8] / sizeof(U), all = w[2] * w[3] * units;
    for (u64 i = gt_thread(); i < all; i += (u64)gridDim.x * blockDim.x) {
        const u64 r = gt_quotient(i, units), c = i - r * units, o = gt_quotient(r, w[3]), e = r - o * w[3];
        i64 k = gt_index((int)w[6], w[4], (i64)(w[5] + e));
        if (k < 0) k += (i64)w[7];
        if (k >= 0 && k < (i64)w[7]) ((U*)w[1])[i] = ((const U*)(w[9] + w[10] * w[11]))[(o * w[7] + (u64)k) * units + c];
    }
}
// Words: failure record, result, slices, indices, index, its start, its type, rows of x, bytes of a row, x, its start,
// bytes of an element.
GT_STEP(gt_take, 256) {
    const u64* w = d.w;
    if (gt_failed(w[0])) return;
    const u64 odd = w[1] | w[8] | (w[9] + w[10] * w[11]);
    if (odd % 16 == 0) gt_take_units<uint4>(w);
    else if (odd % 8 == 0) gt_take_units<u64>(w);
    else if (odd % 4 == 0) gt_take_units<u32>(w);
    else if (odd % 2 == 0) gt_take_units<u16>(w);
    else gt_take_units<unsigned char>(w);
}

// How values meet in an element of a scatter: 0 the last stays, 1 they are added, 2 the largest stays.
template <class T> GT_FN T gt_meet(int mode, T a, T b) { return mode == 0 ? b : mode == 1 ? gt_b_add(a, b) : gt_b_max(a, b); }

// The description of a scatter. Words: failure record, base, mode, type, entries (or entries per slice), index, its start, its
// type, size of the base along the dimension, its stride, source (0: a number), its start (or the number), whether negative
// indices wrap, slices, elements of a row, entries of a line, stride of a line in the index, pairs, dimensions; sizes of
// the index; strides of the base, 0 along the dimension.
#define GT_PUT_BASE w[1]
// Where an entry goes: a row's number in a take's put, an element in a scatter; -1 where the index is out of bounds.
GT_FN i64 gt_put_row(const u64* w, u64 e) {
    i64 k = gt_index((int)w[7], w[5], (i64)(w[6] + e));
    if (w[12] && k < 0) k += (i64)w[8];
    return k < 0 || k >= (i64)w[8] ? -1 : k;
}
GT_FN i64 gt_put_place(const u64* w, u64 e, i64 row) {
    const int nd = (int)w[18];
    return gt_place(w + 19, nd, w + 19 + nd, e) + row * (i64)w[9];
}
template <class T> GT_FN T gt_number(u64 w) { return (T)__longlong_as_double((i64)w); }
template <> GT_FN i64 gt_number<i64>(u64 w) { return (i64)w; }
template <class D> GT_FN typename D::T gt_put_value(const u64* w, u64 i) {
    return w[10] ? gt_get<D>((const char*)w[10], (i64)(w[11] + i)) : gt_number<typename D::T>(w[11]);
}

// Few entries along the dimension: the first entry of an element takes all that follow it in the line.
template <class D> GT_FN void gt_put_few_of(const u64* w) {
    const int mode = (int)w[2];
    const u64 i = gt_thread(), entries = w[4], inner = w[14];
    if (i >= entries * w[13] * inner) return;
    // In a scatter slices and rows are 1; in a take's put entries are the same for all slices.
    const u64 c = inner == 1 ? 0 : i % inner, r = inner == 1 ? i : i / inner, o = w[13] == 1 ? 0 : r / entries, e = r - o * entries;
    const i64 row = gt_put_row(w, e);
    if (row < 0) return;
    const u64 lines = w[15], step = w[16], place = step == 0 ? 0 : gt_quotient(e, step) % lines;
    for (u64 j = 0; j < place; j++)
        if (gt_put_row(w, e - (place - j) * step) == row) return;
    const u64 to = w[18] ? (u64)gt_put_place(w, e, row) : (o * w[8] + (u64)row) * inner + c;
    typename D::T x = gt_get<D>((char*)GT_PUT_BASE, (i64)to);
    for (u64 j = place; j < lines; j++) {
        const u64 f = e + (j - place) * step;
        if (j == place || gt_put_row(w, f) == row) x = gt_meet(mode, x, gt_put_value<D>(w, (o * entries + f) * inner + c));
    }
    gt_set<D>((char*)GT_PUT_BASE, (i64)to, x);
}
GT_STEP(gt_put_few, 256) {
    if (gt_failed(d.w[0])) return;
#define X(D) gt_put_few_of<D>(d.w);
    GT_EACH_DTYPE((int)d.w[3], X)
#undef X
}

// An element's rank and its place, by which it is sorted; equals keep their order.
struct gt_pair {
    u64 key, at;
};
GT_FN bool gt_before(gt_pair a, gt_pair b) { return a.key < b.key || (a.key == b.key && a.at < b.at); }

// Many entries: sorted by where they go, in their order. The first entry of each element takes all of its own.
template <class D> GT_FN void gt_put_sorted_of(const u64* w) {
    const int mode = (int)w[2];
    const u64 entries = w[4], inner = w[14];
    const gt_pair* pairs = (const gt_pair*)w[17];
    const u64 across = (inner + 255) / 256;
    const u64 p = inner == 1 ? gt_thread() : gt_quotient(blockIdx.x, across);
    const u64 c = inner == 1 ? 0 : (blockIdx.x - p * across) * 256 + threadIdx.x;
    if (p >= entries || c >= inner) return;
    const u64 key = pairs[p].key;
    if (key == ~0ull || (p > 0 && pairs[p - 1].key == key)) return;
    u64 end = p + 1;
    while (end < entries && pairs[end].key == key) end++;
    for (u64 o = 0; o < w[13]; o++) {
        const u64 to = w[18] ? key : (o * w[8] + key) * inner + c;
        typename D::T x = gt_get<D>((char*)GT_PUT_BASE, (i64)to);
        if (mode == 0) {
            x = gt_put_value<D>(w, (o * entries + pairs[end - 1].at) * inner + c);
        } else {
#pragma unroll 8
            for (u64 q = p; q < end; q++) x = gt_meet(mode, x, gt_put_value<D>(w, (o * entries + pairs[q].at) * inner + c));
        }
        gt_set<D>((char*)GT_PUT_BASE, (i64)to, x);
    }
}
GT_STEP(gt_put_sorted, 256) {
    if (gt_failed(d.w[0])) return;
#define X(D) gt_put_sorted_of<D>(d.w);
    GT_EACH_DTYPE((int)d.w[3], X)
#undef X
}
GT_STEP(gt_put_keys, 256) {
    const u64* w = d.w;
    const u64 e = gt_thread();
    if (e >= w[4]) return;
    const i64 row = gt_put_row(w, e);
    gt_pair pair = {row < 0 ? ~0ull : w[18] ? (u64)gt_put_place(w, e, row) : (u64)row, e};
    ((gt_pair*)w[17])[e] = pair;
}

// A number whose order is that of the values: zeros are equal, NaN is the largest.
GT_FN u64 gt_rank(float x) {
    const u32 b = x == 0 ? 0u : __float_as_uint(x);
    return x != x ? 0xffffffffu : b >> 31 ? ~b : b | 1u << 31;
}
GT_FN u64 gt_rank(double x) {
    const u64 b = x == 0 ? 0ull : (u64)__double_as_longlong(x);
    return x != x ? ~0ull : b >> 63 ? ~b : b | 1ull << 63;
}
GT_FN u64 gt_rank(i64 x) { return (u64)x ^ 1ull << 63; }
__device__ inline u64 gt_rank_of(int dtype, const char* p, i64 at) {
    u64 out = 0;
#define X(D) out = gt_rank(gt_get<D>(p, at));
    GT_EACH_DTYPE(dtype, X)
#undef X
    return out;
}

// Sorts tiles of `size` elements, a power of two, in shared memory. Words: failure record, rows, elements of a row, elements
// inside, first how many, x, its start, type, descending, values, indices, pairs, size, whether x is pairs. With pairs the
// tiles go there, else the whole row is one tile and its first elements are written.
GT_STEP(gt_sort_tiles, 512) {
    GT_SHARED(room);
    gt_pair* tile = (gt_pair*)room;
    const u64* w = d.w;
    if (gt_failed(w[0])) return;
    const u64 n = w[2], inner = w[3], size = w[12], tiles = (n + size - 1) / size;
    const u64 row = gt_quotient(blockIdx.x, tiles), first = (blockIdx.x - row * tiles) * size;
    const u64 o = inner == 1 ? row : row / inner, lane = inner == 1 ? 0 : row % inner;
    gt_pair* pairs = (gt_pair*)w[11];
    for (u64 j = threadIdx.x; j < size; j += blockDim.x) {
        gt_pair p = {~0ull, ~0ull};
        if (first + j < n) {
            if (w[13]) {
                p = pairs[row * n + first + j];
            } else {
                const u64 rank = gt_rank_of((int)w[7], (const char*)w[5], (i64)(w[6] + (o * n + first + j) * inner + lane));
                p.key = w[8] ? ~rank : rank;
                p.at = first + j;
            }
        }
        tile[j] = p;
    }
    __syncthreads();
    for (u64 k = 2; k <= size; k <<= 1) {
        for (u64 j = k >> 1; j > 0; j >>= 1) {
            for (u64 t = threadIdx.x; t < size / 2; t += blockDim.x) {
                const u64 a = (t / j) * 2 * j + t % j, b = a + j;
                const gt_pair x = tile[a], y = tile[b];
                if (gt_before(y, x) == ((a & k) == 0)) tile[a] = y, tile[b] = x;
            }
            __syncthreads();
        }
    }
    for (u64 j = threadIdx.x; j < size; j += blockDim.x) {
        if (pairs) {
            if (first + j < n) pairs[row * n + first + j] = tile[j];
        } else if (j < w[4]) {
            const u64 to = (o * w[4] + j) * inner + lane;
            ((u64*)w[10])[to] = tile[j].at;
#define X(D) ((D::E*)w[9])[to] = ((const D::E*)w[5])[w[6] + (o * n + tile[j].at) * inner + lane];
            GT_EACH_DTYPE((int)w[7], X)
#undef X
        }
    }
}

// Merges neighbouring sorted runs: every element finds its place by search in the other run. Words: failure record, rows,
// elements of a row, length of a run, from, to.
GT_STEP(gt_merge, 256) {
    const u64* w = d.w;
    if (gt_failed(w[0])) return;
    const u64 n = w[2], run = w[3], i = gt_thread();
    if (i >= w[1] * n) return;
    const u64 row = gt_quotient(i, n), at = i - row * n, mine = gt_quotient(at, run), other = mine ^ 1;
    const gt_pair* from = (const gt_pair*)w[4] + row * n;
    const gt_pair x = from[at];
    u64 low = other * run < n ? other * run : n, high = low + run < n ? low + run : n;
    const u64 start = low;
    while (low < high) {
        const u64 mid = (low + high) / 2;
        if (gt_before(from[mid], x)) low = mid + 1; else high = mid;
    }
    ((gt_pair*)w[5])[row * n + (mine & ~1ull) * run + (at - mine * run) + (low - start)] = x;
}

// Writes the first elements of sorted rows. Words as for `gt_sort_tiles`.
GT_STEP(gt_sort_write, 256) {
    const u64* w = d.w;
    if (gt_failed(w[0])) return;
    const u64 i = gt_thread(), n = w[2], inner = w[3], k = w[4];
    if (i >= w[1] * k) return;
    // Neighbouring threads write neighbouring elements.
    const u64 lane = i % inner, j = i / inner % k, o = i / inner / k;
    const u64 at = ((const gt_pair*)w[11])[(o * inner + lane) * n + j].at;
    ((u64*)w[10])[i] = at;
#define X(D) ((D::E*)w[9])[i] = ((const D::E*)w[5])[w[6] + (o * n + at) * inner + lane];
    GT_EACH_DTYPE((int)w[7], X)
#undef X
}
