//! Sample instances of every op.

use super::draw::{Rng, draw, draw_apart, draw_index};
use super::{MODES, REDUCES, Sample, SampleArg, composites, kinds};
use crate::elementwise::{Binary, Unary};
use crate::host::HostTensor;
use crate::op::{ArgKind, Dist, Op, ReduceKind, ScanKind, ScatterMode, View};
use crate::{DType, Ints, Kind, Scalar, Shape, Ty};
use smallvec::smallvec;

const WIDE: (f64, f64) = (-3.0, 3.0);

fn shapes() -> Vec<Shape> {
    vec![
        [].into(),
        [1].into(),
        [7].into(),
        [0].into(),
        [3, 4].into(),
        [2, 0, 3].into(),
        [2, 3, 5].into(),
        [2, 3, 1, 2].into(),
    ]
}

/// Collects samples; `all` puts every shape in f64 and a few in each other type.
pub(super) struct Samples {
    pub rng: Rng,
    out: Vec<Sample>,
}

impl Samples {
    pub fn push(&mut self, op: Op, args: Vec<SampleArg>) {
        self.out.push(Sample { op, args, orders: 2 });
    }

    /// An instance that has no gradient.
    pub fn push_flat(&mut self, op: Op, args: Vec<SampleArg>) {
        self.out.push(Sample { op, args, orders: 0 });
    }

    pub fn val(&mut self, dtype: DType, shape: &Shape, domain: (f64, f64)) -> SampleArg {
        SampleArg::Val(draw(&mut self.rng, &Ty { dtype, shape: shape.clone() }, domain))
    }

    fn num(&mut self, dtype: DType, domain: (f64, f64)) -> Scalar {
        draw(&mut self.rng, &Ty { dtype, shape: Shape::scalar() }, domain).get(0)
    }

    /// Runs over element types with the items to try in each: all of them in f64, some elsewhere.
    pub fn each<T: Clone>(
        &mut self,
        accepts: impl Fn(DType) -> bool,
        items: &[T],
        mut f: impl FnMut(&mut Samples, DType, T),
    ) {
        for dtype in DType::ALL.into_iter().filter(|&d| accepts(d)) {
            if dtype == DType::F64 {
                items.iter().for_each(|item| f(self, dtype, item.clone()));
            } else {
                for _ in 0..items.len().min(3) {
                    let item = self.rng.pick(items);
                    f(self, dtype, item);
                }
            }
        }
    }
}

