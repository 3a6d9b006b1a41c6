//! The table of elementwise ops: one row is one op, with its text name, what it takes, its meaning on reals and
//! integers, its CUDA text, the interval tests draw from, what its gradient needs, and the gradient itself.

use crate::build::{Build, Saved};
use crate::real::Real;
use crate::{DType, Kind, Result};
use serde::{Deserialize, Serialize};

/// Which element types an op takes and gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Floating point only.
    Float,
    /// Integers and floating point.
    Number,
    /// Any type.
    Any,
    /// Bool and integers.
    Bits,
}

impl Takes {
    /// True if operands of `dtype` are allowed.
    pub fn accepts(self, dtype: DType) -> bool {
        match self {
            Takes::Float => dtype.kind() == Kind::Float,
            Takes::Number => dtype.kind() != Kind::Bool,
            Takes::Any => true,
            Takes::Bits => dtype.kind() != Kind::Float,
        }
    }

    /// In words, for error messages.
    pub fn words(self) -> &'static str {
        match self {
            Takes::Float => "a floating-point tensor",
            Takes::Number => "an integer or floating-point tensor",
            Takes::Any => "any tensor",
            Takes::Bits => "a bool or integer tensor",
        }
    }
}

/// Which operands and results a gradient reads; only these are kept for the backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Bit i: operand i.
    pub args: u32,
    /// The results.
    pub outs: bool,
}

macro_rules! needs {
    () => {
        Needs { args: 0, outs: false }
    };
    (x) => {
        Needs { args: 1, outs: false }
    };
    (y) => {
        Needs { args: 0, outs: true }
    };
    (a b) => {
        Needs { args: 3, outs: false }
    };
    (b) => {
        Needs { args: 2, outs: false }
    };
    (a b y) => {
        Needs { args: 3, outs: true }
    };
}

macro_rules! unary_table {
    ($($(#[$doc:meta])* $Name:ident $text:literal $takes:ident,
        |$x:ident| $real:expr, $int:expr, $cuda:literal, $domain:expr, [$($need:ident)*], |$b:ident, $g:ident, $s:ident| $grad:expr;)*) => {
        /// Elementwise ops of one operand whose result has the operand's type.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum Unary { $($(#[$doc])* $Name),* }

        impl Unary {
            /// Every row of the table.
            pub const ALL: &'static [Unary] = &[$(Unary::$Name),*];

            /// The name in the text form.
            pub const fn text(self) -> &'static str {
                match self { $(Unary::$Name => $text),* }
            }

            /// The element types it takes.
            pub const fn takes(self) -> Takes {
                match self { $(Unary::$Name => Takes::$takes),* }
            }

            /// Its meaning on reals.
            #[inline(always)]
            pub fn real<T: Real>(self, x: T) -> T {
                match self { $(Unary::$Name => { let $x = x; $real })* }
            }

            /// Its meaning on integers; the result is truncated to the element type.
            #[inline(always)]
            pub fn int(self, x: i64) -> i64 {
                match self { $(Unary::$Name => { let f: fn(i64) -> i64 = $int; f(x) })* }
            }

            /// Its CUDA text, in terms of `x` of the computing type `T`.
            pub const fn cuda(self) -> &'static str {
                match self { $(Unary::$Name => $cuda),* }
            }

            /// An interval of inputs on which a wrong answer shows.
            pub const fn domain(self) -> (f64, f64) {
                match self { $(Unary::$Name => $domain),* }
            }

            /// What the gradient reads.
            pub const fn needs(self) -> Needs {
                match self { $(Unary::$Name => needs!($($need)*)),* }
            }

            /// The gradient of the operand, or `None` where it is zero everywhere.
            pub fn grad<B: Build>(self, b: &mut B, g: &B::V, s: &Saved<B::V>) -> Result<Option<B::V>> {
                match self { $(Unary::$Name => { let ($b, $g, $s) = (b, g, s); let _ = (&$b, &$g, &$s); $grad })* }
            }
        }
    };
}

