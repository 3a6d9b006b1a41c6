//! Which attention steps cuDNN runs. A step's shapes, the device's architecture and the library's version decide, so that the
//! same program keeps its way in every run (C7).

use gt_ir::{Result, bail};
use gt_kernels::attention::Form;
use std::ffi::c_int;

/// Who attends, as the worker's user wants it (`GT_ATTENTION`).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Wish {
    /// Whoever was measured to be faster.
    #[default]
    Best,
    /// Kernels of ours alone.
    Own,
    /// The library wherever it can.
    Cudnn,
}

impl Wish {
    pub fn from_env() -> Result<Wish> {
        match std::env::var("GT_ATTENTION").unwrap_or_default().as_str() {
            "" => Ok(Wish::Best),
            "own" => Ok(Wish::Own),
            "cudnn" => Ok(Wish::Cudnn),
            other => bail!(Value, "GT_ATTENTION: got `{other}`, expected `own`, `cudnn` or nothing"),
        }
    }
}

/// How a gradient of the library's gives the same bits in every run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Way {
    /// By one product over all scores, which take memory.
    Kept,
    /// By an engine that adds in order, in f32 beside: on Blackwell.
    InOrder,
}

/// The engine that adds in order on Blackwell, for a version and a width of heads, with its knobs: tiles of rows and of keys,
/// configuration, streams, clusters and stages, by the library's numbers.
pub fn in_order(version: usize, width: i64) -> (i64, Vec<(c_int, i64)>) {
    let stages = (14, if width > 128 { 3 } else { 2 });
    match version {
        92300.. => (5, vec![(40, 3), (41, 2), (24, 2), (38, 0), (27, 0), stages]),
        _ => (5, vec![(24, 31), stages]),
    }
}

/// What the choice depends on beside a step's form.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub wish: Wish,
    /// Compute capability: 90 for Hopper.
    pub arch: u32,
    /// 91400 for 9.14.0.
    pub version: usize,
}

/// Shorter rows are split over keys by the library, and the order of those sums is not its promise.
const FEWEST_ROWS: usize = 64;

impl Choice {
    /// True if the library runs a step.
    pub fn takes(&self, form: &Form) -> bool {
        match self.wish {
            Wish::Own => false,
            Wish::Cudnn => self.can(form),
            Wish::Best => self.can(form) && self.is_faster(form),
        }
    }

    /// How gradients are added.
    pub fn way(&self) -> Way {
        if matches!(self.arch, 100..=103) { Way::InOrder } else { Way::Kept }
    }

    /// True if the library has a way that gives the same bits in every run.
    fn can(&self, form: &Form) -> bool {
        let eights = form.d.is_multiple_of(8) && form.e.is_multiple_of(8);
        let widest = form.d.max(form.e);
        let gradient = match self.arch {
            _ if form.grad.is_none() => true,
            // Up to 9.15.0 the last tile of keys is taken for whole.
            90 => self.version > 91500 || form.cols.is_multiple_of(128),
            100..=103 if form.d == 256 && form.e == 256 => self.version >= 92300,
            100..=103 => self.version >= 91800 && widest <= 128,
            // Wide heads have no way there.
            _ => (self.version > 91500 || form.cols.is_multiple_of(128)) && widest <= 128,
        };
        self.arch >= 80 && eights && widest <= 256 && form.rows >= FEWEST_ROWS && gradient
    }

