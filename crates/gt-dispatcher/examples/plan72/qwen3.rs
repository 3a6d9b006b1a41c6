//! One training step of Qwen3 as a program: forward, backward by the ops' gradient rules, and AdamW.

use gt_ir::build::{Build, Kept, Operand, Operands, Saved, Values};
use gt_ir::grad::vjp;
use gt_ir::op::{ADAM_NUMBERS, Op, ReduceKind, View};
use gt_ir::{
    Arg, ArgTy, Binary, DType, Input, Instr, Result, Scalar, Shape, Structure, Ty, Unary, infer_all,
};
use smallvec::smallvec;

/// The sizes of a model and of its batch.
pub struct Sizes {
    pub layers: usize,
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub head: usize,
    pub vocab: usize,
    pub batch: usize,
    pub length: usize,
}

/// Instructions as they are written, and where each value comes from.
#[derive(Default)]
pub struct Tape {
    types: Vec<Ty>,
    /// The instruction of each value; none for inputs.
    made: Vec<Option<usize>>,
    ops: Vec<(Op, Operands<usize>)>,
    /// The first result of each instruction.
    firsts: Vec<usize>,
    inputs: usize,
}

impl Build for Tape {
    type V = usize;

    fn ty(&self, v: &usize) -> Ty {
        self.types[*v].clone()
    }

    fn emit(&mut self, op: Op, args: Operands<usize>) -> Result<usize> {
        self.emit_all(op, args).map(|outs| outs[0])
    }

    fn emit_all(&mut self, op: Op, args: Operands<usize>) -> Result<Values<usize>> {
        let ty = |arg: &Operand<usize>| arg.val().map_or(ArgTy::Num, |v| ArgTy::Val(&self.types[*v]));
        let given: Vec<ArgTy> = args.iter().map(ty).collect();
        let types = infer_all(&op, &given)?;
        let first = self.types.len();
        self.made.extend(types.iter().map(|_| Some(self.ops.len())));
        self.types.extend(types);
        self.ops.push((op, args));
        self.firsts.push(first);
        Ok((first..self.types.len()).collect())
    }
}

impl Tape {
    fn input(&mut self, dtype: DType, shape: impl Into<Shape>) -> usize {
        assert!(self.ops.is_empty(), "inputs come first");
        self.types.push(Ty { dtype, shape: shape.into() });
        self.made.push(None);
        self.inputs += 1;
        self.types.len() - 1
    }

    fn view(&mut self, x: usize, view: View) -> Result<usize> {
        self.emit(Op::View(view), smallvec![Operand::Val(x)])
    }

    /// x W^T.
    fn linear(&mut self, x: usize, weight: usize) -> Result<usize> {
        self.emit(
            Op::Matmul { ta: false, tb: true, tf32: false },
            smallvec![Operand::Val(x), Operand::Val(weight)],
        )
    }

    fn norm(&mut self, x: usize, weight: usize) -> Result<usize> {
        let eps = Operand::Num(Scalar::Float(1e-6));
        self.emit(Op::RmsNorm { dims: 1 }, smallvec![Operand::Val(x), eps, Operand::Val(weight)])
    }

