//! Measures the algorithms that cuBLASLt offers for a product, on matrices of its own. One takes the place of the library's
//! first choice only if it is faster and gives the same bits, so that results do not depend on what was measured (C7).

use super::driver::{Event, Stream, check};
use super::matmul::Handle;
use super::matmul_call::{At, Found, Products, remembered};
use cudarc::driver::result;
use gt_ir::{DType, Result};
use gt_kernels::matmul::{Bias, Form, Side};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// When products are measured (`GT_MATMUL_TUNE`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum When {
    /// `0`
    Never,
    /// Aside, for later processes: the default.
    Later,
    /// `1`: before their first use, which waits.
    Now,
}

impl When {
    pub fn from_env() -> When {
        match std::env::var("GT_MATMUL_TUNE").as_deref() {
            Ok("0") => When::Never,
            Ok("1") => When::Now,
            _ => When::Later,
        }
    }
}

/// Operations from which on a product is worth measuring.
const LARGE: f64 = 2e9;
/// An algorithm must take at most so much of the first choice's time.
const GAIN: f64 = 0.985;
/// Times of one algorithm that differ by more than this say that others use the device.
const STEADY: f64 = 1.15;
const ROUNDS: usize = 4;
/// Pauses, in times of what was measured before.
const PAUSE: f64 = 40.0;
/// Results are compared up to this many bytes.
const COMPARED: usize = 64 << 20;

/// What measuring found.
pub struct Measured {
    pub found: Found,
    /// Seconds of the library's first choice, and of the one that was found.
    pub first: f64,
    pub best: f64,
    /// Microseconds of all algorithms; those that were compared and give other bits are marked.
    pub all: String,
}

pub fn is_large(form: &Form) -> bool {
    2.0 * form.batches as f64 * form.m as f64 * form.n as f64 * form.k as f64 >= LARGE
}

/// How carefully it is measured beside running programs.
pub struct Care<'a> {
    /// The device is left alone for a while after each measurement.
    pub pause: bool,
    /// Somebody wants it to end.
    pub stop: &'a AtomicBool,
}

/// Seconds of one algorithm in each round.
type Times = [f64; ROUNDS];

fn least(times: &Times) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

/// False if others seem to use the device.
fn is_steady(times: &Times) -> bool {
    times.iter().copied().fold(0.0, f64::max) <= STEADY * least(times)
}

/// The best of the algorithms that round like the first. `None` where the device is too busy or too full to tell.
pub fn measure(handle: &Arc<Handle>, form: &Form, found: &[Found], care: &Care) -> Result<Option<Measured>> {
    let Some(bench) = Bench::new(form, found)? else { return Ok(None) };
    let products = found.iter().map(|f| Products::new(handle.clone(), form.clone(), *f, 0));
    let products = products.collect::<Result<Vec<Products>>>()?;
    let Some(times) = bench.time_all(&products, care)? else { return Ok(None) };
    let times: Vec<f64> = times.iter().map(least).collect();
    let mut faster: Vec<usize> = (1..times.len()).filter(|&i| times[i] < GAIN * times[0]).collect();
    faster.sort_by(|&i, &j| times[i].total_cmp(&times[j]));
    let mut all: Vec<String> = times.iter().map(|t| format!("{:.1}", t * 1e6)).collect();
    let mut best = 0;
    for i in faster {
        if bench.alike(&products[0], &products[i])? {
            best = i;
            break;
        }
        all[i] += "*";
    }
    Ok(Some(Measured { found: found[best], first: times[0], best: times[best], all: all.join(" ") }))
}

/// A relu is tried on so many rows and columns at most.
const TRIED: usize = 256;

