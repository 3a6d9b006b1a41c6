//! Einstein summation by permuting, reshaping and multiplying matrices.

use super::linalg::batched;
use super::moves::{diagonal, permute, reshape_to};
use super::{bin, moves, reduce};
use crate::Tensor;
use gt_ir::{Binary, Result, Shape, bail, norm_dim};

/// A tensor whose dimensions have labels. Letters are their code points, dimensions of `...` count down from -1.
#[derive(Clone)]
struct Labelled {
    x: Tensor,
    labels: Vec<i32>,
}

impl Labelled {
    fn size(&self, label: i32) -> Option<usize> {
        self.labels.iter().position(|&l| l == label).map(|d| self.x.shape()[d])
    }

    /// The dimensions in the order of `labels`, which are all there.
    fn arranged(&self, labels: &[i32]) -> Result<Tensor> {
        if self.labels == labels {
            return Ok(self.x.clone());
        }
        let find = |l: &i32| self.labels.iter().position(|m| m == l).unwrap_or(0) as i64;
        permute(&self.x, &labels.iter().map(find).collect::<Vec<_>>())
    }

    /// Sums over every label that `keep` does not want.
    fn without(self, keep: impl Fn(i32) -> bool) -> Result<Labelled> {
        let gone: Vec<i64> =
            (0..self.labels.len()).filter(|&d| !keep(self.labels[d])).map(|d| d as i64).collect();
        if gone.is_empty() {
            return Ok(self);
        }
        let x = reduce::sum(&self.x, &gone, false, Some(self.x.dtype()))?;
        Ok(Labelled { x, labels: self.labels.into_iter().filter(|&l| keep(l)).collect() })
    }
}

/// Sums products of elements as an equation such as `"bij,bjk->bik"` says.
pub fn einsum(equation: &str, tensors: &[Tensor]) -> Result<Tensor> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((i, o)) => (i, Some(o)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != tensors.len() {
        bail!(
            Runtime,
            "einsum(): {} operands were provided for {} terms in the equation '{equation}'",
            tensors.len(),
            terms.len()
        );
    }
    let mut operands = Vec::new();
    let mut gap = 0;
    for (i, (term, x)) in terms.iter().zip(tensors).enumerate() {
        let letters = term.replace("...", "");
        let count = letters.chars().count();
        let spare = x.ndim().checked_sub(count).filter(|&n| n == 0 || term.contains("..."));
        let Some(spare) = spare else {
            bail!(
                Runtime,
                "einsum(): the number of subscripts in the equation ({count}) does not match the number of dimensions \
                 ({}) for operand {i}",
                x.ndim()
            );
        };
        let ellipsis = (0..spare).map(|k| -((spare - k) as i32)).collect();
        operands.push(labelled(x, &parse(term, ellipsis)?)?);
        gap = gap.max(spare);
    }
    let ellipsis: Vec<i32> = (0..gap).map(|k| -((gap - k) as i32)).collect();
    let out = match output {
        Some(o) => parse(o, if o.contains("...") { ellipsis } else { Vec::new() })?,
        None => {
            // Implicit: what stands in `...`, then the letters that appear once, in order.
            let mut once: Vec<i32> = inputs.chars().filter(|c| c.is_alphabetic()).map(|c| c as i32).collect();
            once.sort_unstable();
            let single = once.iter().copied().filter(|l| once.iter().filter(|m| *m == l).count() == 1);
            ellipsis.into_iter().chain(single).collect()
        }
    };
    for (i, &l) in out.iter().enumerate() {
        if out[..i].contains(&l) {
            bail!(Runtime, "einsum(): output subscript appears more than once in the output of '{equation}'");
        }
        if !operands.iter().any(|o| o.labels.contains(&l)) {
            bail!(
                Runtime,
                "einsum(): output subscript does not appear in the equation for any input operand"
            );
        }
    }
    let sizes = check_sizes(&mut operands)?;
    let mut rest = operands.into_iter();
    let Some(mut sum) = rest.next() else { bail!(Runtime, "einsum(): must provide at least one operand") };
    while let Some(next) = rest.next() {
        let later = rest.as_slice();
        let wanted = |l: i32| out.contains(&l) || later.iter().any(|o| o.labels.contains(&l));
        sum = contract(sum, next, wanted)?;
    }
    let sum = sum.without(|l| out.contains(&l))?;
    if out.iter().all(|l| sum.labels.contains(l)) {
        return sum.arranged(&out);
    }
    // Labels that were 1 wherever they stood come back as dimensions of size 1.
    let present: Vec<i32> = out.iter().copied().filter(|l| sum.labels.contains(l)).collect();
    let x = sum.arranged(&present)?;
    let size = |l: &i32| sizes.iter().find(|(m, _)| m == l).map_or(1, |(_, n)| *n);
    reshape_to(&x, out.iter().map(size).collect())
}

