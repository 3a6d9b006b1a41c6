#ifndef GTA_HALF
#define GTA_HALF
// Attention of half types by tensor cores. Sums are f32; a block keeps a tile of rows (or of keys) and walks over tiles of
// the others, the next of which is copied while one is computed. Every warp has rows of its own, so that softmax needs
// no other warp.
//
// W, WW: elements of a row in shared memory (a multiple of 16) and of the tensor; the rest is zero.

// Where 8 elements of a row of a tile lie, in elements: spread over the banks, so that the eight rows of a matrix never meet.
// Rows of whole 128 bytes are cut into blocks of that width, in the order that Hopper's products read.
template <int W> struct GtaPitch16 {
    static constexpr int N = W % 64 == 0 ? 64 : W + 8;
};
template <int ROWS, int W> GTA_FN int gta_at(int row, int chunk) {
    int at = row * GtaPitch16<W>::N;
    if (W % 64 == 0) return at + (chunk >> 3) * (ROWS * 64) + (((chunk & 7) ^ (row & 7)) << 3);
    return at + (chunk << 3);
}
template <int ROWS, int W> struct GtaSize {
    static constexpr int N = ROWS * (W % 64 == 0 ? W : W + 8);
};

// Copies a tile of rows, zeros from row `limit` on. By 16 bytes where VEC says that everything is aligned.
template <int ROWS, int W, int WW, int THREADS, bool VEC>
GTA_FN void gta_load(gta_half *to, const gta_half *from, gta_int step, int limit) {
    constexpr int CHUNKS = W / 8, TIMES = (ROWS * CHUNKS + THREADS - 1) / THREADS;
    // Threads that keep their place in a row and in the order of banks only move down.
    constexpr int DOWN = THREADS % CHUNKS == 0 ? THREADS / CHUNKS : 0;
    constexpr bool EVEN = DOWN != 0 && ROWS * CHUNKS % THREADS == 0 && (W % 64 != 0 || DOWN % 8 == 0);
    int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
    if constexpr (VEC && EVEN) {
        const gta_half *src = from + row * step + chunk * 8;
        gta_addr dst = gta_address(to + gta_at<ROWS, W>(row, chunk));
        if (limit >= ROWS && W == WW) {
#pragma unroll
            for (int i = 0; i < TIMES; i++) {
                gta_copy16(dst + i * DOWN * GtaPitch16<W>::N * 2, src, 16);
                src += DOWN * step;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            bool there = row + i * DOWN < limit && (WW == W || chunk * 8 < WW);
            gta_copy16(dst + i * DOWN * GtaPitch16<W>::N * 2, there ? src : from, there ? 16 : 0);
            src += DOWN * step;
        }
    } else {
        for (int at = threadIdx.x; at < ROWS * CHUNKS; at += THREADS) {
            row = at / CHUNKS, chunk = at % CHUNKS;
            gta_half *dst = to + gta_at<ROWS, W>(row, chunk);
            const gta_half *src = from + row * step + chunk * 8;
            if (VEC) {
                bool there = row < limit && (WW == W || chunk * 8 < WW);
                gta_copy16(gta_address(dst), there ? src : from, there ? 16 : 0);
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++) dst[j] = row < limit && chunk * 8 + j < WW ? src[j] : (gta_half)0;
            }
        }
    }
}

// Where a lane's row of four matrices starts. A left operand has 16 rows by 16 elements; so has a right operand whose rows are
// the tile's rows (trans); in one whose columns are the tile's rows, those come first.
template <int ROWS, int W> GTA_FN gta_addr gta_lane_left(const gta_half *tile, int row) {
    int lane = threadIdx.x & 31;
    return gta_address(tile + gta_at<ROWS, W>(row + (lane & 15), lane >> 4));
}
template <int ROWS, int W> GTA_FN gta_addr gta_lane_right(const gta_half *tile) {
    int lane = threadIdx.x & 31;
    return gta_address(tile + gta_at<ROWS, W>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1));
}
// The same 16 * k elements to the right and 16 * n rows down. Chunks change places only within 128 bytes, which start
// at multiples of that.
template <int ROWS, int W> GTA_FN gta_addr gta_move(gta_addr at, int k, int n) {
    int down = n * 16 * GtaPitch16<W>::N * 2;
    if (W % 64 == 0) return (at ^ (gta_addr)((k & 3) << 5)) + (gta_addr)((k >> 2) * (ROWS * 128) + down);
    return at + (gta_addr)(k * 32 + down);
}

