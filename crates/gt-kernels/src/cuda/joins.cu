
// Reductions. The order of joining is that of `tree.rs`.
#define GT_BLOCK 8192
#define GT_COLUMN_BLOCK 128
#define GT_COLUMN_LANES 8
#define GT_MOST_PARTS 512

GT_FN float gt_least(float) { return __int_as_float(0xff800000); }
GT_FN double gt_least(double) { return __longlong_as_double(0xfff0000000000000ll); }
GT_FN i64 gt_least(i64) { return -0x7fffffffffffffffll - 1; }
GT_FN float gt_most(float) { return __int_as_float(0x7f800000); }
GT_FN double gt_most(double) { return __longlong_as_double(0x7ff0000000000000ll); }
GT_FN i64 gt_most(i64) { return 0x7fffffffffffffffll; }
// How two values are joined, and the value that changes no bit of the other.
struct J_sum {
    template <class T> GT_FN static T none() { return -T(0); }
    template <class T> GT_FN static T join(T a, T b) { return gt_b_add(a, b); }
};
struct J_prod {
    template <class T> GT_FN static T none() { return T(1); }
    template <class T> GT_FN static T join(T a, T b) { return gt_b_mul(a, b); }
};
struct J_max {
    template <class T> GT_FN static T none() { return gt_least(T(0)); }
    template <class T> GT_FN static T join(T a, T b) { return gt_b_max(a, b); }
};
struct J_min {
    template <class T> GT_FN static T none() { return gt_most(T(0)); }
    template <class T> GT_FN static T join(T a, T b) { return gt_b_min(a, b); }
};

// Joins the values of `w` neighbouring threads of a warp; all of them get the result.
template <class J, class T> GT_FN T gt_lanes(T v, int w, J by = J()) {
#pragma unroll
    for (int m = 1; m < 32; m <<= 1) {
        if (m < w) {
            T o = __shfl_xor_sync(0xffffffffu, v, m);
            v = threadIdx.x & m ? by.join(o, v) : by.join(v, o);
        }
    }
    return v;
}

// Shared memory of a block that reduces one row: two sets of places in turn, so that one barrier per reduction is enough.
template <class T> struct gt_room {
    T of[2][16];
};

// Joins the values of `w` threads, the whole block where these are more than a warp; all of them get the result.
template <class J, class T> GT_FN T gt_row_join(T v, int w, gt_room<T>& room, int& turn, J by = J()) {
    if (w <= 32) return gt_lanes<J>(v, w, by);
    v = gt_lanes<J>(v, 32, by);
    T* of = room.of[turn];
    turn ^= 1;
    if (threadIdx.x % 32 == 0) of[threadIdx.x / 32] = v;
    __syncthreads();
    return gt_lanes<J>(of[threadIdx.x % 32 % (w / 32)], w / 32, by);
}

// Joins the results of a row's blocks; every warp does so by itself. Barriers before and behind are the caller's.
template <class J, class T> GT_FN T gt_parts_join(const T* parts, int n, J by = J()) {
    T acc[4];
#pragma unroll
    for (int j = 0; j < 4; j++) acc[j] = by.template none<T>();
    for (int e = threadIdx.x % 32 * 4; e < n; e += 128)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (e + j < n) acc[j] = by.join(acc[j], parts[e + j]);
    return gt_lanes<J>(by.join(by.join(acc[0], acc[1]), by.join(acc[2], acc[3])), 32, by);
}

// Joins the values of the lanes of columns: thread `x` of `width`, lane `y`. The result is lane 0's.
template <class J, class T> GT_FN T gt_columns_join(T v, T* room, int x, int y, int width, J by = J()) {
    room[y * width + x] = v;
#pragma unroll
    for (int half = 1; half < GT_COLUMN_LANES; half <<= 1) {
        __syncthreads();
        if (y % (2 * half) == 0) room[y * width + x] = v = by.join(v, room[(y + half) * width + x]);
    }
    __syncthreads();
    return v;
}

// Vectors at the end of a tensor, of which only `left` elements exist, and elements that do not lie side by side.
template <class D, int V> GT_FN void gt_load_some(const char* p, i64 at, i64 left, typename D::T* x) {
    if (left >= V) return gt_load<D, V>(p, at, x);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = j < left ? gt_get<D>(p, at + j) : typename D::T(0);
}
template <class D, int V> GT_FN void gt_store_some(char* p, i64 at, i64 left, const typename D::T* x) {
    if (left >= V) return gt_store<D, V>(p, at, x);
#pragma unroll
    for (int j = 0; j < V; j++)
        if (j < left) gt_set<D>(p, at + j, x[j]);
}
template <class D, int V> GT_FN bool gt_is_aligned(const char* p, i64 at) {
    return ((u64)p + (u64)at * sizeof(typename D::E)) % gt_pack<typename D::E, V>::WIDE == 0;
}
template <class D, int V> GT_FN void gt_load_perhaps(const char* p, i64 at, i64 left, typename D::T* x) {
    if (left >= V && gt_is_aligned<D, V>(p, at)) return gt_load<D, V>(p, at, x);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = j < left ? gt_get<D>(p, at + j) : typename D::T(0);
}
template <class D, int V> GT_FN void gt_store_perhaps(char* p, i64 at, i64 left, const typename D::T* x) {
    if (left >= V && gt_is_aligned<D, V>(p, at)) return gt_store<D, V>(p, at, x);
#pragma unroll
    for (int j = 0; j < V; j++)
        if (j < left) gt_set<D>(p, at + j, x[j]);
}
template <class D, int V> GT_FN void gt_load_same(const char* p, i64 at, typename D::T* x) {
    const typename D::T v = gt_get<D>(p, at);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = v;
}
template <class D, int V> GT_FN void gt_load_apart(const char* p, i64 at, i64 step, i64 left, typename D::T* x) {
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = j < left ? gt_get<D>(p, at + j * step) : typename D::T(0);
}
template <class D, int V> GT_FN void gt_store_apart(char* p, i64 at, i64 step, i64 left, const typename D::T* x) {
#pragma unroll
    for (int j = 0; j < V; j++)
        if (j < left) gt_set<D>(p, at + j * step, x[j]);
}

// Sizes and addresses of the tensors that one launch updates, and the first block of each.
template <int COUNT, int MOST> struct gt_table {
    u64 n[MOST];
    u64 p[COUNT][MOST];
    u32 first[MOST + 1];
};
