//! Products of matrices and vectors.

use super::{Answer, PyTensor};
use crate::convert::Num;
use crate::errors::Result;
use gt_client::ops::linalg;
use gt_ir::Scalar;
use pyo3::prelude::*;

macro_rules! products {
    ($($name:ident $other:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(fn $name(&self, $other: &PyTensor) -> Result<PyTensor> {
                Ok(PyTensor::on(linalg::$name(&self.t, &$other.t)?, self.device().or($other.device())))
            })*
        }
    };
}

products! { matmul other; mm mat2; bmm mat2; mv vec; dot tensor; outer vec2; }

#[pymethods]
impl PyTensor {
    fn __matmul__(&self, other: &Bound<PyAny>) -> Result<Answer> {
        match other.cast::<PyTensor>() {
            Ok(other) => Ok(Answer(Some(self.matmul(other.get())?))),
            Err(_) => Ok(Answer(None)),
        }
    }

    fn __rmatmul__(&self, other: &Bound<PyAny>) -> Result<Answer> {
        match other.cast::<PyTensor>() {
            Ok(other) => Ok(Answer(Some(other.get().matmul(self)?))),
            Err(_) => Ok(Answer(None)),
        }
    }

    #[pyo3(signature = (mat1, mat2, *, beta = Num(Scalar::Int(1)), alpha = Num(Scalar::Int(1))))]
    fn addmm(&self, mat1: &PyTensor, mat2: &PyTensor, beta: Num, alpha: Num) -> Result<PyTensor> {
        Ok(self.wrap(linalg::addmm(&self.t, &mat1.t, &mat2.t, beta.0, alpha.0)?))
    }

    #[pyo3(signature = (batch1, batch2, *, beta = Num(Scalar::Int(1)), alpha = Num(Scalar::Int(1))))]
    fn baddbmm(&self, batch1: &PyTensor, batch2: &PyTensor, beta: Num, alpha: Num) -> Result<PyTensor> {
        Ok(self.wrap(linalg::baddbmm(&self.t, &batch1.t, &batch2.t, beta.0, alpha.0)?))
    }
}
