"""Datasets and loaders, as `torch.utils.data` has them.

A loader's workers are processes that make host tensors and start nothing: they create, stack, slice, pad, write and
pickle; anything else is an error there that says so.
"""

from gt._places import places as _places
from gt.utils.data.collate import default_collate, default_convert
from gt.utils.data.dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from gt.utils.data.distributed import DistributedSampler
from gt.utils.data.loader import DataLoader
from gt.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from gt.utils.data.worker import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]


dataloader = _places(__name__, {"dataloader": __name__})["dataloader"]
