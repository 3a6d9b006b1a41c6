//! Parts of a join are written where they belong by whoever makes them, and the copies that put them together go: gradients
//! of queries, keys and values beside each other, for the product that follows.

use crate::fuse::Draft;
use crate::map::{Map, Strides};
use crate::plan::{Place, Source, Step, Work};
use gt_ir::{DType, Shape};

/// Has results that are only copied into a part of something else written there.
pub fn join(draft: &mut Draft) {
    let mut uses = Uses::of(draft);
    let mut gone = vec![false; draft.steps.len()];
    for (at, gone) in gone.iter_mut().enumerate() {
        let Some(copy) = Copy::of(&draft.steps[at]) else { continue };
        let Some(maker) = uses.maker(draft, at, &copy) else { continue };
        if !uses.tiled(draft, copy.to) || !relocate(&mut draft.steps[maker], &copy) {
            continue;
        }
        let Step { instr, fused, .. } = draft.steps[at].clone();
        draft.steps[maker].fused.push(instr);
        draft.steps[maker].fused.extend(fused);
        let writers = &mut uses.writers[copy.to as usize];
        writers.retain(|i| *i != at && *i != maker);
        writers.push(maker);
        *gone = true;
    }
    let mut gone = gone.into_iter();
    draft.steps.retain(|_| !gone.next().unwrap_or(false));
}

/// The steps that write and read each storage.
struct Uses {
    writers: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Uses {
    fn of(draft: &Draft) -> Uses {
        let none = vec![Vec::new(); draft.storages.len()];
        let mut uses = Uses { writers: none.clone(), readers: none };
        for (i, step) in draft.steps.iter().enumerate() {
            let put = |list: &mut Vec<usize>| {
                if list.last() != Some(&i) {
                    list.push(i);
                }
            };
            step.writes(|s| put(&mut uses.writers[s as usize]));
            step.reads(|s| put(&mut uses.readers[s as usize]));
        }
        uses
    }

    /// The step that makes what step `at` copies, if nobody else wants it and nobody looks at the join before.
    fn maker(&self, draft: &Draft, at: usize, copy: &Copy) -> Option<usize> {
        let (from, to) = (copy.from as usize, copy.to as usize);
        let own = |s: usize| {
            let storage = &draft.storages[s];
            let known = storage.reuse.is_some() || draft.outs.contains(&(s as u32));
            !known && matches!(storage.place, Place::Arena(_))
        };
        let &[maker] = &*self.writers[from] else { return None };
        let alone = self.readers[from] == [at] && self.readers[to].iter().all(|i| *i > at);
        (maker < at && alone && own(from) && own(to)).then_some(maker)
    }

    /// True if all that is written to a storage is as much as it holds: nothing is written twice, in whatever order.
    fn tiled(&self, draft: &Draft, storage: u32) -> bool {
        let mut bytes = 0;
        for &i in &self.writers[storage as usize] {
            let (mut writes, mut found) = (0, 0);
            draft.steps[i].writes(|s| writes += (s == storage) as usize);
            let mut count = |shape: &Shape, dtype: DType| {
                found += 1;
                bytes += shape.numel() * dtype.size();
            };
            match &draft.steps[i].work {
                Work::Kernel(kernel) => {
                    let parts = kernel.stores.iter().filter(|x| x.storage == storage && !x.row);
                    parts.for_each(|x| count(&kernel.shape, x.dtype));
                }
                Work::AttentionGrad(a) => {
                    let parts = [&a.dq, &a.dk, &a.dv].into_iter().filter(|x| x.storage == storage);
                    parts.for_each(|x| count(&x.shape, x.dtype));
                }
                _ => return false,
            }
            if found != writes {
                return false;
            }
        }
        bytes == draft.storages[storage as usize].bytes
    }
}

/// A step that only copies a whole storage into a part of another.
struct Copy {
    from: u32,
    to: u32,
    shape: Shape,
    /// Where the elements lie on both sides.
    read: Map,
    written: Map,
}

impl Copy {
    fn of(step: &Step) -> Option<Copy> {
        let Work::Kernel(kernel) = &step.work else { return None };
        let ([load], [store]) = (&*kernel.loads, &*kernel.stores) else { return None };
        let Source::Mem { storage, map } = &load.from else { return None };
        // Strides of an empty tensor say nothing about where elements would go.
        let some = kernel.shape.numel() > 0;
        let plain = some && kernel.code.is_empty() && kernel.fold.is_none() && !load.row && !store.row;
        let fits = map.is_whole(&kernel.shape) && store.map.slots.is_empty() && load.dtype == store.dtype;
        (plain && fits && *storage != store.storage).then(|| Copy {
            from: *storage,
            to: store.storage,
            shape: kernel.shape.clone(),
            read: map.clone(),
            written: store.map.clone(),
        })
    }

