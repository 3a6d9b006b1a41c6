//! Matrix products by cuBLASLt.

use crate::device::Device;
use crate::numbers::{Array, Rng, distance};
use crate::{Report, Res};
use gt_compiler::{Map, Matmul, Place, Plan, Storage, Strides, Tensor};
use gt_ir::{DType, Scalar, Shape, Slot};
use gt_worker::backends::cuda::matmul::Blas;

pub fn all(device: &Device, report: &mut Report) -> Res<()> {
    let blas = Blas::new(device.context(), &device.name()?, || Ok(()))?;
    small(device, &blas, report);
    for (name, dtype, tf32) in
        [("f32", DType::F32, false), ("tf32", DType::F32, true), ("bf16", DType::BF16, false)]
    {
        for n in [4096, 8192, 16384] {
            report.line(&format!("matmul {name} {n}"), || timed(device, &blas, n, dtype, tf32));
        }
    }
    Ok(())
}

/// Random products of small sizes, with every kind of map and bias.
fn small(device: &Device, blas: &Blas, report: &mut Report) {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let name = format!("matmul {dtype}, small, 60 maps and biases");
        report.line(&name, || {
            let mut worst = 0f64;
            for seed in 0..60 {
                let error = one(device, blas, dtype, seed).map_err(|e| format!("seed {seed}: {e}"))?;
                worst = worst.max(error);
            }
            let limit = match dtype {
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
                DType::F32 => 1e-6,
                DType::F64 => 1e-14,
                _ => 0.0,
            };
            match worst <= limit {
                true => Ok(format!("off by {worst:.1e}")),
                false => Err(format!("off by {worst:.1e}, expected at most {limit:.1e}").into()),
            }
        });
    }
}

