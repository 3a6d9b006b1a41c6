//! Elementary functions of `f32` without branches, so that loops over them become vector code. Within 2 ulp
//! everywhere; `gelu` within 2.5 above -1, to 3e-4 of its size from there to -6.4, and zero below.
//!
//! Where `mul_add` stands it is meant: the same bits with and without vector units.

use super::lanes::{Lanes, MAGIC, PIECES};
use super::phi;
use gt_ir::real::Real;

/// An `f32` whose functions are these.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Fast(pub f32);

#[inline(always)]
fn pick(on: bool, a: f32, b: f32) -> f32 {
    if on { a } else { b }
}

const LN2_HI: f32 = 0.693_145_75;
const LN2_LO: f32 = 1.428_606_8e-6;

#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits(((k + 127) as u32) << 23)
}

/// The polynomial with these coefficients, the highest first.
#[inline(always)]
fn poly<V: Lanes, const N: usize>(x: V, c: [f32; N]) -> V {
    let mut p = V::all(c[0]);
    for c in &c[1..] {
        p = p.fma(x, V::all(*c));
    }
    p
}

/// (t, r) with x = n ln 2 + r and t = `MAGIC` + n, for |x| up to about 200.
#[inline(always)]
fn reduce_ln2<V: Lanes>(x: V) -> (V, V) {
    let t = x.fma(V::all(std::f32::consts::LOG2_E), V::all(MAGIC));
    let n = t.sub(V::all(MAGIC));
    (t, n.fma(V::all(-LN2_LO), n.fma(V::all(-LN2_HI), x)))
}

/// (exp(r) - 1 - r) / r^2 for |r| < 0.35.
#[inline(always)]
fn exp_tail<V: Lanes>(r: V) -> V {
    poly(r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5])
}

/// exp(r) for |r| < 0.35, to 3e-9 before rounding.
#[inline(always)]
fn exp_part<V: Lanes>(r: V) -> V {
    poly(r, [1.382_122_5e-3, 8.368_667e-3, 4.166_826e-2, 1.666_652_1e-1, 4.999_999_4e-1, 1.0, 1.0])
}

#[inline(always)]
pub fn exp<V: Lanes>(x: V) -> V {
    let (t, r) = reduce_ln2(x.at_most(89.0).at_least(-105.0));
    exp_part(r).scaled(t)
}

/// `exp` for what is not above zero, as in a softmax: below the least normal number it is zero.
#[inline(always)]
pub fn exp_below<V: Lanes>(x: V) -> V {
    let (t, r) = reduce_ln2(x);
    let y = V::pick(x.is_nan(), x, exp_part(r).raised(t));
    V::pick(x.less(V::all(-87.33)), V::all(0.0), y)
}

#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let at = pick(x > 89.0, 89.0, x);
    let at = pick(at < -20.0, -20.0, at);
    let (t, r) = reduce_ln2(at);
    let n = (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let q = exp_tail(r).mul_add(r * r, r);
    let half = n >> 1;
    let (a, b) = (power_of_two(half), power_of_two(n.wrapping_sub(half)));
    let y = (q * a).mul_add(b, a * b - 1.0);
    // Where the one no longer counts, and a * b may be infinite while the result is not.
    let y = pick(n > 100, (q + 1.0) * a * b, y);
    pick(x == 0.0, x, y)
}

/// (e, f, tail) with log(x) = f - f^2 / 2 + tail + e ln 2, for positive normal x.
#[inline(always)]
fn log_parts(x: f32) -> (f32, f32, f32) {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_add(0x3f80_0000 - SQRT_HALF);
    let e = (bits >> 23) as i32 - 127;
    let f = f32::from_bits((bits & 0x007f_ffff) + SQRT_HALF) - 1.0;
    let p = 7.037_683_6e-2f32;
    let p = p.mul_add(f, -1.151_461e-1);
    let p = p.mul_add(f, 1.167_699_9e-1);
    let p = p.mul_add(f, -1.242_014_1e-1);
    let p = p.mul_add(f, 1.424_932_3e-1);
    let p = p.mul_add(f, -1.666_805_8e-1);
    let p = p.mul_add(f, 2.000_071_5e-1);
    let p = p.mul_add(f, -2.499_999_4e-1);
    let p = p.mul_add(f, 3.333_333e-1);
    (e as f32, f, p * f * f * f)
}

