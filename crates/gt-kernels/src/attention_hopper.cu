#ifndef GTA_HOPPER
#define GTA_HOPPER
// Attention of half types by Hopper's products of four warps (wgmma), which run while the warps go on: in gradients, scores
// become probabilities while the second product is made. Every group of four warps has 64 rows (or keys) of its own; all
// warps of a block copy the tiles that pass by. Two blocks of a multiprocessor fill each other's gaps.
//
// Rows start at multiples of 16 bytes, and W, the elements of a row in shared memory, is a multiple of 64.

#ifndef GT_EMULATE
// Waits until at most PENDING products, those begun last, are not done.
template <int PENDING> GTA_FN void gta_wg_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving these registers' other uses past here: products read and write them aside.
template <int N> GTA_FN void gta_wg_keep(float *c) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
template <int N> GTA_FN void gta_wg_keep(gta_word *c) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(c[i])::"memory");
}
// Keeps the compiler from waiting for products before the work that is written first: that there is no barrier here is known
// only once these numbers, none below zero, are.
GTA_FN void gta_before(int never) {
    asm volatile("{.reg .pred p; setp.lt.s32 p, %0, 0; @p bar.sync 15, 128;}" ::"r"(never) : "memory");
}
// The same number in all lanes, which the compiler then knows.
GTA_FN int gta_even(int x) { return __shfl_sync(0xffffffffu, x, 0); }
#endif

// A number below zero if one of some of these is.
template <int N> GTA_FN int gta_signs(float (*s)[4]) {
    int x = 0;
#pragma unroll
    for (int n = 0; n < N; n++) x |= __float_as_int(s[n][3]);
    return x;
}

// s = 64 rows of the left tile (which has ROWS) times rows of the right one, transposed; begun, not done.
template <class H, int ROWS, int N, int W>
GTA_FN void gta_begin_scores(float *s, unsigned long long left, unsigned long long right) {
    gta_wg_begin();
#pragma unroll
    for (int k = 0; k < W / 16; k++)
        GtaWg<H, N>::both(s, left + ((k >> 2) * (ROWS * 128) + (k & 3) * 32) / 16,
                          right + ((k >> 2) * (N * 128) + (k & 3) * 32) / 16, k > 0);
    gta_wg_sent();
}

// acc += a times the rows of the right tile; begun, not done.
template <class H, int N, int W> GTA_FN void gta_begin_sums(float *acc, gta_word (*a)[4], unsigned long long right) {
    gta_wg_keep<W / 2>(acc);
    gta_wg_keep<N / 4>(&a[0][0]);
    gta_wg_begin();
#pragma unroll
    for (int k = 0; k < N / 16; k++) GtaWg<H, W>::right(acc, a[k], right + k * 2048 / 16);
    gta_wg_sent();
}

