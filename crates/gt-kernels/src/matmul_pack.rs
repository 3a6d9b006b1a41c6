//! Launches that products need besides the library: operands packed into memory in order, and products of integers.

use crate::launch::{Arg, Fill, Function, Launch, Launches, Word};
use gt_compiler::{Map, Strides};
use gt_ir::{DType, Shape};

/// The text of the kernels named here, a part of the plain ones.
pub const PLAIN: &str = include_str!("matmul_plain.cu");

/// Dimensions of a map that the packing kernel takes.
const DIMS: usize = 8;
const BLOCK: usize = 256;

/// An argument made of fields of eight bytes.
#[derive(Default)]
pub(crate) struct Fields {
    bytes: Vec<u8>,
    fills: Vec<Fill>,
}

impl Fields {
    pub(crate) fn int(&mut self, x: i64) -> &mut Fields {
        self.bytes.extend_from_slice(&x.to_ne_bytes());
        self
    }

    pub(crate) fn word(&mut self, word: Word) -> &mut Fields {
        self.fills.push(Fill { at: self.bytes.len() as u32, word });
        self.int(0)
    }

    pub(crate) fn arg(self) -> Arg {
        Arg { bytes: self.bytes, fills: self.fills }
    }
}

/// Dimensions that lie evenly spaced are one; those of a single element are none.
pub(crate) fn collapsed(shape: &[usize], strides: &[isize]) -> (Vec<usize>, Vec<isize>) {
    let (mut sizes, mut steps): (Vec<usize>, Vec<isize>) = (Vec::new(), Vec::new());
    for (&n, &s) in shape.iter().zip(strides).filter(|(n, _)| **n != 1) {
        match (sizes.last_mut(), steps.last_mut()) {
            (Some(size), Some(step)) if *step == s * n as isize => (*size, *step) = (*size * n, s),
            _ => {
                sizes.push(n);
                steps.push(s);
            }
        }
    }
    (sizes, steps)
}

/// Where packed elements come from: a storage seen through a map, or nowhere, which gives zeros.
pub(crate) type From<'a> = Option<(u32, &'a Map)>;

/// Adds launches that write the elements of `shape`, in row-major order, to `to`, from byte `at` on.
pub(crate) fn pack(
    list: &mut Vec<Launch>,
    from: From,
    shape: &[usize],
    dtype: DType,
    to: impl Fn(usize) -> (Word, usize),
) {
    let zeros = Map::constant(shape.len());
    let map = from.map_or(&zeros, |(_, map)| map);
    let (sizes, steps) = collapsed(shape, &map.strides);
    let cut = sizes.len().saturating_sub(DIMS);
    let inner: usize = sizes[cut..].iter().product();
    for (i, moved) in positions(&sizes[..cut], &steps[..cut]).into_iter().enumerate() {
        let start = Map { strides: Strides::new(), offset: map.offset + moved, slots: map.slots.clone() };
        let mut p = Fields::default();
        match from {
            Some((storage, _)) => p.word(Word::Address(storage)).word(Word::Start(start)),
            None => p.int(0).int(0),
        };
        let (word, extra) = to(i * inner * dtype.size());
        // A place within a storage is reached by an address and a count of bytes; scratch words hold both.
        debug_assert!(extra == 0 || matches!(word, Word::Address(_)));
        p.word(word).int(inner as i64);
        let lead = DIMS - sizes[cut..].len();
        (0..lead).for_each(|_| _ = p.int(1));
        sizes[cut..].iter().for_each(|&n| _ = p.int(n as i64));
        (0..lead).for_each(|_| _ = p.int(0));
        steps[cut..].iter().for_each(|&s| _ = p.int(s as i64));
        p.int(extra as i64);
        list.push(Launch {
            function: Function::Plain(by_size(dtype, PACK)),
            grid: [inner.div_ceil(BLOCK).clamp(1, 1 << 16) as u32, 1, 1],
            block: BLOCK as u32,
            shared: 0,
            args: vec![p.arg()],
        });
    }
}

const PACK: [&str; 4] = ["gtm_pack_1", "gtm_pack_2", "gtm_pack_4", "gtm_pack_8"];
const PRODUCT: [&str; 4] = ["gtm_integers_1", "gtm_integers_2", "gtm_integers_4", "gtm_integers_8"];

fn by_size(dtype: DType, names: [&'static str; 4]) -> &'static str {
    names[dtype.size().trailing_zeros() as usize]
}

/// The distance of every index of `shape` from the first, in row-major order.
pub(crate) fn positions(shape: &[usize], strides: &[isize]) -> Vec<isize> {
    let mut out = vec![0];
    for (&n, &s) in shape.iter().zip(strides) {
        out = out.iter().flat_map(|&p| (0..n as isize).map(move |i| p + i * s)).collect();
    }
    out
}

/// A matrix of a product of integers: batches, rows and columns at even distances.
pub(crate) struct IntSide {
    pub at: Word,
    pub start: Option<Map>,
    pub strides: [isize; 3],
}

/// The launch of a product of integers. `sides` are a, b and perhaps the bias.
pub(crate) fn int_product(
    [batches, m, n, k]: [usize; 4],
    dtype: DType,
    sides: [Option<IntSide>; 3],
    out: u32,
) -> Launches {
    let mut p = Fields::default();
    for side in sides {
        match side {
            Some(side) => {
                p.word(side.at);
                match side.start {
                    Some(map) => p.word(Word::Start(map)),
                    None => p.int(0),
                };
                side.strides.iter().for_each(|&s| _ = p.int(s as i64));
            }
            None => (0..5).for_each(|_| _ = p.int(0)),
        }
    }
    p.word(Word::Address(out)).int(m as i64).int(n as i64).int(k as i64).int(batches as i64);
    let across = batches.min(1 << 15);
    let launch = Launch {
        function: Function::Plain(by_size(dtype, PRODUCT)),
        grid: [(m.div_ceil(16) * n.div_ceil(16)) as u32, across as u32, batches.div_ceil(across) as u32],
        block: 256,
        shared: 0,
        args: vec![p.arg()],
    };
    Launches { list: vec![launch], scratch: 0, zeroed: 0 }
}

/// The map that an operand has once it is packed: what is broadcast stays so, everything else is dense.
pub(crate) fn dense_but(shape: &Shape, map: &Map, keep: usize) -> (Vec<usize>, Strides) {
    let mut sizes: Vec<usize> = shape.to_vec();
    let mut strides: Strides = Strides::from_elem(0, shape.len());
    let mut step = 1;
    for d in (0..shape.len()).rev() {
        if d < keep && map.strides[d] == 0 {
            sizes[d] = 1;
        } else {
            strides[d] = step;
            step *= shape[d] as isize;
        }
    }
    (sizes, strides)
}
