//! What the ranks of a gang agree on before anything of it is queued: whether they wait for each other's checks, and
//! whether it runs as graphs with NCCL's calls inside.
//!
//! NCCL wants a call captured by all ranks or by none, and the launch of a graph with such calls to be that of graphs which
//! were captured together. Only a rank itself knows whether its kernels are compiled and whether a capture it keeps fits
//! the addresses of this run. So each says what it could do, and all come to the same decision from what all have said. A
//! capture has a number by which all ranks know it. Whoever comes here has its memory: from here on nothing is
//! expected to fail but the device, the road between the ranks, or a rank as a whole.

use crate::backend::PlanError;
use crate::gang::Communicator;
use gt_ir::Error;

/// Captures of one plan that a rank keeps at most.
pub const CAPTURES: usize = 4;

/// What a rank could do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Something has to be waited for before what was given up is overwritten: a check that only the device can make, or
    /// connections that are made for the first time.
    pub waits: bool,
    /// It can run as a graph.
    pub graphs: bool,
    /// The numbers of captures it keeps that fit this run; 0 where there are fewer.
    pub fits: [u32; CAPTURES],
}

/// How all ranks run the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Step by step, and the host waits until no check can fail any more.
    Watched,
    /// Step by step, without waiting.
    Plain,
    /// All capture it now, and launch what they captured if all could.
    Capture,
    /// All launch this capture.
    Replay(u32),
}

/// What all ranks do, given what each could do.
pub fn decide(offers: &[Offer]) -> Way {
    if offers.iter().any(|offer| offer.waits) {
        return Way::Watched;
    }
    if !offers.iter().all(|offer| offer.graphs) {
        return Way::Plain;
    }
    let kept = offers.first().map_or([0; CAPTURES], |first| first.fits);
    let common = kept.into_iter().filter(|n| *n > 0 && offers.iter().all(|offer| offer.fits.contains(n)));
    common.max().map_or(Way::Capture, Way::Replay)
}

const BYTES: usize = 1 + 4 * CAPTURES;

impl Offer {
    fn bytes(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[0] = self.waits as u8 | (self.graphs as u8) << 1;
        for (to, number) in out[1..].chunks_exact_mut(4).zip(self.fits) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    fn read(bytes: &[u8]) -> Option<Offer> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut fits = [0; CAPTURES];
        for (number, from) in fits.iter_mut().zip(bytes[1..].chunks_exact(4)) {
            *number = u32::from_le_bytes(from.try_into().ok()?);
        }
        Some(Offer { waits: bytes[0] & 1 != 0, graphs: bytes[0] & 2 != 0, fits })
    }
}

/// Says what this rank could do, hears the others, and gives what all do. Fails on all ranks if one of them failed.
pub fn agree(all: &dyn Communicator, own: Offer) -> Result<Way, PlanError> {
    let mut offers = None;
    all.share(&[&own.bytes()], &|_, _, _| 0..BYTES, &mut |shown| {
        offers = shown.iter().map(|rank| Offer::read(rank[0])).collect::<Option<Vec<Offer>>>();
    })?;
    match offers {
        Some(offers) => Ok(decide(&offers)),
        None => Err(PlanError { instr: None, error: Error::Runtime("gang: an offer cannot be read".into()) }),
    }
}