/// True if an algorithm's relu, of a form that has one, is ours in every bit: NaN stays, no zero has a sign, and what is too
/// small to be normal is there. `None` where the device is too full to tell.
pub fn has_true_relu(handle: &Arc<Handle>, form: &Form, found: &Found) -> Result<Option<bool>> {
    let small = smaller(form);
    let (form, found) = match remembered(handle, &small, found.words()) {
        Some(found) => (&small, found),
        None if extents(form).iter().any(|bytes| *bytes > COMPARED) => return Ok(Some(false)),
        None => (form, *found),
    };
    let bare = form.bare();
    let Some(alone) = remembered(handle, &bare, found.words()) else { return Ok(Some(false)) };
    let Some(bench) = Bench::new(form, &[found, alone])? else { return Ok(None) };
    let product = Products::new(handle.clone(), form.clone(), found, 0)?;
    let alone = Products::new(handle.clone(), bare, alone, 0)?;
    let ours = || -> Result<bool> {
        let (bare, whole) = (bench.result_of(&alone, bench.other)?, bench.result_of(&product, bench.at.out)?);
        Ok(numbers(form, &bare).zip(numbers(form, &whole)).all(|(x, y)| is_relu(x, y)))
    };
    // What is added is zero, so that the bare product, which may not have it, gives what the relu is of.
    let tried = |fill: [&mut dyn FnMut() -> f32; 3]| -> Result<bool> {
        let mut places = bench.operands(form).into_iter().zip(fill);
        places.try_for_each(|(place, number)| bench.fill(form.dtype, &[place], number))?;
        ours()
    };
    let (mut sign, mut other) = (random(), random());
    let mut fine = tried([&mut || sign(), &mut || other(), &mut || 0.0])?;
    fine = fine && tried([&mut || f32::NAN, &mut || f32::NAN, &mut || f32::NAN])?;
    // Sums of either sign about the least normal number and `below` it, which are not normal, or nothing once they are
    // rounded; their factors are small or one of them is not normal itself.
    let least = if form.dtype == DType::F16 { -14 } else { -126 };
    let roots = (form.k.max(1) as f32).log2() as i32 / 2;
    for below in [0, 4, 8, 12, 25, 72] {
        for x in [(least - below) / 2, least - 3] {
            let y = least - below - x - roots;
            let [x, y] = [x, y].map(|n| 2f64.powi(n) as f32);
            fine = fine && tried([&mut || -x, &mut || y, &mut || -0.0])?;
            fine = fine && tried([&mut || x, &mut || y.copysign(sign()), &mut || 0.0])?;
        }
    }
    Ok(Some(fine))
}

/// True if `y` is the relu of `x` as our kernels compute it.
fn is_relu(x: f32, y: f32) -> bool {
    if x.is_nan() { y.is_nan() } else { y.to_bits() == if x > 0.0 { x.to_bits() } else { 0 } }
}

/// A product of fewer rows and columns in matrices that lie as those of a form do.
fn smaller(form: &Form) -> Form {
    let mut small = Form { batches: 1, m: form.m.min(TRIED), n: form.n.min(TRIED), ..form.clone() };
    let (m, n, k) = (small.m, small.n, small.k);
    let cut = |side: &mut Side, rows: usize, cols: usize| {
        (side.rows, side.cols) = if side.transposed { (rows, cols) } else { (cols, rows) };
    };
    cut(&mut small.a, m, k);
    cut(&mut small.b, k, n);
    cut(&mut small.out, m, n);
    match &mut small.bias {
        Bias::Columns(side) => cut(side, 1, n),
        Bias::Matrix(side) => cut(side, m, n),
        Bias::None | Bias::InPlace => {}
    }
    small
}

/// Matrices of the size of a form, and a stream.
struct Bench {
    stream: Stream,
    /// Freed in the end.
    taken: Vec<u64>,
    at: At,
    /// Where the results of a second algorithm go.
    other: u64,
    out_bytes: usize,
    workspace: u64,
}

/// Bytes from the first element of a matrix to its last.
fn extent(form: &Form, side: &Side) -> usize {
    let batches = form.batches.saturating_sub(1) * side.batch.unsigned_abs();
    let one = side.cols.saturating_sub(1) * side.ld + side.rows;
    (batches + one) * form.dtype.size()
}

/// Bytes of a, b and what is added.
fn extents(form: &Form) -> [usize; 3] {
    let bias = match &form.bias {
        Bias::Columns(side) | Bias::Matrix(side) => extent(form, side),
        Bias::None | Bias::InPlace => 0,
    };
    [extent(form, &form.a), extent(form, &form.b), bias]
}

/// Random numbers between -1 and 1.
fn random() -> impl FnMut() -> f32 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// The numbers of the first result in the bytes of all.
fn numbers(form: &Form, bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (dtype, size, out) = (form.dtype, form.dtype.size(), &form.out);
    let columns = (0..out.cols).map(move |c| (c * out.ld * size)..(c * out.ld + out.rows) * size);
    let columns = columns.filter_map(|range| bytes.get(range));
    columns.flat_map(move |column| column.chunks_exact(size)).map(move |x| match dtype {
        DType::F16 => half::f16::from_ne_bytes([x[0], x[1]]).to_f32(),
        DType::BF16 => half::bf16::from_ne_bytes([x[0], x[1]]).to_f32(),
        DType::F64 => f64::from_ne_bytes(std::array::from_fn(|i| x[i])) as f32,
        _ => f32::from_ne_bytes(std::array::from_fn(|i| x[i])),
    })
}

impl Bench {
    /// `None` where the device has no room to spare.
    fn new(form: &Form, found: &[Found]) -> Result<Option<Bench>> {
        let out_bytes = extent(form, &form.out);
        let scratch = found.iter().map(|f| f.workspace).max().unwrap_or(0);
        let [a, b, bias] = extents(form);
        let sizes = [a, b, bias, out_bytes, out_bytes, scratch];
        let (free, _) = check("memory", result::mem_get_info())?;
        if sizes.iter().sum::<usize>() > free / 4 {
            return Ok(None);
        }
        let at = At { a: 0, b: 0, bias: 0, out: 0 };
        let mut bench =
            Bench { stream: Stream::new()?, taken: Vec::new(), at, other: 0, out_bytes, workspace: 0 };
        let mut places = [0; 6];
        for (place, bytes) in places.iter_mut().zip(sizes) {
            *place = bench.take(bytes)?;
        }
        let [a, b, bias, out, other, workspace] = places;
        bench.at = At { a, b, bias, out };
        bench.fill(form.dtype, &bench.operands(form), random())?;
        (bench.other, bench.workspace) = (other, workspace);
        Ok(Some(bench))
    }