// Numbers rounded to the element type, as a left operand.
template <class H, int N> GTA_FN void gta_round(gta_word (*a)[4], float (*s)[4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        a[k][0] = H::two(s[2 * k][0], s[2 * k][1]);
        a[k][1] = H::two(s[2 * k][2], s[2 * k][3]);
        a[k][2] = H::two(s[2 * k + 1][0], s[2 * k + 1][1]);
        a[k][3] = H::two(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}

// How many tiles of BN columns 64 rows from `row` on see.
template <int BN, bool CAUSAL> GTA_FN int gta_seen(int row, int tiles) {
    if (!CAUSAL) return tiles;
    int seen = (row + 63) / BN + 1;
    return seen < tiles ? seen : tiles;
}

// Waits for copies and lets all warps of the block see them.
GTA_FN void gta_arrived() {
    gta_copies_done();
    gta_wg_written();
    __syncthreads();
}

template <class H, int D, int DD, int E, int EE, int GROUPS, int BN, bool CAUSAL, int MASK>
GTA_FN void gta_hopper_forward(const GtaParams &p) {
    constexpr int BM = GROUPS * 64, THREADS = GROUPS * 128;
    if (gta_stop(p)) return;
    int warp = gta_even((int)threadIdx.x >> 5), lane = threadIdx.x & 31, group = warp >> 2;
    GtaTile t = gta_tile<BM>(p.heads, p.batches, p.rows, CAUSAL);
    gta_int kv = t.head / (p.heads / p.key_heads);
    gta_half *sq = (gta_half *)gta_shared, *sk = sq + GtaSize<BM, D>::N, *sv = sk + 2 * GtaSize<BN, D>::N;
    const gta_half *k = gta_row<gta_half>(p.k, t.batch, kv, 0), *v = gta_row<gta_half>(p.v, t.batch, kv, 0);
    int seen = CAUSAL && t.first + BM < (int)p.cols ? t.first + BM : (int)p.cols;
    int tiles = (seen + BN - 1) / BN, mine = gta_seen<BN, CAUSAL>(t.first + group * 64, tiles);
    int row0 = t.first + warp * 16;
    GtaFactor f = gta_factor<MASK>(p);
    unsigned long long at_q = gta_desc(gta_address(sq) + group * (64 * 128), 16, 1024);
    unsigned long long at_k = gta_desc(gta_address(sk), 16, 1024), at_v = gta_desc(gta_address(sv), BN * 128, 1024);

    float acc[E / 8][4], top[2], sum[2];
#pragma unroll
    for (int n = 0; n < E / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0;
    top[0] = top[1] = gta_least<float>();
    sum[0] = sum[1] = 0;
    auto fetch = [&](int j) {
        if (j < tiles) {
            gta_half *kn = sk + (j & 1) * GtaSize<BN, D>::N, *vn = sv + (j & 1) * GtaSize<BN, E>::N;
            gta_load<BN, D, DD, THREADS, true>(kn, k + (gta_int)(j * BN) * p.k.row, p.k.row, (int)p.cols - j * BN);
            gta_load<BN, E, EE, THREADS, true>(vn, v + (gta_int)(j * BN) * p.v.row, p.v.row, (int)p.cols - j * BN);
        }
        gta_copies_sent();
    };
    const gta_half *q = gta_row<gta_half>(p.q, t.batch, t.head, t.first);
    gta_load<BM, D, DD, THREADS, true>(sq, q, p.q.row, (int)p.rows - t.first);
    fetch(0);
    for (int j = 0; j < tiles; j++) {
        gta_arrived();
        fetch(j + 1);
        if (j >= mine) continue;
        float s[BN / 8][4], old[2];
        gta_begin_scores<H, BM, BN, D>(&s[0][0], at_q, at_k + (j & 1) * (GtaSize<BN, D>::N / 8));
        gta_wg_wait<0>();
        gta_wg_keep<BN / 2>(&s[0][0]);
        float(*u)[BN / 8][4] = (float(*)[BN / 8][4])s;
        if (f.turned) gta_turn<1, BN>(u);
        gta_see<H, 1, BN, CAUSAL, MASK>(u, p, t, f.all, row0, j * BN);
        // Scores as probabilities over the largest score so far; `old` takes earlier sums to it.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = s[0][2 * h];
#pragma unroll
            for (int n = 0; n < BN / 8; n++) x = gta_max(x, gta_max(s[n][2 * h], s[n][2 * h + 1]));
            x = gta_max(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = gta_max(x, __shfl_xor_sync(0xffffffffu, x, 2));
            x = gta_max(x == gta_least<float>() ? x : x * f.last, top[h]);
            float base = x == gta_least<float>() ? 0.0f : x;
            old[h] = gta_exp2(top[h] - base);
            top[h] = x;
            sum[h] *= old[h];
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    s[n][i] = gta_exp2(gta_fma(s[n][i], f.last, -base));
                    sum[h] += s[n][i];
                }
        }
        // The sums first, so that the scores need no registers any more.
        gta_before(__float_as_int(sum[0]) | __float_as_int(sum[1]));
        gta_word a[BN / 16][4];
        gta_round<H, BN>(a, s);
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][i] *= old[i >> 1];
        gta_begin_sums<H, BN, E>(&acc[0][0], a, at_v + (j & 1) * (GtaSize<BN, E>::N / 8));
        gta_wg_wait<0>();
        gta_wg_keep<E / 2>(&acc[0][0]);
    }
    gta_copies_done();
    __syncthreads(); // The tile of queries serves to write results.
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float x = sum[h];
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        x += __shfl_xor_sync(0xffffffffu, x, 2);
        by[h] = x == 0 ? 0.0f : 1.0f / x;
        int row = row0 + (lane >> 2) + h * 8;
        if ((lane & 3) == 0 && row < (int)p.rows)
            *gta_to<float>(p, 1, t.batch, t.head, row) =
                x == 0 ? gta_least<float>() : gta_fma(top[h], GTA_LN2, logf(x));
    }
    gta_half *to = gta_to<gta_half>(p, 0, t.batch, t.head, row0);
    gta_store<H, E, EE, true>(acc, by, sq + warp * GtaSize<16, E>::N, 0, to, p.to[0].row, p.rows - row0);
}

