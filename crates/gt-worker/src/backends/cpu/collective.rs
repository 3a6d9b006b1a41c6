//! Collectives as steps: the memory of a plan's storages, shown to the other ranks.

use super::kernel::Bases;
use crate::backend::PlanError;
use crate::gang::Group;
use crate::gang::collect::{self, Item};
use crate::gang::hands::Hands;
use gt_compiler::{Plan, Together};
use gt_ir::Ty;

pub fn run(
    c: &Together,
    plan: &Plan,
    bases: Bases,
    group: &dyn Group,
    hands: &dyn Hands,
) -> Result<(), PlanError> {
    let mut items: Vec<Item> =
        c.xs.iter()
            .zip(&c.outs)
            .map(|(x, &out)| {
                let ty = Ty { dtype: x.dtype, shape: x.shape.clone() };
                let offset = x.map.offset(bases.slots) * x.dtype.size() as isize;
                let from = bases.ptrs[x.storage as usize].wrapping_offset(offset);
                let (to, bytes) = (bases.ptrs[out as usize], plan.storages[out as usize].bytes);
                // SAFETY: operands are packed and results have storages of their own, which nothing else touches in this
                // step; what is empty may have no memory at all.
                unsafe {
                    Item {
                        x: slice(from, ty.bytes()),
                        out: if bytes == 0 { &mut [] } else { std::slice::from_raw_parts_mut(to, bytes) },
                        ty,
                    }
                }
            })
            .collect();
    collect::run_with(&c.what, group.axis(c.axis)?, hands, &mut items)
}

/// # Safety
/// `from` points to `bytes` bytes that nobody writes meanwhile, if there are any.
unsafe fn slice<'a>(from: *const u8, bytes: usize) -> &'a [u8] {
    // SAFETY: as the caller promises.
    if bytes == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from, bytes) } }
}
