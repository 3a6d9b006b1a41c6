//! What a device does in a second, measured in a few milliseconds before its worker registers: the planner's costs.

use crate::backend::{Backend, Buffer, Effort, HostBytes};
use crate::backends::cpu::threads::cores;
use gt_ir::{Arg, Binary, DType, Input, Instr, Op, Result, Structure, Ty};
use gt_net::msg::Speed;
use gt_sync::{Condvar, Mutex};
use smallvec::smallvec;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The size of the matrices that are multiplied.
const MATRIX: usize = 256;
/// The numbers that are added.
const NUMBERS: usize = 1 << 20;
/// The best of so many runs counts: others may be at work on the same cores.
const RUNS: usize = 4;
/// How often two threads wake each other.
const TURNS: usize = 16;

/// Speeds that were measured in this process, by the device in words.
type Known = Mutex<Vec<(String, Speed)>>;

/// The speed of a device. One that is like another of this process is not measured again.
pub fn of(backend: &dyn Backend) -> Speed {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    // Others are described by what their kind does: a GPU is not warmed up for a question that may never be asked.
    if backend.name() != "cpu" {
        return Speed::default();
    }
    let mut known = KNOWN.get_or_init(Known::default).lock();
    let device = backend.device();
    if let Some((_, speed)) = known.iter().find(|(name, _)| *name == device) {
        return *speed;
    }
    let speed = measure(backend).unwrap_or_default();
    // Users read the peak as what their tensors needed.
    backend.reset_peak();
    known.push((device, speed));
    speed
}

fn measure(backend: &dyn Backend) -> Result<Speed> {
    let matrix = Ty::new(DType::F32, [MATRIX, MATRIX]);
    let product = Op::Matmul { ta: false, tb: false, tf32: false };
    let flops = 2.0 * (MATRIX * MATRIX * MATRIX) as f64 / seconds(backend, product, &matrix)?;
    let numbers = Ty::new(DType::F32, [NUMBERS]);
    let bytes = 3.0 * numbers.bytes() as f64;
    let memory = bytes / seconds(backend, Op::Binary(Binary::Add), &numbers)?;
    let which = cores();
    let place = foldhash::quality::FixedState::default().hash_one(&which);
    let cores = which.len().max(1) as u32;
    Ok(Speed { flops: about(flops), memory: about(memory), wake: about(wake()), cores, place })
}

/// The nearest power of the fourth root of two: what was measured twice is mostly the same number.
fn about(x: f64) -> f64 {
    2f64.powf((x.log2() * 4.0).round() / 4.0)
}

/// The least time that an op on two such operands takes.
fn seconds(backend: &dyn Backend, op: Op, ty: &Ty) -> Result<f64> {
    let input = || Input { ty: ty.clone(), dies: false };
    let structure = Arc::new(Structure {
        inputs: vec![input(), input()],
        instrs: vec![Instr { op, args: smallvec![Arg::Value(0), Arg::Value(1)] }],
        outs: vec![2],
        ..Structure::default()
    });
    let plan = backend.compile(&structure, &structure.check()?, Effort::Quick)?;
    let zeros = || HostBytes::Owned(Arc::new(vec![0; ty.bytes()]));
    let (x, y): (Buffer, Buffer) = (backend.upload(ty, zeros())?, backend.upload(ty, zeros())?);
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        plan.run(&mut vec![x.clone(), y.clone()], &[]).map_err(|failed| failed.error)?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least.max(1e-9))
}

/// Seconds from waking a thread that sleeps to its running, on average: half of the way there and back.
fn wake() -> f64 {
    let turn = (Mutex::new(0u32), Condvar::new());
    let wait = |mine: u32| {
        let mut now = turn.0.lock();
        while *now % 2 != mine && *now < u32::MAX {
            turn.1.wait_for(&mut now, Duration::from_millis(5));
        }
        *now += 1;
        turn.1.notify_all();
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..TURNS).for_each(|_| wait(1)));
        (0..TURNS).for_each(|_| wait(0));
    });
    start.elapsed().as_secs_f64() / (2 * TURNS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends;

    #[test]
    fn a_processor_is_measured_in_numbers_that_can_be() {
        let backend = backends::open("cpu", Some(1)).unwrap();
        let speed = of(&*backend);
        assert!(speed.flops > 1e7 && speed.flops < 1e14, "{speed:?}");
        assert!(speed.memory > 1e7 && speed.memory < 1e13, "{speed:?}");
        assert!(speed.wake > 0.0 && speed.wake < 1.0 && speed.cores > 0, "{speed:?}");
        assert_eq!(of(&*backend), speed, "what is known is not measured again");
        assert_eq!(backend.memory_in_use(), (0, 0), "measuring is no peak of anybody's");
    }

    #[test]
    fn what_was_not_measured_is_zero() {
        let reference = backends::open("reference", None).unwrap();
        assert_eq!(of(&*reference), Speed::default());
    }
}
