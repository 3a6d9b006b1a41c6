//! The tasks of a server, all on one thread: accepting, one per connection, and the clock.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::frame::{Decoder, Frame, Kind, MAX_PAYLOAD};
use crate::handshake::{Hello, MAX_HELLO, Reason, Refusal, Welcome};
use crate::link::Received;
use crate::listen::Listener;
use crate::outbox::{Connection, Outbox, PeerId};
use crate::process::Process;
use crate::server::{Command, Handler, ServerOptions, Shutdown};
use crate::spin::Habit;
use crate::stream::Stream;

/// How long a connection may take to introduce itself.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// Connections that may be introducing themselves at a time.
const MAX_HELLOS: usize = 512;
/// How long an ended connection waits for the peer to take its last bytes.
const GOODBYE_TIME: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const READ: usize = 64 << 10;

struct Server<H> {
    options: ServerOptions,
    core: RefCell<Core<H>>,
    hellos: Cell<usize>,
    /// Counts what was read, and tells who stays awake for it, if somebody does.
    heard: Cell<u64>,
    stirred: Option<Notify>,
}

struct Core<H> {
    handler: H,
    out: Outbox,
}

/// Serves until a shutdown is asked for.
pub(crate) async fn run<H: Handler + 'static>(
    listeners: Vec<Listener>,
    options: ServerOptions,
    handler: H,
    mut shutdown: Shutdown,
) -> io::Result<()> {
    let core = RefCell::new(Core { handler, out: Outbox::new(options.limits) });
    let (hellos, heard) = (Cell::new(0), Cell::new(0));
    let habit = Habit::default();
    let stirred = habit.ever_awake().then(Notify::new);
    let server = Rc::new(Server { options, core, hellos, heard, stirred });
    let mut accepting = vec![tokio::task::spawn_local(stay_awake(server.clone(), habit))];
    for listener in listeners {
        accepting.push(tokio::task::spawn_local(accept(server.clone(), listener.watch()?)));
    }
    let mut clock = interval(TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            command = shutdown.commands.recv() => match command {
                Some(Command::Inject(payload)) => {
                    server.core.borrow_mut().call(None, |handler, out| handler.injected(payload, out));
                }
                Some(Command::Shutdown) | None => break,
            },
            _ = clock.tick() => server.core.borrow_mut().tick(),
        }
    }
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    server.core.borrow_mut().out.close("the server shuts down: start it again, then connect again");
    // Every connection's task holds the server; they end once their peers have heard.
    let ended = async {
        while Rc::strong_count(&server) > 1 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = timeout(GOODBYE_TIME, ended).await;
    Ok(())
}

impl<H: Handler> Core<H> {
    /// Runs the handler, then what follows from it. A panic ends the peer it happened for, and no other.
    fn call<R>(&mut self, peer: Option<PeerId>, f: impl FnOnce(&mut H, &mut Outbox) -> R) -> Option<R> {
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut self.handler, &mut self.out))).ok();
        if let (None, Some(peer)) = (&result, peer) {
            let reason = "the server failed on this peer's message: see its log";
            self.out.disconnect(peer, reason);
            self.out.fallen.push((peer, reason.into()));
        }
        self.out.flush();
        while let Some((peer, reason)) = self.out.fallen.pop() {
            let gone = AssertUnwindSafe(|| self.handler.gone(peer, &reason, &mut self.out));
            let _ = catch_unwind(gone);
            self.out.flush();
        }
        result
    }

    fn tick(&mut self) {
        let silent = self.out.tick();
        for peer in silent {
            self.call(Some(peer), |handler, out| handler.cut(peer, out));
        }
        let now = self.out.now_ms();
        self.call(None, |handler, out| handler.tick(now, out));
    }

    /// Takes every whole frame of a connection; false when the connection must end.
    fn frames(&mut self, peer: PeerId, connection: &Connection, decoder: &mut Decoder) -> bool {
        while !connection.over.get() {
            let received = match decoder.next() {
                Ok(Some(frame)) => self.out.receive(peer, frame),
                Ok(None) => break,
                Err(_) => return false,
            };
            match received {
                Ok(Received::Message(payload)) => {
                    self.call(Some(peer), |handler, out| handler.message(peer, payload, out));
                }
                Ok(Received::Piece(payload)) => {
                    self.call(Some(peer), |handler, out| handler.piece(peer, payload, out));
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Close(reason)) => {
                    let reason = String::from_utf8_lossy(reason);
                    self.out.remove(peer);
                    self.call(None, |handler, out| handler.gone(peer, &reason, out));
                }
                Err(error) => {
                    let reason = error.to_string();
                    self.out.disconnect(peer, &reason);
                    self.call(None, |handler, out| handler.gone(peer, &reason, out));
                }
            }
        }
        // Acknowledgements that no reply carried.
        self.out.flush_peer(peer);
        !connection.over.get()
    }
}