// dq of a tile of rows; also leaves what the gradients of keys and values read of each row.
template <class H, int D, int DD, int E, int EE, int GROUPS, int BN, bool CAUSAL, int MASK>
GTA_FN void gta_hopper_dq(const GtaParams &p) {
    constexpr int BM = GROUPS * 64, THREADS = GROUPS * 128;
    if (gta_stop(p)) return;
    int warp = gta_even((int)threadIdx.x >> 5), lane = threadIdx.x & 31, group = warp >> 2;
    GtaTile t = gta_tile<BM>(p.heads, p.batches, p.rows, CAUSAL);
    gta_int kv = t.head / (p.heads / p.key_heads);
    gta_half *sq = (gta_half *)gta_shared, *sd = sq + GtaSize<BM, D>::N;
    gta_half *sk = sd + GtaSize<BM, E>::N, *sv = sk + 2 * GtaSize<BN, D>::N;
    const gta_half *k = gta_row<gta_half>(p.k, t.batch, kv, 0), *v = gta_row<gta_half>(p.v, t.batch, kv, 0);
    int seen = CAUSAL && t.first + BM < (int)p.cols ? t.first + BM : (int)p.cols;
    int tiles = (seen + BN - 1) / BN, mine = gta_seen<BN, CAUSAL>(t.first + group * 64, tiles);
    int own = warp * 16, row0 = t.first + own;
    GtaFactor f = gta_factor<MASK>(p);
    gta_int at = ((p.first + t.batch) * p.heads + t.head) * p.rows;
    unsigned long long at_q = gta_desc(gta_address(sq) + group * (64 * 128), 16, 1024);
    unsigned long long at_d = gta_desc(gta_address(sd) + group * (64 * 128), 16, 1024);
    unsigned long long at_k = gta_desc(gta_address(sk), 16, 1024), at_v = gta_desc(gta_address(sv), 16, 1024);
    unsigned long long at_rows = gta_desc(gta_address(sk), BN * 128, 1024);

    auto fetch = [&](int j) {
        if (j < tiles) {
            gta_half *kn = sk + (j & 1) * GtaSize<BN, D>::N, *vn = sv + (j & 1) * GtaSize<BN, E>::N;
            gta_load<BN, D, DD, THREADS, true>(kn, k + (gta_int)(j * BN) * p.k.row, p.k.row, (int)p.cols - j * BN);
            gta_load<BN, E, EE, THREADS, true>(vn, v + (gta_int)(j * BN) * p.v.row, p.v.row, (int)p.cols - j * BN);
        }
        gta_copies_sent();
    };
    const gta_half *q = gta_row<gta_half>(p.q, t.batch, t.head, t.first);
    const gta_half *dout = gta_row<gta_half>(p.dout, t.batch, t.head, t.first);
    gta_load<BM, D, DD, THREADS, true>(sq, q, p.q.row, (int)p.rows - t.first);
    gta_load<BM, E, EE, THREADS, true>(sd, dout, p.dout.row, (int)p.rows - t.first);
    fetch(0);

    // Scalar products of dout and out, and log-sum-exps, of this warp's rows; the gradients of keys read them too.
    float *se = (float *)(sv + 2 * GtaSize<BN, E>::N) + own, *numbers = (float *)p.delta;
    gta_deltas<H, 16, EE, true>(p, t, row0, se);
    float delta[2], lse[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = (lane >> 2) + h * 8;
        delta[h] = se[r];
        lse[h] = gta_lse2(p, t.batch, t.head, row0 + r);
        if ((lane & 3) == 0 && row0 + r < p.rows) {
            numbers[at + row0 + r] = delta[h];
            numbers[p.total * p.heads * p.rows + at + row0 + r] = lse[h];
        }
    }

    float acc[D / 8][4];
    gta_word a[BN / 16][4];
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0;
    for (int j = 0; j < tiles; j++) {
        int stage = j & 1;
        gta_arrived();
        fetch(j + 1);
        if (j >= mine) continue;
        float s[BN / 8][4], g[BN / 8][4];
        gta_begin_scores<H, BM, BN, D>(&s[0][0], at_q, at_k + stage * (GtaSize<BN, D>::N / 8));
        gta_begin_scores<H, BM, BN, E>(&g[0][0], at_d, at_v + stage * (GtaSize<BN, E>::N / 8));
        gta_wg_wait<1>();
        gta_wg_keep<BN / 2>(&s[0][0]);
        float(*u)[BN / 8][4] = (float(*)[BN / 8][4])s;
        if (f.turned) gta_turn<1, BN>(u);
        gta_see<H, 1, BN, CAUSAL, MASK>(u, p, t, f.all, row0, j * BN);
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = gta_exp2(gta_fma(s[n][i], f.last, -lse[i >> 1]));
        gta_before(gta_signs<BN / 8>(s));
        gta_wg_wait<0>();
        gta_wg_keep<BN / 2>(&g[0][0]);
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] *= g[n][i] - delta[i >> 1];
        gta_round<H, BN>(a, s);
        gta_begin_sums<H, BN, D>(&acc[0][0], a, at_rows + stage * (GtaSize<BN, D>::N / 8));
        gta_wg_wait<0>();
        gta_wg_keep<D / 2>(&acc[0][0]);
    }
    gta_copies_done();
    __syncthreads();
    float by[2] = {(float)p.scale, (float)p.scale};
    gta_half *to = gta_to<gta_half>(p, 0, t.batch, t.head, row0);
    gta_store<H, D, DD, true>(acc, by, sq + warp * GtaSize<16, D>::N, 0, to, p.to[0].row, p.rows - row0);
}

