//! Gradients of products: no element is divided by, so that any of them may be zero, and any number of them, in second
//! derivatives too.

use crate::build::{Build, Operand};
use crate::op::{Op, ScanKind, View};
use crate::{Ints, Result, Shape};
use smallvec::smallvec;

/// For every element along `dims` the product of all others there.
pub(super) fn others<B: Build>(b: &mut B, x: &B::V, dims: &[usize]) -> Result<B::V> {
    let shape = b.ty(x).shape;
    if let [dim] = dims {
        return along(b, x, *dim);
    }
    // Several dimensions are brought behind the others and joined.
    let kept = (0..shape.len()).filter(|d| !dims.contains(d));
    let perm: Ints = kept.chain(dims.iter().copied()).collect();
    let apart: Shape = perm.iter().map(|&d| shape[d]).collect();
    let rest = shape.len() - dims.len();
    let joined: Shape = apart[..rest].iter().copied().chain([apart[rest..].iter().product()]).collect();
    let mut back = perm.clone();
    for (i, &d) in perm.iter().enumerate() {
        back[d] = i;
    }
    let x = b.permute(x, perm)?;
    let x = b.reshape(&x, &joined)?;
    let d = along(b, &x, rest)?;
    let d = b.reshape(&d, &apart)?;
    b.permute(&d, back)
}

fn along<B: Build>(b: &mut B, x: &B::V, dim: usize) -> Result<B::V> {
    let flip = Op::Flip { dims: smallvec![dim] };
    let left = before(b, x, dim)?;
    let turned = b.emit(flip.clone(), smallvec![x.into()])?;
    let right = before(b, &turned, dim)?;
    let right = b.emit(flip, smallvec![(&right).into()])?;
    b.mul(&left, &right)
}

/// For every element the product of those before it along `dim`.
fn before<B: Build>(b: &mut B, x: &B::V, dim: usize) -> Result<B::V> {
    let shape = b.ty(x).shape;
    if shape[dim] == 0 {
        return Ok(x.clone());
    }
    let x = part(b, x, dim, 0, shape[dim] - 1)?;
    let (mut lo, hi): (Ints, Ints) = (smallvec![0; shape.len()], smallvec![0; shape.len()]);
    lo[dim] = 1;
    let x = b.emit(Op::Pad { lo, hi }, smallvec![(&x).into(), Operand::from(1.0)])?;
    b.emit(Op::Scan { kind: ScanKind::Prod, dim }, smallvec![(&x).into()])
}

/// The gradient of running products of `x` along `dim`, given that of the results: for every element the product of those
/// before it, times the sum, over the results from its own on, of their gradients times the elements in between.
pub(super) fn running<B: Build>(b: &mut B, x: &B::V, dim: usize, g: &B::V) -> Result<B::V> {
    let n = b.ty(x).shape[dim];
    if n <= 1 {
        return Ok(g.clone());
    }
    // The sums reach twice as far in every round: `sums` over `reach` results each, `between` the products of as many
    // elements behind each.
    let (mut sums, mut between, mut reach) = (g.clone(), part(b, x, dim, 1, n - 1)?, 1);
    while reach < n {
        let (near, far) = (part(b, &sums, dim, 0, n - reach)?, part(b, &sums, dim, reach, n - reach)?);
        let done = part(b, &sums, dim, n - reach, reach)?;
        let far = b.mul(&between, &far)?;
        let near = b.add(&near, &far)?;
        sums = b.emit(Op::Concat { dim }, smallvec![(&near).into(), (&done).into()])?;
        if 2 * reach < n {
            let left = n - 2 * reach;
            let (first, second) = (part(b, &between, dim, 0, left)?, part(b, &between, dim, reach, left)?);
            between = b.mul(&first, &second)?;
        }
        reach *= 2;
    }
    let before = before(b, x, dim)?;
    b.mul(&before, &sums)
}

/// `len` elements from `start` on along `dim`.
fn part<B: Build>(b: &mut B, x: &B::V, dim: usize, start: usize, len: usize) -> Result<B::V> {
    b.view(x, View::Slice { dim, len, step: 1 }, Some(start as i64))
}
