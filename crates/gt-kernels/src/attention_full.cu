#ifndef GTA_FULL
#define GTA_FULL
// Attention of f32 and f64 in the arithmetic of their type. A block of 8 x 16 threads keeps a tile of 8 * RM rows (or keys)
// and walks over tiles of 16 * RN of the others; thread (y, x) has the rows y + 8 i and the columns x + 16 j.
//
// W, WW: elements of a row in shared memory (a multiple of 16) and of the tensor; the rest is zero.

#define GTA_X ((int)threadIdx.x & 15)
#define GTA_Y ((int)threadIdx.x >> 4)
#define GTA_THREADS 128

// As many elements as 16 bytes hold.
template <class T> struct alignas(16) GtaVec {
    static constexpr int N = 16 / (int)sizeof(T);
    T x[N];
};
// Rows of a tile lie this far apart: whole vectors, in which neighbouring rows never meet in a bank.
template <class T, int W> struct GtaPitch {
    static constexpr int N = W + GtaVec<T>::N;
};

template <class T, int ROWS, int W, int WW, bool VEC>
GTA_FN void gta_full_load(T *to, const T *from, gta_int step, gta_int limit) {
    constexpr int N = VEC ? GtaVec<T>::N : 1, CHUNKS = W / N;
    for (int at = threadIdx.x; at < ROWS * CHUNKS; at += GTA_THREADS) {
        int row = at / CHUNKS, col = at % CHUNKS * N;
        T *dst = to + row * GtaPitch<T, W>::N + col;
        bool there = row < limit && col < WW;
        const T *src = from + row * step + col;
        if (VEC) {
            GtaVec<T> v;
#pragma unroll
            for (int i = 0; i < GtaVec<T>::N; i++) v.x[i] = 0;
            if (there) v = *(const GtaVec<T> *)src;
            *(GtaVec<T> *)dst = v;
        } else {
            *dst = there ? *src : (T)0;
        }
    }
}

// s = rows of `left` times rows of `right`, transposed.
template <class T, int RM, int RN, int W> GTA_FN void gta_full_scores(T (*s)[RN], const T *left, const T *right) {
    constexpr int N = GtaVec<T>::N, P = GtaPitch<T, W>::N;
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) s[i][j] = 0;
#pragma unroll 4
    for (int k = 0; k < W; k += N) {
        GtaVec<T> a[RM], b[RN];
#pragma unroll
        for (int i = 0; i < RM; i++) a[i] = *(const GtaVec<T> *)(left + (GTA_Y + 8 * i) * P + k);
#pragma unroll
        for (int j = 0; j < RN; j++) b[j] = *(const GtaVec<T> *)(right + (GTA_X + 16 * j) * P + k);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < RM; i++)
#pragma unroll
                for (int j = 0; j < RN; j++) s[i][j] = gta_fma(a[i].x[n], b[j].x[n], s[i][j]);
    }
}

// acc += p times the rows of `right`; p has RM * 8 rows of LEN columns in shared memory, this thread's rows by its own warp.
template <class T, int RM, int LEN, int W> GTA_FN void gta_full_sums(T (*acc)[W / 16], const T *p, const T *right) {
    constexpr int N = GtaVec<T>::N;
#pragma unroll 2
    for (int k = 0; k < LEN; k += N) {
        GtaVec<T> a[RM];
#pragma unroll
        for (int i = 0; i < RM; i++) a[i] = *(const GtaVec<T> *)(p + (GTA_Y + 8 * i) * GtaPitch<T, LEN>::N + k);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < W / 16; j++) {
                T b = right[(k + n) * GtaPitch<T, W>::N + GTA_X + 16 * j];
#pragma unroll
                for (int i = 0; i < RM; i++) acc[i][j] = gta_fma(a[i].x[n], b, acc[i][j]);
            }
    }
}

// The tile's values where the next product reads them.
template <class T, int RM, int RN> GTA_FN void gta_full_put(T *p, T (*s)[RN]) {
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) p[(GTA_Y + 8 * i) * GtaPitch<T, 16 * RN>::N + GTA_X + 16 * j] = s[i][j];
}