fn parse(term: &str, ellipsis: Vec<i32>) -> Result<Vec<i32>> {
    let mut labels = Vec::new();
    let mut dots = 0;
    for c in term.chars() {
        match c {
            '.' => {
                dots += 1;
                if dots == 3 {
                    labels.extend(&ellipsis);
                }
            }
            c if c.is_ascii_alphabetic() && (dots == 0 || dots == 3) => labels.push(c as i32),
            c => bail!(
                Runtime,
                "einsum(): invalid subscript '{c}' in '{term}', subscripts must be in [a-zA-Z]"
            ),
        }
    }
    if dots != 0 && dots != 3 {
        bail!(Runtime, "einsum(): found '.' in '{term}' that is not part of any ellipsis");
    }
    Ok(labels)
}

/// The tensor with labels; a label that stands twice takes the diagonal.
fn labelled(x: &Tensor, labels: &[i32]) -> Result<Labelled> {
    let mut out = Labelled { x: x.clone(), labels: labels.to_vec() };
    loop {
        let twice = (0..out.labels.len()).find_map(|i| {
            (i + 1..out.labels.len()).find(|&j| out.labels[j] == out.labels[i]).map(|j| (i, j))
        });
        let Some((i, j)) = twice else { return Ok(out) };
        if out.x.shape()[i] != out.x.shape()[j] {
            bail!(
                Runtime,
                "einsum(): subscript is repeated for one operand but the sizes don't match, {} != {}",
                out.x.shape()[j],
                out.x.shape()[i]
            );
        }
        out.x = diagonal(&out.x, 0, i as i64, j as i64)?;
        let label = out.labels[i];
        out.labels.remove(j);
        out.labels.remove(i);
        out.labels.push(label);
    }
}

/// The size of every label. Where one operand has 1 and another more, the 1 is dropped: it broadcasts.
fn check_sizes(operands: &mut [Labelled]) -> Result<Vec<(i32, usize)>> {
    let mut sizes: Vec<(i32, usize)> = Vec::new();
    for (i, o) in operands.iter().enumerate() {
        for (&l, &n) in o.labels.iter().zip(o.x.shape().iter()) {
            match sizes.iter_mut().find(|(m, _)| *m == l) {
                None => sizes.push((l, n)),
                Some((_, size)) if *size == n || n == 1 => {}
                Some((_, size)) if *size == 1 => *size = n,
                Some((_, size)) => bail!(
                    Runtime,
                    "einsum(): subscript has size {n} for operand {i} which does not broadcast with previously seen \
                     size {size}"
                ),
            }
        }
    }
    for o in operands {
        let size = |l: i32| sizes.iter().find(|(m, _)| *m == l).map_or(1, |(_, n)| *n);
        let narrow = |d: usize| o.x.shape()[d] == 1 && size(o.labels[d]) != 1;
        let drop: Vec<usize> = (0..o.labels.len()).filter(|&d| narrow(d)).collect();
        if !drop.is_empty() {
            let dims: Vec<i64> = drop.iter().map(|&d| d as i64).collect();
            o.x = moves::squeeze(&o.x, Some(&dims))?;
            let kept = o.labels.iter().enumerate().filter(|(d, _)| !drop.contains(d));
            o.labels = kept.map(|(_, &l)| l).collect();
        }
    }
    Ok(sizes)
}

