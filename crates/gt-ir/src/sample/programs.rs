//! Random well-formed programs for differential tests.

use super::draw::{Rng, draw};
use super::{MODES, REDUCES, kinds};
use crate::elementwise::{Binary, Gives, Unary};
use crate::host::{HostTensor, close, tolerance};
use crate::infer::view_shape;
use crate::op::{ArgKind, Dist, Op, ReduceKind, ScanKind, View};
use crate::program::{Arg, Args, Input, Instr, Slot, Structure};
use crate::reference::{RefArg, eval_all};
use crate::{DType, Ints, Kind, Scalar, Shape, Ty};
use std::sync::Arc;

/// A random program with its inputs and slots.
#[derive(Clone, Debug)]
pub struct RandomProgram {
    pub structure: Structure,
    pub inputs: Vec<HostTensor>,
    pub slots: Vec<Slot>,
}

/// A program of about `budget` instructions over all families. Its results are finite, and well conditioned: errors
/// of one unit in the last place in every instruction stay within twice `tolerance`, and no jump depends on them.
pub fn random_program(seed: u64, budget: usize) -> RandomProgram {
    let mut p = Maker::new(seed);
    // Chains of elementwise ops and views are what fusion lives on.
    let weight = |op: &Op| if matches!(op, Op::Unary(_) | Op::Binary(_) | Op::View(_)) { 8 } else { 1 };
    let kinds: Vec<Op> = kinds().iter().flat_map(|op| vec![op.clone(); weight(op)]).collect();
    for _ in 0..budget * 8 {
        if p.structure.instrs.len() >= budget {
            break;
        }
        if p.rng.one_in(20) {
            p.repeat();
        } else {
            let kind = p.rng.pick(&kinds);
            p.step(&kind);
        }
    }
    p.finish()
}

/// An operand before numbers become constants or slots.
#[derive(Clone)]
enum Given {
    Val(u32),
    Num(Scalar),
    Data(Vec<u8>),
}

const MAX_NUMEL: usize = 600;
const MAX_FLOAT: f64 = 64.0;

struct Maker {
    rng: Rng,
    /// The element type most of the program is about.
    main: DType,
    structure: Structure,
    slots: Vec<Slot>,
    /// Every value, and what it would be if each rounding instruction were a little off.
    values: Vec<HostTensor>,
    shaken: Vec<HostTensor>,
}

impl Maker {
    fn new(seed: u64) -> Maker {
        let mut rng = Rng::new(seed);
        let (mut structure, mut values) = (Structure::default(), Vec::new());
        let main = rng.pick(&[DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64]);
        for _ in 0..1 + rng.below(4) {
            let dtype = if rng.one_in(3) { rng.pick(&DType::ALL) } else { main };
            let rank = rng.below(5);
            let sizes = [1, 2, 3, 3, 4, 5, 7];
            let shape: Shape = (0..rank).map(|_| if rng.one_in(25) { 0 } else { rng.pick(&sizes) }).collect();
            let shape = if shape.numel() > 200 { [shape[0], 3].into() } else { shape };
            let ty = Ty { dtype, shape };
            structure.inputs.push(Input { ty: ty.clone(), dies: rng.below(5) < 2 });
            values.push(draw(&mut rng, &ty, (-2.0, 2.0)));
        }
        Maker { rng, main, structure, slots: vec![], shaken: values.clone(), values }
    }

    fn finish(mut self) -> RandomProgram {
        let total = self.values.len();
        let inputs = self.structure.inputs.len();
        let mut outs: Vec<u32> = vec![total as u32 - 1];
        for v in 0..total {
            let likely = if v < inputs { self.rng.one_in(30) } else { self.rng.one_in(3) };
            if likely && (v != total - 1 || self.rng.one_in(20)) {
                outs.push(v as u32);
            }
        }
        self.structure.outs = outs;
        self.structure.slots = self.slots.len() as u32;
        self.values.truncate(inputs);
        RandomProgram { structure: self.structure, inputs: self.values, slots: self.slots }
    }

    fn ty(&self, v: u32) -> &Ty {
        &self.values[v as usize].ty
    }

