//! Microseconds of attention as one step, forward and backward, against products and a softmax of the same sizes
//! interleaved in one run. `cargo run --release -p gt-worker --example cpu_attention`; `THREADS=1` for one thread, by
//! its own time.

use gt_ir::program::{Arg, Input, Instr};
use gt_ir::{Binary, DType, Op, Scalar, Structure, Ty};
use gt_worker::backend::{Backend, Effort, HostBytes};
use gt_worker::backends::cpu::CpuBackend;
use gt_worker::backends::cpu::attention::{Attention, Gradient, Sizes, View, backward, forward};
use gt_worker::backends::cpu::threads::Threads;
use std::sync::Arc;
use std::time::Duration;

/// Time of the machine, or of this thread alone.
fn now(alone: bool) -> Duration {
    let clock = if alone { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` alone.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn view(memory: &mut [f32], h: usize, t: usize, w: usize) -> View {
    let strides = [h * t * w, w, h * w, 1].map(|s| s as isize);
    View { at: memory.as_mut_ptr() as *mut u8, dtype: DType::F32, strides }
}

fn main() {
    let count: usize = std::env::var("THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(2);
    let threads = Threads::new(count);
    let backend = CpuBackend::new(Some(count as u32));
    println!("{}", backend.device());
    println!("{:36} {:>10} {:>10} {:>12} {:>8}", "", "forward", "backward", "three steps", "ratio");
    let cases = [
        (2, 4, 2, 128, 128, 16, true),
        (4, 8, 4, 128, 128, 32, true),
        (16, 4, 4, 128, 128, 32, true),
        (4, 8, 8, 128, 128, 64, false),
        (1, 8, 8, 1024, 1024, 64, true),
        (1, 8, 8, 1024, 1024, 64, false),
        (1, 4, 2, 1, 256, 16, false),
        (1, 16, 8, 1, 4096, 128, false),
    ];
    let only: Option<usize> = std::env::args().nth(1).and_then(|t| t.parse().ok());
    for (i, (b, h, kv, t, s, d, causal)) in cases.into_iter().enumerate() {
        if only.is_some_and(|only| only != i) {
            continue;
        }
        let make =
            |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect() };
        let (mut q, mut k, mut v) = (make(b * h * t * d), make(b * kv * s * d), make(b * kv * s * d));
        let (mut out, mut grad) = (make(b * h * t * d), make(b * h * t * d));
        let (mut dq, mut dk, mut dv) = (q.clone(), k.clone(), v.clone());
        let mut lse = make(b * h * t);
        let x = Attention {
            sizes: Sizes { batch: b, heads: h, kv_heads: kv, queries: t, keys: s, width: d, value_width: d },
            scale: 1.0 / (d as f64).sqrt(),
            causal,
            mask: None,
            q: view(&mut q, h, t, d),
            k: view(&mut k, kv, s, d),
            v: view(&mut v, kv, s, d),
        };
        let strides = [h * t, t, 1, 1].map(|s| s as isize);
        let lse = View { at: lse.as_mut_ptr() as *mut u8, dtype: DType::F32, strides };
        let out = view(&mut out, h, t, d);
        let g = Gradient {
            out,
            lse,
            grad: view(&mut grad, h, t, d),
            dq: view(&mut dq, h, t, d),
            dk: view(&mut dk, kv, s, d),
            dv: view(&mut dv, kv, s, d),
        };
        // The same without groups, mask or gaps: a product, a factor, a softmax, a product.
        let types = [[b * h, t, d], [b * h, s, d], [b * h, s, d]].map(|dims| Ty::new(DType::F32, dims));
        let factor = Arg::Const(Scalar::Float(x.scale));
        let steps = vec![
            (Op::Matmul { ta: false, tb: true, tf32: false }, vec![Arg::Value(0), Arg::Value(1)]),
            (Op::Binary(Binary::Mul), vec![Arg::Value(3), factor]),
            (Op::Softmax { dim: 2 }, vec![Arg::Value(4)]),
            (Op::Matmul { ta: false, tb: false, tf32: false }, vec![Arg::Value(5), Arg::Value(2)]),
        ];
        let structure = Arc::new(Structure {
            inputs: types.iter().map(|ty| Input { ty: ty.clone(), dies: false }).collect(),
            instrs: steps.into_iter().map(|(op, args)| Instr { op, args: args.into() }).collect(),
            outs: vec![6],
            slots: 0,
            ..Default::default()
        });
        let plan = backend
            .compile(&structure, &structure.check().expect("well formed"), Effort::Quick)
            .expect("compiles");
        let inputs = types.map(|ty| {
            let bytes: Vec<u8> = make(ty.bytes() / 4).iter().flat_map(|x| x.to_ne_bytes()).collect();
            backend.upload(&ty, HostBytes::Owned(Arc::new(bytes))).expect("fits")
        });
        let mut best = [f64::MAX; 3];
        let start = now(false);
        while (now(false) - start).as_secs_f64() < 0.8 {
            let mut time = |i: usize, f: &mut dyn FnMut()| {
                let start = now(count == 1);
                f();
                best[i] = best[i].min((now(count == 1) - start).as_secs_f64());
            };

            time(0, &mut || forward(&x, out, Some(lse), &threads));
            time(1, &mut || backward(&x, &g, &threads));
            time(2, &mut || drop(plan.run(&mut inputs.to_vec(), &[]).expect("runs")));
        }
        let [f, w, three] = best.map(|t| t * 1e6);
        let name = format!("{b} x {h}/{kv} heads, {t} x {s} of {d}{}", if causal { ", causal" } else { "" });
        println!("{name:36} {f:8.1}us {w:8.1}us {three:10.1}us {:8.2}", f / three);
    }
}
