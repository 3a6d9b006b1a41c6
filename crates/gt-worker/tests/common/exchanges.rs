//! Every collective on even, uneven and empty pieces, with what each rank holds.

use gt_ir::layout::part_range;
use gt_ir::sample::{Rng, draw};
use gt_ir::{DType, Exchange, HostTensor, ReduceKind, Ty};

/// Every rank's pieces, and the collective as that rank writes it.
pub fn cases(rng: &mut Rng, n: usize, dtype: DType) -> Vec<(Vec<Exchange>, Vec<Vec<HostTensor>>)> {
    let mut shapes = vec![vec![13], vec![4, 6], vec![2, 5, 3], vec![3, 0, 2], vec![1, 1], vec![300, 70]];
    // More than goes in one round.
    if dtype == DType::F32 {
        shapes.push(vec![3, 130_001]);
    }
    let (mut made, kinds) = (Vec::new(), [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
    let mut draw_all = |shape_of: &dyn Fn(usize) -> Vec<Vec<usize>>| -> Vec<Vec<HostTensor>> {
        let one = |shape: Vec<usize>, rng: &mut Rng| draw(rng, &Ty::new(dtype, shape), (1.0, 4.0));
        (0..n).map(|r| shape_of(r).into_iter().map(|s| one(s, rng)).collect()).collect()
    };
    for shape in &shapes {
        for kind in kinds {
            let xs = draw_all(&|_| vec![shape.clone(), vec![3], vec![]]);
            made.push((vec![Exchange::AllReduce { kind }; n], xs));
        }
        made.push((vec![Exchange::Broadcast { root: n - 1 }; n], draw_all(&|_| vec![shape.clone()])));
        for dim in 0..shape.len() {
            let part = |r: usize, d: usize| part_range(shape[d], n, r).len();
            let with = |d: usize, len: usize| {
                let mut shape = shape.clone();
                shape[d] = len;
                shape
            };
            let sizes = [shape[dim], shape[dim]].into_iter().collect();
            let gather = Exchange::AllGather { dim, sizes };
            let xs = draw_all(&|r| vec![with(dim, part(r, dim)); 2]);
            made.push((vec![gather; n], xs));
            let scatter = |r: usize| {
                let lens = [part(r, dim)].into_iter().collect();
                Exchange::ReduceScatter { kind: ReduceKind::Sum, dim, lens }
            };
            made.push(((0..n).map(scatter).collect(), draw_all(&|_| vec![shape.clone()])));
            for to in (0..shape.len()).filter(|to| *to != dim) {
                let exchange = |r: usize| Exchange::AllToAll {
                    from: dim,
                    to,
                    sizes: [shape[dim]].into_iter().collect(),
                    lens: [part(r, to)].into_iter().collect(),
                };
                let xs = draw_all(&|r| vec![with(dim, part(r, dim))]);
                made.push(((0..n).map(exchange).collect(), xs));
            }
        }
    }
    made
}