    /// A value for which `fits` holds, late ones more often.
    fn find(&mut self, fits: impl Fn(&Ty) -> bool) -> Option<u32> {
        let all: Vec<u32> = (0..self.values.len() as u32).filter(|&v| fits(self.ty(v))).collect();
        if all.is_empty() {
            return None;
        }
        let (i, j) = (self.rng.below(all.len()), self.rng.below(all.len()));
        Some(all[i.max(j)])
    }

    /// A value of a type: one that is there, or a new one.
    fn some(&mut self, ty: &Ty) -> Option<u32> {
        if !self.rng.one_in(3)
            && let Some(v) = self.find(|t| t == ty)
        {
            return Some(v);
        }
        let Ty { dtype, shape } = ty.clone();
        if self.rng.one_in(3) {
            let x = draw(&mut self.rng, ty, (-2.0, 2.0));
            return self.emit(Op::Data { shape, dtype }, vec![Given::Data(x.data)]);
        }
        match dtype.kind() {
            Kind::Float => self.random(Dist::Uniform, shape, dtype),
            Kind::Int | Kind::Bool => self.random(Dist::Int { low: 0, high: 7 }, shape, dtype),
        }
    }

    fn random(&mut self, dist: Dist, shape: Shape, dtype: DType) -> Option<u32> {
        let (key, offset) = (self.rng.bits() as i64, self.rng.below(100) as i64);
        let args = [key, offset].map(|x| Given::Num(Scalar::Int(x)));
        self.emit(Op::Random { dist, shape, dtype }, args.to_vec())
    }

    fn num(&mut self, dtype: DType) -> Scalar {
        let x = draw(&mut self.rng, &Ty::new(dtype, []), (-2.0, 2.0)).get(0);
        if dtype.is_float() && self.rng.one_in(4) { self.rng.pick(&[0.0, 1.0, 0.5, 2.0]).into() } else { x }
    }

    /// Appends an instruction if its results are finite, small and well conditioned, and gives the first.
    fn emit(&mut self, op: Op, given: Vec<Given>) -> Option<u32> {
        let run = |values: &[HostTensor]| {
            let args: Vec<RefArg> = given
                .iter()
                .map(|arg| match arg {
                    Given::Val(v) => RefArg::Val(&values[*v as usize]),
                    Given::Num(x) => RefArg::Num(*x),
                    Given::Data(bytes) => RefArg::Data(bytes),
                })
                .collect();
            eval_all(&op, &args).ok()
        };
        let values = run(&self.values)?;
        if values.iter().any(|v| v.numel() > MAX_NUMEL) || self.values.len() > 4000 {
            return None;
        }
        let mut shaken = run(&self.shaken)?;
        for (value, shaken) in values.iter().zip(&mut shaken).filter(|(v, _)| v.ty.dtype.is_float()) {
            if value.to_f64s().iter().any(|x| !x.is_finite() || x.abs() > MAX_FLOAT) {
                return None;
            }
            // What is left when all digits cancel is noise, and another right way may leave none. Halves are computed in
            // f32.
            let noise = 1024.0 * unit(crate::composite::wide(value.ty.dtype));
            if cancels(&op) && value.to_f64s().iter().any(|x| *x != 0.0 && x.abs() < noise) {
                return None;
            }
            if rounds(&op) {
                self.shake(shaken, cancels(&op));
            }
        }
        let exact = |arg: &Given| match arg {
            Given::Val(v) => self.values[*v as usize] == self.shaken[*v as usize],
            Given::Num(_) | Given::Data(_) => true,
        };
        let stepped = values.iter().any(|v| !v.ty.dtype.is_float());
        if (jumps(&op) || stepped) && !given.iter().all(exact) {
            return None;
        }
        for (value, shaken) in values.iter().zip(&shaken) {
            let (rtol, atol) = tolerance(value.ty.dtype);
            close(value, shaken, 2.0 * rtol, 2.0 * atol).ok()?;
        }

        let mut args = Args::new();
        for (i, arg) in given.into_iter().enumerate() {
            let slot = match arg {
                Given::Val(v) => {
                    args.push(Arg::Value(v));
                    continue;
                }
                Given::Num(x) => {
                    let tile = op.start_arg(i)
                        && matches!(args.first(), Some(Arg::Value(v))
                            if op.is_tile(&self.values[*v as usize].ty.shape, x.as_i64()));
                    let slot = op.slot_arg(i) && !tile || op.may_become_slot(i) && self.rng.one_in(3);
                    if !slot {
                        args.push(Arg::Const(x));
                        continue;
                    }
                    Slot::Num(x)
                }
                Given::Data(bytes) => Slot::Data(Arc::new(bytes)),
            };
            args.push(Arg::Slot(self.slots.len() as u32));
            self.slots.push(slot);
        }
        self.structure.instrs.push(Instr { op, args });
        let first = self.values.len() as u32;
        self.values.extend(values);
        self.shaken.extend(shaken);
        Some(first)
    }

