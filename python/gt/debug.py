"""Seeing what GT does."""

from gt._gt import Node, Tensor, _explain, _living, _save_program, _stats, _tape


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
    """Counters of the session, of each worker under `workers`, and of all workers together.

    `total_instructions` ran; `hot_instructions` of them in sequences that came at least `GT_HOTPATH_THRESHOLD` times,
    which are `hot_sequences` of the `unique_sequences` seen. `compilation` (also `compilation_stats`) is about plans:
    looked up and there (`hits`), known with other sizes (`resized`), not there (`misses`, with `miss_reasons`), how
    many are kept and were made, of how many ops on average, and the seconds spent on them.
    """
    stats = _stats()
    workers = stats["workers"]

    def total(name):
        return sum(worker[name] for worker in workers)

    reasons = {}
    for worker in workers:
        for reason, times in worker["miss_reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + times
    hits, resized, misses, made = total("plan_hits"), total("resized"), total("plan_misses"), total("plans_made")
    stats["total_instructions"] = total("instructions")
    for name in ("hot_instructions", "unique_sequences", "hot_sequences"):
        stats[name] = total(name)
    stats["compilation"] = {
        "hits": hits,
        "resized": resized,
        "misses": misses,
        "miss_reasons": reasons,
        "hit_rate": (hits + resized) / max(1, hits + resized + misses),
        "cache_size": total("plans"),
        "made": made,
        "improved": total("improved"),
        "average_ops": total("planned_instructions") / max(1, made),
        "seconds": total("plan_seconds"),
        "resize_seconds": total("resize_seconds"),
    }
    stats["compilation_stats"] = stats["compilation"]
    return stats


def print_worker_stats():
    """Prints the counters of the session and its workers."""
    stats = get_worker_stats()
    cache = stats["compilation"]
    names = ("programs", "instructions", "messages", "moves", "moved_bytes", "sessions")
    print("session | " + ", ".join(f"{name} {stats[name]}" for name in names))
    counts = ", ".join(f"{name} {cache[name]}" for name in ("hits", "resized", "misses"))
    print(f"plans   | {counts} {cache['miss_reasons']}")
    print(f"hot     | {stats['hot_instructions']} of {stats['total_instructions']} instructions")
    for worker in stats["workers"]:
        name = worker.pop("name")
        print(f"{name:7} | " + ", ".join(f"{key} {value}" for key, value in worker.items() if value not in ({}, 0)))


def save_program(path):
    """Saves what is recorded and not run yet, with its inputs; `gt replay FILE` runs it again on any backend."""
    _save_program(str(path))


def explain():
    """Prints what the last step did: moves between workers, collectives, plans that had to be made and why, and the ten
    most expensive source lines. A step ends with `optimizer.step()`; without one it is the last program."""
    print(_explain(), end="")


class Memory(list):
    """Live tensors by source line, the most bytes first: dictionaries with line, bytes, tensors, types and workers."""

    @property
    def bytes(self):
        """Bytes of all live tensors."""
        return sum(row["bytes"] for row in self)

    def __str__(self):
        lines = [f"{_size(self.bytes):>10}  in {sum(row['tensors'] for row in self)} tensors"]
        for row in self:
            types = ", ".join(f"{n} x {ty}" if n > 1 else ty for ty, n in list(row["types"].items())[:3])
            more = ", ..." if len(row["types"]) > 3 else ""
            lines.append(f"{_size(row['bytes']):>10}  {row['line'] or '(line unknown)'}: {types}{more}")
        return "\n".join(lines)

    __repr__ = __str__


def memory():
    """Live tensors of this session by the source line that made them, the most bytes first; `print` shows a table."""
    rows = {}
    for _, ty, size, workers, line in _living():
        row = rows.setdefault(line, {"line": line, "bytes": 0, "tensors": 0, "types": {}, "workers": set()})
        row["bytes"] += size
        row["tensors"] += 1
        row["types"][ty] = row["types"].get(ty, 0) + 1
        row["workers"].update(workers)
    return Memory(sorted(rows.values(), key=lambda row: -row["bytes"]))


def _size(n):
    for unit in ("B", "KB", "MB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GB"
