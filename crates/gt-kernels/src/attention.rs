//! Attention and its gradient: which kernels, in which tiles, with what parameters.
//!
//! Half types run on tensor cores and `f32`, `f64` in registers, by kernels written for the element type, the sizes of a head
//! and the kind of mask; lengths and strides are arguments. Other sizes of a head take simple kernels that ship.
//! Results depend on shapes alone: every sum is made by one thread or one warp in a fixed order, and nothing is added by
//! atomics.

mod form;

pub use form::{Form, Side};

use crate::launch::{Arg, Function, Launch, Launches, Word};
use crate::matmul_pack::Fields;
use gt_compiler::{ALIGN, Attention, AttentionGrad, Map, Num, Place, Plan, Strides, Tensor, Work};
use gt_ir::DType;
use std::sync::atomic::{AtomicBool, Ordering};

/// The text of the simple kernels, a part of all plain ones.
pub const PLAIN: &str = concat!(include_str!("attention_parts.cu"), include_str!("attention_plain.cu"));
/// What stands in front of every kernel for half types, and for others.
pub(crate) const HALF: &str = concat!(
    include_str!("attention_parts.cu"),
    include_str!("attention_wgmma.cu"),
    include_str!("attention_half.cu"),
    include_str!("attention_hopper.cu")
);
pub(crate) const FULL: &str = concat!(include_str!("attention_parts.cu"), include_str!("attention_full.cu"));
/// The most shared memory of a block on every device with tensor cores for bf16.
const SHARED: usize = 99 << 10;

/// The launches of an attention step at first sight, `None` for other steps: by the kernels it keeps, since others would round
/// otherwise (C7).
pub fn plain(work: &Work, plan: &Plan) -> Option<Launches> {
    made(work, plan).or_else(|| simple(work, plan))
}

/// The launches of an attention step by kernels that ship with the program, `None` for other steps.
pub fn simple(work: &Work, plan: &Plan) -> Option<Launches> {
    Some(match work {
        Work::Attention(a) => Problem::forward(a, plan).plain(&[("forward", Over::Rows)]),
        Work::AttentionGrad(a) => {
            let steps = [("delta", Over::Rows), ("dq", Over::Rows), ("dk", Over::Cols), ("dv", Over::Cols)];
            Problem::backward(a, plan).plain(&steps)
        }
        _ => return None,
    })
}

/// Scores times widths of so little work that compiling for it would never pay.
const LITTLE: usize = 1 << 19;

/// The launches of an attention step by kernels written for it, `None` for other steps and where simple ones do: for very
/// wide heads, and for so little work that compiling would never pay.
pub fn made(work: &Work, plan: &Plan) -> Option<Launches> {
    let (q, k, v) = match work {
        Work::Attention(a) => (&a.q, &a.k, &a.v),
        Work::AttentionGrad(a) => (&a.q, &a.k, &a.v),
        _ => return None,
    };
    let rank = q.shape.len();
    let scores = q.shape[..rank - 1].iter().product::<usize>() * k.shape[rank - 2];
    if scores * (q.shape[rank - 1] + v.shape[rank - 1]) < LITTLE {
        None
    } else {
        special(work, plan, target())
    }
}

/// Bytes of scratch memory that an attention step takes by kernels of ours; none for other steps.
pub fn scratch(work: &Work, plan: &Plan) -> usize {
    match work {
        Work::AttentionGrad(a) => Problem::backward(a, plan).scratch(),
        _ => 0,
    }
}

/// Whether kernels may use what only Hopper (sm_90a) has.
static HOPPER: AtomicBool = AtomicBool::new(false);

/// Says that all kernels are for Hopper, compiled for sm_90a.
pub fn use_hopper(on: bool) {
    HOPPER.store(on, Ordering::Relaxed);
}

/// What kernels are chosen for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Kernels may use what only sm_90a has.
    pub hopper: bool,
    /// How many blocks keep the device busy.
    pub blocks: usize,
}

impl Default for Target {
    fn default() -> Target {
        Target { hopper: false, blocks: 256 }
    }
}

fn target() -> Target {
    Target { hopper: HOPPER.load(Ordering::Relaxed), ..Target::default() }
}

