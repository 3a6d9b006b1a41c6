//! Attention steps made ready for cuDNN: the library's plan for a form is made once, a run only gives addresses.

use super::api::api;
use super::choice::{Choice, Way, Wish, in_order};
use super::graph::{For, Graph, Lay, Plan, Type};
use super::handle::Handle;
use super::sdpa::{Sdpa, Sums, id};
use crate::backends::cuda::disk::{Disk, hash};
use crate::backends::cuda::stages::stage;
use cudarc::driver::sys;
use foldhash::HashMap;
use gt_compiler::{Num, Work};
use gt_ir::{DType, Result, Slot};
use gt_kernels::attention::{Form, Side};
use gt_sync::Mutex;
use std::ffi::c_void;
use std::sync::{Arc, Once, OnceLock};

/// The library on one device, loaded when the first step may need it.
pub struct Cudnn {
    wish: Wish,
    arch: u32,
    /// The device in words.
    device: String,
    opened: OnceLock<Option<Arc<Opened>>>,
    /// The plan of each form seen, none where the library has no way.
    plans: Mutex<HashMap<Sdpa, Option<Arc<Plan>>>>,
}

struct Opened {
    choice: Choice,
    running: Handle,
    /// Plans are made beside, since that may take a second.
    planning: Handle,
    /// Library and device, which plans on disk belong to.
    of: String,
    disk: Option<Disk>,
}

/// Memory that a gradient may take for its scores; batches and heads that need more come one after the other.
const MOST: usize = 512 << 20;
/// Memory that the library takes beside, at most.
const BESIDE: usize = 1 << 20;

impl Cudnn {
    /// For a device of a name and a compute capability.
    pub fn new(wish: Wish, device: &str, arch: u32) -> Cudnn {
        Cudnn { wish, arch, device: device.into(), opened: OnceLock::new(), plans: Mutex::default() }
    }

    /// Makes a step ready, if the library is to run it. The device's context is current.
    pub fn prepare(&self, work: &Work, plan: &gt_compiler::Plan) -> Option<Attend> {
        if self.wish == Wish::Own {
            return None;
        }
        let form = Form::new(work, plan)?;
        let opened = self.opened()?;
        let slices = Slices::new(&form, opened.choice.way()).filter(|_| opened.choice.takes(&form))?;
        let sdpa = slices.sdpa(&form);
        let known = self.plans.lock().get(&sdpa).cloned();
        let made = match known {
            Some(made) => made,
            None => {
                let made = stage("cuDNN planned an attention", || opened.plan(&sdpa));
                let made = made.map_err(|error| self.say(&error.to_string())).ok().map(Arc::new);
                self.plans.lock().entry(sdpa.clone()).or_insert(made).clone()
            }
        };
        Some(Attend { form, slices, plan: made?, opened: opened.clone() })
    }

    /// Bytes of memory that a step may take beside its plan's own if the library runs it, known before it is made ready.
    pub fn need(&self, work: &Work, plan: &gt_compiler::Plan) -> usize {
        // The newest version takes most; an absent one nothing, once that is known.
        let choice = match self.opened.get() {
            Some(Some(opened)) => opened.choice,
            Some(None) => return 0,
            None => Choice { wish: self.wish, arch: self.arch, version: usize::MAX },
        };
        let form = Form::new(work, plan).filter(|form| choice.takes(form));
        let need = |form| Some(Slices::new(&form, choice.way())?.need(&form, choice.way()));
        form.and_then(need).unwrap_or(0)
    }

