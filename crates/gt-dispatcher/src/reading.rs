//! Clients' messages on their way in. One that brings a large new structure is read and checked on a thread of its own, and
//! what the same client says meanwhile waits behind it: nobody else does.

use crate::machine::Vouched;
use gt_ir::{Error, Result};
use gt_net::intern::{Interner, Written, brings_much, decode_client};
use gt_net::msg::ClientMsg;
use gt_net::server::PeerId;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reads one client's messages in their order.
pub struct Reader {
    /// The structures that the client has sent; away while a thread reads.
    interner: Option<Interner>,
    /// Messages behind the one that a thread reads.
    waiting: VecDeque<Vec<u8>>,
}

/// A message that a thread has read.
pub struct Read {
    pub peer: PeerId,
    /// The reader's, to be given back.
    pub interner: Interner,
    pub message: Result<ClientMsg>,
    /// Its large structures, checked, and written as they go to workers.
    pub vouched: Vec<Vouched>,
    pub written: Vec<Written>,
}

impl Reader {
    pub fn new() -> Reader {
        Reader { interner: Some(Interner::new()), waiting: VecDeque::new() }
    }

    /// Reads a message, or nothing yet: then `tell` is told of it, on another thread, or it waits its turn (`next`).
    pub fn read(
        &mut self,
        peer: PeerId,
        payload: &[u8],
        tell: impl FnOnce(Read) + Send + 'static,
    ) -> Option<Result<ClientMsg>> {
        let Some(mut interner) = self.interner.take() else {
            self.waiting.push_back(payload.to_vec());
            return None;
        };
        if !brings_much(payload) {
            let message = decode_client(payload, &mut interner);
            self.interner = Some(interner);
            return Some(message);
        }
        let payload = payload.to_vec();
        let work = move || tell(read(peer, &payload, interner));
        match std::thread::Builder::new().name("gt-reader".into()).spawn(work) {
            Ok(_) => None,
            Err(e) => Some(Err(Error::Connection(format!("no thread could be started to read with: {e}")))),
        }
    }

    /// A thread is done.
    pub fn done(&mut self, interner: Interner) {
        self.interner = Some(interner);
    }

    /// The next message that waits, if its turn has come.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        self.interner.as_ref().and_then(|_| self.waiting.pop_front())
    }
}

fn read(peer: PeerId, payload: &[u8], mut interner: Interner) -> Read {
    let work = || {
        let message = decode_client(payload, &mut interner)?;
        let vouched = Vouched::all(&message);
        let written = vouched.iter().map(|v| Written::new(v.structure())).collect();
        Ok((message, vouched, written))
    };
    let broken = |_| Err(Error::Runtime("message: it cannot be read, see the server's log".into()));
    let (message, vouched, written) = match catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(broken) {
        Ok((message, vouched, written)) => (Ok(message), vouched, written),
        Err(error) => (Err(error), Vec::new(), Vec::new()),
    };
    Read { peer, interner, message, vouched, written }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::{Arg, Binary, DType, Input, Instr, Op, Program, Scalar, Structure, Ty};
    use gt_net::intern::encode_client;
    use gt_net::msg::{Batch, Run};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    fn message(seq: u64, instrs: usize) -> ClientMsg {
        let add = |i: usize| Instr {
            op: Op::Binary(Binary::Add),
            args: [Arg::Value(i as u32), Arg::Const(Scalar::Int(1))].into_iter().collect(),
        };
        let structure = Structure {
            inputs: vec![Input { ty: Ty::new(DType::F32, [2]), dies: false }],
            instrs: (0..instrs).map(add).collect(),
            outs: vec![instrs as u32],
            ..Structure::default()
        };
        let (inputs, outs) = (vec![gt_ir::TensorId(1)], vec![gt_ir::TensorId(1 + seq)]);
        let (key, structure) = (structure.key(), Arc::new(structure));
        let program = Program { structure, key, inputs, outs, slots: vec![], frees: vec![] };
        ClientMsg::Batch(Batch { runs: vec![Run { seq, program, prefix: None }], ..Batch::default() })
    }

    #[test]
    fn messages_keep_their_order_behind_one_that_takes_long() {
        let sent: Vec<ClientMsg> =
            (1..6).map(|seq| message(seq, if seq % 2 == 1 { 5 } else { 4000 + seq as usize })).collect();
        let mut interner = Interner::new();
        let bytes: Vec<Vec<u8>> = sent.iter().map(|m| encode_client(m, &mut interner)).collect();
        let (mut reader, peer) = (Reader::new(), PeerId(1));
        let (tell, told) = mpsc::channel();
        let mut got = Vec::new();
        for payload in &bytes {
            let tell = tell.clone();
            got.extend(reader.read(peer, payload, move |read| tell.send(read).unwrap()).map(|m| m.unwrap()));
        }
        assert_eq!(got, sent[..1]);
        while got.len() < sent.len() {
            let read = told.recv_timeout(Duration::from_secs(60)).expect("a thread reads");
            assert_eq!((read.vouched.len(), read.written.len()), (1, 1));
            got.push(read.message.unwrap());
            reader.done(read.interner);
            while let Some(payload) = reader.next() {
                let tell = tell.clone();
                got.extend(
                    reader.read(peer, &payload, move |read| tell.send(read).unwrap()).map(|m| m.unwrap()),
                );
            }
        }
        assert_eq!(got, sent);
    }
}