/// Keeps the thread from sleeping while messages follow each other closely.
async fn stay_awake<H: Handler>(server: Rc<Server<H>>, habit: Habit) {
    let Some(stirred) = &server.stirred else { return };
    let mut last = Instant::now();
    loop {
        stirred.notified().await;
        habit.took(std::mem::replace(&mut last, Instant::now()).elapsed());
        let (seen, awake) = (server.heard.get(), habit.awake());
        while server.heard.get() == seen && last.elapsed() < awake {
            tokio::task::yield_now().await;
        }
    }
}

async fn accept<H: Handler + 'static>(server: Rc<Server<H>>, listener: AsyncFd<Listener>) {
    loop {
        let accepted = match listener.readable().await {
            Ok(mut guard) => guard.try_io(|listener| listener.get_ref().accept()),
            Err(_) => return,
        };
        match accepted {
            Ok(Ok(stream)) if server.hellos.get() < MAX_HELLOS => {
                if let Ok(fd) = stream.watch() {
                    server.hellos.set(server.hellos.get() + 1);
                    tokio::task::spawn_local(serve_connection(server.clone(), fd));
                }
            }
            Ok(Ok(_too_many)) => {}
            // Out of descriptors, most often: others end and make room.
            Ok(Err(_)) => sleep(Duration::from_millis(50)).await,
            Err(_would_block) => {}
        }
    }
}

async fn serve_connection<H: Handler + 'static>(server: Rc<Server<H>>, fd: AsyncFd<Stream>) {
    let mut decoder = Decoder::new(MAX_HELLO);
    let opened = timeout(HELLO_TIME, read_hello(&fd, &mut decoder)).await;
    server.hellos.set(server.hellos.get() - 1);
    let Ok(Some(hello)) = opened else { return };
    decoder.set_max(MAX_PAYLOAD);
    let connection = Connection::new(fd);
    match open(&server, &connection, &hello) {
        Ok(peer) => {
            read_loop(&server, peer, &connection, decoder).await;
            let mut core = server.core.borrow_mut();
            if core.out.cut(peer, &connection) {
                core.call(Some(peer), |handler, out| handler.cut(peer, out));
            }
        }
        Err(refusal) => {
            let payload = refusal.encode();
            let frame = Frame { kind: Kind::Refuse, seq: 0, ack: 0, payload: &payload }.to_bytes();
            let _ = connection.fd.get_ref().write_some(&[io::IoSlice::new(&frame)]);
        }
    }
    let _ = timeout(GOODBYE_TIME, say_goodbye(&connection.fd)).await;
}

/// Reads what the peer still sends, so that closing does not destroy the bytes on their way to it.
async fn say_goodbye(fd: &AsyncFd<Stream>) {
    fd.get_ref().shutdown(std::net::Shutdown::Write);
    let mut buffer = [0; 4096];
    loop {
        let Ok(mut guard) = fd.readable().await else { return };
        if let Ok(Ok(0) | Err(_)) = guard.try_io(|fd| fd.get_ref().read(&mut buffer)) {
            return;
        }
    }
}

