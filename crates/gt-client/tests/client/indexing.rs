//! `x[...]` and `x[...] = v` against answers worked out by hand.

use crate::common::*;
use gt_client::Tensor;
use gt_client::ops::index::{self, Index};
use gt_ir::{DType, Error, Scalar};
use std::slice::from_ref;

fn s(start: i64, stop: i64) -> Index {
    Index::Slice { start: Some(start), stop: Some(stop), step: None }
}

fn all() -> Index {
    Index::Slice { start: None, stop: None, step: None }
}

fn i(x: i64) -> Index {
    Index::Int(x)
}

fn at(shape: &[usize], x: &[i64]) -> Index {
    Index::Tensor(i64s(shape, x))
}

fn mask(x: &[bool]) -> Index {
    Index::Tensor(bools(&[x.len()], x))
}

fn get(x: &Tensor, index: &[Index]) -> Tensor {
    x.get(index).unwrap()
}

#[test]
fn basic_indices_are_views() {
    run(|_| {
        let x = range(&[2, 3, 4]);
        is(&get(&x, &[i(1), i(-1)]), &[4], &[20., 21., 22., 23.]);
        is(&get(&x, &[Index::Ellipsis, i(0)]), &[2, 3], &[0., 4., 8., 12., 16., 20.]);
        is(&get(&x, &[i(0), s(1, 100), s(-2, -1)]), &[2, 1], &[6., 10.]);
        is(&get(&x, &[i(0), Index::NewAxis, i(0), s(2, 0)]), &[1, 0], &[]);
        let odd = Index::Slice { start: Some(1), stop: None, step: Some(2) };
        is(&get(&x, &[i(0), i(0), odd]), &[2], &[1., 3.]);
        let far = Index::Slice { start: Some(1), stop: None, step: Some(100) };
        is(&get(&x, &[i(0), i(0), far]), &[1], &[1.]);
        let whole = get(&x, &[all()]);
        assert!(whole.shares_storage(&x) && !whole.same(&x));
        get(&x, &[i(0), i(0)]).fill_(-1.0).unwrap();
        assert_eq!(numbers(&x)[..5], [-1., -1., -1., -1., 4.]);
    });
}

#[test]
fn bad_indices_are_refused_at_once() {
    run(|_| {
        let x = range(&[3, 2]);
        let e = fails(x.get(&[i(5)]), "index 5 is out of bounds for dimension 0 with size 3");
        assert!(matches!(e, Error::Index(_)));
        fails(x.get(&[all(), i(-3)]), "index -3 is out of bounds for dimension 1 with size 2");
        fails(x.get(&[i(0), i(0), i(0)]), "too many indices for tensor of dimension 2");
        fails(f64s(&[], &[1.]).get(&[i(0)]), "invalid index of a 0-dim tensor");
        let e =
            fails(x.get(&[Index::Slice { start: None, stop: None, step: Some(-1) }]), "step must be greater");
        assert!(matches!(e, Error::Value(_)));
        fails(x.get(&[Index::Tensor(range(&[1]))]), "tensors used as indices must be long");
        fails(x.get(&[mask(&[true, false])]), "does not match the shape of the indexed tensor");
        fails(x.get(&[at(&[2], &[0, 1]), at(&[3], &[0, 1, 0])]), "could not be broadcast together");
        // As in PyTorch, a second ellipsis stands for nothing more.
        is(&get(&x, &[Index::Ellipsis, Index::Ellipsis]), &[3, 2], &[0., 1., 2., 3., 4., 5.]);
    });
}

#[test]
fn integer_tensors_pick_and_their_dims_take_torch_s_place() {
    run(|_| {
        let x = range(&[2, 3, 4]);
        let n = |a: usize, b: usize, c: usize| (a * 12 + b * 4 + c) as f64;
        is(&get(&x, &[i(0), at(&[2, 1], &[2, -3]), i(1)]), &[2, 1], &[n(0, 2, 1), n(0, 0, 1)]);
        // Neighbours: the common shape stands where they stood.
        let (b, c) = (at(&[2, 1], &[0, 2]), at(&[3], &[3, -4, 1]));
        let picked = get(&x, &[all(), b.clone(), c.clone()]);
        let expected: Vec<f64> = (0..2)
            .flat_map(|a| [0, 2].into_iter().flat_map(move |b| [3, 0, 1].map(|c| n(a, b, c))))
            .collect();
        is(&picked, &[2, 2, 3], &expected);
        // Apart: it comes first.
        let picked = get(&x, &[at(&[2], &[1, 0]), all(), at(&[2], &[2, 3])]);
        is(&picked, &[2, 3], &[n(1, 0, 2), n(1, 1, 2), n(1, 2, 2), n(0, 0, 3), n(0, 1, 3), n(0, 2, 3)]);
        // A 0-d tensor selects, and keeps neighbours of others together.
        let point = Index::Tensor(i64s(&[], &[1]));
        is(
            &get(&x, &[point.clone(), all(), at(&[2], &[0, 3])]),
            &[3, 2],
            &[n(1, 0, 0), n(1, 0, 3), n(1, 1, 0), n(1, 1, 3), n(1, 2, 0), n(1, 2, 3)],
        );
        is(&get(&x, &[point, i(0)]), &[4], &[12., 13., 14., 15.]);
        is(&get(&x, &[i(0), Index::NewAxis, at(&[1], &[1])]), &[1, 1, 4], &[4., 5., 6., 7.]);
        is(&get(&x, &[i(0), i(0), Index::Bool(true)]), &[1, 4], &[0., 1., 2., 3.]);
        is(&get(&x, &[Index::Bool(false)]), &[0, 2, 3, 4], &[]);
    });
}

