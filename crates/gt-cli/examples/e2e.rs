use gt_client::{Settings, autograd, current, ops};
use gt_ir::{Binary, DType, Operand};
use std::time::Instant;
fn main() -> gt_ir::Result<()> {
    let local = gt_cli::local::Local::start(1)?;
    let session = local.connect(Settings::from_env())?;
    current::set_default(Some(session.clone()));
    let a = ops::create::full([10, 10], 1.0, DType::F32)?;
    a.set_requires_grad(true)?;
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(10);
    for _ in 0..rounds {
        let n = 2000;
        let oa = Operand::Val(a.clone());
        let mut x = a.clone();
        let t = Instant::now();
        for _ in 0..n {
            x = ops::arith::binary(Binary::Add, &Operand::Val(x), &oa)?;
        }
        let rec = t.elapsed();
        let loss = ops::reduce::sum(&x, &[], false, None)?;
        let t = Instant::now();
        autograd::backward(&[loss], vec![None], false, false)?;
        let back = t.elapsed();
        session.synchronize()?;
        println!(
            "record {:.0} ns, backward {:.0} ns",
            rec.as_nanos() as f64 / n as f64,
            back.as_nanos() as f64 / n as f64
        );
    }
    Ok(())
}
