//! Tensor bytes that clients bring and ask for: which worker is to have them or to give them, and by which road.

use super::holders::Holder;
use super::message::{Parts, part};
use super::session::{Asked, Session, no_workers};
use super::tensor::Tensor;
use super::{Action, Carry, Cx, Way};
use gt_ir::{Error, Result, TensorId, Ty, bail};
use gt_net::msg::{Bytes, Failure, Fetch, SessionMsg, Value, WorkerCmd};

impl Session {
    pub(super) fn fetch(&mut self, fetch: Fetch, parts: &mut Parts, cx: &mut Cx) -> Result<()> {
        let Some(tensor) = self.tensors.get(fetch.tensor) else {
            bail!(Value, "fetch: tensor {} does not exist", fetch.tensor.0)
        };
        if tensor.freed_by != 0 {
            bail!(Value, "fetch: tensor {} was freed by program {}", fetch.tensor.0, tensor.freed_by);
        }
        if let Some(why) = &tensor.poison {
            let result = Err((**why).clone());
            self.news.values.push(Value { req: fetch.req, result });
            return Ok(());
        }
        if let Some(spread) = tensor.spread.clone() {
            return self.fetch_pieces(fetch, &spread, parts);
        }
        let at_hand = tensor.holders.iter().find(|h| parts.iter().any(|(w, _)| *w == h.worker));
        let Some(worker) = at_hand.map(|h| h.worker).or(tensor.source()) else {
            // Kept by I5; answered all the same.
            let error = no_workers(&cx.config.address);
            let result = Err(Failure { root: 0, instr: None, error });
            self.news.values.push(Value { req: fetch.req, result });
            return Ok(());
        };
        let asked = Asked { worker, tensor: fetch.tensor, remade: false };
        if self.fetches.insert(fetch.req, asked).is_some() {
            bail!(Value, "fetch: request {} was made twice", fetch.req);
        }
        self.looked.insert(worker);
        part(parts, worker).fetches.push(fetch);
        Ok(())
    }

    pub(super) fn upload(&mut self, id: TensorId, ty: Ty, data: Option<Bytes>, cx: &mut Cx) -> Result<()> {
        ty.shape.check("upload", ty.dtype)?;
        let bytes = ty.bytes() as u64;
        if let Some(data) = data.as_ref().filter(|d| d.len() as u64 != bytes) {
            bail!(Value, "upload: got {} bytes for a tensor of {ty}, expected {bytes}", data.len());
        }
        let mut tensor = Tensor::new(ty.clone());
        let worker = if self.spread { cx.pool.least_loaded() } else { self.home(cx) };
        let Some(worker) = worker else {
            let error = no_workers(&cx.config.address);
            let why = Failure { root: 0, instr: None, error };
            tensor.poison = Some(Box::new(why.clone()));
            if data.is_none() {
                self.tell_client(cx, SessionMsg::Unwanted { tensor: id, why });
            }
            return self.add(id, tensor, cx);
        };
        tensor.facts().holders.push(Holder { worker, moving: None });
        self.add(id, tensor, cx)?;
        let session = self.id;
        match data {
            Some(data) => self.tell_worker(cx, worker, WorkerCmd::Upload { session, tensor: id, ty, data }),
            None => {
                let expires = cx.config.epoch_ms + cx.now + cx.config.ticket_ms;
                let Some((at, ticket)) = cx.pool.grant(worker, session, id, bytes, expires) else {
                    bail!(
                        Connection,
                        "upload: the worker has no bulk plane, the bytes must come with the message"
                    );
                };
                self.expect_upload(id, worker, ty.clone());
                let tell = self.sharding.is_some() || !self.signals.is_empty();
                if tell {
                    self.arriving.insert(id, worker);
                }
                self.tell_worker(cx, worker, WorkerCmd::Expect { session, tensor: id, ty, tell });
                self.tell_client(cx, SessionMsg::Grant { tensor: id, at, ticket });
            }
        }
        Ok(())
    }

    /// Bytes that could not be brought to the worker directly. Programs may wait for them even if the client has
    /// dropped the tensor since.
    pub(super) fn relay(&mut self, id: TensorId, data: Bytes, cx: &mut Cx) -> Result<()> {
        let Some((worker, ty)) = self.take_upload(id) else { return Ok(()) };
        if data.len() != ty.bytes() {
            bail!(Value, "relay: {} bytes for tensor {}, which is {ty}", data.len(), id.0);
        }
        self.tell_worker(cx, worker, WorkerCmd::Fulfil { session: self.id, tensor: id, data });
        Ok(())
    }

    /// The same for many bytes: they pass through the shell. The upload stays known, to be withdrawn if they do not.
    pub(super) fn carry(&mut self, id: TensorId, cx: &mut Cx) {
        let known = self.uploads.iter().find(|(tensor, ..)| *tensor == id);
        let (worker, bytes) = known.map_or((None, 0), |(_, w, ty)| (Some(*w), ty.bytes() as u64));
        let way = Way::Up { bytes };
        cx.out.push(Action::Carry(Carry { session: self.id, tensor: id, worker, way }));
    }

    /// Bytes that will never come: the tensor has no value, and programs that wait for it fail.
    pub(super) fn withdraw(&mut self, id: TensorId, error: Error, cx: &mut Cx) {
        let Some((worker, _)) = self.take_upload(id) else { return };
        self.arriving.remove(&id);
        let failure = Failure { root: 0, instr: None, error };
        if let Some(tensor) = self.tensors.get_mut(id) {
            tensor.poison.get_or_insert_with(|| Box::new(failure.clone()));
        }
        self.tell_worker(cx, worker, WorkerCmd::Poison { session: self.id, tensor: id, failure });
    }

    pub(super) fn fetch_relay(
        &mut self,
        req: u64,
        id: TensorId,
        piece: Option<u32>,
        cx: &mut Cx,
    ) -> Result<()> {
        // Whoever has a piece of a value has no other, so only the one that promised it can send it.
        let at = piece.unwrap_or(0) as usize;
        let granted = self.granted.iter().filter(|(r, _)| *r == req).nth(at).map(|(_, w)| *w);
        let holder = || self.tensors.get(id).filter(|_| piece.is_none()).and_then(Tensor::source);
        match granted.or_else(holder).filter(|w| cx.pool.get(*w).is_some()) {
            Some(worker) => {
                self.relays.push((worker, id, req));
                let command =
                    WorkerCmd::Send { session: self.id, tensor: id, goal: None, to: None, now: false };
                self.tell_worker(cx, worker, command);
            }
            None => {
                let error = Error::Connection("fetch: the worker that had the value is gone".into());
                self.news.values.push(Value { req, result: Err(Failure { root: 0, instr: None, error }) });
            }
        }
        Ok(())
    }
}
