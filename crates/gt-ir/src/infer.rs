//! The shape and type rule of every op. What can be known without values is refused here (C6).

use crate::elementwise::Gives;
use crate::op::{Dist, Op, ReduceKind, View};
use crate::{DType, Ints, Kind, Result, Shape, Ty, bail};
use smallvec::{SmallVec, smallvec};

mod several;

/// An operand as the type rule sees it.
#[derive(Clone, Copy, Debug)]
pub enum ArgTy<'a> {
    Val(&'a Ty),
    Num,
}

/// The types of an instruction's results.
pub type Types = SmallVec<[Ty; 1]>;

/// The type of the op's (first) result. Errors name the op, the shapes and what was expected.
#[inline]
pub fn infer(op: &Op, args: &[ArgTy]) -> Result<Ty> {
    // By far the most frequent case: two tensors of one type, or a tensor and a number.
    if let Op::Binary(op) = op
        && op.gives() == Gives::Same
    {
        match args {
            [ArgTy::Val(a), ArgTy::Val(b)] if a == b && op.takes().accepts(a.dtype) => {
                return Ok((*a).clone());
            }
            [ArgTy::Val(x), ArgTy::Num] | [ArgTy::Num, ArgTy::Val(x)] if op.takes().accepts(x.dtype) => {
                return Ok((*x).clone());
            }
            _ => {}
        }
    }
    lower_case(op, infer_any(op, args))
}

/// The types of all the op's results.
#[inline]
pub fn infer_all(op: &Op, args: &[ArgTy]) -> Result<Types> {
    if op.results(args.len()) == 1 && !matches!(op, Op::Collective(_)) {
        return infer(op, args).map(|ty| smallvec![ty]);
    }
    lower_case(op, several::infer(op, args))
}

/// A person reads the op's name in lower case.
fn lower_case<T>(op: &Op, result: Result<T>) -> Result<T> {
    result.map_err(|error| {
        error.map_message(|m| match m.strip_prefix(op.text()) {
            Some(rest) => format!("{}{rest}", op.text().to_lowercase()),
            None => m,
        })
    })
}

/// The operands of an op, read by position.
struct Reads<'a> {
    name: &'static str,
    args: &'a [ArgTy<'a>],
}

impl<'a> Reads<'a> {
    fn val(&self, i: usize) -> Result<&'a Ty> {
        let name = self.name;
        match self.args.get(i) {
            Some(ArgTy::Val(ty)) => Ok(ty),
            Some(ArgTy::Num) => bail!(Type, "{name}: operand {i} must be a tensor, got a number"),
            None => bail!(Type, "{name}: operand {i} is missing, got {} operands", self.args.len()),
        }
    }

    fn num(&self, i: usize) -> Result<()> {
        let name = self.name;
        match self.args.get(i) {
            Some(ArgTy::Num) => Ok(()),
            Some(ArgTy::Val(_)) => bail!(Type, "{name}: operand {i} must be a number, got a tensor"),
            None => bail!(Type, "{name}: operand {i} is missing, got {} operands", self.args.len()),
        }
    }

    fn count(&self, n: usize) -> Result<()> {
        if self.args.len() != n {
            bail!(Type, "{}: takes {n} operands, got {}", self.name, self.args.len());
        }
        Ok(())
    }
}

