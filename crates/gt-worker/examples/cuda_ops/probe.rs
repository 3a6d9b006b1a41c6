//! What cuDNN can do here: which graphs it takes, by which engines, with how much memory, how fast, and whether twice alike.

use crate::Res;
use crate::device::{Device, Memory};
use crate::numbers::Rng;
use gt_worker::backends::cuda::cudnn::graph::{self, For, Graph, Lay, Plan, Type};
use gt_worker::backends::cuda::cudnn::sdpa::{Sdpa, Sums, id};
use gt_worker::backends::cuda::cudnn::{Handle, api, in_order, spelled};
use std::ffi::c_void;
use std::time::Instant;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    of: Type,
    b: i64,
    h: i64,
    g: i64,
    rows: i64,
    cols: i64,
    d: i64,
    causal: bool,
}

/// Heads inside of rows, as a projection leaves them.
fn lay(b: i64, h: i64, s: i64, d: i64) -> Lay {
    Lay { dims: [b, h, s, d], strides: [s * h * d, d, h * d, 1] }
}

fn sdpa(s: &Sizes, grad: bool) -> Sdpa {
    let (q, k) = (lay(s.b, s.h, s.rows, s.d), lay(s.b, s.g, s.cols, s.d));
    let out = Lay::dense(q.dims);
    Sdpa {
        of: s.of,
        causal: s.causal,
        q,
        k,
        v: k,
        out,
        grad: grad.then(|| [q, Lay::dense(q.dims), Lay::dense(k.dims), Lay::dense(k.dims)]),
    }
}

fn list() -> Vec<Sizes> {
    let base = Sizes { of: Type::BF16, b: 8, h: 16, g: 8, rows: 1024, cols: 1024, d: 128, causal: true };
    let mut out = vec![base, Sizes { causal: false, ..base }];
    out.extend([32, 64, 96, 192, 256].map(|d| Sizes { d, ..base }));
    out
}

/// On a device, or where there is none for one whose properties are in a file, as this prints them elsewhere.
pub fn all(device: Option<&Device>, file: &str) -> Res<()> {
    let api = api()?;
    println!("cudnn {}", spelled(api.version()));
    match device {
        Some(device) => on_device(device),
        None => {
            let json = std::fs::read_to_string(file)?;
            let properties = graph::device_from(&json)?;
            for s in list() {
                for (name, sdpa, sums) in variants(&s) {
                    println!("{s:?} {name}");
                    show(&sdpa, sums, &For::Properties(&properties));
                }
            }
            Ok(())
        }
    }
}

