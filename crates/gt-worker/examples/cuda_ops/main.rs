//! Matrix products and attention alone on a GPU: checked against the host on small sizes and on samples of large ones, then
//! timed. One line each; a failure is printed and the rest goes on.
//!
//! `cargo run --release -p gt-worker --example cuda_ops [products|attention] [part of a name]`; `cuda_ops against` prints a table
//! of attention by kernels of ours and by cuDNN, and `cuda_ops cudnn` by which engines cuDNN runs it, with how much memory and
//! whether twice alike. Where there is no GPU, `cuda_ops cudnn FILE` says so for one whose properties are in a file.

mod attends;
mod device;
mod numbers;
mod probe;
mod products;

use device::Device;

pub type Res<T> = Result<T, Box<dyn std::error::Error>>;

/// Prints one line for each thing tried, and counts failures.
pub struct Report {
    filter: String,
    failed: usize,
}

impl Report {
    /// Runs one check or measurement, unless it was not asked for; what it says is printed beside its name.
    pub fn line(&mut self, name: &str, work: impl FnOnce() -> Res<String>) {
        if !name.contains(&self.filter) {
            return;
        }
        match work() {
            Ok(text) => println!("ok    {name:58} {text}"),
            Err(error) => {
                self.failed += 1;
                println!("FAIL  {name:58} {error}");
            }
        }
    }
}

fn main() -> Res<()> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let mut report = Report { filter: args.next().unwrap_or_default(), failed: 0 };
    let Some(device) = Device::find()? else {
        if what == "cudnn" {
            return probe::all(None, &report.filter);
        }
        println!("no GPU here");
        return Ok(());
    };
    println!("{}", device.name()?);
    match what.as_str() {
        "cudnn" => return probe::all(Some(&device), ""),
        "against" => return attends::against(&device),
        _ => {}
    }
    if what != "attention" {
        products::all(&device, &mut report)?;
    }
    if what != "products" {
        attends::all(&device, &mut report)?;
    }
    println!("{} failed", report.failed);
    std::process::exit((report.failed > 0) as i32)
}