/// The launches by kernels written for the step, however little it does.
pub fn special(work: &Work, plan: &Plan, target: Target) -> Option<Launches> {
    match work {
        Work::Attention(a) => Problem { target, ..Problem::forward(a, plan) }.made(&[Part::Forward]),
        Work::AttentionGrad(a) => {
            let problem = Problem { target, ..Problem::backward(a, plan) };
            // Wide heads have room for the sums of keys or of values, not both.
            match problem.wide() && problem.is_half() {
                true => problem.made(&[Part::Dq, Part::Dk, Part::Dv]),
                false => problem.made(&[Part::Dq, Part::Dkv]),
            }
        }
        _ => None,
    }
}

/// A result as the kernels see it.
#[derive(Clone, Copy)]
struct Given {
    storage: u32,
    /// The first element there.
    start: usize,
    /// Distances of batches, heads and rows.
    strides: [isize; 3],
}

impl Given {
    /// Batches of several leading dimensions are counted through, which are dense then.
    fn new(t: &Tensor) -> Given {
        let (rank, strides) = (t.shape.len(), &t.map.strides);
        let batch = if rank > 3 { strides[rank - 4] } else { 0 };
        debug_assert!(t.map.slots.is_empty(), "a result lies where the plan says");
        let start = t.map.offset as usize;
        Given { storage: t.storage, start, strides: [batch, strides[rank - 3], strides[rank - 2]] }
    }

    fn is_aligned(&self, size: usize, plan: &Plan) -> bool {
        let base = match plan.storages[self.storage as usize].place {
            Place::Input(_) | Place::Out => ALIGN,
            Place::Arena(at) => at,
        };
        let even = |n: usize| (n * size).is_multiple_of(16);
        base.is_multiple_of(16) && even(self.start) && self.strides.iter().all(|s| even(s.unsigned_abs()))
    }
}

/// What a plain kernel has a warp for: rows of queries, or columns (keys).
#[derive(Clone, Copy, PartialEq)]
enum Over {
    Rows,
    Cols,
}

/// One kernel of those made for an attention.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Part {
    Forward,
    Dq,
    Dkv,
    Dk,
    Dv,
}

/// An attention as the kernels see it: up to seven tensors of four dimensions.
struct Problem<'a> {
    dtype: DType,
    /// q, k, v, out, dout, lse, mask; what is not there is `None`.
    tensors: [Option<&'a Tensor>; 7],
    /// Results.
    to: Vec<Given>,
    scale: Num,
    causal: bool,
    heads: usize,
    key_heads: usize,
    rows: usize,
    cols: usize,
    d: usize,
    e: usize,
    guarded: bool,
    target: Target,
    /// Every row of every tensor starts at a multiple of 16 bytes.
    aligned: bool,
    /// Batches of one launch, and where they start: (index of the first, offset of each tensor).
    batches: usize,
    batch_strides: [isize; 7],
    calls: Vec<(usize, [isize; 7])>,
}

/// Fields of the kernels' parameters that only a gradient has come after those of both.
const Q: usize = 0;
const LSE: usize = 5;
const MASK: usize = 6;