#[inline(always)]
fn one<T: Real>() -> T {
    T::of(1.0)
}

const NO_INT: fn(i64) -> i64 = |x| x;

unary_table! {
    Neg "NEG" Number, |x| -x, |x| x.wrapping_neg(), "-x", (-3.0, 3.0), [], |b, g, s| b.un(Unary::Neg, g).map(Some);
    Abs "ABS" Number, |x| x.abs(), |x| x.wrapping_abs(), "fabs(x)", (-3.0, 3.0), [x],
        |b, g, s| { let sign = b.un(Unary::Sign, s.arg(0)?)?; b.mul(g, &sign).map(Some) };
    Sign "SIGN" Number, |x| x.sign(), |x| x.signum(), "T((x > T(0)) - (x < T(0)))", (-3.0, 3.0), [], |b, g, s| Ok(None);
    Exp "EXP" Float, |x| x.exp(), NO_INT, "exp(x)", (-3.0, 3.0), [y], |b, g, s| b.mul(g, s.out(0)?).map(Some);
    Expm1 "EXPM1" Float, |x| x.expm1(), NO_INT, "expm1(x)", (-3.0, 3.0), [y],
        |b, g, s| { let e = b.bin(Binary::Add, s.out(0)?, 1.0)?; b.mul(g, &e).map(Some) };
    Log "LOG" Float, |x| x.log(), NO_INT, "log(x)", (0.2, 4.0), [x],
        |b, g, s| b.bin(Binary::Div, g, s.arg(0)?).map(Some);
    Log1p "LOG1P" Float, |x| x.log1p(), NO_INT, "log1p(x)", (-0.5, 4.0), [x],
        |b, g, s| { let d = b.bin(Binary::Add, s.arg(0)?, 1.0)?; b.bin(Binary::Div, g, &d).map(Some) };
    Sqrt "SQRT" Float, |x| x.sqrt(), NO_INT, "sqrt(x)", (0.2, 4.0), [y],
        |b, g, s| { let h = b.bin(Binary::Mul, g, 0.5)?; b.bin(Binary::Div, &h, s.out(0)?).map(Some) };
    Rsqrt "RSQRT" Float, |x| one::<T>() / x.sqrt(), NO_INT, "rsqrt(x)", (0.2, 4.0), [y],
        |b, g, s| {
            let y = s.out(0)?;
            let y2 = b.mul(y, y)?;
            let y3 = b.mul(&y2, y)?;
            let d = b.bin(Binary::Mul, &y3, -0.5)?;
            b.mul(g, &d).map(Some)
        };
    Recip "RECIP" Float, |x| one::<T>() / x, NO_INT, "T(1) / x", (0.3, 4.0), [y],
        |b, g, s| { let y = s.out(0)?; let y2 = b.mul(y, y)?; let d = b.un(Unary::Neg, &y2)?; b.mul(g, &d).map(Some) };
    Sin "SIN" Float, |x| x.sin(), NO_INT, "sin(x)", (-4.0, 4.0), [x],
        |b, g, s| { let c = b.un(Unary::Cos, s.arg(0)?)?; b.mul(g, &c).map(Some) };
    Cos "COS" Float, |x| x.cos(), NO_INT, "cos(x)", (-4.0, 4.0), [x],
        |b, g, s| { let c = b.un(Unary::Sin, s.arg(0)?)?; let c = b.un(Unary::Neg, &c)?; b.mul(g, &c).map(Some) };
    Tanh "TANH" Float, |x| x.tanh(), NO_INT, "gt_tanh(x)", (-2.0, 2.0), [y],
        |b, g, s| { let y = s.out(0)?; let y2 = b.mul(y, y)?; let d = b.bin(Binary::Sub, 1.0, &y2)?; b.mul(g, &d).map(Some) };
    Sigmoid "SIGMOID" Float, |x| x.sigmoid(), NO_INT, "gt_sigmoid(x)", (-4.0, 4.0), [y],
        |b, g, s| {
            let y = s.out(0)?;
            let one_less = b.bin(Binary::Sub, 1.0, y)?;
            let d = b.mul(y, &one_less)?;
            b.mul(g, &d).map(Some)
        };
    Relu "RELU" Number, |x| x.relu(), |x| x.max(0), "x > T(0) || x != x ? x : T(0)", (-3.0, 3.0), [y],
        |b, g, s| { let off = b.bin(Binary::Le, s.out(0)?, 0.0)?; b.select(&off, 0.0, g).map(Some) };
    Gelu "GELU" Float, |x| x.gelu(), NO_INT, "T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)))", (-3.0, 3.0), [x],
        |b, g, s| {
            let d = b.un(Unary::GeluGrad, s.arg(0)?)?;
            b.mul(g, &d).map(Some)
        };
    GeluGrad "GELUGRAD" Float, |x| x.gelu_grad(), NO_INT,
        "gt_gelu_grad(x)", (-3.0, 3.0), [x],
        |b, g, s| {
            let x = s.arg(0)?;
            let x2 = b.mul(x, x)?;
            let e = b.bin(Binary::Mul, &x2, -0.5)?;
            let e = b.un(Unary::Exp, &e)?;
            let pdf = b.bin(Binary::Mul, &e, 0.398_942_280_401_432_7)?;
            let rest = b.bin(Binary::Sub, 2.0, &x2)?;
            let d = b.mul(&pdf, &rest)?;
            b.mul(g, &d).map(Some)
        };
    Silu "SILU" Float, |x| x.silu(), NO_INT, "x * gt_sigmoid(x)", (-3.0, 3.0), [x],
        |b, g, s| {
            let x = s.arg(0)?;
            let sig = b.un(Unary::Sigmoid, x)?;
            let rest = b.bin(Binary::Sub, 1.0, &sig)?;
            let inner = b.mul(x, &rest)?;
            let inner = b.bin(Binary::Add, &inner, 1.0)?;
            let d = b.mul(&sig, &inner)?;
            b.mul(g, &d).map(Some)
        };
    Erf "ERF" Float, |x| x.erf(), NO_INT, "erf(x)", (-2.0, 2.0), [x],
        |b, g, s| {
            let x = s.arg(0)?;
            let x2 = b.mul(x, x)?;
            let e = b.un(Unary::Neg, &x2)?;
            let e = b.un(Unary::Exp, &e)?;
            let d = b.bin(Binary::Mul, &e, std::f64::consts::FRAC_2_SQRT_PI)?;
            b.mul(g, &d).map(Some)
        };
    Floor "FLOOR" Number, |x| x.floor(), NO_INT, "floor(x)", (-3.0, 3.0), [], |b, g, s| Ok(None);
    Ceil "CEIL" Number, |x| x.ceil(), NO_INT, "ceil(x)", (-3.0, 3.0), [], |b, g, s| Ok(None);
    Round "ROUND" Number, |x| x.round(), NO_INT, "rint(x)", (-3.0, 3.0), [], |b, g, s| Ok(None);
    Trunc "TRUNC" Number, |x| x.trunc(), NO_INT, "trunc(x)", (-3.0, 3.0), [], |b, g, s| Ok(None);
    /// Logical not of bool, bitwise not of integers.
    Not "NOT" Bits, |x| x, |x| !x, "~x", (0.0, 9.0), [], |b, g, s| Ok(None);
    Asin "ASIN" Float, |x| x.asin(), NO_INT, "asin(x)", (-0.9, 0.9), [x],
        |b, g, s| {
            let x = s.arg(0)?;
            let x2 = b.mul(x, x)?;
            let rest = b.bin(Binary::Sub, 1.0, &x2)?;
            let d = b.un(Unary::Rsqrt, &rest)?;
            b.mul(g, &d).map(Some)
        };
    Acos "ACOS" Float, |x| x.acos(), NO_INT, "acos(x)", (-0.9, 0.9), [x],
        |b, g, s| {
            let x = s.arg(0)?;
            let x2 = b.mul(x, x)?;
            let rest = b.bin(Binary::Sub, 1.0, &x2)?;
            let d = b.un(Unary::Rsqrt, &rest)?;
            let d = b.un(Unary::Neg, &d)?;
            b.mul(g, &d).map(Some)
        };
    Atan "ATAN" Float, |x| x.atan(), NO_INT, "atan(x)", (-3.0, 3.0), [x],
        |b, g, s| {
            let x = s.arg(0)?;
            let x2 = b.mul(x, x)?;
            let d = b.bin(Binary::Add, &x2, 1.0)?;
            b.bin(Binary::Div, g, &d).map(Some)
        };
}