// s = rows of the left tile (which has ROWS) times rows of the right one, transposed: MT * 16 rows by N columns.
template <class H, int MT, int ROWS, int N, int W>
GTA_FN void gta_scores(float (*s)[N / 8][4], gta_addr left, gta_addr right) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int k = 0; k < W / 16; k++) {
        gta_word a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) gta_ldmatrix(a[m], gta_move<ROWS, W>(left, k, m));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            gta_word b[4];
            gta_ldmatrix(b, gta_move<N, W>(right, k, n));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                H::mma(s[m][2 * n], a[m], b[0], b[1]);
                H::mma(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// acc += s (rounded) times the rows of the right tile: MT * 16 rows, N of them summed over, W columns.
template <class H, int MT, int N, int W> GTA_FN void gta_sums(
    float (*acc)[W / 8][4], float (*s)[N / 8][4], gta_addr right) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        gta_word a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = H::two(s[m][2 * k][0], s[m][2 * k][1]);
            a[m][1] = H::two(s[m][2 * k][2], s[m][2 * k][3]);
            a[m][2] = H::two(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
            a[m][3] = H::two(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < W / 16; n++) {
            gta_word b[4];
            gta_ldmatrix_trans(b, gta_move<N, W>(right, n, k));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                H::mma(acc[m][2 * n], a[m], b[0], b[1]);
                H::mma(acc[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Writes 16 rows of a warp times `by` of each (the lane's row and the eighth after it) through its own part of a tile.
template <class H, int W, int WW, bool VEC> GTA_FN void gta_store(
    float (*acc)[4], const float *by, gta_half *tile, int first, gta_half *to, gta_int pitch, gta_int limit) {
    int lane = threadIdx.x & 31, row = first + (lane >> 2), col = (lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < W / 8; n++) {
        *(gta_word *)(tile + gta_at<16, W>(row, n) + col) = H::two(acc[n][0] * by[0], acc[n][1] * by[0]);
        *(gta_word *)(tile + gta_at<16, W>(row + 8, n) + col) = H::two(acc[n][2] * by[1], acc[n][3] * by[1]);
    }
    __syncwarp();
    constexpr int CHUNKS = W / 8;
#pragma unroll
    for (int i = 0; i < (16 * CHUNKS + 31) / 32; i++) {
        int at = i * 32 + lane, r = at / CHUNKS, chunk = at % CHUNKS;
        if (16 * CHUNKS % 32 != 0 && r >= 16) break;
        const gta_half *src = tile + gta_at<16, W>(first + r, chunk);
        gta_half *dst = to + r * pitch + chunk * 8;
        if (r >= limit) continue;
        if (VEC && WW % 8 == 0) {
            if (chunk * 8 < WW) *(uint4 *)dst = *(const uint4 *)src;
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (chunk * 8 + j < WW) dst[j] = src[j];
        }
    }
    __syncwarp();
}

// The tile of a block: heavy ones come first where rows see more the later they are. Positions in a sequence fit an int.
struct GtaTile {
    gta_int batch, head;
    int first;
};
template <int SIZE> GTA_FN GtaTile gta_tile(gta_int heads, gta_int batches, gta_int count, bool last_first) {
    int per = (int)(heads * batches), tiles = (int)((count + SIZE - 1) / SIZE);
    int tile = (int)blockIdx.x / per, rest = (int)blockIdx.x % per;
    GtaTile t;
    t.head = rest % (int)heads;
    t.batch = rest / (int)heads;
    t.first = (last_first ? tiles - 1 - tile : tile) * SIZE;
    return t;
}

// Scores of a warp's rows with their mask, and at minus infinity where they are not seen. `factor` takes them to powers of
// two; where nothing is added that is left to the exponent.
template <class H, int MT, int BN, bool CAUSAL, int MASK> GTA_FN void gta_see(
    float (*s)[BN / 8][4], const GtaParams &p, const GtaTile &t, float factor, int row0, int col0) {
    int lane = threadIdx.x & 31;
    // Tiles that every row sees whole need no comparison.
    if (MASK == 0 && col0 + BN <= (int)p.cols && !(CAUSAL && col0 + BN - 1 > row0)) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = row0 + m * 16 + (lane >> 2) + (i >> 1) * 8, col = col0 + n * 8 + (lane & 3) * 2 + (i & 1);
                if (col >= (int)p.cols || (CAUSAL && col > row)) {
                    s[m][n][i] = gta_least<float>();
                } else if (MASK != 0) {
                    float x = row < (int)p.rows ? gta_masked<H>(0.0f, MASK, p, t.batch, t.head, row, col) : 0.0f;
                    x = MASK == 1 ? x : x * GTA_LOG2E;
                    s[m][n][i] = MASK == 1 && x != 0 ? x : gta_fma(s[m][n][i], factor, x);
                }
            }
}

// What scores are multiplied by: all at once, or what is left to the exponent (`last`). The larger score must stay so, and
// minus infinity what it is: the sign is taken out, and no factor is zero.
struct GtaFactor {
    float all, last;
    bool turned;
};
template <int MASK> GTA_FN GtaFactor gta_factor(const GtaParams &p) {
    float x = (float)p.scale * GTA_LOG2E;
    GtaFactor f;
    f.turned = x < 0;
    f.all = gta_max(fabsf(x), 1e-30f);
    f.last = MASK == 0 ? f.all : 1.0f;
    return f;
}
template <int MT, int BN> GTA_FN void gta_turn(float (*s)[BN / 8][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = -s[m][n][i];
}

template <class H, int D, int DD, int E, int EE, int WARPS, int MT, int BN, bool VEC, bool CAUSAL, int MASK>
GTA_FN void gta_half_forward(const GtaParams &p) {
    constexpr int BM = WARPS * MT * 16, THREADS = WARPS * 32;
    if (gta_stop(p)) return;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    GtaTile t = gta_tile<BM>(p.heads, p.batches, p.rows, CAUSAL);
    gta_int kv = t.head / (p.heads / p.key_heads);
    gta_half *sq = (gta_half *)gta_shared, *sk = sq + GtaSize<BM, D>::N;
    gta_half *sv = sk + 2 * GtaSize<BN, D>::N;
    const gta_half *k = gta_row<gta_half>(p.k, t.batch, kv, 0), *v = gta_row<gta_half>(p.v, t.batch, kv, 0);
    int seen = CAUSAL && t.first + BM < (int)p.cols ? t.first + BM : (int)p.cols;
    int tiles = (seen + BN - 1) / BN;
    int own = warp * MT * 16; // This warp's first row of the tile.
    int row0 = t.first + own;
    GtaFactor f = gta_factor<MASK>(p);

    float acc[MT][E / 8][4], top[MT][2], sum[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][n][i] = 0;
        top[m][0] = top[m][1] = gta_least<float>();
        sum[m][0] = sum[m][1] = 0;
    }
    gta_addr at_q = gta_lane_left<BM, D>(sq, own), at_k = gta_lane_right<BN, D>(sk);
    gta_addr at_v = gta_lane_left<BN, E>(sv, 0);
    const gta_half *q = gta_row<gta_half>(p.q, t.batch, t.head, t.first);
    gta_load<BM, D, DD, THREADS, VEC>(sq, q, p.q.row, (int)p.rows - t.first);
    gta_load<BN, D, DD, THREADS, VEC>(sk, k, p.k.row, (int)p.cols);
    gta_load<BN, E, EE, THREADS, VEC>(sv, v, p.v.row, (int)p.cols);
    gta_copies_sent();
    for (int j = 0; j < tiles; j++) {
        gta_addr stage_k = (j & 1) * GtaSize<BN, D>::N * 2, stage_v = (j & 1) * GtaSize<BN, E>::N * 2;
        int col0 = j * BN;
        gta_copies_done();
        __syncthreads();
        if (j + 1 < tiles) {
            int next = col0 + BN, other = (j + 1) & 1;
            gta_half *kn = sk + other * GtaSize<BN, D>::N, *vn = sv + other * GtaSize<BN, E>::N;
            gta_load<BN, D, DD, THREADS, VEC>(kn, k + (gta_int)next * p.k.row, p.k.row, (int)p.cols - next);
            gta_load<BN, E, EE, THREADS, VEC>(vn, v + (gta_int)next * p.v.row, p.v.row, (int)p.cols - next);
            gta_copies_sent();
        }
        // None of this warp's rows sees this tile.
        if (CAUSAL && col0 > row0 + MT * 16 - 1) continue;
        float s[MT][BN / 8][4];
        gta_scores<H, MT, BM, BN, D>(s, at_q, at_k + stage_k);
        if (f.turned) gta_turn<MT, BN>(s);
        gta_see<H, MT, BN, CAUSAL, MASK>(s, p, t, f.all, row0, col0);
        float old[MT][2], base[MT][2];
        bool moved = false;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float x = s[m][0][2 * h];
#pragma unroll
                for (int n = 0; n < BN / 8; n++) x = gta_max(x, gta_max(s[m][n][2 * h], s[m][n][2 * h + 1]));
                x = gta_max(x, __shfl_xor_sync(0xffffffffu, x, 1));
                x = gta_max(x, __shfl_xor_sync(0xffffffffu, x, 2));
                x = gta_max(x == gta_least<float>() ? x : x * f.last, top[m][h]);
                base[m][h] = x == gta_least<float>() ? 0.0f : x;
                old[m][h] = gta_exp2(top[m][h] - base[m][h]);
                moved |= x != top[m][h];
                top[m][h] = x;
            }
        if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int n = 0; n < E / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) acc[m][n][i] *= old[m][i >> 1];
                sum[m][0] *= old[m][0];
                sum[m][1] *= old[m][1];
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[m][n][i] = gta_exp2(gta_fma(s[m][n][i], f.last, -base[m][i >> 1]));
                    sum[m][i >> 1] += s[m][n][i];
                }
        gta_sums<H, MT, BN, E>(acc, s, at_v + stage_v);
    }
    if (tiles == 0) gta_copies_done();
    __syncthreads(); // The tile of queries serves to write results.
#pragma unroll
    for (int m = 0; m < MT; m++) {
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = sum[m][h];
            x += __shfl_xor_sync(0xffffffffu, x, 1);
            x += __shfl_xor_sync(0xffffffffu, x, 2);
            by[h] = x == 0 ? 0.0f : 1.0f / x;
            int row = row0 + m * 16 + (lane >> 2) + h * 8;
            if ((lane & 3) == 0 && row < (int)p.rows)
                *gta_to<float>(p, 1, t.batch, t.head, row) =
                    x == 0 ? gta_least<float>() : gta_fma(top[m][h], GTA_LN2, logf(x));
        }
        gta_int first = row0 + m * 16;
        gta_half *to = gta_to<gta_half>(p, 0, t.batch, t.head, first);
        // Results may be wider than queries: each warp's rows then start where they do not meet.
        gta_store<H, E, EE, VEC>(acc[m], by, sq + warp * GtaSize<16, E>::N, 0, to, p.to[0].row, p.rows - first);
    }
}

// A row's log-sum-exp in powers of two. Rows that see nothing, or are not there, have probabilities of zero.
GTA_FN float gta_lse2(const GtaParams &p, gta_int batch, gta_int head, gta_int row) {
    float lse = row < p.rows ? *gta_row<float>(p.lse, batch, head, row) : gta_least<float>();
    return lse == gta_least<float>() ? -gta_least<float>() : lse * GTA_LOG2E;
}

// Scalar products of dout and out of a warp's rows, into shared memory.
template <class H, int ROWS, int EE, bool VEC>
GTA_FN void gta_deltas(const GtaParams &p, const GtaTile &t, gta_int row0, float *to) {
    int lane = threadIdx.x & 31;
    constexpr int CHUNKS = EE / 8;
    // By 16 bytes where a whole number of rows is read at once.
    constexpr bool WHOLE = VEC && EE % 8 == 0 && CHUNKS <= 32 && 32 % (CHUNKS == 0 ? 1 : CHUNKS) == 0;
    constexpr int LANES = WHOLE ? CHUNKS : 32, ONCE = 32 / LANES;
    auto row_of = [&](int r) {
        gta_int row = row0 + r + lane / LANES;
        return row < p.rows ? row : p.rows - 1;
    };
    auto sum = [&](float x, int r) {
#pragma unroll
        for (int i = LANES / 2; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
        if (lane % LANES == 0) to[r + lane / LANES] = x;
    };
    if constexpr (WHOLE) {
        // Eight rows are on their way at a time. Those that are not there count nothing.
        constexpr int AHEAD = ROWS / ONCE < 8 ? ROWS / ONCE : 8;
#pragma unroll
        for (int first = 0; first < ROWS; first += AHEAD * ONCE) {
            union {
                uint4 all;
                gta_half each[8];
            } u[AHEAD], v[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                gta_int row = row_of(first + k * ONCE);
                u[k].all = ((const uint4 *)gta_row<gta_half>(p.out, t.batch, t.head, row))[lane % LANES];
                v[k].all = ((const uint4 *)gta_row<gta_half>(p.dout, t.batch, t.head, row))[lane % LANES];
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                float x = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) x = gta_fma(H::get(u[k].each[i]), H::get(v[k].each[i]), x);
                sum(x, first + k * ONCE);
            }
        }
    } else {
        for (int r = 0; r < ROWS; r++) {
            const gta_half *a = gta_row<gta_half>(p.out, t.batch, t.head, row_of(r));
            const gta_half *b = gta_row<gta_half>(p.dout, t.batch, t.head, row_of(r));
            float x = 0;
            for (int c = lane; c < EE; c += 32) x = gta_fma(H::get(a[c]), H::get(b[c]), x);
            sum(x, r);
        }
    }
    __syncwarp();
}

// dq of a tile of rows; also leaves what the gradients of keys and values read of each row.
template <class H, int D, int DD, int E, int EE, int WARPS, int MT, int BN, bool VEC, bool CAUSAL, int MASK>
GTA_FN void gta_half_dq(const GtaParams &p) {
    constexpr int BM = WARPS * MT * 16, THREADS = WARPS * 32;
    if (gta_stop(p)) return;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    GtaTile t = gta_tile<BM>(p.heads, p.batches, p.rows, CAUSAL);
    gta_int kv = t.head / (p.heads / p.key_heads);
    gta_half *sq = (gta_half *)gta_shared, *sd = sq + GtaSize<BM, D>::N;
    gta_half *sk = sd + GtaSize<BM, E>::N, *sv = sk + 2 * GtaSize<BN, D>::N;
    const gta_half *k = gta_row<gta_half>(p.k, t.batch, kv, 0), *v = gta_row<gta_half>(p.v, t.batch, kv, 0);
    int seen = CAUSAL && t.first + BM < (int)p.cols ? t.first + BM : (int)p.cols;
    int tiles = (seen + BN - 1) / BN;
    int own = warp * MT * 16;
    int row0 = t.first + own;
    GtaFactor f = gta_factor<MASK>(p);
    gta_int at = ((p.first + t.batch) * p.heads + t.head) * p.rows;

    gta_addr at_q = gta_lane_left<BM, D>(sq, own), at_d = gta_lane_left<BM, E>(sd, own);
    gta_addr at_k = gta_lane_right<BN, D>(sk), at_v = gta_lane_right<BN, E>(sv);
    gta_addr at_rows = gta_lane_left<BN, D>(sk, 0);
    const gta_half *q = gta_row<gta_half>(p.q, t.batch, t.head, t.first);
    const gta_half *dout = gta_row<gta_half>(p.dout, t.batch, t.head, t.first);
    gta_load<BM, D, DD, THREADS, VEC>(sq, q, p.q.row, (int)p.rows - t.first);
    gta_load<BM, E, EE, THREADS, VEC>(sd, dout, p.dout.row, (int)p.rows - t.first);
    gta_load<BN, D, DD, THREADS, VEC>(sk, k, p.k.row, (int)p.cols);
    gta_load<BN, E, EE, THREADS, VEC>(sv, v, p.v.row, (int)p.cols);
    gta_copies_sent();

    // Scalar products of dout and out, and log-sum-exps, of this warp's rows; the gradients of keys read them too.
    float *se = (float *)(sv + 2 * GtaSize<BN, E>::N) + own, *numbers = (float *)p.delta;
    gta_deltas<H, MT * 16, EE, VEC>(p, t, row0, se);
    float delta[MT][2], lse[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = m * 16 + (lane >> 2) + h * 8;
            delta[m][h] = se[r];
            lse[m][h] = gta_lse2(p, t.batch, t.head, row0 + r);
            if ((lane & 3) == 0 && row0 + r < p.rows) {
                numbers[at + row0 + r] = delta[m][h];
                numbers[p.total * p.heads * p.rows + at + row0 + r] = lse[m][h];
            }
        }

    float acc[MT][D / 8][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][n][i] = 0;
    for (int j = 0; j < tiles; j++) {
        gta_addr stage_k = (j & 1) * GtaSize<BN, D>::N * 2, stage_v = (j & 1) * GtaSize<BN, E>::N * 2;
        int col0 = j * BN;
        gta_copies_done();
        __syncthreads();
        if (j + 1 < tiles) {
            int next = col0 + BN, other = (j + 1) & 1;
            gta_half *kn = sk + other * GtaSize<BN, D>::N, *vn = sv + other * GtaSize<BN, E>::N;
            gta_load<BN, D, DD, THREADS, VEC>(kn, k + (gta_int)next * p.k.row, p.k.row, (int)p.cols - next);
            gta_load<BN, E, EE, THREADS, VEC>(vn, v + (gta_int)next * p.v.row, p.v.row, (int)p.cols - next);
            gta_copies_sent();
        }
        if (CAUSAL && col0 > row0 + MT * 16 - 1) continue;
        float s[MT][BN / 8][4], g[MT][BN / 8][4];
        gta_scores<H, MT, BM, BN, D>(s, at_q, at_k + stage_k);
        if (f.turned) gta_turn<MT, BN>(s);
        gta_see<H, MT, BN, CAUSAL, MASK>(s, p, t, f.all, row0, col0);
        gta_scores<H, MT, BM, BN, E>(g, at_d, at_v + stage_v);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float x = gta_exp2(gta_fma(s[m][n][i], f.last, -lse[m][i >> 1]));
                    s[m][n][i] = x * (g[m][n][i] - delta[m][i >> 1]);
                }
        gta_sums<H, MT, BN, D>(acc, s, at_rows + stage_k);
    }
    if (tiles == 0) gta_copies_done();
    __syncthreads();
    float by[2] = {(float)p.scale, (float)p.scale};
#pragma unroll
    for (int m = 0; m < MT; m++) {
        gta_int first = row0 + m * 16;
        gta_half *to = gta_to<gta_half>(p, 0, t.batch, t.head, first);
        gta_store<H, D, DD, VEC>(acc[m], by, sq + warp * GtaSize<16, D>::N, 0, to, p.to[0].row, p.rows - first);
    }
}

