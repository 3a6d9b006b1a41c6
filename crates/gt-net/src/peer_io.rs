//! The I/O thread of a peer: reads, writes leftovers, keeps the link alive, and resumes it after a cut.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frame::Decoder;
use crate::handshake::{Resume, Welcome};
use crate::link::{Alive, Received};
use crate::peer::{ConnectError, Event, Shared, shake_hands};
use crate::stream::Stream;

/// The longest sleep; heartbeats and silence are noticed within it.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// How long a closing peer waits for the server to take the last bytes.
const CLOSE_TIME: Duration = Duration::from_secs(2);

pub(crate) struct Io {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    woken: UnixStream,
    decoder: Decoder,
    link_id: u64,
    secret: [u8; 16],
    on_event: Box<dyn FnMut(Event) + Send>,
    closing_since: Option<Instant>,
}

/// How the use of one connection ended.
enum End {
    Cut,
    Lost(String),
    Closed,
}

impl Drop for Io {
    /// However the thread ends, a panic of `on_event` included, nobody waits for it.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.stream = None;
        state.lost.get_or_insert_with(|| "the event handler failed".into());
        drop(state);
        self.stream.shutdown(std::net::Shutdown::Both);
        self.shared.room.notify_all();
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
        let (link_id, secret) = (welcome.link_id, welcome.link_secret);
        Io { shared, stream, woken, decoder, link_id, secret, on_event, closing_since: None }
    }

    /// Serves the link until it is closed or lost.
    pub fn run(mut self) {
        loop {
            let mut end = self.use_connection();
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
            match end {
                End::Cut => (self.on_event)(Event::Resumed),
                End::Lost(reason) => {
                    self.shared.state.lock().lost = Some(reason.clone());
                    self.shared.room.notify_all();
                    return (self.on_event)(Event::Lost(reason));
                }
                End::Closed => {
                    self.shared.state.lock().lost = Some("closed".into());
                    self.shared.room.notify_all();
                    return;
                }
            }
        }
    }

    fn use_connection(&mut self) -> End {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(end) = self.deliver() {
                return end;
            }
            let wants_write = match self.upkeep() {
                Ok(wants_write) => wants_write,
                Err(end) => return end,
            };
            let interest = if wants_write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut fds = [PollFd::new(&*self.stream, interest), PollFd::new(&self.woken, PollFlags::IN)];
            match poll(&mut fds, Some(&NAP)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return End::Lost(format!("poll: {error}")),
            }
            let readable = fds[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
            if !fds[1].revents().is_empty() {
                let _ = (&self.woken).read(&mut [0; 64]);
            }
            if readable {
                match self.stream.read(&mut buffer) {
                    Ok(0) => return End::Cut,
                    Ok(count) => self.decoder.push(&buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return End::Cut,
                }
            }
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
            match shake_hands(&self.shared.addr, &self.shared.options, Some(resume)) {
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
                Err(error) => trouble = error.to_string(),
            }
            let nap = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as _ };
            let _ = poll(&mut [PollFd::new(&self.woken, PollFlags::IN)], Some(&nap));
            let _ = (&self.woken).read(&mut [0; 64]);
            pause = (pause * 2).min(Duration::from_millis(900));
        }
    }
}
