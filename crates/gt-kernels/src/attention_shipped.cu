// Kernels of attention that ship compiled. Made by `GT_BLESS=1 cargo test -p gt-kernels --test shipped`.

//# bf16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_bf16_128_128_32_64_100(GtaParams p) {
    gta_half_dkv<GtaBF16, 128, 128, 128, 128, 2, 64, true, true, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_bf16_128_128_32_64_110(GtaParams p) {
    gta_half_dkv<GtaBF16, 128, 128, 128, 128, 2, 64, true, true, true, true, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_128_128_64_64_100(GtaParams p) {
    gta_half_dkv<GtaBF16, 128, 128, 128, 128, 4, 64, true, true, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_128_128_64_64_110(GtaParams p) {
    gta_half_dkv<GtaBF16, 128, 128, 128, 128, 4, 64, true, true, true, true, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_128_128_64_64_wg_100(GtaParams p) {
    gta_hopper_dkv<GtaBF16, 128, 128, 128, 128, 1, 64, false, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_128_128_64_64_wg_110(GtaParams p) {
    gta_hopper_dkv<GtaBF16, 128, 128, 128, 128, 1, 64, true, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_128_128_128_32_100(GtaParams p) {
    gta_half_dq<GtaBF16, 128, 128, 128, 128, 4, 2, 32, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_128_128_128_32_110(GtaParams p) {
    gta_half_dq<GtaBF16, 128, 128, 128, 128, 4, 2, 32, true, true, 0>(p);
}

//# bf16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_bf16_128_128_32_32_100(GtaParams p) {
    gta_half_dq<GtaBF16, 128, 128, 128, 128, 2, 1, 32, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_bf16_128_128_32_32_110(GtaParams p) {
    gta_half_dq<GtaBF16, 128, 128, 128, 128, 2, 1, 32, true, true, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_128_128_64_32_100(GtaParams p) {
    gta_half_dq<GtaBF16, 128, 128, 128, 128, 4, 1, 32, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_128_128_64_32_110(GtaParams p) {
    gta_half_dq<GtaBF16, 128, 128, 128, 128, 4, 1, 32, true, true, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_128_128_64_64_wg_100(GtaParams p) {
    gta_hopper_dq<GtaBF16, 128, 128, 128, 128, 1, 64, false, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_128_128_64_64_wg_110(GtaParams p) {
    gta_hopper_dq<GtaBF16, 128, 128, 128, 128, 1, 64, true, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_128_128_128_64_100(GtaParams p) {
    gta_half_forward<GtaBF16, 128, 128, 128, 128, 4, 2, 64, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_128_128_128_64_110(GtaParams p) {
    gta_half_forward<GtaBF16, 128, 128, 128, 128, 4, 2, 64, true, true, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_bf16_128_128_128_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaBF16, 128, 128, 128, 128, 2, 64, false, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_bf16_128_128_128_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaBF16, 128, 128, 128, 128, 2, 64, true, 0>(p);
}

//# bf16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_bf16_128_128_32_64_100(GtaParams p) {
    gta_half_forward<GtaBF16, 128, 128, 128, 128, 2, 1, 64, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_bf16_128_128_32_64_110(GtaParams p) {
    gta_half_forward<GtaBF16, 128, 128, 128, 128, 2, 1, 64, true, true, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_128_128_64_64_100(GtaParams p) {
    gta_half_forward<GtaBF16, 128, 128, 128, 128, 4, 1, 64, true, false, 0>(p);
}

//# bf16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_128_128_64_64_110(GtaParams p) {
    gta_half_forward<GtaBF16, 128, 128, 128, 128, 4, 1, 64, true, true, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_128_128_64_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaBF16, 128, 128, 128, 128, 1, 64, false, 0>(p);
}

//# bf16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_128_128_64_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaBF16, 128, 128, 128, 128, 1, 64, true, 0>(p);
}

//# bf16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_bf16_64_64_32_64_100(GtaParams p) {
    gta_half_dkv<GtaBF16, 64, 64, 64, 64, 2, 64, true, true, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_bf16_64_64_32_64_110(GtaParams p) {
    gta_half_dkv<GtaBF16, 64, 64, 64, 64, 2, 64, true, true, true, true, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_64_64_64_64_100(GtaParams p) {
    gta_half_dkv<GtaBF16, 64, 64, 64, 64, 4, 64, true, true, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_64_64_64_64_110(GtaParams p) {
    gta_half_dkv<GtaBF16, 64, 64, 64, 64, 4, 64, true, true, true, true, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_64_64_64_64_wg_100(GtaParams p) {
    gta_hopper_dkv<GtaBF16, 64, 64, 64, 64, 1, 64, false, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_bf16_64_64_64_64_wg_110(GtaParams p) {
    gta_hopper_dkv<GtaBF16, 64, 64, 64, 64, 1, 64, true, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_64_64_128_32_100(GtaParams p) {
    gta_half_dq<GtaBF16, 64, 64, 64, 64, 4, 2, 32, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_64_64_128_32_110(GtaParams p) {
    gta_half_dq<GtaBF16, 64, 64, 64, 64, 4, 2, 32, true, true, 0>(p);
}

//# bf16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_bf16_64_64_32_32_100(GtaParams p) {
    gta_half_dq<GtaBF16, 64, 64, 64, 64, 2, 1, 32, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_bf16_64_64_32_32_110(GtaParams p) {
    gta_half_dq<GtaBF16, 64, 64, 64, 64, 2, 1, 32, true, true, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_64_64_64_32_100(GtaParams p) {
    gta_half_dq<GtaBF16, 64, 64, 64, 64, 4, 1, 32, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_64_64_64_32_110(GtaParams p) {
    gta_half_dq<GtaBF16, 64, 64, 64, 64, 4, 1, 32, true, true, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_64_64_64_64_wg_100(GtaParams p) {
    gta_hopper_dq<GtaBF16, 64, 64, 64, 64, 1, 64, false, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_bf16_64_64_64_64_wg_110(GtaParams p) {
    gta_hopper_dq<GtaBF16, 64, 64, 64, 64, 1, 64, true, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_64_64_128_64_100(GtaParams p) {
    gta_half_forward<GtaBF16, 64, 64, 64, 64, 4, 2, 64, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_64_64_128_64_110(GtaParams p) {
    gta_half_forward<GtaBF16, 64, 64, 64, 64, 4, 2, 64, true, true, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_bf16_64_64_128_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaBF16, 64, 64, 64, 64, 2, 64, false, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_bf16_64_64_128_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaBF16, 64, 64, 64, 64, 2, 64, true, 0>(p);
}

//# bf16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_bf16_64_64_32_64_100(GtaParams p) {
    gta_half_forward<GtaBF16, 64, 64, 64, 64, 2, 1, 64, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_bf16_64_64_32_64_110(GtaParams p) {
    gta_half_forward<GtaBF16, 64, 64, 64, 64, 2, 1, 64, true, true, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_64_64_64_64_100(GtaParams p) {
    gta_half_forward<GtaBF16, 64, 64, 64, 64, 4, 1, 64, true, false, 0>(p);
}

//# bf16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_64_64_64_64_110(GtaParams p) {
    gta_half_forward<GtaBF16, 64, 64, 64, 64, 4, 1, 64, true, true, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_64_64_64_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaBF16, 64, 64, 64, 64, 1, 64, false, 0>(p);
}

//# bf16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_bf16_64_64_64_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaBF16, 64, 64, 64, 64, 1, 64, true, 0>(p);
}

//# f16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_f16_128_128_32_64_100(GtaParams p) {
    gta_half_dkv<GtaF16, 128, 128, 128, 128, 2, 64, true, true, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_f16_128_128_32_64_110(GtaParams p) {
    gta_half_dkv<GtaF16, 128, 128, 128, 128, 2, 64, true, true, true, true, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_128_128_64_64_100(GtaParams p) {
    gta_half_dkv<GtaF16, 128, 128, 128, 128, 4, 64, true, true, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_128_128_64_64_110(GtaParams p) {
    gta_half_dkv<GtaF16, 128, 128, 128, 128, 4, 64, true, true, true, true, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_128_128_64_64_wg_100(GtaParams p) {
    gta_hopper_dkv<GtaF16, 128, 128, 128, 128, 1, 64, false, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_128_128_64_64_wg_110(GtaParams p) {
    gta_hopper_dkv<GtaF16, 128, 128, 128, 128, 1, 64, true, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_128_128_128_32_100(GtaParams p) {
    gta_half_dq<GtaF16, 128, 128, 128, 128, 4, 2, 32, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_128_128_128_32_110(GtaParams p) {
    gta_half_dq<GtaF16, 128, 128, 128, 128, 4, 2, 32, true, true, 0>(p);
}

//# f16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_f16_128_128_32_32_100(GtaParams p) {
    gta_half_dq<GtaF16, 128, 128, 128, 128, 2, 1, 32, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_f16_128_128_32_32_110(GtaParams p) {
    gta_half_dq<GtaF16, 128, 128, 128, 128, 2, 1, 32, true, true, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_128_128_64_32_100(GtaParams p) {
    gta_half_dq<GtaF16, 128, 128, 128, 128, 4, 1, 32, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_128_128_64_32_110(GtaParams p) {
    gta_half_dq<GtaF16, 128, 128, 128, 128, 4, 1, 32, true, true, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_128_128_64_64_wg_100(GtaParams p) {
    gta_hopper_dq<GtaF16, 128, 128, 128, 128, 1, 64, false, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_128_128_64_64_wg_110(GtaParams p) {
    gta_hopper_dq<GtaF16, 128, 128, 128, 128, 1, 64, true, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_128_128_128_64_100(GtaParams p) {
    gta_half_forward<GtaF16, 128, 128, 128, 128, 4, 2, 64, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_128_128_128_64_110(GtaParams p) {
    gta_half_forward<GtaF16, 128, 128, 128, 128, 4, 2, 64, true, true, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_f16_128_128_128_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaF16, 128, 128, 128, 128, 2, 64, false, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_f16_128_128_128_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaF16, 128, 128, 128, 128, 2, 64, true, 0>(p);
}

//# f16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_f16_128_128_32_64_100(GtaParams p) {
    gta_half_forward<GtaF16, 128, 128, 128, 128, 2, 1, 64, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_f16_128_128_32_64_110(GtaParams p) {
    gta_half_forward<GtaF16, 128, 128, 128, 128, 2, 1, 64, true, true, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_128_128_64_64_100(GtaParams p) {
    gta_half_forward<GtaF16, 128, 128, 128, 128, 4, 1, 64, true, false, 0>(p);
}

//# f16_128 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_128_128_64_64_110(GtaParams p) {
    gta_half_forward<GtaF16, 128, 128, 128, 128, 4, 1, 64, true, true, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_128_128_64_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaF16, 128, 128, 128, 128, 1, 64, false, 0>(p);
}

//# f16_128 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_128_128_64_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaF16, 128, 128, 128, 128, 1, 64, true, 0>(p);
}

//# f16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_f16_64_64_32_64_100(GtaParams p) {
    gta_half_dkv<GtaF16, 64, 64, 64, 64, 2, 64, true, true, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dkv_f16_64_64_32_64_110(GtaParams p) {
    gta_half_dkv<GtaF16, 64, 64, 64, 64, 2, 64, true, true, true, true, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_64_64_64_64_100(GtaParams p) {
    gta_half_dkv<GtaF16, 64, 64, 64, 64, 4, 64, true, true, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_64_64_64_64_110(GtaParams p) {
    gta_half_dkv<GtaF16, 64, 64, 64, 64, 4, 64, true, true, true, true, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_64_64_64_64_wg_100(GtaParams p) {
    gta_hopper_dkv<GtaF16, 64, 64, 64, 64, 1, 64, false, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_f16_64_64_64_64_wg_110(GtaParams p) {
    gta_hopper_dkv<GtaF16, 64, 64, 64, 64, 1, 64, true, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_64_64_128_32_100(GtaParams p) {
    gta_half_dq<GtaF16, 64, 64, 64, 64, 4, 2, 32, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_64_64_128_32_110(GtaParams p) {
    gta_half_dq<GtaF16, 64, 64, 64, 64, 4, 2, 32, true, true, 0>(p);
}

//# f16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_f16_64_64_32_32_100(GtaParams p) {
    gta_half_dq<GtaF16, 64, 64, 64, 64, 2, 1, 32, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_dq_f16_64_64_32_32_110(GtaParams p) {
    gta_half_dq<GtaF16, 64, 64, 64, 64, 2, 1, 32, true, true, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_64_64_64_32_100(GtaParams p) {
    gta_half_dq<GtaF16, 64, 64, 64, 64, 4, 1, 32, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_64_64_64_32_110(GtaParams p) {
    gta_half_dq<GtaF16, 64, 64, 64, 64, 4, 1, 32, true, true, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_64_64_64_64_wg_100(GtaParams p) {
    gta_hopper_dq<GtaF16, 64, 64, 64, 64, 1, 64, false, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_f16_64_64_64_64_wg_110(GtaParams p) {
    gta_hopper_dq<GtaF16, 64, 64, 64, 64, 1, 64, true, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_64_64_128_64_100(GtaParams p) {
    gta_half_forward<GtaF16, 64, 64, 64, 64, 4, 2, 64, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_64_64_128_64_110(GtaParams p) {
    gta_half_forward<GtaF16, 64, 64, 64, 64, 4, 2, 64, true, true, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_f16_64_64_128_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaF16, 64, 64, 64, 64, 2, 64, false, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(256, 2) gta_forward_f16_64_64_128_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaF16, 64, 64, 64, 64, 2, 64, true, 0>(p);
}

//# f16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_f16_64_64_32_64_100(GtaParams p) {
    gta_half_forward<GtaF16, 64, 64, 64, 64, 2, 1, 64, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(64, 2) gta_forward_f16_64_64_32_64_110(GtaParams p) {
    gta_half_forward<GtaF16, 64, 64, 64, 64, 2, 1, 64, true, true, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_64_64_64_64_100(GtaParams p) {
    gta_half_forward<GtaF16, 64, 64, 64, 64, 4, 1, 64, true, false, 0>(p);
}

//# f16_64 sm_100 sm_80
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_64_64_64_64_110(GtaParams p) {
    gta_half_forward<GtaF16, 64, 64, 64, 64, 4, 1, 64, true, true, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_64_64_64_64_wg_100(GtaParams p) {
    gta_hopper_forward<GtaF16, 64, 64, 64, 64, 1, 64, false, 0>(p);
}

//# f16_64 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_f16_64_64_64_64_wg_110(GtaParams p) {
    gta_hopper_forward<GtaF16, 64, 64, 64, 64, 1, 64, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_128_128_16_64_100(GtaParams p) {
    gta_full_dkv<float, 128, 128, 128, 128, 2, 4, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_128_128_16_64_110(GtaParams p) {
    gta_full_dkv<float, 128, 128, 128, 128, 2, 4, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_128_128_32_32_100(GtaParams p) {
    gta_full_dkv<float, 128, 128, 128, 128, 4, 2, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_128_128_32_32_110(GtaParams p) {
    gta_full_dkv<float, 128, 128, 128, 128, 4, 2, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_128_128_8_16_100(GtaParams p) {
    gta_full_dkv<float, 128, 128, 128, 128, 1, 1, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_128_128_8_16_110(GtaParams p) {
    gta_full_dkv<float, 128, 128, 128, 128, 1, 1, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_128_128_16_64_100(GtaParams p) {
    gta_full_dq<float, 128, 128, 128, 128, 2, 4, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_128_128_16_64_110(GtaParams p) {
    gta_full_dq<float, 128, 128, 128, 128, 2, 4, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_128_128_32_32_100(GtaParams p) {
    gta_full_dq<float, 128, 128, 128, 128, 4, 2, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_128_128_32_32_110(GtaParams p) {
    gta_full_dq<float, 128, 128, 128, 128, 4, 2, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_128_128_8_16_100(GtaParams p) {
    gta_full_dq<float, 128, 128, 128, 128, 1, 1, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_128_128_8_16_110(GtaParams p) {
    gta_full_dq<float, 128, 128, 128, 128, 1, 1, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_16_64_100(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 2, 4, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_16_64_110(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 2, 4, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_32_64_100(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 4, 4, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_32_64_110(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 4, 4, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_64_32_100(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 8, 2, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_64_32_110(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 8, 2, true, true, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_8_16_100(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 1, 1, true, false, 0>(p);
}

//# f32_128 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_128_128_8_16_110(GtaParams p) {
    gta_full_forward<float, 128, 128, 128, 128, 1, 1, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_16_64_100(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 2, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_16_64_110(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 2, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_32_64_100(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 4, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_32_64_110(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 4, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_64_64_100(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 8, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_64_64_110(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 8, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_8_16_100(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 1, 1, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dkv_float_64_64_8_16_110(GtaParams p) {
    gta_full_dkv<float, 64, 64, 64, 64, 1, 1, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_16_64_100(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 2, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_16_64_110(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 2, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_32_64_100(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 4, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_32_64_110(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 4, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_64_64_100(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 8, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_64_64_110(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 8, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_8_16_100(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 1, 1, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_dq_float_64_64_8_16_110(GtaParams p) {
    gta_full_dq<float, 64, 64, 64, 64, 1, 1, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_16_64_100(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 2, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_16_64_110(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 2, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_32_64_100(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 4, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_32_64_110(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 4, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_64_64_100(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 8, 4, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_64_64_110(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 8, 4, true, true, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_8_16_100(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 1, 1, true, false, 0>(p);
}

//# f32_64 sm_100 sm_80 sm_90a
extern "C" __global__ void __launch_bounds__(128, 2) gta_forward_float_64_64_8_16_110(GtaParams p) {
    gta_full_forward<float, 64, 64, 64, 64, 1, 1, true, true, 0>(p);
}