/// True if all ranks could do what they had agreed on.
pub fn all_could(all: &dyn Communicator, could: bool) -> Result<bool, PlanError> {
    let mut right = false;
    all.share(&[&[could as u8]], &|_, _, _| 0..1, &mut |shown| {
        right = shown.iter().all(|rank| rank[0] == [1]);
    })?;
    Ok(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::meeting::Seat;
    use gt_ir::sample::Rng;

    fn ready(fits: &[u32]) -> Offer {
        let mut offer = Offer { graphs: true, ..Offer::default() };
        offer.fits[..fits.len()].copy_from_slice(fits);
        offer
    }

    #[test]
    fn one_rank_that_cannot_decides_for_all() {
        let plain = Offer::default();
        let waits = Offer { waits: true, ..Offer::default() };
        assert_eq!(decide(&[ready(&[1]), plain, ready(&[1])]), Way::Plain);
        assert_eq!(decide(&[ready(&[1]), plain, waits]), Way::Watched);
        assert_eq!(decide(&[ready(&[]), ready(&[1])]), Way::Capture);
        assert_eq!(decide(&[ready(&[1, 2]), ready(&[3, 1])]), Way::Replay(1));
        assert_eq!(decide(&[ready(&[4, 2]), ready(&[2, 4])]), Way::Replay(4));
        assert_eq!(decide(&[ready(&[2, 3]), ready(&[4, 5])]), Way::Capture);
    }

    /// A rank as far as its captures go: which it keeps, and which addresses each was captured with.
    #[derive(Default)]
    struct Rank {
        kept: Vec<(u32, u64)>,
        ready: bool,
    }

    /// Ranks come to their graphs in their own time, lose captures, get other addresses and fail to capture. Whatever
    /// happens, all do the same, a capture is launched only where all have it, and once nothing changes any more it is
    /// launched again and again.
    #[test]
    fn whatever_happens_to_ranks_all_do_the_same() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut below = |n: u64| rng.bits() % n;
            let n = 1 + below(5) as usize;
            let mut ranks: Vec<Rank> = (0..n).map(|_| Rank::default()).collect();
            let (mut number, mut replays) = (0, 0);
            for step in 0..120 {
                let calm = step >= 80;
                let mut addresses = vec![0; n];
                for (rank, at) in ranks.iter_mut().zip(&mut addresses) {
                    rank.ready |= calm || below(8) == 0;
                    *at = if calm { 0 } else { below(3) };
                    if !calm && below(16) == 0 {
                        rank.kept.clear();
                    }
                }
                let offers: Vec<Offer> = ranks
                    .iter()
                    .zip(&addresses)
                    .map(|(rank, at)| {
                        let fits = rank.kept.iter().filter(|(_, of)| of == at).map(|(n, _)| *n);
                        Offer { graphs: rank.ready, ..ready(&fits.collect::<Vec<_>>()) }
                    })
                    .collect();
                let read: Vec<Offer> = offers.iter().map(|o| Offer::read(&o.bytes()).unwrap()).collect();
                assert_eq!(read, offers);
                match decide(&offers) {
                    Way::Watched => unreachable!("nobody waits"),
                    Way::Plain => assert!(ranks.iter().any(|rank| !rank.ready)),
                    Way::Capture => {
                        number += 1;
                        // One that cannot capture leaves the others without.
                        if calm || below(8) > 0 {
                            for (rank, at) in ranks.iter_mut().zip(&addresses) {
                                if rank.kept.len() == CAPTURES {
                                    rank.kept.remove(0);
                                }
                                rank.kept.push((number, *at));
                            }
                        }
                        replays = 0;
                    }
                    Way::Replay(known) => {
                        for (rank, at) in ranks.iter().zip(&addresses) {
                            assert!(rank.kept.contains(&(known, *at)), "seed {seed} step {step}");
                        }
                        replays += 1;
                    }
                }
            }
            assert!(replays >= 38, "seed {seed}: {replays} replays at last");
        }
    }

    #[test]
    fn ranks_hear_each_other_and_a_failed_one_fails_all() {
        let run = |offers: [Offer; 2], fails: bool| -> Vec<Result<Way, PlanError>> {
            let name = (41, offers[0].fits[0] as u64 * 2 + fails as u64);
            std::thread::scope(|s| {
                let rank = |rank: usize| {
                    s.spawn(move || {
                        let seat = Seat::take(name, 1, &[2], rank);
                        if fails && rank == 1 {
                            let error = Error::Memory("no room".into());
                            let error = PlanError { instr: None, error };
                            seat.fail(&error);
                            return Err(error);
                        }
                        let all = crate::gang::Group::all(&seat).unwrap();
                        let way = agree(all, offers[rank])?;
                        assert!(!all_could(all, rank == 0).unwrap());
                        Ok(way)
                    })
                };
                let threads: Vec<_> = (0..2).map(rank).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            })
        };
        for way in run([ready(&[7, 3]), ready(&[3])], false) {
            assert_eq!(way.unwrap(), Way::Replay(3));
        }
        let failed = run([ready(&[8]), ready(&[8])], true);
        assert!(failed.iter().all(|way| way.as_ref().unwrap_err().error.to_string().contains("no room")));
    }
}
