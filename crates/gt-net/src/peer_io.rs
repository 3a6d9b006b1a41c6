//! A peer's connection at work: reads, writes leftovers, keeps the link alive, and resumes it after a cut.
//!
//! One thread at a time works it: the I/O thread, or a thread that waits for an answer and drives it itself,
//! which saves waking one for the other.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gt_sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connect::{ConnectError, shake_hands};
use crate::frame::Decoder;
use crate::handshake::{Resume, Role, Welcome};
use crate::link::{Alive, Received};
use crate::peer::{Event, Shared};
use crate::process::Process;
use crate::stream::Stream;

/// The longest sleep; heartbeats and silence are noticed within it.
pub(crate) const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// How long a closing peer waits for the server to take the last bytes.
const CLOSE_TIME: Duration = Duration::from_secs(2);

pub(crate) struct Io {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    woken: UnixStream,
    decoder: Decoder,
    link_id: u64,
    secret: [u8; 16],
    server: Process,
    on_event: Box<dyn FnMut(Event) + Send>,
    closing_since: Option<Instant>,
    buffer: Vec<u8>,
    /// Set by a driver that saw the connection end; the I/O thread mends it.
    pub ended: Option<End>,
}

/// How the use of one connection ended.
pub(crate) enum End {
    Cut,
    Lost(String),
    Closed,
}

/// Marks the link as lost however the I/O thread ends, a panic of `on_event` included: nobody waits for it.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if let Some(stream) = state.stream.take() {
            stream.shutdown(std::net::Shutdown::Both);
        }
        state.lost.get_or_insert_with(|| "the event handler failed".into());
        drop(state);
        self.0.room.notify_all();
        self.0.drivers.progress.notify_all();
    }
}

/// The I/O thread: works the connection whenever no driver does, until the link is closed or lost.
pub(crate) fn run(io: &Mutex<Io>, shared: &Arc<Shared>) {
    let _ending = Ending(shared.clone());
    loop {
        shared.drivers.step_aside(|| shared.state.lock().closing);
        let mut io = io.lock();
        // A client's answers are read by who waits for them; a worker's commands are read here.
        let hot = shared.options.role == Role::Worker;
        let (start, spin) = (Instant::now(), if hot { shared.habit.awake() } else { Duration::ZERO });
        let end = io.ended.take().or_else(|| io.turn(NAP, spin));
        if hot {
            shared.habit.took(start.elapsed());
        }
        if end.is_some_and(|end| io.mend(end)) {
            return;
        }
        shared.drivers.mended();
        shared.drivers.progress.notify_all();
    }
}

impl Io {
    pub fn new(
        shared: Arc<Shared>,
        stream: Arc<Stream>,
        woken: UnixStream,
        decoder: Decoder,
        welcome: &Welcome,
        on_event: Box<dyn FnMut(Event) + Send>,
    ) -> Self {
        let (link_id, secret, server) = (welcome.link_id, welcome.link_secret, welcome.process.clone());
        let buffer = vec![0; 64 << 10];
        Io {
            shared,
            stream,
            woken,
            decoder,
            link_id,
            secret,
            server,
            on_event,
            closing_since: None,
            buffer,
            ended: None,
        }
    }

    /// Deals with the end of a connection; true when it is the end of the link.
    fn mend(&mut self, mut end: End) -> bool {
        self.stream.shutdown(std::net::Shutdown::Both);
        {
            let mut state = self.shared.state.lock();
            state.stream = None;
            state.link.cut(self.shared.now());
            if state.closing {
                end = End::Closed;
            }
        }
        if let End::Cut = end {
            (self.on_event)(Event::Cut);
            end = self.reconnect();
        }
        let (reason, told) = match end {
            End::Cut => {
                (self.on_event)(Event::Resumed);
                return false;
            }
            End::Lost(reason) => (reason, true),
            End::Closed => ("closed".into(), false),
        };
        self.shared.state.lock().lost = Some(reason.clone());
        if told {
            (self.on_event)(Event::Lost(reason));
        }
        true
    }