/// The product of two operands, summed over labels that nobody wants any more.
fn contract(a: Labelled, b: Labelled, wanted: impl Fn(i32) -> bool) -> Result<Labelled> {
    let a = {
        let other = b.labels.clone();
        a.without(|l| wanted(l) || other.contains(&l))?
    };
    let b = {
        let other = a.labels.clone();
        b.without(|l| wanted(l) || other.contains(&l))?
    };
    let both = |l: &&i32| b.labels.contains(l);
    let batch: Vec<i32> = a.labels.iter().filter(both).filter(|l| wanted(**l)).copied().collect();
    let inner: Vec<i32> = a.labels.iter().filter(both).filter(|l| !wanted(**l)).copied().collect();
    let left: Vec<i32> = a.labels.iter().filter(|l| !b.labels.contains(l)).copied().collect();
    let right: Vec<i32> = b.labels.iter().filter(|l| !a.labels.contains(l)).copied().collect();
    let count =
        |o: &Labelled, labels: &[i32]| -> usize { labels.iter().map(|&l| o.size(l).unwrap_or(1)).product() };
    let shape: Shape = batch
        .iter()
        .chain(&left)
        .map(|&l| a.size(l).unwrap_or(1))
        .chain(right.iter().map(|&l| b.size(l).unwrap_or(1)))
        .collect();
    let (nb, nl, nr, nk) = (count(&a, &batch), count(&a, &left), count(&b, &right), count(&a, &inner));
    let order_a: Vec<i32> = [&batch[..], &left, &inner].concat();
    let order_b: Vec<i32> = [&batch[..], &inner, &right].concat();
    let flat = |x: Tensor, n: usize, rows: usize, cols: usize| {
        let shape: Shape = if batch.is_empty() { [rows, cols].into() } else { [n, rows, cols].into() };
        reshape_to(&x, shape)
    };
    let (x, y) = (flat(a.arranged(&order_a)?, nb, nl, nk)?, flat(b.arranged(&order_b)?, nb, nk, nr)?);
    let out = if inner.is_empty() { bin(Binary::Mul, &x, &y)? } else { batched(&x, &y)? };
    let labels = [&batch[..], &left, &right].concat();
    Ok(Labelled { x: reshape_to(&out, shape)?, labels })
}

/// Sums products over pairs of dimensions of two tensors.
pub fn tensordot(a: &Tensor, b: &Tensor, dims_a: &[i64], dims_b: &[i64]) -> Result<Tensor> {
    if dims_a.len() != dims_b.len() {
        bail!(
            Runtime,
            "tensordot: both dimension lists should have same length, got {dims_a:?} and {dims_b:?}"
        );
    }
    if let (Some(dim), true) = (dims_a.first().or(dims_b.first()), a.ndim() * b.ndim() == 0) {
        bail!(Index, "tensordot: dimension {dim} of a tensor that has no dimensions");
    }
    let mut left = Labelled { x: a.clone(), labels: (1..=a.ndim() as i32).collect() };
    let mut right_x = b.clone();
    let right = {
        let base = a.ndim() as i32;
        let mut labels: Vec<i32> = (1..=b.ndim() as i32).map(|l| base + l).collect();
        for (&da, &db) in dims_a.iter().zip(dims_b) {
            let (da, db) = (norm_dim("tensordot", da, a.ndim())?, norm_dim("tensordot", db, b.ndim())?);
            if a.shape()[da] != b.shape()[db] && (a.shape()[da] == 1 || b.shape()[db] == 1) {
                // One element stands for all of the other side's, whose sum it is multiplied with.
                left.x = reduce::sum(&left.x, &[da as i64], true, Some(a.dtype()))?;
                right_x = reduce::sum(&right_x, &[db as i64], true, Some(b.dtype()))?;
            } else if a.shape()[da] != b.shape()[db] {
                bail!(
                    Runtime,
                    "tensordot: contracted dimensions need to match, but first has size {} in dim {da} and second has \
                     size {} in dim {db}",
                    a.shape()[da],
                    b.shape()[db]
                );
            }
            labels[db] = left.labels[da];
        }
        Labelled { x: right_x, labels }
    };
    let shared: Vec<i32> = right.labels.iter().copied().filter(|l| left.labels.contains(l)).collect();
    left.x = left.x.clone();
    Ok(contract(left, right, |l| !shared.contains(&l))?.x)
}
