//! Attention and its gradient: samples of the results against the host, and times.

use crate::device::{Device, Memory};
use crate::numbers::{Array, Rng, distance};
use crate::{Report, Res};
use gt_compiler::{Attention, AttentionGrad, Map, Num, Place, Plan, Step, Storage, Tensor, Work};
use gt_ir::{DType, Scalar, Shape};
use gt_kernels::Launches;
use gt_kernels::attention::{self, Target};
use gt_worker::backends::cuda::cudnn::{Attend, Cudnn, Wish};

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
    let cudnn = Cudnn::new(Wish::Cudnn, &device.name()?, device.arch());
    for sizes in [
        Sizes { rows: 256, cols: 256, ..base },
        Sizes { rows: 256, cols: 256, causal: false, d: 128, ..base },
        Sizes { rows: 256, cols: 256, dtype: DType::F16, d: 128, heads: 4, key_heads: 4, ..base },
        Sizes { rows: 200, cols: 384, d: 96, ..base },
        Sizes { rows: 300, cols: 256, d: 40, dtype: DType::F16, ..base },
        Sizes { rows: 256, cols: 256, d: 256, ..base },
        Sizes { rows: 333, cols: 128, d: 256, causal: false, ..base },
        Sizes { batch: 3, rows: 2048, cols: 2048, heads: 16, key_heads: 4, d: 64, ..base },
    ] {
        by_library(device, report, sizes, &cudnn);
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
        Data::repeating(device, s, usize::MAX)
    }

    /// The same numbers again and again, which are made sooner.
    fn repeating(device: &Device, s: &Sizes, period: usize) -> Res<Data> {
        let mut rng = Rng(88172645463325252);
        let (queries, keys) = (s.batch * s.heads * s.rows, s.batch * s.key_heads * s.cols);
        let mut fill = |len: usize| {
            let len = len * s.d;
            let mut array = Array::new(s.dtype, len.min(period), |_| 2.0 * rng.number());
            array.bytes = array.bytes.iter().copied().cycle().take(len * s.dtype.size()).collect();
            array
        };
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

/// Both passes by cuDNN; all of the gradient's slices where it takes several.
fn by_library(device: &Device, report: &mut Report, s: Sizes, cudnn: &Cudnn) {
    report.line(&format!("attention {} cudnn", s.name()), || {
        let data = Data::new(device, &s)?;
        let calls: Vec<usize> = library(&s, cudnn)?.iter().map(Attend::calls).collect();
        run_library(device, &data, &library(&s, cudnn)?)?;
        Ok(format!("{calls:?} calls, {}", verdict(&s, &judge(&s, &data, 40)?)?))
    });
}

/// Both passes made ready for cuDNN.
fn library(s: &Sizes, cudnn: &Cudnn) -> Res<Vec<Attend>> {
    let plan = s.plan();
    let of = |step: &Step| cudnn.prepare(&step.work, &plan).ok_or_else(|| "cudnn: no way to run it".into());
    plan.steps.iter().map(of).collect()
}

fn run_library(device: &Device, data: &Data, passes: &[Attend]) -> Res<Memory> {
    let bytes = passes.iter().map(Attend::workspace).max().unwrap_or(0);
    let workspace = device.memory(bytes)?;
    for pass in passes {
        pass.enqueue(device.stream.cu_stream(), &data.addresses(), &[], workspace.address)?;
    }
    device.stream.synchronize()?;
    Ok(workspace)
}

/// One table: kernels of ours and cuDNN's, both passes, in microseconds.
pub fn against(device: &Device) -> Res<()> {
    let cudnn = Cudnn::new(Wish::Cudnn, &device.name()?, device.arch());
    println!("microseconds: ours (without Hopper's products), cuDNN; forward, then backward; calls of cuDNN");
    for d in [64, 96, 128, 192, 256] {
        for (len, batch) in [(512, 16), (1024, 8), (2048, 4), (4096, 2), (8192, 1)] {
            for (causal, key_heads) in [(true, 8), (true, 16), (false, 8)] {
                let odd = d == 96 || d == 192;
                if !causal && len != 1024 || key_heads == 16 && len != 4096 || odd && len != 1024 {
                    continue;
                }
                let base = Sizes {
                    dtype: DType::BF16,
                    batch,
                    heads: 16,
                    key_heads,
                    rows: len,
                    cols: len,
                    d,
                    causal,
                };
                match row_of(device, &base, &cudnn) {
                    Ok(text) => println!("{:44} {text}", base.name()),
                    Err(error) => println!("{:44} FAIL {error}", base.name()),
                }
            }
        }
    }
    for (rows, cols, batch) in
        [(1000, 1000, 8), (128, 128, 8), (256, 256, 2), (512, 512, 1), (64, 4096, 2), (2048, 512, 4)]
    {
        for d in [64, 128, 256] {
            let s = Sizes {
                dtype: DType::BF16,
                batch,
                heads: 16,
                key_heads: 8,
                rows,
                cols,
                d,
                causal: rows == cols,
            };
            match row_of(device, &s, &cudnn) {
                Ok(text) => println!("{:44} {text}", s.name()),
                Err(error) => println!("{:44} FAIL {error}", s.name()),
            }
        }
    }
    Ok(())
}

fn row_of(device: &Device, s: &Sizes, cudnn: &Cudnn) -> Res<String> {
    let data = Data::repeating(device, s, 65521)?;
    let addresses = data.addresses();
    let plan = s.plan();
    let mut text = String::new();
    for i in 0..2 {
        let mut times = Vec::new();
        for kind in [Kind::Hopper, Kind::Made] {
            if kind == Kind::Hopper && !device.is_hopper() {
                continue;
            }
            let passes = launches(&plan, kind)?;
            let scratch = device.memory(passes[i].scratch)?;
            times.push(device.time(20, || device.launch(&passes[i], &addresses, &[], scratch.address))?);
        }
        let attend = cudnn.prepare(&plan.steps[i].work, &plan);
        let library = match &attend {
            None => "none".into(),
            Some(attend) => {
                let workspace = device.memory(attend.workspace())?;
                let stream = device.stream.cu_stream();
                let run = || Ok(attend.enqueue(stream, &addresses, &[], workspace.address)?);
                format!("{:.1} ({} calls)", device.time(20, run)? * 1e6, attend.calls())
            }
        };
        let ours: Vec<String> = times.iter().map(|t| format!("{:.1}", t * 1e6)).collect();
        text += &format!("{:18} {library:20} | ", ours.join(" "));
    }
    Ok(text)
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