// dk and dv of a tile of keys, from every row of every head that shares them, in order. The scores are transposed: a warp
// has 16 keys, and rows are columns.
template <class H, int D, int DD, int E, int EE, int GROUPS, int BM, bool CAUSAL, int MASK>
GTA_FN void gta_hopper_dkv(const GtaParams &p) {
    constexpr int BN = GROUPS * 64, THREADS = GROUPS * 128;
    if (gta_stop(p)) return;
    int warp = gta_even((int)threadIdx.x >> 5), lane = threadIdx.x & 31, four = warp >> 2;
    GtaTile t = gta_tile<BN>(p.key_heads, p.batches, p.cols, false);
    int group = (int)(p.heads / p.key_heads);
    gta_half *sk = (gta_half *)gta_shared, *sv = sk + GtaSize<BN, D>::N;
    gta_half *sq = sv + GtaSize<BN, E>::N, *sd = sq + 2 * GtaSize<BM, D>::N;
    float *sl = (float *)(sd + 2 * GtaSize<BM, E>::N), *se = sl + 2 * BM; // Log-sum-exps and deltas.
    int col0 = t.first + warp * 16;
    float factor = (float)p.scale * GTA_LOG2E;
    // Tiles of rows that see these keys, for each head in turn.
    int from = CAUSAL ? t.first / BM : 0, until = ((int)p.rows + BM - 1) / BM;
    unsigned long long at_k = gta_desc(gta_address(sk) + four * (64 * 128), 16, 1024);
    unsigned long long at_v = gta_desc(gta_address(sv) + four * (64 * 128), 16, 1024);
    unsigned long long at_q = gta_desc(gta_address(sq), 16, 1024), at_d = gta_desc(gta_address(sd), 16, 1024);
    unsigned long long rows_q = gta_desc(gta_address(sq), BM * 128, 1024);
    unsigned long long rows_d = gta_desc(gta_address(sd), BM * 128, 1024);

    float ak[D / 8][4], av[E / 8][4];
    gta_word a[BM / 16][4], b[BM / 16][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) ak[n][i] = 0;
#pragma unroll
        for (int n = 0; n < E / 8; n++) av[n][i] = 0;
    }
    // Where the next tile to be copied is, and which of two it is copied to.
    int ahead_head = (int)t.head * group, ahead = from, stage = 0;
    auto fetch = [&]() {
        if (ahead < until && ahead_head < ((int)t.head + 1) * group) {
            int row = ahead * BM;
            const gta_half *q = gta_row<gta_half>(p.q, t.batch, ahead_head, row);
            const gta_half *dout = gta_row<gta_half>(p.dout, t.batch, ahead_head, row);
            gta_load<BM, D, DD, THREADS, true>(sq + stage * GtaSize<BM, D>::N, q, p.q.row, (int)p.rows - row);
            gta_load<BM, E, EE, THREADS, true>(sd + stage * GtaSize<BM, E>::N, dout, p.dout.row, (int)p.rows - row);
            const float *numbers = (const float *)p.delta + ((p.first + t.batch) * p.heads + ahead_head) * p.rows + row;
            for (int i = threadIdx.x; i < BM; i += THREADS) {
                // Rows that are not there count nothing: their dout is zero.
                int bytes = row + i < (int)p.rows ? 4 : 0;
                const float *at = numbers + (bytes ? i : 0);
                gta_copy4(gta_address(se + stage * BM + i), at, bytes);
                gta_copy4(gta_address(sl + stage * BM + i), at + p.total * p.heads * p.rows, bytes);
            }
            if (++ahead == until) ahead = from, ahead_head++;
        }
        gta_copies_sent();
        stage ^= 1;
    };
    const gta_half *k = gta_row<gta_half>(p.k, t.batch, t.head, t.first);
    const gta_half *v = gta_row<gta_half>(p.v, t.batch, t.head, t.first);
    gta_load<BN, D, DD, THREADS, true>(sk, k, p.k.row, (int)p.cols - t.first);
    gta_load<BN, E, EE, THREADS, true>(sv, v, p.v.row, (int)p.cols - t.first);
    fetch();
    // The first tile of rows that sees this group's keys.
    int first = CAUSAL ? (t.first + four * 64) / BM : 0;
    for (int head = (int)t.head * group; head < ((int)t.head + 1) * group; head++) {
        for (int tile = from; tile < until; tile++) {
            int row0 = tile * BM;
            gta_arrived();
            fetch();
            if (tile < first) continue;
            float s[BM / 8][4], g[BM / 8][4];
            gta_begin_scores<H, BN, BM, D>(&s[0][0], at_k, at_q + stage * (GtaSize<BM, D>::N / 8));
            gta_begin_scores<H, BN, BM, E>(&g[0][0], at_v, at_d + stage * (GtaSize<BM, E>::N / 8));
            gta_wg_wait<1>();
            gta_wg_keep<BM / 2>(&s[0][0]);
            bool cut = CAUSAL && row0 < col0 + 15;
#pragma unroll
            for (int n = 0; n < BM / 8; n++) {
                float2 lse = *(const float2 *)(sl + stage * BM + n * 8 + (lane & 3) * 2);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = row0 + n * 8 + (lane & 3) * 2 + (i & 1), col = col0 + (lane >> 2) + (i >> 1) * 8;
                    float x = s[n][i];
                    if (MASK != 0) {
                        bool there = row < (int)p.rows && col < (int)p.cols;
                        float y = there ? gta_masked<H>(0.0f, MASK, p, t.batch, head, row, col) : 0.0f;
                        y = MASK == 1 ? y : y * GTA_LOG2E;
                        x = MASK == 1 && y != 0 ? y : gta_fma(x, factor, y);
                    }
                    s[n][i] = gta_exp2(gta_fma(x, MASK == 0 ? factor : 1.0f, -(i & 1 ? lse.y : lse.x)));
                }
            }
            if (cut) {
#pragma unroll
                for (int n = 0; n < BM / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int row = row0 + n * 8 + (lane & 3) * 2 + (i & 1), col = col0 + (lane >> 2) + (i >> 1) * 8;
                        if (col > row) s[n][i] = 0.0f;
                    }
            }
            gta_round<H, BM>(a, s);
            gta_begin_sums<H, BM, E>(&av[0][0], a, rows_d + stage * (GtaSize<BM, E>::N / 8));
            gta_wg_wait<1>();
            gta_wg_keep<BM / 2>(&g[0][0]);
#pragma unroll
            for (int n = 0; n < BM / 8; n++) {
                float2 delta = *(const float2 *)(se + stage * BM + n * 8 + (lane & 3) * 2);
#pragma unroll
                for (int i = 0; i < 4; i++) g[n][i] = s[n][i] * (g[n][i] - (i & 1 ? delta.y : delta.x));
            }
            gta_round<H, BM>(b, g);
            gta_begin_sums<H, BM, D>(&ak[0][0], b, rows_q + stage * (GtaSize<BM, D>::N / 8));
            gta_wg_wait<0>();
            gta_wg_keep<D / 2>(&ak[0][0]);
            gta_wg_keep<E / 2>(&av[0][0]);
        }
    }
    gta_copies_done();
    __syncthreads();
    float scale[2] = {(float)p.scale, (float)p.scale}, one[2] = {1.0f, 1.0f};
    gta_half *to = gta_to<gta_half>(p, 1, t.batch, t.head, col0);
    gta_store<H, D, DD, true>(ak, scale, sk + warp * GtaSize<16, D>::N, 0, to, p.to[1].row, p.cols - col0);
    to = gta_to<gta_half>(p, 2, t.batch, t.head, col0);
    gta_store<H, E, EE, true>(av, one, sv + warp * GtaSize<16, E>::N, 0, to, p.to[2].row, p.cols - col0);
}
#endif
