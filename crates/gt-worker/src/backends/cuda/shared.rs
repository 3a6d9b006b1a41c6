//! What all plans of a device share.

use super::account::Account;
use super::cudnn::{Cudnn, Wish};
use super::device::Device;
use super::gang_aloft::Order;
use super::ipc::Neighbourhood;
use super::kernels::Kernels;
use super::lane::Lanes;
use super::libs;
use super::matmul::Blas;
use gt_ir::{Result, bail};
use gt_sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Something to be done beside the running programs.
type Job = Box<dyn FnOnce() + Send>;

/// A device with its kernels, its library and its lanes.
pub struct Shared {
    pub device: Arc<Device>,
    pub account: Arc<Account>,
    pub lanes: Lanes,
    pub kernels: Kernels,
    pub blas: Blas,
    pub cudnn: Cudnn,
    /// Other processes of this host.
    pub around: Arc<Neighbourhood>,
    /// Programs that run together with other GPUs follow each other.
    pub gangs: Order,
    /// Plans that come back run as graphs (`GT_CUDA_GRAPHS=0` turns that off).
    pub graphs: bool,
    /// How often a plan ran as a graph, and how often one waited for the device to check indices.
    pub ran: AtomicU64,
    pub checked: AtomicU64,
    aside: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    pub fn new(device: Arc<Device>, account: Arc<Account>, wish: Wish) -> Result<Arc<Shared>> {
        let blas = Blas::new(device.context(), &device.name, || library("libcublasLt.so", "nvidia-cublas"))?;
        let cudnn = Cudnn::new(wish, &device.name, device.arch);
        let graphs = std::env::var("GT_CUDA_GRAPHS").map_or(true, |v| v != "0");
        let shared = Arc::new(Shared {
            lanes: Lanes::new(device.clone(), account.clone()),
            kernels: Kernels::new(device.clone()),
            blas,
            cudnn,
            around: Arc::default(),
            gangs: Order::default(),
            graphs,
            ran: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            device,
            account,
            aside: Mutex::new(None),
            thread: Mutex::new(None),
        });
        let pressed = Arc::downgrade(&shared);
        shared.account.on_pressure(Box::new(move || {
            if let Some(shared) = pressed.upgrade() {
                shared.lanes.shrink();
            }
        }));
        Ok(shared)
    }

    /// Does something on a thread of its own, in turn.
    pub fn aside(&self, job: Job) {
        let mut sender = self.aside.lock();
        if sender.is_none() {
            let (send, todo) = channel::<Job>();
            let work = move || {
                while let Ok(job) = todo.recv() {
                    // What goes wrong leaves the running programs as they are.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            };
            match std::thread::Builder::new().name("gt-nvrtc".into()).spawn(work) {
                Ok(thread) => (*sender, *self.thread.lock()) = (Some(send), Some(thread)),
                Err(error) => return gt_ir::say!("gt worker: no thread for compiling: {error}"),
            }
        }
        if let Some(sender) = &*sender {
            let _ = sender.send(job);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        *self.aside.lock() = None;
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        let _ = self.device.wait();
    }
}

/// Makes a library findable, or says where it was looked for.
pub fn library(start: &str, package: &str) -> Result<()> {
    if libs::prepare(start) {
        return Ok(());
    }
    bail!(
        Runtime,
        "cuda: {start} not found in {}: install the CUDA toolkit, set CUDA_HOME, or `pip install {package}`",
        libs::searched()
    )
}
