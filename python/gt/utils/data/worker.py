"""A loader's worker: a process that makes batches of host tensors and sends them home.

Small messages go through a pipe. The bytes of large tensors lie in anonymous memory whose descriptor is passed, so a
worker never waits for its parent to read, and needs no thread.
"""

import mmap
import os
import pickle
import random
import signal
import sys
import traceback
from multiprocessing import reduction

import gt
from gt import _gt

# Tensors from this many bytes on travel by descriptor.
LARGE = 64 * 1024


class WorkerInfo:
    """What a worker process knows of itself: `id`, `num_workers`, `seed`, `dataset`."""

    def __init__(self, **known):
        self.__dict__.update(known)

    def __repr__(self):
        return f"WorkerInfo({', '.join(f'{k}={v}' for k, v in self.__dict__.items())})"


_info = None


def get_worker_info():
    """In a worker, what it knows of itself; in the main process, None."""
    return _info


class Ended:
    """A worker's iterable dataset has no more items."""


class Failed:
    """An exception in a worker, with its traceback as text."""

    def __init__(self, worker, error):
        self.where = f"DataLoader worker process {worker}"
        self.kind = type(error)
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))

    def __reduce__(self):
        try:
            pickle.dumps(self.kind)
            kind = self.kind
        except Exception:
            kind = RuntimeError
        return _failed, (self.where, kind, self.text)

    def reraise(self):
        """Raises the same kind of exception here."""
        text = f"Caught {self.kind.__name__} in {self.where}.\nOriginal {self.text}"
        if self.kind is KeyError:
            raise KeyError(_Text(text))
        try:
            error = self.kind(text)
        except Exception:
            error = RuntimeError(text)
        raise error


class _Text(str):
    """A message that shows its lines even where `repr` is printed."""

    def __repr__(self):
        return str(self)


def _failed(where, kind, text):
    failed = Failed.__new__(Failed)
    failed.where, failed.kind, failed.text = where, kind, text
    return failed


class _Pickler(pickle.Pickler):
    """Takes the bytes of large tensors aside."""

    def __init__(self, file, aside):
        super().__init__(file, 5, buffer_callback=self._keep)
        self.aside = aside
        self.ours = False

    def _keep(self, buffer):
        # Only tensors are read from memory that is passed; arrays travel inside the message.
        if self.ours:
            self.aside.append(buffer.raw())
            self.ours = False
            return None
        return True

    def reducer_override(self, obj):
        if isinstance(obj, gt.Tensor) and obj.nbytes >= LARGE:
            rebuild, (cls, data, *rest) = obj.__reduce__()
            return rebuild, (cls, _Aside(data), *rest)
        if isinstance(obj, _Aside):
            self.ours = True
            return bytes, (pickle.PickleBuffer(obj.data),)
        return NotImplemented


class _Aside:
    """Bytes that are not written into the message."""

    def __init__(self, data):
        self.data = data


def send(conn, index, batch):
    """Sends a batch, or what became of it."""
    import io

    file, aside = io.BytesIO(), []
    _Pickler(file, aside).dump((index, batch))
    sizes = [len(data) for data in aside]
    conn.send_bytes(pickle.dumps((sizes, file.getvalue())))
    if aside:
        fd = os.memfd_create("gt-batch")
        try:
            os.ftruncate(fd, sum(sizes))
            with mmap.mmap(fd, sum(sizes)) as memory:
                for data in aside:
                    memory.write(data)
            reduction.send_handle(conn, fd, None)
        finally:
            os.close(fd)


def receive(conn):
    """What `send` sent: (index, batch)."""
    sizes, message = pickle.loads(conn.recv_bytes())
    if not sizes:
        return pickle.loads(message)
    fd = reduction.recv_handle(conn)
    try:
        with mmap.mmap(fd, sum(sizes), prot=mmap.PROT_READ) as memory:
            return pickle.loads(message, buffers=[memory.read(size) for size in sizes])
    finally:
        os.close(fd)


def fetch(dataset, indices, collate):
    """A batch of a dataset with items by index; without `collate`, one item."""
    if collate is None:
        return dataset[indices]
    many = getattr(dataset, "__getitems__", None)
    return collate(many(indices) if many else [dataset[i] for i in indices])


def take(items, size, drop_last, collate, convert):
    """The next batch of an iterator; an `Ended` at its end."""
    if size is None:
        for item in items:
            return convert(item)
        return Ended()
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            break
    if not batch or (drop_last and len(batch) < size):
        return Ended()
    return collate(batch)


def work(conn, others, info, iterable, collate, convert, batch_size, drop_last, init):
    """The life of a worker: takes tasks from the pipe until it closes."""
    global _info
    for other in others:
        other.close()
    # Ctrl-C is the parent's to handle: it closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _gt._set_host_only()
    _info = info
    random.seed(info.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(info.seed % (1 << 32))
    broken = None
    try:
        gt.manual_seed(info.seed)
        if init is not None:
            init(info.id)
    except Exception as error:
        broken = Failed(info.id, error)
    items = None
    while True:
        try:
            task = pickle.loads(conn.recv_bytes())
        except (EOFError, OSError):
            return
        if task is None:
            return
        index, indices, fresh = task
        try:
            if broken:
                batch = broken
            elif iterable:
                items = iter(info.dataset) if items is None or fresh else items
                batch = take(items, batch_size, drop_last, collate, convert)
            else:
                batch = fetch(info.dataset, indices, collate) if collate else convert(info.dataset[indices])
        except Exception as error:
            batch = Failed(info.id, error)
        try:
            send(conn, index, batch)
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            send(conn, index, Failed(info.id, error))
