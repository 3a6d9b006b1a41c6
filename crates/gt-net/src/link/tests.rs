use super::*;
use crate::frame::Decoder;
use proptest::prelude::*;

/// Writes up to `most` bytes of `link` into `pipe`.
fn write(link: &mut Link, pipe: &mut Vec<u8>, most: usize) {
    let mut slices = [IoSlice::new(&[]); 4];
    let filled = link.slices(&mut slices);
    let mut bytes: Vec<u8> = slices[..filled].iter().flat_map(|s| s.to_vec()).collect();
    bytes.truncate(most);
    link.wrote(bytes.len());
    pipe.extend(bytes);
}

/// Messages and pieces, each in order.
type Got = [Vec<Vec<u8>>; 2];

fn read(link: &mut Link, decoder: &mut Decoder, bytes: &[u8], got: &mut Got) {
    decoder.push(bytes);
    while let Some(frame) = decoder.next().unwrap() {
        match link.receive(0, frame).unwrap() {
            Received::Message(payload) => got[0].push(payload.to_vec()),
            Received::Piece(payload) => got[1].push(payload.to_vec()),
            Received::Nothing | Received::Close(_) => {}
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, Vec<u8>),
    Piece(usize, Vec<u8>),
    Write(usize, usize),
    Read(usize, usize),
    Cut,
    Beat,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..2, prop::collection::vec(any::<u8>(), 0..60)).prop_map(|(side, bytes)| Step::Send(side, bytes)),
        2 => (0usize..2, prop::collection::vec(any::<u8>(), 0..60)).prop_map(|(side, bytes)| Step::Piece(side, bytes)),
        4 => (0usize..2, 0usize..150).prop_map(|(side, most)| Step::Write(side, most)),
        4 => (0usize..2, 0usize..150).prop_map(|(side, most)| Step::Read(side, most)),
        1 => Just(Step::Cut),
        1 => Just(Step::Beat),
    ]
}

/// Two links joined by two pipes that lose what they hold when cut.
struct World {
    links: [Link; 2],
    pipes: [Vec<u8>; 2],
    decoders: [Decoder; 2],
    got: [Got; 2],
    now: Millis,
}

impl World {
    fn new() -> Self {
        let link = || Link::new(0, Limits::default());
        let decoder = || Decoder::new(MAX_PAYLOAD);
        World {
            links: [link(), link()],
            pipes: Default::default(),
            decoders: [decoder(), decoder()],
            got: Default::default(),
            now: 0,
        }
    }

    fn write(&mut self, side: usize, most: usize) {
        write(&mut self.links[side], &mut self.pipes[side], most);
    }

    fn read(&mut self, side: usize, most: usize) {
        let pipe = &mut self.pipes[1 - side];
        let bytes: Vec<u8> = pipe.drain(..most.min(pipe.len())).collect();
        read(&mut self.links[side], &mut self.decoders[side], &bytes, &mut self.got[side]);
    }

    fn cut(&mut self) {
        let fresh = World::new();
        (self.pipes, self.decoders) = (fresh.pipes, fresh.decoders);
        self.links.iter_mut().for_each(|link| link.cut(0));
        let last = [self.links[1].last_received(), self.links[0].last_received()];
        for (link, last) in self.links.iter_mut().zip(last) {
            link.resume(0, last).unwrap();
        }
    }
}

