//! The backward pass: accumulation, retention, hooks, long chains.

use crate::common::*;
use gt_client::Tensor;
use gt_client::autograd::{GradMode, Hook, backward, grad};
use gt_client::ops::moves;
use std::slice::from_ref;
use std::sync::{Arc, Mutex};

#[test]
fn gradients_accumulate_into_the_same_tensor() {
    run(|_| {
        let x = leaf(f64s(&[2], &[1., 2.]));
        x.mul(3.0).unwrap().sum().unwrap().backward().unwrap();
        let g = x.grad().unwrap();
        x.mul(&x).unwrap().sum().unwrap().backward().unwrap();
        same(&g, &[5., 7.]);
        assert!(g.same(&x.grad().unwrap()));
        g.zero_().unwrap();
        same(&x.grad().unwrap(), &[0., 0.]);
        fails(x.set_grad(Some(range(&[3]))), "assigned grad has data of a different size");
    });
}

#[test]
fn a_graph_is_walked_once_unless_retained() {
    run(|_| {
        let x = leaf(f64s(&[2], &[1., 2.]));
        let y = x.mul(&x).unwrap().sum().unwrap();
        backward(from_ref(&y), vec![], true, false).unwrap();
        y.backward().unwrap();
        same(&x.grad().unwrap(), &[4., 8.]);
        fails(y.backward(), "backward through the graph a second time");
        fails(range(&[2]).sum().unwrap().backward(), "does not require grad and does not have a grad_fn");
        fails(x.mul(2.0).unwrap().backward(), "only for scalar outputs");
        let y = x.mul(2.0).unwrap();
        fails(backward(from_ref(&y), vec![Some(range(&[3]))], false, false), "mismatch in shape");
        backward(&[y], vec![Some(f64s(&[2], &[1., 10.]))], false, false).unwrap();
        same(&x.grad().unwrap(), &[6., 28.]);
    });
}

#[test]
fn grad_gives_what_was_asked_for() {
    run(|_| {
        let x = leaf(f64s(&[2], &[1., 2.]));
        let unused = leaf(range(&[2]));
        let mid = x.mul(3.0).unwrap();
        let y = mid.mul(&mid).unwrap().sum().unwrap();
        let one = from_ref(&y);
        let g = grad(one, &[mid.clone(), x.clone()], vec![], true, false, false).unwrap();
        same(g[0].as_ref().unwrap(), &[6., 12.]);
        same(g[1].as_ref().unwrap(), &[18., 36.]);
        assert!(x.grad().is_none());
        fails(grad(one, from_ref(&unused), vec![], true, false, false), "not have been used in the graph");
        assert!(grad(one, &[unused], vec![], true, false, true).unwrap()[0].is_none());
    });
}

#[test]
fn grad_walks_only_towards_its_inputs() {
    run(|link| {
        let (x, w) = (leaf(range(&[2])), leaf(f64s(&[2], &[3., 4.])));
        let side = w.exp().unwrap();
        let y = x.mul(&side).unwrap();
        let out = y.mul(&y).unwrap().sum().unwrap();
        side.register_hook(Arc::new(|_: &Tensor| panic!("not on the way"))).unwrap();
        let g = grad(from_ref(&out), from_ref(&x), vec![], false, false, false).unwrap();
        same(g[0].as_ref().unwrap(), &[0., 2. * 8f64.exp()]);
        // exp, mul, mul, sum; the seed, the square's two halves and their sum, and one product for `x`.
        let ops: Vec<_> = link.last_ops().into_iter().filter(|o| *o == "MUL").collect();
        assert_eq!(ops.len(), 5, "{:?}", link.last_ops());
        assert!(x.grad().is_none() && w.grad().is_none());
    });
}

#[test]
fn functions_without_slope_give_zeros() {
    run(|_| {
        let x = leaf(f64s(&[2], &[1.5, -2.5]));
        x.floor().unwrap().sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[0., 0.]);
        x.pow(0.0).unwrap().sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[0., 0.]);
        assert!(!x.gt(0.0).unwrap().requires_grad());
    });
}

#[test]
fn second_derivatives_by_create_graph() {
    run(|_| {
        let x = leaf(f64s(&[2], &[1.5, -0.5]));
        let y = x.pow(3.0).unwrap().sum().unwrap();
        let g = grad(&[y], from_ref(&x), vec![], false, true, false).unwrap()[0].clone().unwrap();
        same(&g, &[6.75, 0.75]);
        assert!(g.requires_grad());
        let h =
            grad(&[g.sum().unwrap()], from_ref(&x), vec![], false, true, false).unwrap()[0].clone().unwrap();
        same(&h, &[9.0, -3.0]);
        h.sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[6.0, 6.0]);
        // A penalty on the gradient trains.
        let w = leaf(f64s(&[1], &[2.0]));
        let y = w.mul(&x).unwrap().tanh().unwrap().sum().unwrap();
        let g = grad(&[y], from_ref(&x), vec![], false, true, false).unwrap()[0].clone().unwrap();
        g.mul(&g).unwrap().sum().unwrap().backward().unwrap();
        let slope = |w: f64| -> f64 {
            [1.5f64, -0.5].iter().map(|x| (w * (1.0 - (w * x).tanh().powi(2))).powi(2)).sum()
        };
        let expected = (slope(2.0 + 1e-6) - slope(2.0 - 1e-6)) / 2e-6;
        same(&w.grad().unwrap(), &[expected]);
    });
}

