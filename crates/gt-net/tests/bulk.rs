//! Bulk transfers over TCP and over shared memory, with good and bad tickets.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;

use gt_net::bulk::{
    BulkBytes, BulkClient, BulkError, BulkServer, BulkServerOptions, BulkStore, Dir, Endpoint, TakesPieces,
    Ticket, TicketKey, now_ms,
};
use gt_net::shm::Shm;

/// Keeps tensors as they came, or copied.
#[derive(Default)]
struct Store {
    tensors: Mutex<HashMap<u64, BulkBytes>>,
    copies: bool,
}

impl BulkStore for Store {
    fn put(&self, ticket: &Ticket, bytes: BulkBytes) -> Result<(), String> {
        if ticket.tensor == 666 {
            return Err("no room for it".into());
        }
        let bytes = if self.copies { BulkBytes::Vec(bytes.as_slice().to_vec()) } else { bytes };
        self.tensors.lock().unwrap().insert(ticket.tensor, bytes);
        Ok(())
    }

    fn get(&self, ticket: &Ticket) -> Result<BulkBytes, String> {
        self.tensors.lock().unwrap().get(&ticket.tensor).cloned().ok_or_else(|| "no such tensor".into())
    }

    fn take_pieces(&self, ticket: &Ticket) -> Result<Box<dyn TakesPieces + '_>, String> {
        match ticket.tensor {
            667 => Err("no device".into()),
            tensor => Ok(Box::new(Taker { store: self, tensor, bytes: Vec::new() })),
        }
    }
}

struct World {
    server: BulkServer,
    store: Arc<Store>,
    key: TicketKey,
    client: Arc<BulkClient>,
}

impl World {
    fn new(copies: bool) -> World {
        let (key, store) = (TicketKey::random(), Arc::new(Store { copies, ..Store::default() }));
        let server = BulkServer::start(BulkServerOptions::new(key.clone()), store.clone()).unwrap();
        World { server, store, key, client: BulkClient::new() }
    }

    fn ticket(&self, tensor: u64, bytes: usize, dir: Dir) -> Ticket {
        self.key.sign(1, tensor, bytes as u64, dir, now_ms() + 60_000)
    }

    fn near(&self) -> Endpoint {
        Endpoint { tcp: None, ..self.server.endpoint().clone() }
    }

    fn far(&self) -> Endpoint {
        Endpoint { unix: None, ..self.server.endpoint().clone() }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed) % 253) as u8).collect()
}

fn roundtrips(world: &World, endpoint: &Endpoint) {
    for (tensor, len) in [0, 1, 40_000, 65_536, 1_000_001, 9 << 20, 70_000, 1_000_000].into_iter().enumerate()
    {
        let sent = pattern(len, tensor);
        world.client.put(endpoint, &world.ticket(tensor as u64, len, Dir::Put), &sent).unwrap();
        for _ in 0..2 {
            let ticket = world.ticket(tensor as u64, len, Dir::Get);
            assert!(
                world.client.get_vec(endpoint, &ticket).unwrap() == sent,
                "{len} bytes came back changed"
            );
        }
    }
}

#[test]
fn bytes_survive_tcp() {
    for copies in [false, true] {
        let world = World::new(copies);
        roundtrips(&world, &world.far());
        assert!(matches!(world.store.tensors.lock().unwrap()[&3], BulkBytes::Vec(_)));
    }
}

#[test]
fn bytes_survive_shared_memory() {
    for copies in [false, true] {
        let world = World::new(copies);
        roundtrips(&world, &world.near());
        let kept = matches!(world.store.tensors.lock().unwrap()[&3], BulkBytes::Shm { .. });
        assert_eq!(kept, !copies, "the mapping itself is the tensor when the store keeps it");
    }
}

#[test]
fn a_kept_segment_is_never_written_again() {
    let world = World::new(false);
    let first = pattern(100_000, 1);
    world.client.put(&world.near(), &world.ticket(1, 100_000, Dir::Put), &first).unwrap();
    world.client.put(&world.near(), &world.ticket(2, 100_000, Dir::Put), &pattern(100_000, 2)).unwrap();
    let got = world.client.get_vec(&world.near(), &world.ticket(1, 100_000, Dir::Get)).unwrap();
    assert!(got == first);
}

#[test]
fn a_segment_filled_in_place_needs_no_copy() {
    let world = World::new(false);
    for endpoint in [world.near(), world.far()] {
        let mut shm = world.client.segment(300_000).unwrap();
        shm.as_mut_slice().copy_from_slice(&pattern(300_000, 5));
        world.client.put_shm(&endpoint, &world.ticket(5, 300_000, Dir::Put), shm).unwrap();
        let got = world.client.get_vec(&endpoint, &world.ticket(5, 300_000, Dir::Get)).unwrap();
        assert!(got == pattern(300_000, 5));
    }
}

#[test]
fn a_segment_that_is_not_kept_is_used_again() {
    let world = World::new(true);
    let sent = pattern(100_000, 3);
    for tensor in 0..5 {
        world.client.put(&world.near(), &world.ticket(tensor, sent.len(), Dir::Put), &sent).unwrap();
    }
    assert!(world.client.segment(sent.len()).unwrap().as_slice() == sent, "a warm segment keeps its bytes");
    assert!(world.client.segment(sent.len()).unwrap().as_slice().iter().all(|&byte| byte == 0));
}

