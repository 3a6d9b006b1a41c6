//! Bounds of integer values, known on the host, so that most checks of indices need no look at the device.
//!
//! An upload says what its least and greatest values are; from there bounds follow the plan's integer steps: casts,
//! choices, sums, positions. Whatever cannot be bounded stays unknown.

use gt_compiler::{Calc, Code, Kernel, Load, Map, Operand, Plan, Source, Tensor, Work};
use gt_ir::{Binary, DType, Dist, ReduceKind, Shape, Slot, Unary};

/// The least and the greatest value, or wider bounds.
pub type Range = (i64, i64);

/// What is known of a storage.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Known {
    /// Nothing is in it yet.
    Empty,
    Within(Range),
    Anything,
}

impl Known {
    fn join(self, more: Option<Range>) -> Known {
        match (self, more) {
            (Known::Anything, _) | (_, None) => Known::Anything,
            (Known::Empty, Some(r)) => Known::Within(r),
            (Known::Within(a), Some(b)) => Known::Within(hull(a, b)),
        }
    }

    fn range(self) -> Option<Range> {
        match self {
            Known::Within(r) => Some(r),
            Known::Empty | Known::Anything => None,
        }
    }
}

fn hull(a: Range, b: Range) -> Range {
    (a.0.min(b.0), a.1.max(b.1))
}

/// All a type can hold; nothing is said of floats and of `i64`.
fn natural(dtype: DType) -> Option<Range> {
    match dtype {
        DType::Bool => Some((0, 1)),
        DType::U8 => Some((0, u8::MAX as i64)),
        DType::I8 => Some((i8::MIN as i64, i8::MAX as i64)),
        DType::I16 => Some((i16::MIN as i64, i16::MAX as i64)),
        DType::I32 => Some((i32::MIN as i64, i32::MAX as i64)),
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => None,
    }
}

/// Bounds as a type holds them: what does not fit may have wrapped around.
fn fitted(range: Option<Range>, dtype: DType) -> Option<Range> {
    if dtype.is_float() {
        return None;
    }
    match (range, natural(dtype)) {
        (Some(r), Some(n)) if r.0 < n.0 || r.1 > n.1 => Some(n),
        (Some(r), _) => Some(r),
        (None, n) => n,
    }
}

/// The least and the greatest of packed integers; `None` for floats and for nothing.
pub fn of_bytes(dtype: DType, bytes: &[u8]) -> Option<Range> {
    fn of<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> i64) -> Option<Range> {
        let (values, _) = bytes.as_chunks::<N>();
        values.iter().map(|v| value(*v)).fold(None, |range, v| match range {
            None => Some((v, v)),
            Some((low, high)) => Some((low.min(v), high.max(v))),
        })
    }
    match dtype {
        DType::Bool | DType::U8 => of::<1>(bytes, |[v]| v as i64),
        DType::I8 => of::<1>(bytes, |v| i8::from_ne_bytes(v) as i64),
        DType::I16 => of::<2>(bytes, |v| i16::from_ne_bytes(v) as i64),
        DType::I32 => of::<4>(bytes, |v| i32::from_ne_bytes(v) as i64),
        DType::I64 => of::<8>(bytes, i64::from_ne_bytes),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => None,
    }
}

/// The integer steps of a plan.
pub struct Ranges {
    /// In order.
    steps: Vec<u32>,
    /// The type of data in each storage that a `Data` step fills, where something says it.
    data: Vec<(u32, DType)>,
    /// The types of the inputs.
    inputs: Vec<DType>,
}

/// True if bounds may follow from a step.
fn is_integer(work: &Work) -> bool {
    match work {
        Work::Kernel(k) => {
            k.stores.iter().any(|s| !s.dtype.is_float()) || k.fold.iter().any(|f| !f.dtype.is_float())
        }
        Work::Gather { x, .. } | Work::Take { x, .. } | Work::Sort { x, .. } => !x.dtype.is_float(),
        Work::Data { .. } | Work::Copy { .. } | Work::ArgReduce { .. } => true,
        Work::Scatter { dtype, .. } => !dtype.is_float(),
        Work::TakePut { src, .. } => !src.dtype.is_float(),
        Work::Scan { x, .. } => !x.dtype.is_float(),
        Work::Random { dtype, .. } => !dtype.is_float(),
        Work::Matmul(mm) => !mm.a.dtype.is_float(),
        Work::Collective(c) => c.xs.iter().any(|x| !x.dtype.is_float()),
        Work::CheckIndex { .. }
        | Work::CheckNonzero { .. }
        | Work::Attention(_)
        | Work::AttentionGrad(_)
        | Work::Softmax { .. } => false,
    }
}