#[test]
fn hooks_see_and_change_gradients() {
    run(|_| {
        let x = leaf(f64s(&[2], &[1., 2.]));
        let y = x.mul(2.0).unwrap();
        let seen: Arc<Mutex<Vec<Vec<f64>>>> = Arc::default();
        let log = seen.clone();
        let hook: Hook = Arc::new(move |g: &Tensor| {
            log.lock().unwrap().push(g.to_f64s()?);
            g.mul(10.0).map(Some)
        });
        let (node, id) = y.register_hook(hook).unwrap();
        let z = y.mul(3.0).unwrap().sum().unwrap();
        backward(from_ref(&z), vec![], true, false).unwrap();
        same(&x.grad().unwrap(), &[60., 60.]);
        node.remove_hook(id);
        z.backward().unwrap();
        same(&x.grad().unwrap(), &[66., 66.]);
        assert_eq!(*seen.lock().unwrap(), [[3., 3.]]);
        drop(node);
        fails(range(&[1]).register_hook(Arc::new(|_: &Tensor| Ok(None))), "doesn't require gradient");
    });
}

#[test]
fn views_of_views_pass_gradients_through_each_other() {
    run(|_| {
        let x = leaf(range(&[2, 3]));
        let y = x.mul(1.0).unwrap();
        let turned = y.t().unwrap();
        turned.retain_grad().unwrap();
        let row = turned.select(0, 1).unwrap();
        row.retain_grad().unwrap();
        let out = row.mul(&f64s(&[2], &[3., 4.])).unwrap().sum().unwrap();
        let one = from_ref(&out);
        let g = grad(one, from_ref(&turned), vec![], true, false, false).unwrap()[0].clone().unwrap();
        is(&g, &[3, 2], &[0., 0., 3., 4., 0., 0.]);
        out.backward().unwrap();
        same(&turned.grad().unwrap(), &[0., 0., 3., 4., 0., 0.]);
        same(&row.grad().unwrap(), &[3., 4.]);
        same(&x.grad().unwrap(), &[0., 3., 0., 0., 4., 0.]);
    });
}

#[test]
fn a_transposed_factor_keeps_its_place_in_the_graph() {
    run(|_| {
        let w = leaf(range(&[2, 3]));
        let x = range(&[1, 3]);
        let wt = w.t().unwrap();
        wt.retain_grad().unwrap();
        x.matmul(&wt).unwrap().sum().unwrap().backward().unwrap();
        is(&wt.grad().unwrap(), &[3, 2], &[0., 0., 1., 1., 2., 2.]);
        is(&w.grad().unwrap(), &[2, 3], &[0., 1., 2., 0., 1., 2.]);
    });
}

#[test]
fn no_grad_records_no_graph() {
    run(|_| {
        let x = leaf(range(&[2]));
        let (y, view) = {
            let _off = GradMode::set(false);
            (x.mul(2.0).unwrap(), moves::reshape(&x, &[2, 1]).unwrap())
        };
        assert!(!y.requires_grad() && y.is_leaf() && !view.requires_grad());
        assert!(x.mul(2.0).unwrap().requires_grad());
        fails(x.mul(1.0).unwrap().set_requires_grad(false), "leaf variables");
        fails(i64s(&[1], &[1]).set_requires_grad(true), "floating point");
        let late = range(&[2]);
        let early_view = late.view(&[2, 1]).unwrap();
        late.set_requires_grad(true).unwrap();
        assert!(!early_view.requires_grad(), "a view made before requires_grad_ stays without history");
    });
}

#[test]
fn a_long_chain_is_walked_and_dropped_on_a_small_stack() {
    let small = std::thread::Builder::new().stack_size(128 * 1024);
    let body = || {
        run(|_| {
            let x = leaf(f64s(&[1], &[1.0]));
            let mut y = x.mul(1.0).unwrap();
            for _ in 0..100_000 {
                y = y.add(1.0).unwrap();
            }
            same(&y, &[100_001.0]);
            y.sum().unwrap().backward().unwrap();
            same(&x.grad().unwrap(), &[1.0]);
            let mut z = x.mul(1.0).unwrap();
            for _ in 0..100_000 {
                z = z.mul(&x).unwrap();
            }
            drop(z);
        })
    };
    small.spawn(body).unwrap().join().unwrap();
}
