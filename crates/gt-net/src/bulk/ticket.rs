//! Tickets: the dispatcher's permission for one transfer, which the worker checks by itself.

use std::collections::HashMap;
use std::hash::Hasher;
use std::time::{SystemTime, UNIX_EPOCH};

use gt_sync::Mutex;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};
use thiserror::Error;

use crate::handshake::{random_bytes, same_bytes};

/// Which way the bytes go, seen from the ticket's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dir {
    /// To the worker.
    Put,
    /// From the worker.
    Get,
}

/// Permission for one transfer, good once and until it expires.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The session the bytes belong to.
    pub session: u64,
    /// The tensor.
    pub tensor: u64,
    /// The exact size.
    pub bytes: u64,
    /// Which way.
    pub dir: Dir,
    /// When it ends, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Makes it unlike every other.
    pub nonce: u64,
    /// Proves that the dispatcher made it.
    pub mac: [u8; 16],
}

/// The key that a dispatcher shares with one worker.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketKey(pub [u8; 16]);

impl std::fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

/// Why a ticket is not good.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TicketError {
    /// Not made with this key, or altered.
    #[error("ticket: not from this worker's dispatcher")]
    Forged,
    /// Too late; also what clocks that disagree look like.
    #[error("ticket: expired: ask for a new one, and check that the hosts' clocks agree")]
    Expired,
    /// Used before.
    #[error("ticket: used before")]
    Used,
}

/// Bytes of a ticket on the wire.
pub(crate) const TICKET: usize = 8 * 5 + 1 + 16;

/// Milliseconds since 1970, the clock of tickets.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

impl TicketKey {
    /// A new random key.
    pub fn random() -> Self {
        TicketKey(random_bytes())
    }

    /// A ticket for one transfer, good until `expires_ms`.
    pub fn sign(&self, session: u64, tensor: u64, bytes: u64, dir: Dir, expires_ms: u64) -> Ticket {
        let nonce = u64::from_le_bytes(random_bytes());
        let mut ticket = Ticket { session, tensor, bytes, dir, expires_ms, nonce, mac: [0; 16] };
        ticket.mac = self.mac(&ticket);
        ticket
    }

    /// Checks origin and time; use is checked by the worker's `Spent`.
    pub fn verify(&self, ticket: &Ticket, now_ms: u64) -> Result<(), TicketError> {
        if !same_bytes(&self.mac(ticket), &ticket.mac) {
            return Err(TicketError::Forged);
        }
        if ticket.expires_ms < now_ms { Err(TicketError::Expired) } else { Ok(()) }
    }

    fn mac(&self, ticket: &Ticket) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&ticket.to_bytes()[..TICKET - 16]);
        hasher.finish128().as_bytes()
    }
}

impl Ticket {
    pub(crate) fn to_bytes(&self) -> [u8; TICKET] {
        let mut bytes = [0; TICKET];
        let numbers = [self.session, self.tensor, self.bytes, self.expires_ms, self.nonce];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[40] = (self.dir == Dir::Get) as u8;
        bytes[41..].copy_from_slice(&self.mac);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; TICKET]) -> Ticket {
        let mut numbers = [0; 5];
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(place);
            *number = u64::from_le_bytes(word);
        }
        let [session, tensor, size, expires_ms, nonce] = numbers;
        let mut mac = [0; 16];
        mac.copy_from_slice(&bytes[41..]);
        let dir = if bytes[40] == 0 { Dir::Put } else { Dir::Get };
        Ticket { session, tensor, bytes: size, dir, expires_ms, nonce, mac }
    }
}

/// The tickets used so far, each remembered until it expires.
#[derive(Default)]
pub(crate) struct Spent {
    used: Mutex<HashMap<u64, u64>>,
}

impl Spent {
    /// Marks a verified ticket as used.
    pub fn spend(&self, ticket: &Ticket, now_ms: u64) -> Result<(), TicketError> {
        let mut used = self.used.lock();
        if used.len() >= 1024 && used.len().is_power_of_two() {
            used.retain(|_, expires_ms| *expires_ms >= now_ms);
        }
        match used.insert(ticket.nonce, ticket.expires_ms) {
            None => Ok(()),
            Some(_) => Err(TicketError::Used),
        }
    }

    /// Makes a ticket good again whose transfer did not happen.
    pub fn refund(&self, ticket: &Ticket) {
        self.used.lock().remove(&ticket.nonce);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_good_once_in_time_and_unaltered() {
        let key = TicketKey::random();
        let ticket = key.sign(1, 2, 3, Dir::Get, 1_000);
        assert_eq!(Ticket::from_bytes(&ticket.to_bytes()), ticket);
        assert_eq!(key.verify(&ticket, 1_000), Ok(()));
        assert_eq!(key.verify(&ticket, 1_001), Err(TicketError::Expired));
        assert_eq!(TicketKey::random().verify(&ticket, 0), Err(TicketError::Forged));
        for at in 0..TICKET {
            let mut bytes = ticket.to_bytes();
            bytes[at] ^= 1;
            assert_eq!(key.verify(&Ticket::from_bytes(&bytes), 0), Err(TicketError::Forged), "byte {at}");
        }
        let spent = Spent::default();
        assert_eq!(spent.spend(&ticket, 0), Ok(()));
        assert_eq!(spent.spend(&ticket, 0), Err(TicketError::Used));
        spent.refund(&ticket);
        assert_eq!(spent.spend(&ticket, 0), Ok(()));
    }
}
