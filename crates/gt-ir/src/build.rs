//! How rules write instructions: gradients and decompositions are functions over a `Build`.

use crate::op::{Op, ReduceKind, View};
use crate::{Binary, DType, Error, Ints, Result, Scalar, Shape, Ty, Unary};
use smallvec::{SmallVec, smallvec};

/// An operand of an instruction being built: a value or a number.
#[derive(Clone, Debug)]
pub enum Operand<V> {
    Val(V),
    Num(Scalar),
}

impl<V> Operand<V> {
    /// The value, if it is one.
    pub fn val(&self) -> Option<&V> {
        match self {
            Operand::Val(v) => Some(v),
            Operand::Num(_) => None,
        }
    }
}

impl<V: Clone> From<&V> for Operand<V> {
    fn from(v: &V) -> Operand<V> {
        Operand::Val(v.clone())
    }
}

impl<V> From<f64> for Operand<V> {
    fn from(x: f64) -> Operand<V> {
        Operand::Num(Scalar::Float(x))
    }
}

impl<V> From<Scalar> for Operand<V> {
    fn from(x: Scalar) -> Operand<V> {
        Operand::Num(x)
    }
}

/// Operands of one instruction.
pub type Operands<V> = SmallVec<[Operand<V>; 3]>;

/// Results of one instruction.
pub type Values<V> = SmallVec<[V; 3]>;

/// What is left of an operand for the backward pass.
#[derive(Clone, Debug)]
pub enum Kept<V> {
    /// A tensor operand: its type, and its value if the gradient reads it (`Needs`).
    Val(Ty, Option<V>),
    /// A number.
    Num(Scalar),
}

/// What a gradient rule may look at.
pub struct Saved<'a, V> {
    /// One entry per operand.
    pub args: &'a [Kept<V>],
    /// The results, if the rule declared that it reads them.
    pub outs: &'a [V],
}

impl<V: Clone> Saved<'_, V> {
    /// A tensor operand that the rule declared in its `Needs`.
    pub fn arg(&self, i: usize) -> Result<&V> {
        match self.args.get(i) {
            Some(Kept::Val(_, Some(v))) => Ok(v),
            _ => Err(Error::Runtime(format!("gradient rule reads operand {i}, which it did not declare"))),
        }
    }

    /// An operand, tensor or number, that the rule declared in its `Needs`.
    pub fn operand(&self, i: usize) -> Result<Operand<V>> {
        match self.args.get(i) {
            Some(Kept::Num(x)) => Ok(Operand::Num(*x)),
            _ => self.arg(i).map(Operand::from),
        }
    }

    /// The integer in operand `i`.
    pub fn int(&self, i: usize) -> Result<i64> {
        match self.args.get(i) {
            Some(Kept::Num(x)) => Ok(x.as_i64()),
            _ => Err(Error::Runtime(format!("gradient rule expects a number as operand {i}"))),
        }
    }

    /// The type of a tensor operand.
    pub fn ty(&self, i: usize) -> Result<&Ty> {
        match self.args.get(i) {
            Some(Kept::Val(ty, _)) => Ok(ty),
            _ => Err(Error::Runtime(format!("gradient rule expects a tensor as operand {i}"))),
        }
    }

    /// A result that the rule declared in its `Needs`.
    pub fn out(&self, i: usize) -> Result<&V> {
        self.outs.get(i).ok_or_else(|| {
            Error::Runtime(format!("gradient rule reads result {i}, which it did not declare"))
        })
    }
}

/// Writes instructions. The client records them, the decomposer and the tests collect them.
pub trait Build {
    /// A handle to a tensor value.
    type V: Clone;

    /// The type of a value.
    fn ty(&self, v: &Self::V) -> Ty;

    /// Writes one instruction of one result.
    fn emit(&mut self, op: Op, args: Operands<Self::V>) -> Result<Self::V>;

    /// Writes one instruction and gives all its results.
    fn emit_all(&mut self, op: Op, args: Operands<Self::V>) -> Result<Values<Self::V>>;

    /// Writes a unary elementwise op.
    fn un(&mut self, op: Unary, x: &Self::V) -> Result<Self::V> {
        self.emit(Op::Unary(op), smallvec![x.into()])
    }

    /// Writes a binary elementwise op; at least one operand is a tensor.
    fn bin(
        &mut self,
        op: Binary,
        a: impl Into<Operand<Self::V>>,
        b: impl Into<Operand<Self::V>>,
    ) -> Result<Self::V> {
        self.emit(Op::Binary(op), smallvec![a.into(), b.into()])
    }

    fn add(&mut self, a: &Self::V, b: &Self::V) -> Result<Self::V> {
        self.bin(Binary::Add, a, b)
    }

    fn mul(&mut self, a: &Self::V, b: &Self::V) -> Result<Self::V> {
        self.bin(Binary::Mul, a, b)
    }

    /// `where(cond, a, b)`.
    fn select(
        &mut self,
        cond: &Self::V,
        a: impl Into<Operand<Self::V>>,
        b: impl Into<Operand<Self::V>>,
    ) -> Result<Self::V> {
        self.emit(Op::Where, smallvec![cond.into(), a.into(), b.into()])
    }

