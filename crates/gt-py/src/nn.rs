//! Losses and layers' functions.

use crate::convert::DimsArg;
use crate::errors::Result;
use crate::tensor::{PyTensor, tensors};
use gt_client::Tensor;
use gt_client::ops::attention::{self, Attending};
use gt_client::ops::loss::{self, Reduction};
use gt_client::ops::{activation, einsum as sums, linalg, norm, optim, scatter};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

fn inner<'a>(t: &Option<&'a PyTensor>) -> Option<&'a Tensor> {
    t.map(|t| &*t.t)
}

macro_rules! pair_losses {
    ($($name:ident)*) => {
        $(#[pyfunction]
        #[pyo3(signature = (input, target, *, reduction = "mean"))]
        pub fn $name(input: &PyTensor, target: &PyTensor, reduction: &str) -> Result<PyTensor> {
            Ok(input.wrap(loss::$name(&input.t, &target.t, Reduction::parse(reduction)?)?))
        })*
    };
}

pair_losses! { mse_loss l1_loss }

#[pyfunction]
#[pyo3(signature = (input, target, *, reduction = "mean", beta = 1.0))]
pub fn smooth_l1_loss(input: &PyTensor, target: &PyTensor, reduction: &str, beta: f64) -> Result<PyTensor> {
    Ok(input.wrap(loss::smooth_l1_loss(&input.t, &target.t, Reduction::parse(reduction)?, beta)?))
}

#[pyfunction]
#[pyo3(signature = (input, target, *, reduction = "mean", delta = 1.0))]
pub fn huber_loss(input: &PyTensor, target: &PyTensor, reduction: &str, delta: f64) -> Result<PyTensor> {
    Ok(input.wrap(loss::huber_loss(&input.t, &target.t, Reduction::parse(reduction)?, delta)?))
}

/// Cross entropy of probabilities and 0/1 targets.
#[pyfunction]
#[pyo3(signature = (input, target, weight = None, *, reduction = "mean"))]
pub fn binary_cross_entropy(
    input: &PyTensor,
    target: &PyTensor,
    weight: Option<&PyTensor>,
    reduction: &str,
) -> Result<PyTensor> {
    let reduction = Reduction::parse(reduction)?;
    Ok(input.wrap(loss::binary_cross_entropy(&input.t, &target.t, inner(&weight), reduction)?))
}

/// Cross entropy of logits and 0/1 targets.
#[pyfunction]
#[pyo3(signature = (input, target, weight = None, *, reduction = "mean", pos_weight = None))]
pub fn binary_cross_entropy_with_logits(
    input: &PyTensor,
    target: &PyTensor,
    weight: Option<&PyTensor>,
    reduction: &str,
    pos_weight: Option<&PyTensor>,
) -> Result<PyTensor> {
    let reduction = Reduction::parse(reduction)?;
    let (weight, pos_weight) = (inner(&weight), inner(&pos_weight));
    Ok(input.wrap(loss::bce_with_logits(&input.t, &target.t, weight, pos_weight, reduction)?))
}

/// Negative log likelihood of class indices.
#[pyfunction]
#[pyo3(signature = (input, target, weight = None, *, ignore_index = -100, reduction = "mean"))]
pub fn nll_loss(
    input: &PyTensor,
    target: &PyTensor,
    weight: Option<&PyTensor>,
    ignore_index: i64,
    reduction: &str,
) -> Result<PyTensor> {
    let reduction = Reduction::parse(reduction)?;
    Ok(input.wrap(loss::nll_loss(&input.t, &target.t, inner(&weight), ignore_index, reduction)?))
}

