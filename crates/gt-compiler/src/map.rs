//! Index maps: which element of a storage an index shows. Views compose into them.

use gt_ir::{Shape, Slot, View};
use smallvec::SmallVec;

/// Distances, in elements, between neighbours along each dimension.
pub type Strides = SmallVec<[isize; 5]>;

/// Element `index` lies at `offset + sum(slot * factor) + sum(index[d] * strides[d])`, counted in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    pub strides: Strides,
    pub offset: isize,
    /// Slice starts that are known only at run time: (slot, factor).
    pub slots: SmallVec<[(u32, isize); 1]>,
}

impl Map {
    /// The map of a dense row-major tensor.
    pub fn dense(shape: &Shape) -> Map {
        Map { strides: shape.strides(), offset: 0, slots: SmallVec::new() }
    }

    /// The map in which every index shows element 0.
    pub fn constant(rank: usize) -> Map {
        Map { strides: SmallVec::from_elem(0, rank), offset: 0, slots: SmallVec::new() }
    }

    /// The offset for one run.
    #[inline]
    pub fn offset(&self, slots: &[Slot]) -> isize {
        let mut offset = self.offset;
        for &(slot, factor) in &self.slots {
            if let Slot::Num(x) = &slots[slot as usize] {
                offset += x.as_i64() as isize * factor;
            }
        }
        offset
    }

    /// True if the elements lie next to each other in row-major order, from wherever.
    pub fn is_packed(&self, shape: &Shape) -> bool {
        let mut step = 1isize;
        for d in (0..shape.len()).rev() {
            if shape[d] == 0 {
                return true;
            }
            if shape[d] != 1 && self.strides[d] != step {
                return false;
            }
            step *= shape[d] as isize;
        }
        true
    }

    /// True if the map shows a whole dense storage in row-major order.
    pub fn is_whole(&self, shape: &Shape) -> bool {
        self.offset == 0 && self.slots.is_empty() && self.is_packed(shape)
    }

    /// Dimension i of the result is dimension `perm[i]` of this.
    pub fn permuted(&self, perm: &[usize]) -> Map {
        Map {
            strides: perm.iter().map(|&d| self.strides[d]).collect(),
            offset: self.offset,
            slots: self.slots.clone(),
        }
    }

    /// The map of a tensor of shape `from` broadcast to `to`.
    pub fn expanded(&self, from: &Shape, to: &Shape) -> Map {
        let lead = to.len() - from.len();
        let strides = (0..to.len())
            .map(|d| if d < lead || (from[d - lead] == 1 && to[d] != 1) { 0 } else { self.strides[d - lead] })
            .collect();
        Map { strides, offset: self.offset, slots: self.slots.clone() }
    }

    /// A strided range along one dimension, whose start is a slot.
    pub fn sliced(&self, dim: usize, step: usize, start: Option<u32>) -> Map {
        let mut map = self.clone();
        if let Some(slot) = start {
            map.slots.push((slot, self.strides[dim]));
        }
        map.strides[dim] *= step as isize;
        map
    }

    /// The map moved by `n` elements along `dim`.
    pub fn moved(mut self, dim: usize, n: usize) -> Map {
        self.offset += self.strides[dim] * n as isize;
        self
    }

    /// The order along `dims` reversed.
    pub fn flipped(&self, shape: &Shape, dims: &[usize]) -> Map {
        let mut map = self.clone();
        for &d in dims {
            if shape[d] > 0 {
                map.offset += (shape[d] as isize - 1) * map.strides[d];
                map.strides[d] = -map.strides[d];
            }
        }
        map
    }

    /// The same elements in row-major order in another shape, where strides can say that.
    pub fn reshaped(&self, from: &Shape, to: &Shape) -> Option<Map> {
        let mut strides: Strides = to.strides();
        if from.numel() > 0 {
            // Walks both shapes from the inside, one stretch of evenly spaced elements at a time.
            let mut t = to.len();
            let mut d = from.len();
            while d > 0 {
                d -= 1;
                let (mut run, base) = (from[d], self.strides[d]);
                if run == 1 {
                    continue;
                }
                while d > 0 && (from[d - 1] == 1 || self.strides[d - 1] == base * run as isize) {
                    d -= 1;
                    run *= from[d];
                }
                let mut covered = 1usize;
                while t > 0 && (covered < run || to[t - 1] == 1) {
                    strides[t - 1] = base * covered as isize;
                    covered *= to[t - 1];
                    t -= 1;
                }
                if covered != run {
                    return None;
                }
            }
        }
        Some(Map { strides, offset: self.offset, slots: self.slots.clone() })
    }

    /// One view of a tensor of shape `shape`, which becomes that of the view; `None` where strides cannot say it.
    pub fn viewed(&self, view: &View, shape: &mut Shape, start: Option<u32>) -> Option<Map> {
        Some(match view {
            View::Reshape(to) => {
                let map = self.reshaped(shape, to)?;
                *shape = to.clone();
                map
            }
            View::Permute(perm) => {
                *shape = perm.iter().map(|&d| shape[d]).collect();
                self.permuted(perm)
            }
            View::Expand(to) => {
                let map = self.expanded(shape, to);
                *shape = to.clone();
                map
            }
            View::Slice { dim, len, step } => {
                shape[*dim] = *len;
                self.sliced(*dim, *step, start)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element's position, in row-major order of the index.
    fn positions(map: &Map, shape: &Shape) -> Vec<isize> {
        let mut out = vec![map.offset];
        for d in 0..shape.len() {
            out = out
                .iter()
                .flat_map(|&p| (0..shape[d] as isize).map(move |i| (p, i)))
                .map(|(p, i)| p + i * map.strides[d])
                .collect();
        }
        out
    }

    #[test]
    fn reshape_keeps_the_row_major_order() {
        let cases: [(&[usize], &[usize], &[usize]); 6] = [
            (&[2, 3, 4], &[0, 1, 2], &[6, 4]),
            (&[2, 3, 4], &[0, 1, 2], &[4, 3, 2]),
            (&[2, 3, 4], &[1, 0, 2], &[3, 8]),
            (&[2, 3, 4], &[2, 0, 1], &[4, 6]),
            (&[2, 1, 4], &[2, 1, 0], &[1, 4, 2, 1]),
            (&[1, 1], &[0, 1], &[]),
        ];
        let mut refused = 0;
        for (shape, perm, to) in cases {
            let shape: Shape = shape.into();
            let base = Map::dense(&shape).permuted(perm);
            let permuted: Shape = perm.iter().map(|&d| shape[d]).collect();
            let to: Shape = to.into();
            match base.reshaped(&permuted, &to) {
                Some(map) => assert_eq!(positions(&map, &to), positions(&base, &permuted)),
                None => refused += 1,
            }
        }
        assert_eq!(refused, 1);
    }

    #[test]
    fn expand_and_flip_show_the_right_elements() {
        let shape: Shape = [3, 1].into();
        let to: Shape = [2, 3, 2].into();
        let map = Map::dense(&shape).expanded(&shape, &to);
        assert_eq!(positions(&map, &to), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        let shape: Shape = [2, 3].into();
        let map = Map::dense(&shape).flipped(&shape, &[1]);
        assert_eq!(positions(&map, &shape), [2, 1, 0, 5, 4, 3]);
    }
}
