//! The order in which reductions join values. It depends on how many there are and on nothing else (C7), so that every
//! kernel gives the same bits.
//!
//! Neighbours (the last dimension that has more than one index is reduced): blocks of `BLOCK`; in a block, element i
//! goes to lane i % (4 * threads), lanes take theirs in order and are joined pairwise, neighbours first. The results of the
//! blocks are reduced in the same way. Lanes without an element hold an identity that changes no bit.
//!
//! Columns (it is kept): blocks of `COLUMN_BLOCK` rows; row i of a block goes to lane i % `COLUMN_LANES`, and so on.

/// Neighbours reduced by one block.
pub const BLOCK: usize = 8192;
/// Rows of columns reduced by one block.
pub const COLUMN_BLOCK: usize = 128;
pub const COLUMN_LANES: usize = 8;

/// The longest row that a kernel reduces by itself (`Calc::Fold`): the results of its blocks lie in shared memory.
pub const LONGEST_ROW: usize = BLOCK * MOST_PARTS;
pub const MOST_PARTS: usize = 512;

/// Threads that reduce a row of `n`: four lanes each, at most sixteen elements while the row is one block.
pub fn threads(n: usize) -> usize {
    n.div_ceil(16).next_power_of_two().clamp(32, 512)
}

/// Fewer threads that give the same bits, as the other lanes have no element.
pub fn fewest_threads(n: usize) -> usize {
    if n <= 128 { n.div_ceil(4).next_power_of_two() } else { threads(n) }
}