/// Cross entropy of logits and class indices, or probabilities in the shape of the logits.
#[pyfunction]
#[pyo3(signature = (input, target, weight = None, *, ignore_index = -100, reduction = "mean", label_smoothing = 0.0))]
pub fn cross_entropy(
    input: &PyTensor,
    target: &PyTensor,
    weight: Option<&PyTensor>,
    ignore_index: i64,
    reduction: &str,
    label_smoothing: f64,
) -> Result<PyTensor> {
    let reduction = Reduction::parse(reduction)?;
    let t =
        loss::cross_entropy(&input.t, &target.t, inner(&weight), ignore_index, reduction, label_smoothing)?;
    Ok(input.wrap(t))
}

#[pyfunction]
#[pyo3(signature = (input, target, *, reduction = "mean", log_target = false))]
pub fn kl_div(input: &PyTensor, target: &PyTensor, reduction: &str, log_target: bool) -> Result<PyTensor> {
    let batch_mean = reduction == "batchmean";
    let reduction = if batch_mean { Reduction::Sum } else { Reduction::parse(reduction)? };
    Ok(input.wrap(loss::kl_div(&input.t, &target.t, log_target, batch_mean, reduction)?))
}

#[pyfunction]
#[pyo3(signature = (x1, x2, dim = 1, eps = 1e-8))]
pub fn cosine_similarity(x1: &PyTensor, x2: &PyTensor, dim: i64, eps: f64) -> Result<PyTensor> {
    Ok(x1.wrap(loss::cosine_similarity(&x1.t, &x2.t, dim, eps)?))
}

/// `input @ weight.T + bias`, as one instruction.
#[pyfunction]
#[pyo3(signature = (input, weight, bias = None))]
pub fn linear(input: &PyTensor, weight: &PyTensor, bias: Option<&PyTensor>) -> Result<PyTensor> {
    Ok(input.wrap(linalg::linear(&input.t, &weight.t, inner(&bias))?))
}

/// Normalizes to mean 0 and variance 1 over the last dimensions, then scales and shifts.
#[pyfunction]
#[pyo3(signature = (input, normalized_shape, weight = None, bias = None, eps = 1e-5))]
pub fn layer_norm(
    input: &PyTensor,
    normalized_shape: DimsArg,
    weight: Option<&PyTensor>,
    bias: Option<&PyTensor>,
    eps: f64,
) -> Result<PyTensor> {
    let t = norm::layer_norm(&input.t, &normalized_shape.0, inner(&weight), inner(&bias), eps)?;
    Ok(input.wrap(t))
}

/// Divides by the root of the mean square over the last dimensions, then scales.
#[pyfunction]
#[pyo3(signature = (input, normalized_shape, weight = None, eps = None))]
pub fn rms_norm(
    input: &PyTensor,
    normalized_shape: DimsArg,
    weight: Option<&PyTensor>,
    eps: Option<f64>,
) -> Result<PyTensor> {
    Ok(input.wrap(norm::rms_norm(&input.t, &normalized_shape.0, inner(&weight), eps)?))
}

/// `softmax(query @ key.T * scale + attn_mask) @ value`; a row that sees nothing gives zeros.
#[pyfunction]
#[pyo3(signature = (
    query, key, value, attn_mask = None, dropout_p = 0.0, is_causal = false, scale = None, enable_gqa = false
))]
pub fn scaled_dot_product_attention(
    query: &PyTensor,
    key: &PyTensor,
    value: &PyTensor,
    attn_mask: Option<&PyTensor>,
    dropout_p: f64,
    is_causal: bool,
    scale: Option<f64>,
    enable_gqa: bool,
) -> Result<PyTensor> {
    let how = Attending { causal: is_causal, scale, gqa: enable_gqa, dropout: dropout_p };
    Ok(query.wrap(attention::attention(&query.t, &key.t, &value.t, inner(&attn_mask), how)?))
}

/// Rows of `weight`, by index.
#[pyfunction]
pub fn embedding(input: &PyTensor, weight: &PyTensor) -> Result<PyTensor> {
    Ok(weight.wrap(scatter::embedding(&weight.t, &input.t)?))
}