// dk and dv of a tile of keys, from every row of every head that shares them, in order. The scores are transposed: a warp
// has 16 keys, and rows are columns.
template <class H, int D, int DD, int E, int EE, int WARPS, int BM, bool DK, bool DV, bool VEC, bool CAUSAL,
          int MASK>
GTA_FN void gta_half_dkv(const GtaParams &p) {
    constexpr int BN = WARPS * 16, THREADS = WARPS * 32;
    if (gta_stop(p)) return;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    GtaTile t = gta_tile<BN>(p.key_heads, p.batches, p.cols, false);
    gta_int group = p.heads / p.key_heads;
    gta_half *sk = (gta_half *)gta_shared, *sv = sk + GtaSize<BN, D>::N;
    gta_half *sq = sv + GtaSize<BN, E>::N, *sd = sq + 2 * GtaSize<BM, D>::N;
    float *sl = (float *)(sd + 2 * GtaSize<BM, E>::N), *se = sl + 2 * BM; // Log-sum-exps and deltas.
    int own = warp * 16;
    int col0 = t.first + own;
    float factor = (float)p.scale * GTA_LOG2E;
    // Tiles of rows that see these keys, for each head in turn.
    int from = CAUSAL ? t.first / BM : 0, until = ((int)p.rows + BM - 1) / BM;
    int each = until > from ? until - from : 0, tiles = each * (int)group;
    gta_addr at_k = gta_lane_left<BN, D>(sk, own), at_v = gta_lane_left<BN, E>(sv, own);
    gta_addr at_q = gta_lane_right<BM, D>(sq), at_d = gta_lane_right<BM, E>(sd);
    gta_addr rows_q = gta_lane_left<BM, D>(sq, 0), rows_d = gta_lane_left<BM, E>(sd, 0);

    float ak[1][DK ? D / 8 : 1][4], av[1][DV ? E / 8 : 1][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int n = 0; n < (DK ? D / 8 : 1); n++) ak[0][n][i] = 0;
#pragma unroll
        for (int n = 0; n < (DV ? E / 8 : 1); n++) av[0][n][i] = 0;
    }
    const gta_half *k = gta_row<gta_half>(p.k, t.batch, t.head, t.first);
    const gta_half *v = gta_row<gta_half>(p.v, t.batch, t.head, t.first);
    gta_load<BN, D, DD, THREADS, VEC>(sk, k, p.k.row, (int)p.cols - t.first);
    gta_load<BN, E, EE, THREADS, VEC>(sv, v, p.v.row, (int)p.cols - t.first);
    auto fetch = [&](int j) {
        gta_int head = t.head * group + j / each;
        int row = (from + j % each) * BM, other = j & 1;
        const gta_half *q = gta_row<gta_half>(p.q, t.batch, head, row);
        const gta_half *dout = gta_row<gta_half>(p.dout, t.batch, head, row);
        gta_load<BM, D, DD, THREADS, VEC>(sq + other * GtaSize<BM, D>::N, q, p.q.row, (int)p.rows - row);
        gta_load<BM, E, EE, THREADS, VEC>(sd + other * GtaSize<BM, E>::N, dout, p.dout.row, (int)p.rows - row);
        const float *numbers = (const float *)p.delta + ((p.first + t.batch) * p.heads + head) * p.rows + row;
        for (int i = threadIdx.x; i < BM; i += THREADS) {
            // Rows that are not there count nothing: their dout is zero.
            int bytes = row + i < (int)p.rows ? 4 : 0;
            const float *at = numbers + (bytes ? i : 0);
            gta_copy4(gta_address(se + other * BM + i), at, bytes);
            gta_copy4(gta_address(sl + other * BM + i), at + p.total * p.heads * p.rows, bytes);
        }
        gta_copies_sent();
    };
    if (tiles > 0) fetch(0);
    else gta_copies_sent();
    for (int j = 0; j < tiles; j++) {
        gta_int head = t.head * group + j / each;
        int row0 = (from + j % each) * BM, stage = j & 1;
        gta_addr stage_q = stage * GtaSize<BM, D>::N * 2, stage_d = stage * GtaSize<BM, E>::N * 2;
        gta_copies_done();
        __syncthreads();
        if (j + 1 < tiles) fetch(j + 1);
        if (CAUSAL && row0 + BM - 1 < col0) continue;
        float s[1][BM / 8][4], g[1][BM / 8][4];
        gta_scores<H, 1, BN, BM, D>(s, at_k, at_q + stage_q);
        bool cut = CAUSAL && row0 < col0 + 15;
#pragma unroll
        for (int n = 0; n < BM / 8; n++) {
            float2 lse = *(const float2 *)(sl + stage * BM + n * 8 + (lane & 3) * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = row0 + n * 8 + (lane & 3) * 2 + (i & 1), col = col0 + (lane >> 2) + (i >> 1) * 8;
                float x = s[0][n][i];
                if (MASK != 0) {
                    bool there = row < (int)p.rows && col < (int)p.cols;
                    float y = there ? gta_masked<H>(0.0f, MASK, p, t.batch, head, row, col) : 0.0f;
                    y = MASK == 1 ? y : y * GTA_LOG2E;
                    x = MASK == 1 && y != 0 ? y : gta_fma(x, factor, y);
                }
                x = gta_exp2(gta_fma(x, MASK == 0 ? factor : 1.0f, -(i & 1 ? lse.y : lse.x)));
                s[0][n][i] = cut && col > row ? 0.0f : x;
            }
        }
        if (DV) gta_sums<H, 1, BM, E>((float(*)[E / 8][4])av, s, rows_d + stage_d);
        if (!DK) continue;
        gta_scores<H, 1, BN, BM, E>(g, at_v, at_d + stage_d);
#pragma unroll
        for (int n = 0; n < BM / 8; n++) {
            float2 delta = *(const float2 *)(se + stage * BM + n * 8 + (lane & 3) * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) g[0][n][i] = s[0][n][i] * (g[0][n][i] - (i & 1 ? delta.y : delta.x));
        }
        gta_sums<H, 1, BM, D>((float(*)[D / 8][4])ak, g, rows_q + stage_q);
    }
    if (tiles == 0) gta_copies_done();
    __syncthreads();
    if (DK) {
        float by[2] = {(float)p.scale, (float)p.scale};
        gta_half *to = gta_to<gta_half>(p, 1, t.batch, t.head, col0);
        gta_int pitch = p.to[1].row;
        gta_store<H, D, DD, VEC>((float(*)[4])ak, by, sk + warp * GtaSize<16, D>::N, 0, to, pitch, p.cols - col0);
    }
    if (DV) {
        float by[2] = {1.0f, 1.0f};
        gta_half *to = gta_to<gta_half>(p, 2, t.batch, t.head, col0);
        gta_int pitch = p.to[2].row;
        gta_store<H, E, EE, VEC>((float(*)[4])av, by, sv + warp * GtaSize<16, E>::N, 0, to, pitch, p.cols - col0);
    }
}
#endif