#[inline(always)]
pub fn log(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let (e, f, tail) = log_parts(pick(small, x * 8_388_608.0, x));
    let e = pick(small, e - 23.0, e);
    let y = e.mul_add(LN2_LO, (-0.5 * f).mul_add(f, tail));
    let y = e.mul_add(LN2_HI, f + y);
    let y = pick(x == f32::INFINITY || x.is_nan(), x, y);
    let y = pick(x == 0.0, f32::NEG_INFINITY, y);
    pick(x < 0.0, f32::NAN, y)
}

#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // What the sum lost, as a share of it.
    let lost = pick(u < 2.0, x - (u - 1.0), 1.0 - (u - x));
    let y = log(u) + pick(u == f32::INFINITY, 0.0, lost / u);
    let y = pick(u == 0.0, f32::NEG_INFINITY, y);
    pick(x.abs() < 1e-7, x, y)
}

#[inline(always)]
pub fn tanh<V: Lanes>(x: V) -> V {
    let t = x.abs();
    let z = x.mul(x);
    let p = poly(z, [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let near = p.mul(z).fma(x, x);
    let far = V::all(1.0).sub(V::all(2.0).div(exp(t.add(t)).add(V::all(1.0))));
    V::pick(t.less(V::all(0.625)), near, far).signed_as(x)
}

#[inline(always)]
pub fn sigmoid<V: Lanes>(x: V) -> V {
    // The exponential of what is not above zero cannot overflow.
    let e = exp(x.abs().neg());
    V::pick(x.less(V::all(0.0)), e, V::all(1.0)).div(V::all(1.0).add(e))
}

#[inline(always)]
pub fn silu<V: Lanes>(x: V) -> V {
    // Far below zero exp(-x) would overflow, and 1 + exp(x) is 1.
    let far = x.less(V::all(-80.0));
    // The sign is turned by bits: as a choice between two arguments it would be compiled to two exponentials.
    let e = exp(x.neg().neg_where(far));
    V::pick(far, x.mul(e), x.div(V::all(1.0).add(e)))
}

/// Up to here `erf` is a polynomial, beyond it 1 - erfc.
const ERF_NEAR: f32 = 0.927_734_4;

/// erf for |x| < `ERF_NEAR`.
#[inline(always)]
fn erf_near<V: Lanes>(x: V) -> V {
    let c = [-5.967_617e-4, 4.991_194e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1];
    poly(x.mul(x), c).fma(x, x)
}

/// erfc for t > `ERF_NEAR`; a few ulp.
#[inline(always)]
fn erfc_far<V: Lanes>(t: V) -> V {
    let t = t.at_most(5.0);
    let s = t.mul(t);
    let r = poly(t, [-1.728_534_7e-5, 3.831_971_3e-4]);
    let u = poly(t, [-3.883_964_4e-3, 2.425_462_2e-2]);
    let r = r.fma(s, u);
    let r = r.fma(t, V::all(-1.067_778_8e-1));
    let r = r.fma(t, V::all(-6.348_467e-1));
    let r = r.fma(t, V::all(-1.287_175_1e-1));
    exp_below(r.fma(t, t.neg()))
}

#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = x.abs();
    let y = pick(t > ERF_NEAR, (1.0 - erfc_far(t)).copysign(x), erf_near(x));
    pick(x.is_nan(), x, y)
}

/// x Phi(x).
#[inline(always)]
pub fn gelu<V: Lanes>(x: V) -> V {
    let (t, part) = pieces(x.abs(), &phi::LESS);
    part.fma(t, x.at_least(0.0))
}

/// The derivative of `gelu`: Phi(x) + x phi(x).
#[inline(always)]
pub fn gelu_grad<V: Lanes>(x: V) -> V {
    let (_, part) = pieces(x.abs(), &phi::SLOPE);
    V::pick(x.less(V::all(0.0)), part, V::all(1.0).sub(part))
}

/// (t, f(t)) of t >= 0, held below where f has become zero: near i / `STEPS` f is the polynomial whose coefficients, the
/// highest first, are the i-th of each row.
#[inline(always)]
fn pieces<V: Lanes, const N: usize>(t: V, rows: &[[f32; PIECES]; N]) -> (V, V) {
    use phi::STEPS;
    let t = t.at_most((PIECES - 1) as f32 / STEPS);
    let at = t.fma(V::all(STEPS), V::all(MAGIC));
    let d = t.fma(V::all(STEPS), V::all(MAGIC).sub(at));
    let mut p = at.look_up(&rows[0]);
    for row in &rows[1..] {
        p = p.fma(d, at.look_up(row));
    }
    (t, p)
}

/// (quadrant, r) with x = quadrant * pi / 2 + r, for |x| < 2^30.
#[inline(always)]
fn reduce_pi(x: f32) -> (i32, f32) {
    const MAGIC64: f64 = 6_755_399_441_055_744.0;
    let x = x as f64;
    let t = x.mul_add(std::f64::consts::FRAC_2_PI, MAGIC64);
    let n = t - MAGIC64;
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    (t.to_bits() as i32, r as f32)
}

#[inline(always)]
fn sin_quadrant(q: i32, r: f32) -> f32 {
    let s = r * r;
    let p = -1.951_529_6e-4f32;
    let p = p.mul_add(s, 8.332_161e-3);
    let p = p.mul_add(s, -1.666_665_5e-1);
    let sin = (p * s).mul_add(r, r);
    let p = 2.443_315_7e-5f32;
    let p = p.mul_add(s, -1.388_731_6e-3);
    let p = p.mul_add(s, 4.166_664_6e-2);
    let cos = p.mul_add(s * s, (-0.5f32).mul_add(s, 1.0));
    let y = pick(q & 1 == 0, sin, cos);
    f32::from_bits(y.to_bits() ^ (((q & 2) as u32) << 30))
}

/// Beyond this `sin` and `cos` are left to the standard library.
pub const TRIG_LIMIT: f32 = 1_073_741_824.0;

#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (q, r) = reduce_pi(x);
    pick(x == 0.0, x, sin_quadrant(q, r))
}

