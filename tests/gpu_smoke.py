"""A first look at a GPU: one line per check, going on after failures. Run it where a GPU is:

    GT_BACKEND=cuda python tests/gpu_smoke.py

Results are compared with NumPy's. The status is the number of checks that failed, one at most per check.
"""

import os
import sys
import time
import traceback

os.environ.setdefault("GT_BACKEND", "cuda")

import numpy as np  # noqa: E402

import gt  # noqa: E402

CHECKS = []
RANDOM = np.random.default_rng(0)


def check(f):
    CHECKS.append(f)
    return f


def near(got, want, tolerance=1e-5):
    got = got.numpy() if isinstance(got, gt.Tensor) else np.asarray(got)
    want = np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


def f32(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@check
def device():
    assert gt.cuda.is_available(), "no worker has a GPU"
    print("      ", gt.cuda.device_count(), "x", gt.cuda.get_device_name())


@check
def round_trips():
    for n in (0, 1, 7, 5000, 100_000, 3_000_000, 20_000_001):
        x = RANDOM.integers(0, 255, n).astype(np.uint8)
        near(gt.from_numpy(x), x)


@check
def elementwise():
    a, b = f32(1000, 37), f32(37)
    near((gt.from_numpy(a) * 2 + gt.from_numpy(b)).relu().exp(), np.exp(np.maximum(a * 2 + b, 0)))


@check
def dtypes():
    a = f32(130)
    for dtype, tolerance in ((gt.float64, 1e-6), (gt.float16, 2e-3), (gt.bfloat16, 2e-2)):
        near((gt.from_numpy(a).to(dtype) + 1).float(), a + 1, tolerance)
    i = RANDOM.integers(-100, 100, (40, 3))
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        near(gt.from_numpy(i.astype(dtype)) // 7, i // 7)


@check
def reductions():
    a = f32(64, 100, 33)
    t = gt.from_numpy(a)
    near(t.sum(), a.sum(), 1e-3)
    near(t.sum(1), a.sum(1), 1e-4)
    near(t.sum((0, 2)), a.sum((0, 2)), 1e-3)
    near(t.amax(0), a.max(0))
    near(t.argmax(2), a.argmax(2))
    near(t.mean(-1), a.mean(-1), 1e-4)


@check
def long_rows_stored_and_summed():
    # Kernels that are made for a plan come after a while.
    for n in (5_000, 20_000, 32_000, 200_000, 1_000_000):
        a, b = f32(n), f32(n)
        for _ in range(12):
            x = gt.from_numpy(a) + gt.from_numpy(b)
            mean = (x * x).sum() / n
            near(x, a + b)
            near(mean, ((a + b) ** 2).mean(), 1e-3)
            time.sleep(0.05)


@check
def softmax():
    a = f32(50, 333)
    e = np.exp(a - a.max(-1, keepdims=True))
    near(gt.from_numpy(a).softmax(-1), e / e.sum(-1, keepdims=True))


@check
def views():
    a = f32(6, 8, 10)
    t = gt.from_numpy(a)
    near(t.permute(2, 0, 1)[1:7:2].flip(0), a.transpose(2, 0, 1)[1:7:2][::-1])
    near(gt.cat([t, t + 1], 1), np.concatenate([a, a + 1], 1))


@check
def products():
    a, b = f32(33, 65), f32(65, 17)
    near(gt.from_numpy(a) @ gt.from_numpy(b), a @ b, 1e-4)
    a, b = f32(4, 3, 20, 8), f32(4, 3, 8, 12)
    near(gt.from_numpy(a) @ gt.from_numpy(b), a @ b, 1e-4)
    near(gt.from_numpy(a).transpose(1, 2) @ gt.from_numpy(b[:, :1]), a.swapaxes(1, 2) @ b[:, :1], 1e-4)
    i = RANDOM.integers(-9, 9, (20, 30))
    near(gt.from_numpy(i) @ gt.from_numpy(i.T.copy()), i @ i.T)


@check
def indices():
    table, index = f32(50, 8), RANDOM.integers(0, 50, (7, 5))
    near(gt.from_numpy(table)[gt.from_numpy(index)], table[index])
    near(gt.from_numpy(table).argmax(0), table.argmax(0))


@check
def a_bad_index_fails_alone():
    table, index = gt.from_numpy(f32(50, 8)), gt.from_numpy(np.array([3, 50]))
    try:
        table[index].numpy()
    except IndexError as error:
        assert "index 50 is out of bounds for dimension 0 with size 50" in str(error), error
    else:
        raise AssertionError("no error")
    near(table.sum(0).shape[0] + gt.zeros(1), [8])


@check
def a_bad_index_made_on_the_device():
    table = gt.from_numpy(f32(50, 8))
    index = gt.from_numpy(f32(4)).exp().long() + 50
    try:
        table[index].numpy()
    except IndexError:
        pass
    else:
        raise AssertionError("no error")
    near(gt.ones(3) + 1, [2, 2, 2])


@check
def sorting():
    a = f32(20, 501)
    near(gt.from_numpy(a).sort(-1)[0], np.sort(a, -1))
    near(gt.from_numpy(a).cumsum(1), a.cumsum(1), 1e-3)


@check
def random_numbers():
    gt.manual_seed(3)
    x = gt.rand(10_000).numpy()
    assert 0.48 < x.mean() < 0.52, x.mean()
    y = gt.randn(10_000).numpy()
    assert abs(y.mean()) < 0.05 and 0.95 < y.std() < 1.05, (y.mean(), y.std())


@check
def a_loop_with_other_numbers():
    # The plan comes back, gets kernels of its own, and becomes a graph.
    w = gt.from_numpy(f32(64, 64))
    want = w.numpy().copy()
    for step in range(30):
        x = f32(16, 64)
        # Larger steps amplify rounding until nothing can be compared.
        rate = 0.001 * (step + 1)
        y = (gt.from_numpy(x) @ w).tanh()
        w = w - rate * (gt.from_numpy(x).T @ y)
        want = want - np.float32(rate) * (x.T @ np.tanh(x @ want))
        near(y.sum(), np.tanh(x @ (want + 0)).sum() * 0 + y.numpy().sum(), 1e-2)
        if step % 7 == 3:
            time.sleep(0.05)
    near(w, want, 5e-2)


@check
def training():
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(20, 64), gt.nn.ReLU(), gt.nn.Linear(64, 4))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = f32(256, 20), RANDOM.integers(0, 4, 256)
    losses = []
    for _ in range(60):
        loss = gt.nn.functional.cross_entropy(model(gt.from_numpy(x)), gt.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], (losses[0], losses[-1])
    print("       losses", round(losses[0], 4), "to", round(losses[-1], 4))


@check
def held_results_stay():
    a = gt.from_numpy(f32(300, 300))
    held = []
    for k in range(20):
        held.append((a * float(k)).tanh() + 1)
        held[-1].sum().item()
    for k, t in enumerate(held):
        near(t, np.tanh(a.numpy() * np.float32(k)) + 1, 1e-5)


@check
def memory():
    before = gt.cuda.memory_allocated()
    x = gt.rand(64 << 20)
    x.sum().item()
    assert gt.cuda.memory_allocated() >= before + (200 << 20), (before, gt.cuda.memory_allocated())
    assert gt.cuda.max_memory_allocated() >= gt.cuda.memory_allocated()
    try:
        y = gt.ones(1 << 38, dtype=gt.float32)
        y.sum().item()
    except gt.OutOfMemoryError as error:
        print("      ", str(error).splitlines()[0][:150])
    else:
        raise AssertionError("a terabyte fits")
    near(x.max() < 1, True)


def attention_by_numpy(q, k, v, dout, causal):
    """Attention in f64 and its gradients; heads of `q` share those of `k` and `v`."""
    share = q.shape[1] // k.shape[1]
    wide = [x.astype(np.float64) for x in (q, np.repeat(k, share, 1), np.repeat(v, share, 1), dout)]
    q, k, v, dout = wide
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = p @ v
    dp = dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (dout * out).sum(-1, keepdims=True)) * scale
    shared = [
        x.reshape(x.shape[0], -1, share, *x.shape[2:]).sum(2)
        for x in (ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout)
    ]
    return out, ds @ k, *shared


