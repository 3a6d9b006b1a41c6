//! The in-process transport: messages pass as values, without encoding.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use gt_sync::RwLock;

use crate::port::{Payload, Port, SendError};

type Sink = Arc<dyn Fn(Payload) -> Result<(), SendError> + Send + Sync>;

/// A port whose messages go straight to a function or a queue of this process.
pub struct LocalPort {
    sink: RwLock<Option<Sink>>,
}

impl LocalPort {
    /// A port that calls `sink` on the sender's thread, with no lock held.
    pub fn new(sink: impl Fn(Payload) -> Result<(), SendError> + Send + Sync + 'static) -> Self {
        LocalPort { sink: RwLock::new(Some(Arc::new(sink))) }
    }

    /// A port that puts its messages in a queue; the queue ends when the port is closed or dropped.
    pub fn queue() -> (LocalPort, Receiver<Payload>) {
        let (sender, receiver): (Sender<Payload>, _) = channel();
        let port = LocalPort::new(move |payload| {
            sender.send(payload).map_err(|_| SendError::Lost("the other end is gone".into()))
        });
        (port, receiver)
    }
}

impl Port for LocalPort {
    fn send(&self, payload: Payload) -> Result<(), SendError> {
        let sink = self.sink.read().clone().ok_or(SendError::Closed)?;
        sink(payload)
    }

    fn close(&self) {
        let sink = self.sink.write().take();
        drop(sink);
    }
}

/// Two joined ends: what goes into one port comes out of the other end's queue.
pub fn pair() -> ((LocalPort, Receiver<Payload>), (LocalPort, Receiver<Payload>)) {
    let ((to_right, at_right), (to_left, at_left)) = (LocalPort::queue(), LocalPort::queue());
    ((to_right, at_left), (to_left, at_right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn values_pass_without_encoding_and_close_ends_the_queue() {
        let ((left, _), (right, from_left)) = pair();
        left.send(Payload::Local(Box::new(vec![1.5f64]))).unwrap();
        left.send(Payload::Bytes(vec![1])).unwrap();
        let wait = Duration::from_secs(5);
        let Payload::Local(value) = from_left.recv_timeout(wait).unwrap() else { panic!("encoded") };
        assert_eq!(*value.downcast::<Vec<f64>>().unwrap(), vec![1.5]);
        assert!(matches!(from_left.recv_timeout(wait), Ok(Payload::Bytes(bytes)) if bytes == [1]));
        left.close();
        assert_eq!(left.send(Payload::Bytes(vec![])), Err(SendError::Closed));
        assert!(from_left.recv_timeout(wait).is_err());
        drop(from_left);
        drop(left);
        assert!(right.send(Payload::Bytes(vec![])).is_err());
    }
}