/// 1 at the index along a new last dimension.
#[pyfunction]
#[pyo3(signature = (tensor, num_classes = -1))]
pub fn one_hot(tensor: &PyTensor, num_classes: i64) -> Result<PyTensor> {
    Ok(tensor.wrap(scatter::one_hot(&tensor.t, num_classes)?))
}

/// Sums products of elements as an equation such as `"bij,bjk->bik"` says.
#[pyfunction]
#[pyo3(signature = (equation, *operands))]
pub fn einsum(equation: &str, operands: &Bound<PyTuple>) -> Result<PyTensor> {
    let first = if operands.len() == 1 { Some(operands.get_item(0)?) } else { None };
    let list = match &first {
        Some(x) => tensors(x)?,
        None => tensors(operands)?,
    };
    Ok(PyTensor::new(sums::einsum(equation, &list)?))
}

/// Sums products over pairs of dimensions of two tensors.
#[pyfunction]
#[pyo3(signature = (a, b, dims = None))]
pub fn tensordot(a: &PyTensor, b: &PyTensor, dims: Option<&Bound<PyAny>>) -> Result<PyTensor> {
    let last = |n: i64| -> Result<(Vec<i64>, Vec<i64>)> {
        let (rank, other) = (a.t.ndim() as i64, b.t.ndim() as i64);
        if !(0..=rank.min(other)).contains(&n) {
            let text = format!("tensordot: expected 0 to {} dimensions, got dims={n}", rank.min(other));
            return Err(gt_ir::Error::Runtime(text).into());
        }
        Ok(((rank - n..rank).collect::<Vec<_>>(), (0..n).collect::<Vec<_>>()))
    };
    let (of_a, of_b) = match dims {
        None => last(2)?,
        Some(d) => match d.extract::<i64>() {
            Ok(n) => last(n)?,
            Err(_) => {
                let (x, y): (DimsArg, DimsArg) = (d.get_item(0)?.extract()?, d.get_item(1)?.extract()?);
                (x.0.to_vec(), y.0.to_vec())
            }
        },
    };
    Ok(a.wrap(sums::tensordot(&a.t, &b.t, &of_a, &of_b)?))
}

/// `max(input, 0)`.
#[pyfunction]
#[pyo3(signature = (input, inplace = false))]
pub fn relu<'py>(input: &Bound<'py, PyTensor>, inplace: bool) -> Result<Bound<'py, PyTensor>> {
    activated(input, inplace, activation::relu)
}

/// `input * sigmoid(input)`.
#[pyfunction]
#[pyo3(signature = (input, inplace = false))]
pub fn silu<'py>(input: &Bound<'py, PyTensor>, inplace: bool) -> Result<Bound<'py, PyTensor>> {
    activated(input, inplace, activation::silu)
}

fn activated<'py>(
    input: &Bound<'py, PyTensor>,
    inplace: bool,
    f: fn(&Tensor) -> gt_ir::Result<Tensor>,
) -> Result<Bound<'py, PyTensor>> {
    let x = input.get();
    if inplace {
        gt_client::ops::inplace::apply_(&x.t, f)?;
        return Ok(input.clone());
    }
    Ok(Bound::new(input.py(), x.wrap(f(&x.t)?))?)
}

/// Scales the gradients of parameters so that their common norm is at most `max_norm`; gives the norm they had.
#[pyfunction]
#[pyo3(signature = (parameters, max_norm, norm_type = 2.0))]
pub fn clip_grad_norm_(parameters: &Bound<PyAny>, max_norm: f64, norm_type: f64) -> Result<PyTensor> {
    match optim::clip_grad_norm(&tensors(parameters)?, max_norm, norm_type)? {
        Some(t) => Ok(PyTensor::new(t)),
        None => Ok(PyTensor::new(gt_client::ops::create::full(
            gt_ir::Shape::scalar(),
            0.0,
            gt_client::default::float(),
        )?)),
    }
}