#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (q, r) = reduce_pi(x);
    sin_quadrant(q.wrapping_add(1), r)
}

/// The largest whole number not above a / b, which rounding may have lifted to the next one.
#[inline(always)]
fn floor_div(a: f32, b: f32) -> f32 {
    let q = (a / b).floor();
    // Whole numbers up to here are exact, and so is the sign of what is left.
    if q.abs() < 4_194_304.0 && b.is_finite() {
        let left = q.mul_add(-b, a);
        return if left != 0.0 && (left < 0.0) != (b < 0.0) { q - 1.0 } else { q };
    }
    Real::floor_div(a, b)
}

macro_rules! arithmetic {
    ($($Trait:ident $method:ident),*) => {$(
        impl std::ops::$Trait for Fast {
            type Output = Fast;
            #[inline(always)]
            fn $method(self, b: Fast) -> Fast {
                Fast(std::ops::$Trait::$method(self.0, b.0))
            }
        }
    )*};
}

arithmetic!(Add add, Sub sub, Mul mul, Div div);

impl std::ops::Neg for Fast {
    type Output = Fast;
    #[inline(always)]
    fn neg(self) -> Fast {
        Fast(-self.0)
    }
}

macro_rules! functions {
    ($($name:ident = $f:path),*) => {$(
        #[inline(always)]
        fn $name(self) -> Fast {
            Fast($f(self.0))
        }
    )*};
}