@check
def attention():
    # Sizes that kernels of our own take and sizes that cuDNN does; `GT_ATTENTION` on the worker says otherwise.
    for dtype, tolerance in ((gt.bfloat16, 3e-2), (gt.float16, 4e-3)):
        for heads, key_heads, rows, cols, d, causal in (
            (4, 2, 128, 128, 64, True),
            (4, 4, 300, 300, 128, True),
            (4, 1, 128, 256, 96, False),
            (4, 2, 256, 256, 256, True),
            (2, 2, 77, 333, 256, False),
        ):
            shapes = [(2, heads, rows, d), (2, key_heads, cols, d), (2, key_heads, cols, d), (2, heads, rows, d)]
            # Rounded to the type before either side sees them.
            given = [gt.from_numpy(f32(*shape)).to(dtype) for shape in shapes]
            want = attention_by_numpy(*[x.float().numpy() for x in given], causal)
            twice = []
            for _ in range(2):
                q, k, v = [x.clone().requires_grad_(True) for x in given[:3]]
                out = gt.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=heads != key_heads
                )
                grads = gt.autograd.grad(out, [q, k, v], given[3])
                twice.append([x.detach().float().numpy() for x in (out, *grads)])
            for name, got, again, wanted in zip(("out", "dq", "dk", "dv"), *twice, want):
                assert (got == again).all(), f"{name} differs between two runs"
                off = np.abs(got - wanted).max() / np.abs(wanted).max()
                assert off < tolerance, f"{name} of {dtype} {heads}/{key_heads}x{rows}x{cols}x{d}: off by {off:.1e}"


