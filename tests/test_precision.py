"""How exactly float32 matrices are multiplied: a switch that travels with what is recorded."""

import numpy as np
import pytest

import gt


@pytest.fixture(autouse=True)
def highest():
    yield
    gt.set_float32_matmul_precision("highest")


def test_names_are_pytorchs():
    assert gt.get_float32_matmul_precision() == "highest"
    for name in ("high", "medium", "highest"):
        gt.set_float32_matmul_precision(name)
        assert gt.get_float32_matmul_precision() == name
    with pytest.raises(ValueError, match="'highest', 'high' or 'medium', got \"low\""):
        gt.set_float32_matmul_precision("low")


def test_allow_tf32_is_the_same_switch():
    matmul = gt.backends.cuda.matmul
    assert matmul.allow_tf32 is False
    matmul.allow_tf32 = True
    assert gt.get_float32_matmul_precision() == "high"
    matmul.allow_tf32 = False
    assert gt.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("dtype, apart", [(gt.float32, True), (gt.float64, False)])
def test_plans_are_kept_apart_by_it(dtype, apart):
    def misses():
        x = gt.ones(7, 7, dtype=dtype)
        (x @ x).numpy()
        gt.synchronize()  # on all workers
        return gt.debug.get_worker_stats()["compilation"]["misses"]

    # New programs in a row run op by op at first sight, and are compiled at the second.
    first = [misses() for _ in range(3)][-1]
    assert misses() == first, "the same program again"
    gt.set_float32_matmul_precision("high")
    assert (misses() > first) == apart, "another program, if float32 is multiplied"


@pytest.mark.parametrize("name", ["high", "medium"])
def test_products_on_a_cpu_stay_exact(name):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 33, 65)).astype("f"), rng.standard_normal((65, 17)).astype("f")
    before = (gt.tensor(a) @ gt.tensor(b)).numpy()
    gt.set_float32_matmul_precision(name)
    x = gt.tensor(a, requires_grad=True)
    y = x @ gt.tensor(b)
    if not gt.cuda.is_available():
        np.testing.assert_array_equal(y.detach().numpy(), before)
    np.testing.assert_allclose(y.detach().numpy(), a @ b, rtol=2e-3, atol=2e-2)
    y.sum().backward()
    want = np.broadcast_to(b.sum(1), a.shape)
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=2e-3, atol=2e-2)