impl Ranges {
    pub fn new(plan: &Plan, inputs: Vec<DType>) -> Ranges {
        let mut data = Vec::new();
        let mut said: Vec<Option<DType>> = vec![None; plan.storages.len()];
        for step in &plan.steps {
            let mut tensor = |t: &Tensor| said[t.storage as usize] = Some(t.dtype);
            match &step.work {
                Work::Kernel(k) => {
                    for load in &k.loads {
                        if let Source::Mem { storage, .. } = &load.from {
                            said[*storage as usize] = Some(load.dtype);
                        }
                    }
                }
                Work::CheckIndex { index, .. } => tensor(index),
                Work::CheckNonzero { divisor: Operand::Tensor(t), .. } => tensor(t),
                Work::Gather { x, index, .. } | Work::Take { x, index, .. } => {
                    tensor(x);
                    tensor(index);
                }
                _ => {}
            }
        }
        let mut steps: Vec<u32> = Vec::new();
        for (i, step) in plan.steps.iter().enumerate() {
            let sorts = matches!(step.work, Work::Sort { .. });
            if is_integer(&step.work) || sorts {
                steps.push(i as u32);
            }
            if let Work::Data { out, .. } = &step.work
                && let Some(dtype) = said[*out as usize]
            {
                data.push((*out, dtype));
            }
        }
        // Copies alone say nothing.
        if steps.iter().all(|&i| matches!(plan.steps[i as usize].work, Work::Copy { .. }))
            && inputs.iter().all(|d| d.is_float())
        {
            steps.clear();
        }
        Ranges { steps, data, inputs }
    }

    /// Bounds of every storage in one run, given those of the inputs.
    pub fn follow(
        &self,
        plan: &Plan,
        slots: &[Slot],
        input: impl Fn(usize) -> Option<Range>,
    ) -> Vec<Option<Range>> {
        let mut known = vec![Known::Empty; plan.storages.len()];
        for (i, dtype) in self.inputs.iter().enumerate() {
            known[i] = Known::Empty.join(fitted(input(i), *dtype));
        }
        for &i in &self.steps {
            self.step(&plan.steps[i as usize].work, slots, &mut known);
        }
        known.into_iter().map(Known::range).collect()
    }

    fn step(&self, work: &Work, slots: &[Slot], known: &mut [Known]) {
        let mut write = |storage: u32, range: Option<Range>| {
            let at = &mut known[storage as usize];
            *at = at.join(range);
        };
        match work {
            Work::Kernel(kernel) => {
                let regs = registers(kernel, slots, known);
                for store in kernel.stores.iter().filter(|s| !s.dtype.is_float()) {
                    let at = &mut known[store.storage as usize];
                    *at = at.join(fitted(regs[store.reg as usize], store.dtype));
                }
                if let Some(fold) = &kernel.fold {
                    let range = match fold.kind {
                        ReduceKind::Max | ReduceKind::Min => fitted(regs[fold.reg as usize], fold.dtype),
                        ReduceKind::Sum | ReduceKind::Prod => None,
                    };
                    let at = &mut known[fold.storage as usize];
                    *at = at.join(range);
                }
            }
            Work::Copy { from, to } => {
                let range = known[*from as usize].range();
                known[*to as usize] = Known::Empty.join(range);
            }
            Work::Data { slot, out } => {
                let dtype = self.data.iter().find(|(storage, _)| storage == out).map(|(_, d)| *d);
                let range = match (&slots[*slot as usize], dtype) {
                    (Slot::Data(bytes), Some(dtype)) => of_bytes(dtype, bytes),
                    _ => None,
                };
                write(*out, range);
            }
            Work::ArgReduce { dim, x, out, .. } => {
                write(*out, Some((0, (x.shape[*dim] as i64 - 1).max(0))));
            }
            Work::Sort { dim, x, values, indices, .. } => {
                let range = known[x.storage as usize].range().filter(|_| !x.dtype.is_float());
                known[*values as usize] = known[*values as usize].join(range);
                let last = (x.shape[*dim] as i64 - 1).max(0);
                known[*indices as usize] = known[*indices as usize].join(Some((0, last)));
            }
            Work::Gather { x, out, .. } | Work::Take { x, out, .. } => {
                let range = known[x.storage as usize].range();
                known[*out as usize] = known[*out as usize].join(fitted(range, x.dtype));
            }
            Work::Scatter { out, .. } | Work::TakePut { out, .. } | Work::Scan { out, .. } => {
                write(*out, None)
            }
            Work::Random { dist: Dist::Int { low, high }, dtype, out, .. } => {
                write(*out, fitted(Some((*low, high.saturating_sub(1).max(*low))), *dtype));
            }
            Work::Random { out, .. } => write(*out, None),
            Work::Matmul(mm) => write(mm.out, None),
            Work::Collective(c) => c.outs.iter().for_each(|out| write(*out, None)),
            Work::CheckIndex { .. }
            | Work::CheckNonzero { .. }
            | Work::Attention(_)
            | Work::AttentionGrad(_)
            | Work::Softmax { .. } => {}
        }
    }
}

