//! Functions that read and write at indices along one dimension.

use super::arith::{cast, element, select};
use super::moves::{expand_to, reshape_to, slice, unsqueeze};
use super::{apply, bin, create, moves, operand, pointwise};
use crate::Tensor;
use crate::autograd::record;
use gt_ir::error::UNSIGNED;
use gt_ir::{Binary, DType, Op, Operand, Result, Scalar, ScatterMode, Shape, bail, norm_dim};
use smallvec::smallvec;

/// A tensor and its index as 1-d where they are 0-d.
fn lifted(x: &Tensor) -> Result<Tensor> {
    if x.ndim() == 0 { moves::reshape(x, &[1]) } else { Ok(x.clone()) }
}

fn index_dtype(op: &str, index: &Tensor) -> Result<()> {
    if !matches!(index.dtype(), DType::I64 | DType::I32) {
        bail!(Runtime, "{op}(): Expected dtype int64 for index, got {}", index.dtype().name());
    }
    Ok(())
}

/// Elements of `x` at `index` along `dim`; the result has the index's shape.
pub fn gather(x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    index_dtype("gather", index)?;
    let d = norm_dim("gather", dim, x.ndim())?;
    if x.ndim().max(1) != index.ndim().max(1) {
        bail!(
            Runtime,
            "Index tensor must have the same number of dimensions as input tensor, got {} and {}",
            index.shape(),
            x.shape()
        );
    }
    let out = apply(Op::Gather { dim: d }, &[&lifted(x)?, &lifted(index)?])?;
    if index.ndim() == 0 { moves::reshape(&out, &[]) } else { Ok(out) }
}

/// `gather` with `x` and `index` broadcast against each other in the other dimensions.
pub fn take_along_dim(x: &Tensor, index: &Tensor, dim: Option<i64>) -> Result<Tensor> {
    let Some(dim) = dim else {
        return gather(&moves::reshape(x, &[-1])?, 0, &moves::reshape(index, &[-1])?);
    };
    if x.ndim() != index.ndim() {
        bail!(
            Runtime,
            "take_along_dim(): input and indices should have the same number of dimensions, but got {} dimensions for \
             input, and {} dimensions for indices",
            x.ndim(),
            index.ndim()
        );
    }
    if x.ndim() == 0 {
        bail!(Index, "take_along_dim(): dimension {dim} of a tensor that has no dimensions");
    }
    let d = norm_dim("take_along_dim", dim, x.ndim())?;
    let (mut a, mut b) = (x.shape().clone(), index.shape().clone());
    let (own, picked) = (a[d], b[d]);
    (a[d], b[d]) = (1, 1);
    let mut common = Shape::broadcast("take_along_dim", &a, &b)?;
    common[d] = own;
    let x = expand_to(x, &common)?;
    common[d] = picked;
    index_dtype("take_along_dim", index)?;
    // Negative places count from the end.
    let from_end = bin(Binary::Add, index, Scalar::Int(own as i64))?;
    let index = select(&bin(Binary::Lt, index, Scalar::Int(0))?, &(&from_end).into(), &index.into())?;
    gather(&x, dim, &expand_to(&index, &common)?)
}

/// Whole slices of `x` along `dim`.
pub fn index_select(x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    index_dtype("index_select", index)?;
    let d = norm_dim("index_select", dim, x.ndim())?;
    if index.ndim() > 1 {
        bail!(Index, "index_select(): Index is supposed to be a vector, got shape {}", index.shape());
    }
    let out = apply(Op::Take { dim: d }, &[&lifted(x)?, &not_from_the_end(&lifted(index)?)?])?;
    if x.ndim() == 0 { moves::reshape(&out, &[]) } else { Ok(out) }
}

/// Elements of the flattened tensor.
pub fn take(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    index_dtype("take", index)?;
    apply(Op::Take { dim: 0 }, &[&moves::reshape(x, &[-1])?, index])
}

/// Rows of `weight`.
pub fn embedding(weight: &Tensor, index: &Tensor) -> Result<Tensor> {
    index_dtype("embedding", index)?;
    if weight.ndim() != 2 {
        bail!(Runtime, "'weight' must be 2-D, got shape {}", weight.shape());
    }
    apply(Op::Take { dim: 0 }, &[weight, &not_from_the_end(index)?])
}

