//! Matrix products by cuBLASLt: shapes, layouts and algorithm are worked out once, a run only gives addresses.
//!
//! An algorithm is a function of a product's shape, types, strides and alignment on one kind of device with one version of
//! the library, so that two runs take the same one (C7). Split sums meet in f32 in a fixed order, never by atomics and
//! never rounded on the way. Large products of plans that come back are measured (`tune`), and what is found serves later
//! processes (`pins`).

use super::disk::Disk;
use super::matmul_call::{Found, Products, find, remembered};
use super::pins::{Pin, Pins};
use super::stages::stage;
use super::tune::{self, Care, When, measure};
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver;
use foldhash::{HashMap, HashSet};
use gt_compiler::{ALIGN, Map, Matmul, Plan, Strides};
use gt_ir::{DType, Error, Result, Slot};
use gt_kernels::Launches;
use gt_kernels::matmul::{Bias, Form, Origin, Pack, Side, ready};
use gt_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The library on one device. It is loaded and warmed on a thread of its own; the first product waits for it.
pub struct Blas {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The library's handle, and what was measured before this process.
type Loaded = (Arc<Handle>, Arc<Pins>);

/// What decides about a relu: element type, TF32, kind of bias, which sides are transposed, algorithm.
type ReluKey = (DType, bool, u8, [bool; 2], [u64; 8]);

/// What the loading thread and the others share.
struct Shared {
    handle: Mutex<Option<Result<Loaded>>>,
    loaded: Condvar,
    /// The algorithm of each form seen, `None` where the library has none.
    found: Mutex<HashMap<Key, Option<Found>>>,
    /// Which algorithms have a relu that is ours in every bit.
    relus: Mutex<HashMap<ReluKey, bool>>,
    when: When,
    /// Forms to be measured, and all that ever were.
    todo: Mutex<(VecDeque<Form>, HashSet<Key>)>,
    more: Condvar,
    stop: AtomicBool,
}

/// Measuring begins so long after the first product that comes back.
const DELAY: Duration = Duration::from_secs(10);
/// Time that measuring may take of one process.
const MEASURING: Duration = Duration::from_secs(60);
/// How often a busy device is tried again, and after how long.
const TRIES: usize = 4;
const AGAIN: Duration = Duration::from_secs(2);

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
    /// Starts loading for the device of `context`, called `device`, after `load` has made the library findable.
    pub fn new(
        context: driver::sys::CUcontext,
        device: &str,
        load: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Blas> {
        let shared = Arc::new(Shared {
            handle: Mutex::new(None),
            loaded: Condvar::new(),
            found: Mutex::new(HashMap::default()),
            relus: Mutex::default(),
            when: When::from_env(),
            todo: Mutex::default(),
            more: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let (ours, context, device) = (shared.clone(), Context(context), device.to_string());
        let work = move || {
            let made = stage("cublasLt loaded", || load().and_then(|()| open(&context)));
            super::leave::before_libraries();
            let made = made.map(|handle| {
                // SAFETY: the library is loaded.
                let version = unsafe { sys::cublasLtGetVersion() };
                let folder = Disk::open();
                (handle, Arc::new(Pins::open(folder.as_ref().map(Disk::folder), &device, version)))
            });
            let fine = made.is_ok();
            *ours.handle.lock() = Some(made);
            ours.loaded.notify_all();
            if fine {
                stage("cublasLt asked for usual products", || ours.warm());
                ours.measure_all();
            }
        };
        let thread = std::thread::Builder::new().name("gt-cublaslt".into()).spawn(work);
        let thread =
            thread.map_err(|e| Error::Runtime(format!("cublaslt: no thread to load the library on: {e}")))?;
        Ok(Blas { shared, thread: Some(thread) })
    }

    /// Makes a product ready, with what follows it: descriptors, layouts and algorithm.
    pub fn prepare(&self, mm: &Matmul, plan: &Plan) -> Result<Prepared> {
        if !mm.relu && mm.residual.is_none() {
            return self.prepare_bare(mm, plan);
        }
        let bare = self.prepare_bare(&Matmul { residual: None, relu: false, ..mm.clone() }, plan)?;
        if let Some(products) = &bare.products
            && let Some(whole) = self.with_epilogue(mm, plan, products)?
        {
            return Ok(whole);
        }
        if gt_ir::env::on("GT_VERBOSE")
            && let Some(products) = &bare.products
        {
            let key = Key::new(products.form());
            gt_ir::say!("gt worker: cuda: matmul {key}: what follows it has a kernel of its own");
        }
        Ok(Prepared { after: gt_kernels::matmul::after(mm, plan), ..bare })
    }

    /// The product with what follows it as the library's epilogue, by the algorithm of the product alone (C7). None where
    /// that has no such epilogue, or one that differs.
    fn with_epilogue(&self, mm: &Matmul, plan: &Plan, bare: &Products) -> Result<Option<Prepared>> {
        let gt_kernels::matmul::Ready { before, form: Some(form) } = ready(mm, plan, Pack::Least) else {
            return Ok(None);
        };
        // The library reads a row in whole vectors, each batch its own.
        let lies = match &form.bias {
            Bias::Columns(row) => row.alignment >= 16,
            Bias::None | Bias::Matrix(_) => true,
            Bias::InPlace => false,
        };
        if form.bare() != *bare.form() || (form.residual && !lies) {
            return Ok(None);
        }
        let handle = self.shared.handle()?.0;
        let Some(found) = remembered(&handle, &form, bare.found().words()) else { return Ok(None) };
        if form.relu && !self.shared.has_true_relu(&handle, &form, &found) {
            return Ok(None);
        }
        let at = before.scratch.next_multiple_of(ALIGN);
        let workspace = at + found.workspace;
        let products = Products::new(handle, form, found, at)?;
        Ok(Some(Prepared { workspace, before, products: Some(products), after: Launches::default() }))
    }

    /// Makes a product alone ready.
    fn prepare_bare(&self, mm: &Matmul, plan: &Plan) -> Result<Prepared> {
        // What the library refuses as it lies is packed, the bias first.
        let mut refused = None;
        for how in [Pack::Least, Pack::Bias, Pack::All] {
            let ready = ready(mm, plan, how);
            let before = ready.before;
            let Some(form) = ready.form else {
                let after = Launches::default();
                return Ok(Prepared { workspace: before.scratch, before, products: None, after });
            };
            match self.shared.find(&form) {
                Ok(Some(found)) => {
                    let at = before.scratch.next_multiple_of(ALIGN);
                    let workspace = at + found.workspace;
                    let products = Products::new(self.shared.handle()?.0, form, found, at)?;
                    let after = Launches::default();
                    return Ok(Prepared { workspace, before, products: Some(products), after });
                }
                Ok(None) => refused = Some(form),
                Err(error) => return Err(error),
            }
        }
        let form = refused.map_or(String::new(), |form| format!("{form:?}"));
        Err(Error::Runtime(format!("matmul: cublaslt has no algorithm for {form}")))
    }

    /// Says that a product comes back: if it is large its algorithms are measured aside, once.
    pub fn tune(&self, prepared: &Prepared) {
        let Some(form) = prepared.products.as_ref().map(|p| p.form().bare()) else { return };
        if self.shared.when != When::Later || !tune::is_large(&form) {
            return;
        }
        let mut todo = self.shared.todo.lock();
        if todo.1.insert(Key::new(&form)) {
            todo.0.push_back(form);
            self.shared.more.notify_all();
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock, so that whoever is about to wait hears of it.
        drop(self.shared.todo.lock());
        self.shared.more.notify_all();
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
            gt_ir::say!("cublaslt: destroy: {error}");
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
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
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
        let (bias, side) = kind(&form.bias);
        let last = side.map_or((false, 0, 0, 0), of);
        Key {
            dtype: form.dtype,
            tf32: form.tf32,
            sizes: [form.batches, form.m, form.n, form.k],
            sides: [of(&form.a), of(&form.b), of(&form.out), last],
            bias,
        }
    }
}

/// Which kind of bias, and where it lies if that is a place of its own.
fn kind(bias: &Bias) -> (u8, Option<&Side>) {
    match bias {
        Bias::None => (0, None),
        Bias::Columns(side) => (1, Some(side)),
        Bias::Matrix(side) => (2, Some(side)),
        Bias::InPlace => (3, None),
    }
}

/// The key as a line of a file holds it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [batches, m, n, k] = self.sizes;
        let tf32 = if self.tf32 { " tf32" } else { "" };
        write!(f, "{}{tf32} {batches}x{m}x{n}x{k} bias {}", self.dtype, self.bias)?;
        for (transposed, ld, batch, alignment) in self.sides {
            write!(f, " {}{ld}:{batch}:{alignment}", if transposed { "t" } else { "n" })?;
        }
        Ok(())
    }
}

impl Shared {
    /// The handle, which is waited for, and what was measured before this process.
    fn handle(&self) -> Result<Loaded> {
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
        let (handle, pins) = self.handle()?;
        let pin = pins.get(&key.to_string());
        let found = match pin.and_then(|pin| remembered(&handle, form, pin.algo)) {
            Some(found) => Some(found),
            None => stage("cublasLt asked for an algorithm", || self.choose(&handle, &pins, form, &key))?,
        };
        Ok(*self.found.lock().entry(key).or_insert(found))
    }

    /// True if an algorithm's relu is ours in every bit, tried once.
    fn has_true_relu(&self, handle: &Arc<Handle>, form: &Form, found: &Found) -> bool {
        let turned = [form.a.transposed, form.b.transposed];
        let key = (form.dtype, form.tf32, kind(&form.bias).0, turned, found.words());
        if let Some(&known) = self.relus.lock().get(&key) {
            return known;
        }
        // Without room to try it, it may be tried another time.
        let Ok(Some(true_relu)) = tune::has_true_relu(handle, form, found) else { return false };
        *self.relus.lock().entry(key).or_insert(true_relu)
    }

    /// The library's first choice, or the best of its choices where that is measured before the first use.
    fn choose(&self, handle: &Arc<Handle>, pins: &Pins, form: &Form, key: &Key) -> Result<Option<Found>> {
        let found = find(handle, form)?;
        if self.when != When::Now || !tune::is_large(form) || found.len() < 2 {
            return Ok(found.first().copied());
        }
        let care = Care { pause: false, stop: &self.stop };
        let measured = measure(handle, form, &found, &care)?;
        Ok(match measured {
            Some(measured) => {
                keep(pins, key, &measured);
                Some(measured.found)
            }
            None => found.first().copied(),
        })
    }

    /// Measures what is asked for, until the end.
    fn measure_all(&self) {
        let Ok((handle, pins)) = self.handle() else { return };
        let mut spent = Duration::ZERO;
        while let Some(form) = self.next() {
            let key = Key::new(&form);
            if spent.is_zero() && !self.rest(DELAY) {
                return;
            }
            if !pins.is_kept() || pins.get(&key.to_string()).is_some() || spent > MEASURING {
                continue;
            }
            let Ok(found) = find(&handle, &form) else { continue };
            let care = Care { pause: true, stop: &self.stop };
            for _ in 0..TRIES {
                let start = Instant::now();
                let measured =
                    if found.len() < 2 { Ok(None) } else { measure(&handle, &form, &found, &care) };
                spent += start.elapsed();
                match measured {
                    Ok(Some(measured)) => {
                        keep(&pins, &key, &measured);
                        break;
                    }
                    // Busy: perhaps not for long.
                    Ok(None) if spent < MEASURING && found.len() > 1 && self.rest(AGAIN) => {}
                    // Programs go on with what they have.
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }

    /// The next form to be measured, which is waited for. None at the end.
    fn next(&self) -> Option<Form> {
        let mut todo = self.todo.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(form) = todo.0.pop_front() {
                return Some(form);
            }
            self.more.wait(&mut todo);
        }
    }

    /// Waits a while; false at the end.
    fn rest(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut todo = self.todo.lock();
        while !self.stop.load(Ordering::Relaxed) {
            if self.more.wait_until(&mut todo, end).timed_out() {
                return true;
            }
        }
        false
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

/// Writes down what measuring found.
fn keep(pins: &Pins, key: &Key, measured: &tune::Measured) {
    let (first, best) = (measured.first * 1e6, measured.best * 1e6);
    pins.keep(&key.to_string(), &Pin { algo: measured.found.words(), first, best });
    if gt_ir::env::on("GT_VERBOSE") {
        let all = &measured.all;
        gt_ir::say!(
            "gt worker: cuda: matmul {key}: {first:.1} us by the library's first choice, {best:.1} us kept of {all}"
        );
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
    let (bias, residual, relu) = (Bias::None, false, false);
    Form { dtype, tf32, m: N, n: N, k: N, batches: 1, a, b, bias, residual, relu, out, calls }
}

/// A matmul made ready. First come the launches `before`, whose scratch is the start of the workspace, then `enqueue`, then
/// the launches `after`.
pub struct Prepared {
    workspace: usize,
    before: Launches,
    products: Option<Products>,
    after: Launches,
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

    /// What follows the product where the library does not do it.
    pub fn after(&self) -> &Launches {
        &self.after
    }

    /// The slots that decide where operands of the library's call lie: those a captured graph cannot change.
    pub fn slots(&self) -> Vec<u32> {
        self.products.as_ref().map_or_else(Vec::new, Products::slots)
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