fn variants(s: &Sizes) -> [(&'static str, Sdpa, Option<Sums>); 3] {
    [
        ("forward", sdpa(s, false), None),
        ("backward kept", sdpa(s, true), Some(Sums::Kept)),
        ("backward added", sdpa(s, true), Some(Sums::Added)),
    ]
}

fn build(sdpa: &Sdpa, sums: Option<Sums>, device: &For) -> Res<Graph> {
    let ops = match sums {
        None => sdpa.forward()?,
        Some(sums) => sdpa.backward(sums)?,
    };
    Ok(Graph::new(&ops, device)?)
}

/// All ways, with what is known of them; those that work.
fn show(sdpa: &Sdpa, sums: Option<Sums>, device: &For) -> Vec<Plan> {
    let graph = match build(sdpa, sums, device) {
        Ok(graph) => graph,
        Err(error) => {
            println!("    no graph: {error}");
            return vec![];
        }
    };
    let start = Instant::now();
    let configs = match graph.configs(device) {
        Ok(configs) => configs,
        Err(error) => {
            println!("    no heuristics: {error}");
            return vec![];
        }
    };
    println!("    {} ways in {:.1} ms", configs.len(), start.elapsed().as_secs_f64() * 1e3);
    let mut first = vec![];
    if let (Some(Sums::Kept), Ok(api)) = (sums, api()) {
        let (engine, knobs) = in_order(api.version(), sdpa.q.dims[3]);
        let made = graph.config(engine, &knobs, device).and_then(|config| graph.try_config(config, device));
        println!("    in order by engine {engine}: workspace {:?}", made.map(|(plan, _)| plan.workspace));
    }
    for config in configs.into_iter().take(3) {
        let start = Instant::now();
        let tried = graph.try_config(config, device);
        let took = start.elapsed().as_secs_f64() * 1e3;
        match tried {
            Ok((plan, notes)) => {
                println!(
                    "    engine {} notes {notes:?} workspace {} in {took:.1} ms",
                    plan.engine, plan.workspace
                );
                let start = Instant::now();
                match plan.written() {
                    Ok(text) => {
                        let written = start.elapsed().as_secs_f64() * 1e3;
                        let start = Instant::now();
                        let again = Plan::read(&text, device);
                        let took = start.elapsed().as_secs_f64() * 1e3;
                        let again = again.map(|plan| plan.workspace);
                        println!(
                            "    written: {} bytes in {written:.1} ms, read in {took:.1} ms: {again:?}",
                            text.len()
                        );
                    }
                    Err(error) => println!("    not written: {error}"),
                }
                first.push(plan);
            }
            Err(error) => println!("    {error} in {took:.1} ms"),
        }
    }
    first
}

fn on_device(device: &Device) -> Res<()> {
    match graph::properties(0) {
        Ok(json) => println!("properties {json}"),
        Err(error) => println!("no properties: {error}"),
    }
    let start = Instant::now();
    let handle = Handle::open()?;
    println!("opened in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    for s in list() {
        for (name, sdpa, sums) in variants(&s) {
            println!("{s:?} {name}");
            for plan in handle.with(|raw| show(&sdpa, sums, &For::Handle(raw))) {
                if let Err(error) = run(device, &handle, &s, &plan, sums) {
                    println!("    FAIL {error}");
                }
            }
        }
    }
    Ok(())
}

fn run(device: &Device, handle: &Handle, s: &Sizes, plan: &Plan, sums: Option<Sums>) -> Res<()> {
    let mut rng = Rng(88172645463325252);
    let (queries, keys) = ((s.b * s.h * s.rows * s.d) as usize, (s.b * s.g * s.cols * s.d) as usize);
    let mut fill = |n: usize| -> Res<Memory> {
        let bytes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let x = 2.0 * rng.number();
                match s.of {
                    Type::F16 => half::f16::from_f64(x).to_ne_bytes(),
                    _ => half::bf16::from_f64(x).to_ne_bytes(),
                }
            })
            .collect();
        device.holding(&bytes)
    };
    let (q, k, v, dout, out) = (fill(queries)?, fill(keys)?, fill(keys)?, fill(queries)?, fill(queries)?);
    let rows = (s.b * s.h * s.rows) as usize;
    let (lse, delta) = (device.holding(&vec![0; 4 * rows])?, device.memory(4 * rows)?);
    let (dq, dk, dv) = (device.memory(2 * queries)?, device.memory(2 * keys)?, device.memory(2 * keys)?);
    let added = device.memory(4 * queries)?;
    let workspace = device.memory(plan.workspace)?;
    let numbers = [0.125f32, f32::NEG_INFINITY, 1.0];
    let mut given: Vec<(i64, u64)> = vec![(id::Q, q.address), (id::K, k.address), (id::V, v.address)];
    given.extend([(id::OUT, out.address), (id::LSE, lse.address)]);
    if sums.is_some() {
        given.extend([(id::DOUT, dout.address), (id::DQ, dq.address), (id::DK, dk.address)]);
        given.extend([(id::DV, dv.address), (id::DELTA, delta.address)]);
        given.push((id::ONE, &numbers[2] as *const f32 as u64));
    }
    if sums == Some(Sums::Added) {
        given.push((id::DQ_SUMS, added.address));
    }
    given.push((id::SCALE, &numbers[0] as *const f32 as u64));
    if s.causal {
        given.push((id::LEAST, &numbers[1] as *const f32 as u64));
    }
    let ids: Vec<i64> = given.iter().map(|g| g.0).collect();
    let pointers: Vec<*mut c_void> = given.iter().map(|g| g.1 as *mut c_void).collect();
    let once = || -> Res<()> {
        // SAFETY: the memory is as the graph says and stays until the wait below.
        unsafe { handle.run(plan, &ids, &pointers, workspace.address, device.stream.cu_stream())? };
        Ok(())
    };
    once()?;
    device.stream.synchronize()?;
    let results = || -> Res<[Vec<u8>; 3]> {
        Ok(match sums {
            None => [out.read()?, lse.read()?, vec![]],
            Some(_) => [dq.read()?, dk.read()?, dv.read()?],
        })
    };
    let first = results()?;
    let mut alike = [true; 3];
    for _ in 0..10 {
        once()?;
        device.stream.synchronize()?;
        for (alike, (a, b)) in alike.iter_mut().zip(results()?.iter().zip(&first)) {
            *alike &= a == b;
        }
    }
    let seconds = device.time(20, once)?;
    let host = Instant::now();
    (0..20).try_for_each(|_| once())?;
    let host = host.elapsed().as_secs_f64() / 20.0;
    device.stream.synchronize()?;
    let pairs = (s.rows * s.cols) as f64 * if s.causal { 0.5 } else { 1.0 };
    let product = 2.0 * (s.b * s.h * s.d) as f64 * pairs;
    let products = if sums.is_some() { 5.0 } else { 2.0 };
    let rate = products * product / seconds / 1e12;
    println!(
        "    engine {}: {:.1} us {rate:.0} TFLOP/s, host {:.1} us, alike {alike:?}",
        plan.engine,
        seconds * 1e6,
        host * 1e6
    );
    Ok(())
}
