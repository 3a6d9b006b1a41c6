//! Values that lie in pieces: every worker is asked for its own.

use super::message::{Parts, part};
use super::session::{Gather, Late, Session};
use super::tensor::Spread;
use gt_ir::layout::{Layout, Part, place, range_at};
use gt_ir::{Result, bail};
use gt_net::msg::{Fetch, Payload, Piece, Value, WorkerId};

impl Session {
    /// Asks every worker for its piece of a tensor.
    pub(super) fn fetch_pieces(&mut self, fetch: Fetch, spread: &Spread, parts: &mut Parts) -> Result<()> {
        let Some(tensor) = self.tensors.get(fetch.tensor) else { return Ok(()) };
        let shape = tensor.ty.shape.clone();
        let mut gather = Gather {
            tensor: fetch.tensor,
            waiting: Vec::new(),
            got: Vec::new(),
            from: Vec::new(),
            failure: None,
            remade: false,
        };
        for (rank, &worker) in spread.mesh.workers.iter().enumerate() {
            let place = place(&spread.mesh.shape, rank);
            // Where an axis holds the same again, its first part is asked.
            let again = |(l, part): (&Layout, &Part)| *l == Layout::Whole && part.index > 0;
            if spread.layouts.iter().zip(&place).any(again) {
                continue;
            }
            let range = |dim: usize| range_at(shape[dim], dim, &spread.layouts, &place);
            let ranges = || (0..shape.len()).map(range);
            let starts = ranges().map(|r| r.start as u64).collect();
            let sizes = ranges().map(|r| r.len() as u64).collect();
            gather.waiting.push((worker, starts, sizes));
            self.looked.insert(worker);
            part(parts, worker).fetches.push(Fetch { req: fetch.req, tensor: fetch.tensor });
        }
        if self.fetches.contains_key(&fetch.req) || self.gathers.insert(fetch.req, gather).is_some() {
            bail!(Value, "fetch: request {} was made twice", fetch.req);
        }
        Ok(())
    }

    /// A worker's piece of a tensor has come, or the reason why there is none.
    pub(super) fn got_piece(&mut self, worker: WorkerId, value: Value) {
        let Some(gather) = self.gathers.get_mut(&value.req) else { return };
        let Some(at) = gather.waiting.iter().position(|(w, ..)| *w == worker) else { return };
        let (_, starts, sizes) = gather.waiting.remove(at);
        match value.result {
            Ok(payload) => {
                gather.got.push(Piece { starts, sizes, payload });
                gather.from.push(worker);
            }
            Err(failure) => drop(gather.failure.get_or_insert(failure)),
        }
        if !gather.waiting.is_empty() {
            return;
        }
        // All have answered, so that nothing of this asking is left should the tensor be asked for again.
        let Some(Gather { tensor, got, from, failure, remade, .. }) = self.gathers.remove(&value.req) else {
            return;
        };
        match failure {
            Some(failure) => self.tell_failure(Late { req: value.req, tensor, failure }, remade),
            None => {
                // A client that cannot reach them asks for the pieces by their places.
                from.into_iter().for_each(|worker| self.granted(value.req, worker));
                self.news.values.push(Value { req: value.req, result: Ok(Payload::Pieces(got)) });
            }
        }
    }
}
