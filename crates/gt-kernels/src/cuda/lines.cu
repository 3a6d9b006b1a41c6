
// Steps along one dimension of a packed tensor [outer][n][inner]. Words: failure record, result, x, its start, type, outer, n,
// inner, and what the step adds. A line is taken by a block, or by one thread where lines lie side by side.
GT_FN bool gt_better(bool most, i64 a, i64 b) { return most ? a > b : a < b; }
template <class T> GT_FN bool gt_better(bool most, T a, T b) { return b == b && (a != a || (most ? a > b : a < b)); }

// Word 8: the largest, not the smallest; 9: a thread per line.
template <class D> GT_FN void gt_arg_of(const u64* w) {
    typedef typename D::T T;
    __shared__ T values[256];
    __shared__ u64 places[256];
    const u64 n = w[6], inner = w[7], line = w[9] ? gt_thread() : blockIdx.x, t = w[9] ? 0 : threadIdx.x, by = w[9] ? 1 : 256;
    const bool most = w[8];
    if (line >= w[5] * inner) return;
    const u64 o = gt_quotient(line, inner), base = w[3] + o * n * inner + (line - o * inner);
    const char* x = (const char*)w[2];
    T best = T(0);
    u64 at = ~0ull;
    for (u64 j = t; j < n; j += by) {
        const T v = gt_get<D>(x, (i64)(base + j * inner));
        if (at == ~0ull || gt_better(most, v, best)) best = v, at = j;
    }
    if (!w[9]) {
        values[t] = best;
        places[t] = at;
        for (int half = 128; half > 0; half >>= 1) {
            __syncthreads();
            if (t < (u64)half) {
                const T v = values[t + half];
                const u64 p = places[t + half];
                // Of equals, and of NaNs, the first wins.
                const bool same = !gt_better(most, v, best) && !gt_better(most, best, v);
                if (p != ~0ull && (at == ~0ull || gt_better(most, v, best) || (same && p < at))) {
                    values[t] = best = v;
                    places[t] = at = p;
                }
            }
        }
    }
    if (t == 0) ((u64*)w[1])[line] = at == ~0ull ? 0 : at;
}
GT_STEP(gt_arg_reduce, 256) {
    if (gt_failed(d.w[0])) return;
#define X(D) gt_arg_of<D>(d.w);
    GT_EACH_DTYPE((int)d.w[4], X)
#undef X
}

// What running totals are kept in: singles as doubles.
template <class D> struct gt_total { typedef typename D::T A; };
template <> struct gt_total<D_f32> { typedef double A; };

// Word 8: products, not sums; 9: a thread per line.
template <class D, class J> GT_FN void gt_scan_of(const u64* w) {
    typedef typename gt_total<D>::A A;
    __shared__ A room[8];
    const u64 n = w[6], inner = w[7], line = w[9] ? gt_thread() : blockIdx.x;
    if (line >= w[5] * inner) return;
    const u64 o = gt_quotient(line, inner), base = o * n * inner + (line - o * inner);
    const char* x = (const char*)w[2];
    char* y = (char*)w[1];
    A carry = J::template none<A>();
    if (w[9]) {
        for (u64 j = 0; j < n; j++) {
            carry = J::join(carry, (A)gt_get<D>(x, (i64)(w[3] + base + j * inner)));
            gt_set<D>(y, (i64)(base + j * inner), D::of(carry));
        }
        return;
    }
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    for (u64 first = 0; first < n; first += 1024) {
        A v[4], sum = J::template none<A>();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u64 e = first + t * 4 + j;
            if (e < n) sum = J::join(sum, (A)gt_get<D>(x, (i64)(w[3] + base + e * inner)));
            v[j] = sum;
        }
        // The totals of the threads before this one in the warp, then of the warps before, then of the tiles before.
        A all = sum;
        for (int m = 1; m < 32; m <<= 1) {
            const A other = __shfl_up_sync(0xffffffffu, all, m);
            if (lane >= m) all = J::join(other, all);
        }
        A before = __shfl_up_sync(0xffffffffu, all, 1);
        if (lane == 0) before = J::template none<A>();
        if (lane == 31) room[warp] = all;
        __syncthreads();
        A warps = carry;
        for (int k = 0; k < 8; k++) {
            if (k < warp) warps = J::join(warps, room[k]);
            carry = J::join(carry, room[k]);
        }
        __syncthreads();
        before = J::join(warps, before);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u64 e = first + t * 4 + j;
            if (e < n) gt_set<D>(y, (i64)(base + e * inner), D::of(J::join(before, v[j])));
        }
    }
}
GT_STEP(gt_scan, 256) {
    if (gt_failed(d.w[0])) return;
#define X(D)                                                                                                        \
    if (d.w[8]) gt_scan_of<D, J_prod>(d.w); else gt_scan_of<D, J_sum>(d.w);
    GT_EACH_DTYPE((int)d.w[4], X)
#undef X
}

// Word 8: the logarithm; 9: 32 lines side by side per block, 8 threads each.
template <class D> GT_FN void gt_softmax_of(const u64* w) {
    typedef typename D::T T;
    __shared__ gt_room<T> room;
    __shared__ T columns[256];
    const u64 n = w[6], inner = w[7], side = w[9];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32, t = side ? y : threadIdx.x, by = side ? 8 : 256;
    const u64 across = side ? (inner + 31) / 32 : inner;
    const u64 o = gt_quotient(blockIdx.x, across), part = blockIdx.x - o * across, lane = side ? part * 32 + x : part;
    const bool live = lane < inner;
    const u64 base = o * n * inner + lane;
    const char* from = (const char*)w[2];
    int turn = 0;
    T top = J_max::none<T>();
    if (live)
        for (u64 j = t; j < n; j += by) top = J_max::join(top, gt_get<D>(from, (i64)(w[3] + base + j * inner)));
    top = side ? gt_columns_join<J_max>(top, columns, x, y, 32) : gt_row_join<J_max>(top, 256, room, turn);
    if (side) {
        if (y == 0) columns[x] = top;
        __syncthreads();
        top = columns[x];
        __syncthreads();
    }
    T total = J_sum::none<T>();
    if (live)
        for (u64 j = t; j < n; j += by) total += exp(gt_get<D>(from, (i64)(w[3] + base + j * inner)) - top);
    total = side ? gt_columns_join<J_sum>(total, columns, x, y, 32) : gt_row_join<J_sum>(total, 256, room, turn);
    if (side) {
        if (y == 0) columns[x] = total;
        __syncthreads();
        total = columns[x];
    }
    const T less = w[8] ? log(total) : T(1) / total;
    if (live)
        for (u64 j = t; j < n; j += by) {
            const T v = gt_get<D>(from, (i64)(w[3] + base + j * inner)) - top;
            gt_set<D>((char*)w[1], (i64)(base + j * inner), w[8] ? v - less : exp(v) * less);
        }
}
GT_STEP(gt_softmax, 256) {
    if (gt_failed(d.w[0])) return;
    switch ((int)d.w[4]) {
        case 6: gt_softmax_of<D_f16>(d.w); break;
        case 7: gt_softmax_of<D_bf16>(d.w); break;
        case 8: gt_softmax_of<D_f32>(d.w); break;
        default: gt_softmax_of<D_f64>(d.w); break;
    }
}
