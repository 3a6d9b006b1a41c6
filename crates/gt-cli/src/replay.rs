//! `gt replay`: a saved program runs again, on any backend, and its numbers are compared with the reference's.

use gt_ir::host::HostTensor;
use gt_ir::{Error, Program, Result, Ty, bail};
use gt_worker::backend::{Effort, HostBytes};
use gt_worker::backends;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// A file written by gt.debug.save_program.
    file: PathBuf,
    /// The backend to run it on: auto, cuda, cpu or reference.
    #[arg(long, default_value = "auto")]
    backend: String,
    /// Print the program's text form.
    #[arg(long)]
    text: bool,
    /// Print how long each step of its plan takes, the best of this many runs.
    #[arg(long, value_name = "RUNS")]
    profile: Option<usize>,
}

/// The first bytes of a saved program; its checksum follows.
const MAGIC: &[u8] = b"GTprogram2\n";
/// The same of one without a checksum.
const UNCHECKED: &[u8] = b"GTprogram1\n";

/// Writes a program and its inputs, so that anyone can run it again.
pub fn save(path: &Path, program: &Program, inputs: &[Arc<Vec<u8>>]) -> Result<()> {
    let body =
        postcard::to_stdvec(&(program, inputs)).map_err(|e| Error::Runtime(format!("save_program: {e}")))?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(checksum(&body).to_le_bytes());
    bytes.extend(body);
    std::fs::write(path, bytes)
        .map_err(|e| Error::Value(format!("save_program: cannot write {}: {e}", path.display())))
}

/// Reads what `save` wrote.
pub fn load(path: &Path) -> Result<(Program, Vec<Arc<Vec<u8>>>)> {
    let bytes = std::fs::read(path)
        .map_err(|e| Error::Value(format!("replay: cannot read {}: {e}", path.display())))?;
    let damaged = |why: &dyn std::fmt::Display| {
        Error::Value(format!("replay: {} is damaged: {why}: save it again", path.display()))
    };
    let body = match (bytes.strip_prefix(MAGIC), bytes.strip_prefix(UNCHECKED)) {
        (Some(rest), _) => match rest.split_first_chunk::<8>() {
            Some((sum, body)) if checksum(body) == u64::from_le_bytes(*sum) => body,
            Some(_) => return Err(damaged(&"its checksum does not fit")),
            None => return Err(damaged(&"it ends early")),
        },
        (None, Some(body)) => body,
        (None, None) => bail!(
            Value,
            "replay: {} is no saved program, make one with gt.debug.save_program(path)",
            path.display()
        ),
    };
    postcard::from_bytes(body).map_err(|e| damaged(&e))
}

