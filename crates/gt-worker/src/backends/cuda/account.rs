//! What a worker uses of its device's memory, and what for. All counts are in bytes.

use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Values that sessions hold, and results of programs.
    Tensors,
    /// Intermediate values of a program that is being queued.
    Arena,
    /// The same of programs that run as graphs, kept between their runs.
    GraphArena,
    /// What graphs copy operands and small data to.
    GraphCopies,
    /// Memory for one step at a time.
    Scratch,
    /// The same for cuBLASLt.
    Workspace,
}

impl Owner {
    const ALL: [Owner; 6] = [
        Owner::Tensors,
        Owner::Arena,
        Owner::GraphArena,
        Owner::GraphCopies,
        Owner::Scratch,
        Owner::Workspace,
    ];

    fn text(self) -> &'static str {
        match self {
            Owner::Tensors => "tensors",
            Owner::Arena => "intermediate values",
            Owner::GraphArena => "intermediate values of graphs",
            Owner::GraphCopies => "copies for graphs",
            Owner::Scratch => "scratch",
            Owner::Workspace => "workspace of products",
        }
    }
}

/// Bytes by owner.
type Shares = [u64; Owner::ALL.len()];

/// What a worker uses of its device.
pub struct Account {
    in_use: AtomicU64,
    peak: AtomicU64,
    by: [AtomicU64; Owner::ALL.len()],
    /// Who had how much when the most was in use.
    at_peak: Mutex<Shares>,
    pub limit: u64,
    /// Frees what is kept for speed alone.
    relief: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Every new peak is told that is so much above the last told (`GT_DEBUG_MEMORY=1`).
    told: Option<Mutex<u64>>,
}

impl Account {
    pub fn new(limit: u64) -> Account {
        let told = gt_ir::env::on("GT_DEBUG_MEMORY").then(Mutex::default);
        Account {
            in_use: 0.into(),
            peak: 0.into(),
            by: Default::default(),
            at_peak: Mutex::default(),
            limit,
            relief: Mutex::new(None),
            told,
        }
    }

    /// Says how memory that is kept for speed alone is given back.
    pub fn on_pressure(&self, relief: Box<dyn Fn() + Send>) {
        *self.relief.lock() = Some(relief);
    }

    /// Has what is kept for speed alone given back.
    pub fn relieve(&self) {
        if let Some(relief) = &*self.relief.lock() {
            relief();
        }
    }

    /// Bytes in use, and at most so far.
    pub fn usage(&self) -> (u64, u64) {
        (self.in_use.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed))
    }

    /// From now on the most is counted anew.
    pub fn reset_peak(&self) {
        self.peak.store(self.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
        *self.at_peak.lock() = self.shares();
        if let Some(told) = &self.told {
            *told.lock() = 0;
        }
    }

    pub fn add(&self, owner: Owner, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        let now = self.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now > self.limit {
            self.in_use.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.out_of_memory(bytes, None));
        }
        self.by[owner as usize].fetch_add(bytes, Ordering::Relaxed);
        if self.peak.fetch_max(now, Ordering::Relaxed) < now {
            let shares = self.shares();
            *self.at_peak.lock() = shares;
            self.tell(now, &shares);
        }
        Ok(())
    }

    pub fn sub(&self, owner: Owner, bytes: usize) {
        self.by[owner as usize].fetch_sub(bytes as u64, Ordering::Relaxed);
        self.in_use.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn shares(&self) -> Shares {
        std::array::from_fn(|i| self.by[i].load(Ordering::Relaxed))
    }

    fn tell(&self, peak: u64, shares: &Shares) {
        let Some(told) = &self.told else { return };
        let mut told = told.lock();
        if peak > *told + *told / 16 {
            *told = peak;
            gt_ir::say!("gt worker: cuda: peak of {peak} bytes: {}", by_owner(shares));
        }
    }

    /// An error that says who has the memory; `free` is what the device has left.
    pub fn out_of_memory(&self, bytes: u64, free: Option<u64>) -> Error {
        let (used, limit) = (self.usage().0, self.limit);
        let free = free.map_or(String::new(), |free| format!(", {free} bytes of the device are free"));
        let most = by_owner(&self.shares());
        Error::Memory(format!(
            "cuda: out of memory, asked for {bytes} bytes with {used} of {limit} in use ({most}){free}; \
             drop tensors or use smaller ones"
        ))
    }
}

/// Bytes by owner, the largest first.
fn by_owner(shares: &Shares) -> String {
    let mut all: Vec<(u64, Owner)> = shares.iter().copied().zip(Owner::ALL).filter(|(n, _)| *n > 0).collect();
    all.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let mut out = String::new();
    for (i, (bytes, owner)) in all.iter().enumerate() {
        let _ = write!(out, "{}{} {bytes}", if i > 0 { ", " } else { "" }, owner.text());
    }
    if out.is_empty() { "nothing held".into() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_owners_of_memory_the_largest_first() {
        let account = Account::new(1000);
        account.add(Owner::Scratch, 100).unwrap();
        account.add(Owner::Tensors, 700).unwrap();
        let error = account.add(Owner::Arena, 300).unwrap_err().to_string();
        assert!(error.contains("800 of 1000 in use (tensors 700, scratch 100)"), "{error}");
        account.sub(Owner::Tensors, 700);
        assert_eq!(account.usage(), (100, 800));
        assert_eq!(account.at_peak.lock()[..2], [700, 0]);
        account.reset_peak();
        assert_eq!(account.usage(), (100, 100));
    }
}