fn infer_any(op: &Op, args: &[ArgTy]) -> Result<Ty> {
    let name = op.text();
    let reads = Reads { name, args };
    let val = |i: usize| reads.val(i);
    let num = |i: usize| reads.num(i);
    let count = |n: usize| reads.count(n);
    let made = |dtype: DType, shape: &Shape| -> Result<Ty> {
        shape.check(name, dtype)?;
        Ok(Ty { dtype, shape: shape.clone() })
    };
    let ty = match op {
        Op::Full { shape, dtype } => {
            count(1)?;
            num(0)?;
            made(*dtype, shape)?
        }
        Op::Arange { len, dtype } => {
            count(2)?;
            num(0)?;
            num(1)?;
            made(*dtype, &[*len].into())?
        }
        Op::Random { dist, shape, dtype } => {
            count(2)?;
            num(0)?;
            num(1)?;
            match dist {
                Dist::Uniform | Dist::Normal if !dtype.is_float() => {
                    bail!(Runtime, "{name}: expected a floating-point dtype, got {dtype}")
                }
                Dist::Int { low, high } if low >= high => {
                    bail!(Value, "{name}: expected low < high, got low={low} and high={high}")
                }
                _ => made(*dtype, shape)?,
            }
        }
        Op::Data { shape, dtype } => {
            count(1)?;
            num(0)?;
            made(*dtype, shape)?
        }
        Op::Unary(op) => {
            count(1)?;
            let x = val(0)?;
            if !op.takes().accepts(x.dtype) {
                bail!(Type, "{name}: expected {}, got {}", op.takes().words(), x.dtype);
            }
            x.clone()
        }
        Op::Binary(op) => {
            count(2)?;
            let (dtype, shape) = pair(name, args[0], args[1])?;
            shape.check(name, dtype)?;
            if !op.takes().accepts(dtype) {
                bail!(Type, "{name}: expected {}, got {dtype}", op.takes().words());
            }
            Ty { dtype: if op.gives() == Gives::Bool { DType::Bool } else { dtype }, shape }
        }
        Op::Where => {
            count(3)?;
            let cond = val(0)?;
            if cond.dtype != DType::Bool {
                bail!(Type, "{name}: expected a bool condition, got {}", cond.dtype);
            }
            let (dtype, shape) = pair(name, args[1], args[2])?;
            made(dtype, &Shape::broadcast(name, &cond.shape, &shape)?)?
        }
        Op::Cast(dtype) => {
            count(1)?;
            Ty { dtype: *dtype, shape: val(0)?.shape.clone() }
        }
        Op::View(view) => {
            count(1 + view.has_start() as usize)?;
            if view.has_start() {
                num(1)?;
            }
            let x = val(0)?;
            Ty { dtype: x.dtype, shape: view_shape(name, view, &x.shape)? }
        }
        Op::Pad { lo, hi } => {
            count(2)?;
            num(1)?;
            let x = val(0)?;
            let rank = x.shape.len();
            if lo.len() != rank || hi.len() != rank {
                bail!(Runtime, "{name}: expected {rank} paddings for shape {}, got {}", x.shape, lo.len());
            }
            made(
                x.dtype,
                &(0..rank).map(|d| x.shape[d].saturating_add(lo[d]).saturating_add(hi[d])).collect(),
            )?
        }
        Op::Concat { dim } => {
            let first = val(0)?;
            dim_in(name, *dim, &first.shape)?;
            let mut shape = first.shape.clone();
            for i in 1..args.len() {
                let x = val(i)?;
                let fits = x.shape.len() == shape.len()
                    && (0..shape.len()).all(|d| d == *dim || x.shape[d] == shape[d]);
                if !fits {
                    bail!(
                        Runtime,
                        "{name}: sizes of tensors must match except in dimension {dim}, got {} and {}",
                        first.shape,
                        x.shape
                    );
                }
                same_dtype(name, first.dtype, x.dtype)?;
                shape[*dim] = shape[*dim].saturating_add(x.shape[*dim]);
            }
            made(first.dtype, &shape)?
        }
        Op::Flip { dims } => {
            count(1)?;
            let x = val(0)?;
            dims_in(name, dims, &x.shape)?;
            x.clone()
        }
        Op::Put { path } => {
            count(2 + path.iter().filter(|v| v.has_start()).count())?;
            let base = val(0)?;
            let mut shape = base.shape.clone();
            for view in path {
                shape = view_shape(name, view, &shape)?;
            }
            if let ArgTy::Val(v) = args[1] {
                same_dtype(name, base.dtype, v.dtype)?;
                if v.shape != shape {
                    bail!(Runtime, "{name}: a value of shape {} does not fit the view {shape}", v.shape);
                }
            }
            for i in 2..args.len() {
                num(i)?;
            }
            base.clone()
        }
        Op::Reduce { kind, dims, keepdim } => {
            count(1)?;
            let x = val(0)?;
            dims_in(name, dims, &x.shape)?;
            if matches!(kind, ReduceKind::Max | ReduceKind::Min)
                && dims.iter().any(|&d| x.shape[d] == 0)
                && x.shape.reduced(dims, false).numel() > 0
            {
                bail!(
                    Index,
                    "{name}: expected reduction dim to have non-zero size, got shape {} reduced over {:?}",
                    x.shape,
                    dims
                );
            }
            Ty { dtype: x.dtype, shape: x.shape.reduced(dims, *keepdim) }
        }
        Op::ArgReduce { dim, keepdim, .. } => {
            count(1)?;
            let x = val(0)?;
            dim_in(name, *dim, &x.shape)?;
            if x.shape[*dim] == 0 {
                bail!(
                    Index,
                    "{name}: expected reduction dim {dim} to have non-zero size, got shape {}",
                    x.shape
                );
            }
            Ty { dtype: DType::I64, shape: x.shape.reduced(&[*dim], *keepdim) }
        }
        Op::Scan { dim, .. } => {
            count(1)?;
            let x = val(0)?;
            dim_in(name, *dim, &x.shape)?;
            x.clone()
        }
        Op::Matmul { ta, tb, .. } => matmul(name, *ta, *tb, args)?,
        Op::Gather { dim } => {
            count(2)?;
            let (x, index) = (val(0)?, val(1)?);
            index_fits(name, *dim, x, index)?;
            Ty { dtype: x.dtype, shape: index.shape.clone() }
        }
        Op::Scatter { dim, .. } => {
            count(3)?;
            let (base, index) = (val(0)?, val(1)?);
            index_fits(name, *dim, base, index)?;
            if let ArgTy::Val(src) = args[2] {
                same_dtype(name, base.dtype, src.dtype)?;
                if src.shape != index.shape {
                    bail!(Runtime, "{name}: index {} and source {} must agree", index.shape, src.shape);
                }
            }
            base.clone()
        }
        Op::Take { dim } => {
            count(2)?;
            let (x, index) = (val(0)?, val(1)?);
            made(x.dtype, &taken(name, *dim, x, index)?)?
        }
        Op::TakePut { dim, .. } => {
            count(3)?;
            let (base, index, src) = (val(0)?, val(1)?, val(2)?);
            same_dtype(name, base.dtype, src.dtype)?;
            let shape = taken(name, *dim, base, index)?;
            if src.shape != shape {
                bail!(Runtime, "{name}: expected a source of shape {shape}, got {}", src.shape);
            }
            base.clone()
        }
        Op::Sort { .. }
        | Op::TopK { .. }
        | Op::CrossEntropy
        | Op::Attention { .. }
        | Op::AttentionGrad { .. }
        | Op::Sgd { .. }
        | Op::Adam { .. }
        | Op::Collective(_) => several::infer(op, args)?.swap_remove(0),
        Op::RmsNorm { dims } => {
            if args.len() != 3 {
                count(2)?;
            }
            num(1)?;
            let x = val(0)?;
            norm_fits(name, *dims, x)?;
            if args.len() > 2 {
                affine_fits(name, "weight", *dims, x, val(2)?)?;
            }
            x.clone()
        }
        Op::LayerNorm { dims } => {
            if !(3..=4).contains(&args.len()) {
                count(2)?;
            }
            num(1)?;
            let x = val(0)?;
            norm_fits(name, *dims, x)?;
            if args.len() > 2 {
                affine_fits(name, "weight", *dims, x, val(2)?)?;
            }
            if args.len() > 3 {
                affine_fits(name, "bias", *dims, x, val(3)?)?;
            }
            x.clone()
        }
        Op::Softmax { dim } | Op::LogSoftmax { dim } => {
            count(1)?;
            let x = val(0)?;
            if !x.shape.is_empty() {
                dim_in(name, *dim, &x.shape)?;
            }
            float(name, x)?;
            x.clone()
        }
    };
    Ok(ty)
}