/// Samples of every op in the language.
pub fn samples(seed: u64) -> Vec<Sample> {
    let mut s = Samples { rng: Rng::new(seed), out: Vec::new() };
    let any = |_: DType| true;
    for kind in kinds() {
        match kind {
            Op::Full { .. } => s.each(any, &shapes(), |s, dtype, shape| {
                let x = s.num(dtype, WIDE);
                s.push(Op::Full { shape, dtype }, vec![SampleArg::Num(x)]);
            }),
            Op::Arange { .. } => s.each(any, &[0usize, 1, 7], |s, dtype, len| {
                let (a, b) = (s.num(dtype, WIDE), s.num(dtype, WIDE));
                s.push(Op::Arange { len, dtype }, vec![SampleArg::Num(a), SampleArg::Num(b)]);
            }),
            Op::Random { .. } => random(&mut s),
            Op::Data { .. } => s.each(any, &shapes(), |s, dtype, shape| {
                let x = draw(&mut s.rng, &Ty::new(dtype, shape.clone()), WIDE);
                s.push(Op::Data { shape, dtype }, vec![SampleArg::Data(x.data)]);
            }),
            Op::Unary(_) => Unary::ALL.iter().for_each(|op| {
                s.each(
                    |d| op.takes().accepts(d),
                    &shapes(),
                    |s, dtype, shape| {
                        let x = s.val(dtype, &shape, op.domain());
                        s.push(Op::Unary(*op), vec![x]);
                    },
                )
            }),
            Op::Binary(_) => Binary::ALL.iter().for_each(|op| binary(&mut s, *op)),
            Op::Where => select(&mut s),
            Op::Cast(_) => DType::ALL.into_iter().for_each(|to| {
                s.each(any, &[Shape::from([3, 4])], |s, dtype, shape| {
                    let x = s.val(dtype, &shape, (-9.0, 99.0));
                    s.push(Op::Cast(to), vec![x]);
                })
            }),
            Op::View(_) => s.each(any, &views(), |s, dtype, (shape, view, start)| {
                let mut args = vec![s.val(dtype, &shape, WIDE)];
                args.extend(start.map(|i| SampleArg::Num(Scalar::Int(i))));
                s.push(Op::View(view), args);
            }),
            Op::Pad { .. } => pad(&mut s),
            Op::Concat { .. } => concat(&mut s),
            Op::Flip { .. } => {
                let cases: [(Shape, Ints); 5] = [
                    ([4].into(), smallvec![0]),
                    ([].into(), smallvec![]),
                    ([2, 3, 4].into(), smallvec![2, 0]),
                    ([2, 3].into(), smallvec![1]),
                    ([2, 0].into(), smallvec![0]),
                ];
                s.each(any, &cases, |s, dtype, (shape, dims)| {
                    let x = s.val(dtype, &shape, WIDE);
                    s.push(Op::Flip { dims }, vec![x]);
                })
            }
            Op::Put { .. } => put(&mut s),
            Op::Reduce { .. } => reduce(&mut s),
            Op::ArgReduce { .. } => [ArgKind::Max, ArgKind::Min].into_iter().for_each(|kind| {
                let cases: [(Shape, usize, bool); 4] = [
                    ([6].into(), 0, false),
                    ([2, 5, 3].into(), 1, true),
                    ([4, 3].into(), 1, false),
                    ([3, 0].into(), 0, false),
                ];
                s.each(any, &cases, |s, dtype, (shape, dim, keepdim)| {
                    let x = s.val(dtype, &shape, WIDE);
                    s.push(Op::ArgReduce { kind, dim, keepdim }, vec![x]);
                })
            }),
            Op::Scan { .. } => [ScanKind::Sum, ScanKind::Prod].into_iter().for_each(|kind| {
                let cases: [(Shape, usize); 4] =
                    [([5].into(), 0), ([2, 4].into(), 1), ([3, 4, 2].into(), 1), ([0, 3].into(), 0)];
                s.each(any, &cases, |s, dtype, (shape, dim)| {
                    let x = s.val(dtype, &shape, (0.3, 2.0));
                    s.push(Op::Scan { kind, dim }, vec![x]);
                });
                s.each(DType::is_float, &[1usize, 2], |s, dtype, zeros| {
                    let mut x = draw(&mut s.rng, &Ty::new(dtype, [2, 5]), (0.5, 2.0));
                    (0..zeros).for_each(|i| x.set(2 * i + 1, Scalar::Float(0.0)));
                    s.push(Op::Scan { kind, dim: 1 }, vec![SampleArg::Val(x)]);
                })
            }),
            Op::Matmul { .. } => matmul(&mut s),
            Op::Gather { .. } => s.each(any, &gathers(), |s, dtype, (x, index, dim)| {
                let at = s.rng.pick(&INDEX_DTYPES);
                let index = draw_index(&mut s.rng, at, &index, x[dim].max(1), None);
                let x = s.val(dtype, &x, WIDE);
                s.push(Op::Gather { dim }, vec![x, SampleArg::Val(index)]);
            }),
            Op::Scatter { .. } => scatter(&mut s),
            Op::Take { .. } => s.each(any, &takes(), |s, dtype, (x, index, dim)| {
                let index = take_index(s, &index, x[dim], None);
                let x = s.val(dtype, &x, WIDE);
                s.push(Op::Take { dim }, vec![x, index]);
            }),
            Op::TakePut { .. } => take_put(&mut s),
            Op::Sort { .. } => sort(&mut s, |dim, _, descending| Op::Sort { dim, descending }),
            Op::TopK { .. } => sort(&mut s, |dim, k, largest| Op::TopK { dim, k, largest }),
            Op::Softmax { .. } => softmax(&mut s, |dim| Op::Softmax { dim }),
            Op::LogSoftmax { .. } => softmax(&mut s, |dim| Op::LogSoftmax { dim }),
            Op::RmsNorm { .. } => composites::norm(&mut s, |dims| Op::RmsNorm { dims }, 1),
            Op::LayerNorm { .. } => composites::norm(&mut s, |dims| Op::LayerNorm { dims }, 2),
            Op::CrossEntropy => composites::cross_entropy(&mut s),
            Op::Attention { .. } => composites::attention(&mut s),
            Op::AttentionGrad { .. } => composites::attention_grad(&mut s),
            Op::Sgd { .. } => composites::sgd(&mut s),
            Op::Adam { .. } => composites::adam(&mut s),
            Op::Collective(_) => {}
        }
    }
    s.out
}

