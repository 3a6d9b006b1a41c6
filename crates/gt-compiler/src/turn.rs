//! Results of attention that are wanted in another order of dimensions are written in that order, and the copy that turned
//! them goes: heads come first while rows attend, and rows come first for the product that follows.

use crate::fuse::Draft;
use crate::map::{Map, Strides};
use crate::plan::{Place, Source, Step, Tensor, Work};

/// Has every result of attention that is copied into another order written there.
pub fn turn(draft: &mut Draft) {
    let mut gone: Vec<usize> = Vec::new();
    for at in 0..draft.steps.len() {
        for i in 0..results(&mut draft.steps[at]).len() {
            let result = results(&mut draft.steps[at])[i].clone();
            let Some(copy) = find(draft, at, &result) else { continue };
            for reader in copy.readers {
                if let Work::AttentionGrad(grad) = &mut draft.steps[reader].work {
                    (grad.out.storage, grad.out.map) = (copy.to, copy.map.clone());
                }
            }
            let result = &mut *results(&mut draft.steps[at])[i];
            (result.storage, result.map) = (copy.to, copy.map);
            let Step { instr, fused, .. } = draft.steps[copy.step].clone();
            draft.steps[at].fused.push(instr);
            draft.steps[at].fused.extend(fused);
            gone.push(copy.step);
        }
    }
    let mut i = 0;
    draft.steps.retain(|_| {
        i += 1;
        !gone.contains(&(i - 1))
    });
}

/// What attention writes that may lie in any order.
fn results(step: &mut Step) -> Vec<&mut Tensor> {
    match &mut step.work {
        Work::Attention(a) => vec![&mut a.out],
        Work::AttentionGrad(a) => vec![&mut a.dq, &mut a.dk, &mut a.dv],
        _ => Vec::new(),
    }
}

/// A step that only copies a result into another order.
struct Copy {
    step: usize,
    to: u32,
    /// Where the elements of the result lie there.
    map: Map,
    /// Gradients of attention that read the result too.
    readers: Vec<usize>,
}

/// The copy of a result of step `at`, if nothing else hinders that it is written there at once.
fn find(draft: &Draft, at: usize, result: &Tensor) -> Option<Copy> {
    let own = |s: u32| {
        let storage = &draft.storages[s as usize];
        storage.reuse.is_none() && matches!(storage.place, Place::Arena(_))
    };
    // Results of more leading dimensions are counted through.
    if result.shape.len() > 4 || draft.outs.contains(&result.storage) || !own(result.storage) {
        return None;
    }
    let mut found: Option<(usize, u32, Map)> = None;
    let mut readers = Vec::new();
    for (i, step) in draft.steps.iter().enumerate().filter(|(i, _)| *i != at) {
        if writes(step, result.storage) {
            return None;
        }
        match count_reads(step, result.storage) {
            0 => {}
            1 if reads_whole(step, result) => readers.push(i),
            1 if found.is_none() => {
                let (to, map) = copied(step, result)?;
                found = Some((i, to, map));
            }
            _ => return None,
        }
    }
    let (step, to, map) = found.filter(|(_, to, _)| own(*to))?;
    // Nobody else may write there, nor look before.
    let others = draft.steps.iter().enumerate().filter(|(i, _)| *i != step);
    let free = others.into_iter().all(|(i, s)| !writes(s, to) && (i > step || count_reads(s, to) == 0));
    (step > at && free).then_some(Copy { step, to, map, readers })
}

fn writes(step: &Step, storage: u32) -> bool {
    let mut found = false;
    step.writes(|s| found |= s == storage);
    found
}

fn count_reads(step: &Step, storage: u32) -> usize {
    let mut count = 0;
    step.reads(|s| count += (s == storage) as usize);
    count
}

/// True for a gradient of attention that reads it as attention gave it.
fn reads_whole(step: &Step, result: &Tensor) -> bool {
    match &step.work {
        Work::AttentionGrad(grad) => {
            grad.out.storage == result.storage && grad.out.map == result.map && grad.out.shape == result.shape
        }
        _ => false,
    }
}

/// Where a kernel that does nothing else puts the elements of a result: its storage, and the map of the result there.
fn copied(step: &Step, result: &Tensor) -> Option<(u32, Map)> {
    let Work::Kernel(kernel) = &step.work else { return None };
    let ([load], [store]) = (&*kernel.loads, &*kernel.stores) else { return None };
    let Source::Mem { map, .. } = &load.from else { return None };
    let plain = kernel.code.is_empty() && kernel.fold.is_none() && !load.row && !store.row;
    let whole = store.map.is_whole(&kernel.shape) && kernel.shape.numel() == result.shape.numel();
    if !plain || !whole || load.dtype != store.dtype || map.offset != 0 || !map.slots.is_empty() {
        return None;
    }
    // Each dimension of the result is one of the kernel.
    let mut left: Vec<usize> = (0..kernel.shape.len()).filter(|&d| kernel.shape[d] != 1).collect();
    let mut strides = Strides::new();
    for (&size, &stride) in result.shape.iter().zip(&result.map.strides) {
        if size == 1 {
            strides.push(0);
            continue;
        }
        let k = left.iter().position(|&d| kernel.shape[d] == size && map.strides[d] == stride)?;
        strides.push(store.map.strides[left.remove(k)]);
    }
    let packed = result.shape.last() == Some(&1) || strides.last() == Some(&1);
    (left.is_empty() && packed)
        .then_some((store.storage, Map { strides, offset: 0, slots: Default::default() }))
}

#[cfg(test)]
mod tests {
    use crate::Work;
    use crate::plan::of_text as plan;

    const ATTENTION: &str = "
        in TENSOR[0] f32[2, 4, 8, 16]
        in TENSOR[1] f32[2, 2, 8, 16]
        in TENSOR[2] f32[64, 3]
        TENSOR[3], TENSOR[4] := ATTENTION{causal=true} TENSOR[0] TENSOR[1] TENSOR[1] 0.25
        TENSOR[5] := PERMUTE{perm=[0,2,1,3]} TENSOR[3]
        TENSOR[6] := RESHAPE{shape=[16,64]} TENSOR[5]
        TENSOR[7] := MATMUL{ta=false,tb=false} TENSOR[6] TENSOR[2]
        out TENSOR[7]
        out TENSOR[4]";

    #[test]
    fn heads_are_written_beside_each_other_for_the_product_that_follows() {
        let plan = plan(ATTENTION);
        let [attention, product] = &*plan.steps else { panic!("{plan}") };
        let (Work::Attention(a), Work::Matmul(mm)) = (&attention.work, &product.work) else {
            panic!("{plan}")
        };
        assert_eq!(a.out.storage, mm.a.storage);
        assert_eq!(a.out.map.strides.as_slice(), [512, 16, 64, 1]);
        assert!(attention.fused.len() == 1, "the copy belongs to it: {:?}", attention.fused);
    }

    #[test]
    fn what_is_also_wanted_as_it_is_stays() {
        let plan = plan(&format!("{ATTENTION}\n        out TENSOR[3]"));
        let Work::Attention(a) = &plan.steps[0].work else { panic!("{plan}") };
        assert!(a.out.map.is_whole(&a.out.shape) && plan.steps.len() == 3, "{plan}");
    }
}