/// The index of slices that are not counted from the end: what is negative is out of bounds.
fn not_from_the_end(index: &Tensor) -> Result<Tensor> {
    bin(Binary::And, &cast(index, DType::I64)?, Scalar::Int(UNSIGNED))
}

/// 1 at the index along a new last dimension of size `classes` (-1: one more than the largest, which waits).
pub fn one_hot(index: &Tensor, classes: i64) -> Result<Tensor> {
    if index.dtype() != DType::I64 {
        bail!(
            Runtime,
            "one_hot is only applicable to index tensor of type LongTensor, got {}",
            index.dtype().name()
        );
    }
    let classes = match classes {
        -1 if index.numel() == 0 => {
            bail!(Runtime, "Can not infer total number of classes from empty tensor.")
        }
        -1 => super::reduce::max_all(index)?.item()?.as_i64().max(0) + 1,
        n if n < 1 => bail!(Runtime, "num_classes should be positive, got {n}"),
        n => n,
    };
    let mut shape = index.shape().clone();
    shape.push(classes as usize);
    let places = unsqueeze(index, -1)?;
    let zeros = expand_to(&create::full_like(&places, Scalar::Int(0), None)?, &shape)?;
    scatter(&zeros, -1, &places, &Operand::Num(Scalar::Int(1)))
}

fn scattered(
    name: &str,
    x: &Tensor,
    dim: i64,
    index: &Tensor,
    src: &Operand<Tensor>,
    mode: ScatterMode,
) -> Result<Tensor> {
    index_dtype(name, index)?;
    let d = norm_dim(name, dim, x.ndim())?;
    let (base, index) = (lifted(x)?, lifted(index)?);
    let src = match src {
        Operand::Num(n) => Operand::Num(element(*n, x.dtype())?),
        Operand::Val(s) => {
            if s.dtype() != x.dtype() {
                bail!(
                    Runtime,
                    "{name}(): Expected self.dtype to be equal to src.dtype, got {} and {}",
                    x.dtype().name(),
                    s.dtype().name()
                );
            }
            let mut s = lifted(s)?;
            let fits =
                s.ndim() == index.ndim() && index.shape().iter().zip(s.shape().iter()).all(|(i, s)| i <= s);
            if !fits {
                bail!(
                    Runtime,
                    "Expected index {} to be no larger than self {} apart from dimension {d} and to be no larger size \
                     than src {}",
                    index.shape(),
                    x.shape(),
                    s.shape()
                );
            }
            for k in 0..index.ndim() {
                if s.shape()[k] != index.shape()[k] {
                    s = slice(&s, k, 0, index.shape()[k], 1)?;
                }
            }
            Operand::Val(s)
        }
    };
    let args = smallvec![Operand::Val(base.var()?), Operand::Val(index.var()?), operand(&src)?];
    let out = Tensor::from_var(record(Op::Scatter { dim: d, mode }, args)?);
    if x.ndim() == 0 { moves::reshape(&out, &[]) } else { Ok(out) }
}

/// `x` with elements along `dim` overwritten at `index`.
pub fn scatter(x: &Tensor, dim: i64, index: &Tensor, src: &Operand<Tensor>) -> Result<Tensor> {
    scattered("scatter", x, dim, index, src, ScatterMode::Set)
}

/// `x` with `src` added along `dim` at `index`.
pub fn scatter_add(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    scattered("scatter_add", x, dim, index, &src.into(), ScatterMode::Add)
}

/// `x` with the larger of what is there and `src` along `dim` at `index`.
pub fn scatter_max(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    scattered("scatter_reduce", x, dim, index, &src.into(), ScatterMode::Max)
}

fn slices(
    name: &str,
    x: &Tensor,
    dim: i64,
    index: &Tensor,
    src: &Tensor,
    mode: ScatterMode,
) -> Result<Tensor> {
    index_dtype(name, index)?;
    let d = norm_dim(name, dim, x.ndim())?;
    if index.ndim() > 1 {
        bail!(Index, "{name}(): Index is supposed to be a vector, but got dim: {}", index.ndim());
    }
    if src.dtype() != x.dtype() {
        bail!(
            Runtime,
            "{name}(): self ({}) and source ({}) must have the same scalar type",
            x.dtype().name(),
            src.dtype().name()
        );
    }
    let (base, index) = (lifted(x)?, lifted(index)?);
    let mut shape = base.shape().clone();
    shape[d] = index.numel();
    if lifted(src)?.shape() != &shape {
        bail!(Runtime, "{name}(): expected a source of shape {shape} for {}, got {}", x.shape(), src.shape());
    }
    let out = apply(Op::TakePut { dim: d, mode }, &[&base, &index, &lifted(src)?])?;
    if x.ndim() == 0 { moves::reshape(&out, &[]) } else { Ok(out) }
}