const INDEX_DTYPES: [DType; 5] = [DType::I64, DType::I64, DType::I32, DType::I16, DType::U8];

fn random(s: &mut Samples) {
    for dist in [Dist::Uniform, Dist::Normal, Dist::Int { low: 2, high: 90 }] {
        let accepts = move |d: DType| d.is_float() || matches!(dist, Dist::Int { .. });
        s.each(accepts, &shapes(), |s, dtype, shape| {
            let (key, offset) = (s.rng.bits() as i64, s.rng.below(1000) as i64);
            let args = vec![SampleArg::Num(Scalar::Int(key)), SampleArg::Num(Scalar::Int(offset))];
            s.push(Op::Random { dist, shape, dtype }, args);
        });
    }
}

fn binary(s: &mut Samples, op: Binary) {
    let pairs: Vec<(Shape, Shape)> = vec![
        ([].into(), [].into()),
        ([5].into(), [5].into()),
        ([2, 3].into(), [3].into()),
        ([2, 1].into(), [1, 3].into()),
        ([4, 1, 3].into(), [2, 1].into()),
        ([].into(), [3].into()),
        ([0, 3].into(), [1, 3].into()),
        ([2, 3, 1, 2].into(), [3, 2, 2].into()),
    ];
    let [left, right] = op.domain();
    s.each(
        |d| op.takes().accepts(d),
        &pairs,
        |s, dtype, (a, b)| {
            let b = draw(&mut s.rng, &Ty::new(dtype, b), right);
            let a = draw_apart(&mut s.rng, &Ty::new(dtype, a), left, &b.to_f64s());
            s.push(Op::Binary(op), vec![SampleArg::Val(a), SampleArg::Val(b)]);
        },
    );
    let shapes: [Shape; 3] = [[].into(), [2, 3].into(), [3, 0].into()];
    s.each(
        |d| op.takes().accepts(d),
        &shapes,
        |s, dtype, shape| {
            let ty = Ty::new(dtype, shape);
            let b = s.num(dtype, right);
            let a = draw_apart(&mut s.rng, &ty, left, &[b.as_f64()]);
            s.push(Op::Binary(op), vec![SampleArg::Val(a), SampleArg::Num(b)]);
            let b = draw(&mut s.rng, &ty, right);
            let a = draw_apart(&mut s.rng, &Ty::new(dtype, []), left, &b.to_f64s()).get(0);
            s.push(Op::Binary(op), vec![SampleArg::Num(a), SampleArg::Val(b)]);
        },
    );
}

fn select(s: &mut Samples) {
    type Side = Option<Shape>;
    let cases: Vec<(Shape, Side, Side)> = vec![
        ([5].into(), Some([5].into()), Some([5].into())),
        ([2, 1].into(), Some([3].into()), Some([].into())),
        ([3].into(), Some([2, 1].into()), None),
        ([2, 3].into(), None, Some([1, 3].into())),
        ([].into(), Some([2, 2].into()), Some([4, 1, 2].into())),
        ([0, 1].into(), Some([1, 3].into()), Some([0, 3].into())),
    ];
    s.each(
        |_| true,
        &cases,
        |s, dtype, (cond, a, b)| {
            let cond = s.val(DType::Bool, &cond, WIDE);
            let mut side = |shape: Side| match shape {
                Some(shape) => s.val(dtype, &shape, WIDE),
                None => SampleArg::Num(s.num(dtype, WIDE)),
            };
            let args = vec![cond, side(a), side(b)];
            s.push(Op::Where, args);
        },
    );
}

fn views() -> Vec<(Shape, View, Option<i64>)> {
    let slice = |dim, len, step| View::Slice { dim, len, step };
    vec![
        ([2, 6].into(), View::Reshape([3, 4].into()), None),
        ([].into(), View::Reshape([1, 1].into()), None),
        ([4, 3, 2].into(), View::Reshape([4, 6].into()), None),
        ([6, 5].into(), View::Reshape([2, 3, 5].into()), None),
        ([0, 3].into(), View::Reshape([5, 0].into()), None),
        ([2, 3, 4].into(), View::Permute(smallvec![2, 0, 1]), None),
        ([5, 3].into(), View::Permute(smallvec![1, 0]), None),
        ([].into(), View::Permute(smallvec![]), None),
        ([3, 1].into(), View::Expand([2, 3, 4].into()), None),
        ([].into(), View::Expand([5].into()), None),
        ([1, 3].into(), View::Expand([0, 3].into()), None),
        ([4, 2].into(), View::Expand([4, 2].into()), None),
        ([7, 3].into(), slice(0, 3, 2), Some(1)),
        ([3, 5].into(), slice(1, 5, 1), Some(0)),
        ([2, 4, 3].into(), slice(1, 1, 1), Some(3)),
        ([4].into(), slice(0, 0, 1), Some(4)),
        ([5].into(), slice(0, 1, 7), Some(2)),
    ]
}