    fn opened(&self) -> Option<&Arc<Opened>> {
        let open = || {
            let opened = stage("cuDNN loaded", || Opened::new(self.wish, &self.device, self.arch));
            opened.map_err(|error| self.say(&error.to_string())).ok().map(Arc::new)
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// Says why kernels of ours attend: always where the library was asked for, once.
    fn say(&self, why: &str) {
        static SAID: Once = Once::new();
        if self.wish == Wish::Cudnn || gt_ir::env::on("GT_VERBOSE") {
            SAID.call_once(|| gt_ir::say!("gt worker: cuda: attention by kernels of our own: {why}"));
        }
    }
}

impl Opened {
    fn new(wish: Wish, device: &str, arch: u32) -> Result<Opened> {
        let choice = Choice { wish, arch, version: api()?.version() };
        let (running, planning) = (Handle::open()?, Handle::open()?);
        let of = format!("cudnn {} on {device}", choice.version);
        Ok(Opened { choice, running, planning, of, disk: Disk::open() })
    }

    /// The library's plan for a form: from disk, where an earlier process left it, or made now.
    fn plan(&self, sdpa: &Sdpa) -> Result<Plan> {
        self.planning.with(|handle| {
            let device = For::Handle(handle);
            let key = hash(&[self.of.as_bytes(), format!("{sdpa:?}").as_bytes()]);
            let kept = self.disk.as_ref().and_then(|disk| disk.get(key));
            let kept = kept.and_then(|bytes| String::from_utf8(bytes).ok());
            if let Some(plan) = kept.and_then(|text| Plan::read(&text, &device).ok()) {
                return Ok(plan);
            }
            let ops = if sdpa.grad.is_some() { sdpa.backward(Sums::Kept)? } else { sdpa.forward()? };
            let graph = Graph::new(&ops, &device)?;
            let plan = match (self.choice.way(), sdpa.grad.is_some()) {
                (Way::InOrder, true) => {
                    let (engine, knobs) = in_order(self.choice.version, sdpa.q.dims[3]);
                    let config = graph.config(engine, &knobs, &device)?;
                    graph.try_config(config, &device)?.0
                }
                _ => graph.plan(&device, MOST + BESIDE)?,
            };
            if let (Some(disk), Ok(text)) = (&self.disk, plan.written()) {
                disk.put(key, text.as_bytes());
            }
            Ok(plan)
        })
    }
}

/// How batches and heads are divided, so that a gradient's scores have room.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slices {
    /// Batches and key heads of one call.
    batches: usize,
    key_heads: usize,
}

impl Slices {
    /// As few calls as can be; `None` where the scores of one key head's rows are too many.
    fn new(form: &Form, way: Way) -> Option<Slices> {
        let whole = Slices { batches: form.batches, key_heads: form.key_heads };
        if form.grad.is_none() || way == Way::InOrder {
            return Some(whole);
        }
        let fits = |s: &Slices| s.need(form, way) <= MOST;
        let batches = (1..=form.batches).rev().filter(|n| form.batches.is_multiple_of(*n));
        let heads = (1..form.key_heads).rev().filter(|n| form.key_heads.is_multiple_of(*n));
        let fewer = batches.map(|batches| Slices { batches, ..whole });
        fewer.chain(heads.map(|key_heads| Slices { batches: 1, key_heads })).find(fits)
    }

    fn heads(&self, form: &Form) -> usize {
        self.key_heads * (form.heads / form.key_heads)
    }

    /// Bytes of one number for each row.
    fn per_row(&self, form: &Form) -> usize {
        (4 * self.batches * self.heads(form) * form.rows).next_multiple_of(256)
    }

    /// Bytes beside the operands: a gradient keeps all scores or sums in f32, gradients of keys and values for each head
    /// where several share one, and a number for each row.
    fn need(&self, form: &Form, way: Way) -> usize {
        if form.grad.is_none() {
            return BESIDE;
        }
        let heads = self.batches * self.heads(form);
        let sums = match way {
            Way::Kept => 2 * heads * form.rows.next_multiple_of(64) * form.cols.next_multiple_of(128),
            Way::InOrder => 4 * heads * form.rows.next_multiple_of(128) * form.d,
        };
        let shared = if form.heads == form.key_heads { 0 } else { 2 * heads * form.cols * (form.d + form.e) };
        sums + shared + self.per_row(form) + BESIDE
    }

    /// One call in the library's terms.
    fn sdpa(&self, form: &Form) -> Sdpa {
        let [rows, cols] = [(self.heads(form), form.rows), (self.key_heads, form.cols)];
        let lay = |side: &Side, (heads, len): (usize, usize), width: usize| {
            let [b, h, s] = side.strides;
            Lay {
                dims: [self.batches, heads, len, width].map(|n| n as i64),
                strides: [b, h, s, 1].map(|n| n as i64),
            }
        };
        let grad = form.grad.as_ref().map(|[dout, dq, dk, dv]| {
            [lay(dout, rows, form.e), lay(dq, rows, form.d), lay(dk, cols, form.d), lay(dv, cols, form.e)]
        });
        Sdpa {
            of: if form.dtype == DType::F16 { Type::F16 } else { Type::BF16 },
            causal: form.causal,
            q: lay(&form.q, rows, form.d),
            k: lay(&form.k, cols, form.d),
            v: lay(&form.v, cols, form.e),
            out: lay(&form.out, rows, form.e),
            grad,
        }
    }
}

/// An attention step made ready for the library.
pub struct Attend {
    form: Form,
    slices: Slices,
    plan: Arc<Plan>,
    opened: Arc<Opened>,
}

impl Attend {
    /// Bytes of memory needed while it runs, at a multiple of 256.
    pub fn workspace(&self) -> usize {
        self.delta() + self.plan.workspace
    }

    /// Bytes of the numbers that a gradient keeps for each row, which lie first.
    fn delta(&self) -> usize {
        if self.form.grad.is_some() { self.slices.per_row(&self.form) } else { 0 }
    }

    /// The slots that decide where operands lie, or the scale. A captured graph keeps those.
    pub fn slots(&self) -> Vec<u32> {
        let Form { q, k, v, out, lse, grad, scale, .. } = &self.form;
        let sides = [q, k, v, out].into_iter().chain(grad.iter().flatten());
        let mut slots: Vec<u32> = sides.flat_map(|side| side.origin.slots()).chain(lse.slots()).collect();
        if let Num::Slot(slot) = scale {
            slots.push(*slot);
        }
        slots
    }

