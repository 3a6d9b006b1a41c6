"""Hot paths: what the variables do, what the counters say, and that no bit depends on either."""

import json

import numpy as np
import pytest

import gt

NET = """
import json, sys
import numpy as np
import gt
from gt import nn

gt.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))
optimizer = gt.optim.AdamW(net.parameters(), lr=1e-2)
rng = np.random.default_rng(0)
losses = []
for step in range(6):
    x = gt.from_numpy(rng.normal(size=(12, 16)).astype("f4"))
    target = gt.from_numpy(rng.integers(0, 8, 12))
    loss = nn.functional.cross_entropy(nn.functional.dropout(net(x), 0.1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters()).hex()
stats = gt.debug.get_worker_stats()
print(json.dumps(dict(losses=losses, weights=weights, stats=stats)))
"""

DECODE = """
import json
import numpy as np
import gt

rng = np.random.default_rng(0)
weights = [gt.from_numpy(rng.normal(size=(16, 16)).astype("f4") / 4) for _ in range(6)]
cache = gt.zeros(64, 16)
x = gt.from_numpy(rng.normal(size=(1, 16)).astype("f4"))
seen = []
with gt.no_grad():
    for i in range(50):
        q, k = (x @ weights[0]).tanh(), (x @ weights[1]).tanh()
        cache[i : i + 1] = k
        keys = cache[: i + 1]
        x = x + (q @ keys.T).softmax(-1) @ keys
        for w in weights[2:]:
            x = x + ((x @ w).relu() * 0.5 - x * 0.1).tanh()
        x = x / x.norm()
        seen.append(x.sum().item().hex())
print(json.dumps(dict(seen=seen, stats=gt.debug.get_worker_stats())))
"""

FILLS = """
import json
import gt

gt.manual_seed(0)
weights = [gt.randn(8, 8) * 0.3 for _ in range(12)]
seen = []
for i in range(40):
    x = gt.full((4, 8), i * 0.1)
    for w in weights:
        x = (x @ w).tanh()
    seen.append(x.sum().item())
print(json.dumps(dict(seen=seen, stats=gt.debug.get_worker_stats())))
"""


@pytest.fixture
def run(run_python):
    """What a script prints, in a process of its own with these variables: counters are those of one worker."""

    def run(script, **variables):
        return json.loads(run_python(script, env={"GT_AUTO_SHARD": "0", **variables}).stdout)

    return run


def test_the_counters_are_there():
    x = gt.from_numpy(np.arange(7, dtype="f4"))
    for _ in range(5):
        ((x + 1).tanh() * 2).sum().item()
    stats = gt.debug.get_worker_stats()
    for name in ("total_instructions", "hot_instructions", "unique_sequences", "hot_sequences"):
        assert isinstance(stats[name], int) and stats[name] > 0, name
    assert stats["hot_instructions"] <= stats["total_instructions"]
    assert stats["hot_sequences"] <= stats["unique_sequences"]
    cache = stats["compilation"]
    assert cache == stats["compilation_stats"]
    assert cache["misses"] == sum(cache["miss_reasons"].values())
    assert 0 < cache["hit_rate"] <= 1 and cache["cache_size"] > 0 and cache["average_ops"] > 0 and cache["seconds"] > 0
    gt.debug.print_worker_stats()


@pytest.mark.local_only
def test_a_training_step_has_the_same_bits_op_by_op_and_at_once(run):
    usual = run(NET)
    cache = usual["stats"]["compilation"]
    assert cache["hits"] >= 3 and cache["misses"] <= 6
    for variables in (
        {"GT_AUTO_COMPILE": "0"},
        {"GT_AUTO_COMPILE": "0", "GT_WORKER_BATCH_SIZE": "10"},
        {"GT_COMPILE": "1"},
        {"GT_COMPILE": "1", "GT_AUTO_COMPILE": "0"},
    ):
        other = run(NET, **variables)
        assert (other["losses"], other["weights"]) == (usual["losses"], usual["weights"]), variables
        theirs = other["stats"]["compilation"]
        if "GT_COMPILE" in variables:
            assert theirs["misses"] == cache["misses"]
        else:
            assert list(theirs["miss_reasons"]) == ["first sight of an op on its own"]
            assert theirs["average_ops"] < cache["average_ops"]


@pytest.mark.local_only
def test_decoding_misses_a_few_times_and_then_no_more(run):
    usual, sized = run(DECODE), run(DECODE, GT_HOTPATH_MAX_EXPAND="1000")
    plain = run(DECODE, GT_AUTO_COMPILE="0")
    assert usual["seen"] == sized["seen"] == plain["seen"]
    cache, sizes = usual["stats"]["compilation"], sized["stats"]["compilation"]
    assert sizes["misses"] >= 50 and sizes["resized"] == 0
    assert cache["misses"] <= 8 and cache["resized"] >= 44, cache
    assert cache["average_ops"] < sizes["average_ops"] / 2, "only what changed is compiled again"


@pytest.mark.local_only
def test_a_fill_that_changes_is_compiled_alone(run):
    now, apart = run(FILLS), run(FILLS, GT_AUTO_COMPILE="0")
    assert now["seen"] == apart["seen"] and len(set(now["seen"])) == 40
    stats = now["stats"]["compilation"]
    assert stats["misses"] < 15 and stats["resized"] > 20, stats


@pytest.mark.local_only
def test_a_bad_value_is_told_at_connect(run_python):
    for name, value in (("GT_AUTO_COMPILE", "perhaps"), ("GT_COMPILE", "2"), ("GT_WORKER_BATCH_SIZE", "0")):
        done = run_python("import gt; gt.ones(2).sum().item()", check=False, env={name: value})
        assert done.returncode != 0 and f"ValueError: {name}: expected" in done.stderr, done.stderr


@pytest.mark.local_only
def test_two_clients_share_plans(run, start_system):
    address = start_system(1).address
    script = NET.replace("gt.manual_seed(0)", f"gt.connect({address!r})\ngt.manual_seed(0)")
    first = run(script)
    second = run(script)
    assert first["losses"] == second["losses"]
    before, after = first["stats"]["compilation"], second["stats"]["compilation"]
    assert after["misses"] == before["misses"], "the second client found every plan"
    assert after["hits"] >= before["hits"] + 6
    # The variables of a client are its own: the third runs op by op, on the same worker.
    third = run(script, GT_AUTO_COMPILE="0")
    assert third["losses"] == first["losses"]
    assert "first sight of an op on its own" in third["stats"]["compilation"]["miss_reasons"]
