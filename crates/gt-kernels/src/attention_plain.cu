#ifdef GTA_PARTS
// Attention for every type and size: a warp for a row (or for a column of keys and values), 32 of the others at a time.

// Where a row's elements are kept: as many to a lane.
#define GTA_EACH 16
#define GTA_PART (32 * GTA_EACH)

template <class D> GTA_FN typename D::T gta_dot(const typename D::E *a, const typename D::E *b, gta_int n) {
    typename D::T sum = 0;
    for (gta_int i = 0; i < n; i++) sum = gta_fma(D::get(a[i]), D::get(b[i]), sum);
    return sum;
}

// acc += w of each of the first `n` lanes times the elements of its row.
template <class D> GTA_FN void gta_add_rows(
    typename D::T *acc, typename D::T w, const typename D::E *rows, gta_int step, int n, gta_int width) {
    int lane = threadIdx.x & 31;
    for (int l = 0; l < n; l++) {
        typename D::T one = __shfl_sync(0xffffffffu, w, l);
        const typename D::E *row = rows + l * step;
#pragma unroll
        for (int j = 0; j < GTA_EACH; j++) {
            if (j * 32 + lane < width) acc[j] = gta_fma(one, D::get(row[j * 32 + lane]), acc[j]);
        }
    }
}

template <class D> GTA_FN void gta_put_row(typename D::E *to, const typename D::T *acc, typename D::T by, gta_int width) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int j = 0; j < GTA_EACH; j++) {
        if (j * 32 + lane < width) to[j * 32 + lane] = D::put(acc[j] * by);
    }
}

