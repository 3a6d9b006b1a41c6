//! Tensors: a cell and a view of it, with PyTorch's aliasing and autograd.

mod history;
mod view;
mod write;

pub use view::restride;

use crate::autograd::{Edge, GradMode, GradSlot, Var, grad_enabled};
use crate::cell::Cell;
use crate::session::Session;
use crate::value::{Value, ValueInner};
use crate::wait::Unbroken;
use gt_ir::{DType, Error, Result, Scalar, Shape, Ty, View, bail};
use gt_sync::Mutex;
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock, Weak};
use write::watch;

/// Strides in elements.
pub type Strides = SmallVec<[isize; 5]>;

/// One step from a storage towards a view of it.
#[derive(Clone, Debug)]
pub enum Step {
    /// A view, and where it starts if it is a slice.
    View(View, Option<i64>),
    /// What lies along `dim` at a place that a 0-d tensor of integers tells; the dimension goes.
    Pick { dim: usize, place: Value },
}

/// A tensor. Cloning it gives another name for the same tensor.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

/// A tensor that may be gone.
#[derive(Clone)]
pub struct WeakTensor(Weak<Inner>);

impl WeakTensor {
    pub fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
}

struct Inner {
    cell: Arc<Cell>,
    /// From the whole storage to what this tensor shows; empty for the whole.
    path: Vec<Step>,
    ty: Ty,
    /// Strides and offset within the storage, for views. What is picked counts as the first along its dimension.
    geometry: Option<Box<(Strides, isize)>>,
    /// Gradient history of its own, apart from the storage's: (history, how many steps of the path lie before it).
    domain: OnceLock<(Arc<Domain>, usize)>,
    slot: OnceLock<Arc<GradSlot>>,
    retains: std::sync::atomic::AtomicBool,
    /// Writes through it are not counted by autograd (`.data`).
    silent: bool,
    derived: Mutex<Option<Derived>>,
}

/// Gradient history of a tensor detached from its storage's.
struct Domain {
    edge: Mutex<Option<Edge>>,
}

/// What a view was worked out to be at some stamp of its cell.
struct Derived {
    stamp: u64,
    value: Shown,
    edge: Option<Edge>,
}

/// The value of a view.
enum Shown {
    /// Of what is picked: it is read once.
    Kept(Value),
    /// Not kept alive by the view: to look at the storage again costs nothing.
    Handle(Weak<ValueInner>),
}

impl Shown {
    fn value(&self) -> Option<Value> {
        match self {
            Shown::Kept(value) => Some(value.clone()),
            Shown::Handle(value) => value.upgrade(),
        }
    }
}

impl Tensor {
    fn make(
        cell: Arc<Cell>,
        path: Vec<Step>,
        ty: Ty,
        geometry: Option<Box<(Strides, isize)>>,
        silent: bool,
    ) -> Tensor {
        Tensor(Arc::new(Inner {
            cell,
            path,
            ty,
            geometry,
            domain: OnceLock::new(),
            slot: OnceLock::new(),
            retains: false.into(),
            silent,
            derived: Mutex::new(None),
        }))
    }

    /// A tensor with storage of its own.
    #[inline]
    pub fn from_var(var: Var) -> Tensor {
        let ty = var.value.ty.clone();
        let saved = |e: &&Edge| e.node.outs.lock().iter().any(|saved| saved.version.is_none());
        let watched = var.edge.as_ref().filter(saved).map(|e| (e.node.clone(), var.value.clone()));
        let cell = Cell::new(var.value, var.edge);
        if let Some((node, value)) = watched {
            watch(&cell, &node, &value);
        }
        Tensor::make(cell, Vec::new(), ty, None, false)
    }

    /// A tensor with storage of its own and no gradient history.
    pub fn from_value(value: Value) -> Tensor {
        Tensor::from_var(Var::plain(value))
    }

    pub fn ty(&self) -> &Ty {
        &self.0.ty
    }

    pub fn shape(&self) -> &Shape {
        &self.0.ty.shape
    }

    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    pub fn ndim(&self) -> usize {
        self.0.ty.shape.len()
    }

    pub fn numel(&self) -> usize {
        self.0.ty.shape.numel()
    }