fn pad(s: &mut Samples) {
    let cases: [(Shape, Ints, Ints); 5] = [
        ([3].into(), smallvec![1], smallvec![2]),
        ([].into(), smallvec![], smallvec![]),
        ([2, 3].into(), smallvec![0, 2], smallvec![0, 0]),
        ([2, 2, 3].into(), smallvec![1, 0, 0], smallvec![0, 0, 1]),
        ([0, 2].into(), smallvec![1, 0], smallvec![1, 0]),
    ];
    s.each(
        |_| true,
        &cases,
        |s, dtype, (shape, lo, hi)| {
            let fill = s.num(dtype, WIDE);
            let x = s.val(dtype, &shape, WIDE);
            s.push(Op::Pad { lo, hi }, vec![x, SampleArg::Num(fill)]);
        },
    );
}

fn concat(s: &mut Samples) {
    let cases: [(usize, Vec<Shape>); 4] = [
        (0, vec![[3].into()]),
        (0, vec![[2, 3].into(), [1, 3].into(), [0, 3].into(), [4, 3].into()]),
        (1, vec![[2, 3].into(), [2, 1].into()]),
        (2, vec![[2, 5, 1].into(), [2, 5, 2].into()]),
    ];
    s.each(
        |_| true,
        &cases,
        |s, dtype, (dim, parts)| {
            let args = parts.iter().map(|shape| s.val(dtype, shape, WIDE)).collect();
            s.push(Op::Concat { dim }, args);
        },
    );
}

fn put(s: &mut Samples) {
    let slice = |dim, len, step| View::Slice { dim, len, step };
    type Case = (Shape, Vec<View>, Vec<i64>, Shape, u8);
    let cases: Vec<Case> = vec![
        ([5, 3].into(), vec![slice(0, 1, 1)], vec![2], [1, 3].into(), 2),
        ([4, 5].into(), vec![slice(1, 2, 2), slice(0, 3, 1)], vec![1, 1], [3, 2].into(), 2),
        ([6].into(), vec![View::Reshape([2, 3].into()), slice(0, 1, 1)], vec![1], [1, 3].into(), 2),
        (
            [3, 4].into(),
            vec![View::Permute(smallvec![1, 0]), slice(0, 2, 1), View::Reshape([6].into())],
            vec![2],
            [6].into(),
            2,
        ),
        (
            [2, 4, 3].into(),
            vec![View::Permute(smallvec![1, 0, 2]), slice(2, 1, 1)],
            vec![2],
            [4, 2, 1].into(),
            2,
        ),
        ([3].into(), vec![], vec![], [3].into(), 2),
        ([3, 1].into(), vec![View::Expand([3, 2].into())], vec![], [3, 2].into(), 0),
        ([4].into(), vec![slice(0, 0, 1)], vec![4], [0].into(), 2),
    ];
    s.each(
        |_| true,
        &cases,
        |s, dtype, (base, path, starts, view, orders)| {
            for number in [false, true] {
                let value = match number {
                    true => SampleArg::Num(s.num(dtype, WIDE)),
                    false => s.val(dtype, &view, WIDE),
                };
                let mut args = vec![s.val(dtype, &base, WIDE), value];
                args.extend(starts.iter().map(|&i| SampleArg::Num(Scalar::Int(i))));
                s.push(Op::Put { path: path.clone() }, args);
                s.out.last_mut().unwrap().orders = orders;
            }
        },
    );
}