#[test]
fn a_bad_index_value_fails_on_the_worker() {
    run(|_| {
        let x = range(&[3, 2]);
        same(&x, &[0., 1., 2., 3., 4., 5.]);
        let e = fails(
            get(&x, &[at(&[1], &[3])]).to_f64s(),
            "index 3 is out of bounds for dimension 0 with size 3",
        );
        assert!(matches!(e, Error::Index(_)));
        // Each of several is held against its own dimension, not the product.
        fails(get(&x, &[at(&[1], &[0]), at(&[1], &[2])]).to_f64s(), "index 2 is out of bounds");
        let y = range(&[3]);
        same(&y, &[0., 1., 2.]);
        y.set(&[at(&[2], &[0, 7])], 5.0).unwrap();
        fails(y.to_f64s(), "index 7 is out of bounds");
        same(&y, &[0., 1., 2.]);
    });
}

#[test]
fn masks_read() {
    run(|_| {
        let x = range(&[2, 3]);
        let odd = bools(&[2, 3], &[false, true, false, true, false, true]);
        is(&get(&x, &[Index::Tensor(odd.clone())]), &[3], &[1., 3., 5.]);
        is(&get(&x, &[all(), mask(&[true, false, true])]), &[2, 2], &[0., 2., 3., 5.]);
        is(&get(&x, &[mask(&[false, true]), i(1)]), &[1], &[4.]);
        is(&get(&x, &[mask(&[false, false])]), &[0, 3], &[]);
        is(&get(&x, &[mask(&[true, true]), at(&[2], &[2, 0])]), &[2], &[2., 3.]);
        is(&index::nonzero(&odd).unwrap(), &[3, 2], &[0., 1., 1., 0., 1., 2.]);
        is(&index::nonzero(&f64s(&[], &[2.0])).unwrap(), &[1, 0], &[]);
        is(&index::nonzero(&f64s(&[3], &[0., -2., f64::NAN])).unwrap(), &[2, 1], &[1., 2.]);
        is(&index::masked_select(&x, &bools(&[3], &[true, false, false])).unwrap(), &[2], &[0., 3.]);
        let point = Index::Tensor(bools(&[], &[true]));
        is(&get(&f64s(&[], &[3.0]), &[point]), &[1], &[3.]);
    });
}

#[test]
fn basic_writes_broadcast_and_cast() {
    run(|_| {
        let x = made(DType::F32, &[2, 3], &[0.; 6]);
        x.set(&[i(0)], &i64s(&[3], &[1, 2, 3])).unwrap();
        x.set(&[all(), i(2)], &f64s(&[1, 1, 2], &[7., 8.])).unwrap();
        same(&x, &[1., 2., 7., 0., 0., 8.]);
        x.set(&[], 4.0).unwrap();
        same(&x, &[4.; 6]);
        fails(x.set(&[i(0)], &range(&[2])), "cannot copy [2] into [3]");
        let ints = i64s(&[2], &[0, 0]);
        ints.set(&[i(1)], 2.9).unwrap();
        same(&ints, &[0., 2.]);
    });
}

#[test]
fn writes_at_integer_tensors() {
    run(|_| {
        let x = range(&[3, 2]);
        x.set(&[at(&[2], &[0, -1])], &f64s(&[2], &[7., 8.])).unwrap();
        same(&x, &[7., 8., 2., 3., 7., 8.]);
        x.set(&[at(&[2], &[0, 1]), at(&[2], &[1, 0])], &f64s(&[2], &[50., 60.])).unwrap();
        same(&x, &[7., 50., 60., 3., 7., 8.]);
        x.set(&[at(&[2, 1], &[1, 2]), at(&[2], &[0, 1])], 0.0).unwrap();
        same(&x, &[7., 50., 0., 0., 0., 0.]);
        let y = range(&[2, 2, 2]);
        y.set(&[at(&[2], &[0, 1]), all(), at(&[2], &[1, 0])], &f64s(&[2, 2], &[10., 20., 30., 40.])).unwrap();
        same(&y, &[0., 10., 2., 20., 30., 5., 40., 7.]);
        y.set(&[i(0), at(&[1], &[1])], -1.0).unwrap();
        same(&get(&y, &[i(0)]), &[0., 10., -1., -1.]);
        fails(y.set(&[at(&[3], &[0, 1, 0])], &range(&[2, 1, 1, 1])), "shape mismatch");
        let counts = i64s(&[3], &[0, 0, 0]);
        index::index_put_add(&counts, &[at(&[4], &[2, 0, 2, 2])], &int(1)).unwrap();
        same(&counts, &[1., 0., 3.]);
    });
}

