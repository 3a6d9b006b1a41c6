"""A sampler for programs that divide a dataset over processes."""

import math

from gt import _gt
from gt.utils.data.sampler import Sampler

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler):
    """Every `num_replicas`-th index from `rank` on, in an order that `set_epoch` changes."""

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        if num_replicas is None or rank is None:
            # GT has no process groups to ask.
            num_replicas, rank = num_replicas or 1, rank or 0
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        share = len(dataset) / num_replicas
        even = drop_last and len(dataset) % num_replicas
        self.num_samples = int(share) if even else math.ceil(share)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self):
        n = len(self.dataset)
        if self.shuffle:
            order = _gt.randperm(n, generator=_gt.Generator().manual_seed(self.seed + self.epoch)).tolist()
        else:
            order = list(range(n))
        missing = self.total_size - n
        if missing > 0:
            order += (order * math.ceil(missing / max(n, 1)))[:missing]
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self):
        return self.num_samples

    def set_epoch(self, epoch):
        """Makes the order another one for each epoch."""
        self.epoch = epoch