/// The payload of the first frame, when it is a Hello.
async fn read_hello(fd: &AsyncFd<Stream>, decoder: &mut Decoder) -> Option<Vec<u8>> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(frame) = decoder.next().ok()? {
            return (frame.kind == Kind::Hello).then(|| frame.payload.to_vec());
        }
        let mut guard = fd.readable().await.ok()?;
        match guard.try_io(|fd| fd.get_ref().read(&mut buffer)) {
            Ok(Ok(0)) | Ok(Err(_)) => return None,
            Ok(Ok(count)) => decoder.push(&buffer[..count]),
            Err(_would_block) => {}
        }
    }
}

/// Judges a Hello and opens or resumes its link.
fn open<H: Handler>(
    server: &Server<H>,
    connection: &Rc<Connection>,
    hello: &[u8],
) -> Result<PeerId, Refusal> {
    let options = &server.options;
    let (hello, version) = Hello::judge(hello, options.versions, options.token.as_deref())?;
    let mut core = server.core.borrow_mut();
    let mut welcome = Welcome {
        version,
        link_id: 0,
        link_secret: [0; 16],
        last_received: 0,
        server: options.name.clone(),
        process: Process::this(),
        body: Vec::new(),
    };
    let malformed = |error: crate::link::LinkError| Refusal::new(Reason::Malformed, error.to_string());
    if let Some(resume) = &hello.resume {
        let unknown =
            "this link is not known here: the server restarted, or the cut lasted too long: connect again";
        let peer = core.out.find(resume).ok_or_else(|| Refusal::new(Reason::UnknownLink, unknown))?;
        if core.out.drop_connection(peer) {
            core.call(Some(peer), |handler, out| handler.cut(peer, out));
        }
        core.out.welcome(peer, connection.clone(), resume.last_received, welcome).map_err(malformed)?;
        core.call(Some(peer), |handler, out| handler.resumed(peer, out));
        return Ok(peer);
    }
    if core.out.count() >= options.max_peers {
        let message = format!("the server serves {} peers already: try again later", options.max_peers);
        return Err(Refusal::new(Reason::Busy, message));
    }
    let peer = core.out.add(connection.fd.get_ref().remote_ip(), hello.process.clone());
    let failed = || Err(Refusal::new(Reason::Handler, "the server failed on this hello: see its log"));
    match core.call(None, |handler, out| handler.connected(peer, &hello, out)).unwrap_or_else(failed) {
        Ok(body) => welcome.body = body,
        Err(refusal) => {
            core.out.remove(peer);
            return Err(refusal);
        }
    }
    core.out.welcome(peer, connection.clone(), 0, welcome).map_err(malformed)?;
    Ok(peer)
}

/// Reads and writes until the connection ends or another takes its place.
async fn read_loop<H: Handler>(
    server: &Server<H>,
    peer: PeerId,
    connection: &Rc<Connection>,
    mut decoder: Decoder,
) {
    let mut buffer = vec![0; READ];
    if !server.core.borrow_mut().frames(peer, connection, &mut decoder) {
        return;
    }
    while !connection.over.get() {
        let wants_write = server.core.borrow().out.wants_write(peer);
        tokio::select! {
            biased;
            guard = connection.fd.readable() => {
                let Ok(mut guard) = guard else { return };
                match guard.try_io(|fd| fd.get_ref().read(&mut buffer)) {
                    Ok(Ok(0)) | Ok(Err(_)) => return,
                    Ok(Ok(count)) => {
                        // The socket was emptied: wait for the next event instead of asking once more.
                        if count < buffer.len() {
                            guard.clear_ready();
                        }
                        decoder.push(&buffer[..count]);
                        server.heard.set(server.heard.get() + 1);
                        server.stirred.iter().for_each(Notify::notify_one);
                        if !server.core.borrow_mut().frames(peer, connection, &mut decoder) {
                            return;
                        }
                    }
                    Err(_would_block) => {}
                }
            }
            guard = connection.fd.writable(), if wants_write => {
                let Ok(mut guard) = guard else { return };
                if server.core.borrow_mut().out.flush_peer(peer) {
                    guard.clear_ready();
                }
            }
            _ = connection.notify.notified() => {}
        }
    }
}
