//! The kernels that join what the ranks of a gang sent, without a GPU: every kind and type, whatever the sizes.

mod common;

use common::{Kernels, Memory, compiler};
use gt_ir::collective::eval_parts;
use gt_ir::host::close_by_dtype;
use gt_ir::sample::{Rng, draw};
use gt_ir::{DType, Exchange, HostTensor, ReduceKind, Ty};
use gt_kernels::{Launch, Launches, gang};

fn launch(kind: ReduceKind, dtype: DType, count: usize) -> Launch {
    let (function, grid) = (gang::join(kind, dtype), [gang::grid(count, dtype), 1, 1]);
    Launch { function, grid, block: gang::BLOCK, shared: 0, args: Vec::new() }
}

#[test]
fn what_ranks_sent_is_joined_as_the_language_has_it() {
    let Some(compiler) = compiler() else { return };
    let kinds = [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min];
    let mut rng = Rng::new(7);
    let mut kernels = Kernels::default();
    let all = DType::ALL.into_iter().flat_map(|dtype| kinds.map(|kind| launch(kind, dtype, 1)));
    kernels.add_made(compiler, &[Launches { list: all.collect(), ..Launches::default() }]);
    for dtype in DType::ALL {
        for kind in kinds {
            for (runs, count) in [(1, 7), (2, 16), (3, 1), (3, 4099), (8, 333)] {
                let ty = Ty::new(dtype, [count]);
                let parts: Vec<Vec<HostTensor>> =
                    (0..runs).map(|_| vec![draw(&mut rng, &ty, (0.5, 1.5))]).collect();
                let (mut from, to) = (Memory::new(runs * ty.bytes()), Memory::new(ty.bytes()));
                let sent: Vec<u8> = parts.iter().flat_map(|p| p[0].data.clone()).collect();
                from.write(&sent);
                let words = [from.address(), to.address(), runs as u64, count as u64];
                kernels.call(&launch(kind, dtype, count), &mut words.map(|word| vec![word]));
                let got = HostTensor { ty, data: to.bytes().to_vec() };
                let want = &eval_parts(&Exchange::AllReduce { kind }, &parts).unwrap()[0][0];
                close_by_dtype(&got, want)
                    .unwrap_or_else(|e| panic!("{kind:?} {dtype} {runs} x {count}: {e}"));
            }
        }
    }
}
