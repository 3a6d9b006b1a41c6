//! Attention and its gradient: samples of the results against the host, and times.

use crate::device::{Device, Memory};
use crate::numbers::{Array, Rng, distance};
use crate::{Report, Res};
use gt_compiler::{Attention, AttentionGrad, Map, Num, Place, Plan, Step, Storage, Tensor, Work};
use gt_ir::{DType, Scalar, Shape};
use gt_kernels::Launches;
use gt_kernels::attention::{self, Target};

/// The sizes of one attention; heads lie inside of rows, as a projection leaves them.
#[derive(Clone, Copy)]
struct Sizes {
    dtype: DType,
    batch: usize,
    heads: usize,
    key_heads: usize,
    rows: usize,
    cols: usize,
    d: usize,
    causal: bool,
}

const SCALE: f64 = 0.125;

pub fn all(device: &Device, report: &mut Report) -> Res<()> {
    let base = Sizes {
        dtype: DType::BF16,
        batch: 2,
        heads: 4,
        key_heads: 2,
        rows: 200,
        cols: 200,
        d: 64,
        causal: true,
    };
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        for d in [16, 24, 40, 64, 80, 128, 192, 256] {
            small(device, report, Sizes { dtype, d, causal: d != 64, ..base });
        }
        small(device, report, Sizes { dtype, rows: 77, cols: 300, d: 33, ..base });
    }
    let qwen =
        Sizes { batch: 8, heads: 16, key_heads: 8, rows: 1024, cols: 1024, d: 128, causal: true, ..base };
    for sizes in [
        qwen,
        Sizes { causal: false, ..qwen },
        Sizes { batch: 2, rows: 4096, cols: 4096, ..qwen },
        Sizes { d: 64, ..qwen },
        Sizes { d: 256, batch: 4, ..qwen },
        Sizes { batch: 8, heads: 8, key_heads: 4, rows: 512, cols: 512, d: 64, ..qwen },
        Sizes { batch: 2, heads: 4, key_heads: 2, rows: 128, cols: 128, d: 16, ..qwen },
        Sizes { batch: 8, heads: 8, key_heads: 8, rows: 128, cols: 128, d: 64, ..qwen },
        Sizes { dtype: DType::F32, d: 64, ..qwen },
        Sizes { dtype: DType::F32, d: 128, ..qwen },
        Sizes { dtype: DType::F32, batch: 2, heads: 4, key_heads: 2, rows: 128, cols: 128, d: 16, ..qwen },
    ] {
        large(device, report, sizes, Kind::Made);
    }
    if device.is_hopper() {
        for sizes in [
            qwen,
            Sizes { causal: false, ..qwen },
            Sizes { batch: 2, rows: 4096, cols: 4096, ..qwen },
            Sizes { rows: 1000, cols: 999, dtype: DType::F16, ..qwen },
            Sizes { d: 64, ..qwen },
            Sizes { batch: 8, heads: 8, key_heads: 4, rows: 512, cols: 512, d: 64, ..qwen },
        ] {
            large(device, report, sizes, Kind::Hopper);
        }
    }
    Ok(())
}

impl Sizes {
    fn name(&self) -> String {
        let Sizes { dtype, batch, heads, key_heads, rows, cols, d, causal } = self;
        let causal = if *causal { " causal" } else { "" };
        format!("{dtype}{causal} {batch}x{heads}/{key_heads}x{rows}x{cols}x{d}")
    }

    /// A tensor [batch, heads, rows, d] of which a row's heads lie together.
    fn tensor(&self, storage: u32, heads: usize, rows: usize) -> Tensor {
        let shape: Shape = [self.batch, heads, rows, self.d].into();
        let map = Map::dense(&[self.batch, rows, heads, self.d].into()).permuted(&[0, 2, 1, 3]);
        Tensor { storage, dtype: self.dtype, shape, map }
    }

    fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Forward and backward as steps of a plan. Storages: q, k, v, out, lse, dout, dq, dk, dv.
    fn plan(&self) -> Plan {
        let [q, k, v] =
            [(0, self.heads, self.rows), (1, self.key_heads, self.cols), (2, self.key_heads, self.cols)]
                .map(|(s, heads, rows)| self.tensor(s, heads, rows));
        let dense = |storage, dtype, shape: &[usize]| {
            let shape: Shape = shape.into();
            Tensor { storage, dtype, map: Map::dense(&shape), shape }
        };
        let rows = [self.batch, self.heads, self.rows, self.d];
        let (out, lse) = (dense(3, self.dtype, &rows), dense(4, self.wide(), &rows[..3]));
        let dout = self.tensor(5, self.heads, self.rows);
        let scale = Num::Const(Scalar::Float(SCALE));
        let (causal, mask) = (self.causal, None);
        let forward = Attention {
            causal,
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
            scale,
            mask: mask.clone(),
            out: out.clone(),
            lse: 4,
        };
        let [dq, dk, dv] = [(6, &q), (7, &k), (8, &v)].map(|(s, t)| dense(s, self.dtype, &t.shape));
        let backward = AttentionGrad { causal, q, k, v, out, lse, dout, scale, mask, dq, dk, dv };
        let works = [Work::Attention(Box::new(forward)), Work::AttentionGrad(Box::new(backward))];
        let storage = Storage { bytes: 0, place: Place::Input(0), reuse: None };
        Plan {
            storages: vec![storage; 9],
            steps: works.into_iter().map(|work| Step { instr: 0, fused: Default::default(), work }).collect(),
            outs: vec![],
            arena: 0,
        }
    }
}

