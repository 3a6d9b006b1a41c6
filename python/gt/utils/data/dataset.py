"""Where items come from."""

import bisect
import pickle

from gt import _gt
from gt.utils.data.sampler import _permutation


class Dataset:
    """Items by index: `dataset[i]`, and usually `len(dataset)`."""

    def __getitem__(self, index):
        raise NotImplementedError("subclasses of Dataset should implement __getitem__")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Items one after the other: `iter(dataset)`."""

    def __iter__(self):
        raise NotImplementedError("subclasses of IterableDataset should implement __iter__")

    def __getitem__(self, index):
        raise TypeError("an IterableDataset has no items by index: iterate over it")


class TensorDataset(Dataset):
    """Rows of tensors whose first dimensions agree."""

    def __init__(self, *tensors):
        if not tensors or any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise ValueError("TensorDataset: the tensors differ in the size of their first dimension")
        self.tensors = tensors
        self._packed = None

    def __getitem__(self, index):
        if self._packed is not None and _gt._is_host_only():
            # The parent's tensors cannot be used here: these are copies of their bytes, made before the fork.
            self.tensors, self._packed = pickle.loads(self._packed), None
        return tuple(t[index] for t in self.tensors)

    def __len__(self):
        return self.tensors[0].shape[0]

    def _before_workers(self):
        """Takes the bytes of the tensors, for workers that are about to start."""
        self._packed = pickle.dumps(self.tensors)

    def _after_workers(self):
        self._packed = None


class ConcatDataset(Dataset):
    """Several datasets, one behind the other."""

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset, got none")
        self.cumulative_sizes = []
        for dataset in self.datasets:
            before = self.cumulative_sizes[-1] if self.cumulative_sizes else 0
            self.cumulative_sizes.append(before + len(dataset))

    def __len__(self):
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"ConcatDataset: index {index} is out of range for {len(self)} items")
        which = bisect.bisect_right(self.cumulative_sizes, at)
        return self.datasets[which][at - (self.cumulative_sizes[which - 1] if which else 0)]


class Subset(Dataset):
    """Some items of a dataset."""

    def __init__(self, dataset, indices):
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __len__(self):
        return len(self.indices)


def random_split(dataset, lengths, generator=None):
    """Splits a dataset at random into parts of the given lengths, or of fractions that sum to 1."""
    total = len(dataset)
    if abs(sum(lengths) - 1) < 1e-6 and sum(lengths) <= 1 + 1e-6:
        sizes = [int(total * part) for part in lengths]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
        lengths = sizes
    if sum(lengths) != total:
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = _permutation(total, generator)
    parts, start = [], 0
    for length in lengths:
        parts.append(Subset(dataset, order[start : start + length]))
        start += length
    return parts


def nested(dataset):
    """A dataset and all datasets inside it."""
    yield dataset
    inside = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    for other in inside if isinstance(inside, (list, tuple)) else []:
        if isinstance(other, Dataset):
            yield from nested(other)
