//! The real functions the op table is written in, for `f32` and `f64`.

/// A floating-point type in which elementwise meanings are computed.
pub trait Real:
    Copy
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    /// The constant nearest to a double.
    fn of(x: f64) -> Self;
    fn exp(self) -> Self;
    fn expm1(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    /// The angle of the point with `across` to the right and this one up.
    fn atan2(self, across: Self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// Rounds half to even, as PyTorch does.
    fn round(self) -> Self;
    fn pow(self, e: Self) -> Self;
    fn is_nan(self) -> bool;
    /// -1, 0 or 1; 0 for NaN.
    fn sign(self) -> Self {
        if self > Self::of(0.0) {
            Self::of(1.0)
        } else if self < Self::of(0.0) {
            Self::of(-1.0)
        } else {
            Self::of(0.0)
        }
    }
    fn sigmoid(self) -> Self {
        Self::of(1.0) / (Self::of(1.0) + (-self).exp())
    }
    fn relu(self) -> Self {
        if self.is_nan() || self > Self::of(0.0) { self } else { Self::of(0.0) }
    }
    fn gelu(self) -> Self {
        Self::of(0.5) * self * (Self::of(1.0) + (self * Self::of(std::f64::consts::FRAC_1_SQRT_2)).erf())
    }
    /// The derivative of `gelu`.
    #[inline(always)]
    fn gelu_grad(self) -> Self {
        let cdf = Self::of(0.5) * (Self::of(1.0) + (self * Self::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
        let bell = Self::of(0.398_942_280_401_432_7) * (Self::of(-0.5) * self * self).exp();
        // Far out the bell is zero, and infinity times that would be NaN.
        if bell == Self::of(0.0) { cdf } else { cdf + self * bell }
    }
    fn silu(self) -> Self {
        self / (Self::of(1.0) + (-self).exp())
    }
    /// The larger of two, NaN if either is.
    fn maximum(self, b: Self) -> Self {
        if self.is_nan() || self > b { self } else { b }
    }
    /// The smaller of two, NaN if either is.
    fn minimum(self, b: Self) -> Self {
        if self.is_nan() || self < b { self } else { b }
    }
    /// Python's floor division: exact, so that `a == a // b * b + a % b` up to rounding.
    fn floor_div(self, b: Self) -> Self;
    /// Python's remainder: the sign is that of the divisor.
    fn modulo(self, b: Self) -> Self;
}

macro_rules! real {
    ($t:ident, $erf:path) => {
        impl Real for $t {
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $t::exp(self)
            }
            fn expm1(self) -> Self {
                $t::exp_m1(self)
            }
            fn log(self) -> Self {
                $t::ln(self)
            }
            fn log1p(self) -> Self {
                $t::ln_1p(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            fn sin(self) -> Self {
                $t::sin(self)
            }
            fn cos(self) -> Self {
                $t::cos(self)
            }
            fn tanh(self) -> Self {
                $t::tanh(self)
            }
            fn erf(self) -> Self {
                $erf(self)
            }
            fn asin(self) -> Self {
                $t::asin(self)
            }
            fn acos(self) -> Self {
                $t::acos(self)
            }
            fn atan(self) -> Self {
                $t::atan(self)
            }
            fn atan2(self, across: Self) -> Self {
                $t::atan2(self, across)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $t::abs(self)
            }
            #[inline(always)]
            fn floor(self) -> Self {
                $t::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> Self {
                $t::ceil(self)
            }
            #[inline(always)]
            fn trunc(self) -> Self {
                $t::trunc(self)
            }
            #[inline(always)]
            fn round(self) -> Self {
                $t::round_ties_even(self)
            }
            fn pow(self, e: Self) -> Self {
                $t::powf(self, e)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            fn floor_div(self, b: Self) -> Self {
                if b == 0.0 {
                    return self / b;
                }
                let r = self % b;
                let down = if r != 0.0 && ((r < 0.0) != (b < 0.0)) { 1.0 } else { 0.0 };
                $t::round_ties_even((self - r) / b) - down
            }
            fn modulo(self, b: Self) -> Self {
                let r = self % b;
                if r != 0.0 && ((r < 0.0) != (b < 0.0)) { r + b } else { r }
            }
        }
    };
}

real!(f32, libm::erff);
real!(f64, libm::erf);
