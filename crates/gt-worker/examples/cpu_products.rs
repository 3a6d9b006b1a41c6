//! GFLOP/s of the matrix products of training and decoding, each against the best rate of a large product in the same
//! run. `cargo run --release -p gt-worker --example cpu_products [filter]`; `THREADS=1` counts this thread's own time.

use gt_ir::program::{Arg, Input, Instr};
use gt_ir::{DType, Dist, Op, Scalar, Slot, Structure, Ty};
use gt_worker::backend::{Backend, Buffer, Effort};
use gt_worker::backends::cpu::CpuBackend;
use std::sync::Arc;
use std::time::Duration;

fn now(alone: bool) -> Duration {
    let clock = if alone { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` alone.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn structure(inputs: &[Ty], op: Op, args: Vec<Arg>, slots: u32) -> Arc<Structure> {
    Arc::new(Structure {
        inputs: inputs.iter().map(|ty| Input { ty: ty.clone(), dies: false }).collect(),
        instrs: vec![Instr { op, args: args.into() }],
        outs: vec![inputs.len() as u32],
        slots,
        ..Default::default()
    })
}

fn random(backend: &CpuBackend, ty: &Ty) -> Buffer {
    let op = Op::Random { dist: Dist::Normal, shape: ty.shape.clone(), dtype: ty.dtype };
    let s = structure(&[], op, vec![Arg::Slot(0), Arg::Slot(1)], 2);
    let slots = [Slot::Num(Scalar::Int(1)), Slot::Num(Scalar::Int(0))];
    let plan = backend.compile(&s, &s.check().expect("well formed"), Effort::Quick).expect("compiles");
    plan.run(&mut vec![], &slots).expect("runs").remove(0)
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let threads: Option<u32> = std::env::var("THREADS").ok().and_then(|t| t.parse().ok());
    let alone = threads == Some(1);
    let backend = CpuBackend::new(threads);
    println!("{}", backend.device());
    let mut cases = vec![(DType::F32, 1, 2048, 2048, 2048, false, false)];
    let linears = [
        (256, 64, 64),
        (256, 64, 128),
        (256, 128, 64),
        (256, 64, 1000),
        (512, 256, 256),
        (512, 256, 768),
        (512, 768, 256),
        (512, 256, 4096),
        (128, 784, 512),
        (128, 512, 512),
        (128, 512, 10),
        (2048, 128, 512),
        (1, 64, 128),
        (1, 256, 768),
        (1, 1024, 4096),
        (1, 4096, 4096),
        (4, 1024, 4096),
    ];
    for (m, k, n) in linears {
        cases.push((DType::F32, 1, m, k, n, false, true));
        cases.push((DType::F32, 1, m, n, k, false, false));
        if m > 1 {
            cases.push((DType::F32, 1, n, m, k, true, false));
        }
    }
    for (b, m, k, n) in [(8, 128, 16, 128), (16, 128, 64, 128), (32, 32, 32, 32), (64, 8, 8, 8)] {
        cases.push((DType::F32, b, m, k, n, false, false));
        cases.push((DType::F32, b, m, k, n, false, true));
    }
    for dtype in [DType::F64, DType::BF16, DType::F16] {
        for (m, k, n) in [(1024, 1024, 1024), (256, 64, 128), (512, 256, 768), (1, 1024, 4096)] {
            cases.push((dtype, 1, m, k, n, false, false));
            cases.push((dtype, 1, m, k, n, false, true));
        }
    }
    let mut peak = 0.0;
    for (dtype, b, m, k, n, ta, tb) in cases {
        let kind = if ta {
            "ta"
        } else if tb {
            "tb"
        } else {
            ""
        };
        let name = format!("{dtype} {b}x{m}x{k}x{n} {kind}");
        if (m, k, n) != (2048, 2048, 2048) && !name.contains(&filter) {
            continue;
        }
        let at = Ty::new(dtype, if ta { [b, k, m] } else { [b, m, k] });
        let bt = Ty::new(dtype, if tb { [b, n, k] } else { [b, k, n] });
        let s = structure(
            &[at.clone(), bt.clone()],
            Op::Matmul { ta, tb, tf32: false },
            vec![Arg::Value(0), Arg::Value(1)],
            0,
        );
        let plan = backend.compile(&s, &s.check().expect("well formed"), Effort::Quick).expect("compiles");
        let inputs = [random(&backend, &at), random(&backend, &bt)];
        let (mut best, mut spent, mut runs) = (f64::MAX, 0.0, 0);
        while runs < 3 || (spent < 0.25 && runs < 4000) {
            let mut inputs = inputs.to_vec();
            let start = now(alone);
            let outs = plan.run(&mut inputs, &[]).expect("runs");
            let t = (now(alone) - start).as_secs_f64();
            drop(outs);
            best = best.min(t);
            spent += t;
            runs += 1;
        }
        let rate = 2.0 * (b * m * k * n) as f64 / best / 1e9;
        if peak == 0.0 {
            peak = rate;
        }
        let bytes = (b * (m * k + k * n + m * n) * dtype.size()) as f64 / best / 1e9;
        println!(
            "{name:28} {:9.1} us {rate:8.1} GFLOP/s {:5.2} of the large product {bytes:6.1} GB/s",
            best * 1e6,
            rate / peak
        );
    }
}
