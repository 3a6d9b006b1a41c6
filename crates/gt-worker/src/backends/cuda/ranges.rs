//! Bounds of integer values, known on the host, so that most checks of indices need no look at the device.
//!
//! An upload says what its least and greatest values are; from there bounds follow the plan's integer steps: casts,
//! choices, sums, positions. Whatever cannot be bounded stays unknown.

use gt_compiler::{Calc, Code, Kernel, Load, Map, Operand, Plan, Source, Tensor, Work};
use gt_ir::{Binary, DType, Dist, Op, ReduceKind, Shape, Slot, Structure, Unary};

/// The least and the greatest value, or wider bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    low: i64,
    high: i64,
    /// All values but those that are `low` are at least this.
    next: i64,
}

impl Range {
    fn new(low: i64, high: i64) -> Range {
        Range { low, high, next: low }
    }

    /// Bounds of the values that are not `x`.
    fn without(self, x: i64) -> Range {
        match self.low == x && self.next > x {
            true => Range::new(self.next, self.high),
            false => self,
        }
    }
}

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
    let low = a.low.min(b.low);
    let above = |r: Range| if r.low == low { r.next } else { r.low };
    Range { low, high: a.high.max(b.high), next: above(a).min(above(b)) }
}

/// All a type can hold; nothing is said of floats and of `i64`.
fn natural(dtype: DType) -> Option<Range> {
    let (low, high) = match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, u8::MAX as i64),
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        DType::I16 => (i16::MIN as i64, i16::MAX as i64),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return None,
    };
    Some(Range::new(low, high))
}

/// Bounds as a type holds them: what does not fit may have wrapped around.
fn fitted(range: Option<Range>, dtype: DType) -> Option<Range> {
    if dtype.is_float() {
        return None;
    }
    match (range, natural(dtype)) {
        (Some(r), Some(n)) if r.low < n.low || r.high > n.high => Some(n),
        (Some(r), _) => Some(r),
        (None, n) => n,
    }
}

