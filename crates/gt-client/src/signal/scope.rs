//! Which signal the thread is in, and how what it records is marked.

use super::config::Signal;
use super::registry;
use gt_ir::signal::Lay;
use gt_ir::{Op, Result, Ty, bail};
use std::cell::{Cell, RefCell};

/// How instructions are marked just now. Numbers count from 1; 0 marks nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The signal of what is recorded.
    pub forward: u32,
    /// The signal of its backward pass.
    pub backward: u32,
    /// The mesh of what is recorded: a program has only one.
    pub mesh: u32,
    /// The least rank a tensor needs to lie as the signal says.
    pub rank: u8,
    /// Everything recorded lies as the signal says, computed or not.
    pub firm: bool,
}

/// A context that was entered.
struct Frame {
    name: String,
    backward: Option<String>,
    compile: bool,
    /// What its names meant, and when.
    scope: Scope,
    version: u64,
}

thread_local! {
    static NOW: Cell<Scope> = const { Cell::new(Scope { forward: 0, backward: 0, mesh: 0, rank: 0, firm: false }) };
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// How what is recorded on this thread is marked.
#[inline]
pub(crate) fn now() -> Scope {
    NOW.get()
}

/// Keeps another scope until dropped.
pub struct Hold(Scope);

impl Hold {
    /// From here on everything is recorded under this scope.
    pub fn scope(scope: Scope) -> Hold {
        Hold(NOW.replace(scope))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        NOW.set(self.0);
    }
}

/// Runs `f` under another scope.
pub fn with_scope<T>(scope: Scope, f: impl FnOnce() -> T) -> T {
    let _hold = Hold::scope(scope);
    f()
}

impl Scope {
    /// Of this number, for what a pass over the graph records in the name of an op.
    pub fn of_backward(number: u32) -> Scope {
        let mesh = registry::mesh(number);
        Scope { forward: number, backward: number, mesh, rank: u8::MAX, firm: false }
    }

    /// Of this number, for what lies as another tensor does.
    pub fn firmly(number: u32) -> Scope {
        Scope { rank: 0, firm: true, ..Scope::of_backward(number) }
    }

    /// Of a signal, inside `outer`.
    fn of(signal: &Signal, backward: Option<&str>, outer: Scope) -> Result<Scope> {
        let mut scope = outer;
        if let Some(spec) = signal.spec() {
            scope.rank = least_rank(&spec.lays);
            scope.forward = registry::number(spec);
            scope.backward = scope.forward;
            scope.mesh = registry::mesh(scope.forward);
        }
        let backward = match backward {
            Some(name) => registry::find_or_tell(name)?,
            // A file may name signals for the backward pass that it leaves open: they are as the forward ones.
            None => signal.backward.as_deref().map_or(Ok(None), registry::find)?,
        };
        if let Some(spec) = backward.and_then(|s| s.spec()) {
            scope.backward = registry::number(spec);
        }
        Ok(scope)
    }
}

/// The least rank of a tensor that can lie so.
pub(super) fn least_rank(lays: &[Lay]) -> u8 {
    let need = |lay: &Lay| match *lay {
        Lay::Split(dim) if dim < 0 => dim.unsigned_abs().min(255) as u8,
        Lay::Split(dim) => (dim + 1).min(255) as u8,
        Lay::Whole | Lay::Free => 0,
    };
    lays.iter().map(need).max().unwrap_or(0)
}

/// Enters a context: what the thread records from here on lies as the signal says.
pub fn enter(name: &str, backward: Option<&str>) -> Result<()> {
    let version = registry::version();
    let outer = NOW.get();
    let signal = registry::find_or_tell(name)?;
    let (scope, compile) = match &signal {
        Some(signal) => (Scope::of(signal, backward, outer)?, signal.compile),
        None => (outer, false),
    };
    if compile {
        boundary(true)?;
    }
    if FRAMES.with_borrow(Vec::is_empty) {
        border()?;
    }
    let backward = backward.map(str::to_string);
    FRAMES.with_borrow_mut(|f| f.push(Frame { name: name.into(), backward, compile, scope, version }));
    NOW.set(scope);
    Ok(())
}

/// Leaves the innermost context, which must be that of `name` if one is given.
pub fn exit(name: Option<&str>) -> Result<()> {
    let (inner, compiles) = FRAMES.with_borrow(|f| {
        let outside = f.len().saturating_sub(1);
        (f.last().map(|f| f.name.clone()), f[..outside].iter().any(|f| f.compile))
    });
    let Some(inner) = inner else {
        bail!(Runtime, "signal.exit: no signal was entered on this thread");
    };
    if let Some(name) = name.filter(|n| *n != inner) {
        bail!(Runtime, "signal.exit: the innermost signal is {inner:?}, not {name:?}");
    }
    let frame = FRAMES.with_borrow_mut(Vec::pop);
    refresh();
    match frame {
        Some(frame) if frame.compile => boundary(compiles),
        _ => Ok(()),
    }
}

/// A stream that goes through stages of a pipeline is cut where its next pass begins: what was recorded outside reads
/// results of the last stage, for which the first one must not have to wait.
fn border() -> Result<()> {
    if !crate::stream::any_moved() {
        return Ok(());
    }
    let (_, stream) = crate::current::current()?;
    if stream.moves() > 0 { stream.flush() } else { Ok(()) }
}

/// Cuts the stream here; what follows is compiled at once, or as usual.
fn boundary(at_once: bool) -> Result<()> {
    let (_, stream) = crate::current::current()?;
    stream.boundary(at_once)
}

/// The name of the innermost context.
pub fn current_name() -> Option<String> {
    FRAMES.with_borrow(|f| f.last().map(|f| f.name.clone()))
}

/// Works the scope out from the contexts the thread is in; those whose signals may have changed are looked up anew.
pub(super) fn refresh() {
    let version = registry::version();
    let scope = FRAMES.with_borrow_mut(|frames| {
        let mut outer = Scope::default();
        for frame in frames {
            if frame.version != version {
                let scope = match registry::find(&frame.name) {
                    Ok(Some(signal)) => Scope::of(&signal, frame.backward.as_deref(), outer).ok(),
                    _ => None,
                };
                frame.scope = scope.unwrap_or(outer);
                frame.version = version;
            }
            outer = frame.scope;
        }
        outer
    });
    NOW.set(scope);
}

/// How the value of an instruction is marked: 0 for not at all, else the signal's number and two bits: it is firm, and
/// it is firm if it outlives its program.
#[inline]
pub(crate) fn mark_of(scope: Scope, op: &Op, ty: &Ty) -> u32 {
    if scope.forward == 0 { 0 } else { mark_inside(scope, op, ty) }
}

#[cold]
fn mark_inside(scope: Scope, op: &Op, ty: &Ty) -> u32 {
    let fits = ty.shape.len() >= scope.rank as usize;
    let bits = match op {
        _ if scope.firm => FIRM,
        // What comes from outside is laid out. Fills and ranges cost nothing to make, so a mask that is used up at
        // once lies as its user likes, and only one that somebody keeps is laid out.
        Op::Data { .. } | Op::Random { .. } if fits => FIRM,
        Op::Full { .. } | Op::Arange { .. } if fits => FIRM_IF_KEPT,
        _ => 0,
    };
    scope.forward << 2 | bits
}

/// The value lies as the signal says.
pub(crate) const FIRM: u32 = 1;
/// It does if it outlives its program.
pub(crate) const FIRM_IF_KEPT: u32 = 2;
