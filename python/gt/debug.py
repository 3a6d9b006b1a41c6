"""Seeing what GT does."""

from gt._gt import Node, Tensor, _save_program, _stats, _tape


def get_tape(tensor=None):
    """The steps that lead to a tensor, oldest first, as (name, operands); without one, the instructions that this
    thread has recorded and not sent yet."""
    if tensor is None:
        return _tape()
    if not isinstance(tensor, Tensor):
        raise TypeError(f"get_tape: expected a Tensor, got {type(tensor).__name__}")
    order, seen, stack = [], set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        order.append(node)
        stack.extend(n for n, _ in node.next_functions)
    order.sort(key=lambda node: node.seq)
    return [(node.name(), [n.name() for n, _ in node.next_functions if isinstance(n, Node)]) for node in order]


def print_tape(tensor=None):
    """Prints what `get_tape` gives."""
    for i, step in enumerate(get_tape(tensor)):
        print(f"{i:4} | {step}" if isinstance(step, str) else f"{i:4} | {step[0]} <- {', '.join(step[1])}")


def get_worker_stats():
    """Counters of the session, of each worker under `workers`, and of their plan caches together under
    `compilation`."""
    stats = _stats()
    workers = stats["workers"]
    hits, misses = sum(w["plan_hits"] for w in workers), sum(w["plan_misses"] for w in workers)
    reasons = {}
    for worker in workers:
        for reason, times in worker["miss_reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + times
    stats["total_instructions"] = sum(w["instructions"] for w in workers)
    stats["compilation"] = {
        "hits": hits,
        "misses": misses,
        "miss_reasons": reasons,
        "hit_rate": hits / max(1, hits + misses),
        "cache_size": sum(w["plans"] for w in workers),
        "seconds": sum(w["plan_seconds"] for w in workers),
    }
    stats["compilation_stats"] = stats["compilation"]
    return stats


def print_worker_stats():
    """Prints the counters of the session and its workers."""
    stats = get_worker_stats()
    cache = stats["compilation"]
    names = ("programs", "instructions", "messages", "moves", "moved_bytes", "sessions")
    print("session | " + ", ".join(f"{name} {stats[name]}" for name in names))
    print(f"plans   | hits {cache['hits']}, misses {cache['misses']} {cache['miss_reasons']}")
    for worker in stats["workers"]:
        name = worker.pop("name")
        print(f"{name:7} | " + ", ".join(f"{key} {value}" for key, value in worker.items() if value not in ({}, 0)))


def save_program(path):
    """Saves what is recorded and not run yet, with its inputs; `gt replay FILE` runs it again on any backend."""
    _save_program(str(path))
