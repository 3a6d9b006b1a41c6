//! Random products of every shape and map: what the library would compute from a form, after the launches before it, is
//! what the plan's maps say. Kernels are played here from the bytes of their arguments.

use super::*;
use crate::launch::Function;
use gt_compiler::Storage;
use gt_ir::Scalar;

/// A small generator of numbers.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Every storage, and last the workspace, at an address of its own; elements are four bytes.
struct Memory(Vec<Vec<f32>>);

impl Memory {
    fn address(i: usize) -> u64 {
        (i as u64 + 1) << 32
    }

    fn at(&mut self, address: u64) -> &mut f32 {
        let (region, offset) = ((address >> 32) as usize - 1, (address & 0xffff_ffff) as usize);
        assert_eq!(offset % 4, 0, "an address between elements");
        &mut self.0[region][offset / 4]
    }
}

/// The eight-byte fields of a launch's only argument.
fn fields(launch: &crate::Launch, addresses: &[u64], slots: &[Slot], scratch: u64) -> Vec<i64> {
    let mut bytes = launch.args[0].bytes.clone();
    for fill in &launch.args[0].fills {
        let word = fill.word.get(addresses, slots, scratch, 0);
        bytes[fill.at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    bytes.chunks(8).map(|c| i64::from_ne_bytes(c.try_into().unwrap())).collect()
}

fn offset(address: i64, elements: i64) -> u64 {
    (address + elements * 4) as u64
}

/// `gtm_pack_4`.
fn play_pack(memory: &mut Memory, p: &[i64]) {
    for i in 0..p[3] {
        let (mut rest, mut at) = (i, p[1]);
        for d in (0..8).rev() {
            at += rest % p[4 + d] * p[12 + d];
            rest /= p[4 + d];
        }
        let x = if p[0] == 0 { 0.0 } else { *memory.at(offset(p[0], at)) };
        *memory.at(offset(p[2] + p[20], i)) = x;
    }
}

/// `gtm_integers_4`, on numbers small enough to be floats as well.
fn play_integers(memory: &mut Memory, p: &[i64]) {
    let &[m, n, k, batches] = &p[16..20] else { panic!("{p:?}") };
    for b in 0..batches {
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let mut sum = 0.0;
            for l in 0..k {
                let x = *memory.at(offset(p[0], p[1] + b * p[2] + i * p[3] + l * p[4]));
                let y = *memory.at(offset(p[5], p[6] + b * p[7] + l * p[8] + j * p[9]));
                sum += x * y;
            }
            if p[10] != 0 {
                sum += *memory.at(offset(p[10], p[11] + b * p[12] + i * p[13] + j * p[14]));
            }
            *memory.at(offset(p[15], (b * m + i) * n + j)) = sum;
        }
    }
}

/// What cuBLASLt computes: columns first, transposed where said.
fn play_form(memory: &mut Memory, form: &Form, addresses: &[u64], slots: &[Slot], workspace: u64) {
    let base = |side: &Side| side.origin.address(4, addresses, slots, workspace) as i64;
    // Row and column of what the library calls op(X).
    let at = |side: &Side, call: isize, batch: usize, row: usize, col: usize| {
        let (row, col) = if side.transposed { (col, row) } else { (row, col) };
        assert!(row < side.rows && col < side.cols && side.ld >= side.rows, "{side:?}: {row}, {col}");
        let elements = row + col * side.ld;
        let start = base(side) + (call + batch as isize * side.batch) as i64 * 4;
        assert_eq!(start % side.alignment.min(4) as i64, 0);
        assert_eq!(start as usize % side.alignment, 0, "claims too much alignment: {side:?}");
        offset(start, elements as i64)
    };
    for call in &form.calls {
        for batch in 0..form.batches {
            for (row, col) in (0..form.n).flat_map(|r| (0..form.m).map(move |c| (r, c))) {
                let to = at(&form.out, call[3], batch, row, col);
                let mut sum = match &form.bias {
                    Bias::None => 0.0,
                    Bias::Columns(side) => *memory.at(at(side, call[2], batch, row, 0)),
                    Bias::Matrix(side) => *memory.at(at(side, call[2], batch, row, col)),
                    Bias::InPlace => *memory.at(to),
                };
                for k in 0..form.k {
                    let x = *memory.at(at(&form.b, call[1], batch, row, k));
                    sum += x * *memory.at(at(&form.a, call[0], batch, k, col));
                }
                *memory.at(to) = sum;
            }
        }
    }
}

/// A tensor of this shape in a storage of its own, by some legal map of its elements; and the storage's length.
fn tensor(rng: &mut Rng, storage: u32, dtype: DType, shape: &[usize]) -> (Tensor, usize) {
    let shape: Shape = shape.into();
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if rng.below(2) == 0 {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
    }
    let mut strides = Strides::from_elem(0, shape.len());
    let (mut step, mut offset) = (1, 0);
    for &d in order.iter().rev() {
        if rng.below(5) == 0 {
            continue; // Broadcast.
        }
        strides[d] = step * if rng.below(4) == 0 { 1 + rng.below(2) as isize } else { 1 };
        step =
            strides[d] * shape[d].max(1) as isize + if rng.below(4) == 0 { rng.below(5) as isize } else { 0 };
        if rng.below(8) == 0 {
            offset += strides[d] * (shape[d].max(1) as isize - 1);
            strides[d] = -strides[d];
        }
    }
    let start = rng.below(3) as isize;
    let slots = if rng.below(3) == 0 { [(0u32, 2isize)].into_iter().collect() } else { Default::default() };
    let map = Map { strides, offset: offset + start, slots };
    (Tensor { storage, dtype, shape, map }, (step + start + 40) as usize)
}

/// The plan's own meaning of an element.
fn element(memory: &mut Memory, t: &Tensor, slots: &[Slot], index: &[usize]) -> f32 {
    let moved: isize = index.iter().zip(&t.map.strides).map(|(&i, &s)| i as isize * s).sum();
    let at = (t.map.offset(slots) + moved) as i64;
    *memory.at(offset(Memory::address(t.storage as usize) as i64, at))
}

fn check(seed: u64, dtype: DType, how: Pack) {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let mut size = |most: usize| if rng.below(12) == 0 { 0 } else { 1 + rng.below(most) };
    let (m, n, k) = (size(5), size(5), size(5));
    let batch: Vec<usize> =
        (0..rng.below(4)).map(|_| 1 + rng.below(if seed.is_multiple_of(7) { 6 } else { 3 })).collect();
    let with = |r, c| batch.iter().copied().chain([r, c]).collect::<Vec<usize>>();
    let (a, len_a) = tensor(&mut rng, 0, dtype, &with(m, k));
    let (b, len_b) = tensor(&mut rng, 1, dtype, &with(k, n));
    let (c, len_c) = tensor(&mut rng, 2, dtype, &with(m, n));
    let bias = (rng.below(2) == 0).then_some(c);
    let out_len = batch.iter().product::<usize>() * m * n;
    let storage = |len: usize| Storage { bytes: len * 4, place: Place::Input(0), reuse: None };
    let plan = Plan {
        storages: [len_a, len_b, len_c, out_len].map(storage).to_vec(),
        steps: Vec::new(),
        outs: Vec::new(),
        arena: 0,
    };
    let mm = Matmul {
        batch: batch.as_slice().into(),
        m,
        rows: m,
        n,
        k,
        a,
        b,
        bias,
        residual: None,
        relu: false,
        tf32: false,
        out: 3,
    };
    let slots = [Slot::Num(Scalar::Int(rng.below(9) as i64))];

    let ready = ready(&mm, &plan, how);
    let mut fill = |len: usize| (0..len).map(|_| rng.below(7) as f32 - 3.0).collect::<Vec<f32>>();
    let mut memory = Memory(vec![fill(len_a), fill(len_b), fill(len_c), vec![f32::NAN; out_len]]);
    memory.0.push(vec![f32::NAN; ready.before.scratch / 4]);
    let addresses: Vec<u64> = (0..4).map(Memory::address).collect();
    for launch in &ready.before.list {
        let Function::Plain(name) = launch.function else { panic!("made for a plan") };
        let p = fields(launch, &addresses, &slots, Memory::address(4));
        match name {
            "gtm_pack_4" => play_pack(&mut memory, &p),
            "gtm_integers_4" => play_integers(&mut memory, &p),
            other => panic!("no such kernel: {other}"),
        }
    }
    if let Some(form) = &ready.form {
        let moves = [&form.a, &form.b].iter().any(|side| side.origin.slots().next().is_some());
        assert!(!moves, "seed {seed}: a captured graph could not follow {form:?}");
        play_form(&mut memory, form, &addresses, &slots, Memory::address(4));
    }
    for i in 0..out_len {
        let (mut rest, mut index) = (i / (m * n), vec![0; batch.len()]);
        for d in (0..batch.len()).rev() {
            index[d] = rest % batch[d];
            rest /= batch[d];
        }
        let (row, col) = (i / n % m, i % n);
        let at = |r, c| index.iter().copied().chain([r, c]).collect::<Vec<usize>>();
        let mut want = mm.bias.as_ref().map_or(0.0, |t| element(&mut memory, t, &slots, &at(row, col)));
        for l in 0..k {
            let x = element(&mut memory, &mm.a, &slots, &at(row, l));
            want += x * element(&mut memory, &mm.b, &slots, &at(l, col));
        }
        assert_eq!(memory.0[3][i], want, "seed {seed}, element {i} of {mm:?} by {ready:?}");
    }
}

#[test]
fn forms_say_what_maps_say() {
    for seed in 0..4000 {
        check(seed, DType::F32, Pack::Least);
    }
}

#[test]
fn so_they_do_where_the_library_refuses() {
    for seed in 0..1000 {
        check(seed, DType::F32, Pack::Bias);
        check(seed, DType::F32, Pack::All);
    }
}

#[test]
fn integers_are_multiplied_by_the_same_maps() {
    for seed in 0..2000 {
        check(seed, DType::I32, Pack::Least);
    }
}

#[test]
fn what_the_library_takes_is_not_packed() {
    // Heads of a permuted projection: [batch, time, head, width] seen as [batch, head, time, width].
    let shape: Shape = [8, 12, 64, 32].into();
    let strides =
        |s: [isize; 4]| Map { strides: s.into_iter().collect(), offset: 0, slots: Default::default() };
    let q = Tensor { storage: 0, dtype: DType::BF16, shape, map: strides([24576, 32, 384, 1]) };
    let k =
        Tensor { map: strides([24576, 32, 1, 384]), shape: [8, 12, 32, 64].into(), storage: 1, ..q.clone() };
    let storage = Storage { bytes: 0, place: Place::Input(0), reuse: None };
    let plan = Plan { storages: vec![storage; 3], steps: vec![], outs: vec![], arena: 0 };
    let batch = [8, 12].into();
    let mm = Matmul {
        batch,
        m: 64,
        rows: 64,
        n: 64,
        k: 32,
        a: q,
        b: k,
        bias: None,
        residual: None,
        relu: false,
        tf32: false,
        out: 2,
    };
    let ready = ready(&mm, &plan, Pack::Least);
    let form = ready.form.expect("a product");
    assert!(ready.before.list.is_empty());
    assert_eq!((form.batches, form.calls.len()), (12, 8));
    assert_eq!((form.a.transposed, form.b.transposed, form.a.ld, form.b.ld), (false, true, 384, 384));
}

#[test]
fn what_follows_a_product_leaves_it_as_it_is() {
    let behind = [
        ("TENSOR[0] TENSOR[1]", "RELU TENSOR[5]", "RELU TENSOR[6]"),
        ("TENSOR[0] TENSOR[1] TENSOR[3]", "RELU TENSOR[5]", "RELU TENSOR[6]"),
        ("TENSOR[0] TENSOR[1]", "ADD TENSOR[2] TENSOR[5]", "RELU TENSOR[6]"),
        ("TENSOR[0] TENSOR[1]", "ADD TENSOR[5] TENSOR[3]", "RELU TENSOR[6]"),
        ("TENSOR[0] TENSOR[1]", "ADD TENSOR[5] TENSOR[4]", "EXP TENSOR[6]"),
    ];
    for (m, n, k) in [(7, 13, 5), (1, 64, 64), (128, 512, 784), (128, 10, 512)] {
        for (batch, operands) in ["", "2, ", "2, 3, "].into_iter().flat_map(|b| behind.map(|o| (b, o))) {
            let (product, first, second) = operands;
            let program = format!(
                "in TENSOR[0] f32[{batch}{m}, {k}]
                 in TENSOR[1] f32[{k}, {n}]
                 in TENSOR[2] f32[{batch}{m}, {n}]
                 in TENSOR[3] f32[{n}]
                 in TENSOR[4] f32[1, {n}]
                 TENSOR[5] := MATMUL{{ta=false,tb=false}} {product}
                 TENSOR[6] := {first}
                 TENSOR[7] := {second}
                 out TENSOR[7]"
            );
            let structure = gt_ir::text::parse_structure(&program).unwrap();
            let options = gt_compiler::CompileOptions { epilogues: true, ..Default::default() };
            let plan = gt_compiler::compile(&structure, &structure.check().unwrap(), options).unwrap();
            let gt_compiler::Work::Matmul(mm) = &plan.steps[0].work else { panic!("{plan}") };
            assert!(mm.relu || mm.residual.is_some(), "{plan}");
            let bare = Matmul { residual: None, relu: false, ..(**mm).clone() };
            let (with, without) = (ready(mm, &plan, Pack::Least), ready(&bare, &plan, Pack::Least));
            let form = with.form.expect("a product");
            assert_eq!(Some(form.bare()), without.form, "{plan}");
            assert!(with.before.list.is_empty(), "{plan}");
            assert!(!matches!(form.bias, Bias::InPlace), "{plan}");
        }
    }
}