proptest! {
    #[test]
    fn every_payload_is_delivered_once_and_in_order(steps in prop::collection::vec(step(), 0..200)) {
        let mut world = World::new();
        let mut sent: [Got; 2] = Default::default();
        for step in steps {
            match step {
                Step::Send(side, bytes) => {
                    world.links[side].send(0, bytes.clone()).unwrap();
                    sent[side][0].push(bytes);
                }
                Step::Piece(side, bytes) => {
                    world.links[side].send_piece(bytes.clone()).unwrap();
                    sent[side][1].push(bytes);
                }
                Step::Write(side, most) => world.write(side, most),
                Step::Read(side, most) => world.read(side, most),
                Step::Cut => world.cut(),
                Step::Beat => {
                    world.now += 1_000;
                    for link in &mut world.links {
                        link.heard_at = world.now;
                        prop_assert_eq!(link.tick(world.now), Alive::Yes);
                    }
                }
            }
        }
        for _ in 0..2 {
            while world.links.iter().any(Link::wants_write) {
                for side in 0..2 {
                    world.write(side, usize::MAX);
                    world.read(side, usize::MAX);
                }
            }
            for side in 0..2 {
                world.read(side, usize::MAX);
                world.links[side].queue(0, Kind::Heartbeat, 0, Bytes::new());
            }
        }
        prop_assert_eq!(&world.got[0], &sent[1]);
        prop_assert_eq!(&world.got[1], &sent[0]);
        prop_assert_eq!(world.links[0].unacked_bytes() + world.links[1].unacked_bytes(), 0);
    }
}

#[test]
fn silence_cuts_and_a_minute_loses() {
    let mut link = Link::new(0, Limits::default());
    for now in 1..10_000 {
        assert_eq!(link.tick(now), Alive::Yes);
        assert_eq!(link.wants_write(), now >= 1_000, "a heartbeat is due each second");
    }
    assert_eq!(link.tick(10_000), Alive::Silent);
    link.cut(10_000);
    assert_eq!(link.tick(69_999), Alive::Yes);
    assert_eq!(link.tick(70_000), Alive::Lost);
}

#[test]
fn gaps_false_acks_and_overflow_are_errors() {
    let mut link = Link::new(0, Limits { unacked_bytes: 100, ..Limits::default() });
    let frame = Frame { kind: Kind::Data, seq: 2, ack: 0, payload: b"" };
    assert_eq!(link.receive(0, frame), Err(LinkError::Gap { got: 2, expected: 1 }));
    let frame = Frame { kind: Kind::Heartbeat, seq: 0, ack: 1, payload: b"" };
    assert_eq!(link.receive(0, frame), Err(LinkError::Ack { claimed: 1, from: 0, to: 0 }));
    link.send(0, vec![0; 200]).unwrap();
    assert_eq!(link.send(0, vec![]), Err(LinkError::Full { waiting: 221, max: 100 }));
    assert!(link.resume(0, 2).is_err());
    assert_eq!(link.receive(0, frame), Ok(Received::Nothing));
    link.send(0, vec![]).unwrap();
}

#[test]
fn time_slept_through_is_no_silence() {
    let mut link = Link::new(0, Limits::default());
    assert_eq!(link.tick(3_000), Alive::Yes);
    assert_eq!(link.tick(100_000), Alive::Yes);
    for now in 100_000..107_000 {
        assert_eq!(link.tick(now), Alive::Yes);
    }
    assert_eq!(link.tick(107_000), Alive::Silent);
}

#[test]
fn a_message_overtakes_all_pieces_but_one() {
    let mut world = World::new();
    for i in 0..10 {
        world.links[0].send_piece(vec![i; 50]).unwrap();
    }
    world.links[0].send(0, b"now".to_vec()).unwrap();
    let mut seen = None;
    while world.links[0].wants_write() {
        world.write(0, usize::MAX);
        world.read(1, usize::MAX);
        if !world.got[1][0].is_empty() {
            seen.get_or_insert(world.got[1][1].len());
        }
    }
    assert_eq!((seen, world.got[1][1].len()), (Some(1), 10));
}

#[test]
fn pieces_leave_room_for_messages() {
    let limits = Limits { unacked_bytes: 1000, ..Limits::default() };
    let mut link = Link::new(0, limits);
    for _ in 0..50 {
        link.send_piece(vec![0; 80]).unwrap();
    }
    let mut pipe = Vec::new();
    while link.wants_write() {
        write(&mut link, &mut pipe, usize::MAX);
    }
    assert!(link.unacked_bytes() <= 500, "{}", link.unacked_bytes());
    link.send(0, vec![0; 400]).unwrap();
}
