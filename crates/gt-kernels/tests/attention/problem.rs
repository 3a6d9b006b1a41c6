//! Attention on some numbers, by kernels and written out.

use crate::host;
use gt_compiler::{Attention, AttentionGrad, Map, Num, Place, Plan, Step, Storage, Strides, Tensor, Work};
use gt_ir::{DType, Scalar, Shape};
use gt_kernels::attention::{self, Target};
use half::{bf16, f16};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mask {
    None,
    Bool,
    /// Of q's type, added; the same for all heads.
    Added,
    /// `f32`, added; the same along a row.
    Wide,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kernels {
    Plain,
    /// As for a device that many blocks keep busy.
    Made,
    /// As for one that a single block does: the largest tiles.
    Large,
    /// The same with Hopper's own products.
    Hopper,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: DType,
    pub batch: Vec<usize>,
    pub heads: usize,
    pub key_heads: usize,
    pub rows: usize,
    pub cols: usize,
    pub d: usize,
    pub e: usize,
    pub causal: bool,
    pub mask: Mask,
    /// Heads lie inside of rows, and the outer batches do not follow evenly.
    pub strided: bool,
    /// Results are written with heads inside of rows.
    pub turned: bool,
    /// Elements before the first, of operands and results.
    pub shifted: usize,
    pub scale: f64,
}

/// Numbers in memory of a type, also as doubles.
struct Array {
    tensor: Tensor,
    bytes: Vec<u64>,
    /// By index in row-major order.
    values: Vec<f64>,
}

fn put(dtype: DType, to: &mut [u8], x: f64) -> f64 {
    match dtype {
        DType::Bool => to[0] = (x != 0.0) as u8,
        DType::F16 => to.copy_from_slice(&f16::from_f64(x).to_ne_bytes()),
        DType::BF16 => to.copy_from_slice(&bf16::from_f64(x).to_ne_bytes()),
        DType::F32 => to.copy_from_slice(&(x as f32).to_ne_bytes()),
        _ => to.copy_from_slice(&x.to_ne_bytes()),
    }
    get(dtype, to)
}

fn get(dtype: DType, from: &[u8]) -> f64 {
    match dtype {
        DType::Bool => from[0] as f64,
        DType::F16 => f16::from_ne_bytes(from.try_into().unwrap()).to_f64(),
        DType::BF16 => bf16::from_ne_bytes(from.try_into().unwrap()).to_f64(),
        DType::F32 => f32::from_ne_bytes(from.try_into().unwrap()) as f64,
        _ => f64::from_ne_bytes(from.try_into().unwrap()),
    }
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: any bytes are words and the other way round.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) }
}

impl Array {
    fn new(
        storage: u32,
        dtype: DType,
        shape: &[usize],
        map: Map,
        mut next: impl FnMut(usize) -> f64,
    ) -> Array {
        let size = dtype.size();
        let span: isize =
            shape.iter().zip(&map.strides).map(|(&n, &s)| n.saturating_sub(1) as isize * s).sum();
        let len = (map.offset + span + 1) as usize * size;
        // What lies between the elements is not a number.
        let mut bytes = vec![u64::MAX; len.div_ceil(8) + 2];
        let count: usize = shape.iter().product();
        let mut values = vec![0.0; count];
        let mut given = std::collections::HashSet::new();
        for (i, value) in values.iter_mut().enumerate() {
            let (mut rest, mut at) = (i, map.offset);
            for d in (0..shape.len()).rev() {
                at += (rest % shape[d]) as isize * map.strides[d];
                rest /= shape[d];
            }
            let to = &mut bytes_of(&mut bytes)[at as usize * size..][..size];
            // Broadcast elements keep what they were given first.
            *value = if given.insert(at) { put(dtype, to, next(i)) } else { get(dtype, to) };
        }
        Array { tensor: Tensor { storage, dtype, shape: shape.into(), map }, bytes, values }
    }

    fn read(&mut self, dtype: DType, count: usize) -> Vec<f64> {
        bytes_of(&mut self.bytes).chunks(dtype.size()).take(count).map(|b| get(dtype, b)).collect()
    }
}

