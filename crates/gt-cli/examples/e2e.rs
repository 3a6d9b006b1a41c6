use gt_client::{Settings, Tensor, current, ops};
use gt_ir::{Binary, DType, Operand};
use std::time::Instant;
fn main() -> gt_ir::Result<()> {
    let local = gt_cli::local::Local::start(1)?;
    let session = local.connect(Settings::from_env())?;
    current::set_default(Some(session.clone()));
    let a = ops::create::full([10, 10], 1.0, DType::F32)?;
    let b = ops::create::full([10, 10], 2.0, DType::F32)?;
    let c = ops::arith::binary(Binary::Add, &Operand::Val(a.clone()), &Operand::Val(b.clone()))?;
    println!("{:?}", gt_ir::Scalar::read(DType::F32, &c.bytes()?));
    for grad in [false, true] {
        a.set_requires_grad(grad)?;
        for _ in 0..5 {
            let n = 3000;
            let mut keep: Vec<Tensor> = Vec::new();
            let (oa, ob) = (Operand::Val(a.clone()), Operand::Val(b.clone()));
            let t = Instant::now();
            for _ in 0..n { keep.push(ops::arith::binary(Binary::Add, &oa, &ob)?); }
            let rec = t.elapsed();
            let t = Instant::now();
            drop(keep);
            let dropped = t.elapsed();
            let t = Instant::now();
            session.synchronize()?;
            println!("grad {grad}: record {:.0} ns, drop {:.0} ns, sync {:?}", rec.as_nanos() as f64 / n as f64, dropped.as_nanos() as f64 / n as f64, t.elapsed());
        }
    }
    let x = ops::create::full([], 1.0, DType::F32)?;
    x.item()?;
    for _ in 0..3 {
        let t = Instant::now();
        for _ in 0..2000 { x.item()?; }
        println!("item {:.1} us", t.elapsed().as_nanos() as f64 / 2e6);
    }
    println!("{:#?}", session.stats()?);
    Ok(())
}