    /// The gradient of a loss for every leaf.
    fn backward(&mut self, loss: usize, leaves: &[usize]) -> Result<Vec<usize>> {
        let mut grads: Vec<Option<usize>> = vec![None; self.types.len()];
        let one = Op::Full { shape: Shape::scalar(), dtype: DType::F32 };
        grads[loss] = Some(self.emit(one, smallvec![Operand::Num(Scalar::Float(1.0))])?);
        for at in (0..=self.made[loss].unwrap_or(0)).rev() {
            let (op, args) = self.ops[at].clone();
            let first = self.firsts[at];
            let outs: Vec<usize> = (first..first + op.results(args.len())).collect();
            let given: Vec<Option<usize>> = outs.iter().map(|v| grads[*v]).collect();
            if !op.differentiable() || given.iter().all(Option::is_none) {
                continue;
            }
            let float = |a: &Operand<usize>| a.val().is_some_and(|v| self.types[*v].dtype.is_float());
            let wanted: Vec<bool> = args.iter().map(float).collect();
            let kept: Vec<Kept<usize>> = args
                .iter()
                .map(|arg| match arg {
                    Operand::Val(v) => Kept::Val(self.types[*v].clone(), Some(*v)),
                    Operand::Num(x) => Kept::Num(*x),
                })
                .collect();
            let found = vjp(self, &op, &Saved { args: &kept, outs: &outs }, &given, &wanted)?;
            for (arg, d) in args.iter().zip(found) {
                if let (Operand::Val(v), Some(d)) = (arg, d) {
                    grads[*v] = Some(match grads[*v] {
                        None => d,
                        Some(sum) => self.add(&sum, &d)?,
                    });
                }
            }
        }
        Ok(leaves.iter().filter_map(|v| grads[*v]).collect())
    }

    /// The program whose results are these; inputs that are replaced die.
    fn finish(self, outs: Vec<usize>, dies: &[usize]) -> Structure {
        let input = |v: usize| Input { ty: self.types[v].clone(), dies: dies.contains(&v) };
        let arg = |a: &Operand<usize>| match a {
            Operand::Val(v) => Arg::Value(*v as u32),
            Operand::Num(x) => Arg::Const(*x),
        };
        let instr = |(op, args): &(Op, Operands<usize>)| Instr {
            op: op.clone(),
            args: args.iter().map(arg).collect(),
        };
        Structure {
            inputs: (0..self.inputs).map(input).collect(),
            instrs: self.ops.iter().map(instr).collect(),
            outs: outs.into_iter().map(|v| v as u32).collect(),
            ..Structure::default()
        }
    }
}

/// The weights of one layer.
struct Layer {
    norms: [usize; 2],
    head_norms: [usize; 2],
    /// Query, key, value, output, gate, up, down.
    products: [usize; 7],
}

/// A step: token ids, targets, angles, then per parameter its value, mean and square.
pub fn step(s: &Sizes) -> Result<Structure> {
    let mut t = Tape::default();
    let ids = t.input(DType::I64, [s.batch, s.length]);
    let targets = t.input(DType::I64, [s.batch * s.length]);
    let angles = [t.input(DType::F32, [s.length, s.head]), t.input(DType::F32, [s.length, s.head])];
    let mut params = Vec::new();
    let mut param = |t: &mut Tape, shape: &[usize]| {
        params.push(t.input(DType::F32, shape.iter().copied().collect::<Shape>()));
        params[params.len() - 1]
    };
    let embedding = param(&mut t, &[s.vocab, s.hidden]);
    let (q, kv) = (s.heads * s.head, s.key_heads * s.head);
    let mut layers = Vec::new();
    for _ in 0..s.layers {
        let sizes = [
            [q, s.hidden],
            [kv, s.hidden],
            [kv, s.hidden],
            [s.hidden, q],
            [s.inner, s.hidden],
            [s.inner, s.hidden],
            [s.hidden, s.inner],
        ];
        layers.push(Layer {
            norms: [0; 2].map(|_| param(&mut t, &[s.hidden])),
            head_norms: [0; 2].map(|_| param(&mut t, &[s.head])),
            products: sizes.map(|shape| param(&mut t, &shape)),
        });
    }
    let last = param(&mut t, &[s.hidden]);
    let mut states = Vec::new();
    for p in &params {
        let ty = t.types[*p].clone();
        states.push([0; 2].map(|_| t.input(ty.dtype, ty.shape.clone())));
    }
    let mut x = t.emit(Op::Take { dim: 0 }, smallvec![Operand::Val(embedding), Operand::Val(ids)])?;
    for layer in &layers {
        x = block(&mut t, s, layer, angles, x)?;
    }
    x = t.norm(x, last)?;
    let logits = t.linear(x, embedding)?;
    let rows = t.view(logits, View::Reshape([s.batch * s.length, s.vocab].into()))?;
    let ignored = Operand::Num(Scalar::Int(-100));
    let losses = t.emit(Op::CrossEntropy, smallvec![Operand::Val(rows), Operand::Val(targets), ignored])?;
    let sum = t.emit(
        Op::Reduce { kind: ReduceKind::Sum, dims: smallvec![0], keepdim: false },
        smallvec![Operand::Val(losses)],
    )?;
    let loss = t.bin(Binary::Div, &sum, (s.batch * s.length) as f64)?;
    let grads = t.backward(loss, &params)?;
    assert_eq!(grads.len(), params.len());
    let mut args: Operands<usize> = (0..ADAM_NUMBERS).map(|_| Operand::Num(Scalar::Float(0.001))).collect();
    for ((p, g), [mean, square]) in params.iter().zip(&grads).zip(&states) {
        args.extend([*p, *g, *mean, *square].map(Operand::Val));
    }
    let adam = Op::Adam { decoupled: true, amsgrad: false, maximize: false, decay: true };
    let mut outs = t.emit_all(adam, args)?.to_vec();
    outs.push(loss);
    let dies: Vec<usize> = params.iter().copied().chain(states.into_iter().flatten()).collect();
    Ok(t.finish(outs, &dies))
}