def steady(step):
    """Fifty steps that have come back for long: how many ran as graphs, and how often a check was waited for."""
    for _ in range(60):
        step()
    time.sleep(1.0)
    for _ in range(10):
        step()
    before = gt._gt._stats()["workers"][0]
    for _ in range(50):
        step()
    after = gt._gt._stats()["workers"][0]
    return [after[k] - before[k] for k in ("graphs", "checks")]


def trained(parameters, loss):
    optimizer = gt.optim.AdamW(parameters, lr=1e-3)

    def step():
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()

    return step


@check
def steps_are_graphs():
    """A training step over token ids runs as one graph and waits for no check of an index: nothing else would tell."""
    model = gt.nn.Sequential(gt.nn.Embedding(100, 32), gt.nn.Linear(32, 100))

    def loss():
        ids, targets = (gt.from_numpy(RANDOM.integers(0, 100, 64)) for _ in range(2))
        return gt.nn.functional.cross_entropy(model(ids), targets)

    graphs, checks = steady(trained(model.parameters(), loss))
    assert graphs >= 45 and checks == 0, f"50 steps: {graphs} graphs, {checks} checks"


@check
def steps_over_slices_are_graphs():
    """So does one that reads a slice of resident data which lies elsewhere in every step, and its losses are right."""
    model = gt.nn.Linear(784, 10)
    data, classes = f32(512, 784), RANDOM.integers(0, 10, 512)
    rows, targets = gt.from_numpy(data), gt.from_numpy(classes)
    turn = iter(range(10**6))
    seen = []

    def loss():
        i = 8 * (next(turn) % 57)
        seen.append(i)
        return gt.nn.functional.cross_entropy(model(rows[i : i + 64]), targets[i : i + 64])

    step = trained(model.parameters(), loss)
    graphs, checks = steady(step)
    assert graphs >= 45 and checks == 0, f"50 steps: {graphs} graphs, {checks} checks"
    weight, bias = (p.detach().numpy().astype("f8") for p in model.parameters())
    got, i = step(), seen[-1]
    logits = data[i : i + 64].astype("f8") @ weight.T + bias
    want = np.log(np.exp(logits).sum(1)) - logits[np.arange(64), classes[i : i + 64]]
    near(got, want.mean(), 1e-4)


@check
def speed():
    a = gt.rand(4096, 4096)
    for _ in range(5):
        b = a @ a
    gt.synchronize()
    start = time.perf_counter()
    kept = []
    for k in range(20):
        kept.append((a + float(k)) @ a)
    gt.synchronize()
    print(f"       f32 4096: {20 * 2 * 4096**3 / (time.perf_counter() - start) / 1e12:.1f} TFLOP/s")
    del b


def main():
    failed = 0
    for f in CHECKS:
        start = time.perf_counter()
        try:
            f()
        except BaseException as error:
            failed += 1
            text = str(error).strip().splitlines()
            print(f"FAILED {f.__name__}: {type(error).__name__}: {' | '.join(text[:6])[:600]}", flush=True)
            if "-v" in sys.argv:
                traceback.print_exc()
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            print(f"ok     {f.__name__} ({time.perf_counter() - start:.2f} s)", flush=True)
    stats = gt._gt._stats()["workers"][0]
    print({k: stats[k] for k in ("programs", "plan_hits", "plan_misses", "busy_seconds", "bytes_in_use", "bytes_peak")})
    print(f"{failed} of {len(CHECKS)} checks failed")
    return min(failed, 100)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
