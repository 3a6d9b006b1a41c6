//! Memory: lifetimes, the arena, and dying inputs whose buffers serve again.

use crate::fuse::Draft;
use crate::plan::{ALIGN, Place, Plan, Source, Step, Storage, Work};
use gt_ir::Structure;
use std::collections::HashMap;

/// The steps during which a storage holds something.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

pub fn place(draft: Draft, structure: &Structure) -> Plan {
    let Draft { steps, mut storages, outs } = draft;
    let mut lives = vec![Life { first: usize::MAX, last: 0 }; storages.len()];
    let mut last_check = None;
    for (i, step) in steps.iter().enumerate() {
        let mut touch = |s: u32| {
            let life = &mut lives[s as usize];
            life.first = life.first.min(i);
            life.last = life.last.max(i);
        };
        step.reads(&mut touch);
        step.writes(&mut touch);
        if step.can_fail() {
            last_check = Some(i);
        }
    }
    for &out in &outs {
        let storage = &mut storages[out as usize];
        if !matches!(storage.place, Place::Input(_)) {
            storage.place = Place::Out;
        }
        lives[out as usize].last = usize::MAX;
    }
    donate(&steps, &mut storages, &lives, last_check, structure);
    let arena = assign(&steps, &mut storages, &lives);
    Plan { storages, steps, outs, arena }
}

/// Lets live-outs take over dying inputs of their size that nobody reads any more.
fn donate(
    steps: &[Step],
    storages: &mut [Storage],
    lives: &[Life],
    last_check: Option<usize>,
    structure: &Structure,
) {
    let mut taken = vec![false; structure.inputs.len()];
    for storage in storages.iter() {
        if let Some(i) = storage.reuse {
            taken[i as usize] = true;
        }
    }
    let mut free: HashMap<usize, Vec<u32>, foldhash::fast::FixedState> = HashMap::default();
    for (i, input) in structure.inputs.iter().enumerate() {
        let bytes = storages[i].bytes;
        if input.dies && !taken[i] && lives[i].last != usize::MAX && bytes > 0 {
            free.entry(bytes).or_default().push(i as u32);
        }
    }
    if free.is_empty() {
        return;
    }
    for (s, step) in steps.iter().enumerate() {
        if last_check.is_some_and(|check| check >= s) {
            continue;
        }
        step.writes(|w| {
            let storage = &storages[w as usize];
            if storage.place != Place::Out || storage.reuse.is_some() || lives[w as usize].first != s {
                return;
            }
            let Some(inputs) = free.get_mut(&storage.bytes) else { return };
            let fits = |i: &u32| {
                let life = lives[*i as usize];
                life.first == usize::MAX || life.last < s || (life.last == s && in_step(step, *i, w))
            };
            // The one read by this very step is warm.
            let best = inputs
                .iter()
                .position(|i| lives[*i as usize].last == s && fits(i))
                .or_else(|| inputs.iter().position(fits));
            if let Some(k) = best {
                storages[w as usize].reuse = Some(inputs.swap_remove(k));
            }
        });
    }
}

/// True if a step may write storage `to` over `from` while it reads `from`: a kernel that reads and writes it
/// element by element in the same place.
fn in_step(step: &Step, from: u32, to: u32) -> bool {
    let Work::Kernel(kernel) = &step.work else { return false };
    if kernel.fold.is_some() {
        return false;
    }
    let mut stores = kernel.stores.iter().filter(|s| s.storage == to);
    let Some(store) = stores.next() else { return false };
    stores.next().is_none()
        && !store.row
        && store.map.is_whole(&kernel.shape)
        && kernel.loads.iter().all(|load| match &load.from {
            Source::Mem { storage, map } if *storage == from => {
                !load.row && map.is_whole(&kernel.shape) && load.dtype.size() == store.dtype.size()
            }
            _ => true,
        })
}

/// Gives every intermediate a place in the arena, best fit by lifetime. Returns the arena's size.
fn assign(steps: &[Step], storages: &mut [Storage], lives: &[Life]) -> usize {
    let mut ends: Vec<Vec<u32>> = vec![Vec::new(); steps.len()];
    let mut starts: Vec<Vec<u32>> = vec![Vec::new(); steps.len()];
    for (i, storage) in storages.iter().enumerate() {
        if matches!(storage.place, Place::Arena(_)) && lives[i].first != usize::MAX {
            starts[lives[i].first].push(i as u32);
            ends[lives[i].last].push(i as u32);
        }
    }
    // Free stretches of the arena, by offset.
    let mut free: Vec<(usize, usize)> = Vec::new();
    let mut size = 0;
    for s in 0..steps.len() {
        for &i in &starts[s] {
            let need = storages[i as usize].bytes.next_multiple_of(ALIGN).max(ALIGN);
            let best = free
                .iter()
                .enumerate()
                .filter(|(_, (_, len))| *len >= need)
                .min_by_key(|(_, (_, len))| *len)
                .map(|(k, _)| k);
            let offset = match best {
                Some(k) => {
                    let (offset, len) = free[k];
                    if len == need {
                        free.remove(k);
                    } else {
                        free[k] = (offset + need, len - need);
                    }
                    offset
                }
                None => match free.last().copied() {
                    // Grows the stretch at the end.
                    Some((offset, len)) if offset + len == size => {
                        free.pop();
                        size = offset + need;
                        offset
                    }
                    _ => {
                        size += need;
                        size - need
                    }
                },
            };
            storages[i as usize].place = Place::Arena(offset);
        }
        for &i in &ends[s] {
            let Place::Arena(offset) = storages[i as usize].place else { continue };
            let len = storages[i as usize].bytes.next_multiple_of(ALIGN).max(ALIGN);
            let at = free.partition_point(|(o, _)| *o < offset);
            free.insert(at, (offset, len));
            if at + 1 < free.len() && offset + len == free[at + 1].0 {
                free[at].1 += free[at + 1].1;
                free.remove(at + 1);
            }
            if at > 0 && free[at - 1].0 + free[at - 1].1 == offset {
                free[at - 1].1 += free[at].1;
                free.remove(at);
            }
        }
    }
    size
}