    /// Where elements go that lie in the source by these sizes and strides. Nothing if a dimension of theirs spans several of
    /// the copy's.
    fn carried(&self, shape: &Shape, map: &Map) -> Option<Map> {
        if map.offset != 0 || !map.slots.is_empty() {
            return None;
        }
        let mut strides = Strides::new();
        for (&size, &stride) in shape.iter().zip(&map.strides) {
            if size == 1 {
                strides.push(0);
                continue;
            }
            let within = |d: &usize| {
                let (step, whole) = (self.read.strides[*d], self.read.strides[*d] * self.shape[*d] as isize);
                self.shape[*d] > 1 && stride % step == 0 && stride >= step && stride * size as isize <= whole
            };
            let d = (0..self.shape.len()).find(within)?;
            strides.push(self.written.strides[d] * (stride / self.read.strides[d]));
        }
        Some(Map { strides, ..self.written.clone() })
    }
}

/// Has a step write to the join what it wrote to the source of the copy. False if it cannot.
fn relocate(step: &mut Step, copy: &Copy) -> bool {
    match &mut step.work {
        Work::Kernel(kernel) => {
            let folds = kernel.fold.as_ref().is_some_and(|fold| fold.storage == copy.from);
            let mut stores = kernel.stores.iter_mut().filter(|store| store.storage == copy.from);
            let (Some(store), None, false) = (stores.next(), stores.next(), folds) else { return false };
            let whole = !store.row && kernel.shape.numel() == copy.shape.numel();
            let Some(map) = copy.carried(&kernel.shape, &store.map).filter(|_| whole) else { return false };
            (store.storage, store.map) = (copy.to, map);
            true
        }
        Work::AttentionGrad(a) if a.dq.shape.len() <= 4 => {
            let Some(t) = [&mut a.dq, &mut a.dk, &mut a.dv].into_iter().find(|t| t.storage == copy.from)
            else {
                return false;
            };
            let Some(map) = copy.carried(&t.shape, &t.map) else { return false };
            if map.strides.last() != Some(&1) || t.shape.numel() != copy.shape.numel() {
                return false;
            }
            (t.storage, t.map) = (copy.to, map);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::Work;
    use crate::plan::of_text as plan;

    const GRADIENT: &str = "
        in TENSOR[0] f32[2, 4, 8, 16]
        in TENSOR[1] f32[2, 4, 8, 16]
        in TENSOR[2] f32[192, 3]
        TENSOR[3], TENSOR[4] := ATTENTION{causal=true} TENSOR[0] TENSOR[1] TENSOR[1] 0.25
        TENSOR[5], TENSOR[6], TENSOR[7] := ATTENTIONGRAD{causal=true} TENSOR[0] TENSOR[1] TENSOR[1] TENSOR[3] TENSOR[4] TENSOR[0] 0.25
        TENSOR[8] := PERMUTE{perm=[0,2,1,3]} TENSOR[5]
        TENSOR[9] := RESHAPE{shape=[16,64]} TENSOR[8]
        TENSOR[10] := PERMUTE{perm=[0,2,1,3]} TENSOR[6]
        TENSOR[11] := RESHAPE{shape=[16,64]} TENSOR[10]
        TENSOR[12] := PERMUTE{perm=[0,2,1,3]} TENSOR[7]
        TENSOR[13] := RESHAPE{shape=[16,64]} TENSOR[12]
        TENSOR[14] := CONCAT{dim=1} TENSOR[9] TENSOR[11] TENSOR[13]
        TENSOR[15] := MATMUL{ta=false,tb=false} TENSOR[14] TENSOR[2]
        out TENSOR[15]";

    #[test]
    fn gradients_are_written_beside_each_other() {
        let plan = plan(GRADIENT);
        let [_, gradient, product] = &*plan.steps else { panic!("{plan}") };
        let (Work::AttentionGrad(a), Work::Matmul(mm)) = (&gradient.work, &product.work) else {
            panic!("{plan}")
        };
        for (t, offset) in [(&a.dq, 0), (&a.dk, 64), (&a.dv, 128)] {
            assert_eq!((t.storage, t.map.offset), (mm.a.storage, offset), "{plan}");
            assert_eq!(t.map.strides.as_slice(), [1536, 16, 192, 1], "{plan}");
        }
    }

    #[test]
    fn a_part_that_is_wanted_by_itself_stays() {
        let plan = plan(&format!("{GRADIENT}\n        out TENSOR[9]"));
        let Work::AttentionGrad(a) = &plan.steps[1].work else { panic!("{plan}") };
        assert!(a.dq.map.offset == 0 && a.dk.map.offset == 64, "{plan}");
    }

    #[test]
    fn empty_parts_are_left_as_they_are() {
        let program = "
            in TENSOR[0] f32[0, 3]
            in TENSOR[1] f32[1, 3]
            TENSOR[2] := ATAN2 TENSOR[1] TENSOR[0]
            TENSOR[3] := EXPAND{shape=[2,0,3]} TENSOR[2]
            TENSOR[4] := PAD{lo=[0,1,2],hi=[1,0,2]} TENSOR[3] 1.0
            TENSOR[5], TENSOR[6] := TOPK{dim=2,k=3,largest=false} TENSOR[4]
            out TENSOR[6]";
        plan(program);
    }
}
