//! Values: handles to tensors that live on workers, written once. Dropping the last handle frees the tensor in the
//! stream.

use crate::session::Session;
use crate::stream::Stream;
use gt_ir::{Error, Result, TensorId, Ty};
use std::sync::Arc;

/// A tensor on some worker. Shared by cells, views and the autograd graph.
pub struct ValueInner {
    pub id: TensorId,
    pub ty: Ty,
    /// The stream that recorded it; frees go there.
    pub stream: Arc<Stream>,
    /// Its position in the stream, or `SETTLED` for what came by upload.
    pub pos: u64,
}

/// A shared handle to a value.
pub type Value = Arc<ValueInner>;

/// Position of values that were never part of an open program.
pub const SETTLED: u64 = 0;

impl ValueInner {
    /// The session it belongs to.
    pub fn session(&self) -> Result<Arc<Session>> {
        self.stream.session.upgrade().ok_or_else(|| {
            Error::Connection(
                "the session this tensor belongs to is closed: create the tensor again in a new session"
                    .into(),
            )
        })
    }
}

impl Drop for ValueInner {
    fn drop(&mut self) {
        self.stream.free(self.id, self.pos, self.ty.bytes());
    }
}

impl std::fmt::Debug for ValueInner {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "TENSOR[{}]:{}", self.id.0, self.ty)
    }
}
