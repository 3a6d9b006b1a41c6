//! The tensors of a session by number. A client numbers its tensors one after the other, and a step touches hundreds of
//! them in about that order: numbers are looked up by the page, and the page that was used last is tried first.

use super::tensor::Tensor;
use foldhash::fast::FixedState;
use gt_ir::TensorId;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Index;

/// Numbers of one page.
const PAGE: usize = 64;
/// No tensor has this place.
const NONE: u32 = u32::MAX;

/// Where the tensors of one page are kept.
#[derive(Debug)]
struct Page {
    /// Which page it is.
    number: u64,
    /// The place of each.
    places: [u32; PAGE],
    live: u32,
}

/// Tensors by number.
#[derive(Debug, Default)]
pub struct Tensors {
    kept: Vec<Option<(TensorId, Tensor)>>,
    /// Places in `kept` that are free.
    free: Vec<u32>,
    pages: Vec<Page>,
    free_pages: Vec<u32>,
    index: HashMap<u64, u32, FixedState>,
    /// The page that was used last.
    last: Cell<u32>,
}

fn page_of(id: TensorId) -> (u64, usize) {
    (id.0 / PAGE as u64, (id.0 % PAGE as u64) as usize)
}

impl Tensors {
    pub fn len(&self) -> usize {
        self.kept.len() - self.free.len()
    }

    fn page(&self, number: u64) -> Option<u32> {
        let last = self.last.get();
        if self.pages.get(last as usize).is_some_and(|page| page.number == number && page.live > 0) {
            return Some(last);
        }
        let at = *self.index.get(&number)?;
        self.last.set(at);
        Some(at)
    }

    fn place(&self, id: TensorId) -> Option<usize> {
        let (number, within) = page_of(id);
        let place = self.pages[self.page(number)? as usize].places[within];
        (place != NONE).then_some(place as usize)
    }

    pub fn contains(&self, id: TensorId) -> bool {
        self.place(id).is_some()
    }

    pub fn get(&self, id: TensorId) -> Option<&Tensor> {
        self.kept[self.place(id)?].as_ref().map(|(_, tensor)| tensor)
    }

    pub fn get_mut(&mut self, id: TensorId) -> Option<&mut Tensor> {
        let place = self.place(id)?;
        self.kept[place].as_mut().map(|(_, tensor)| tensor)
    }

    /// Adds a tensor; false, and nothing happens, if there is one of this number.
    pub fn add(&mut self, id: TensorId, tensor: Tensor) -> bool {
        let (number, within) = page_of(id);
        let page = self.page(number).unwrap_or_else(|| self.open(number));
        let page = &mut self.pages[page as usize];
        if page.places[within] != NONE {
            return false;
        }
        page.live += 1;
        page.places[within] = match self.free.pop() {
            Some(place) => {
                self.kept[place as usize] = Some((id, tensor));
                place
            }
            None => {
                self.kept.push(Some((id, tensor)));
                (self.kept.len() - 1) as u32
            }
        };
        true
    }

    /// A page for a tensor that is about to be added.
    fn open(&mut self, number: u64) -> u32 {
        let page = Page { number, places: [NONE; PAGE], live: 0 };
        let at = match self.free_pages.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        self.index.insert(number, at);
        self.last.set(at);
        at
    }

    pub fn remove(&mut self, id: TensorId) -> Option<Tensor> {
        let (number, within) = page_of(id);
        let at = self.page(number)?;
        let page = &mut self.pages[at as usize];
        let place = std::mem::replace(&mut page.places[within], NONE);
        if place == NONE {
            return None;
        }
        page.live -= 1;
        if page.live == 0 {
            self.index.remove(&number);
            self.free_pages.push(at);
        }
        self.free.push(place);
        self.kept[place as usize].take().map(|(_, tensor)| tensor)
    }

    pub fn iter(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.kept.iter().flatten().map(|(id, tensor)| (*id, tensor))
    }

    pub fn clear(&mut self) {
        *self = Tensors::default();
    }
}

impl Index<TensorId> for Tensors {
    type Output = Tensor;

    fn index(&self, id: TensorId) -> &Tensor {
        self.get(id).expect("a tensor of this number is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::{DType, Ty};
    use std::collections::BTreeMap;

    fn tensor(size: usize) -> Tensor {
        Tensor::new(Ty::new(DType::F32, [size]))
    }

    /// Holds the container against a plain map, on numbers that are close together, far apart, and come again.
    #[test]
    fn it_is_a_map() {
        let (mut tensors, mut plain) = (Tensors::default(), BTreeMap::new());
        let mut state = 1u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for step in 0..20_000 {
            let id = match next(4) {
                0 => TensorId(next(200)),
                1 => TensorId(next(40) << 40 | next(3)),
                2 => TensorId(u64::MAX - next(70)),
                _ => TensorId(step / 8),
            };
            assert_eq!(tensors.contains(id), plain.contains_key(&id));
            assert_eq!(tensors.get(id).map(|t| t.ty.shape[0]), plain.get(&id).copied());
            if next(2) == 0 {
                let fresh = tensors.add(id, tensor(step as usize));
                assert_eq!(fresh, !plain.contains_key(&id));
                plain.entry(id).or_insert(step as usize);
            } else {
                assert_eq!(tensors.remove(id).map(|t| t.ty.shape[0]), plain.remove(&id));
            }
            assert_eq!(tensors.len(), plain.len());
        }
        let kept: BTreeMap<_, _> = tensors.iter().map(|(id, t)| (id, t.ty.shape[0])).collect();
        assert_eq!(kept, plain);
        let pages: std::collections::BTreeSet<u64> = plain.keys().map(|id| page_of(*id).0).collect();
        assert_eq!(tensors.index.len(), pages.len(), "a page is kept while a tensor is on it");
    }
}
