//! A connection that only watches.

use gt_ir::{Error, Result};
use gt_net::addr::Addr;
use gt_net::handshake::Role;
use gt_net::intern::{Interner, decode, encode_client};
use gt_net::msg::{ClientMsg, SessionMsg};
use gt_net::observe::{Detail, Scope, Snapshot};
use gt_net::peer::{Event, HelloOptions, Peer};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// What comes from the server.
pub enum Seen {
    Snapshot(Box<Snapshot>),
    Lines(Vec<String>),
    /// The connection is over, and why.
    Lost(String),
}

/// Somebody who watches a server. Dropping it ends that.
pub struct Observer {
    peer: Peer,
    seen: Receiver<Seen>,
    pub addr: Addr,
}

impl Observer {
    /// Connects, and asks for snapshots every `every_ms` milliseconds and for lines as `detail` says.
    pub fn connect(addr: &Addr, token: Option<String>, detail: Detail, every_ms: u32) -> Result<Observer> {
        let (tell, seen) = channel();
        let on_event = Box::new(move |event| {
            let message = match event {
                Event::Message(bytes) => decode::<SessionMsg>(&bytes),
                Event::Lost(reason) => {
                    let _ = tell.send(Seen::Lost(reason));
                    return;
                }
                Event::Piece(_) | Event::Cut | Event::Resumed => return,
            };
            let what = match message {
                Ok(SessionMsg::Snapshot(snapshot)) => Seen::Snapshot(snapshot),
                Ok(SessionMsg::Trace { lines }) => Seen::Lines(lines),
                Ok(SessionMsg::Fatal { error }) => Seen::Lost(error.to_string()),
                Ok(_) => return,
                Err(error) => Seen::Lost(error.to_string()),
            };
            let _ = tell.send(what);
        });
        let options = HelloOptions { token, vars: Vec::new(), ..HelloOptions::new(Role::Client) };
        let (peer, _) =
            Peer::connect(addr, options, on_event).map_err(|e| Error::Connection(e.to_string()))?;
        let observer = Observer { peer, seen, addr: addr.clone() };
        observer.watch(detail, every_ms)?;
        Ok(observer)
    }

    /// Watches more or less closely from now on.
    pub fn watch(&self, detail: Detail, every_ms: u32) -> Result<()> {
        let message = ClientMsg::Watch { scope: Scope::All, detail, every_ms };
        let bytes = encode_client(&message, &mut Interner::new());
        self.peer.send(bytes).map_err(|e| Error::Connection(e.to_string()))
    }

    /// The next thing to be seen, if there is one within `patience`.
    pub fn next(&self, patience: Duration) -> Option<Seen> {
        match self.seen.recv_timeout(patience) {
            Ok(seen) => Some(seen),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Seen::Lost("the connection is closed".into())),
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.watch(Detail::Nothing, 0);
        self.peer.close();
    }
}
