//! Collectives by way of the host: operands are brought there, exchanged as CPU workers do, and the results taken back.
//! Slower than NCCL, and good wherever that is not.

use super::lane::Lane;
use super::staging::{Landed, Pinned};
use super::steps::Bound;
use crate::backend::PlanError;
use crate::gang::Group;
use crate::gang::collect::{self, Item};
use gt_compiler::{Plan, Tensor, Together};
use gt_ir::{Error, Result, Ty};

/// Pieces on their way to the host at a time.
const COMING: usize = 4;

/// The address of a packed operand.
pub fn address(x: &Tensor, run: &Bound) -> u64 {
    let offset = x.map.offset(run.slots) * x.dtype.size() as isize;
    run.addresses[x.storage as usize].wrapping_add_signed(offset as i64)
}

/// Carries out a collective after all work that is queued; its results are on their way when this returns.
pub fn run(c: &Together, plan: &Plan, run: &Bound, lane: &Lane, group: &dyn Group) -> Result<(), PlanError> {
    let outs = results(c, plan, run, lane, group)?;
    for (&out, bytes) in c.outs.iter().zip(&outs) {
        // SAFETY: the storage has that many bytes, and the run keeps it.
        unsafe { lane.send(&lane.stream, run.addresses[out as usize], bytes) }.map_err(wrong)?;
    }
    Ok(())
}

fn wrong(error: Error) -> PlanError {
    PlanError { instr: None, error }
}

/// What a collective gives, worked out on the host after all work that is queued.
pub fn results(
    c: &Together,
    plan: &Plan,
    run: &Bound,
    lane: &Lane,
    group: &dyn Group,
) -> Result<Vec<Vec<u8>>, PlanError> {
    let types: Vec<Ty> = c.xs.iter().map(|x| Ty { dtype: x.dtype, shape: x.shape.clone() }).collect();
    let spans: Vec<(u64, usize)> =
        c.xs.iter().zip(&types).map(|(x, ty)| (address(x, run), ty.bytes())).collect();
    let xs = fetch(&spans, lane).map_err(wrong)?;
    let mut outs: Vec<Vec<u8>> =
        c.outs.iter().map(|&out| vec![0; plan.storages[out as usize].bytes]).collect();
    let mut items: Vec<Item> =
        types.into_iter().zip(&xs).zip(&mut outs).map(|((ty, x), out)| Item { ty, x, out }).collect();
    collect::run(&c.what, group.axis(c.axis)?, &mut items)?;
    Ok(outs)
}

/// Says where a collective that is queued gives something else than `expected`, for somebody who searches for the reason.
pub fn compare(
    c: &Together,
    expected: &[Vec<u8>],
    run: &Bound,
    lane: &Lane,
    group: &dyn Group,
) -> Result<(), PlanError> {
    let spans: Vec<(u64, usize)> =
        c.outs.iter().zip(expected).map(|(&out, bytes)| (run.addresses[out as usize], bytes.len())).collect();
    let got = fetch(&spans, lane).map_err(wrong)?;
    let rank = group.axis(c.axis)?.rank();
    for (k, (got, expected)) in got.iter().zip(expected).enumerate().filter(|(_, (a, b))| a != b) {
        let (ty, each) = (&c.xs[k], c.xs[k].dtype.size());
        let differ = |i: &usize| got[i * each..(i + 1) * each] != expected[i * each..(i + 1) * each];
        let elements: Vec<usize> = (0..expected.len() / each).filter(differ).collect();
        gt_ir::say!(
            "gt worker: rank {rank}: {} of operand {k} of {} ({} {:?}) differs by NCCL in {} of {} elements, the first {:?}",
            c.what.text(),
            c.xs.len(),
            ty.dtype,
            ty.shape,
            elements.len(),
            expected.len() / each,
            elements.first(),
        );
    }
    Ok(())
}

/// Brings ranges of the device's memory to the host, several pieces at a time.
pub fn fetch(spans: &[(u64, usize)], lane: &Lane) -> Result<Vec<Vec<u8>>> {
    let mut out: Vec<Vec<u8>> = spans.iter().map(|(_, bytes)| Vec::with_capacity(*bytes)).collect();
    let mut coming: Vec<(usize, usize, Landed)> = Vec::new();
    let mut land =
        |(k, n, landed): (usize, usize, Landed)| landed.wait(n, |from| out[k].extend_from_slice(from));
    for (k, &(from, bytes)) in spans.iter().enumerate() {
        for at in (0..bytes).step_by(Pinned::PIECE) {
            let n = Pinned::PIECE.min(bytes - at);
            if coming.len() == COMING {
                land(coming.remove(0))?;
            }
            // SAFETY: the range lies in a storage that the run keeps.
            coming.push((k, n, unsafe { lane.receive(&lane.stream, from + at as u64, n)? }));
        }
    }
    coming.into_iter().try_for_each(land)?;
    Ok(out)
}