/// Operands on both sides.
struct Data {
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    memory: Vec<Memory>,
}

impl Data {
    fn new(device: &Device, s: &Sizes) -> Res<Data> {
        let mut rng = Rng(88172645463325252);
        let (queries, keys) = (s.batch * s.heads * s.rows, s.batch * s.key_heads * s.cols);
        let mut fill = |len: usize| Array::new(s.dtype, len * s.d, |_| 2.0 * rng.number());
        let (q, k, v, dout) = (fill(queries), fill(keys), fill(keys), fill(queries));
        let [row, col] = [queries * s.d * s.dtype.size(), keys * s.d * s.dtype.size()];
        let memory = vec![
            device.holding(&q.bytes)?,
            device.holding(&k.bytes)?,
            device.holding(&v.bytes)?,
            device.memory(row)?,
            device.memory(queries * s.wide().size())?,
            device.holding(&dout.bytes)?,
            device.memory(row)?,
            device.memory(col)?,
            device.memory(col)?,
        ];
        Ok(Data { q, k, v, dout, memory })
    }

    fn addresses(&self) -> Vec<u64> {
        self.memory.iter().map(|m| m.address).collect()
    }
}

/// A row of numbers at some place.
fn row(a: &Array, s: &Sizes, heads: usize, len: usize, [b, h, i]: [usize; 3], dense: bool) -> Vec<f64> {
    let at = if dense { (b * heads + h) * len + i } else { (b * len + i) * heads + h };
    (0..s.d).map(|x| a.get(at * s.d + x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Compares some rows of every result with the host's; how far off they are.
fn judge(s: &Sizes, data: &Data, samples: usize) -> Res<Vec<(&'static str, f64)>> {
    let read = |i: usize, dtype| -> Res<Array> { Ok(Array { dtype, bytes: data.memory[i].read()? }) };
    let (out, lse) = (read(3, s.dtype)?, read(4, s.wide())?);
    let (dq, dk, dv) = (read(6, s.dtype)?, read(7, s.dtype)?, read(8, s.dtype)?);
    let group = s.heads / s.key_heads;
    let q = |b, h, i| row(&data.q, s, s.heads, s.rows, [b, h, i], false);
    let dout = |b, h, i| row(&data.dout, s, s.heads, s.rows, [b, h, i], false);
    let k = |b, h, j| row(&data.k, s, s.key_heads, s.cols, [b, h, j], false);
    let v = |b, h, j| row(&data.v, s, s.key_heads, s.cols, [b, h, j], false);
    let seen = |i: usize| if s.causal { s.cols.min(i + 1) } else { s.cols };
    let mut pairs: [Vec<(f64, f64)>; 5] = Default::default();
    let mut rng = Rng(4711);
    for sample in 0..samples {
        let (b, h) = (rng.below(s.batch), rng.below(s.heads));
        let i = if sample == 0 { s.rows - 1 } else { rng.below(s.rows) };
        let (query, gradient) = (q(b, h, i), dout(b, h, i));
        let scores: Vec<f64> = (0..seen(i)).map(|j| SCALE * dot(&query, &k(b, h / group, j))).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|x| (x - top).exp()).sum();
        let (mut want, mut want_dq) = (vec![0.0; s.d], vec![0.0; s.d]);
        for (j, x) in scores.iter().enumerate() {
            let p = (x - top).exp() / sum;
            want.iter_mut().zip(v(b, h / group, j)).for_each(|(o, v)| *o += p * v);
        }
        let delta = dot(&gradient, &want);
        for (j, x) in scores.iter().enumerate() {
            let p = (x - top).exp() / sum;
            let ds = p * (dot(&gradient, &v(b, h / group, j)) - delta) * SCALE;
            want_dq.iter_mut().zip(k(b, h / group, j)).for_each(|(o, k)| *o += ds * k);
        }
        let place = [b, h, i];
        pairs[0].extend(row(&out, s, s.heads, s.rows, place, true).into_iter().zip(want));
        pairs[1].push((lse.get((b * s.heads + h) * s.rows + i), top + sum.ln()));
        pairs[2].extend(row(&dq, s, s.heads, s.rows, place, true).into_iter().zip(want_dq));
    }
    // Gradients of keys and values, from what the forward pass left of each row.
    for sample in 0..samples.div_ceil(4) {
        let (b, h) = (rng.below(s.batch), rng.below(s.key_heads));
        let j = if sample == 0 { 0 } else { rng.below(s.cols) };
        let (key, value) = (k(b, h, j), v(b, h, j));
        let (mut want_dk, mut want_dv) = (vec![0.0; s.d], vec![0.0; s.d]);
        for head in h * group..(h + 1) * group {
            for i in (0..s.rows).filter(|&i| j < seen(i)) {
                let (query, gradient) = (q(b, head, i), dout(b, head, i));
                let top = lse.get((b * s.heads + head) * s.rows + i);
                let p = (SCALE * dot(&query, &key) - top).exp();
                let delta = dot(&gradient, &row(&out, s, s.heads, s.rows, [b, head, i], true));
                let ds = p * (dot(&gradient, &value) - delta) * SCALE;
                want_dk.iter_mut().zip(&query).for_each(|(o, x)| *o += ds * x);
                want_dv.iter_mut().zip(&gradient).for_each(|(o, x)| *o += p * x);
            }
        }
        let place = [b, h, j];
        pairs[3].extend(row(&dk, s, s.key_heads, s.cols, place, true).into_iter().zip(want_dk));
        pairs[4].extend(row(&dv, s, s.key_heads, s.cols, place, true).into_iter().zip(want_dv));
    }
    let names = ["out", "lse", "dq", "dk", "dv"];
    Ok(names.into_iter().zip(pairs).map(|(name, p)| (name, distance(p.into_iter()))).collect())
}

/// What was found, or a failure if anything is off by more than its type explains.
fn verdict(s: &Sizes, found: &[(&str, f64)]) -> Res<String> {
    let limit = match s.dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-5,
        DType::F16 => 5e-3,
        _ => 3e-2,
    };
    let text: Vec<String> = found.iter().map(|(name, x)| format!("{name} {x:.0e}")).collect();
    let text = format!("off by {}", text.join(", "));
    let fine = found.iter().all(|(_, x)| *x <= limit);
    if fine { Ok(text) } else { Err(format!("{text}, expected at most {limit:.0e}").into()) }
}

/// Both passes by the launches given.
fn run(device: &Device, data: &Data, passes: &[Launches]) -> Res<Vec<Memory>> {
    let addresses = data.addresses();
    let mut scratches = Vec::new();
    for launches in passes {
        let scratch = device.memory(launches.scratch)?;
        device.launch(launches, &addresses, &[], scratch.address)?;
        scratches.push(scratch);
    }
    device.stream.synchronize()?;
    Ok(scratches)
}

/// Which kernels.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Simple,
    Made,
    /// With Hopper's own products.
    Hopper,
}

