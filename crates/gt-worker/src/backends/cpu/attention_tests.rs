//! Attention against a plain one in f64, with sizes, strides, masks and types where a wrong answer shows.

use super::super::threads::Threads;
use super::*;
use half::{bf16, f16};

struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f64 / (1 << 23) as f64 - 1.0
    }
}

/// A tensor of [b, h, t, w], laid out as [b, t, h, w] (`turned`) or with every second element unused (`spread`).
struct Tensor {
    bytes: Vec<u8>,
    view: View,
    sizes: [usize; 4],
}

impl Tensor {
    fn new(dtype: DType, sizes: [usize; 4], turned: bool, spread: bool) -> Tensor {
        let [b, h, t, w] = sizes;
        let step = if spread { 2 } else { 1 };
        let strides = match turned {
            true => [t * h * w * step, w * step, h * w * step, step],
            false => [h * t * w * step, t * w * step, w * step, step],
        };
        let mut bytes = vec![0xffu8; b * h * t * w * step * dtype.size() + 8];
        let view = View { at: bytes.as_mut_ptr(), dtype, strides: strides.map(|s| s as isize) };
        Tensor { bytes, view, sizes }
    }

    fn place(&self, i: [usize; 4]) -> usize {
        let at: isize = i.iter().zip(self.view.strides).map(|(&i, s)| i as isize * s).sum();
        at as usize * self.view.dtype.size()
    }

    fn get(&self, i: [usize; 4]) -> f64 {
        let at = &self.bytes[self.place(i)..];
        match self.view.dtype {
            DType::F64 => f64::from_ne_bytes(at[..8].try_into().unwrap()),
            DType::F32 => f32::from_ne_bytes(at[..4].try_into().unwrap()) as f64,
            DType::F16 => f16::from_ne_bytes(at[..2].try_into().unwrap()).to_f64(),
            DType::BF16 => bf16::from_ne_bytes(at[..2].try_into().unwrap()).to_f64(),
            _ => at[0] as f64,
        }
    }

    fn set(&mut self, i: [usize; 4], x: f64) {
        let place = self.place(i);
        let at = &mut self.bytes[place..];
        match self.view.dtype {
            DType::F64 => at[..8].copy_from_slice(&x.to_ne_bytes()),
            DType::F32 => at[..4].copy_from_slice(&(x as f32).to_ne_bytes()),
            DType::F16 => at[..2].copy_from_slice(&f16::from_f64(x).to_ne_bytes()),
            DType::BF16 => at[..2].copy_from_slice(&bf16::from_f64(x).to_ne_bytes()),
            _ => at[0] = (x > 0.0) as u8,
        }
    }

    fn each(&self, mut f: impl FnMut([usize; 4])) {
        let [b, h, t, w] = self.sizes;
        for i in 0..b * h * t * w {
            f([i / (h * t * w), i / (t * w) % h, i / w % t, i % w]);
        }
    }

    fn random(mut self, numbers: &mut Numbers) -> Tensor {
        let mut places = Vec::new();
        self.each(|i| places.push(i));
        for i in places {
            let x = numbers.next();
            self.set(i, x);
        }
        self
    }

    fn compare(&self, want: &[f64], bound: f64, what: &str) {
        let mut n = 0;
        self.each(|i| {
            let (got, want) = (self.get(i), want[n]);
            let equal = got == want || (got - want).abs() <= bound * (1.0 + want.abs());
            assert!(equal, "{what} at {i:?}: {got} and {want}");
            n += 1;
        });
    }
}

#[derive(Clone, Copy, Default)]
struct Case {
    b: usize,
    h: usize,
    kv: usize,
    t: usize,
    s: usize,
    d: usize,
    dv: usize,
    causal: bool,
    /// 0 none, 1 bool of [t, s], 2 numbers of [b, 1, 1, s], 3 bool with rows that see nothing.
    mask: usize,
    turned: bool,
    spread: bool,
}

