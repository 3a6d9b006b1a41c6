//! Round trips of a small message, beside those of a bare socket: `cargo run --release --example echo_latency`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gt_net::handshake::{Hello, Refusal, Role};
use gt_net::peer::{Event, HelloOptions, Peer};
use gt_net::server::{
    Handler, Listener, Outbox, PeerId, ServerHandle, ServerOptions, bind, bind_unix, serve,
};

const BYTES: usize = 64;

type Any<T> = Result<T, Box<dyn std::error::Error>>;

struct Echo;

impl Handler for Echo {
    fn connected(&mut self, _: PeerId, _: &Hello, _: &mut Outbox) -> Result<Vec<u8>, Refusal> {
        Ok(Vec::new())
    }

    fn message(&mut self, peer: PeerId, payload: &[u8], out: &mut Outbox) {
        out.send(peer, payload.to_vec());
    }

    fn gone(&mut self, _: PeerId, _: &str, _: &mut Outbox) {}
}

fn main() -> Any<()> {
    let path = std::env::temp_dir().join(format!("gt-echo-{}", std::process::id()));
    let bare = bare_tcp()?;
    let tcp = || bind("127.0.0.1", 0, None);
    let measured = [
        ("bare tcp", bare),
        ("tcp", link(tcp()?, Wait::Channel)?),
        ("tcp driven", link(tcp()?, Wait::Drive)?),
        ("unix", link(bind_unix(&path)?, Wait::Channel)?),
        ("unix driven", link(bind_unix(&path)?, Wait::Drive)?),
    ];
    let rows = measured.map(|(name, (median, high))| {
        let ratio = median / bare.0;
        format!(r#"{{"transport": "{name}", "median_us": {median:.1}, "p99_us": {high:.1}, "to_bare": {ratio:.2}}}"#)
    });
    println!("[{}]", rows.join(",\n "));
    Ok(())
}

/// Median and 99th percentile of one round trip, in microseconds.
fn time(mut round_trip: impl FnMut() -> Any<()>) -> Any<(f64, f64)> {
    let (warm, count) = (2_000, 20_000);
    let mut micros = Vec::with_capacity(count);
    for round in 0..warm + count {
        let start = Instant::now();
        round_trip()?;
        if round >= warm {
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    micros.sort_by(f64::total_cmp);
    Ok((micros[count / 2], micros[count * 99 / 100]))
}

/// What the machine allows: two threads, blocking sockets, nothing else.
fn bare_tcp() -> Any<(f64, f64)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::spawn(move || {
        let mut buffer = [0; BYTES];
        while far.read_exact(&mut buffer).is_ok() && far.write_all(&buffer).is_ok() {}
    });
    let mut buffer = [1; BYTES];
    time(|| Ok(near.write_all(&buffer).and_then(|()| near.read_exact(&mut buffer))?))
}

/// How the answer is waited for.
enum Wait {
    /// The I/O thread hands it over.
    Channel,
    /// The waiting thread drives the connection.
    Drive,
}

/// A peer and a server.
fn link(listener: Listener, wait: Wait) -> Any<(f64, f64)> {
    let addr = listener.addr();
    let listeners = vec![listener];
    let (handle, shutdown) = ServerHandle::new(&listeners);
    let server = thread::spawn(move || serve(listeners, ServerOptions::default(), Echo, shutdown));
    let (sender, replies) = channel();
    let on_event = Box::new(move |event| {
        if let Event::Message(bytes) = event {
            let _ = sender.send(bytes);
        }
    });
    let (peer, _) = Peer::connect(&addr, HelloOptions::new(Role::Client), on_event)?;
    let measured = time(|| {
        peer.send(vec![1; BYTES])?;
        match wait {
            Wait::Channel => drop(replies.recv()?),
            Wait::Drive => {
                let come =
                    peer.drive(Instant::now() + Duration::from_secs(10), || replies.try_recv().is_ok());
                assert!(come, "no answer");
            }
        }
        Ok(())
    })?;
    peer.close();
    handle.shutdown();
    let _ = server.join();
    Ok(measured)
}