    /// A binary op that folds when both operands are numbers.
    fn bin_any(&mut self, op: Binary, a: Operand<Self::V>, b: Operand<Self::V>) -> Result<Operand<Self::V>> {
        match (&a, &b) {
            (Operand::Num(x), Operand::Num(y)) => {
                Ok(Operand::Num(Scalar::Float(op.real(x.as_f64(), y.as_f64()))))
            }
            _ => self.bin(op, a, b).map(Operand::Val),
        }
    }

    /// Natural logarithm that folds on numbers.
    fn log_of(&mut self, x: Operand<Self::V>) -> Result<Operand<Self::V>> {
        match x {
            Operand::Num(x) => Ok(Operand::Num(Scalar::Float(x.as_f64().ln()))),
            Operand::Val(v) => self.un(Unary::Log, &v).map(Operand::Val),
        }
    }

    /// The gradient of `pow` for the base is zero where the exponent is zero.
    fn zero_where_exponent_zero(
        &mut self,
        d: Operand<Self::V>,
        s: &Saved<Self::V>,
    ) -> Result<Option<Self::V>> {
        let Operand::Val(d) = d else { return Ok(None) };
        match s.operand(1)? {
            Operand::Num(e) if e.as_f64() == 0.0 => Ok(None),
            Operand::Num(_) => Ok(Some(d)),
            Operand::Val(e) => {
                let zero = self.bin(Binary::Eq, &e, 0.0)?;
                self.select(&zero, 0.0, &d).map(Some)
            }
        }
    }

    /// The gradient of `pow` for the exponent is zero where the base is zero.
    fn zero_where_base_zero(&mut self, d: Operand<Self::V>, s: &Saved<Self::V>) -> Result<Option<Self::V>> {
        let Operand::Val(d) = d else { return Ok(None) };
        match s.operand(0)? {
            Operand::Num(x) if x.as_f64() == 0.0 => Ok(None),
            Operand::Num(_) => Ok(Some(d)),
            Operand::Val(x) => {
                let zero = self.bin(Binary::Eq, &x, 0.0)?;
                self.select(&zero, 0.0, &d).map(Some)
            }
        }
    }

    /// The gradient of `max` or `min` for operand `i`: none where the other one `won`, half where the two are equal. A
    /// number is a bound: at it there is none.
    fn pick_grad(
        &mut self,
        won: Binary,
        g: &Self::V,
        s: &Saved<Self::V>,
        i: usize,
        j: usize,
    ) -> Result<Self::V> {
        let (own, other) = (s.operand(i)?, s.operand(j)?);
        if let Operand::Num(_) = other {
            let within = self.bin(won, own, other)?;
            return self.select(&within, g, 0.0);
        }
        let tie = self.bin(Binary::Eq, own.clone(), other.clone())?;
        let lost = self.bin(won, other, own)?;
        let half = self.bin(Binary::Mul, g, 0.5)?;
        let shared = self.select(&tie, &half, g)?;
        self.select(&lost, 0.0, &shared)
    }

    /// A tensor filled with one number.
    fn full(&mut self, ty: &Ty, x: impl Into<Scalar>) -> Result<Self::V> {
        let op = Op::Full { shape: ty.shape.clone(), dtype: ty.dtype };
        self.emit(op, smallvec![Operand::Num(x.into())])
    }

    /// Applies one view, its slice start (if it is a slice) given.
    fn view(&mut self, x: &Self::V, view: View, start: Option<i64>) -> Result<Self::V> {
        let mut args: Operands<Self::V> = smallvec![x.into()];
        args.extend(start.map(|s| Operand::Num(Scalar::Int(s))));
        self.emit(Op::View(view), args)
    }

    fn reshape(&mut self, x: &Self::V, shape: &Shape) -> Result<Self::V> {
        if self.ty(x).shape == *shape {
            return Ok(x.clone());
        }
        self.view(x, View::Reshape(shape.clone()), None)
    }

    fn expand(&mut self, x: &Self::V, shape: &Shape) -> Result<Self::V> {
        if self.ty(x).shape == *shape {
            return Ok(x.clone());
        }
        self.view(x, View::Expand(shape.clone()), None)
    }

    fn permute(&mut self, x: &Self::V, perm: Ints) -> Result<Self::V> {
        self.view(x, View::Permute(perm), None)
    }

    fn reduce(&mut self, kind: ReduceKind, x: &Self::V, dims: &[usize], keepdim: bool) -> Result<Self::V> {
        let op = Op::Reduce { kind, dims: dims.into(), keepdim };
        self.emit(op, smallvec![x.into()])
    }

    fn cast(&mut self, x: &Self::V, dtype: DType) -> Result<Self::V> {
        if self.ty(x).dtype == dtype {
            return Ok(x.clone());
        }
        self.emit(Op::Cast(dtype), smallvec![x.into()])
    }

    /// Undoes broadcasting: sums `g` down to `shape`.
    fn sum_to(&mut self, g: &Self::V, shape: &Shape) -> Result<Self::V> {
        let from = self.ty(g).shape;
        if from == *shape {
            return Ok(g.clone());
        }
        let lead = from.len() - shape.len();
        let dims: Ints =
            (0..from.len()).filter(|&d| d < lead || (shape[d - lead] == 1 && from[d] != 1)).collect();
        let summed = if dims.is_empty() { g.clone() } else { self.reduce(ReduceKind::Sum, g, &dims, true)? };
        self.reshape(&summed, shape)
    }
}