impl Case {
    fn shape(&self, heads: usize, rows: usize, width: usize) -> Vec<usize> {
        self.batch.iter().copied().chain([heads, rows, width]).collect()
    }

    /// The map of a tensor [.., heads, rows, width].
    fn map(&self, shape: &[usize]) -> Map {
        let mut map = Map::dense(&Shape::from(shape));
        map.offset = self.shifted as isize;
        if self.strided {
            let n = shape.len();
            let (heads, rows, width) = (shape[n - 3], shape[n - 2], shape[n - 1] as isize);
            map.strides[n - 3] = width;
            map.strides[n - 2] = width * heads as isize;
            let mut step = width * heads as isize * rows as isize + 8;
            for d in (0..n - 3).rev() {
                map.strides[d] = step;
                step = step * shape[d] as isize + 16;
            }
        }
        map
    }

    /// The map of a result of this shape.
    fn written(&self, shape: &Shape) -> Map {
        let mut map = Map { offset: self.shifted as isize, ..Map::dense(shape) };
        if self.turned {
            let n = shape.len();
            map.strides[n - 3] = shape[n - 1] as isize;
            map.strides[n - 2] = (shape[n - 1] * shape[n - 3]) as isize;
        }
        map
    }

    /// Numbers of a result in row-major order, from the order in which they were written.
    fn turned_back(&self, got: &[f64], shape: &[usize]) -> Vec<f64> {
        let n = shape.len();
        let (heads, rows, width) = (shape[n - 3], shape[n - 2], shape[n - 1]);
        let at = |i: usize| {
            let (x, row, head) = (i % width, i / width % rows, i / width / rows % heads);
            ((i / (width * rows * heads) * rows + row) * heads + head) * width + x
        };
        (0..got.len()).map(|i| got[at(i)]).collect()
    }

    fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// The type and map of the mask.
    fn mask(&self) -> Option<(DType, Map)> {
        let shape = Shape::from(self.shape(self.heads, self.rows, self.cols));
        let n = shape.len();
        let mut map = Map::dense(&shape);
        let dtype = match self.mask {
            Mask::None => return None,
            Mask::Bool => DType::Bool,
            Mask::Added => {
                let small = Map::dense(&[self.rows, self.cols].into()).strides;
                map.strides = Strides::from_elem(0, n - 2);
                map.strides.extend(small);
                self.dtype
            }
            Mask::Wide => {
                map.strides = Strides::from_elem(0, n);
                map.strides[n - 2] = 1;
                self.wide()
            }
        };
        Some((dtype, map))
    }
}

/// Attention written out: out and lse.
fn written_out(c: &Case, [q, k, v]: [&[f64]; 3], mask: Option<&[f64]>) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let batches: usize = c.batch.iter().product();
    let (mut out, mut lses, mut weights) = (vec![], vec![], vec![]);
    for b in 0..batches {
        for h in 0..c.heads {
            let kv = b * c.key_heads + h * c.key_heads / c.heads;
            for i in 0..c.rows {
                let row = (b * c.heads + h) * c.rows + i;
                let scores: Vec<f64> = (0..c.cols)
                    .map(|j| {
                        let dot: f64 =
                            (0..c.d).map(|x| q[row * c.d + x] * k[(kv * c.cols + j) * c.d + x]).sum();
                        let m = mask.map_or(0.0, |m| m[row * c.cols + j]);
                        match c.mask {
                            _ if c.causal && j > i => f64::NEG_INFINITY,
                            Mask::Bool if m == 0.0 => f64::NEG_INFINITY,
                            Mask::Bool | Mask::None => dot * c.scale,
                            Mask::Added | Mask::Wide => dot * c.scale + m,
                        }
                    })
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 =
                    scores.iter().map(|s| if top.is_finite() { (s - top).exp() } else { 0.0 }).sum();
                let lse = if sum == 0.0 { f64::NEG_INFINITY } else { top + sum.ln() };
                let p: Vec<f64> =
                    scores.iter().map(|s| if sum == 0.0 { 0.0 } else { (s - lse).exp() }).collect();
                out.extend(
                    (0..c.e).map(|x| (0..c.cols).map(|j| p[j] * v[(kv * c.cols + j) * c.e + x]).sum::<f64>()),
                );
                lses.push(lse);
                weights.extend(p);
            }
        }
    }
    (out, lses, weights)
}

