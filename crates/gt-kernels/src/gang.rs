//! Joining what the ranks of a gang sent: element by element in the order of ranks, halves in f32, rounded once (C8).

use crate::launch::Function;
use gt_ir::{DType, ReduceKind};

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// The kernel that joins runs of elements which lie one after the other. It takes the address of the first run, that of
/// the result, how many runs there are and how many elements each has.
pub fn join(kind: ReduceKind, dtype: DType) -> Function {
    let kind = match kind {
        ReduceKind::Sum => "sum",
        ReduceKind::Prod => "prod",
        ReduceKind::Max => "max",
        ReduceKind::Min => "min",
    };
    let name = format!("gt_gang_{kind}_{dtype}");
    let wide = 16 / dtype.size();
    let text = format!(
        "extern \"C\" __global__ void __launch_bounds__({BLOCK}) {name}(const char* from, char* to, u64 runs, u64 count) {{
    typedef D_{dtype} D;
    const u64 step = (u64)gridDim.x * blockDim.x * {wide};
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * {wide}; i < count; i += step) {{
        D::T all[{wide}], x[{wide}];
        gt_load_perhaps<D, {wide}>(from, (i64)i, (i64)(count - i), all);
        for (u64 r = 1; r < runs; r++) {{
            gt_load_perhaps<D, {wide}>(from, (i64)(r * count + i), (i64)(count - i), x);
#pragma unroll
            for (int j = 0; j < {wide}; j++) all[j] = J_{kind}::join(all[j], x[j]);
        }}
        gt_store_perhaps<D, {wide}>(to, (i64)i, (i64)(count - i), all);
    }}
}}
"
    );
    Function::Made { name: name.into(), text: text.into() }
}

/// Blocks for so many elements.
pub fn grid(count: usize, dtype: DType) -> u32 {
    let each = BLOCK as usize * (16 / dtype.size());
    count.div_ceil(each).clamp(1, 1 << 12) as u32
}