#[test]
fn masked_writes_do_not_wait() {
    run(|link| {
        let x = range(&[2, 3]);
        let before = link.programs().len();
        let odd = Index::Tensor(bools(&[2, 3], &[false, true, false, true, false, true]));
        x.set(from_ref(&odd), -1.0).unwrap();
        x.set(from_ref(&odd), &f64s(&[3], &[10., 30., 50.])).unwrap();
        x.set(&[all(), mask(&[true, false, false])], &f64s(&[2, 1], &[6., 7.])).unwrap();
        let y = range(&[2, 3]);
        y.set(&[mask(&[false, true])], &f64s(&[3], &[1., 1., 2.])).unwrap();
        let z = range(&[2, 3]);
        z.set(&[all(), mask(&[true, false, true])], &f64s(&[2], &[8., 9.])).unwrap();
        let w = range(&[2]);
        w.set(&[mask(&[false, false])], &f64s(&[0], &[])).unwrap();
        assert_eq!(link.programs().len(), before, "something was sent");
        same(&x, &[6., 10., 2., 7., 4., 50.]);
        same(&y, &[0., 1., 2., 1., 1., 2.]);
        same(&z, &[8., 1., 9., 8., 4., 9.]);
        same(&w, &[0., 1.]);
        fails(x.set(from_ref(&odd), &range(&[2, 2])), "shape mismatch");
        for wrong in [2, 4] {
            x.set(from_ref(&odd), &range(&[wrong])).unwrap();
            let words = format!(
                "value tensor of shape [{wrong}] cannot be broadcast to indexing result of shape [3]"
            );
            let e = fails(x.to_f64s(), &words);
            assert!(matches!(e, Error::Runtime(_)));
        }
        same(&x, &[6., 10., 2., 7., 4., 50.]);
    });
}

#[test]
fn gather_and_scatter() {
    run(|_| {
        let x = range(&[2, 3]);
        let index = i64s(&[2, 2], &[2, 0, 1, 1]);
        is(&index::gather(&x, 1, &index).unwrap(), &[2, 2], &[2., 0., 4., 4.]);
        fails(index::gather(&x, 1, &i64s(&[2], &[0, 0])), "same number of dimensions");
        fails(index::gather(&x, 1, &index.to(DType::F32).unwrap()), "Expected dtype int64 for index");
        fails(index::gather(&x, 1, &i64s(&[1, 1], &[-1])).unwrap().to_f64s(), "out of bounds");
        let ones = f64s(&[2, 3], &[1.; 6]);
        same(&index::scatter(&x, 1, &index, &val(&ones)).unwrap(), &[1., 1., 1., 3., 1., 5.]);
        same(&index::scatter(&x, 1, &index, &num(9.0)).unwrap(), &[9., 1., 9., 3., 9., 5.]);
        same(&index::scatter_add(&x, 1, &index, &ones).unwrap(), &[1., 1., 3., 3., 6., 5.]);
        is(&index::index_select(&x, 1, &i64s(&[2], &[2, 0])).unwrap(), &[2, 2], &[2., 0., 5., 3.]);
        same(
            &index::index_copy(&x, 0, &i64s(&[1], &[1]), &f64s(&[1, 3], &[7., 8., 9.])).unwrap(),
            &[0., 1., 2., 7., 8., 9.],
        );
        same(&index::index_fill(&x, 1, &i64s(&[1], &[0]), &num(-1.0)).unwrap(), &[-1., 1., 2., -1., 4., 5.]);
        same(
            &index::index_add(&x, 1, &i64s(&[2], &[0, 0]), &ones.narrow(1, 0, 2).unwrap(), Scalar::Int(2))
                .unwrap(),
            &[4., 1., 2., 7., 4., 5.],
        );
        let column = i64s(&[2, 1], &[2, 0]);
        is(&index::take_along_dim(&x, &column, Some(1)).unwrap(), &[2, 1], &[2., 3.]);
        is(&index::one_hot(&i64s(&[2], &[2, 0]), -1).unwrap(), &[2, 3], &[0., 0., 1., 1., 0., 0.]);
        is(&index::take(&x, &i64s(&[2], &[5, -6])).unwrap(), &[2], &[5., 0.]);
        let flags = bools(&[3], &[true, false, true]);
        same(&index::masked_fill(&x, &flags, &num(9.0)).unwrap(), &[9., 1., 9., 9., 4., 9.]);
        same(
            &index::masked_scatter(&x, &flags, &range(&[4]).add(20.0).unwrap()).unwrap(),
            &[20., 1., 21., 22., 4., 23.],
        );
        fails(index::masked_fill(&x, &x, &num(1.0)), "boolean masks");
        fails(index::masked_fill(&i64s(&[3], &[1, 2, 3]), &flags, &num(1e30)), "without overflow");
    });
}