/// The gradients of q, k and v, written out.
fn gradients(c: &Case, [q, k, v, dout]: [&[f64]; 4], out: &[f64], weights: &[f64]) -> [Vec<f64>; 3] {
    let batches: usize = c.batch.iter().product();
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for b in 0..batches {
        for h in 0..c.heads {
            let kv = b * c.key_heads + h * c.key_heads / c.heads;
            for i in 0..c.rows {
                let row = (b * c.heads + h) * c.rows + i;
                let delta: f64 = (0..c.e).map(|x| dout[row * c.e + x] * out[row * c.e + x]).sum();
                for j in 0..c.cols {
                    let (p, col) = (weights[row * c.cols + j], kv * c.cols + j);
                    let dp: f64 = (0..c.e).map(|x| dout[row * c.e + x] * v[col * c.e + x]).sum();
                    let ds = p * (dp - delta) * c.scale;
                    (0..c.e).for_each(|x| dv[col * c.e + x] += p * dout[row * c.e + x]);
                    for x in 0..c.d {
                        dq[row * c.d + x] += ds * k[col * c.d + x];
                        dk[col * c.d + x] += ds * q[row * c.d + x];
                    }
                }
            }
        }
    }
    [dq, dk, dv]
}

fn compare(c: &Case, what: &str, got: &[f64], want: &[f64], kernels: Kernels) {
    let tolerance = match c.dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    };
    let size = want.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
    assert_eq!(got.len(), want.len());
    for (i, (&x, &y)) in got.iter().zip(want).enumerate() {
        let fine = x == y || (x - y).abs() <= tolerance * size;
        assert!(fine, "{what}[{i}]: got {x}, expected {y}: {c:?} {kernels:?}");
    }
}