impl Unary {
    /// Its meaning on bool: logical not, or the meaning on the integers 0 and 1.
    #[inline(always)]
    pub fn bool(self, x: bool) -> bool {
        match self {
            Unary::Not => !x,
            op => op.int(x as i64) != 0,
        }
    }
}

/// What a binary op's result type is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gives {
    /// The operands' type.
    Same,
    /// Bool.
    Bool,
}

macro_rules! binary_table {
    ($($(#[$doc:meta])* $Name:ident $text:literal $takes:ident -> $gives:ident,
        |$x:ident, $y:ident| $real:expr, $int:expr, $cuda:literal, $domain:expr, [$($need:ident)*],
        |$b:ident, $g:ident, $s:ident| $da:expr, $db:expr;)*) => {
        /// Elementwise ops of two operands of one type, with broadcasting.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum Binary { $($(#[$doc])* $Name),* }

        impl Binary {
            /// Every row of the table.
            pub const ALL: &'static [Binary] = &[$(Binary::$Name),*];

            /// The name in the text form.
            pub const fn text(self) -> &'static str {
                match self { $(Binary::$Name => $text),* }
            }

            /// The element types it takes.
            pub const fn takes(self) -> Takes {
                match self { $(Binary::$Name => Takes::$takes),* }
            }

            /// The type of the result.
            pub const fn gives(self) -> Gives {
                match self { $(Binary::$Name => Gives::$gives),* }
            }

            /// Its meaning on reals; comparisons give 1 or 0.
            #[inline(always)]
            pub fn real<T: Real>(self, a: T, b: T) -> T {
                match self { $(Binary::$Name => { let ($x, $y) = (a, b); $real })* }
            }

            /// Its meaning on integers; the result is truncated to the element type, comparisons give 1 or 0.
            #[inline(always)]
            pub fn int(self, a: i64, b: i64) -> i64 {
                match self { $(Binary::$Name => { let f: fn(i64, i64) -> i64 = $int; f(a, b) })* }
            }

            /// Its CUDA text, in terms of `a` and `b` of the computing type `T`.
            pub const fn cuda(self) -> &'static str {
                match self { $(Binary::$Name => $cuda),* }
            }

            /// Intervals of inputs on which a wrong answer shows.
            pub const fn domain(self) -> [(f64, f64); 2] {
                match self { $(Binary::$Name => $domain),* }
            }

            /// What the gradients read.
            pub const fn needs(self) -> Needs {
                match self { $(Binary::$Name => needs!($($need)*)),* }
            }

            /// The gradient of the left operand before broadcasting is undone, or `None` where it is zero.
            pub fn grad_a<B: Build>(self, b: &mut B, g: &B::V, s: &Saved<B::V>) -> Result<Option<B::V>> {
                match self { $(Binary::$Name => { let ($b, $g, $s) = (b, g, s); let _ = (&$b, &$g, &$s); $da })* }
            }

            /// The gradient of the right operand before broadcasting is undone, or `None` where it is zero.
            pub fn grad_b<B: Build>(self, b: &mut B, g: &B::V, s: &Saved<B::V>) -> Result<Option<B::V>> {
                match self { $(Binary::$Name => { let ($b, $g, $s) = (b, g, s); let _ = (&$b, &$g, &$s); $db })* }
            }
        }
    };
}