template <class T, int RM, int W, int WW> GTA_FN void gta_full_store(
    T *to, gta_int pitch, T (*acc)[W / 16], const T *by, gta_int limit) {
#pragma unroll
    for (int i = 0; i < RM; i++) {
        gta_int row = GTA_Y + 8 * i;
        if (row >= limit) continue;
#pragma unroll
        for (int j = 0; j < W / 16; j++)
            if (W == WW || GTA_X + 16 * j < WW) to[row * pitch + GTA_X + 16 * j] = acc[i][j] * by[i];
    }
}

// What 16 threads with the same rows agree on.
template <class T> GTA_FN T gta_row_sum(T x) {
#pragma unroll
    for (int i = 8; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
template <class T> GTA_FN T gta_row_max(T x) {
#pragma unroll
    for (int i = 8; i > 0; i >>= 1) x = gta_max(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

struct GtaBlock {
    gta_int batch, head, first;
};
GTA_FN GtaBlock gta_block(gta_int heads, gta_int batches, gta_int count, int size, bool last_first) {
    gta_int per = heads * batches, tiles = (count + size - 1) / size;
    gta_int tile = blockIdx.x / per, rest = blockIdx.x % per;
    GtaBlock t;
    t.head = rest % heads;
    t.batch = rest / heads;
    t.first = (last_first ? tiles - 1 - tile : tile) * size;
    return t;
}

// A score as it counts: scaled, masked, and minus infinity where it is not seen.
template <class T> GTA_FN T gta_full_score(
    const GtaParams &p, gta_int batch, gta_int head, gta_int row, gta_int col, T s, bool causal, int mask) {
    if (row >= p.rows || col >= p.cols || (causal && col > row)) return gta_least<T>();
    return gta_masked<GtaSame<T> >(s * (T)p.scale, mask, p, batch, head, row, col);
}

template <class T, int D, int DD, int E, int EE, int RM, int RN, bool VEC, bool CAUSAL, int MASK>
GTA_FN void gta_full_forward(const GtaParams &p) {
    constexpr int BM = 8 * RM, BN = 16 * RN;
    if (gta_stop(p)) return;
    GtaBlock t = gta_block(p.heads, p.batches, p.rows, BM, CAUSAL);
    gta_int kv = t.head / (p.heads / p.key_heads);
    T *sq = (T *)gta_shared, *sk = sq + BM * GtaPitch<T, D>::N, *sv = sk + BN * GtaPitch<T, D>::N;
    T *sp = sv + BN * GtaPitch<T, E>::N;
    gta_int seen = CAUSAL && t.first + BM < p.cols ? t.first + BM : p.cols;
    T acc[RM][E / 16] = {}, top[RM], sum[RM];
#pragma unroll
    for (int i = 0; i < RM; i++) {
        top[i] = gta_least<T>();
        sum[i] = 0;
    }
    gta_full_load<T, BM, D, DD, VEC>(sq, gta_row<T>(p.q, t.batch, t.head, t.first), p.q.row, p.rows - t.first);
    for (gta_int c = 0; c < seen; c += BN) {
        __syncthreads();
        gta_full_load<T, BN, D, DD, VEC>(sk, gta_row<T>(p.k, t.batch, kv, c), p.k.row, p.cols - c);
        gta_full_load<T, BN, E, EE, VEC>(sv, gta_row<T>(p.v, t.batch, kv, c), p.v.row, p.cols - c);
        __syncthreads();
        T s[RM][RN];
        gta_full_scores<T, RM, RN, D>(s, sq, sk);
#pragma unroll
        for (int i = 0; i < RM; i++) {
            T most = gta_least<T>();
#pragma unroll
            for (int j = 0; j < RN; j++) {
                gta_int row = t.first + GTA_Y + 8 * i, col = c + GTA_X + 16 * j;
                s[i][j] = gta_full_score<T>(p, t.batch, t.head, row, col, s[i][j], CAUSAL, MASK);
                most = gta_max(most, s[i][j]);
            }
            T next = gta_max(top[i], gta_row_max(most)), base = next == gta_least<T>() ? (T)0 : next;
            T old = gta_exp(top[i] - base), part = 0;
#pragma unroll
            for (int j = 0; j < RN; j++) {
                s[i][j] = gta_exp(s[i][j] - base);
                part += s[i][j];
            }
            sum[i] = gta_fma(sum[i], old, part);
            top[i] = next;
#pragma unroll
            for (int j = 0; j < E / 16; j++) acc[i][j] *= old;
        }
        __syncwarp();
        gta_full_put<T, RM, RN>(sp, s);
        __syncwarp();
        gta_full_sums<T, RM, BN, E>(acc, sp, sv);
    }
    T by[RM];
#pragma unroll
    for (int i = 0; i < RM; i++) {
        T all = gta_row_sum(sum[i]);
        by[i] = all == 0 ? (T)0 : (T)1 / all;
        gta_int row = GTA_Y + 8 * i;
        if (GTA_X == 0 && t.first + row < p.rows)
            *gta_to<T>(p, 1, t.batch, t.head, t.first + row) = all == 0 ? gta_least<T>() : top[i] + gta_log(all);
    }
    T *to = gta_to<T>(p, 0, t.batch, t.head, t.first);
    gta_full_store<T, RM, E, EE>(to, p.to[0].row, acc, by, p.rows - t.first);
}

// A probability and the gradient of its score before the scale.
template <class T> GTA_FN T gta_full_weight(T score, T lse) {
    return lse == gta_least<T>() ? (T)0 : gta_exp(score - lse);
}

// dq of a tile of rows; also leaves delta for the gradients of keys and values.
template <class T, int D, int DD, int E, int EE, int RM, int RN, bool VEC, bool CAUSAL, int MASK>
GTA_FN void gta_full_dq(const GtaParams &p) {
    constexpr int BM = 8 * RM, BN = 16 * RN;
    if (gta_stop(p)) return;
    GtaBlock t = gta_block(p.heads, p.batches, p.rows, BM, CAUSAL);
    gta_int kv = t.head / (p.heads / p.key_heads);
    T *sq = (T *)gta_shared, *sd = sq + BM * GtaPitch<T, D>::N, *sk = sd + BM * GtaPitch<T, E>::N;
    T *sv = sk + BN * GtaPitch<T, D>::N, *sp = sv + BN * GtaPitch<T, E>::N;
    gta_int seen = CAUSAL && t.first + BM < p.cols ? t.first + BM : p.cols;
    gta_int at = ((p.first + t.batch) * p.heads + t.head) * p.rows + t.first;
    gta_full_load<T, BM, D, DD, VEC>(sq, gta_row<T>(p.q, t.batch, t.head, t.first), p.q.row, p.rows - t.first);
    const T *dout = gta_row<T>(p.dout, t.batch, t.head, t.first);
    gta_full_load<T, BM, E, EE, VEC>(sd, dout, p.dout.row, p.rows - t.first);
    T acc[RM][D / 16] = {}, delta[RM], lse[RM];
#pragma unroll
    for (int i = 0; i < RM; i++) {
        gta_int row = t.first + GTA_Y + 8 * i;
        T x = 0;
        lse[i] = gta_least<T>();
        if (row < p.rows) {
            const T *a = gta_row<T>(p.out, t.batch, t.head, row), *b = gta_row<T>(p.dout, t.batch, t.head, row);
            for (int c = GTA_X; c < EE; c += 16) x = gta_fma(a[c], b[c], x);
            lse[i] = *gta_row<T>(p.lse, t.batch, t.head, row);
        }
        delta[i] = gta_row_sum(x);
        if (GTA_X == 0 && row < p.rows) ((T *)p.delta)[at + GTA_Y + 8 * i] = delta[i];
    }
    for (gta_int c = 0; c < seen; c += BN) {
        __syncthreads();
        gta_full_load<T, BN, D, DD, VEC>(sk, gta_row<T>(p.k, t.batch, kv, c), p.k.row, p.cols - c);
        gta_full_load<T, BN, E, EE, VEC>(sv, gta_row<T>(p.v, t.batch, kv, c), p.v.row, p.cols - c);
        __syncthreads();
        T s[RM][RN], g[RM][RN];
        gta_full_scores<T, RM, RN, D>(s, sq, sk);
        gta_full_scores<T, RM, RN, E>(g, sd, sv);
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
            for (int j = 0; j < RN; j++) {
                gta_int row = t.first + GTA_Y + 8 * i, col = c + GTA_X + 16 * j;
                T x = gta_full_score<T>(p, t.batch, t.head, row, col, s[i][j], CAUSAL, MASK);
                s[i][j] = gta_full_weight<T>(x, lse[i]) * (g[i][j] - delta[i]);
            }
        __syncwarp();
        gta_full_put<T, RM, RN>(sp, s);
        __syncwarp();
        gta_full_sums<T, RM, BN, D>(acc, sp, sk);
    }
    T by[RM];
#pragma unroll
    for (int i = 0; i < RM; i++) by[i] = (T)p.scale;
    T *to = gta_to<T>(p, 0, t.batch, t.head, t.first);
    gta_full_store<T, RM, D, DD>(to, p.to[0].row, acc, by, p.rows - t.first);
}

// dk and dv of a tile of keys, from every row of every head that shares them, in order. Rows and columns change places.
template <class T, int D, int DD, int E, int EE, int RM, int RN, bool VEC, bool CAUSAL, int MASK>
GTA_FN void gta_full_dkv(const GtaParams &p) {
    constexpr int BN = 8 * RM, BM = 16 * RN;
    if (gta_stop(p)) return;
    GtaBlock t = gta_block(p.key_heads, p.batches, p.cols, BN, false);
    gta_int group = p.heads / p.key_heads;
    T *sk = (T *)gta_shared, *sv = sk + BN * GtaPitch<T, D>::N, *sq = sv + BN * GtaPitch<T, E>::N;
    T *sd = sq + BM * GtaPitch<T, D>::N, *sp = sd + BM * GtaPitch<T, E>::N;
    T ak[RM][D / 16] = {}, av[RM][E / 16] = {};
    gta_full_load<T, BN, D, DD, VEC>(sk, gta_row<T>(p.k, t.batch, t.head, t.first), p.k.row, p.cols - t.first);
    gta_full_load<T, BN, E, EE, VEC>(sv, gta_row<T>(p.v, t.batch, t.head, t.first), p.v.row, p.cols - t.first);
    for (gta_int head = t.head * group; head < (t.head + 1) * group; head++) {
        const T *deltas = (const T *)p.delta + ((p.first + t.batch) * p.heads + head) * p.rows;
        for (gta_int r = CAUSAL ? t.first / BM * BM : 0; r < p.rows; r += BM) {
            __syncthreads();
            gta_full_load<T, BM, D, DD, VEC>(sq, gta_row<T>(p.q, t.batch, head, r), p.q.row, p.rows - r);
            gta_full_load<T, BM, E, EE, VEC>(sd, gta_row<T>(p.dout, t.batch, head, r), p.dout.row, p.rows - r);
            __syncthreads();
            T s[RM][RN], g[RM][RN];
            gta_full_scores<T, RM, RN, D>(s, sk, sq);
            gta_full_scores<T, RM, RN, E>(g, sv, sd);
#pragma unroll
            for (int j = 0; j < RN; j++) {
                gta_int row = r + GTA_X + 16 * j;
                bool there = row < p.rows;
                T lse = there ? *gta_row<T>(p.lse, t.batch, head, row) : gta_least<T>();
                T delta = there ? deltas[row] : (T)0;
#pragma unroll
                for (int i = 0; i < RM; i++) {
                    gta_int col = t.first + GTA_Y + 8 * i;
                    T x = gta_full_score<T>(p, t.batch, head, row, col, s[i][j], CAUSAL, MASK);
                    s[i][j] = gta_full_weight<T>(x, lse);
                    g[i][j] = s[i][j] * (g[i][j] - delta);
                }
            }
            __syncwarp();
            gta_full_put<T, RM, RN>(sp, s);
            __syncwarp();
            gta_full_sums<T, RM, BM, E>(av, sp, sd);
            __syncwarp();
            gta_full_put<T, RM, RN>(sp, g);
            __syncwarp();
            gta_full_sums<T, RM, BM, D>(ak, sp, sq);
        }
    }
    T *dk = gta_to<T>(p, 1, t.batch, t.head, t.first), *dv = gta_to<T>(p, 2, t.batch, t.head, t.first);
    T by[RM];
#pragma unroll
    for (int i = 0; i < RM; i++) by[i] = (T)p.scale;
    gta_full_store<T, RM, D, DD>(dk, p.to[1].row, ak, by, p.cols - t.first);
#pragma unroll
    for (int i = 0; i < RM; i++) by[i] = 1;
    gta_full_store<T, RM, E, EE>(dv, p.to[2].row, av, by, p.cols - t.first);
}
#endif
