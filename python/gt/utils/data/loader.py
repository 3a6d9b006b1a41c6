"""The loader: batches in order, made here or by worker processes ahead of time."""

import multiprocessing
import pickle
import random
from multiprocessing.connection import wait

from gt.utils.data import worker
from gt.utils.data.collate import default_collate, default_convert
from gt.utils.data.dataset import IterableDataset, nested
from gt.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, _seed

# Seconds a worker has to end by itself.
PATIENCE = 5.0


class DataLoader:
    """Iterates over a dataset in batches, as `torch.utils.data.DataLoader` does."""

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
    ):
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("prefetch_factor option could only be specified in multiprocessing: set num_workers > 0")
        if num_workers == 0 and persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError("prefetch_factor option should be at least 1")
        self.iterable = isinstance(dataset, IterableDataset)
        if self.iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader with IterableDataset: expected no shuffle, sampler or batch_sampler option")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None and (shuffle is not None and drop_last or drop_last):
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if not self.iterable and sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None and not self.iterable:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.batched = batch_sampler is not None or (self.iterable and batch_size is not None)
        self.collate_fn = collate_fn or (default_collate if self.batched else default_convert)
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self._team = None

    def __len__(self):
        if self.iterable:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.batch_sampler if self.batched else self.sampler)

    def __iter__(self):
        # Drawn in any case, so that the order does not depend on the number of workers.
        seed = _seed(self.generator)
        if self.num_workers == 0:
            return self._alone()
        if not self.persistent_workers:
            return _Epoch(self, _Team(self, seed))
        if self._team is None or self._team.closed:
            self._team = _Team(self, seed)
        return _Epoch(self, self._team, keep=True)

    def _tasks(self):
        """What each batch is made of."""
        if self.iterable:
            while True:
                yield None
        yield from self.batch_sampler if self.batched else self.sampler

    def _alone(self):
        collate, convert = (self.collate_fn, None) if self.batched else (None, self.collate_fn)
        if self.iterable:
            items = iter(self.dataset)
            while True:
                batch = worker.take(items, self.batch_size, self.drop_last, collate, convert)
                if isinstance(batch, worker.Ended):
                    return
                yield batch
        for task in self._tasks():
            yield worker.fetch(self.dataset, task, collate) if collate else convert(self.dataset[task])


class _Team:
    """The worker processes of a loader."""

    def __init__(self, loader, seed):
        context = loader.multiprocessing_context or "fork"
        if isinstance(context, str):
            context = multiprocessing.get_context(context)
        self.closed = False
        self.conns, self.processes = [], []
        base = random.Random(seed).getrandbits(62)
        collate, convert = (loader.collate_fn, None) if loader.batched else (None, loader.collate_fn)
        inside = [d for d in nested(loader.dataset) if hasattr(d, "_before_workers")]
        forks = context.get_start_method() == "fork"
        try:
            for dataset in inside:
                dataset._before_workers()
            for i in range(loader.num_workers):
                ours, theirs = context.Pipe()
                self.conns.append(ours)
                info = worker.WorkerInfo(id=i, num_workers=loader.num_workers, seed=base + i, dataset=loader.dataset)
                # A fork inherits the parent's ends of all pipes; with them open, none would ever be seen to close.
                others = list(self.conns) if forks else []
                how = (loader.iterable, collate, convert, loader.batch_size, loader.drop_last, loader.worker_init_fn)
                process = context.Process(target=worker.work, args=(theirs, others, info, *how), daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
        except BaseException:
            self.close()
            raise
        finally:
            for dataset in inside:
                dataset._after_workers()

    def give(self, i, task):
        try:
            self.conns[i].send_bytes(pickle.dumps(task))
        except (BrokenPipeError, ConnectionResetError):
            self.gone(i)

    def take(self, i, timeout):
        """The next batch of a worker; an error if the worker is gone or too slow."""
        conn, process = self.conns[i], self.processes[i]
        ready = wait([conn, process.sentinel], timeout or None)
        if not ready:
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        if conn not in ready and not conn.poll(0):
            self.gone(i)
        try:
            return worker.receive(conn)
        except (EOFError, OSError):
            self.gone(i)

    def gone(self, i):
        process = self.processes[i]
        process.join(PATIENCE)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with status {code}"
        raise RuntimeError(
            f"DataLoader worker (pid {process.pid}) {how} before its batch was done: look for its own message "
            "above, or run with num_workers=0"
        ) from None

    def close(self):
        if self.closed:
            return
        self.closed = True
        for conn in self.conns:
            conn.close()
        for process in self.processes:
            process.join(PATIENCE)
            if process.is_alive():
                process.terminate()
                process.join(PATIENCE)


class _Epoch:
    """One pass over the dataset by a team. Batch `n` is made by worker `n` modulo their number, while all have some."""

    def __init__(self, loader, team, keep=False):
        self.loader, self.team, self.keep = loader, team, keep
        self.tasks = loader._tasks()
        self.busy = []  # (worker, index) of batches under way, in order
        self.left = list(range(loader.num_workers))
        self.fresh = set(self.left)
        self.turn = 0
        # A pass that was left early may have batches under way: they are told apart by this object's own numbers.
        self.next = getattr(team, "next", 0)
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._give()

    def __iter__(self):
        return self

    def __len__(self):
        return len(self.loader)

    def _give(self):
        if not self.left:
            return
        task = next(self.tasks, worker.Ended)
        if task is worker.Ended:
            return
        i = self.left[self.turn % len(self.left)]
        self.turn += 1
        self.team.give(i, (self.next, task, i in self.fresh))
        self.fresh.discard(i)
        self.busy.append((i, self.next))
        self.next += 1
        self.team.next = self.next

    def __next__(self):
        try:
            while self.busy:
                i, index = self.busy.pop(0)
                got, batch = self.team.take(i, self.loader.timeout)
                while got != index:
                    got, batch = self.team.take(i, self.loader.timeout)
                if isinstance(batch, worker.Failed):
                    batch.reraise()
                if isinstance(batch, worker.Ended):
                    if i in self.left:
                        self.left.remove(i)
                    continue
                self._give()
                return batch
        except BaseException:
            self.team.close()
            raise
        if not self.keep:
            self.team.close()
        raise StopIteration

    def __del__(self):
        if not self.keep:
            self.team.close()