    /// Moves every element by about a unit in the last place.
    fn shake(&mut self, x: &mut HostTensor, cancels: bool) {
        let unit = unit(x.ty.dtype);
        for i in 0..x.numel() {
            let sign = self.rng.pick(&[-1.0, 1.0]);
            let moved = x.get(i).as_f64() * (1.0 + sign * unit) + if cancels { sign * unit } else { 0.0 };
            x.set(i, Scalar::Float(moved));
        }
    }

    /// Writes an instruction that is there already once more.
    fn repeat(&mut self) -> Option<u32> {
        if self.structure.instrs.is_empty() {
            return None;
        }
        let i = self.rng.below(self.structure.instrs.len());
        let Instr { op, args } = self.structure.instrs[i].clone();
        let given = args
            .iter()
            .map(|arg| match arg {
                Arg::Value(v) => Given::Val(*v),
                Arg::Const(x) => Given::Num(*x),
                Arg::Slot(k) => match &self.slots[*k as usize] {
                    Slot::Num(x) => Given::Num(*x),
                    Slot::Data(bytes) => Given::Data(bytes.to_vec()),
                },
            })
            .collect();
        self.emit(op, given)
    }

    /// Tries to write one instruction of a kind.
    fn step(&mut self, kind: &Op) -> Option<u32> {
        let main = self.main;
        let wanted = if self.rng.one_in(3) { None } else { self.find(|ty| ty.dtype == main) };
        let x = wanted.or_else(|| self.find(|_| true))?;
        let Ty { dtype, shape } = self.ty(x).clone();
        let rank = shape.len();
        let dim = self.rng.below(rank.max(1));
        let keepdim = self.rng.one_in(2);
        match kind {
            Op::Full { .. } => {
                let n = self.num(dtype);
                self.emit(Op::Full { shape, dtype }, vec![Given::Num(n)])
            }
            Op::Arange { .. } => {
                let (a, b) = (self.num(dtype), self.num(dtype));
                let len = self.rng.below(9);
                self.emit(Op::Arange { len, dtype }, vec![Given::Num(a), Given::Num(b)])
            }
            Op::Random { .. } => {
                let dist = match dtype.is_float() {
                    true => self.rng.pick(&[Dist::Uniform, Dist::Normal, Dist::Int { low: -2, high: 3 }]),
                    false => Dist::Int { low: -2, high: 100 },
                };
                self.random(dist, shape, dtype)
            }
            Op::Data { .. } => {
                let data = draw(&mut self.rng, &Ty { dtype, shape: shape.clone() }, (-2.0, 2.0)).data;
                self.emit(Op::Data { shape, dtype }, vec![Given::Data(data)])
            }
            Op::Unary(_) => {
                let ops: Vec<Unary> =
                    Unary::ALL.iter().copied().filter(|op| op.takes().accepts(dtype)).collect();
                let op = self.rng.pick(&ops);
                self.emit(Op::Unary(op), vec![Given::Val(x)])
            }
            Op::Binary(_) => {
                let ops: Vec<Binary> =
                    Binary::ALL.iter().copied().filter(|op| op.takes().accepts(dtype)).collect();
                let op = self.rng.pick(&ops);
                let other = self.side(dtype, &shape)?;
                let mut args = vec![Given::Val(x), other];
                if self.rng.one_in(2) {
                    args.swap(0, 1);
                }
                self.emit(Op::Binary(op), args)
            }
            Op::Where => {
                let cond = match self
                    .find(|t| t.dtype == DType::Bool && Shape::broadcast("", &t.shape, &shape).is_ok())
                {
                    Some(cond) => cond,
                    None => self.some(&Ty { dtype: DType::Bool, shape: shape.clone() })?,
                };
                let other = self.side(dtype, &shape)?;
                let mut args = vec![Given::Val(x), other];
                if self.rng.one_in(2) {
                    args.swap(0, 1);
                }
                args.insert(0, Given::Val(cond));
                self.emit(Op::Where, args)
            }
            Op::Cast(_) => {
                let to = self.rng.pick(&DType::ALL);
                self.emit(Op::Cast(to), vec![Given::Val(x)])
            }
            Op::View(_) => {
                let (view, start) = self.view(&shape)?;
                let mut args = vec![Given::Val(x)];
                args.extend(start.map(|i| Given::Num(Scalar::Int(i))));
                self.emit(Op::View(view), args)
            }
            Op::Pad { .. } => {
                let mut amounts = || -> Ints { (0..rank).map(|_| self.rng.pick(&[0, 0, 1, 2])).collect() };
                let (lo, hi) = (amounts(), amounts());
                let fill = self.num(dtype);
                self.emit(Op::Pad { lo, hi }, vec![Given::Val(x), Given::Num(fill)])
            }
            Op::Concat { .. } => {
                let fits = |t: &Ty| {
                    t.dtype == dtype
                        && t.shape.len() == rank
                        && (0..rank).all(|d| d == dim || t.shape[d] == shape[d])
                };
                let mut args = vec![Given::Val(x)];
                for _ in 0..self.rng.below(3) {
                    args.push(Given::Val(self.find(fits)?));
                }
                self.emit(Op::Concat { dim }, args)
            }
            Op::Flip { .. } => {
                let dims = (0..rank).filter(|_| self.rng.one_in(2)).collect();
                self.emit(Op::Flip { dims }, vec![Given::Val(x)])
            }
            Op::Put { .. } => self.put(x, &Ty { dtype, shape }),
            Op::Reduce { .. } => {
                let kind = self.rng.pick(&REDUCES);
                let dims = (0..rank).filter(|_| self.rng.one_in(2)).collect();
                self.emit(Op::Reduce { kind, dims, keepdim }, vec![Given::Val(x)])
            }
            Op::ArgReduce { .. } => {
                let kind = self.rng.pick(&[ArgKind::Max, ArgKind::Min]);
                self.emit(Op::ArgReduce { kind, dim, keepdim }, vec![Given::Val(x)])
            }
            Op::Scan { .. } => {
                let kind = self.rng.pick(&[ScanKind::Sum, ScanKind::Prod]);
                self.emit(Op::Scan { kind, dim }, vec![Given::Val(x)])
            }
            Op::Matmul { .. } => self.matmul(x, &Ty { dtype, shape }),
            Op::Gather { .. } | Op::Scatter { .. } => {
                if rank == 0 || shape[dim] == 0 {
                    return None;
                }
                let at: Shape =
                    shape.iter().map(|&n| if n == 0 { 0 } else { 1 + self.rng.below(n) }).collect();
                let index = self.index(shape[dim], &at)?;
                if matches!(kind, Op::Gather { .. }) {
                    return self.emit(Op::Gather { dim }, vec![Given::Val(x), Given::Val(index)]);
                }
                let mode = self.rng.pick(&MODES);
                let src = match self.rng.one_in(4) {
                    true => Given::Num(self.num(dtype)),
                    false => Given::Val(self.some(&Ty { dtype, shape: at })?),
                };
                self.emit(Op::Scatter { dim, mode }, vec![Given::Val(x), Given::Val(index), src])
            }
            Op::Take { .. } | Op::TakePut { .. } => {
                if rank == 0 || shape[dim] == 0 {
                    return None;
                }
                let at: Shape = (0..self.rng.below(3)).map(|_| self.rng.below(4)).collect();
                let index = self.index(shape[dim], &at)?;
                if matches!(kind, Op::Take { .. }) {
                    return self.emit(Op::Take { dim }, vec![Given::Val(x), Given::Val(index)]);
                }
                let taken: Shape =
                    shape[..dim].iter().chain(at.iter()).chain(&shape[dim + 1..]).copied().collect();
                let src = self.some(&Ty { dtype, shape: taken })?;
                let mode = self.rng.pick(&MODES);
                self.emit(Op::TakePut { dim, mode }, vec![Given::Val(x), Given::Val(index), Given::Val(src)])
            }
            Op::Sort { .. } if rank > 0 => {
                self.emit(Op::Sort { dim, descending: keepdim }, vec![Given::Val(x)])
            }
            Op::TopK { .. } if rank > 0 => {
                let k = self.rng.below(shape[dim] + 1);
                self.emit(Op::TopK { dim, k, largest: keepdim }, vec![Given::Val(x)])
            }
            Op::Sort { .. } | Op::TopK { .. } => None,
            Op::Softmax { .. } => self.emit(Op::Softmax { dim }, vec![Given::Val(x)]),
            Op::LogSoftmax { .. } => self.emit(Op::LogSoftmax { dim }, vec![Given::Val(x)]),
            Op::RmsNorm { .. } | Op::LayerNorm { .. } if rank > 0 => {
                let dims = 1 + self.rng.below(rank);
                let trailing = Ty { dtype, shape: shape[rank - dims..].into() };
                let (op, most) = match kind {
                    Op::RmsNorm { .. } => (Op::RmsNorm { dims }, 1),
                    _ => (Op::LayerNorm { dims }, 2),
                };
                let mut args = vec![Given::Val(x), Given::Num(Scalar::Float(0.1))];
                for _ in 0..self.rng.below(most + 1) {
                    args.push(Given::Val(self.some(&trailing)?));
                }
                self.emit(op, args)
            }
            Op::CrossEntropy if rank > 0 && shape[rank - 1] > 0 => {
                let target = self.index(shape[rank - 1], &shape[..rank - 1].into())?;
                let ignored = self.rng.pick(&[-100, 0, 1]);
                self.emit(
                    Op::CrossEntropy,
                    vec![Given::Val(x), Given::Val(target), Given::Num(Scalar::Int(ignored))],
                )
            }
            Op::Attention { .. } | Op::AttentionGrad { .. } => {
                let fits = rank >= 3 && dtype.is_float() && shape.numel() <= 100;
                self.attention(fits.then_some(x), matches!(kind, Op::AttentionGrad { .. }), keepdim)
            }
            Op::Sgd { .. } | Op::Adam { .. } if dtype.is_float() => {
                self.optimizer(x, &Ty { dtype, shape }, matches!(kind, Op::Sgd { .. }))
            }
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::CrossEntropy => None,
            Op::Sgd { .. } | Op::Adam { .. } | Op::Collective(_) => None,
        }
    }

