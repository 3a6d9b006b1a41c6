//! A device that breaks for good, in a process of its own: every later call says why, and who listens hears of it once.

#[path = "fake_cuda/load.rs"]
mod load;

use gt_ir::{DType, Ty};
use gt_worker::backend::{Backend, HostBytes};
use gt_worker::backends::cuda::{CudaBackend, on_break};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn what_broke_the_device_is_said_ever_after() {
    static HEARD: AtomicU32 = AtomicU32::new(0);
    load::fake();
    on_break(Box::new(|why| {
        assert!(why.contains("the device is lost to this process"), "{why}");
        HEARD.fetch_add(1, Ordering::Relaxed);
    }));
    let backend = CudaBackend::open(0).unwrap();
    let ty = Ty::new(DType::U8, [1000]);
    let upload = || backend.upload(&ty, HostBytes::Owned(Arc::new(vec![1; 1000])));
    let held = upload().unwrap();
    assert_eq!(backend.broken(), None);
    load::break_device();
    let first = backend.download(&held).err().unwrap().to_string();
    assert!(first.contains("cuda: wait"), "{first}");
    let why = backend.broken().unwrap();
    assert!(why.starts_with(&first), "{why}");
    assert_eq!(upload().err().unwrap().to_string(), why);
    assert!(backend.mark().is_err());
    assert_eq!(HEARD.load(Ordering::Relaxed), 1);
}