fn reduce(s: &mut Samples) {
    for kind in REDUCES {
        let ends = matches!(kind, ReduceKind::Max | ReduceKind::Min);
        let cases: Vec<(Shape, Ints, bool)> = vec![
            ([].into(), smallvec![], false),
            ([5].into(), smallvec![0], false),
            ([3, 4].into(), smallvec![0], false),
            ([3, 4].into(), smallvec![1], true),
            ([2, 3, 4].into(), smallvec![2, 0], false),
            ([2, 3, 4].into(), smallvec![1], true),
            ([3, 2].into(), smallvec![0, 1], false),
            ([2, 1, 3, 2].into(), smallvec![0, 1, 3], true),
            ([3, 4].into(), smallvec![], false),
            ([0, 3].into(), smallvec![1], false),
        ];
        s.each(
            |_| true,
            &cases,
            |s, dtype, (shape, dims, keepdim)| {
                let x = s.val(dtype, &shape, (-2.0, 2.0));
                s.push(Op::Reduce { kind, dims, keepdim }, vec![x]);
            },
        );
        // Zeros among the factors: of one, the others' gradients vanish and its own does not; of two, only how the gradient of
        // each changes with the other is left.
        s.each(DType::is_float, &[1usize, 2, 3], |s, dtype, zeros| {
            let mut x = draw(&mut s.rng, &Ty::new(dtype, [2, 4]), (0.5, 2.0));
            [1, 3, 6][..zeros].iter().for_each(|&i| x.set(i, Scalar::Float(0.0)));
            s.push(Op::Reduce { kind, dims: smallvec![1], keepdim: true }, vec![SampleArg::Val(x)]);
            s.out.last_mut().unwrap().orders = match kind {
                ReduceKind::Sum | ReduceKind::Prod => 2,
                ReduceKind::Max | ReduceKind::Min => 0,
            };
        });
        if !ends {
            s.each(
                |_| true,
                &[Shape::from([0, 3])],
                |s, dtype, shape| {
                    let x = s.val(dtype, &shape, WIDE);
                    s.push(Op::Reduce { kind, dims: smallvec![0], keepdim: false }, vec![x]);
                },
            );
        }
    }
}

fn matmul(s: &mut Samples) {
    type Case = (Vec<usize>, Vec<usize>, [usize; 3], Option<Shape>);
    let cases: Vec<Case> = vec![
        (vec![], vec![], [2, 3, 4], None),
        (vec![], vec![], [1, 5, 1], Some([].into())),
        (vec![], vec![], [3, 2, 5], Some([5].into())),
        (vec![], vec![], [3, 4, 2], Some([3, 1].into())),
        (vec![2], vec![2], [3, 2, 2], None),
        (vec![2], vec![], [3, 2, 4], Some([4].into())),
        (vec![], vec![3], [2, 3, 2], Some([3, 2, 2].into())),
        (vec![2, 1], vec![3], [2, 3, 1], Some([3, 1, 1].into())),
        (vec![], vec![], [2, 0, 3], Some([3].into())),
        (vec![0], vec![1], [2, 3, 2], None),
    ];
    let flags = [(false, false), (true, false), (false, true), (true, true)];
    let cases: Vec<(Case, (bool, bool))> =
        cases.into_iter().flat_map(|c| flags.map(|f| (c.clone(), f))).collect();
    s.each(
        |d| d.kind() != Kind::Bool,
        &cases,
        |s, dtype, ((batch_a, batch_b, [m, k, n], bias), (ta, tb))| {
            let matrix = |batch: Vec<usize>, r: usize, c: usize, t: bool| -> Shape {
                batch.into_iter().chain(if t { [c, r] } else { [r, c] }).collect()
            };
            let a = s.val(dtype, &matrix(batch_a, m, k, ta), WIDE);
            let b = s.val(dtype, &matrix(batch_b, k, n, tb), WIDE);
            let mut args = vec![a, b];
            if let Some(bias) = bias {
                args.push(s.val(dtype, &bias, WIDE));
            }
            s.push(Op::Matmul { ta, tb, tf32: dtype == DType::F32 && ta && tb }, args);
        },
    );
}

/// Shapes of base and index, and the dimension.
fn gathers() -> Vec<(Shape, Shape, usize)> {
    vec![
        ([5].into(), [3].into(), 0),
        ([3, 4].into(), [3, 2].into(), 1),
        ([3, 4].into(), [2, 4].into(), 0),
        ([3, 4].into(), [3, 4].into(), 0),
        ([2, 5, 3].into(), [2, 4, 2].into(), 1),
        ([3, 4].into(), [3, 0].into(), 1),
    ]
}

