//! The Python face of GT: conversions and one error map. Everything heavy is in the crates below.

mod array;
mod autograd;
mod convert;
mod data;
mod device;
mod dtype;
mod errors;
mod frames;
mod functions;
mod nn;
mod optim;
mod precision;
mod print;
mod random;
mod seen;
mod session;
mod signal;
mod source;
mod start;
mod tensor;
mod wait;

use pyo3::prelude::*;

/// The core of GT.
#[pymodule]
mod _gt {
    use super::*;

    #[pymodule_export]
    use crate::autograd::{
        _custom_node, _set_anomaly, _set_grad_enabled, HookHandle, InferenceGuard, PyNode, SavedOutputs,
        backward, grad, is_grad_enabled, is_inference_mode_enabled,
    };
    #[pymodule_export]
    use crate::device::{PyDevice, get_default_device, set_default_device};
    #[pymodule_export]
    use crate::dtype::PyDType;
    #[pymodule_export]
    use crate::functions::{
        arange, as_tensor, bernoulli, broadcast_tensors, cat, empty, empty_like, eye, from_numpy, frombuffer,
        full, full_like, get_default_dtype, hstack, is_tensor, linspace, multinomial, ones, ones_like, pow,
        promote_types, rand, rand_like, randint, randn, randn_like, randperm, result_type, set_default_dtype,
        set_printoptions, stack, tensor, vstack, where_, zeros, zeros_like,
    };
    #[pymodule_export]
    use crate::nn::{
        binary_cross_entropy, binary_cross_entropy_with_logits, clip_grad_norm_, cosine_similarity,
        cross_entropy, einsum, embedding, huber_loss, kl_div, l1_loss, layer_norm, linear, mse_loss,
        nll_loss, one_hot, relu, rms_norm, scaled_dot_product_attention, silu, smooth_l1_loss, tensordot,
    };
    #[pymodule_export]
    use crate::optim::{_adam_step, _sgd_step, _zero_grad};
    #[pymodule_export]
    use crate::precision::{
        _get_autocast, _set_autocast, get_float32_matmul_precision, set_float32_matmul_precision,
    };
    #[pymodule_export]
    use crate::random::PyGenerator;
    #[pymodule_export]
    use crate::seen::{_explain, _living, _take_profile, _watch, PyProfile};
    #[pymodule_export]
    use crate::session::{
        _end_badly, _finish, _is_host_only, _reset_peak, _save_program, _set_host_only, _shrink, _stats,
        _tape, PySession, connect, current_session, disconnect, get_rng_state, gpu_workers, main,
        manual_seed, open_session, set_rng_state, synchronize,
    };
    #[pymodule_export]
    use crate::signal::{
        _signal_all, _signal_apply, _signal_clear, _signal_enter, _signal_exit, _signal_fits,
        _signal_laid_out, _signal_load, _signal_name, _signal_patterns, _signal_poll, _signal_register,
        _signal_stage, _signal_tensor, _signal_version,
    };
    #[pymodule_export]
    use crate::tensor::{_rebuild, PyTensor};

    /// Installs how this process starts, waits and finds the user's lines; adds one object per dtype.
    #[pymodule_init]
    fn init(m: &Bound<PyModule>) -> PyResult<()> {
        let py = m.py();
        for dtype in gt_ir::DType::ALL {
            m.add(dtype.name(), crate::dtype::dtype_object(py, dtype)?)?;
        }
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add("OutOfMemoryError", crate::errors::out_of_memory(py)?)?;
        m.add("OutOfBoundsError", crate::errors::out_of_bounds(py)?)?;
        m.add("default_generator", crate::random::PyGenerator::of_session())?;
        gt_client::current::install(crate::session::start_default);
        gt_client::wait::install(crate::wait::wait);
        let home = py.import("gt")?.getattr("__path__")?.get_item(0)?.to_string();
        crate::source::install(py, home);
        Ok(())
    }
}