const WIDE: [(f64, f64); 2] = [(-3.0, 3.0), (-3.0, 3.0)];

binary_table! {
    Add "ADD" Any -> Same, |a, b| a + b, |a, b| a.wrapping_add(b), "a + b", WIDE, [],
        |b, g, s| Ok(Some(g.clone())), Ok(Some(g.clone()));
    Sub "SUB" Number -> Same, |a, b| a - b, |a, b| a.wrapping_sub(b), "a - b", WIDE, [],
        |b, g, s| Ok(Some(g.clone())), b.un(Unary::Neg, g).map(Some);
    Mul "MUL" Any -> Same, |a, b| a * b, |a, b| a.wrapping_mul(b), "a * b", WIDE, [a b],
        |b, g, s| b.bin(Binary::Mul, g, s.operand(1)?).map(Some), b.bin(Binary::Mul, g, s.operand(0)?).map(Some);
    Div "DIV" Float -> Same, |a, b| a / b, |a, _| a, "a / b", [(-3.0, 3.0), (0.4, 3.0)], [a b],
        |b, g, s| b.bin(Binary::Div, g, s.operand(1)?).map(Some),
        {
            let ratio = b.bin(Binary::Div, s.operand(0)?, s.operand(1)?)?;
            let d = b.bin(Binary::Div, &ratio, s.operand(1)?)?;
            let d = b.un(Unary::Neg, &d)?;
            b.mul(g, &d).map(Some)
        };
    FloorDiv "FLOORDIV" Number -> Same, |a, b| a.floor_div(b), floor_div_int, "gt_floor_div(a, b)", [(-9.0, 9.0), (1.3, 3.0)], [],
        |b, g, s| Ok(None), Ok(None);
    /// Python's remainder: the sign is that of the divisor.
    Rem "REM" Number -> Same, |a, b| a.modulo(b), modulo_int, "gt_mod(a, b)", [(-9.0, 9.0), (1.3, 3.0)], [a b],
        |b, g, s| Ok(Some(g.clone())),
        {
            let q = b.bin(Binary::FloorDiv, s.operand(0)?, s.operand(1)?)?;
            let d = b.un(Unary::Neg, &q)?;
            b.mul(g, &d).map(Some)
        };
    Pow "POW" Number -> Same, |a, b| a.pow(b), pow_int, "pow(a, b)", [(0.3, 3.0), (-2.0, 2.0)], [a b y],
        |b, g, s| {
            let lower = b.bin_any(Binary::Sub, s.operand(1)?, 1.0.into())?;
            let p = b.bin_any(Binary::Pow, s.operand(0)?, lower)?;
            let d = b.bin_any(Binary::Mul, p, s.operand(1)?)?;
            let d = b.bin_any(Binary::Mul, g.into(), d)?;
            b.zero_where_exponent_zero(d, s)
        },
        {
            let log = b.log_of(s.operand(0)?)?;
            let d = b.bin_any(Binary::Mul, s.out(0)?.into(), log)?;
            let d = b.bin_any(Binary::Mul, g.into(), d)?;
            b.zero_where_base_zero(d, s)
        };
    /// NaN if either operand is.
    Max "MAX" Any -> Same, |a, b| a.maximum(b), |a, b| a.max(b), "a > b || a != a ? a : b", WIDE, [a b],
        |b, g, s| b.pick_grad(Binary::Gt, g, s, 0, 1).map(Some), b.pick_grad(Binary::Gt, g, s, 1, 0).map(Some);
    /// NaN if either operand is.
    Min "MIN" Any -> Same, |a, b| a.minimum(b), |a, b| a.min(b), "a < b || a != a ? a : b", WIDE, [a b],
        |b, g, s| b.pick_grad(Binary::Lt, g, s, 0, 1).map(Some), b.pick_grad(Binary::Lt, g, s, 1, 0).map(Some);
    Eq "EQ" Any -> Bool, |a, b| flag(a == b), |a, b| (a == b) as i64, "a == b", WIDE, [], |b, g, s| Ok(None), Ok(None);
    Ne "NE" Any -> Bool, |a, b| flag(a != b), |a, b| (a != b) as i64, "a != b", WIDE, [], |b, g, s| Ok(None), Ok(None);
    Lt "LT" Any -> Bool, |a, b| flag(a < b), |a, b| (a < b) as i64, "a < b", WIDE, [], |b, g, s| Ok(None), Ok(None);
    Le "LE" Any -> Bool, |a, b| flag(a <= b), |a, b| (a <= b) as i64, "a <= b", WIDE, [], |b, g, s| Ok(None), Ok(None);
    Gt "GT" Any -> Bool, |a, b| flag(a > b), |a, b| (a > b) as i64, "a > b", WIDE, [], |b, g, s| Ok(None), Ok(None);
    Ge "GE" Any -> Bool, |a, b| flag(a >= b), |a, b| (a >= b) as i64, "a >= b", WIDE, [], |b, g, s| Ok(None), Ok(None);
    And "AND" Bits -> Same, |a, _b| a, |a, b| a & b, "a & b", [(0.0, 9.0), (0.0, 9.0)], [], |b, g, s| Ok(None), Ok(None);
    Or "OR" Bits -> Same, |a, _b| a, |a, b| a | b, "a | b", [(0.0, 9.0), (0.0, 9.0)], [], |b, g, s| Ok(None), Ok(None);
    Xor "XOR" Bits -> Same, |a, _b| a, |a, b| a ^ b, "a ^ b", [(0.0, 9.0), (0.0, 9.0)], [], |b, g, s| Ok(None), Ok(None);
    /// The angle of the point with `b` across and `a` up.
    Atan2 "ATAN2" Float -> Same, |a, b| a.atan2(b), |a, _| a, "atan2(a, b)", [(0.3, 3.0), (-3.0, 3.0)], [a b],
        |b, g, s| { let d = atan2_slope(b, s, 1)?; b.mul(g, &d).map(Some) },
        { let d = atan2_slope(b, s, 0)?; let d = b.un(Unary::Neg, &d)?; b.mul(g, &d).map(Some) };
}

