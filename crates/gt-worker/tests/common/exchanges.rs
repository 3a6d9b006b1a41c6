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

/// A step of two ranks with collectives of many kinds.
pub const TOGETHER: &str = "
    in TENSOR[0] f32[64, 64] dies
    in TENSOR[1] f32[16, 64]
    slot $0
    TENSOR[2] := MATMUL{ta=false,tb=false} TENSOR[1] TENSOR[0]
    TENSOR[3] := TANH TENSOR[2]
    TENSOR[4], TENSOR[5] := ALLTOALL{number=0,axis=0,from=0,to=1,sizes=[32,32],lens=[32,32]} TENSOR[3] TENSOR[2]
    TENSOR[6] := MUL TENSOR[4] TENSOR[5]
    TENSOR[7] := ALLTOALL{number=1,axis=0,from=1,to=0,sizes=[64],lens=[16]} TENSOR[6]
    TENSOR[8] := MATMUL{ta=true,tb=false} TENSOR[1] TENSOR[7]
    TENSOR[9] := MATMUL{ta=true,tb=false} TENSOR[7] TENSOR[3]
    TENSOR[10], TENSOR[11] := REDUCESCATTER{number=2,axis=0,kind=SUM,dim=1,lens=[32,32]} TENSOR[8] TENSOR[9]
    TENSOR[12] := ADD TENSOR[10] TENSOR[11]
    TENSOR[13] := ALLGATHER{number=3,axis=0,dim=1,sizes=[64]} TENSOR[12]
    TENSOR[14] := AMAX{dims=[1],keepdim=false} TENSOR[7]
    TENSOR[15] := ALLREDUCE{number=4,axis=0,kind=AMAX} TENSOR[14]
    TENSOR[16] := CAST{dtype=bf16} TENSOR[13]
    TENSOR[17] := ALLREDUCE{number=5,axis=0,kind=SUM} TENSOR[16]
    TENSOR[18] := SUM{dims=[0,1],keepdim=false} TENSOR[8]
    TENSOR[19] := ALLREDUCE{number=6,axis=0,kind=SUM} TENSOR[18]
    TENSOR[20] := MUL TENSOR[13] $0
    TENSOR[21] := SUB TENSOR[0] TENSOR[20]
    TENSOR[22] := TANH TENSOR[21]
    TENSOR[23] := CUMSUM{dim=0} TENSOR[22]
    TENSOR[24] := CUMSUM{dim=1} TENSOR[23]
    out TENSOR[21]
    out TENSOR[15]
    out TENSOR[17]
    out TENSOR[19]
    out TENSOR[24]";

#[test]
fn the_step_of_two_ranks_is_well_formed() {
    let structure = gt_ir::text::parse_structure(TOGETHER).unwrap();
    structure.check().unwrap();
}