impl Real for Fast {
    #[inline(always)]
    fn of(x: f64) -> Fast {
        Fast(x as f32)
    }
    functions! {
        exp = exp, expm1 = expm1, log = log, log1p = log1p, sqrt = f32::sqrt, sin = sin, cos = cos, tanh = tanh,
        erf = erf, abs = f32::abs, floor = f32::floor, ceil = f32::ceil, trunc = f32::trunc,
        round = f32::round_ties_even, sigmoid = sigmoid, gelu = gelu, gelu_grad = gelu_grad, silu = silu,
        asin = f32::asin, acos = f32::acos, atan = f32::atan
    }
    fn atan2(self, across: Fast) -> Fast {
        Fast(self.0.atan2(across.0))
    }
    #[inline(always)]
    fn relu(self) -> Fast {
        // NaN passes the comparison as it is not below.
        if self.0 < 0.0 { Fast(0.0) } else { self }
    }
    #[inline(always)]
    fn maximum(self, b: Fast) -> Fast {
        if self.0.is_nan() || self.0 > b.0 { self } else { b }
    }
    #[inline(always)]
    fn minimum(self, b: Fast) -> Fast {
        if self.0.is_nan() || self.0 < b.0 { self } else { b }
    }
    #[inline(always)]
    fn floor_div(self, b: Fast) -> Fast {
        Fast(floor_div(self.0, b.0))
    }
    fn pow(self, e: Fast) -> Fast {
        Fast(self.0.powf(e.0))
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.0.is_nan()
    }
    #[inline(always)]
    fn modulo(self, b: Fast) -> Fast {
        Fast(Real::modulo(self.0, b.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error over a dense sample, in ulp of the result (of the least normal number below that).
    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, lo: f32, hi: f32) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        let n = 400_000;
        for i in 0..=n {
            let x = lo + (hi - lo) * (i as f32 / n as f32);
            let want = exact(x as f64);
            let got = f(x);
            if (want as f32).is_infinite() && got.is_infinite() {
                continue;
            }
            let scale = (want.abs() as f32).max(f32::MIN_POSITIVE);
            let ulp = (f32::from_bits(scale.to_bits() + 1) - scale) as f64;
            let error = (got as f64 - want).abs() / ulp;
            if error.is_nan() || error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    #[test]
    fn within_two_ulp() {
        let sigmoid64 = |x: f64| 1.0 / (1.0 + (-x).exp());
        let gelu64 = |x: f64| 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f32, f32);
        let cases: &[Case] = &[
            ("exp", exp, f64::exp, -87.0, 88.9),
            ("exp", exp, f64::exp, -1.0, 1.0),
            ("exp_below", exp_below, f64::exp, -87.32, 0.0),
            ("exp_below", exp_below, f64::exp, -1.0, 1e-3),
            ("expm1", expm1, f64::exp_m1, -30.0, 88.0),
            ("expm1", expm1, f64::exp_m1, -1.0, 1.0),
            ("expm1", expm1, f64::exp_m1, -1e-3, 1e-3),
            ("log", log, f64::ln, 1e-38, 1.0),
            ("log", log, f64::ln, 0.5, 2.0),
            ("log", log, f64::ln, 1.0, 1e38),
            ("log1p", log1p, f64::ln_1p, -0.99, 4.0),
            ("log1p", log1p, f64::ln_1p, -1e-3, 1e-3),
            ("log1p", log1p, f64::ln_1p, 1.0, 1e30),
            ("tanh", tanh, f64::tanh, -10.0, 10.0),
            ("tanh", tanh, f64::tanh, -1e-2, 1e-2),
            ("sigmoid", sigmoid, sigmoid64, -80.0, 80.0),
            ("sigmoid", sigmoid, sigmoid64, -4.0, 4.0),
            ("silu", silu, |x| x / (1.0 + (-x).exp()), -80.0, 80.0),
            ("erf", erf, libm::erf, -6.0, 6.0),
            ("erf", erf, libm::erf, -0.1, 0.1),
            ("sin", sin, f64::sin, -10.0, 10.0),
            ("sin", sin, f64::sin, -1e6, 1e6),
            ("sin", sin, f64::sin, 1e8, 1e9),
            ("cos", cos, f64::cos, -10.0, 10.0),
            ("cos", cos, f64::cos, -1e6, 1e6),
            ("gelu", gelu, gelu64, -1.0, 30.0),
            ("gelu", gelu, gelu64, -1e-3, 1e-3),
        ];
        for &(name, f, exact, lo, hi) in cases {
            let (error, x) = worst(f, exact, lo, hi);
            let bound = if matches!(name, "sigmoid" | "silu" | "gelu") { 2.5 } else { 2.0 };
            assert!(error <= bound, "{name} on {lo}..{hi}: {error:.2} ulp at {x}");
        }
        // On the far negative side gelu keeps its size; 1 + erf would not.
        for i in 0..5400 {
            let x = -6.4 + i as f32 / 1000.0;
            let (got, want) = (gelu(x) as f64, gelu64(x as f64));
            assert!((got - want).abs() <= 3e-4 * want.abs(), "gelu({x}): {got} and {want}");
        }
        let bell = |x: f64| (-0.5 * x * x).exp() * 0.398_942_280_401_432_7;
        for i in -9000..=9000 {
            let x = i as f32 / 1000.0;
            let want =
                0.5 * libm::erfc(-x as f64 * std::f64::consts::FRAC_1_SQRT_2) + x as f64 * bell(x as f64);
            let got = gelu_grad(x) as f64;
            assert!((got - want).abs() <= 1.2e-7, "gelu_grad({x}): {got} and {want}");
        }
    }

    /// Bit patterns all over f32, subnormals and infinities included.
    #[test]
    fn within_two_ulp_everywhere() {
        type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64);
        let cases: &[Case] = &[
            ("exp", exp, f64::exp),
            ("expm1", expm1, f64::exp_m1),
            ("log", log, f64::ln),
            ("log1p", log1p, f64::ln_1p),
            ("tanh", tanh, f64::tanh),
            ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
            ("silu", silu, |x| x / (1.0 + (-x).exp())),
            ("erf", erf, libm::erf),
            ("sin", sin, f64::sin),
            ("cos", cos, f64::cos),
        ];
        for &(name, f, exact) in cases {
            let mut worst = (0.0, 0.0);
            let mut bits = 0u32;
            loop {
                let x = f32::from_bits(bits);
                let trig = matches!(name, "sin" | "cos");
                if !x.is_nan() && (!trig || x.abs() < TRIG_LIMIT) {
                    let (got, want) = (f(x), exact(x as f64));
                    let near = want as f32;
                    // The product of a subnormal number has its error.
                    let least = if name == "silu" { 128.0 } else { 1.0 } * f32::MIN_POSITIVE;
                    let scale = near.abs().clamp(least, f32::MAX);
                    let ulp = (scale as f64 - f32::from_bits(scale.to_bits() - 1) as f64).abs();
                    let error = match got == near || (got.is_nan() && near.is_nan()) {
                        true => 0.0,
                        false => (got as f64 - want).abs() / ulp,
                    };
                    if error.is_nan() || error > worst.0 {
                        worst = (error, x);
                    }
                }
                match bits.checked_add(2503) {
                    Some(next) => bits = next,
                    None => break,
                }
            }
            println!("{name:8} {:.3} ulp at {:e}", worst.0, worst.1);
            let bound = if name == "silu" { 2.5 } else { 2.0 };
            assert!(worst.0 <= bound, "{name}: {:.2} ulp at {:e}", worst.0, worst.1);
        }
    }

    #[test]
    fn edges() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!((exp(inf), exp(-inf), exp(100.0), exp(-200.0)), (inf, 0.0, inf, 0.0));
        assert!(exp(nan).is_nan() && log(nan).is_nan() && log(-1.0).is_nan() && tanh(nan).is_nan());
        assert!(erf(nan).is_nan() && sin(nan).is_nan() && expm1(nan).is_nan() && log1p(nan).is_nan());
        assert!(gelu(nan).is_nan() && silu(nan).is_nan() && sigmoid(nan).is_nan() && log1p(-2.0).is_nan());
        assert_eq!((exp_below(-inf), exp_below(-88.0), exp_below(0.0)), (0.0, 0.0, 1.0));
        assert!(exp_below(nan).is_nan());
        assert_eq!((log(0.0), log(inf), log(1.0), log1p(-1.0)), (-inf, inf, 0.0, -inf));
        assert_eq!((expm1(inf), expm1(-inf), log1p(inf)), (inf, -1.0, inf));
        assert_eq!((tanh(inf), tanh(-inf), erf(inf), erf(-inf)), (1.0, -1.0, 1.0, -1.0));
        assert_eq!((sigmoid(inf), sigmoid(-inf), gelu(-inf), gelu(inf)), (1.0, 0.0, 0.0, inf));
        assert_eq!((gelu_grad(-inf), gelu_grad(0.0), gelu_grad(inf)), (0.0, 0.5, 1.0));
        assert!(gelu_grad(nan).is_nan());
        assert_eq!(Fast(-0.0).relu().0, 0.0);
        assert!(Fast(nan).relu().0.is_nan());
        for f in [sin, tanh, erf, expm1, log1p, gelu] {
            assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
        }
        assert!((log(1e-42) - (1e-42f32 as f64).ln() as f32).abs() < 1e-4);
    }
}