    /// True if the library was measured to be faster by a twentieth at least, or on Blackwell is taken to be: the figures are
    /// in docs/products-and-attention.md.
    fn is_faster(&self, form: &Form) -> bool {
        let (width, len) = (form.d.max(form.e), form.cols);
        match (self.arch, form.grad.is_some()) {
            // Where ours use Hopper's products, short rows of small heads are as fast by them.
            (90, false) if form.grouped => match (form.causal, width <= 64) {
                (true, true) => len >= 4096,
                (false, true) => len >= 1024,
                (_, false) => len >= 512 && form.rows >= 512,
            },
            (90, false) => width > 64 && len >= 256 || len >= 1024,
            (90, true) => !form.grouped && width > 64 && len >= 256,
            // Tensor cores that kernels of ours do not know.
            (100..120, _) => len >= 256,
            // Both multiply alike there, and ours are the faster ones.
            _ => false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use gt_compiler::{CompileOptions, compile};
    use gt_ir::text;

    /// The forms of an attention and of its gradient, `None` where no library takes them.
    pub fn forms(dtype: &str, sizes: [usize; 6]) -> [Option<Form>; 2] {
        let [batch, heads, key_heads, rows, cols, d] = sizes;
        let program = format!(
            "in TENSOR[0] {dtype}[{batch}, {heads}, {rows}, {d}]
             in TENSOR[1] {dtype}[{batch}, {key_heads}, {cols}, {d}]
             TENSOR[2], TENSOR[3] := ATTENTION{{causal=true}} TENSOR[0] TENSOR[1] TENSOR[1] 0.125
             TENSOR[4], TENSOR[5], TENSOR[6] := ATTENTIONGRAD{{causal=true}} TENSOR[0] TENSOR[1] TENSOR[1] TENSOR[2] TENSOR[3] TENSOR[0] 0.125
             out TENSOR[2]
             out TENSOR[4]
             out TENSOR[5]
             out TENSOR[6]"
        );
        let structure = text::parse_structure(&program).unwrap();
        let options = CompileOptions { takes: crate::backends::cuda::takes, ..CompileOptions::default() };
        let plan = compile(&structure, &structure.check().unwrap(), options).unwrap();
        let attends: Vec<_> = plan.steps.iter().filter(|s| s.work.to_string().contains("ttention")).collect();
        assert_eq!(attends.len(), 2, "{plan}");
        [0, 1].map(|i| Form::new(&attends[i].work, &plan))
    }

    fn takes(wish: Wish, arch: u32, version: usize, sizes: [usize; 6]) -> [bool; 2] {
        let choice = Choice { wish, arch, version };
        forms("bf16", sizes).map(|form| choice.takes(&form.unwrap()))
    }

    #[test]
    fn the_library_takes_what_it_can_where_it_is_wished_for() {
        let base = [2, 4, 2, 256, 256, 64];
        assert_eq!(takes(Wish::Cudnn, 90, 91900, base), [true, true]);
        assert_eq!(takes(Wish::Own, 90, 91900, base), [false, false]);
        // Turing has no bf16.
        assert_eq!(takes(Wish::Cudnn, 75, 91900, base), [false, false]);
        let wide = [2, 4, 2, 256, 256, 256];
        assert_eq!(takes(Wish::Cudnn, 90, 91900, wide), [true, true]);
        assert_eq!(takes(Wish::Cudnn, 80, 91900, wide), [true, false]);
        // Keys that end within a tile, by a version that takes it for whole.
        let odd = [2, 4, 2, 256, 200, 64];
        assert_eq!(takes(Wish::Cudnn, 90, 91400, odd), [true, false]);
        assert_eq!(takes(Wish::Cudnn, 90, 91900, odd), [true, true]);
        let few = [64, 4, 2, 32, 256, 64];
        assert_eq!(takes(Wish::Cudnn, 90, 91900, few), [false, false]);
    }

    #[test]
    fn the_faster_one_attends() {
        let best = |arch, causal, grouped, sizes| {
            let choice = Choice { wish: Wish::Best, arch, version: 91900 };
            forms("bf16", sizes).map(|form| choice.takes(&Form { causal, grouped, ..form.unwrap() }))
        };
        let of = |len: usize, d: usize| [1, 4, 2, len, len, d];
        assert_eq!(best(90, true, true, of(256, 128)), [false, false]);
        assert_eq!(best(90, true, true, of(1024, 128)), [true, false]);
        assert_eq!(best(90, false, true, of(1024, 128)), [true, false]);
        assert_eq!(best(90, true, true, of(2048, 64)), [false, false]);
        assert_eq!(best(90, true, true, of(4096, 64)), [true, false]);
        // Heads that Hopper's products do not fit, and too few of them to keep it busy.
        assert_eq!(best(90, true, false, of(1024, 96)), [true, true]);
        assert_eq!(best(90, true, false, of(1024, 256)), [true, true]);
        assert_eq!(best(90, true, false, of(128, 128)), [false, false]);
        assert_eq!(best(100, true, false, of(1024, 128)), [true, true]);
        assert_eq!(best(100, true, false, of(1024, 256)), [true, false]);
        let newer = Choice { wish: Wish::Best, arch: 100, version: 92700 };
        assert_eq!(forms("bf16", of(1024, 256)).map(|form| newer.takes(&form.unwrap())), [true, true]);
        assert_eq!(best(80, true, false, of(4096, 128)), [false, false]);
        assert_eq!(best(120, true, false, of(4096, 128)), [false, false]);
    }

    #[test]
    fn what_no_library_takes_has_no_form() {
        assert!(forms("f32", [2, 4, 2, 256, 256, 64]).iter().all(Option::is_none), "another type");
        assert!(forms("bf16", [1, 1, 1, 64, 64, 16]).iter().all(Option::is_none), "little work");
        assert!(forms("bf16", [2, 4, 2, 256, 256, 60]).iter().all(Option::is_none), "rows at odd addresses");
        let [forward, backward] = forms("bf16", [1, 4, 1, 256, 256, 64]).map(Option::unwrap);
        // Where there is one of something, its distance is as if more followed.
        assert_eq!(forward.k.strides, [64 * 256, 64 * 256, 64]);
        assert_eq!(forward.q.strides, [4 * 64 * 256, 64 * 256, 64]);
        assert!(forward.grad.is_none() && backward.grad.is_some());
    }
}