/// The bounds of every register of a kernel.
fn registers(kernel: &Kernel, slots: &[Slot], known: &[Known]) -> Vec<Option<Range>> {
    let mut regs: Vec<Option<Range>> =
        kernel.loads.iter().map(|load| loaded(load, &kernel.shape, slots, known)).collect();
    for code in &kernel.code {
        let range = if code.dtype.is_float() { None } else { fitted(computed(code, &regs), code.dtype) };
        regs.push(range);
    }
    regs
}

fn loaded(load: &Load, shape: &Shape, slots: &[Slot], known: &[Known]) -> Option<Range> {
    if load.dtype.is_float() {
        return None;
    }
    let range = match &load.from {
        Source::Mem { storage, .. } => known[*storage as usize].range(),
        Source::Num(x) => {
            let x = x.get(slots).to_dtype(load.dtype).as_i64();
            Some((x, x))
        }
        Source::Iota { start, step, map } => {
            let (start, step) = (start.get(slots), step.get(slots));
            match start.kind() == gt_ir::Kind::Float || step.kind() == gt_ir::Kind::Float {
                true => None,
                false => positions(map, shape, slots).and_then(|(low, high)| {
                    let value = |at: i64| at.checked_mul(step.as_i64())?.checked_add(start.as_i64());
                    let (a, b) = (value(low)?, value(high)?);
                    Some((a.min(b), a.max(b)))
                }),
            }
        }
    };
    fitted(range, load.dtype)
}

/// The first and the last position that a map shows.
fn positions(map: &Map, shape: &Shape, slots: &[Slot]) -> Option<Range> {
    let (mut low, mut high) = (map.offset(slots) as i64, map.offset(slots) as i64);
    for (stride, n) in map.strides.iter().zip(shape.iter()) {
        let far = (*stride as i64).checked_mul((*n as i64 - 1).max(0))?;
        (low, high) = (low.checked_add(far.min(0))?, high.checked_add(far.max(0))?);
    }
    Some((low, high))
}

fn computed(code: &Code, regs: &[Option<Range>]) -> Option<Range> {
    let arg = |i: usize| code.args.get(i).and_then(|&r| regs[r as usize]);
    match code.calc {
        Calc::Cast => match code.dtype {
            DType::Bool => Some((0, 1)),
            _ => arg(0),
        },
        Calc::Where => Some(hull(arg(1)?, arg(2)?)),
        Calc::Fold(ReduceKind::Max | ReduceKind::Min) => arg(0),
        Calc::Fold(ReduceKind::Sum | ReduceKind::Prod) => None,
        Calc::Unary(op) => unary(op, arg(0)?),
        Calc::Binary(op) => binary(op, arg(0), arg(1), code.dtype),
    }
}

