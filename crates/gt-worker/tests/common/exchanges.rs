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
            // One operand, and one beside others that divide otherwise, where that does not take long.
            let few = shape.iter().product::<usize>() <= 64;
            let counts = if few { vec![1, 3] } else { vec![1] };
            let more = [shape.clone(), with(dim, shape[dim] + 1), with(dim, 2 * shape[dim])];
            let part_of = |r: usize, d: usize, shape: &[usize]| part_range(shape[d], n, r).len();
            for &count in &counts {
                let scatter = |r: usize| {
                    let lens = more[..count].iter().map(|shape| part_of(r, dim, shape)).collect();
                    Exchange::ReduceScatter { kind: ReduceKind::Sum, dim, lens }
                };
                made.push(((0..n).map(scatter).collect(), draw_all(&|_| more[..count].to_vec())));
            }
            for to in (0..shape.len()).filter(|to| *to != dim) {
                for &count in &counts {
                    let exchange = |r: usize| Exchange::AllToAll {
                        from: dim,
                        to,
                        sizes: more[..count].iter().map(|shape| shape[dim]).collect(),
                        lens: more[..count].iter().map(|shape| part_of(r, to, shape)).collect(),
                    };
                    let piece = |r: usize, shape: &Vec<usize>| {
                        let mut piece = shape.clone();
                        piece[dim] = part_of(r, dim, shape);
                        piece
                    };
                    let xs = draw_all(&|r| more[..count].iter().map(|shape| piece(r, shape)).collect());
                    made.push(((0..n).map(exchange).collect(), xs));
                }
            }
        }
    }
    made
}