fn scatter(s: &mut Samples) {
    for mode in MODES {
        for repeats in [false, true] {
            s.each(
                |_| true,
                &gathers(),
                |s, dtype, (base, at, dim)| {
                    let unique = if repeats { None } else { Some(dim) };
                    let n = if repeats { base[dim].min(2) } else { base[dim] };
                    let index_dtype = s.rng.pick(&INDEX_DTYPES);
                    let index = SampleArg::Val(draw_index(&mut s.rng, index_dtype, &at, n, unique));
                    let src = draw(&mut s.rng, &Ty::new(dtype, at), WIDE);
                    let mut apart = |others: &[f64]| {
                        SampleArg::Val(draw_apart(&mut s.rng, &Ty::new(dtype, base.clone()), WIDE, others))
                    };
                    let (first, second) = (apart(&src.to_f64s()), apart(&[0.25]));
                    let number = SampleArg::Num(Scalar::Float(0.25).to_dtype(dtype));
                    s.push(Op::Scatter { dim, mode }, vec![first, index.clone(), SampleArg::Val(src)]);
                    s.out.last_mut().unwrap().orders =
                        if mode != ScatterMode::Set || !repeats { 2 } else { 0 };
                    s.push(Op::Scatter { dim, mode }, vec![second, index, number]);
                },
            );
        }
    }
}

/// Shapes of operand and index, and the dimension.
fn takes() -> Vec<(Shape, Shape, usize)> {
    vec![
        ([5].into(), [3].into(), 0),
        ([4, 3].into(), [2].into(), 0),
        ([4, 3].into(), [2, 2].into(), 0),
        ([2, 4, 3].into(), [3].into(), 1),
        ([3, 5].into(), [].into(), 1),
        ([3, 4].into(), [0].into(), 0),
        ([0, 4].into(), [2].into(), 1),
    ]
}

/// Indices of which some count from the end, where the type has a sign.
fn take_index(s: &mut Samples, shape: &Shape, n: usize, unique: Option<usize>) -> SampleArg {
    let dtype = s.rng.pick(&INDEX_DTYPES);
    let flat: Shape = [shape.numel()].into();
    let mut index: HostTensor = draw_index(&mut s.rng, dtype, &flat, n, unique);
    index.ty.shape = shape.clone();
    for i in 0..index.numel() {
        if dtype != DType::U8 && s.rng.one_in(3) {
            index.set(i, Scalar::Int(index.get(i).as_i64() - n as i64));
        }
    }
    SampleArg::Val(index)
}

fn take_put(s: &mut Samples) {
    for mode in MODES {
        for repeats in [false, true] {
            s.each(
                |_| true,
                &takes(),
                |s, dtype, (base, at, dim)| {
                    let enough = at.numel() <= base[dim];
                    let unique = if repeats { None } else { Some(0) };
                    let index = take_index(s, &at, base[dim], unique);
                    let shape: Shape =
                        base[..dim].iter().chain(at.iter()).chain(&base[dim + 1..]).copied().collect();
                    let src = draw(&mut s.rng, &Ty::new(dtype, shape), WIDE);
                    let base = draw_apart(&mut s.rng, &Ty::new(dtype, base), WIDE, &src.to_f64s());
                    let args = vec![SampleArg::Val(base), index, SampleArg::Val(src)];
                    s.push(Op::TakePut { dim, mode }, args);
                    let lone = mode != ScatterMode::Set || (!repeats && enough);
                    s.out.last_mut().unwrap().orders = if lone { 2 } else { 0 };
                },
            );
        }
    }
}

fn sort(s: &mut Samples, op: impl Fn(usize, usize, bool) -> Op) {
    let cases: [(Shape, usize, usize); 6] = [
        ([6].into(), 0, 4),
        ([1].into(), 0, 1),
        ([3, 5].into(), 1, 2),
        ([4, 3].into(), 0, 4),
        ([2, 5, 3].into(), 1, 3),
        ([0, 4].into(), 1, 0),
    ];
    for reversed in [false, true] {
        s.each(
            |_| true,
            &cases,
            |s, dtype, (shape, dim, k)| {
                let x = s.val(dtype, &shape, WIDE);
                s.push(op(dim, k, reversed), vec![x]);
            },
        );
    }
}

fn softmax(s: &mut Samples, op: impl Fn(usize) -> Op) {
    let cases: [(Shape, usize); 6] = [
        ([].into(), 0),
        ([6].into(), 0),
        ([3, 4].into(), 1),
        ([3, 4].into(), 0),
        ([2, 3, 5].into(), 1),
        ([0, 4].into(), 1),
    ];
    s.each(DType::is_float, &cases, |s, dtype, (shape, dim)| {
        let x = s.val(dtype, &shape, WIDE);
        s.push(op(dim), vec![x]);
    });
}