fn unary(op: Unary, (low, high): Range) -> Option<Range> {
    match op {
        Unary::Neg => Some((high.checked_neg()?, low.checked_neg()?)),
        Unary::Abs => {
            let (a, b) = (low.checked_abs()?, high.checked_abs()?);
            Some((if low <= 0 && high >= 0 { 0 } else { a.min(b) }, a.max(b)))
        }
        Unary::Sign => Some((low.signum(), high.signum())),
        Unary::Relu => Some((low.max(0), high.max(0))),
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => Some((low, high)),
        _ => None,
    }
}

fn binary(op: Binary, a: Option<Range>, b: Option<Range>, dtype: DType) -> Option<Range> {
    match op {
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => Some((0, 1)),
        // For truth values these are logic.
        _ if dtype == DType::Bool => Some((0, 1)),
        // The remainder has the sign of the divisor.
        Binary::Rem => b.filter(|b| b.0 > 0).map(|b| (0, b.1 - 1)),
        Binary::Max => match (a, b) {
            (Some(a), Some(b)) => Some((a.0.max(b.0), a.1.max(b.1))),
            _ => None,
        },
        Binary::Min => match (a, b) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.min(b.1))),
            _ => None,
        },
        Binary::Add => a.zip(b).and_then(|(a, b)| Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?))),
        Binary::Sub => a.zip(b).and_then(|(a, b)| Some((a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?))),
        Binary::Mul => a.zip(b).and_then(|(a, b)| {
            let corners =
                [a.0.checked_mul(b.0)?, a.0.checked_mul(b.1)?, a.1.checked_mul(b.0)?, a.1.checked_mul(b.1)?];
            Some((*corners.iter().min()?, *corners.iter().max()?))
        }),
        Binary::FloorDiv => a.zip(b).filter(|(_, b)| b.0 > 0).map(|(a, b)| {
            let corners =
                [a.0.div_euclid(b.0), a.0.div_euclid(b.1), a.1.div_euclid(b.0), a.1.div_euclid(b.1)];
            (*corners.iter().min().unwrap_or(&0), *corners.iter().max().unwrap_or(&0))
        }),
        // A number without a sign takes the other's sign off, and all bits beyond its own.
        Binary::And => match (a.filter(|a| a.0 >= 0), b.filter(|b| b.0 >= 0)) {
            (Some(a), Some(b)) => Some((0, a.1.min(b.1))),
            (a, b) => a.or(b).map(|r| (0, r.1)),
        },
        Binary::Or | Binary::Xor => {
            a.zip(b).filter(|(a, b)| a.0 >= 0 && b.0 >= 0).map(|(a, b)| (0, ones(a.1 | b.1)))
        }
        Binary::Div | Binary::Pow | Binary::Atan2 => None,
    }
}

/// The greatest number that has no more bits than this one, which has no sign.
fn ones(x: i64) -> i64 {
    i64::MAX.checked_shr(x.leading_zeros().wrapping_sub(1)).unwrap_or(0)
}

/// What bounds say of a check.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// It passes.
    Right,
    /// Only the values can tell.
    Unknown,
}