    /// Waits up to `nap` for bytes, the first `spin` of it without sleeping, and deals with what came.
    pub fn turn(&mut self, nap: Timespec, spin: Duration) -> Option<End> {
        // What arrived together with a Welcome is not announced by the socket.
        if let Some(end) = self.deliver() {
            return Some(end);
        }
        let wants_write = match self.upkeep() {
            Ok(wants_write) => wants_write,
            Err(end) => return Some(end),
        };
        if !spin.is_zero() && !wants_write {
            let start = Instant::now();
            while start.elapsed() < spin {
                match self.read() {
                    Ok(true) => return self.deliver(),
                    Ok(false) => std::thread::yield_now(),
                    Err(end) => return Some(end),
                }
            }
        }
        let interest = if wants_write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds = [PollFd::new(&*self.stream, interest), PollFd::new(&self.woken, PollFlags::IN)];
        match poll(&mut fds, Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Some(End::Lost(format!("poll: {error}"))),
        }
        let readable = fds[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        if !fds[1].revents().is_empty() {
            let _ = (&self.woken).read(&mut [0; 64]);
        }
        match readable.then(|| self.read()) {
            Some(Ok(true)) => self.deliver(),
            Some(Err(end)) => Some(end),
            Some(Ok(false)) | None => None,
        }
    }

    /// Reads what is there; false when nothing is.
    fn read(&mut self) -> Result<bool, End> {
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err(End::Cut),
            Ok(count) => {
                self.decoder.push(&self.buffer[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(End::Cut),
        }
    }

    /// Hands every whole message to the owner, with no lock held while it runs.
    fn deliver(&mut self) -> Option<End> {
        loop {
            let frame = match self.decoder.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return None,
                // A damaged stream is a cut: the frames are asked for again.
                Err(_) => return Some(End::Cut),
            };
            let received = {
                let mut state = self.shared.state.lock();
                state.reader = Some(thread::current().id());
                let before = state.link.unacked_bytes();
                let received = state.link.receive(self.shared.now(), frame);
                if state.link.unacked_bytes() < before {
                    self.shared.room.notify_all();
                }
                received
            };
            match received {
                Ok(Received::Nothing) => {}
                Ok(Received::Message(payload)) => (self.on_event)(Event::Message(payload.to_vec())),
                Ok(Received::Piece(payload)) => (self.on_event)(Event::Piece(payload.to_vec())),
                Ok(Received::Close(reason)) => {
                    return Some(End::Lost(format!(
                        "the server ended it: {}",
                        String::from_utf8_lossy(reason)
                    )));
                }
                Err(error) => return Some(End::Lost(error.to_string())),
            }
        }
    }

    /// Heartbeats, leftovers and closing; tells whether the socket is too full to take all.
    fn upkeep(&mut self) -> Result<bool, End> {
        let mut state = self.shared.state.lock();
        state.reader = None;
        match state.link.tick(self.shared.now()) {
            Alive::Yes => {}
            Alive::Silent => return Err(End::Cut),
            Alive::Lost => return Err(End::Lost("the server did not come back in time".into())),
        }
        self.shared.flush(&mut state);
        let wants_write = state.link.wants_write();
        if state.closing {
            let since = *self.closing_since.get_or_insert_with(Instant::now);
            if since.elapsed() > CLOSE_TIME {
                return Err(End::Closed);
            }
            if !wants_write {
                self.stream.shutdown(std::net::Shutdown::Write);
            }
        }
        Ok(wants_write)
    }

    /// Tries until the link is resumed (`End::Cut`: the cut is mended), lost or closed.
    fn reconnect(&mut self) -> End {
        let mut pause = Duration::from_millis(20);
        let mut trouble = String::from("the connection was cut");
        loop {
            let last_received = {
                let mut state = self.shared.state.lock();
                if state.closing {
                    return End::Closed;
                }
                if state.link.tick(self.shared.now()) == Alive::Lost {
                    return End::Lost(format!("not resumed in time: {trouble}"));
                }
                state.link.last_received()
            };
            let resume = Resume { link_id: self.link_id, secret: self.secret, last_received };
            let closing = || self.shared.state.lock().closing;
            match shake_hands(&self.shared.addr, &self.shared.options, Some(resume), closing) {
                Ok((stream, decoder, welcome)) => {
                    let stream = Arc::new(stream);
                    let mut state = self.shared.state.lock();
                    if let Err(error) = state.link.resume(self.shared.now(), welcome.last_received) {
                        return End::Lost(error.to_string());
                    }
                    state.stream = Some(stream.clone());
                    self.shared.flush(&mut state);
                    self.stream = stream;
                    self.decoder = decoder;
                    return End::Cut;
                }
                Err(error @ (ConnectError::Rejected { .. } | ConnectError::NotGt { .. })) => {
                    return End::Lost(error.to_string());
                }
                // Another server may come to this address, but not with this link.
                Err(error) if self.server.has_ended() => {
                    return End::Lost(format!("the server's process ended: {error}"));
                }
                Err(error) => trouble = error.to_string(),
            }
            let nap = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as _ };
            let _ = poll(&mut [PollFd::new(&self.woken, PollFlags::IN)], Some(&nap));
            let _ = (&self.woken).read(&mut [0; 64]);
            pause = (pause * 2).min(Duration::from_millis(900));
        }
    }
}