/// Runs forward or backward and compares every result.
pub fn check(c: &Case, kernels: Kernels, backward: bool) {
    let mut state = 88172645463325252u64;
    let mut next = move |_: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let shapes = [
        c.shape(c.heads, c.rows, c.d),
        c.shape(c.key_heads, c.cols, c.d),
        c.shape(c.key_heads, c.cols, c.e),
        c.shape(c.heads, c.rows, c.e),
    ];
    let [q, k, v, dout] = [0, 1, 2, 3].map(|i| {
        let storage = [0, 1, 2, 4][i];
        Array::new(storage, c.dtype, &shapes[i], c.map(&shapes[i]), |j| 2.0 * next(j))
    });
    let score_shape = c.shape(c.heads, c.rows, c.cols);
    let mask = c.mask().map(|(dtype, map)| {
        // The first row sees nothing where the mask says so.
        let cols = c.cols.max(1);
        let hidden = |i: usize| (i / cols).is_multiple_of(c.rows);
        Array::new(6, dtype, &score_shape, map, |i| match dtype {
            DType::Bool => (!hidden(i) && next(i) > -0.3) as u8 as f64,
            _ if hidden(i) => f64::NEG_INFINITY,
            _ => next(i),
        })
    });
    let mask_values = mask.as_ref().map(|m| m.values.as_slice());
    let (want_out, want_lse, weights) = written_out(c, [&q.values, &k.values, &v.values], mask_values);
    let dense = |storage, dtype, shape: &[usize], values: &[f64]| {
        Array::new(storage, dtype, shape, Map::dense(&shape.into()), |i| values[i])
    };
    let out = dense(3, c.dtype, &shapes[3], &want_out);
    let lse = dense(5, c.wide(), &shapes[3][..shapes[3].len() - 1], &want_lse);
    let wants: Vec<Vec<f64>> = match backward {
        true => gradients(c, [&q.values, &k.values, &v.values, &dout.values], &out.values, &weights).into(),
        false => vec![want_out, want_lse],
    };
    let types = if backward { [c.dtype; 3] } else { [c.dtype, c.wide(), c.dtype] };
    // The numbers of rows that attention keeps lie at the start of their storage.
    let before = |i: usize| if backward || i == 0 { c.shifted } else { 0 };
    let mut results: Vec<Array> = (0..wants.len())
        .map(|i| {
            let count = wants[i].len() + before(i);
            Array::new(7 + i as u32, types[i], &[count], Map::dense(&[0].into()), |_| f64::NAN)
        })
        .collect();

    let result = |storage: u32, shape: &[usize]| {
        let shape: Shape = shape.into();
        Tensor { storage, dtype: c.dtype, map: c.written(&shape), shape }
    };
    let scale = Num::Const(Scalar::Float(c.scale));
    let mask_tensor = mask.as_ref().map(|m| m.tensor.clone());
    let work = match backward {
        true => Work::AttentionGrad(Box::new(AttentionGrad {
            causal: c.causal,
            q: q.tensor.clone(),
            k: k.tensor.clone(),
            v: v.tensor.clone(),
            out: out.tensor.clone(),
            lse: lse.tensor.clone(),
            dout: dout.tensor.clone(),
            scale,
            mask: mask_tensor,
            dq: result(7, &shapes[0]),
            dk: result(8, &shapes[1]),
            dv: result(9, &shapes[2]),
        })),
        false => Work::Attention(Box::new(Attention {
            causal: c.causal,
            q: q.tensor.clone(),
            k: k.tensor.clone(),
            v: v.tensor.clone(),
            scale,
            mask: mask_tensor,
            out: result(7, &shapes[3]),
            lse: 8,
        })),
    };
    let storage = Storage { bytes: 0, place: Place::Input(0), reuse: None };
    let steps = vec![Step { instr: 0, fused: Default::default(), work }];
    let plan = Plan { storages: vec![storage; 10], steps, outs: vec![], arena: 0 };
    let work = &plan.steps[0].work;
    let special = |hopper, blocks| attention::special(work, &plan, Target { hopper, blocks });
    let launches = match kernels {
        Kernels::Plain => attention::simple(work, &plan),
        Kernels::Made => attention::special(work, &plan, Target::default()),
        Kernels::Large => special(false, 1),
        Kernels::Hopper => special(true, 1),
    };
    let launches = launches.expect("launches for attention");

    // Memory starts at multiples of 16 bytes.
    let mut memory: Vec<Vec<u128>> = Vec::new();
    let mut keep = |bytes: &[u64]| {
        let mut words = vec![u128::MAX; bytes.len() / 2 + 2];
        // SAFETY: there is room for all of the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
        memory.push(words);
        memory.last().unwrap().as_ptr() as u64
    };
    let mut addresses = vec![0; 10];
    for array in [&q, &k, &v, &out, &dout, &lse].into_iter().chain(&mask).chain(&results) {
        addresses[array.tensor.storage as usize] = keep(&array.bytes);
    }
    let scratch = keep(&vec![u64::MAX; launches.scratch / 8 + 2]);
    for launch in &launches.list {
        let most = if kernels == Kernels::Hopper { 227 << 10 } else { 99 << 10 };
        assert!(launch.shared <= most, "{}: more than such a device has", launch.shared);
        host::run(launch, attention::PLAIN, &addresses, scratch);
    }
    for (i, result) in results.iter_mut().enumerate() {
        let n = result.bytes.len();
        let from = addresses[7 + i] as *const u64;
        // SAFETY: the address is that of the copy made above, which is as long.
        unsafe { std::ptr::copy_nonoverlapping(from, result.bytes.as_mut_ptr(), n) };
        let mut got = result.read(types[i], wants[i].len() + before(i)).split_off(before(i));
        let shape = &shapes[if backward { i } else { 3 }];
        if c.turned && (backward || i == 0) {
            got = c.turned_back(&got, shape);
        }
        let what = if backward { ["dq", "dk", "dv"][i] } else { ["out", "lse"][i] };
        compare(c, what, &got, &wants[i], kernels);
    }
}