/// `x` with `alpha * src` added to whole slices along `dim`.
pub fn index_add(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor, alpha: Scalar) -> Result<Tensor> {
    let Operand::Val(src) = pointwise::scaled("index_add", &src.into(), alpha, x.dtype())? else {
        bail!(Type, "index_add: expected a tensor");
    };
    slices("index_add", x, dim, index, &src, ScatterMode::Add)
}

/// `x` with whole slices along `dim` overwritten.
pub fn index_copy(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    slices("index_copy", x, dim, index, src, ScatterMode::Set)
}

/// `x` with whole slices along `dim` set to one number or 0-d tensor.
pub fn index_fill(x: &Tensor, dim: i64, index: &Tensor, value: &Operand<Tensor>) -> Result<Tensor> {
    let d = norm_dim("index_fill", dim, x.ndim())?;
    let mut shape = lifted(x)?.shape().clone();
    shape[d] = index.numel();
    let src = match value {
        Operand::Num(n) => {
            let ty = gt_ir::Ty { dtype: x.dtype(), shape };
            Tensor::from_var(create::full_var(&x.session()?, &ty, *n)?)
        }
        Operand::Val(v) if v.ndim() == 0 => expand_to(&cast(v, x.dtype())?, &shape)?,
        Operand::Val(v) => bail!(
            Runtime,
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).",
            v.ndim()
        ),
    };
    let src = if x.ndim() == 0 { reshape_to(&src, Shape::scalar())? } else { src };
    slices("index_fill", x, dim, index, &src, ScatterMode::Set)
}

/// `x` with the elements under the mask set to one number or 0-d tensor.
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: &Operand<Tensor>) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        bail!(
            Runtime,
            "masked_fill_ only supports boolean masks, but got mask with dtype {}",
            mask.dtype().name()
        );
    }
    let value = match value {
        Operand::Num(n) => Operand::Num(element(*n, x.dtype())?),
        Operand::Val(v) if v.ndim() == 0 => Operand::Val(cast(v, x.dtype())?),
        Operand::Val(v) => bail!(
            Runtime,
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).",
            v.ndim()
        ),
    };
    select(mask, &value, &x.into())
}

/// `x` with the elements under the mask taken from `source` in order.
pub fn masked_scatter(x: &Tensor, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
    if source.dtype() != x.dtype() {
        bail!(
            Runtime,
            "masked_scatter: expected self and source to have same dtypes but got {} and {}",
            x.dtype().name(),
            source.dtype().name()
        );
    }
    let shape = Shape::broadcast("masked_scatter", x.shape(), mask.shape())?;
    let (x, mask) = (&expand_to(x, &shape)?, expand_to(mask, &shape)?);
    let flat = moves::reshape(&mask, &[-1])?;
    let rank = bin(Binary::Sub, &super::reduce::cumsum(&flat, 0, None)?, Scalar::Int(1))?;
    if x.numel() == 0 || source.numel() == 0 {
        return moves::clone(x);
    }
    let place = select(&flat, &(&rank).into(), &Scalar::Int(0).into())?;
    let taken = apply(Op::Take { dim: 0 }, &[&moves::reshape(source, &[-1])?, &place])?;
    select(&mask, &(&reshape_to(&taken, x.shape().clone())?).into(), &x.into())
}

/// The elements under the mask, in order; waits for their count.
pub fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        bail!(Runtime, "masked_select: expected BoolTensor for mask, got {}", mask.dtype().name());
    }
    let shape = Shape::broadcast("masked_select", x.shape(), mask.shape())?;
    let (x, mask) = (expand_to(x, &shape)?, expand_to(mask, &shape)?);
    let found = super::index::flat_nonzero(&mask)?;
    apply(Op::Take { dim: 0 }, &[&moves::reshape(&x, &[-1])?, &found])
}
