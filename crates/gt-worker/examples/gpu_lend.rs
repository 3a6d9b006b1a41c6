//! Tensors between two processes on one GPU: lent from device memory to device memory, and by way of the host, both ways.
//! What comes is compared with what went; a line per size says how fast.
//!
//! `cargo run --release -p gt-worker --example gpu_lend`. The status says whether all is well.

use gt_ir::{DType, Ty};
use gt_net::bulk::{
    BulkBytes, BulkClient, BulkError, BulkServer, BulkServerOptions, BulkStore, Dir, Endpoint, Pieces,
    TakesPieces, Ticket, TicketKey, host_id, now_ms,
};
use gt_worker::backend::{Backend, Borrowed, Borrower, Buffer, HostBytes};
use gt_worker::backends::cuda::{CudaBackend, tensors_moved};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Both processes sign with it.
const KEY: TicketKey = TicketKey(*b"two of one host.");
const SIZES: [usize; 6] = [64 << 10, 1 << 20, 16 << 20, (64 << 20) + 12, 256 << 20, 1 << 30];

type Wrong = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let done = match args.get(1) {
        Some(parent) => child(parent),
        None => parent(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps what comes on the device.
struct Store {
    backend: CudaBackend,
    tensors: Mutex<HashMap<u64, Buffer>>,
}

struct Taking<'a> {
    store: &'a Store,
    tensor: u64,
    borrowed: Box<dyn Borrowed>,
}

impl TakesPieces for Taking<'_> {
    fn take(&mut self, card: &[u8]) -> Result<(), String> {
        self.borrowed.take(card).map_err(|e| e.to_string())
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        let buffer = self.borrowed.end().map_err(|e| e.to_string())?;
        self.store.tensors.lock().unwrap().insert(self.tensor, buffer);
        Ok(())
    }
}

impl BulkStore for Store {
    fn put(&self, ticket: &Ticket, bytes: BulkBytes) -> Result<(), String> {
        let ty = Ty::new(DType::U8, [bytes.as_slice().len()]);
        let data = HostBytes::Owned(Arc::new(bytes.as_slice().to_vec()));
        let buffer = self.backend.upload(&ty, data).map_err(|e| e.to_string())?;
        self.tensors.lock().unwrap().insert(ticket.tensor, buffer);
        Ok(())
    }

    fn take_pieces(&self, ticket: &Ticket) -> Result<Box<dyn TakesPieces + '_>, String> {
        let borrowed = self.backend.borrow(ticket.bytes as usize).map_err(|e| e.to_string())?;
        Ok(Box::new(Taking { store: self, tensor: ticket.tensor, borrowed }))
    }

    fn get(&self, ticket: &Ticket) -> Result<BulkBytes, String> {
        let buffer = self.tensors.lock().unwrap().remove(&ticket.tensor).ok_or("no such tensor")?;
        Ok(BulkBytes::Vec(self.backend.download(&buffer).map_err(|e| e.to_string())?.to_vec()))
    }
}

struct Showing<'a, 'b>(&'a mut Pieces<'b>);

impl Borrower for Showing<'_, '_> {
    fn show(&mut self, card: &[u8]) -> gt_ir::Result<()> {
        self.0.show(card).map_err(|e| gt_ir::Error::Connection(e.to_string()))
    }

    fn taken(&mut self) -> gt_ir::Result<()> {
        self.0.taken().map_err(|e| gt_ir::Error::Connection(e.to_string()))
    }
}

fn open() -> Result<(Arc<Store>, BulkServer), Wrong> {
    let store = Arc::new(Store { backend: CudaBackend::open(0)?, tensors: Mutex::default() });
    let server = BulkServer::start(BulkServerOptions::new(KEY), store.clone())?;
    Ok((store, server))
}

fn endpoint(name: &str) -> Endpoint {
    Endpoint { tcp: None, unix: Some(name.trim().into()), host_id: host_id().into() }
}

fn ticket(tensor: u64, bytes: usize, dir: Dir) -> Ticket {
    KEY.sign(1, tensor, bytes as u64, dir, now_ms() + 60_000)
}

/// Sends tensors of all sizes to the other process by both roads.
fn send_all(store: &Store, to: &Endpoint, who: &str) -> Result<(), Wrong> {
    let client = BulkClient::new();
    for (tensor, bytes) in SIZES.into_iter().enumerate() {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 251 + tensor) as u8).collect();
        let ty = Ty::new(DType::U8, [bytes]);
        let buffer = store.backend.upload(&ty, HostBytes::Owned(Arc::new(data.clone())))?;
        let lend = || {
            client.put_pieces(to, &ticket(tensor as u64, bytes, Dir::Put), |pieces| {
                let lent = store.backend.lend(&buffer, &mut Showing(pieces));
                lent.map_err(|e| BulkError::Io(std::io::Error::other(e.to_string())))
            })
        };
        let by_host = || -> Result<(), Wrong> {
            let bytes_of = store.backend.download(&buffer)?;
            Ok(client.put(to, &ticket(tensor as u64, bytes, Dir::Put), &bytes_of)?)
        };
        let check = |road: &str| -> Result<(), Wrong> {
            let back = client.get_vec(to, &ticket(tensor as u64, bytes, Dir::Get))?;
            if back == data { Ok(()) } else { Err(format!("{bytes} bytes came otherwise {road}").into()) }
        };
        lend()?;
        check("from device to device")?;
        by_host()?;
        check("by way of the host")?;
        let fastest = |rounds: usize, once: &dyn Fn() -> Result<(), Wrong>| -> Result<f64, Wrong> {
            let mut best = f64::MAX;
            for _ in 0..rounds {
                let start = Instant::now();
                once()?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            Ok(best)
        };
        let lent = fastest(10, &|| Ok(lend()?))?;
        let hosted = fastest(3, &by_host)?;
        println!(
            "{who}: {:9.2} MiB lent in {:8.1} us ({:6.1} GB/s), by the host in {:9.1} us ({:5.1} GB/s)",
            bytes as f64 / (1 << 20) as f64,
            lent * 1e6,
            bytes as f64 / lent / 1e9,
            hosted * 1e6,
            bytes as f64 / hosted / 1e9,
        );
    }
    Ok(())
}

fn parent() -> Result<(), Wrong> {
    let (store, server) = open()?;
    let name = server.endpoint().unix.clone().ok_or("no unix socket")?;
    let mut other = Command::new(std::env::current_exe()?)
        .arg(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(other.stdout.take().ok_or("no output")?).lines();
    let theirs = lines.next().ok_or("the other process did not start")??;
    let sent = send_all(&store, &endpoint(&theirs), "there");
    // The other sends when its input ends.
    drop(other.stdin.take());
    for line in lines {
        println!("{}", line?);
    }
    let status = other.wait()?;
    sent?;
    if !status.success() {
        return Err(format!("the other process ended with {status}").into());
    }
    let (lent, borrowed) = tensors_moved();
    println!("{lent} tensors lent and {borrowed} borrowed: all is well");
    Ok(())
}

fn child(parent: &str) -> Result<(), Wrong> {
    let (store, server) = open()?;
    println!("{}", server.endpoint().unix.clone().ok_or("no unix socket")?);
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    send_all(&store, &endpoint(parent), "back ")
}