/// The shape a view shows of a tensor of shape `x`.
pub fn view_shape(name: &str, view: &View, x: &Shape) -> Result<Shape> {
    Ok(match view {
        View::Reshape(to) => {
            to.check(name, DType::F64)?;
            if to.numel() != x.numel() {
                bail!(Runtime, "{name}: shape {to} is invalid for input of size {}", x.numel());
            }
            to.clone()
        }
        View::Permute(perm) => {
            let mut seen: Ints = perm.clone();
            seen.sort_unstable();
            if perm.len() != x.len() || seen.iter().enumerate().any(|(i, &d)| i != d) {
                bail!(Runtime, "{name}: {perm:?} is no permutation of the dimensions of {x}");
            }
            perm.iter().map(|&d| x[d]).collect()
        }
        View::Expand(to) => {
            to.check(name, DType::F64)?;
            if !x.expands_to(to) {
                bail!(Runtime, "{name}: a tensor of shape {x} cannot be expanded to {to}");
            }
            to.clone()
        }
        View::Slice { dim, len, step } => {
            dim_in(name, *dim, x)?;
            let span =
                len.checked_sub(1).map_or(Some(0), |n| n.checked_mul(*step).and_then(|s| s.checked_add(1)));
            if *step == 0 || span.is_none_or(|s| s > x[*dim]) {
                bail!(Runtime, "{name}: {len} elements {step} apart do not fit dimension {dim} of {x}");
            }
            let mut shape = x.clone();
            shape[*dim] = *len;
            shape
        }
    })
}

fn float(name: &str, x: &Ty) -> Result<()> {
    if !x.dtype.is_float() {
        bail!(Type, "{name}: expected a floating-point tensor, got {}", x.dtype);
    }
    Ok(())
}

fn norm_fits(name: &str, dims: usize, x: &Ty) -> Result<()> {
    float(name, x)?;
    if dims == 0 || dims > x.shape.len() {
        bail!(
            Runtime,
            "{name}: expected at least {} dimensions to normalize, got shape {}",
            dims.max(1),
            x.shape
        );
    }
    Ok(())
}