    fn take(&mut self, bytes: usize) -> Result<u64> {
        // SAFETY: freed once, in `drop`.
        let address = check("memory", unsafe { result::malloc_async(self.stream.raw(), bytes.max(256)) })?;
        self.taken.push(address);
        Ok(address)
    }

    /// Where a, b and what is added lie, and how many bytes.
    fn operands(&self, form: &Form) -> [(u64, usize); 3] {
        let [a, b, bias] = extents(form);
        [(self.at.a, a), (self.at.b, b), (self.at.bias, bias)]
    }

    /// Fills memory with numbers of a type.
    fn fill(&self, dtype: DType, places: &[(u64, usize)], mut number: impl FnMut() -> f32) -> Result<()> {
        // So many numbers over and over, at other columns in each row.
        const COUNT: usize = (1 << 20) - 3;
        let longest = places.iter().map(|&(_, len)| len / dtype.size()).max().unwrap_or(0);
        let count = COUNT.min(longest);
        let mut bytes: Vec<u8> = Vec::with_capacity(count * dtype.size());
        for _ in 0..count {
            let x = number();
            match dtype {
                DType::F64 => bytes.extend((x as f64).to_ne_bytes()),
                DType::F16 => bytes.extend(half::f16::from_f32(x).to_ne_bytes()),
                DType::BF16 => bytes.extend(half::bf16::from_f32(x).to_ne_bytes()),
                _ => bytes.extend(x.to_ne_bytes()),
            }
        }
        for &(at, len) in places {
            for from in (0..len).step_by(bytes.len().max(1)) {
                let n = bytes.len().min(len - from);
                // SAFETY: the range is the bench's own, and the host's bytes stay until the wait below.
                unsafe { self.stream.upload(at + from as u64, bytes.as_ptr(), n)? };
            }
        }
        self.stream.wait()
    }

    /// Times of all products, which take turns; `None` if others use the device.
    fn time_all(&self, products: &[Products], care: &Care) -> Result<Option<Vec<Times>>> {
        let mut times = vec![[f64::INFINITY; ROUNDS]; products.len()];
        // The first run of each loads its kernels.
        self.seconds(&products[0], 1)?;
        let once = self.seconds(&products[0], 1)?;
        let count = (3e-4 / once.max(1e-6)).clamp(1.0, 20.0) as usize;
        for time in &mut times[0] {
            *time = self.seconds(&products[0], count)?;
        }
        if !is_steady(&times[0]) {
            return Ok(None);
        }
        products[1..].iter().try_for_each(|product| self.seconds(product, 1).map(drop))?;
        for round in 0..ROUNDS {
            for (product, times) in products.iter().zip(&mut times) {
                if care.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                times[round] = self.seconds(product, count)?;
                if care.pause {
                    std::thread::sleep(Duration::from_secs_f64(PAUSE * times[round] * count as f64));
                }
            }
        }
        Ok(is_steady(&times[0]).then_some(times))
    }

    /// Seconds of one product, of several in a row.
    fn seconds(&self, product: &Products, times: usize) -> Result<f64> {
        let start = Event::timed(&self.stream)?;
        for _ in 0..times {
            product.call(&self.at, self.workspace, self.stream.raw())?;
        }
        let end = Event::timed(&self.stream)?;
        end.wait()?;
        Ok(end.seconds_since(&start) / times as f64)
    }

    /// True if two algorithms give the same bits.
    fn alike(&self, one: &Products, two: &Products) -> Result<bool> {
        Ok(self.result_of(one, self.at.out)? == self.result_of(two, self.other)?)
    }

    /// What a product writes to `out`, which was zero.
    fn result_of(&self, product: &Products, out: u64) -> Result<Vec<u8>> {
        // SAFETY: the memory is the bench's own.
        unsafe { self.stream.zero(out, self.out_bytes)? };
        product.call(&At { out, ..self.at }, self.workspace, self.stream.raw())?;
        let mut bytes = vec![0u8; self.out_bytes.min(COMPARED)];
        // SAFETY: both ranges stay until the wait.
        unsafe { self.stream.download(bytes.as_mut_ptr(), out, bytes.len())? };
        self.stream.wait()?;
        Ok(bytes)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for address in &self.taken {
            // SAFETY: taken on this stream, freed once behind all work on it.
            if let Err(error) = unsafe { result::free_async(*address, self.stream.raw()) } {
                super::driver::log_drop("free", error);
            }
        }
    }
}