impl<'a> Problem<'a> {
    fn forward(a: &'a Attention, plan: &Plan) -> Problem<'a> {
        let tensors = [Some(&a.q), Some(&a.k), Some(&a.v), None, None, None, a.mask.as_ref()];
        let (heads, rows) = (a.out.shape[a.out.shape.len() - 3], a.out.shape[a.out.shape.len() - 2]);
        let lse = Given { storage: a.lse, start: 0, strides: [(heads * rows) as isize, rows as isize, 1] };
        Problem::new(tensors, vec![Given::new(&a.out), lse], a.scale, a.causal, plan)
    }

    fn backward(a: &'a AttentionGrad, plan: &Plan) -> Problem<'a> {
        let some = [&a.q, &a.k, &a.v, &a.out, &a.dout, &a.lse].map(Some);
        let [q, k, v, out, dout, lse] = some;
        let tensors = [q, k, v, out, dout, lse, a.mask.as_ref()];
        Problem::new(tensors, [&a.dq, &a.dk, &a.dv].map(Given::new).into(), a.scale, a.causal, plan)
    }

    fn new(
        tensors: [Option<&'a Tensor>; 7],
        to: Vec<Given>,
        scale: Num,
        causal: bool,
        plan: &Plan,
    ) -> Problem<'a> {
        let [Some(q), Some(k), Some(v), ..] = tensors else { unreachable!("attention without operands") };
        let rank = q.shape.len();
        // Leading dimensions that advance evenly in every tensor are one; the innermost that is left is the batch.
        let mut dims: Vec<(usize, [isize; 7])> = Vec::new();
        for i in (0..rank - 3).filter(|&i| q.shape[i] != 1) {
            let n = q.shape[i];
            let steps = tensors.map(|t| t.map_or(0, |t| t.map.strides[i]));
            match dims.last_mut() {
                Some((size, wide)) if (0..7).all(|t| wide[t] == steps[t] * n as isize) => {
                    (*size, *wide) = (*size * n, steps)
                }
                _ => dims.push((n, steps)),
            }
        }
        let (batches, batch_strides) = dims.pop().unwrap_or((1, [0; 7]));
        let mut calls = vec![(0, [0; 7])];
        for (n, steps) in dims {
            let each = |&(i, at): &(usize, [isize; 7])| {
                (0..n).map(move |j| (i * n + j, std::array::from_fn(|t| at[t] + j as isize * steps[t])))
            };
            calls = calls.iter().flat_map(each).collect();
        }
        calls.iter_mut().for_each(|(i, _)| *i *= batches);
        let mut problem = Problem {
            dtype: q.dtype,
            tensors,
            scale,
            causal,
            heads: q.shape[rank - 3],
            key_heads: k.shape[rank - 3],
            rows: q.shape[rank - 2],
            cols: k.shape[rank - 2],
            d: q.shape[rank - 1],
            e: v.shape[rank - 1],
            guarded: to.iter().any(|to| plan.storages[to.storage as usize].reuse.is_some()),
            target: Target::default(),
            aligned: false,
            to,
            batches,
            batch_strides,
            calls,
        };
        // The numbers kept for each row are written one by one.
        let results = if problem.tensors[LSE].is_some() { &problem.to[..] } else { &problem.to[..1] };
        problem.aligned = (Q..LSE).all(|t| problem.is_aligned(t, plan))
            && results.iter().all(|to| to.is_aligned(problem.dtype.size(), plan));
        problem
    }

    fn is_aligned(&self, t: usize, plan: &Plan) -> bool {
        let Some(tensor) = self.tensors[t] else { return true };
        let size = tensor.dtype.size();
        let base = match plan.storages[tensor.storage as usize].place {
            Place::Input(_) | Place::Out => ALIGN,
            Place::Arena(at) => at,
        };
        let map = &tensor.map;
        let strides = map.strides.iter().zip(tensor.shape.iter()).rev().skip(1);
        let moves = strides.filter(|(_, n)| **n > 1).map(|(s, _)| *s).chain([map.offset]);
        let even = |n: isize| (n.unsigned_abs() * size).is_multiple_of(16);
        base.is_multiple_of(16) && moves.chain(map.slots.iter().map(|s| s.1)).all(even)
    }

    /// All batches.
    fn total(&self) -> usize {
        self.batches * self.calls.len()
    }

    /// Bytes of the numbers kept for each row, and of how many of them.
    fn scratch(&self) -> usize {
        let wide = if self.dtype == DType::F64 { 8 } else { 4 };
        if self.tensors[LSE].is_some() { 2 * wide * self.total() * self.heads * self.rows } else { 0 }
    }

    fn mask_kind(&self) -> i64 {
        match self.tensors[MASK].map(|t| t.dtype) {
            None => 0,
            Some(DType::Bool) => 1,
            Some(dtype) if dtype == self.dtype => 2,
            Some(_) => 3,
        }
    }

    /// The kernels' parameters for the batches of one call.
    fn params(&self, (first, at): &(usize, [isize; 7])) -> Arg {
        let mut p = Fields::default();
        for (i, t) in self.tensors.iter().enumerate() {
            let Some(t) = t else {
                (0..5).for_each(|_| _ = p.int(0));
                continue;
            };
            let rank = t.shape.len();
            // A row's numbers have no last dimension of elements.
            let row = if i == LSE { rank - 1 } else { rank - 2 };
            let start =
                Map { strides: Strides::new(), offset: t.map.offset + at[i], slots: t.map.slots.clone() };
            p.word(Word::Address(t.storage)).word(Word::Start(start));
            p.int(self.batch_strides[i] as i64);
            p.int(t.map.strides[row - 1] as i64).int(t.map.strides[row] as i64);
        }
        p.int(self.tensors[MASK].map_or(0, |t| t.map.strides[t.shape.len() - 1]) as i64);
        p.int(self.mask_kind());
        for i in 0..3 {
            let strides = match self.to.get(i) {
                Some(to) => {
                    p.word(Word::Byte(to.storage, to.start * self.dtype.size()));
                    to.strides
                }
                None => {
                    p.int(0);
                    [0; 3]
                }
            };
            strides.iter().for_each(|&s| _ = p.int(s as i64));
        }
        p.word(Word::Scratch(0));
        if self.guarded {
            p.word(Word::Failed)
        } else {
            p.int(0)
        };
        let sizes = [self.batches, self.heads, self.key_heads, self.rows, self.cols, self.d, self.e];
        sizes.iter().for_each(|&n| _ = p.int(n as i64));
        p.int(self.causal as i64).int(*first as i64).int(self.total() as i64);
        p.word(Word::Number(self.scale, DType::F64));
        p.arg()
    }

    /// Launches of plain kernels: eight warps to a block, a warp for each row or column and part of a wide head.
    fn plain(&self, steps: &[(&str, Over)]) -> Launches {
        const WARPS: usize = 8;
        const PART: usize = 512;
        let mut list = Vec::new();
        for call in &self.calls {
            for &(name, over) in steps {
                let lines = match over {
                    Over::Rows => self.heads * self.rows,
                    Over::Cols => self.key_heads * self.cols,
                };
                let width = match name {
                    "forward" | "dv" => self.e,
                    "dq" | "dk" => self.d,
                    _ => 1,
                };
                let warps = self.batches * lines * width.div_ceil(PART).max(1);
                if warps > 0 {
                    list.push(Launch {
                        function: Function::Plain(plain_name(name, self.dtype)),
                        grid: [warps.div_ceil(WARPS) as u32, 1, 1],
                        block: 32 * WARPS as u32,
                        shared: 0,
                        args: vec![self.params(call)],
                    });
                }
            }
        }
        Launches { list, scratch: self.scratch(), zeroed: 0 }
    }

    fn is_half(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
    }

    /// True if a head is wider than two results of it fit in registers.
    fn wide(&self) -> bool {
        self.d.max(self.e) > 128
    }

    /// Launches of kernels made for this.
    fn made(&self, parts: &[Part]) -> Option<Launches> {
        let most = self.d.max(self.e);
        if self.d.min(self.e) == 0 || most > 256 || self.key_heads == 0 {
            return None;
        }
        let make = match self.is_half() {
            true if self.grouped() => Problem::hopper,
            true => Problem::half,
            false => Problem::full,
        };
        let mut list = Vec::new();
        for call in &self.calls {
            for &part in parts {
                let kernel = make(self, part);
                let blocks = match part {
                    Part::Forward | Part::Dq => self.heads * self.rows.div_ceil(kernel.tile),
                    Part::Dkv | Part::Dk | Part::Dv => self.key_heads * self.cols.div_ceil(kernel.tile),
                };
                if self.batches * blocks > 0 {
                    list.push(Launch {
                        function: Function::Made { name: kernel.name.into(), text: kernel.text.into() },
                        grid: [(self.batches * blocks) as u32, 1, 1],
                        block: kernel.threads,
                        shared: kernel.shared as u32,
                        args: vec![self.params(call)],
                    });
                }
            }
        }
        Some(Launches { list, scratch: self.scratch(), zeroed: 0 })
    }

    /// Whether tiles of `size` rows (or keys) of every head keep a large device busy.
    fn busy(&self, heads: usize, len: usize, size: usize) -> bool {
        self.total() * heads * len.div_ceil(size) >= self.target.blocks
    }

    /// A kernel for tensor cores. Tiles are as large as registers and 99 KiB of shared memory allow, and smaller where
    /// there would be too few of them.
    fn half(&self, part: Part) -> Kernel {
        let (d, e) = (self.d.next_multiple_of(16), self.e.next_multiple_of(16));
        let wide = self.wide();
        let (warps, m) = match part {
            Part::Forward | Part::Dq if wide => (4, 1),
            Part::Forward | Part::Dq if self.busy(self.heads, self.rows, 256) => (4, 2),
            Part::Forward | Part::Dq if self.busy(self.heads, self.rows, 64) => (4, 1),
            Part::Forward | Part::Dq => (2, 1),
            Part::Dkv | Part::Dk | Part::Dv if self.busy(self.key_heads, self.cols, 64) => (4, 1),
            Part::Dkv | Part::Dk | Part::Dv => (2, 1),
        };
        // Rows of the tiles that pass by.
        let other = match (part, wide) {
            (Part::Forward, false) => 64,
            (Part::Forward, true) => 32,
            (Part::Dq, false) => 32,
            (_, true) => 16,
            (_, false) => 64,
        };
        let tile = warps * m * 16;
        let vec = self.aligned && self.d.is_multiple_of(8) && self.e.is_multiple_of(8);
        let (h, suffix) = if self.dtype == DType::F16 { ("GtaF16", "f16") } else { ("GtaBF16", "bf16") };
        let sizes = format!("{d}, {}, {e}, {}, {warps}", self.d, self.e);
        let row = |w: usize| 2 * if w.is_multiple_of(64) { w } else { w + 8 };
        let (own, passing) = (tile * (row(d) + row(e)), 2 * other * (row(d) + row(e)));
        let (function, shared) = match part {
            Part::Forward => {
                (format!("gta_half_forward<{h}, {sizes}, {m}, {other}"), tile * row(d) + passing)
            }
            Part::Dq => (format!("gta_half_dq<{h}, {sizes}, {m}, {other}"), own + passing + 4 * tile),
            Part::Dkv | Part::Dk | Part::Dv => {
                let (dk, dv) = (part != Part::Dv, part != Part::Dk);
                (format!("gta_half_dkv<{h}, {sizes}, {other}, {dk}, {dv}"), own + passing + 16 * other)
            }
        };
        let name = self.name(part, suffix, &format!("{tile}_{other}"), vec);
        let function = format!("{function}, {vec}, {}, {}", self.causal, self.mask_kind());
        self.kernel(HALF, name, &function, 2, tile, 32 * warps, shared)
    }

    /// Whether products are made by four warps together: for heads of whole blocks of 64, on tiles of 64 rows.
    fn grouped(&self) -> bool {
        let whole = (self.d.next_multiple_of(16) | self.e.next_multiple_of(16)).is_multiple_of(64);
        let vec = self.aligned && self.d.is_multiple_of(8) && self.e.is_multiple_of(8);
        let busy = self.busy(self.heads, self.rows, 64) && self.busy(self.key_heads, self.cols, 64);
        self.target.hopper && !self.wide() && whole && vec && busy
    }

    /// A kernel for Hopper.
    fn hopper(&self, part: Part) -> Kernel {
        let (d, e) = (self.d.next_multiple_of(16), self.e.next_multiple_of(16));
        let (heads, len) = match part {
            Part::Forward | Part::Dq => (self.heads, self.rows),
            Part::Dkv | Part::Dk | Part::Dv => (self.key_heads, self.cols),
        };
        // Gradients keep more in registers: two small blocks of them fill each other's gaps better than a large one.
        let groups = if part == Part::Forward && self.busy(heads, len, 256) { 2 } else { 1 };
        let (tile, other) = (64 * groups, 64);
        let (h, suffix) = if self.dtype == DType::F16 { ("GtaF16", "f16") } else { ("GtaBF16", "bf16") };
        let row = 2 * (d + e);
        let passing = 2 * other * row;
        let (function, shared) = match part {
            Part::Forward => ("forward", tile * 2 * d + passing),
            Part::Dq => ("dq", tile * row + passing + 4 * tile),
            Part::Dkv | Part::Dk | Part::Dv => ("dkv", tile * row + passing + 16 * other),
        };
        let sizes = format!("{h}, {d}, {}, {e}, {}, {groups}, {other}", self.d, self.e);
        let function = format!("gta_hopper_{function}<{sizes}, {}, {}", self.causal, self.mask_kind());
        let name = self.name(part, suffix, &format!("{tile}_{other}_wg"), true);
        self.kernel(HALF, name, &function, 2, tile, 128 * groups, shared)
    }

    /// A kernel in the arithmetic of the type itself.
    fn full(&self, part: Part) -> Kernel {
        let (d, e) = (self.d.next_multiple_of(16), self.e.next_multiple_of(16));
        let (size, t) = if self.dtype == DType::F64 { (8, "double") } else { (4, "float") };
        let pitch = |w: usize| w * size + 16;
        let (sums, kept, count, len) = match part {
            Part::Forward => (e, pitch(d), self.heads, self.rows),
            Part::Dq => (d, pitch(d) + pitch(e), self.heads, self.rows),
            Part::Dkv | Part::Dk | Part::Dv => (d + e, pitch(d) + pitch(e), self.key_heads, self.cols),
        };
        let shared =
            |rm: usize, rn: usize| 8 * rm * kept + 16 * rn * (pitch(d) + pitch(e)) + 8 * rm * pitch(16 * rn);
        // Sums stay in registers: at most 64 words of a thread.
        let fits = |rm: usize, rn: usize| rm * sums * size / 64 <= 64 && shared(rm, rn) <= SHARED;
        let choices = [(8, 4), (8, 2), (4, 4), (4, 2), (2, 4), (2, 2), (2, 1), (1, 1), (2, 8)];
        let mut usable = choices.into_iter().filter(|&(rm, rn)| fits(rm, rn));
        let busy = usable.clone().find(|&(rm, _)| self.busy(count, len, 8 * rm));
        // Where nothing is enough, small tiles of rows, and as few steps as fit.
        let few = usable.clone().filter(|&(rm, _)| rm <= 2).max_by_key(|&(rm, rn)| (rm, rn));
        let (rm, rn) = busy.or(few).or(usable.next()).unwrap_or((1, 1));
        let what = match part {
            Part::Forward => "forward",
            Part::Dq => "dq",
            Part::Dkv | Part::Dk | Part::Dv => "dkv",
        };
        let function = format!("gta_full_{what}<{t}, {d}, {}, {e}, {}, {rm}, {rn}", self.d, self.e);
        let vec = self.aligned && [self.d, self.e].iter().all(|n| (n * size).is_multiple_of(16));
        let name = self.name(part, t, &format!("{}_{}", 8 * rm, 16 * rn), vec);
        let function = format!("{function}, {vec}, {}, {}", self.causal, self.mask_kind());
        self.kernel(FULL, name, &function, 2, 8 * rm, 128, shared(rm, rn))
    }

    /// A name that says all the text depends on.
    fn name(&self, part: Part, t: &str, tiles: &str, vec: bool) -> String {
        let part = format!("{part:?}").to_lowercase();
        let kind = format!("{}{}{}", vec as u8, self.causal as u8, self.mask_kind());
        format!("gta_{part}_{t}_{}_{}_{tiles}_{kind}", self.d, self.e)
    }

    /// `blocks` of them share a multiprocessor, and fill each other's gaps.
    fn kernel(
        &self,
        parts: &str,
        name: String,
        function: &str,
        blocks: usize,
        tile: usize,
        threads: usize,
        shared: usize,
    ) -> Kernel {
        let text = format!(
            "{parts}extern \"C\" __global__ void __launch_bounds__({threads}, {blocks}) {name}(GtaParams p) {{\n    \
             {function}>(p);\n}}\n"
        );
        Kernel { name, text, tile, threads: threads as u32, shared }
    }
}

/// A kernel made for an attention.
struct Kernel {
    name: String,
    text: String,
    /// Rows or keys of a block.
    tile: usize,
    threads: u32,
    shared: usize,
}

/// The plain kernel of a part and a type.
fn plain_name(part: &str, dtype: DType) -> &'static str {
    macro_rules! names {
        ($($part:literal),*) => {
            match (part, dtype) {
                $(($part, DType::F16) => concat!("gta_plain_", $part, "_f16"),
                ($part, DType::BF16) => concat!("gta_plain_", $part, "_bf16"),
                ($part, DType::F64) => concat!("gta_plain_", $part, "_f64"),
                ($part, _) => concat!("gta_plain_", $part, "_f32"),)*
                _ => unreachable!("no such kernel: {part}"),
            }
        };
    }
    names!("forward", "delta", "dq", "dk", "dv")
}