/// The least and the greatest of packed integers; `None` for floats and for nothing.
pub fn of_bytes(dtype: DType, bytes: &[u8]) -> Option<Range> {
    fn of<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> i64) -> Option<Range> {
        let (values, _) = bytes.as_chunks::<N>();
        let values = || values.iter().map(|v| value(*v));
        let range = values().fold(None, |range: Option<Range>, v| match range {
            None => Some(Range::new(v, v)),
            Some(Range { low, high, .. }) => Some(Range::new(low.min(v), high.max(v))),
        })?;
        // Where something is marked by a negative number, what the others are is asked for.
        let next = match range.low < 0 {
            true => values().filter(|v| *v > range.low).min().unwrap_or(range.low),
            false => range.low,
        };
        Some(Range { next, ..range })
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
    pub fn new(plan: &Plan, structure: &Structure) -> Ranges {
        let inputs: Vec<DType> = structure.inputs.iter().map(|i| i.ty.dtype).collect();
        let mut data = Vec::new();
        let mut said: Vec<Option<DType>> = vec![None; plan.storages.len()];
        // What nothing here reads may be read by a later program.
        let starts = structure.starts();
        for (&value, &storage) in structure.outs.iter().zip(&plan.outs) {
            let at = starts.partition_point(|&start| start <= value).checked_sub(1);
            if let Some(Op::Data { dtype, .. }) = at.and_then(|i| structure.instrs.get(i)).map(|i| &i.op) {
                said[storage as usize] = Some(*dtype);
            }
        }
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
                write(*out, Some(Range::new(0, (x.shape[*dim] as i64 - 1).max(0))));
            }
            Work::Sort { dim, x, values, indices, .. } => {
                let range = known[x.storage as usize].range().filter(|_| !x.dtype.is_float());
                known[*values as usize] = known[*values as usize].join(range);
                let last = (x.shape[*dim] as i64 - 1).max(0);
                known[*indices as usize] = known[*indices as usize].join(Some(Range::new(0, last)));
            }
            Work::Gather { x, out, .. } | Work::Take { x, out, .. } => {
                let range = known[x.storage as usize].range();
                known[*out as usize] = known[*out as usize].join(fitted(range, x.dtype));
            }
            Work::Scatter { out, .. } | Work::TakePut { out, .. } | Work::Scan { out, .. } => {
                write(*out, None)
            }
            Work::Random { dist: Dist::Int { low, high }, dtype, out, .. } => {
                let range = Range::new(*low, high.saturating_sub(1).max(*low));
                write(*out, fitted(Some(range), *dtype));
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
        let range =
            if code.dtype.is_float() { None } else { fitted(computed(kernel, code, &regs), code.dtype) };
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
            Some(Range::new(x, x))
        }
        Source::Iota { start, step, map } => {
            let (start, step) = (start.get(slots), step.get(slots));
            match start.kind() == gt_ir::Kind::Float || step.kind() == gt_ir::Kind::Float {
                true => None,
                false => positions(map, shape, slots).and_then(|Range { low, high, .. }| {
                    let value = |at: i64| at.checked_mul(step.as_i64())?.checked_add(start.as_i64());
                    let (a, b) = (value(low)?, value(high)?);
                    Some(Range::new(a.min(b), a.max(b)))
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
    Some(Range::new(low, high))
}

fn computed(kernel: &Kernel, code: &Code, regs: &[Option<Range>]) -> Option<Range> {
    let arg = |i: usize| code.args.get(i).and_then(|&r| regs[r as usize]);
    match code.calc {
        Calc::Cast => match code.dtype {
            DType::Bool => Some(Range::new(0, 1)),
            _ => arg(0),
        },
        Calc::Where => {
            let of = |i: usize, op: Binary| {
                let marked = unlike(kernel, code.args[0], code.args[i], op, regs);
                arg(i).map(|range| marked.map_or(range, |x| range.without(x)))
            };
            Some(hull(of(1, Binary::Ne)?, of(2, Binary::Eq)?))
        }
        Calc::Fold(ReduceKind::Max | ReduceKind::Min) => arg(0),
        Calc::Fold(ReduceKind::Sum | ReduceKind::Prod) => None,
        Calc::Unary(op) => unary(op, arg(0)?),
        Calc::Binary(op) => binary(op, arg(0), arg(1), code.dtype),
    }
}

/// The number that `x` is not where `op`, `Ne` or `Eq`, of it and that number decided so.
fn unlike(kernel: &Kernel, cond: u16, x: u16, op: Binary, regs: &[Option<Range>]) -> Option<i64> {
    let code = kernel.code.get((cond as usize).checked_sub(kernel.loads.len())?)?;
    let [a, b] = code.args[..] else { return None };
    let other = match (code.calc == Calc::Binary(op), a == x, b == x) {
        (true, true, false) => b,
        (true, false, true) => a,
        _ => return None,
    };
    regs[other as usize].filter(|r| r.low == r.high).map(|r| r.low)
}

fn unary(op: Unary, range: Range) -> Option<Range> {
    let Range { low, high, .. } = range;
    let (low, high) = match op {
        Unary::Neg => (high.checked_neg()?, low.checked_neg()?),
        Unary::Abs => {
            let (a, b) = (low.checked_abs()?, high.checked_abs()?);
            (if low <= 0 && high >= 0 { 0 } else { a.min(b) }, a.max(b))
        }
        Unary::Sign => (low.signum(), high.signum()),
        Unary::Relu => (low.max(0), high.max(0)),
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => return Some(range),
        _ => return None,
    };
    Some(Range::new(low, high))
}

fn binary(op: Binary, a: Option<Range>, b: Option<Range>, dtype: DType) -> Option<Range> {
    let unsigned = |r: &Range| r.low >= 0;
    let hull_of = |corners: [i64; 4]| {
        let (low, high) = (corners.iter().min()?, corners.iter().max()?);
        Some((*low, *high))
    };
    let (low, high) = match op {
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => (0, 1),
        // For truth values these are logic.
        _ if dtype == DType::Bool => (0, 1),
        // The remainder has the sign of the divisor.
        Binary::Rem => b.filter(|b| b.low > 0).map(|b| (0, b.high - 1))?,
        // A number without a sign takes the other's sign off, and all bits beyond its own.
        Binary::And => match (a.filter(unsigned), b.filter(unsigned)) {
            (Some(a), Some(b)) => (0, a.high.min(b.high)),
            (a, b) => (0, a.or(b)?.high),
        },
        Binary::Or | Binary::Xor => (0, ones(a.filter(unsigned)?.high | b.filter(unsigned)?.high)),
        Binary::Max => (a?.low.max(b?.low), a?.high.max(b?.high)),
        Binary::Min => (a?.low.min(b?.low), a?.high.min(b?.high)),
        Binary::Add => (a?.low.checked_add(b?.low)?, a?.high.checked_add(b?.high)?),
        Binary::Sub => (a?.low.checked_sub(b?.high)?, a?.high.checked_sub(b?.low)?),
        Binary::Mul => {
            let (a, b) = (a?, b?);
            let corners = [(a.low, b.low), (a.low, b.high), (a.high, b.low), (a.high, b.high)];
            let mut out = [0; 4];
            for (out, (x, y)) in out.iter_mut().zip(corners) {
                *out = x.checked_mul(y)?;
            }
            hull_of(out)?
        }
        Binary::FloorDiv => {
            let (a, b) = (a?, b.filter(|b| b.low > 0)?);
            let corners = [(a.low, b.low), (a.low, b.high), (a.high, b.low), (a.high, b.high)];
            hull_of(corners.map(|(x, y)| x.div_euclid(y)))?
        }
        Binary::Div | Binary::Pow | Binary::Atan2 => return None,
    };
    Some(Range::new(low, high))
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
    let known = |t: &Tensor| match t.shape.numel() {
        0 => Some(Range::new(i64::MAX, i64::MAX)),
        _ => ranges[t.storage as usize],
    };
    let right = match work {
        Work::CheckIndex { index, size, wrap } => {
            let low = if *wrap { -(*size as i64) } else { 0 };
            index.shape.numel() == 0 || known(index).is_some_and(|r| r.low >= low && r.high < *size as i64)
        }
        Work::CheckNonzero { divisor: Operand::Tensor(t), .. } => {
            t.shape.numel() == 0 || known(t).is_some_and(|r| r.low > 0 || r.high < 0)
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
    fn verdicts(program: &str, inputs: &[Option<(i64, i64)>]) -> Vec<Verdict> {
        let structure = text::parse_structure(program).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        let ranges = Ranges::new(&plan, &structure);
        let known = ranges.follow(&plan, &[], |i| inputs[i].map(|(low, high)| Range::new(low, high)));
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
                let [x, y] = [a, b].map(|(low, high)| Some(Range::new(low, high)));
                let Some(Range { low, high, .. }) = binary(op, x, y, DType::I64) else { continue };
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

    /// As losses have it: what is marked as ignored is no index, so the others' bounds count.
    #[test]
    fn what_is_ignored_bounds_nothing() {
        let loss = "
            in TENSOR[0] f32[6, 10]
            in TENSOR[1] i32[6]
            TENSOR[2], TENSOR[3] := CROSSENTROPY TENSOR[0] TENSOR[1] -100
            out TENSOR[2]";
        let structure = text::parse_structure(loss).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        let ranges = Ranges::new(&plan, &structure);
        let verdict = |targets: &[i32]| {
            let bytes: Vec<u8> = targets.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let given = of_bytes(DType::I32, &bytes);
            let known = ranges.follow(&plan, &[], |i| given.filter(|_| i == 1));
            let checks: Vec<&Work> = plan.steps.iter().filter(|s| s.can_fail()).map(|s| &s.work).collect();
            assert!(!checks.is_empty());
            checks.into_iter().all(|work| judge(work, &[], &known) == Verdict::Right)
        };
        assert!(verdict(&[0, 9, 3, 3, 2, 1]));
        assert!(verdict(&[-100, 9, 3, -100, 2, 0]));
        assert!(!verdict(&[-100, 10, 3, -100, 2, 0]));
        assert!(!verdict(&[-100, 9, 3, -1, 2, 0]));
        assert!(!verdict(&[-101, 9, 3, -100, 2, 0]));
    }

    #[test]
    fn data_that_only_later_programs_read_is_bounded() {
        let program = "slot $0\nTENSOR[0] := DATA{shape=[3],dtype=i64} $0\nout TENSOR[0]";
        let structure = text::parse_structure(program).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        let bytes: Vec<u8> = [5i64, 0, 8].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let known = Ranges::new(&plan, &structure).follow(&plan, &[Slot::Data(bytes.into())], |_| None);
        assert_eq!(known[plan.outs[0] as usize], Some(Range::new(0, 8)));
    }

    #[test]
    fn values_are_looked_at_once() {
        let bytes: Vec<u8> = [5i64, -3, 8].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(of_bytes(DType::I64, &bytes), Some(Range { low: -3, high: 8, next: 5 }));
        assert_eq!(of_bytes(DType::I64, &[]), None);
        assert_eq!(of_bytes(DType::F32, &bytes), None);
        assert_eq!(fitted(Some(Range::new(0, 300)), DType::U8), Some(Range::new(0, 255)));
    }
}
