//! Matrix products by cuBLASLt: shapes, layouts and algorithm are worked out once, a run only gives addresses.
//!
//! An algorithm is a function of a product's shape, types, strides and alignment on one kind of device with one version of
//! the library, so that two runs take the same one (C7). Split sums meet in f32 in a fixed order, never by atomics and
//! never rounded on the way.

use super::matmul_call::{Found, Products, find};
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver;
use foldhash::HashMap;
use gt_compiler::{ALIGN, Map, Matmul, Plan, Strides};
use gt_ir::{DType, Error, Result, Slot};
use gt_kernels::Launches;
use gt_kernels::matmul::{Bias, Form, Origin, Pack, Side, ready};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The library on one device. It is loaded and warmed on a thread of its own; the first product waits for it.
pub struct Blas {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the loading thread and the others share.
struct Shared {
    handle: Mutex<Option<Result<Arc<Handle>>>>,
    loaded: Condvar,
    /// The algorithm of each form seen, `None` where the library has none.
    found: Mutex<HashMap<Key, Option<Found>>>,
}

/// The library's handle.
pub(super) struct Handle(pub(super) sys::cublasLtHandle_t);

// SAFETY: the library's handle may be used from any thread, several at a time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A CUDA context that is made current on another thread.
struct Context(driver::sys::CUcontext);

// SAFETY: a context may be current on any thread; the backend keeps it alive longer than its library.
unsafe impl Send for Context {}

impl Blas {
    /// Starts loading for the device of `context`, after `load` has made the library findable.
    pub fn new(
        context: driver::sys::CUcontext,
        load: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Blas> {
        let shared = Arc::new(Shared {
            handle: Mutex::new(None),
            loaded: Condvar::new(),
            found: Mutex::new(HashMap::default()),
        });
        let (ours, context) = (shared.clone(), Context(context));
        let work = move || {
            let made = load().and_then(|()| open(&context));
            super::leave::before_libraries();
            let fine = made.is_ok();
            *ours.handle.lock() = Some(made);
            ours.loaded.notify_all();
            if fine {
                ours.warm();
            }
        };
        let thread = std::thread::Builder::new().name("gt-cublaslt".into()).spawn(work);
        let thread =
            thread.map_err(|e| Error::Runtime(format!("cublaslt: no thread to load the library on: {e}")))?;
        Ok(Blas { shared, thread: Some(thread) })
    }

    /// Makes a product ready: descriptors, layouts and algorithm.
    pub fn prepare(&self, mm: &Matmul, plan: &Plan) -> Result<Prepared> {
        // What the library refuses as it lies is packed, the bias first.
        let mut refused = None;
        for how in [Pack::Least, Pack::Bias, Pack::All] {
            let ready = ready(mm, plan, how);
            let before = ready.before;
            let Some(form) = ready.form else {
                return Ok(Prepared { workspace: before.scratch, before, products: None });
            };
            match self.shared.find(&form) {
                Ok(Some(found)) => {
                    let at = before.scratch.next_multiple_of(ALIGN);
                    let workspace = at + found.workspace;
                    let products = Products::new(self.shared.handle()?, form, found, at)?;
                    return Ok(Prepared { workspace, before, products: Some(products) });
                }
                Ok(None) => refused = Some(form),
                Err(error) => return Err(error),
            }
        }
        let form = refused.map_or(String::new(), |form| format!("{form:?}"));
        Err(Error::Runtime(format!("matmul: cublaslt has no algorithm for {form}")))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the loading thread has been reported by then.
            _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once; whoever enqueued products has waited for them.
        if let Err(error) = unsafe { lt::destroy_handle(self.0) } {
            eprintln!("cublaslt: destroy: {error}");
        }
    }
}

/// Makes a handle on the device of `context`.
fn open(context: &Context) -> Result<Arc<Handle>> {
    // SAFETY: only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        let text = "cublaslt: libcublasLt not found: install CUDA 13 or the package nvidia-cublas";
        return Err(Error::Runtime(text.into()));
    }
    // SAFETY: the context lives as long as the backend.
    unsafe { driver::result::ctx::set_current(context.0) }
        .map_err(|e| Error::Runtime(format!("cublaslt: no context: {e}")))?;
    lt::create_handle().map(|h| Arc::new(Handle(h))).map_err(|e| failed("create", e))
}

/// The library's error, worded.
pub(super) fn failed(what: &str, error: lt::CublasError) -> Error {
    Error::Runtime(format!("cublaslt: {what}: {error}"))
}

/// All that decides about an algorithm.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    dtype: DType,
    tf32: bool,
    sizes: [usize; 4],
    /// a, b, out, bias: transposed, leading dimension, batch, alignment.
    sides: [(bool, usize, isize, usize); 4],
    /// Which kind of bias.
    bias: u8,
}

