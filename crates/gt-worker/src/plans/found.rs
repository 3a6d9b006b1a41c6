//! What looking up plans came to, and why one was not there.

use std::time::Duration;

/// Why a program had no plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Miss {
    FirstSight,
    OtherShapes,
    OtherLiveness,
    OtherScalars,
    Evicted,
    BegunEarly,
    OpByOp,
    Novel,
}

impl Miss {
    pub const ALL: [Miss; 8] = [
        Miss::FirstSight,
        Miss::OtherShapes,
        Miss::OtherLiveness,
        Miss::OtherScalars,
        Miss::Evicted,
        Miss::BegunEarly,
        Miss::OpByOp,
        Miss::Novel,
    ];

    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Miss::FirstSight => "first sight",
            Miss::OtherShapes => "same ops, other shapes",
            Miss::OtherLiveness => "same ops and shapes, other liveness",
            Miss::OtherScalars => "same structure, other scalars",
            Miss::Evicted => "evicted",
            Miss::BegunEarly => "begun early last time, and its plan is not made yet",
            Miss::OpByOp => "first sight of an op on its own",
            Miss::Novel => "one of many that did not come back, run op by op",
        }
    }
}

/// What looking up the plans of a program came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub hits: u64,
    /// The program was known with other sizes or numbers.
    pub resized: bool,
    pub misses: u64,
    /// Every part counts for itself.
    pub(super) by_op: bool,
    /// Why the last one missed.
    pub why: Option<Miss>,
    /// How long plans took.
    pub took: Duration,
    /// Plans made, and their instructions.
    pub made: (u64, u64),
    /// Better plans that took their place since the last time.
    pub improved: u64,
    /// Plans that are there now.
    pub kept: u64,
}

impl Found {
    /// Why time was spent on plans, in words.
    pub fn why(&self) -> Option<&'static str> {
        match self.why {
            _ if self.resized => Some("known with other sizes or numbers"),
            why => why.map(Miss::text),
        }
    }
}
