// What matrix products need besides the library: operands brought into an order it takes, and products of integers.
// Parameters are structures whose every field is eight bytes.

struct GtmPack {
    const char *from; // Null writes zeros.
    long long start;
    char *to;
    long long count;
    long long sizes[8];
    long long strides[8];
    long long skip; // Bytes of `to` before the first.
};

// Copies `count` elements, shown by a map of eight dimensions, one after another.
template <typename T> static __device__ void gtm_pack(const GtmPack &p) {
    const T *from = (const T *)p.from;
    T *to = (T *)(p.to + p.skip);
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += step) {
        long long rest = i, at = p.start;
#pragma unroll
        for (int d = 7; d >= 0; d--) {
            if (p.sizes[d] != 1) {
                long long q = rest / p.sizes[d];
                at += (rest - q * p.sizes[d]) * p.strides[d];
                rest = q;
            }
        }
        to[i] = from ? from[at] : (T)0;
    }
}

extern "C" __global__ void gtm_pack_1(GtmPack p) { gtm_pack<unsigned char>(p); }
extern "C" __global__ void gtm_pack_2(GtmPack p) { gtm_pack<unsigned short>(p); }
extern "C" __global__ void gtm_pack_4(GtmPack p) { gtm_pack<unsigned int>(p); }
extern "C" __global__ void gtm_pack_8(GtmPack p) { gtm_pack<unsigned long long>(p); }

struct GtmSide {
    const char *at;
    long long start, batch, row, col;
};

struct GtmIntegers {
    GtmSide a, b, bias; // No bias where its address is null.
    char *out;
    long long m, n, k, batches;
};

// One 16 x 16 tile of a product of integers, which wrap around: signs do not matter to the bits that are kept.
template <typename T> static __device__ void gtm_integers(const GtmIntegers &p) {
    __shared__ T left[16][17], right[16][17];
    int x = threadIdx.x & 15, y = threadIdx.x >> 4;
    long long tiles = (p.n + 15) / 16;
    long long col = (long long)(blockIdx.x % tiles) * 16 + x, row = (long long)(blockIdx.x / tiles) * 16 + y;
    long long batch = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    if (batch >= p.batches) {
        return;
    }
    const T *a = (const T *)p.a.at + p.a.start + batch * p.a.batch;
    const T *b = (const T *)p.b.at + p.b.start + batch * p.b.batch;
    T sum = 0;
    for (long long k = 0; k < p.k; k += 16) {
        left[y][x] = row < p.m && k + x < p.k ? a[row * p.a.row + (k + x) * p.a.col] : (T)0;
        right[y][x] = col < p.n && k + y < p.k ? b[(k + y) * p.b.row + col * p.b.col] : (T)0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) {
            sum += (T)((unsigned long long)left[y][i] * right[i][x]);
        }
        __syncthreads();
    }
    if (row < p.m && col < p.n) {
        if (p.bias.at) {
            const T *bias = (const T *)p.bias.at + p.bias.start + batch * p.bias.batch;
            sum += bias[row * p.bias.row + col * p.bias.col];
        }
        ((T *)p.out)[(batch * p.m + row) * p.n + col] = sum;
    }
}

extern "C" __global__ void gtm_integers_1(GtmIntegers p) { gtm_integers<unsigned char>(p); }
extern "C" __global__ void gtm_integers_2(GtmIntegers p) { gtm_integers<unsigned short>(p); }
extern "C" __global__ void gtm_integers_4(GtmIntegers p) { gtm_integers<unsigned int>(p); }
extern "C" __global__ void gtm_integers_8(GtmIntegers p) { gtm_integers<unsigned long long>(p); }