    /// Calls of one run.
    pub fn calls(&self) -> usize {
        let Slices { batches, key_heads } = self.slices;
        (self.form.batches / batches.max(1)) * (self.form.key_heads / key_heads.max(1))
    }

    /// Puts it on the stream, or into the graph being captured there. `addresses` are those of the plan's storages.
    pub fn enqueue(
        &self,
        stream: sys::CUstream,
        addresses: &[u64],
        slots: &[Slot],
        workspace: u64,
    ) -> Result<()> {
        let form = &self.form;
        let share = form.heads / form.key_heads;
        for batch in (0..form.batches).step_by(self.slices.batches.max(1)) {
            for head in (0..form.key_heads).step_by(self.slices.key_heads.max(1)) {
                let size = form.dtype.size();
                let at = |side: &Side, head: usize| {
                    let moved = batch * side.strides[0] + head * side.strides[1];
                    side.origin.address(size, addresses, slots, workspace) + (moved * size) as u64
                };
                let (of_rows, of_cols) = (share * head, head);
                let lse = form.lse.address(4, addresses, slots, workspace);
                let lse = lse + 4 * ((batch * form.heads + of_rows) * form.rows) as u64;
                let mut given = Given::default();
                given.put(id::Q, at(&form.q, of_rows));
                given.put(id::K, at(&form.k, of_cols));
                given.put(id::V, at(&form.v, of_cols));
                given.put(id::OUT, at(&form.out, of_rows));
                given.put(id::LSE, lse);
                if let Some([dout, dq, dk, dv]) = &form.grad {
                    given.put(id::DOUT, at(dout, of_rows));
                    given.put(id::DQ, at(dq, of_rows));
                    given.put(id::DK, at(dk, of_cols));
                    given.put(id::DV, at(dv, of_cols));
                    given.put(id::DELTA, workspace);
                }
                self.call(given, slots, workspace, stream)?;
            }
        }
        Ok(())
    }

    fn call(&self, mut given: Given, slots: &[Slot], workspace: u64, stream: sys::CUstream) -> Result<()> {
        let scale = self.form.scale.get(slots).as_f64() as f32;
        let numbers = [scale, f32::NEG_INFINITY, 1.0];
        let number = |i: usize| &numbers[i] as *const f32 as u64;
        given.put(id::SCALE, number(0));
        if self.form.causal {
            given.put(id::LEAST, number(1));
        }
        if self.form.grad.is_some() {
            given.put(id::ONE, number(2));
        }
        let workspace = workspace + self.delta() as u64;
        // SAFETY: the operands lie as the plan was made for, in memory that the run keeps; the workspace has the size that
        // was asked for, and the library reads numbers of the host's before it returns.
        unsafe { self.opened.running.run(&self.plan, &given.ids, &given.pointers, workspace, stream) }
    }
}

/// Ids of tensors with their addresses.
#[derive(Default)]
struct Given {
    ids: Vec<i64>,
    pointers: Vec<*mut c_void>,
}

impl Given {
    fn put(&mut self, id: i64, address: u64) {
        self.ids.push(id);
        self.pointers.push(address as *mut c_void);
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::forms;
    use super::*;

    #[test]
    fn the_scores_of_a_gradient_are_sliced_to_have_room() {
        let slices = |sizes| forms("bf16", sizes).map(|form| Slices::new(&form.unwrap(), Way::Kept));
        let of = |batches, key_heads| Some(Slices { batches, key_heads });
        // Forward never, since it keeps no scores.
        assert_eq!(slices([8, 16, 8, 2048, 2048, 64]), [of(8, 8), of(2, 8)]);
        assert_eq!(slices([8, 16, 8, 512, 512, 64]), [of(8, 8), of(8, 8)]);
        assert_eq!(slices([2, 16, 8, 4096, 4096, 128]), [of(2, 8), of(1, 4)]);
        assert_eq!(slices([1, 16, 8, 8192, 8192, 128]), [of(1, 8), of(1, 1)]);
        assert_eq!(slices([1, 16, 8, 16384, 16384, 128]), [of(1, 8), None]);
        for sizes in [[8, 16, 8, 2048, 2048, 64], [2, 16, 8, 4096, 4096, 128]] {
            let [_, form] = forms("bf16", sizes).map(Option::unwrap);
            let slices = Slices::new(&form, Way::Kept).unwrap();
            assert!(slices.need(&form, Way::Kept) <= MOST);
            let sdpa = slices.sdpa(&form);
            let dims = [slices.batches, 2 * slices.key_heads, form.rows, form.d];
            assert_eq!(sdpa.q.dims, dims.map(|n| n as i64));
            // What adds in order needs memory for a few numbers per row alone.
            let whole = Slices::new(&form, Way::InOrder).unwrap();
            assert_eq!((whole.batches, whole.key_heads), (form.batches, form.key_heads));
            assert!(whole.need(&form, Way::InOrder) < 256 << 20);
            // Slices lie as the whole does.
            assert_eq!(
                sdpa.q.strides,
                [form.q.strides[0], form.q.strides[1], form.q.strides[2], 1].map(|n| n as i64)
            );
        }
    }
}
