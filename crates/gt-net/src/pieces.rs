//! Tensors put together from the pieces that several workers hold.

use crate::msg::{Bytes, Payload, Piece};
use gt_ir::{Result, bail};
use std::sync::Arc;

/// Puts a dense tensor together from pieces whose bytes are all here. Nothing about them is taken on trust.
pub fn assemble(pieces: &[Piece]) -> Result<Bytes> {
    let rank = pieces.first().map_or(0, |p| p.sizes.len());
    let mut shape = vec![0usize; rank];
    let mut covered = 0usize;
    let mut element = 0usize;
    for piece in pieces {
        let Payload::Inline(data) = &piece.payload else {
            bail!(Connection, "fetch: a piece of the tensor was left unresolved");
        };
        if piece.starts.len() != rank || piece.sizes.len() != rank {
            bail!(Connection, "fetch: pieces of one tensor have different numbers of dimensions");
        }
        let mut count = 1usize;
        for ((whole, start), size) in shape.iter_mut().zip(&piece.starts).zip(&piece.sizes) {
            let (start, size) = (*start as usize, *size as usize);
            let Some(end) = start.checked_add(size).filter(|end| *end < 1 << 48) else {
                bail!(Connection, "fetch: a piece lies outside of any tensor");
            };
            *whole = (*whole).max(end);
            count = count.saturating_mul(size);
        }
        let Some(size) = data.len().checked_div(count) else { continue };
        if size * count != data.len() || (element != 0 && size != element) {
            bail!(Connection, "fetch: a piece of {count} elements has {} bytes", data.len());
        }
        element = size;
        covered = covered.saturating_add(count);
    }
    let total = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    if total != Some(covered) && covered != 0 {
        bail!(Connection, "fetch: the pieces have {covered} elements, not those of {shape:?}");
    }
    let mut out = vec![0u8; covered * element];
    for piece in pieces {
        if let Payload::Inline(data) = &piece.payload {
            place(piece, data, &shape, element, &mut out);
        }
    }
    Ok(Arc::new(out))
}

/// Copies a piece row by row; a row is all that lies next to each other in both.
fn place(piece: &Piece, data: &[u8], shape: &[usize], element: usize, out: &mut [u8]) {
    let rank = shape.len();
    // Dimensions from here on are whole in the piece.
    let mut inner = rank;
    while inner > 0 && piece.sizes[inner - 1] as usize == shape[inner - 1] {
        inner -= 1;
    }
    let at = inner.saturating_sub(1);
    let row: usize = piece.sizes[at..].iter().map(|n| *n as usize).product::<usize>() * element;
    if row == 0 || data.is_empty() {
        return;
    }
    for (k, bytes) in data.chunks_exact(row).enumerate() {
        let (mut rest, mut offset, mut stride) = (k, 0, shape[at..].iter().product::<usize>());
        for d in (0..at).rev() {
            let size = piece.sizes[d] as usize;
            offset += (piece.starts[d] as usize + rest % size) * stride;
            rest /= size;
            stride *= shape[d];
        }
        if at < rank {
            offset += piece.starts[at] as usize * shape[at + 1..].iter().product::<usize>();
        }
        let first = offset * element;
        if let Some(to) = out.get_mut(first..first + row) {
            to.copy_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(starts: &[u64], sizes: &[u64], data: &[u8]) -> Piece {
        let payload = Payload::Inline(Arc::new(data.to_vec()));
        Piece { starts: starts.to_vec(), sizes: sizes.to_vec(), payload }
    }

    #[test]
    fn pieces_make_up_the_whole() {
        let whole: Vec<u8> = (0..24).collect();
        let index = |i: usize, j: usize, k: usize| ((i * 3 + j) * 4 + k) as u8;
        let cut = |i: [usize; 2], j: [usize; 2], k: [usize; 2]| {
            let mut data = Vec::new();
            for a in i[0]..i[1] {
                for b in j[0]..j[1] {
                    data.extend((k[0]..k[1]).map(|c| index(a, b, c)));
                }
            }
            let starts = [i[0], j[0], k[0]].map(|x| x as u64);
            let sizes = [i[1] - i[0], j[1] - j[0], k[1] - k[0]].map(|x| x as u64);
            piece(&starts, &sizes, &data)
        };
        let (ii, jj, kk) = ([0, 2], [0, 3], [0, 4]);
        for pieces in [
            vec![cut(ii, jj, kk)],
            vec![cut([0, 1], jj, kk), cut([1, 2], jj, kk), cut([2, 2], jj, kk)],
            vec![cut(ii, [0, 2], kk), cut(ii, [2, 3], kk)],
            vec![cut(ii, jj, [3, 4]), cut(ii, jj, [0, 3])],
            vec![
                cut([0, 1], jj, [0, 2]),
                cut([0, 1], jj, [2, 4]),
                cut([1, 2], jj, [0, 2]),
                cut([1, 2], jj, [2, 4]),
            ],
        ] {
            assert_eq!(*assemble(&pieces).unwrap(), whole);
        }
        assert_eq!(assemble(&[piece(&[], &[], &[7, 8])]).unwrap().len(), 2);
        assert_eq!(assemble(&[piece(&[0], &[0], &[]), piece(&[0], &[0], &[])]).unwrap().len(), 0);
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        assert!(assemble(&[piece(&[0], &[3], &[1, 2])]).is_err());
        assert!(assemble(&[piece(&[0], &[2], &[1, 2]), piece(&[3], &[1], &[1])]).is_err());
        assert!(assemble(&[piece(&[0], &[2], &[1, 2]), piece(&[2, 0], &[1, 1], &[1])]).is_err());
        assert!(assemble(&[piece(&[u64::MAX], &[2], &[1, 2])]).is_err());
        assert!(assemble(&[Piece { payload: Payload::Pieces(vec![]), ..piece(&[0], &[1], &[1]) }]).is_err());
    }
}