/// A tensor by some legal map, and how many elements its storage has.
fn tensor(rng: &mut Rng, storage: u32, dtype: DType, shape: &[usize], plain: bool) -> (Tensor, usize) {
    let shape: Shape = shape.into();
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if rng.below(2) == 0 && !plain {
        (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
    }
    let mut strides = Strides::from_elem(0, shape.len());
    let (mut step, mut offset) = (1, 0);
    for &d in order.iter().rev() {
        if rng.below(5) == 0 && !plain {
            continue;
        }
        strides[d] = step * if rng.below(6) == 0 && !plain { 2 } else { 1 };
        step = strides[d] * shape[d].max(1) as isize;
        if rng.below(9) == 0 && !plain {
            offset += strides[d] * (shape[d].max(1) as isize - 1);
            strides[d] = -strides[d];
        }
    }
    let slots = if rng.below(3) == 0 { [(0u32, 2isize)].into_iter().collect() } else { Default::default() };
    let start = rng.below(3) as isize;
    let map = Map { strides, offset: offset + start, slots };
    (Tensor { storage, dtype, shape, map }, (step + start) as usize + 20)
}

/// One random product; how far off it is.
fn one(device: &Device, blas: &Blas, dtype: DType, seed: u64) -> Res<f64> {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let mut size = |most: usize| if rng.below(15) == 0 { 0 } else { 1 + rng.below(most) };
    let most = if seed.is_multiple_of(3) { 130 } else { 9 };
    let (m, n, k) = (size(most), size(most), size(most));
    let batch: Vec<usize> = (0..rng.below(4)).map(|_| 1 + rng.below(3)).collect();
    let with = |r, c| batch.iter().copied().chain([r, c]).collect::<Vec<usize>>();
    let plain = seed.is_multiple_of(4);
    let (a, len_a) = tensor(&mut rng, 0, dtype, &with(m, k), plain);
    let (b, len_b) = tensor(&mut rng, 1, dtype, &with(k, n), plain);
    let (mut c, len_c) = tensor(&mut rng, 2, dtype, &with(m, n), plain);
    if rng.below(2) == 0 {
        let rank = c.map.strides.len();
        c.map.strides[rank - 2] = 0; // A number for each column.
    }
    let bias = (rng.below(2) == 0).then_some(c);
    let out_len = batch.iter().product::<usize>() * m * n;
    let storage = |len: usize| Storage { bytes: len * dtype.size(), place: Place::Input(0), reuse: None };
    let storages = [len_a, len_b, len_c, out_len].map(storage).to_vec();
    let plan = Plan { storages, steps: vec![], outs: vec![], arena: 0 };
    let mm = Matmul {
        batch: batch.as_slice().into(),
        m,
        rows: m,
        n,
        k,
        a,
        b,
        bias,
        residual: None,
        relu: false,
        tf32: false,
        out: 3,
    };
    let slots = [Slot::Num(Scalar::Int(rng.below(5) as i64))];
    let whole = !dtype.is_float();
    let mut fill = |len: usize| {
        Array::new(dtype, len, |_| if whole { (rng.number() * 8.0).trunc() } else { rng.number() })
    };
    let arrays = [fill(len_a), fill(len_b), fill(len_c)];
    let mut memory = arrays.iter().map(|a| device.holding(&a.bytes)).collect::<Res<Vec<_>>>()?;
    memory.push(device.memory(out_len * dtype.size())?);
    let addresses: Vec<u64> = memory.iter().map(|m| m.address).collect();

    let prepared = blas.prepare(&mm, &plan)?;
    let workspace = device.memory(prepared.workspace())?;
    device.launch(prepared.before(), &addresses, &slots, workspace.address)?;
    prepared.enqueue(device.stream.cu_stream(), &addresses, &slots, workspace.address)?;
    let got = Array { dtype, bytes: memory[3].read()? };

    let element = |t: &Tensor, index: &[usize]| {
        let moved: isize = index.iter().zip(&t.map.strides).map(|(&i, &s)| i as isize * s).sum();
        arrays[t.storage as usize].get((t.map.offset(&slots) + moved) as usize)
    };
    let want = (0..out_len).map(|i| {
        let (mut rest, mut index) = (i / (m * n), vec![0; batch.len()]);
        for d in (0..batch.len()).rev() {
            index[d] = rest % batch[d];
            rest /= batch[d];
        }
        let at = |r, c| index.iter().copied().chain([r, c]).collect::<Vec<usize>>();
        let (row, col) = (i / n % m, i % n);
        let added = mm.bias.as_ref().map_or(0.0, |t| element(t, &at(row, col)));
        let sum =
            (0..k).map(|l| element(&mm.a, &at(row, l)) * element(&mm.b, &at(l, col))).sum::<f64>() + added;
        // Integers wrap around.
        match dtype {
            DType::U8 => sum as i64 as u8 as f64,
            DType::I8 => sum as i64 as i8 as f64,
            DType::I16 => sum as i64 as i16 as f64,
            _ => sum,
        }
    });
    Ok(distance((0..out_len).map(|i| got.get(i)).zip(want)))
}

/// A square product, many times over.
fn timed(device: &Device, blas: &Blas, n: usize, dtype: DType, tf32: bool) -> Res<String> {
    let dense = |storage| {
        let shape: Shape = [n, n].into();
        Tensor { storage, dtype, map: Map::dense(&shape), shape }
    };
    let (a, b) = (dense(0), dense(1));
    let mm = Matmul {
        batch: Shape::scalar(),
        m: n,
        rows: n,
        n,
        k: n,
        a,
        b,
        bias: None,
        residual: None,
        relu: false,
        tf32,
        out: 2,
    };
    let storage = Storage { bytes: n * n * dtype.size(), place: Place::Input(0), reuse: None };
    let plan = Plan { storages: vec![storage; 3], steps: vec![], outs: vec![], arena: 0 };
    let mut rng = Rng(12345);
    let row = Array::new(dtype, n + 997, |_| rng.number());
    // Random rows, each of them shifted: enough to keep the device from saving power on zeros.
    let mut bytes = Vec::with_capacity(n * n * dtype.size());
    for i in 0..n {
        let from = (i * 7 % 997) * dtype.size();
        bytes.extend_from_slice(&row.bytes[from..from + n * dtype.size()]);
    }
    let memory = [device.holding(&bytes)?, device.holding(&bytes)?, device.memory(bytes.len())?];
    let addresses: Vec<u64> = memory.iter().map(|m| m.address).collect();
    let prepared = blas.prepare(&mm, &plan)?;
    let workspace = device.memory(prepared.workspace())?;
    let times = if n > 8192 { 10 } else { 30 };
    let stream = device.stream.cu_stream();
    let seconds =
        device.time(times, || Ok(prepared.enqueue(stream, &addresses, &[], workspace.address)?))?;
    let tflops = 2.0 * (n as f64).powi(3) / seconds / 1e12;
    Ok(format!("{:.3} ms, {tflops:.0} TFLOP/s, workspace {}", seconds * 1e3, prepared.workspace()))
}