/// What a plain attention gives: out, lse, dq, dk, dv.
fn plain(
    c: &Case,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    grad: &Tensor,
    mask: Option<&Tensor>,
    scale: f64,
) -> [Vec<f64>; 5] {
    let group = c.h / c.kv;
    let mut r = [
        vec![0.0; c.b * c.h * c.t * c.dv],
        vec![f64::NEG_INFINITY; c.b * c.h * c.t],
        vec![0.0; c.b * c.h * c.t * c.d],
        vec![0.0; c.b * c.kv * c.s * c.d],
        vec![0.0; c.b * c.kv * c.s * c.dv],
    ];
    for b in 0..c.b {
        for h in 0..c.h {
            let g = h / group;
            for t in 0..c.t {
                let row = (b * c.h + h) * c.t + t;
                let score = |j: usize| {
                    if c.causal && j > t {
                        return f64::NEG_INFINITY;
                    }
                    let dot: f64 = (0..c.d).map(|e| q.get([b, h, t, e]) * k.get([b, g, j, e])).sum();
                    let more = mask.map_or(0.0, |m| {
                        let at = [b % m.sizes[0], h % m.sizes[1], t % m.sizes[2], j];
                        match m.view.dtype {
                            DType::Bool if m.get(at) == 0.0 => f64::NEG_INFINITY,
                            DType::Bool => 0.0,
                            _ => m.get(at),
                        }
                    });
                    dot * scale + more
                };
                let scores: Vec<f64> = (0..c.s).map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if top == f64::NEG_INFINITY {
                    continue;
                }
                let sum: f64 = scores.iter().map(|x| (x - top).exp()).sum();
                r[1][row] = top + sum.ln();
                let p: Vec<f64> = scores.iter().map(|x| (x - r[1][row]).exp()).collect();
                for e in 0..c.dv {
                    r[0][row * c.dv + e] = (0..c.s).map(|j| p[j] * v.get([b, g, j, e])).sum();
                }
                let dp: Vec<f64> = (0..c.s)
                    .map(|j| (0..c.dv).map(|e| grad.get([b, h, t, e]) * v.get([b, g, j, e])).sum())
                    .collect();
                let delta: f64 = p.iter().zip(&dp).map(|(p, d)| p * d).sum();
                for j in 0..c.s {
                    let ds = p[j] * (dp[j] - delta) * scale;
                    let key = (b * c.kv + g) * c.s + j;
                    for e in 0..c.d {
                        r[2][row * c.d + e] += ds * k.get([b, g, j, e]);
                        r[3][key * c.d + e] += ds * q.get([b, h, t, e]);
                    }
                    for e in 0..c.dv {
                        r[4][key * c.dv + e] += p[j] * grad.get([b, h, t, e]);
                    }
                }
            }
        }
    }
    r
}

