//! Laying out tensors by name: one at a time, the parameters of a model, and all of them again when the file changes.

use super::registry;
use super::scope::{FIRM, Scope, least_rank, refresh, with_scope};
use crate::Tensor;
use crate::autograd::record;
use crate::cell::Cell;
use crate::tensor::WeakTensor;
use crate::value::Value;
use foldhash::fast::FixedState;
use gt_ir::signal::SignalSpec;
use gt_ir::{Error, Op, Operand, Result, View, bail};
use gt_sync::Mutex;
use smallvec::smallvec;
use std::collections::HashMap;
use std::time::Instant;

/// A tensor that keeps its layout when it is written, and follows its signal when that changes.
struct Kept {
    tensor: WeakTensor,
    signal: String,
    /// The parameter's name, where a pattern gave its layout.
    parameter: Option<String>,
}

static KEPT: Mutex<HashMap<usize, Kept, FixedState>> =
    Mutex::new(HashMap::with_hasher(FixedState::with_seed(0x6b65)));

thread_local! {
    /// A parameter was laid out that the open program makes.
    static FRESH: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The same tensor, lying as the signal says. Without such a signal it is the tensor itself.
pub fn lay_out(tensor: &Tensor, name: &str) -> Result<Tensor> {
    let Some(signal) = registry::find_or_tell(name)? else { return Ok(tensor.clone()) };
    let Some(spec) = signal.spec() else { return Ok(tensor.clone()) };
    spec.layouts(tensor.shape()).map_err(|e| at(&signal, e))?;
    let scope = firm(spec);
    let backward = match signal.backward.as_deref().map_or(Ok(None), registry::find)?.and_then(|s| s.spec()) {
        Some(spec) => registry::number(spec),
        None => scope.forward,
    };
    let var = tensor.var()?;
    with_scope(Scope { backward, ..scope }, || record(identity(tensor), smallvec![Operand::Val(var)]))
        .map(Tensor::from_var)
}

/// An error with the place where the signal is written.
fn at(signal: &super::config::Signal, error: Error) -> Error {
    error.map_message(|m| format!("{}: {m}", signal.node.place))
}

fn identity(tensor: &Tensor) -> Op {
    Op::View(View::Reshape(tensor.shape().clone()))
}

fn firm(spec: SignalSpec) -> Scope {
    let rank = least_rank(&spec.lays);
    let number = registry::number(spec);
    Scope { rank, ..Scope::firmly(number) }
}

/// Lays out a parameter as the patterns of a signal say, in place, and for good. True if there was something to say.
pub fn apply(tensor: &Tensor, signal: &str, parameter: Option<&str>) -> Result<bool> {
    let Some(spec) = wanted(tensor, signal, parameter)? else { return Ok(false) };
    if tensor.is_view() {
        bail!(
            Runtime,
            "signal {signal:?}: a view lies as its storage does: lay out the tensor it is a view of"
        );
    }
    move_to(tensor, spec)?;
    let kept =
        Kept { tensor: tensor.downgrade(), signal: signal.into(), parameter: parameter.map(str::to_string) };
    let mut all = KEPT.lock();
    if all.len() > 1024 && all.len().is_power_of_two() {
        all.retain(|_, k| k.tensor.upgrade().is_some());
    }
    all.insert(tensor.address(), kept);
    Ok(true)
}

/// The parameters of a module are laid out by a signal: if it is one of several workers, and the open program makes some of
/// them, that program ends here. Together with the first step it would be one in which every worker may well make all of a
/// parameter, which that step needs, before it keeps its part.
pub fn laid_out(name: &str) -> Result<()> {
    let several =
        || registry::find(name).map(|s| s.and_then(|s| s.spec()).is_none_or(|s| s.workers.len() != 1));
    if FRESH.replace(false) && several()? {
        let (_, stream) = crate::current::current()?;
        stream.flush()?;
    }
    Ok(())
}

/// How a tensor is to lie. For a parameter this is what a pattern says; for a stage of a pipeline, and for any other
/// tensor, what the signal itself says.
fn wanted(tensor: &Tensor, name: &str, parameter: Option<&str>) -> Result<Option<SignalSpec>> {
    let Some(signal) = registry::find(name)? else { return Ok(None) };
    let spec = match parameter {
        Some(parameter) => signal.parameter(parameter, tensor.shape())?,
        None => signal.spec(),
    };
    let fits = |spec: &SignalSpec| tensor.ndim() >= least_rank(&spec.lays) as usize;
    Ok(spec.filter(fits))
}

/// Gives a tensor its layout where it has another.
fn move_to(tensor: &Tensor, spec: SignalSpec) -> Result<bool> {
    let scope = firm(spec);
    let cell = tensor.cell();
    if cell.signal() == scope.forward {
        return Ok(false);
    }
    // From here on writes keep it.
    cell.set_signal(scope.forward);
    let mark = scope.forward << 2 | FIRM;
    let value = cell.read().value;
    if value.stream.mark(&value, mark) {
        FRESH.set(true);
    } else {
        let var = crate::autograd::Var::plain(value);
        let new = with_scope(scope, || record(identity(tensor), smallvec![Operand::Val(var)]))?;
        cell.write(new.value, false);
    }
    Ok(true)
}

/// The value a kept tensor is to be written with: marked, or laid out by an instruction of its own.
pub(crate) fn keep(cell: &Cell, value: Value) -> Result<Value> {
    let number = cell.signal();
    if number == 0 || value.stream.mark(&value, number << 2 | FIRM) {
        return Ok(value);
    }
    let op = Op::View(View::Reshape(value.ty.shape.clone()));
    let scope = Scope::firmly(number);
    let var = crate::autograd::Var::plain(value);
    with_scope(scope, || record(op, smallvec![Operand::Val(var)])).map(|var| var.value)
}

/// The signal by which a tensor is laid out; 0 for none.
pub(crate) fn of(tensor: &Tensor) -> u32 {
    tensor.cell().signal()
}

/// Runs `f` under the signal by which a tensor is laid out, firmly or where its workers are.
pub(crate) fn like<T>(number: u32, firm: bool, f: impl FnOnce() -> T) -> T {
    match (number, firm) {
        (0, _) => f(),
        (number, true) => with_scope(Scope::firmly(number), f),
        (number, false) => with_scope(Scope::of_backward(number), f),
    }
}

/// Which stage of a pipeline the `index`-th of `count` layers belongs to, by the name of its signal.
pub fn stage_of(signal: &str, index: usize, count: usize) -> Result<Option<String>> {
    let Some(stages) = registry::find(signal)?.and_then(|s| s.stages) else { return Ok(None) };
    let stage = index * stages.count as usize / count.max(1);
    Ok(Some(format!("{signal}.{}", stage.min(stages.count as usize - 1))))
}

/// Looks whether the configuration was edited. If so, the tensors of its signals are laid out anew, and with
/// `GT_VERBOSE=1` its cost is told. Called where a program is cut.
pub fn poll() -> Result<()> {
    let Some(before) = registry::reload() else { return Ok(()) };
    let start = Instant::now();
    refresh();
    let kept: Vec<(Tensor, String, Option<String>)> = {
        let mut all = KEPT.lock();
        all.retain(|_, k| k.tensor.upgrade().is_some());
        let one = |k: &Kept| Some((k.tensor.upgrade()?, k.signal.clone(), k.parameter.clone()));
        let mut kept: Vec<_> = all.values().filter_map(one).collect();
        kept.sort_by(|a, b| (&a.1, &a.2).cmp(&(&b.1, &b.2)));
        kept
    };
    let mut lies = Vec::with_capacity(kept.len());
    for (tensor, signal, parameter) in kept {
        match wanted(&tensor, &signal, parameter.as_deref()) {
            Ok(spec) => lies.push((tensor, spec)),
            Err(error) => {
                registry::take_back(before, &error);
                refresh();
                return Ok(());
            }
        }
    }
    let verbose = gt_ir::env::on("GT_VERBOSE");
    let session = lies.first().map(|(t, _)| t.session()).transpose()?;
    let before = match (&session, verbose) {
        (Some(session), true) => {
            session.synchronize()?;
            Some(session.stats()?.moved_bytes)
        }
        _ => None,
    };
    let (mut moved, mut bytes) = (0, 0);
    for (tensor, spec) in lies {
        match spec {
            Some(spec) => {
                if move_to(&tensor, spec)? {
                    moved += 1;
                    bytes += tensor.ty().bytes();
                }
            }
            // No signal speaks of it any more: it stays where it is until something else moves it.
            None => tensor.cell().set_signal(0),
        }
    }
    if let (Some(session), Some(before)) = (session, before) {
        session.synchronize()?;
        let copied = session.stats()?.moved_bytes - before;
        let copied =
            if copied > 0 { format!(", {:.1} MB of copies", copied as f64 / 1e6) } else { String::new() };
        let (megabytes, ms) = (bytes as f64 / 1e6, start.elapsed().as_secs_f64() * 1e3);
        gt_ir::say!(
            "gt: signals changed: {moved} tensors of {megabytes:.1} MB laid out anew{copied}, {ms:.0} ms"
        );
    } else if verbose {
        gt_ir::say!("gt: signals changed: no tensor had to move");
    }
    Ok(())
}