impl Key {
    fn new(form: &Form) -> Key {
        let of = |s: &Side| (s.transposed, s.ld, s.batch, s.alignment);
        let none = (false, 0, 0, 0);
        let (bias, last) = match &form.bias {
            Bias::None => (0, none),
            Bias::Columns(side) => (1, of(side)),
            Bias::Matrix(side) => (2, of(side)),
            Bias::InPlace => (3, none),
        };
        Key {
            dtype: form.dtype,
            tf32: form.tf32,
            sizes: [form.batches, form.m, form.n, form.k],
            sides: [of(&form.a), of(&form.b), of(&form.out), last],
            bias,
        }
    }
}

impl Shared {
    /// The handle, which is waited for.
    fn handle(&self) -> Result<Arc<Handle>> {
        let mut handle = self.handle.lock();
        loop {
            match &*handle {
                Some(made) => return made.clone(),
                None => self.loaded.wait(&mut handle),
            }
        }
    }

    /// The algorithm for a form, asked for once.
    fn find(&self, form: &Form) -> Result<Option<Found>> {
        let key = Key::new(form);
        if let Some(found) = self.found.lock().get(&key) {
            return Ok(*found);
        }
        let found = find(&*self.handle()?, form)?;
        Ok(*self.found.lock().entry(key).or_insert(found))
    }

    /// Asks for algorithms of the usual kinds: the first question of a kind costs the library tens of milliseconds.
    fn warm(&self) {
        for (dtype, tf32) in
            [(DType::F32, false), (DType::BF16, false), (DType::F32, true), (DType::F16, false)]
        {
            for (ta, tb) in [(false, false), (false, true), (true, false)] {
                // Nobody waits for the answer, and whoever needs it asks again.
                _ = self.find(&square(dtype, tf32, ta, tb));
            }
        }
    }
}

/// A product of square matrices of a common size.
fn square(dtype: DType, tf32: bool, ta: bool, tb: bool) -> Form {
    const N: usize = 256;
    let side = |transposed| {
        let start = Map { strides: Strides::new(), offset: 0, slots: Default::default() };
        let origin = Origin::Storage { storage: 0, start };
        Side { origin, transposed, rows: N, cols: N, ld: N, batch: 0, alignment: ALIGN }
    };
    let (a, b, out) = (side(ta), side(tb), side(false));
    let calls = vec![[0; 4]];
    Form { dtype, tf32, m: N, n: N, k: N, batches: 1, a, b, bias: Bias::None, out, calls }
}

/// A matmul made ready. First come the launches `before`, whose scratch is the start of the workspace, then `enqueue`.
pub struct Prepared {
    workspace: usize,
    before: Launches,
    products: Option<Products>,
}

impl Prepared {
    /// Bytes of memory needed while the product runs, at a multiple of 256.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Packs operands that the library cannot take where they lie; all of the work for integers. Its scratch memory is
    /// the start of the workspace.
    pub fn before(&self) -> &Launches {
        &self.before
    }

    /// True if slots decide where an operand lies. A captured graph keeps addresses, so it cannot follow them.
    pub fn moves(&self) -> bool {
        self.products.as_ref().is_some_and(Products::moves)
    }

    /// Puts the product on the stream, or into the graph being captured, after what `before` launched. `addresses` are
    /// those of the plan's storages.
    pub fn enqueue(
        &self,
        stream: driver::sys::CUstream,
        addresses: &[u64],
        slots: &[Slot],
        workspace: u64,
    ) -> Result<()> {
        self.products.as_ref().map_or(Ok(()), |p| p.enqueue(stream, addresses, slots, workspace))
    }
}