// This warp's row of one head of one batch, and which part of the result's elements.
struct GtaWhere {
    gta_int batch, head, row, part;
    bool there;
};
GTA_FN GtaWhere gta_where(gta_int batches, gta_int heads, gta_int rows, gta_int width) {
    gta_int warp = ((gta_int)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    gta_int parts = width > GTA_PART ? (width + GTA_PART - 1) / GTA_PART : 1;
    GtaWhere w;
    w.there = warp < batches * heads * rows * parts;
    w.part = warp % parts * GTA_PART;
    warp /= parts;
    w.row = warp % rows;
    w.head = warp / rows % heads;
    w.batch = warp / rows / heads;
    return w;
}

template <class D> GTA_FN void gta_plain_forward(const GtaParams &p) {
    typedef typename D::T T;
    typedef typename D::E E;
    if (gta_stop(p)) return;
    GtaWhere w = gta_where(p.batches, p.heads, p.rows, p.e);
    if (!w.there) return;
    int lane = threadIdx.x & 31;
    gta_int kv = w.head / (p.heads / p.key_heads);
    gta_int seen = p.causal && w.row + 1 < p.cols ? w.row + 1 : p.cols;
    const E *q = gta_row<E>(p.q, w.batch, w.head, w.row);
    const E *k = gta_row<E>(p.k, w.batch, kv, 0), *v = gta_row<E>(p.v, w.batch, kv, 0) + w.part;
    T acc[GTA_EACH] = {}, top = gta_least<T>(), sum = 0;
    for (gta_int c = 0; c < seen; c += 32) {
        T s = gta_least<T>();
        if (c + lane < seen) {
            s = gta_dot<D>(q, k + (c + lane) * p.k.row, p.d) * (T)p.scale;
            s = gta_masked<D>(s, (int)p.mask_kind, p, w.batch, w.head, w.row, c + lane);
        }
        T next = gta_max(top, gta_warp_max(s));
        T base = next == gta_least<T>() ? (T)0 : next;
        T old = gta_exp(top - base), x = c + lane < seen ? gta_exp(s - base) : (T)0;
        sum = gta_fma(sum, old, gta_warp_sum(x));
#pragma unroll
        for (int j = 0; j < GTA_EACH; j++) acc[j] *= old;
        gta_add_rows<D>(acc, x, v + c * p.v.row, p.v.row, seen - c < 32 ? (int)(seen - c) : 32, p.e - w.part);
        top = next;
    }
    gta_put_row<D>(gta_to<E>(p, 0, w.batch, w.head, w.row) + w.part, acc, sum == 0 ? (T)0 : (T)1 / sum, p.e - w.part);
    if (lane == 0 && w.part == 0)
        *gta_to<T>(p, 1, w.batch, w.head, w.row) = sum == 0 ? gta_least<T>() : top + gta_log(sum);
}

template <class D> GTA_FN void gta_plain_delta(const GtaParams &p) {
    typedef typename D::T T;
    typedef typename D::E E;
    if (gta_stop(p)) return;
    GtaWhere w = gta_where(p.batches, p.heads, p.rows, 1);
    if (!w.there) return;
    const E *a = gta_row<E>(p.out, w.batch, w.head, w.row), *b = gta_row<E>(p.dout, w.batch, w.head, w.row);
    T sum = 0;
    for (gta_int i = threadIdx.x & 31; i < p.e; i += 32) sum = gta_fma(D::get(a[i]), D::get(b[i]), sum);
    sum = gta_warp_sum(sum);
    if ((threadIdx.x & 31) == 0) ((T *)p.delta)[((p.first + w.batch) * p.heads + w.head) * p.rows + w.row] = sum;
}

// The probability of a score, and the gradient of the score before the scale.
template <class D> GTA_FN void gta_plain_pair(
    const GtaParams &p, gta_int batch, gta_int head, gta_int row, gta_int col, typename D::T *x, typename D::T *ds) {
    typedef typename D::T T;
    typedef typename D::E E;
    gta_int kv = head / (p.heads / p.key_heads);
    T s = gta_dot<D>(gta_row<E>(p.q, batch, head, row), gta_row<E>(p.k, batch, kv, col), p.d) * (T)p.scale;
    s = gta_masked<D>(s, (int)p.mask_kind, p, batch, head, row, col);
    T lse = *gta_row<T>(p.lse, batch, head, row);
    *x = lse == gta_least<T>() ? (T)0 : gta_exp(s - lse);
    T dp = gta_dot<D>(gta_row<E>(p.dout, batch, head, row), gta_row<E>(p.v, batch, kv, col), p.e);
    *ds = *x * (dp - ((const T *)p.delta)[((p.first + batch) * p.heads + head) * p.rows + row]);
}

template <class D> GTA_FN void gta_plain_dq(const GtaParams &p) {
    typedef typename D::T T;
    typedef typename D::E E;
    if (gta_stop(p)) return;
    GtaWhere w = gta_where(p.batches, p.heads, p.rows, p.d);
    if (!w.there) return;
    int lane = threadIdx.x & 31;
    gta_int kv = w.head / (p.heads / p.key_heads);
    gta_int seen = p.causal && w.row + 1 < p.cols ? w.row + 1 : p.cols;
    const E *k = gta_row<E>(p.k, w.batch, kv, 0) + w.part;
    T acc[GTA_EACH] = {};
    for (gta_int c = 0; c < seen; c += 32) {
        T x, ds = 0;
        if (c + lane < seen) gta_plain_pair<D>(p, w.batch, w.head, w.row, c + lane, &x, &ds);
        gta_add_rows<D>(acc, ds, k + c * p.k.row, p.k.row, seen - c < 32 ? (int)(seen - c) : 32, p.d - w.part);
    }
    gta_put_row<D>(gta_to<E>(p, 0, w.batch, w.head, w.row) + w.part, acc, (T)p.scale, p.d - w.part);
}

// dk (where `keys`) or dv of one column, from every row of every head that shares it, in order.
template <class D> GTA_FN void gta_plain_dkv(const GtaParams &p, bool keys) {
    typedef typename D::T T;
    typedef typename D::E E;
    if (gta_stop(p)) return;
    gta_int width = keys ? p.d : p.e;
    GtaWhere w = gta_where(p.batches, p.key_heads, p.cols, width);
    if (!w.there) return;
    int lane = threadIdx.x & 31;
    gta_int group = p.heads / p.key_heads;
    const GtaView &from = keys ? p.q : p.dout;
    T acc[GTA_EACH] = {};
    for (gta_int head = w.head * group; head < (w.head + 1) * group; head++) {
        for (gta_int r = p.causal ? w.row : 0; r < p.rows; r += 32) {
            T x = 0, ds = 0;
            if (r + lane < p.rows) gta_plain_pair<D>(p, w.batch, head, r + lane, w.row, &x, &ds);
            const E *rows = gta_row<E>(from, w.batch, head, r) + w.part;
            int n = p.rows - r < 32 ? (int)(p.rows - r) : 32;
            gta_add_rows<D>(acc, keys ? ds : x, rows, from.row, n, width - w.part);
        }
    }
    E *to = gta_to<E>(p, keys ? 1 : 2, w.batch, w.head, w.row) + w.part;
    gta_put_row<D>(to, acc, keys ? (T)p.scale : (T)1, width - w.part);
}

#define GTA_PLAIN(name, D)                                                                                           \
    extern "C" __global__ void gta_plain_forward_##name(GtaParams p) { gta_plain_forward<D>(p); }                    \
    extern "C" __global__ void gta_plain_delta_##name(GtaParams p) { gta_plain_delta<D>(p); }                        \
    extern "C" __global__ void gta_plain_dq_##name(GtaParams p) { gta_plain_dq<D>(p); }                              \
    extern "C" __global__ void gta_plain_dk_##name(GtaParams p) { gta_plain_dkv<D>(p, true); }                       \
    extern "C" __global__ void gta_plain_dv_##name(GtaParams p) { gta_plain_dkv<D>(p, false); }
GTA_PLAIN(f16, GtaF16)
GTA_PLAIN(bf16, GtaBF16)
GTA_PLAIN(f32, GtaF32)
GTA_PLAIN(f64, GtaF64)
#endif