fn check(c: Case, dtype: DType) {
    let mut numbers = Numbers(7);
    let make = |sizes| Tensor::new(dtype, sizes, c.turned, c.spread);
    let q = make([c.b, c.h, c.t, c.d]).random(&mut numbers);
    let k = make([c.b, c.kv, c.s, c.d]).random(&mut numbers);
    let v = make([c.b, c.kv, c.s, c.dv]).random(&mut numbers);
    let grad = make([c.b, c.h, c.t, c.dv]).random(&mut numbers);
    let float = if dtype == DType::F16 { DType::F16 } else { DType::F32 };
    let mut mask = match c.mask {
        0 => None,
        2 => Some(Tensor::new(float, [c.b, 1, 1, c.s], false, c.spread).random(&mut numbers)),
        _ => Some(Tensor::new(DType::Bool, [1, 1, c.t, c.s], false, c.spread).random(&mut numbers)),
    };
    if let (3, Some(mask)) = (c.mask, &mut mask) {
        (0..c.s).for_each(|j| mask.set([0, 0, c.t / 2, j], 0.0));
    }
    let shown = mask.as_ref().map(|m| {
        let mut view = m.view;
        (0..3).filter(|&d| m.sizes[d] == 1).for_each(|d| view.strides[d] = 0);
        view
    });
    let scale = 1.3 / (c.d as f64).sqrt();
    let sizes = Sizes {
        batch: c.b,
        heads: c.h,
        kv_heads: c.kv,
        queries: c.t,
        keys: c.s,
        width: c.d,
        value_width: c.dv,
    };
    let x = Attention { sizes, scale, causal: c.causal, mask: shown, q: q.view, k: k.view, v: v.view };
    let want = plain(&c, &q, &k, &v, &grad, mask.as_ref(), scale);
    let bound = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    };
    let mut bits: Vec<Vec<u8>> = Vec::new();
    for threads in [1, 3] {
        let threads = Threads::new(threads);
        let out = make([c.b, c.h, c.t, c.dv]);
        let of_lse = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let lse = Tensor::new(of_lse, [c.b, c.h, c.t, 1], false, false);
        forward(&x, out.view, Some(lse.view), &threads);
        let what = format!(
            "{dtype} b{} h{} kv{} t{} s{} d{} dv{} causal {} mask {}",
            c.b, c.h, c.kv, c.t, c.s, c.d, c.dv, c.causal, c.mask
        );
        out.compare(&want[0], bound, &format!("out of {what}"));
        lse.compare(&want[1], bound, &format!("lse of {what}"));
        let dq = make([c.b, c.h, c.t, c.d]);
        let dk = make([c.b, c.kv, c.s, c.d]);
        let dv = make([c.b, c.kv, c.s, c.dv]);
        let g =
            Gradient { out: out.view, lse: lse.view, grad: grad.view, dq: dq.view, dk: dk.view, dv: dv.view };
        backward(&x, &g, &threads);
        dq.compare(&want[2], bound, &format!("dq of {what}"));
        dk.compare(&want[3], 4.0 * bound, &format!("dk of {what}"));
        dv.compare(&want[4], 4.0 * bound, &format!("dv of {what}"));
        let all = [out, lse, dq, dk, dv].into_iter().flat_map(|x| x.bytes).collect();
        bits.push(all);
    }
    assert!(bits[0] == bits[1], "the bits depend on the threads");
}

#[test]
fn agrees_with_a_plain_one() {
    let base = Case { b: 2, h: 4, kv: 2, t: 50, s: 50, d: 16, dv: 16, ..Case::default() };
    let cases = [
        base,
        Case { causal: true, ..base },
        Case { causal: true, turned: true, t: 128, s: 128, ..base },
        Case { causal: true, t: 30, s: 70, ..base },
        Case { causal: true, t: 70, s: 30, mask: 2, ..base },
        Case { mask: 1, turned: true, ..base },
        Case { mask: 2, d: 13, dv: 7, t: 3, ..base },
        Case { mask: 3, causal: true, h: 3, kv: 1, t: 49, s: 17, ..base },
        Case { mask: 3, spread: true, turned: true, d: 5, dv: 9, ..base },
        Case { s: 0, ..base },
        Case { t: 0, ..base },
        Case { b: 1, h: 1, kv: 1, t: 1, s: 1, d: 1, dv: 1, ..base },
        Case { b: 1, h: 8, kv: 2, t: 1, s: 1300, d: 32, dv: 32, ..base },
        Case { b: 1, h: 8, kv: 2, t: 1, s: 1300, d: 32, dv: 32, mask: 2, ..base },
        Case { b: 1, h: 2, kv: 1, t: 1, s: 9, causal: true, ..base },
        Case { b: 1, h: 2, kv: 1, t: 60, s: 1100, causal: false, mask: 1, ..base },
        Case { b: 1, h: 1, kv: 1, t: 600, s: 600, causal: true, d: 8, dv: 8, ..base },
    ];
    for case in cases {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            check(case, dtype);
        }
    }
}