/// A number that another word anywhere changes: every step can be undone.
fn checksum(bytes: &[u8]) -> u64 {
    let start = bytes.len() as u64;
    bytes.chunks(8).fold(start, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

pub fn run(args: Args) -> Result<i32> {
    let (program, inputs) = load(&args.file)?;
    let types = program.structure.check()?;
    program.check_binding(&types)?;
    if inputs.len() != program.structure.inputs.len() {
        bail!(Value, "replay: {} inputs saved, {} expected", inputs.len(), program.structure.inputs.len());
    }
    if args.text {
        print!("{}", gt_ir::text::to_text(&program));
    }
    let hosts: Vec<HostTensor> = types
        .iter()
        .zip(&inputs)
        .map(|(ty, data)| {
            if data.len() != ty.bytes() {
                bail!(Value, "replay: an input of {ty} has {} bytes", data.len());
            }
            Ok(HostTensor { ty: ty.clone(), data: data.to_vec() })
        })
        .collect::<Result<_>>()?;
    if let Some(runs) = args.profile {
        return profile(&args.backend, &program, &types, &inputs, runs);
    }
    let backend = backends::open(&args.backend, None)?;
    let plan = backend.compile(&program.structure, &types, Effort::Quick)?;
    let mut buffers = Vec::new();
    for (ty, data) in types.iter().zip(&inputs) {
        buffers.push(backend.upload(ty, HostBytes::Owned(data.clone()))?);
    }
    let outs = plan.run(&mut buffers, &program.slots).map_err(|e| {
        e.error.map_message(|m| format!("instruction {:?} on {}: {m}", e.instr, backend.name()))
    })?;
    let expected = on_reference(&program, &hosts)?;
    let mut wrong = 0;
    println!(
        "{} instructions, {} inputs, {} results, key {:016x}, on {}",
        program.structure.instrs.len(),
        inputs.len(),
        outs.len(),
        program.structure.key(),
        backend.name()
    );
    for (i, (out, expected)) in outs.iter().zip(&expected).enumerate() {
        let data = backend.download(out)?;
        let got = HostTensor { ty: expected.ty.clone(), data: data.to_vec() };
        let difference = largest_difference(&got, expected);
        let verdict = match difference {
            d if d <= tolerance(expected) => "equal up to rounding",
            _ => {
                wrong += 1;
                "DIFFERENT"
            }
        };
        println!(
            "  TENSOR[{}] {}: largest difference {difference:.3e}, {verdict}",
            program.outs[i].0, expected.ty
        );
    }
    Ok(if wrong == 0 { 0 } else { 1 })
}

/// How long the reference computes before a person is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the reference computes.
fn on_reference(program: &Program, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let (done, waits) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                gt_ir::say!(
                    "gt replay: the reference computes one number after the other, minutes for a training step; \
                     --profile RUNS only times the backend"
                );
            }
        });
        let expected = gt_ir::reference::run(&program.structure, inputs, &program.slots);
        drop(done);
        expected.map_err(|(instr, e)| e.map_message(|m| format!("instruction {instr} on the reference: {m}")))
    })
}

/// Prints the steps of a program's plan with the time each takes.
fn profile(
    backend: &str,
    program: &Program,
    types: &[Ty],
    inputs: &[Arc<Vec<u8>>],
    runs: usize,
) -> Result<i32> {
    let backend = backends::open(backend, None)?;
    let mut compiling = f64::INFINITY;
    for _ in 1..runs.max(1) {
        let start = Instant::now();
        backend.compile(&program.structure, types, Effort::Quick)?;
        compiling = compiling.min(start.elapsed().as_secs_f64());
    }
    let plan = backend.compile(&program.structure, types, Effort::Full)?;
    println!("{} instructions compiled in {:.1} us", program.structure.instrs.len(), compiling * 1e6);
    let mut buffers = Vec::new();
    for (ty, data) in types.iter().zip(inputs) {
        buffers.push(backend.upload(ty, HostBytes::Owned(data.clone()))?);
    }
    let mut best: Vec<(String, f64)> = Vec::new();
    for _ in 0..runs.max(1) {
        let took = plan.profile(&mut buffers, &program.slots).map_err(|e| e.error)?;
        if best.is_empty() {
            best = took;
        } else {
            best.iter_mut().zip(took).for_each(|(b, t)| b.1 = b.1.min(t.1));
        }
    }
    let total: f64 = best.iter().map(|(_, t)| t).sum();
    println!("{} steps, {:.1} us in all", best.len(), total * 1e6);
    for (i, (what, seconds)) in best.iter().enumerate() {
        println!("{:>9.1} us  {i}: {what}", seconds * 1e6);
    }
    Ok(0)
}

/// The largest difference of two tensors, relative to the larger of 1 and the expected size.
fn largest_difference(got: &HostTensor, expected: &HostTensor) -> f64 {
    (0..expected.ty.shape.numel())
        .map(|i| (got.get(i).as_f64(), expected.get(i).as_f64()))
        .map(
            |(a, b)| {
                if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / b.abs().max(1.0) }
            },
        )
        .fold(0.0, |worst, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) })
}

fn tolerance(t: &HostTensor) -> f64 {
    use gt_ir::DType;
    match t.ty.dtype {
        DType::F16 => 2e-2,
        DType::BF16 => 1e-1,
        DType::F32 => 1e-3,
        DType::F64 => 1e-9,
        _ => 0.0,
    }
}
