//! The Rust API: tensor functions as methods.

use crate::Tensor;
use crate::autograd::backward;
use crate::ops::{activation, arith, create, index, inplace, linalg, loss, moves, pointwise, reduce};
use gt_ir::{Binary, DType, Operand, Result, Scalar, Ty, Unary};

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(&self, other: impl Into<Operand<Tensor>>) -> Result<Tensor> {
            arith::binary(Binary::$op, &self.into(), &other.into())
        })*
    };
}

macro_rules! unary_methods {
    ($($name:ident $op:ident;)*) => {
        $(pub fn $name(&self) -> Result<Tensor> {
            arith::unary(Unary::$op, self)
        })*
    };
}

macro_rules! inplace_methods {
    ($($name:ident $op:ident;)*) => {
        $(pub fn $name(&self, other: impl Into<Operand<Tensor>>) -> Result<()> {
            self.binary_(Binary::$op, &other.into(), false)
        })*
    };
}

impl Tensor {
    /// A tensor of `f32` elements in row-major order.
    pub fn from_f32s(shape: &[usize], elements: &[f32]) -> Result<Tensor> {
        let bytes = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
        create::from_bytes(Ty::new(DType::F32, shape), bytes)
    }

    /// A tensor of `f64` elements in row-major order.
    pub fn from_f64s(shape: &[usize], elements: &[f64]) -> Result<Tensor> {
        let bytes = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
        create::from_bytes(Ty::new(DType::F64, shape), bytes)
    }

    /// A tensor of `i64` elements in row-major order.
    pub fn from_i64s(shape: &[usize], elements: &[i64]) -> Result<Tensor> {
        let bytes = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
        create::from_bytes(Ty::new(DType::I64, shape), bytes)
    }

    /// Every element as a number, in row-major order; waits for them.
    pub fn scalars(&self) -> Result<Vec<Scalar>> {
        let size = self.dtype().size();
        Ok(self.bytes()?.chunks(size).map(|b| Scalar::read(self.dtype(), b)).collect())
    }

    /// Every element as a double, in row-major order; waits for them.
    pub fn to_f64s(&self) -> Result<Vec<f64>> {
        Ok(self.scalars()?.into_iter().map(Scalar::as_f64).collect())
    }

    binary_methods! {
        add Add;
        sub Sub;
        mul Mul;
        div Div;
        pow Pow;
        rem Rem;
        floor_div FloorDiv;
        maximum Max;
        minimum Min;
        eq Eq;
        ne Ne;
        lt Lt;
        le Le;
        gt Gt;
        ge Ge;
        bit_and And;
        bit_or Or;
        bit_xor Xor;
    }

    unary_methods! {
        neg Neg;
        abs Abs;
        sign Sign;
        exp Exp;
        log Log;
        log1p Log1p;
        sqrt Sqrt;
        rsqrt Rsqrt;
        sin Sin;
        cos Cos;
        tanh Tanh;
        sigmoid Sigmoid;
        relu Relu;
        silu Silu;
        erf Erf;
        floor Floor;
        ceil Ceil;
        round Round;
        trunc Trunc;
    }

    inplace_methods! {
        add_ Add;
        sub_ Sub;
        mul_ Mul;
        pow_ Pow;
    }

    pub fn div_(&self, other: impl Into<Operand<Tensor>>) -> Result<()> {
        inplace::div_(self, &other.into(), None)
    }

    pub fn fill_(&self, value: impl Into<Operand<Tensor>>) -> Result<()> {
        inplace::fill_(self, &value.into())
    }

    pub fn zero_(&self) -> Result<()> {
        inplace::zero_(self)
    }

    pub fn copy_(&self, src: &Tensor) -> Result<()> {
        inplace::copy_(self, src)
    }

    /// Converts elements to another type.
    pub fn to(&self, dtype: DType) -> Result<Tensor> {
        arith::cast(self, dtype)
    }

    pub fn gelu(&self) -> Result<Tensor> {
        activation::gelu(self, false)
    }

    pub fn softmax(&self, dim: i64) -> Result<Tensor> {
        activation::softmax(self, dim, None)
    }

    pub fn log_softmax(&self, dim: i64) -> Result<Tensor> {
        activation::log_softmax(self, dim, None)
    }

    pub fn clamp(&self, min: Option<f64>, max: Option<f64>) -> Result<Tensor> {
        let bound = |x: Option<f64>| x.map(Operand::from);
        pointwise::clamp(self, bound(min).as_ref(), bound(max).as_ref())
    }

    /// The sum of all elements.
    pub fn sum(&self) -> Result<Tensor> {
        reduce::sum(self, &[], false, None)
    }

    pub fn sum_dims(&self, dims: &[i64], keepdim: bool) -> Result<Tensor> {
        reduce::sum(self, dims, keepdim, None)
    }

    /// The mean of all elements.
    pub fn mean(&self) -> Result<Tensor> {
        reduce::mean(self, &[], false, None)
    }

    pub fn mean_dims(&self, dims: &[i64], keepdim: bool) -> Result<Tensor> {
        reduce::mean(self, dims, keepdim, None)
    }

    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        linalg::matmul(self, other)
    }

    pub fn reshape(&self, sizes: &[i64]) -> Result<Tensor> {
        moves::reshape(self, sizes)
    }

    pub fn view(&self, sizes: &[i64]) -> Result<Tensor> {
        moves::view(self, sizes)
    }

    pub fn permute(&self, dims: &[i64]) -> Result<Tensor> {
        moves::permute(self, dims)
    }

    pub fn transpose(&self, a: i64, b: i64) -> Result<Tensor> {
        moves::transpose(self, a, b)
    }

    pub fn t(&self) -> Result<Tensor> {
        moves::t(self)
    }

    pub fn expand(&self, sizes: &[i64]) -> Result<Tensor> {
        moves::expand(self, sizes)
    }

    pub fn squeeze(&self) -> Result<Tensor> {
        moves::squeeze(self, None)
    }

    pub fn unsqueeze(&self, dim: i64) -> Result<Tensor> {
        moves::unsqueeze(self, dim)
    }

    pub fn narrow(&self, dim: i64, start: i64, length: i64) -> Result<Tensor> {
        moves::narrow(self, dim, start, length)
    }

    pub fn select(&self, dim: i64, i: i64) -> Result<Tensor> {
        moves::select(self, dim, i)
    }

    /// A copy with storage of its own (`clone` gives another name for the same tensor).
    pub fn copy(&self) -> Result<Tensor> {
        moves::clone(self)
    }

    /// `self[index]`.
    pub fn get(&self, index: &[index::Index]) -> Result<Tensor> {
        index::get(self, index)
    }

    /// `self[index] = value`.
    pub fn set(&self, index: &[index::Index], value: impl Into<Operand<Tensor>>) -> Result<()> {
        index::set(self, index, &value.into())
    }

    /// Cross entropy of these logits and class indices, averaged.
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        loss::cross_entropy(self, target, None, -100, loss::Reduction::Mean, 0.0)
    }

    /// Asks for gradients, and gives the tensor back.
    pub fn requiring_grad(self) -> Result<Tensor> {
        self.set_requires_grad(true)?;
        Ok(self)
    }

    /// Adds the gradients of this one-element tensor to `.grad` of the leaves.
    pub fn backward(&self) -> Result<()> {
        backward(std::slice::from_ref(self), Vec::new(), false, false)
    }
}