fn launches(plan: &Plan, kind: Kind) -> Res<Vec<Launches>> {
    let of = |step: &Step| match kind {
        Kind::Simple => attention::simple(&step.work, plan),
        Kind::Made => attention::special(&step.work, plan, Target::default()),
        Kind::Hopper => attention::special(&step.work, plan, Target { hopper: true, ..Target::default() }),
    };
    plan.steps.iter().map(|s| of(s).ok_or_else(|| "attention: no kernels for it".into())).collect()
}

fn small(device: &Device, report: &mut Report, s: Sizes) {
    for (name, kind) in [("simple", Kind::Simple), ("made", Kind::Made)] {
        report.line(&format!("attention {} {name}", s.name()), || {
            let data = Data::new(device, &s)?;
            run(device, &data, &launches(&s.plan(), kind)?)?;
            verdict(&s, &judge(&s, &data, 40)?)
        });
    }
}

fn large(device: &Device, report: &mut Report, s: Sizes, kind: Kind) {
    let name = if kind == Kind::Hopper { "hopper timed" } else { "timed" };
    report.line(&format!("attention {} {name}", s.name()), || {
        let data = Data::new(device, &s)?;
        let passes = launches(&s.plan(), kind)?;
        let scratches = run(device, &data, &passes)?;
        let right = verdict(&s, &judge(&s, &data, 12)?)?;
        let addresses = data.addresses();
        // Two products forward and five backward, of which half is seen where it is causal.
        let pairs = (s.rows * s.cols) as f64 * if s.causal { 0.5 } else { 1.0 };
        let product = 2.0 * (s.batch * s.heads * s.d) as f64 * pairs;
        let mut text = String::new();
        for (i, (name, products)) in [("forward", 2.0), ("backward", 5.0)].into_iter().enumerate() {
            let at = scratches[i].address;
            let seconds = device.time(20, || device.launch(&passes[i], &addresses, &[], at))?;
            let tflops = products * product / seconds / 1e12;
            text += &format!("{name} {:.1} us {tflops:.0} TFLOP/s, ", seconds * 1e6);
            if name == "backward" {
                for one in &passes[i].list {
                    let alone = Launches { list: vec![one.clone()], scratch: 0, zeroed: 0 };
                    let seconds = device.time(20, || device.launch(&alone, &addresses, &[], at))?;
                    text += &format!("{:.1} us, ", seconds * 1e6);
                }
            }
        }
        Ok(text + &right)
    });
}