fn block(t: &mut Tape, s: &Sizes, layer: &Layer, angles: [usize; 2], x: usize) -> Result<usize> {
    let [q, k, v, o, gate, up, down] = layer.products;
    let y = t.norm(x, layer.norms[0])?;
    let heads = |t: &mut Tape, weight: usize, count: usize, norm: Option<usize>| -> Result<usize> {
        let y = t.linear(y, weight)?;
        let mut y = t.view(y, View::Reshape([s.batch, s.length, count, s.head].into()))?;
        if let Some(norm) = norm {
            y = t.norm(y, norm)?;
        }
        let y = t.view(y, View::Permute(smallvec![0, 2, 1, 3]))?;
        if norm.is_some() { rotate(t, s, y, angles) } else { Ok(y) }
    };
    let q = heads(t, q, s.heads, Some(layer.head_norms[0]))?;
    let k = heads(t, k, s.key_heads, Some(layer.head_norms[1]))?;
    let v = heads(t, v, s.key_heads, None)?;
    let scale = Operand::Num(Scalar::Float((s.head as f64).powf(-0.5)));
    let args = smallvec![Operand::Val(q), Operand::Val(k), Operand::Val(v), scale];
    let y = t.emit_all(Op::Attention { causal: true }, args)?[0];
    let y = t.view(y, View::Permute(smallvec![0, 2, 1, 3]))?;
    let y = t.view(y, View::Reshape([s.batch, s.length, s.heads * s.head].into()))?;
    let y = t.linear(y, o)?;
    let x = t.add(&x, &y)?;
    let y = t.norm(x, layer.norms[1])?;
    let (a, b) = (t.linear(y, gate)?, t.linear(y, up)?);
    let sigmoid = t.un(Unary::Sigmoid, &a)?;
    let silu = t.mul(&a, &sigmoid)?;
    let y = t.mul(&silu, &b)?;
    let y = t.linear(y, down)?;
    t.add(&x, &y)
}

/// Turns each pair of a head by the angle of its position.
fn rotate(t: &mut Tape, s: &Sizes, x: usize, [cos, sin]: [usize; 2]) -> Result<usize> {
    let mut half = |start: i64| {
        let start = Operand::Num(Scalar::Int(start));
        let view = View::Slice { dim: 3, len: s.head / 2, step: 1 };
        t.emit(Op::View(view), smallvec![Operand::Val(x), start])
    };
    let (first, second) = (half(0)?, half(s.head as i64 / 2)?);
    let turned = t.un(Unary::Neg, &second)?;
    let turned = t.emit(Op::Concat { dim: 3 }, smallvec![Operand::Val(turned), Operand::Val(first)])?;
    let (a, b) = (t.mul(&x, &cos)?, t.mul(&turned, &sin)?);
    t.add(&a, &b)
}