    /// An attention of `q`, or of a new tensor, or its gradient.
    fn attention(&mut self, q: Option<u32>, grad: bool, causal: bool) -> Option<u32> {
        let q = match q {
            Some(q) => q,
            None => {
                let dtype = if self.main.is_float() { self.main } else { DType::F32 };
                self.some(&Ty::new(dtype, [2, 3, 2]))?
            }
        };
        let Ty { dtype, shape } = self.ty(q).clone();
        let rank = shape.len();
        let (columns, e) = (1 + self.rng.below(4), 1 + self.rng.below(3));
        let heads = if self.rng.one_in(2) && shape[rank - 3] > 0 { 1 } else { shape[rank - 3] };
        let batch = &shape[..rank - 3];
        let side = |n: usize| -> Ty {
            Ty { dtype, shape: batch.iter().copied().chain([heads, columns, n]).collect() }
        };
        let (k, v) = (self.some(&side(shape[rank - 1]))?, self.some(&side(e))?);
        let mut args = vec![Given::Val(q), Given::Val(k), Given::Val(v)];
        if grad {
            let lse: Shape = shape[..rank - 1].into();
            let out: Shape = lse.iter().copied().chain([e]).collect();
            args.push(Given::Val(self.some(&Ty { dtype, shape: out.clone() })?));
            let wide = crate::composite::wide(dtype);
            args.push(Given::Val(self.random(Dist::Uniform, lse, wide)?));
            args.push(Given::Val(self.some(&Ty { dtype, shape: out })?));
        }
        args.push(Given::Num(Scalar::Float(0.5)));
        if self.rng.one_in(2) {
            args.push(Given::Val(self.some(&Ty::new(dtype, [shape[rank - 2], columns]))?));
        }
        let op = if grad { Op::AttentionGrad { causal } } else { Op::Attention { causal } };
        self.emit(op, args)
    }