/// An operand over the square of the distance from the origin; zero there.
fn atan2_slope<B: Build>(b: &mut B, s: &Saved<B::V>, over: usize) -> Result<B::V> {
    let (up, across) = (s.operand(0)?, s.operand(1)?);
    let up = b.bin_any(Binary::Mul, up.clone(), up)?;
    let across = b.bin_any(Binary::Mul, across.clone(), across)?;
    let square = b.bin(Binary::Add, up, across)?;
    let origin = b.bin(Binary::Eq, &square, 0.0)?;
    let square = b.select(&origin, 1.0, &square)?;
    b.bin(Binary::Div, s.operand(over)?, &square)
}

#[inline(always)]
fn flag<T: Real>(on: bool) -> T {
    T::of(on as u8 as f64)
}

/// Floor division of integers; by zero gives 0 here, and the executor reports the error (C5).
fn floor_div_int(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let q = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && ((a < 0) != (b < 0)) { q - 1 } else { q }
}

fn modulo_int(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let r = a.wrapping_rem(b);
    if r != 0 && ((r < 0) != (b < 0)) { r + b } else { r }
}

fn pow_int(a: i64, b: i64) -> i64 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 => {
                if b % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut base, mut exp, mut out) = (a, b as u64, 1i64);
    while exp > 0 {
        if exp & 1 == 1 {
            out = out.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exp >>= 1;
    }
    out
}