/// What bounds say of a step that checks something.
pub fn judge(work: &Work, slots: &[Slot], ranges: &[Option<Range>]) -> Verdict {
    let known = |t: &Tensor| {
        if t.shape.numel() == 0 { Some((i64::MAX, i64::MAX)) } else { ranges[t.storage as usize] }
    };
    let right = match work {
        Work::CheckIndex { index, size, wrap } => {
            let low = if *wrap { -(*size as i64) } else { 0 };
            index.shape.numel() == 0 || known(index).is_some_and(|(a, b)| a >= low && b < *size as i64)
        }
        Work::CheckNonzero { divisor: Operand::Tensor(t), .. } => {
            t.shape.numel() == 0 || known(t).is_some_and(|(a, b)| a > 0 || b < 0)
        }
        Work::CheckNonzero { divisor: Operand::Num(x), dtype } => x.get(slots).to_dtype(*dtype).as_i64() != 0,
        _ => true,
    };
    if right { Verdict::Right } else { Verdict::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_compiler::{CompileOptions, compile};
    use gt_ir::text;

    /// The verdicts on the checks of a program, given bounds of its inputs.
    fn verdicts(program: &str, inputs: &[Option<Range>]) -> Vec<Verdict> {
        let structure = text::parse_structure(program).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        let ranges = Ranges::new(&plan, structure.inputs.iter().map(|i| i.ty.dtype).collect());
        let known = ranges.follow(&plan, &[], |i| inputs[i]);
        let checks = plan.steps.iter().filter(|s| s.can_fail());
        checks.map(|s| judge(&s.work, &[], &known)).collect()
    }

    const TAKE: &str = "
        in TENSOR[0] f32[10, 4]
        in TENSOR[1] i64[6]
        TENSOR[2] := TAKE{dim=0} TENSOR[0] TENSOR[1]
        out TENSOR[2]";

    #[test]
    fn uploads_within_bounds_need_no_check() {
        assert_eq!(verdicts(TAKE, &[None, Some((0, 9))]), [Verdict::Right]);
        assert_eq!(verdicts(TAKE, &[None, Some((0, 10))]), [Verdict::Unknown]);
        assert_eq!(verdicts(TAKE, &[None, None]), [Verdict::Unknown]);
    }

    #[test]
    fn bounds_follow_choices_casts_and_positions() {
        let chosen = "
            in TENSOR[0] f32[10, 4]
            in TENSOR[1] i32[6]
            TENSOR[2] := LT TENSOR[1] 0
            TENSOR[3] := WHERE TENSOR[2] 0 TENSOR[1]
            TENSOR[4] := CAST{dtype=i64} TENSOR[3]
            TENSOR[5] := TAKE{dim=0} TENSOR[0] TENSOR[4]
            out TENSOR[5]";
        assert_eq!(verdicts(chosen, &[None, Some((0, 9))]), [Verdict::Right]);
        assert_eq!(verdicts(chosen, &[None, Some((0, 99))]), [Verdict::Unknown]);
        let best = "
            in TENSOR[0] f32[10, 4]
            in TENSOR[1] f32[6, 10]
            TENSOR[2] := ARGMAX{dim=1,keepdim=false} TENSOR[1]
            TENSOR[3] := TAKE{dim=0} TENSOR[0] TENSOR[2]
            out TENSOR[3]";
        assert_eq!(verdicts(best, &[None, None]), [Verdict::Right]);
    }

    /// As `embedding` and `index_select` have it: without this they would wait for the device, and run as no graph.
    #[test]
    fn an_index_without_its_sign_is_bounded_as_before() {
        let unsigned = TAKE
            .replace("TENSOR[2] :=", "TENSOR[2] := AND TENSOR[1] 9223372036854775807\n TENSOR[3] :=")
            .replace("TENSOR[0] TENSOR[1]\n", "TENSOR[0] TENSOR[2]\n")
            .replace("out TENSOR[2]", "out TENSOR[3]");
        assert_eq!(verdicts(&unsigned, &[None, Some((0, 9))]), [Verdict::Right]);
        for bounds in [Some((0, 10)), Some((-1, 9)), None] {
            assert_eq!(verdicts(&unsigned, &[None, bounds]), [Verdict::Unknown]);
        }
    }

    #[test]
    fn bounds_of_bits_hold() {
        for (a, b) in
            [((0, 5), (3, 9)), ((2, 2), (0, 0)), ((-3, 6), (1, 7)), ((-8, 3), (-1, 0)), ((0, 1), (6, 8))]
        {
            for op in [Binary::And, Binary::Or, Binary::Xor] {
                let Some((low, high)) = binary(op, Some(a), Some(b), DType::I64) else { continue };
                for x in a.0..=a.1 {
                    for y in b.0..=b.1 {
                        let z = match op {
                            Binary::And => x & y,
                            Binary::Or => x | y,
                            _ => x ^ y,
                        };
                        assert!((low..=high).contains(&z), "{op:?} {x} {y}: {z} in {low}..={high}");
                    }
                }
            }
        }
        assert_eq!(ones(0), 0);
        assert_eq!(ones(5), 7);
        assert_eq!(ones(i64::MAX), i64::MAX);
    }

    #[test]
    fn values_are_looked_at_once() {
        let bytes: Vec<u8> = [5i64, -3, 8].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(of_bytes(DType::I64, &bytes), Some((-3, 8)));
        assert_eq!(of_bytes(DType::I64, &[]), None);
        assert_eq!(of_bytes(DType::F32, &bytes), None);
        assert_eq!(fitted(Some((0, 300)), DType::U8), Some((0, 255)));
    }
}