    /// A step of one or two parameters of one type.
    fn optimizer(&mut self, p: u32, ty: &Ty, sgd: bool) -> Option<u32> {
        let mut flag = || self.rng.one_in(2);
        let (op, numbers) = if sgd {
            let (momentum, nesterov, maximize, decay) = (flag(), flag(), flag(), flag());
            let op = Op::Sgd {
                momentum,
                first: momentum && flag(),
                dampened: momentum && flag(),
                nesterov: momentum && nesterov,
                maximize,
                decay,
            };
            (op, vec![0.1, 0.9, 0.7, 0.05])
        } else {
            let op = Op::Adam { decoupled: flag(), amsgrad: flag(), maximize: flag(), decay: flag() };
            (op, vec![0.1, 0.95, 1e-2, 0.4, 0.1, 0.98, 0.02])
        };
        let mut args: Vec<Given> = numbers.into_iter().map(|x| Given::Num(Scalar::Float(x))).collect();
        for k in 0..1 + self.rng.below(2) {
            args.push(Given::Val(if k == 0 { p } else { self.some(ty)? }));
            for i in 1..op.group() {
                // Squares are not negative.
                args.push(Given::Val(match i {
                    1 | 2 => self.some(ty)?,
                    _ => self.random(Dist::Uniform, ty.shape.clone(), ty.dtype)?,
                }));
            }
        }
        self.emit(op, args)
    }

