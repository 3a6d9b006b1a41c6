//! How long the tiles of a kernel are.

use super::chain::{Place, Unit};
use super::lower::{LoadAt, Lowered};
use gt_compiler::Strides;
use smallvec::SmallVec;

/// Bytes of registers that should stay in the innermost cache.
const SCRATCH: usize = 6 << 10;

/// Elements of a tile: as many as let what passes through memory between the units stay near.
pub fn of(kernel: &Lowered) -> usize {
    let by_rows = kernel.row_len > 1;
    let straight = |strides: &Strides| strides[strides.len() - 1] == 1;
    let lies = |l: &LoadAt| l.cycle || l.splat || (l.is_kept() && (l.linear || straight(&l.strides)));
    let copied = kernel.loads.iter().filter(|l| !lies(l));
    let mut busy = copied.count();
    let mut written: SmallVec<[usize; 16]> = SmallVec::new();
    for unit in &kernel.units {
        let mut write = |i: usize| {
            let op = &kernel.ops[i];
            let apart = match op.direct.map(|s| &kernel.stores[s as usize]) {
                Some(store) => !store.linear && !straight(&store.strides),
                None => true,
            };
            if apart && !op.row && !written.contains(&op.tile_at) {
                written.push(op.tile_at);
            }
        };
        match unit {
            Unit::Op(i) => write(*i),
            Unit::Chain(chain) => {
                for place in &chain.places {
                    if let Place::Out(i) = place {
                        write(*i as usize);
                    }
                }
            }
        }
    }
    busy += written.len();
    if by_rows {
        // What is read row by row stays near from one pass over the row to the next.
        busy += kernel.loads.iter().filter(|l| l.is_far()).count();
    }
    // Short runs and rows pay for every tile, so there should be many in one.
    let even = !by_rows && kernel.loads.iter().all(|l| l.linear || l.splat);
    let (room, least) = if even { (SCRATCH, 256) } else { (4 * SCRATCH, 512) };
    let widest = kernel.slot_bytes;
    let tile = if busy == 0 { 4096 } else { (room / (busy * widest)).clamp(least, 2048) / 64 * 64 };
    let tile = tile.min(kernel.numel.next_multiple_of(64).max(64));
    if by_rows { (tile / kernel.row_len).max(1) * kernel.row_len } else { tile }
}