fn affine_fits(name: &str, what: &str, dims: usize, x: &Ty, w: &Ty) -> Result<()> {
    same_dtype(name, x.dtype, w.dtype)?;
    let shape = &x.shape[x.shape.len() - dims..];
    if w.shape[..] != *shape {
        bail!(
            Runtime,
            "{name}: expected {what} to be of the normalized shape {}, got {}",
            Shape::from(shape),
            w.shape
        );
    }
    Ok(())
}

fn pair(name: &str, a: ArgTy, b: ArgTy) -> Result<(DType, Shape)> {
    match (a, b) {
        (ArgTy::Val(a), ArgTy::Val(b)) => {
            same_dtype(name, a.dtype, b.dtype)?;
            Ok((a.dtype, Shape::broadcast(name, &a.shape, &b.shape)?))
        }
        (ArgTy::Val(x), ArgTy::Num) | (ArgTy::Num, ArgTy::Val(x)) => Ok((x.dtype, x.shape.clone())),
        (ArgTy::Num, ArgTy::Num) => bail!(Type, "{name}: expected at least one tensor, got two numbers"),
    }
}

fn same_dtype(name: &str, a: DType, b: DType) -> Result<()> {
    if a != b {
        bail!(Type, "{name}: expected operands of one dtype, got {a} and {b}");
    }
    Ok(())
}

fn dim_in(name: &str, dim: usize, shape: &Shape) -> Result<()> {
    if dim >= shape.len() {
        bail!(Index, "{name}: dimension {dim} is out of range for shape {shape}");
    }
    Ok(())
}

fn dims_in(name: &str, dims: &[usize], shape: &Shape) -> Result<()> {
    for (i, &d) in dims.iter().enumerate() {
        dim_in(name, d, shape)?;
        if dims[..i].contains(&d) {
            bail!(Runtime, "{name}: dim {d} appears multiple times in the list of dims");
        }
    }
    Ok(())
}

fn index_dtype(name: &str, index: &Ty) -> Result<()> {
    if index.dtype.kind() != Kind::Int {
        bail!(Type, "{name}: expected an integer index, got {}", index.dtype);
    }
    Ok(())
}

fn index_fits(name: &str, dim: usize, x: &Ty, index: &Ty) -> Result<()> {
    index_dtype(name, index)?;
    dim_in(name, dim, &x.shape)?;
    let fits = index.shape.len() == x.shape.len()
        && (0..x.shape.len()).all(|d| d == dim || index.shape[d] <= x.shape[d]);
    if !fits {
        bail!(
            Runtime,
            "{name}: size does not match at some dimension apart from {dim}: expected index {} to be no larger than {}",
            index.shape,
            x.shape
        );
    }
    Ok(())
}

fn taken(name: &str, dim: usize, x: &Ty, index: &Ty) -> Result<Shape> {
    index_dtype(name, index)?;
    dim_in(name, dim, &x.shape)?;
    Ok(x.shape[..dim].iter().chain(index.shape.iter()).chain(&x.shape[dim + 1..]).copied().collect())
}

fn matmul(name: &str, ta: bool, tb: bool, args: &[ArgTy]) -> Result<Ty> {
    let (a, b, bias) = match args {
        [ArgTy::Val(a), ArgTy::Val(b)] => (a, b, None),
        [ArgTy::Val(a), ArgTy::Val(b), ArgTy::Val(bias)] => (a, b, Some(bias)),
        _ => bail!(Type, "{name}: expected two matrices and perhaps a bias, got {} operands", args.len()),
    };
    same_dtype(name, a.dtype, b.dtype)?;
    let (ra, rb) = (a.shape.len(), b.shape.len());
    if ra < 2 || rb < 2 {
        bail!(Runtime, "{name}: expected matrices, got shapes {} and {}", a.shape, b.shape);
    }
    let rows_cols = |s: &Shape, t: bool| {
        let (r, c) = (s[s.len() - 2], s[s.len() - 1]);
        if t { (c, r) } else { (r, c) }
    };
    let ((m, k), (k2, n)) = (rows_cols(&a.shape, ta), rows_cols(&b.shape, tb));
    if k != k2 {
        bail!(Runtime, "{name}: mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {k2}x{n})");
    }
    if a.dtype == DType::Bool {
        bail!(Runtime, "{name}: expected an integer or floating-point tensor, got bool");
    }
    let batch_a: Shape = a.shape[..ra - 2].into();
    let batch_b: Shape = b.shape[..rb - 2].into();
    let mut shape = Shape::broadcast(name, &batch_a, &batch_b)?;
    shape.push(m);
    shape.push(n);
    shape.check(name, a.dtype)?;
    if let Some(bias) = bias {
        same_dtype(name, a.dtype, bias.dtype)?;
        if !bias.shape.expands_to(&shape) {
            bail!(Runtime, "{name}: a bias of shape {} does not fit a result of {shape}", bias.shape);
        }
    }
    Ok(Ty { dtype: a.dtype, shape })
}