    /// The other operand of an elementwise op: something that broadcasts, or a number.
    fn side(&mut self, dtype: DType, shape: &Shape) -> Option<Given> {
        if self.rng.one_in(3) {
            return Some(Given::Num(self.num(dtype)));
        }
        let fits = |t: &Ty| t.dtype == dtype && Shape::broadcast("", &t.shape, shape).is_ok();
        self.find(fits).map(Given::Val)
    }

    fn index(&mut self, n: usize, shape: &Shape) -> Option<u32> {
        let dtype = self.rng.pick(&[DType::I64, DType::I64, DType::I32, DType::U8]);
        self.random(Dist::Int { low: 0, high: n as i64 }, shape.clone(), dtype)
    }

    /// A random view of a shape, with its start if it is a slice.
    fn view(&mut self, shape: &Shape) -> Option<(View, Option<i64>)> {
        let rank = shape.len();
        match self.rng.below(4) {
            0 => {
                let mut dims: Vec<usize> = shape.to_vec();
                let cut = self.rng.below(rank + 1);
                if self.rng.one_in(2) && cut + 1 < rank {
                    let joined = dims[cut] * dims[cut + 1];
                    dims.splice(cut..cut + 2, [joined]);
                } else {
                    dims.insert(cut, 1);
                    if cut < rank && dims[cut + 1].is_multiple_of(2) {
                        (dims[cut], dims[cut + 1]) = (2, dims[cut + 1] / 2);
                    }
                }
                Some((View::Reshape(dims.into()), None))
            }
            1 => Some((View::Permute(self.rng.permutation(rank).into()), None)),
            2 => {
                let mut to: Vec<usize> =
                    shape.iter().map(|&n| if n == 1 { self.rng.pick(&[1, 2, 3]) } else { n }).collect();
                if self.rng.one_in(2) {
                    to.insert(0, 2);
                }
                Some((View::Expand(to.into()), None))
            }
            _ if rank == 0 => None,
            _ => {
                let dim = self.rng.below(rank);
                let n = shape[dim];
                let (start, step) = (self.rng.below(n + 1), self.rng.pick(&[1, 1, 2, 3]));
                let len = self.rng.below((n - start).div_ceil(step) + 1);
                if len == 0 && !self.rng.one_in(8) {
                    return None;
                }
                Some((View::Slice { dim, len, step }, Some(start as i64)))
            }
        }
    }