#[test]
fn a_whole_segment_is_passed_as_it_is() {
    let world = World::new(false);
    let mut shm = Shm::create(200_000).unwrap();
    shm.as_mut_slice().copy_from_slice(&pattern(200_000, 9));
    let bytes = BulkBytes::Shm { shm: Arc::new(shm), offset: 0, len: 200_000 };
    world.store.tensors.lock().unwrap().insert(9, bytes);
    for endpoint in [world.near(), world.far()] {
        let got = world.client.get_vec(&endpoint, &world.ticket(9, 200_000, Dir::Get)).unwrap();
        assert!(got == pattern(200_000, 9));
    }
}

#[test]
fn bad_tickets_and_refusals_come_back_as_text() {
    let world = World::new(true);
    for endpoint in [world.near(), world.far()] {
        let put = |ticket: &Ticket| world.client.put(&endpoint, ticket, &vec![1; ticket.bytes as usize]);
        let error = |ticket: &Ticket| put(ticket).unwrap_err().to_string();
        let good = world.ticket(1, 50_000, Dir::Put);
        put(&good).unwrap();
        assert!(error(&good).contains("used before"));
        assert!(error(&Ticket { tensor: 2, ..good.clone() }).contains("not from this worker's dispatcher"));
        assert!(error(&world.key.sign(1, 1, 50_000, Dir::Put, 1)).contains("expired"));
        assert!(error(&world.ticket(666, 50_000, Dir::Put)).contains("no room for it"));
        assert!(error(&world.ticket(1, 50_000, Dir::Get)).contains("the ticket is for a Get"));
        let get = world.client.get_vec(&endpoint, &world.ticket(77, 50_000, Dir::Get));
        assert!(get.unwrap_err().to_string().contains("no such tensor"));
        let get = world.client.get_vec(&endpoint, &world.ticket(1, 49_999, Dir::Get));
        assert!(get.unwrap_err().to_string().contains("the tensor has 50000 bytes"));
        put(&world.ticket(3, 50_000, Dir::Put)).unwrap();
    }
}

#[test]
fn many_threads_share_a_client_and_garbage_harms_nobody() {
    let world = World::new(false);
    let (host, port) = world.far().tcp.unwrap();
    let mut garbage = std::net::TcpStream::connect((host.as_str(), port)).unwrap();
    garbage.write_all(&[0xff; 500]).unwrap();
    let _idle = std::net::TcpStream::connect((host.as_str(), port)).unwrap();
    thread::scope(|scope| {
        for worker in 0..8usize {
            let world = &world;
            scope.spawn(move || {
                let endpoint = if worker % 2 == 0 { world.near() } else { world.far() };
                for round in 0..20 {
                    let (tensor, len) = ((worker * 100 + round) as u64, 40_000 + worker * 1000 + round);
                    let sent = pattern(len, tensor as usize);
                    world.client.put(&endpoint, &world.ticket(tensor, len, Dir::Put), &sent).unwrap();
                    let got = world.client.get_vec(&endpoint, &world.ticket(tensor, len, Dir::Get)).unwrap();
                    assert!(got == sent);
                }
            });
        }
    });
}

#[test]
fn a_worker_that_is_gone_is_an_error() {
    let world = World::new(false);
    let endpoint = world.server.endpoint().clone();
    world.client.put(&endpoint, &world.ticket(1, 10, Dir::Put), &[0; 10]).unwrap();
    let ticket = world.ticket(2, 10, Dir::Put);
    let World { server, client, .. } = world;
    drop(server);
    let error = client.put(&endpoint, &ticket, &[0; 10]).unwrap_err().to_string();
    assert!(error.contains("no way to reach the worker"), "{error}");
}

/// Takes cards that are the bytes themselves.
struct Taker<'a> {
    store: &'a Store,
    tensor: u64,
    bytes: Vec<u8>,
}

impl TakesPieces for Taker<'_> {
    fn take(&mut self, card: &[u8]) -> Result<(), String> {
        if card == b"bad" {
            return Err("no such memory".into());
        }
        self.bytes.extend_from_slice(card);
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.store.tensors.lock().unwrap().insert(self.tensor, BulkBytes::Vec(self.bytes));
        Ok(())
    }
}

#[test]
fn pieces_are_shown_ahead_and_a_refused_ticket_is_good_for_another_way() {
    let world = World::new(true);
    let near = world.near();
    for tensor in 0..3 {
        let ticket = world.ticket(tensor, 6, Dir::Put);
        let given = world.client.put_pieces(&near, &ticket, |pieces| {
            pieces.show(b"abc")?;
            pieces.show(b"def")?;
            pieces.taken()?;
            pieces.taken()
        });
        given.unwrap();
        let BulkBytes::Vec(bytes) = world.store.tensors.lock().unwrap()[&tensor].clone() else { panic!() };
        assert_eq!(bytes, b"abcdef");
    }
    // Tensor 667 has no device to go to, and memory of 7 cannot be opened.
    for tensor in [667, 7] {
        let ticket = world.ticket(tensor, 3, Dir::Put);
        let given = world.client.put_pieces(&near, &ticket, |pieces| {
            pieces.show(b"bad")?;
            pieces.taken()
        });
        assert!(matches!(given, Err(BulkError::Refused(_))), "{given:?}");
        world.client.put(&near, &ticket, b"abc").unwrap();
    }
    let ticket = world.ticket(8, 3, Dir::Put);
    let given = world.client.put_pieces(&world.far(), &ticket, |_| Ok(()));
    assert!(matches!(given, Err(BulkError::Unreachable(_))), "{given:?}");
}