    /// True if both are names of one tensor.
    pub fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True if both look at one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0.cell, &other.0.cell)
    }

    /// A number that is the same for all names of one tensor, and differs between tensors.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// A number that is the same for all tensors of one storage.
    pub fn storage_address(&self) -> usize {
        Arc::as_ptr(&self.0.cell) as usize
    }

    /// Lets go of the storage, if nobody else looks at it: nobody will use this tensor any more.
    pub fn let_go(&self) -> Result<()> {
        if Arc::strong_count(&self.0) > 1 || Arc::strong_count(&self.0.cell) > 1 {
            return Ok(());
        }
        let nothing =
            crate::ops::create::full_var(&self.session()?, &Ty::new(DType::U8, [0]), Scalar::Int(0))?;
        self.0.cell.revert(nothing.value);
        Ok(())
    }

    /// The storage it looks at.
    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.0.cell
    }

    /// True if this tensor is a view of another.
    pub fn is_view(&self) -> bool {
        !self.0.path.is_empty()
    }

    /// True if a tensor tells where it lies in what it is a view of.
    fn is_picked(&self) -> bool {
        matches!(self.0.path.last(), Some(Step::Pick { .. }))
    }

    /// Strides in elements within the storage.
    pub fn strides(&self) -> Strides {
        match &self.0.geometry {
            Some(g) => g.0.clone(),
            None => self.0.ty.shape.strides(),
        }
    }

    /// The first element's place within the storage; of what is picked along a dimension, the place of the first there.
    pub fn storage_offset(&self) -> isize {
        self.0.geometry.as_ref().map_or(0, |g| g.1)
    }

    /// True if the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        match &self.0.geometry {
            None => true,
            Some(g) => {
                let mut expected = 1;
                for (&n, &s) in self.shape().iter().zip(&g.0).rev() {
                    if n != 1 && s != expected {
                        return self.numel() == 0;
                    }
                    expected *= n as isize;
                }
                true
            }
        }
    }

    /// The session the tensor belongs to.
    pub fn session(&self) -> Result<Arc<Session>> {
        Var::plain(self.0.cell.read().value).session()
    }

    /// How often the storage was written, as autograd counts.
    pub fn version(&self) -> u32 {
        self.0.cell.version()
    }

    /// The current value and its gradient history; stale views are worked out anew.
    #[inline]
    pub fn var(&self) -> Result<Var> {
        let inner = &*self.0;
        let now = inner.cell.read();
        if inner.path.is_empty() {
            let edge = match inner.domain.get() {
                None => now.edge,
                Some((domain, _)) => domain.edge.lock().clone(),
            };
            return Ok(Var { value: now.value, edge, owner: self.owner() });
        }
        let unbroken = Unbroken::begin();
        let mut derived = inner.derived.lock();
        let fresh = derived.as_ref().filter(|d| d.stamp == now.stamp);
        let own_edge = match inner.domain.get() {
            Some((domain, depth)) if *depth == inner.path.len() => Some(domain.edge.lock().clone()),
            _ => None,
        };
        if let Some(d) = fresh
            && let Some(value) = d.value.value()
        {
            let edge = own_edge.unwrap_or_else(|| d.edge.clone());
            return Ok(Var { value, edge, owner: self.owner() });
        }
        // The value is gone or stale: record the path again. The history is kept if it is still that of the cell.
        let known_edge = fresh.map(|d| d.edge.clone());
        let var = match (own_edge, known_edge) {
            (Some(edge), _) => Var { value: self.walk(now.value, None, 0)?.value, edge, owner: None },
            (None, Some(edge)) => Var { value: self.walk(now.value, None, 0)?.value, edge, owner: None },
            (None, None) => match inner.domain.get() {
                None => self.walk(now.value, now.edge, 0)?,
                Some((domain, depth)) => {
                    let edge = domain.edge.lock().clone();
                    self.walk(now.value, edge, *depth)?
                }
            },
        };
        let value = match self.is_picked() {
            true => Shown::Kept(var.value.clone()),
            false => Shown::Handle(Arc::downgrade(&var.value)),
        };
        let before = derived.replace(Derived { stamp: now.stamp, value, edge: var.edge.clone() });
        drop(derived);
        drop(before);
        unbroken.end(|| var.session())?;
        Ok(Var { owner: self.owner(), ..var })
    }

    /// The storage, for a graph that may come to watch its version; no graph grows where gradients are off.
    #[inline]
    fn owner(&self) -> Option<Arc<Cell>> {
        grad_enabled().then(|| self.0.cell.clone())
    }

    /// A handle that does not keep the tensor alive.
    pub fn downgrade(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.0))
    }

    /// The same storage without gradient history.
    pub fn detach(&self) -> Tensor {
        self.alias(false)
    }

    /// `.data`: like `detach`, but autograd does not count writes through it.
    pub fn data(&self) -> Tensor {
        self.alias(true)
    }

    fn alias(&self, silent: bool) -> Tensor {
        let inner = &*self.0;
        let domain = OnceLock::new();
        let _ = domain.set((Arc::new(Domain { edge: Mutex::new(None) }), inner.path.len()));
        Tensor(Arc::new(Inner {
            cell: inner.cell.clone(),
            path: inner.path.clone(),
            ty: inner.ty.clone(),
            geometry: inner.geometry.clone(),
            domain,
            slot: OnceLock::new(),
            retains: false.into(),
            silent: silent || inner.silent,
            derived: Mutex::new(None),
        }))
    }

    /// The dense bytes of the tensor; waits for them.
    pub fn bytes(&self) -> Result<Arc<Vec<u8>>> {
        crate::signal::poll()?;
        if self.numel() == 0 {
            self.session()?.before_op()?;
            return Ok(Arc::new(Vec::new()));
        }
        let value = {
            let _mode = GradMode::set(false);
            self.var()?.value
        };
        self.session()?.fetch(&value)
    }

    /// The only element as a number; waits for it.
    pub fn item(&self) -> Result<Scalar> {
        if self.numel() != 1 {
            bail!(
                Runtime,
                "a Tensor with {} elements cannot be converted to Scalar: index it first, or use .tolist()",
                self.numel()
            );
        }
        Ok(Scalar::read(self.dtype(), &self.bytes()?))
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Tensor({})", self.0.ty)
    }
}

/// Refuses tensors that are not floating point.
pub(crate) fn need_float(op: &str, t: &Tensor) -> Result<()> {
    if !t.dtype().is_float() {
        return Err(Error::Runtime(format!(
            "{op}: expected a floating-point tensor, got {}",
            t.dtype().name()
        )));
    }
    Ok(())
}