    fn put(&mut self, base: u32, ty: &Ty) -> Option<u32> {
        let (mut path, mut starts, mut shape) = (vec![], vec![], ty.shape.clone());
        for _ in 0..1 + self.rng.below(3) {
            let (view, start) = self.view(&shape)?;
            if matches!(view, View::Expand(_)) {
                continue;
            }
            shape = view_shape("PUT", &view, &shape).ok()?;
            path.push(view);
            starts.extend(start);
        }
        let value = match self.rng.one_in(3) {
            true => Given::Num(self.num(ty.dtype)),
            false => Given::Val(self.some(&Ty { dtype: ty.dtype, shape })?),
        };
        let mut args = vec![Given::Val(base), value];
        args.extend(starts.into_iter().map(|i| Given::Num(Scalar::Int(i))));
        self.emit(Op::Put { path }, args)
    }

    fn matmul(&mut self, a: u32, ty: &Ty) -> Option<u32> {
        let rank = ty.shape.len();
        if rank < 2 {
            return None;
        }
        let (ta, tb) = (self.rng.one_in(2), self.rng.one_in(2));
        let k = ty.shape[if ta { rank - 2 } else { rank - 1 }];
        let n = 1 + self.rng.below(5);
        let matrix = if tb { [n, k] } else { [k, n] };
        let batch: Vec<usize> = if self.rng.one_in(2) { vec![] } else { ty.shape[..rank - 2].to_vec() };
        let shape: Shape = batch.into_iter().chain(matrix).collect();
        let b = self.some(&Ty { dtype: ty.dtype, shape })?;
        let mut args = vec![Given::Val(a), Given::Val(b)];
        if self.rng.one_in(3) {
            args.push(Given::Val(self.some(&Ty::new(ty.dtype, [n]))?));
        }
        let tf32 = ty.dtype == DType::F32 && self.rng.one_in(4);
        self.emit(Op::Matmul { ta, tb, tf32 }, args)
    }
}

/// A unit in the last place of a number near one.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        DType::F32 => 1.0 / 8_388_608.0,
        _ => f64::EPSILON,
    }
}

/// True if the result jumps where a float operand moves a little.
fn jumps(op: &Op) -> bool {
    match op {
        Op::Unary(op) => {
            matches!(op, Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc)
        }
        Op::Binary(op) => {
            matches!(op, Binary::FloorDiv | Binary::Rem | Binary::Atan2) || op.gives() == Gives::Bool
        }
        Op::ArgReduce { .. } | Op::Sort { .. } | Op::TopK { .. } => true,
        Op::Cast(to) => !to.is_float(),
        Op::Full { .. }
        | Op::Arange { .. }
        | Op::Random { .. }
        | Op::Data { .. }
        | Op::Where
        | Op::View(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Flip { .. }
        | Op::Put { .. }
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::Matmul { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Take { .. }
        | Op::TakePut { .. }
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::CrossEntropy
        | Op::Attention { .. }
        | Op::AttentionGrad { .. }
        | Op::Sgd { .. }
        | Op::Adam { .. }
        | Op::Collective(_) => false,
    }
}

/// True if large terms may cancel inside the op, so that its error is not relative to its result.
fn cancels(op: &Op) -> bool {
    matches!(op, Op::LogSoftmax { .. } | Op::LayerNorm { .. } | Op::CrossEntropy | Op::AttentionGrad { .. })
}

/// True if two right ways to compute the op may round differently.
fn rounds(op: &Op) -> bool {
    match op {
        Op::Unary(op) => !matches!(op, Unary::Neg | Unary::Abs | Unary::Relu),
        Op::Binary(op) => !matches!(op, Binary::Max | Binary::Min),
        Op::Reduce { kind, .. } => matches!(kind, ReduceKind::Sum | ReduceKind::Prod),
        Op::Random { dist, .. } => matches!(dist, Dist::Normal),
        Op::Scatter { .. } | Op::TakePut { .. } => true,
        Op::Arange { .. } | Op::Scan { .. } | Op::Matmul { .. } => true,
        Op::Softmax { .. } | Op::LogSoftmax { .. } => true,
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::CrossEntropy => true,
        Op::Attention { .. } | Op::AttentionGrad { .. } | Op::Sgd { .. } | Op::Adam { .. } => true,
        Op::Collective(_) => true,
        Op::Full { .. }
        | Op::Data { .. }
        | Op::Where
        | Op::Cast(_)
        | Op::View(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Flip { .. }
        | Op::Put { .. }
        | Op::ArgReduce { .. }
        | Op::Gather { .. }
        | Op::Take { .. }
        | Op::Sort { .. }
        | Op::TopK { .. } => false,
    }
}
