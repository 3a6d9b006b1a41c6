//! Trains a small network from Rust: two moons, told apart by three linear layers.
//!
//! Start a server first, then: cargo run -p gt-client --example mlp -- localhost:12345

use gt_client::ops::optim::{Sgd, sgd_step};
use gt_client::ops::{create, linalg, moves};
use gt_client::{Settings, Tensor, current, remote};
use gt_ir::{DType, Result};

struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn new(inputs: usize, outputs: usize) -> Result<Linear> {
        let scale = 1.0 / (inputs as f64).sqrt();
        let weight = create::randn([outputs, inputs], DType::F32)?.mul(scale)?.requiring_grad()?;
        let bias = create::zeros([outputs], DType::F32)?.requiring_grad()?;
        Ok(Linear { weight, bias })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        linalg::linear(x, &self.weight, Some(&self.bias))
    }
}

/// Points on two interleaved half circles, and which of the two each lies on.
fn moons(n: usize) -> Result<(Tensor, Tensor)> {
    let angle = create::rand([n], DType::F32)?.mul(std::f64::consts::PI)?;
    let class = create::randint(0, 2, [n], DType::I64)?;
    let side = class.to(DType::F32)?;
    let sign = side.mul(-2.0)?.add(1.0)?;
    let x = angle.cos()?.mul(&sign)?.add(&side)?;
    let y = angle.sin()?.mul(&sign)?.add(&side.mul(0.5)?)?;
    let points = moves::stack(&[x, y], 1)?;
    let noise = create::randn([n, 2], DType::F32)?.mul(0.1)?;
    Ok((points.add(&noise)?, class))
}

/// Trains for some steps; gives the share of new points that are told apart.
pub fn train(steps: usize) -> Result<f64> {
    let layers = [Linear::new(2, 32)?, Linear::new(32, 32)?, Linear::new(32, 2)?];
    let forward = |x: &Tensor| -> Result<Tensor> {
        let h = layers[0].forward(x)?.relu()?;
        let h = layers[1].forward(&h)?.relu()?;
        layers[2].forward(&h)
    };
    let params: Vec<Tensor> = layers.iter().flat_map(|l| [l.weight.clone(), l.bias.clone()]).collect();
    let mut buffers = vec![None; params.len()];
    let options =
        Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false };
    for step in 1..=steps {
        let (x, class) = moons(64)?;
        let loss = forward(&x)?.cross_entropy(&class)?;
        loss.backward()?;
        let grads: Vec<_> = params.iter().map(Tensor::grad).collect();
        sgd_step(&params, &grads, &mut buffers, &options)?;
        for p in &params {
            p.set_grad(None)?;
        }
        if step % 50 == 0 {
            println!("step {step}: loss {:.4}", loss.item()?.as_f64());
        }
    }
    let (x, class) = moons(512)?;
    let guess = gt_client::ops::reduce::argmax(&forward(&x)?, Some(1), false)?;
    let hits = guess.eq(&class)?.sum()?.item()?.as_i64();
    println!("{hits} of 512 new points are right");
    Ok(hits as f64 / 512.0)
}

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "localhost:12345".into());
    let session = remote::connect(&address, std::env::var("GT_TOKEN").ok(), Settings::from_env()?)?;
    session.seed(1);
    current::enter(session.clone());
    train(200)?;
    session.finish()
}
