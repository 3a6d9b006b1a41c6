"""In which order items are taken."""

import random

from gt import _gt


def _seed(generator=None):
    """A number from a generator, or from GT's own random state, which moves on."""
    if generator is None:
        key, offset = _gt.get_rng_state()
        _gt.set_rng_state((key, offset + 1))
        return random.Random(f"{key} {offset}").getrandbits(63)
    if isinstance(generator, random.Random):
        return generator.getrandbits(63)
    if hasattr(generator, "integers"):
        return int(generator.integers(1 << 62))
    if isinstance(generator, _gt.Generator):
        key, offset = generator.get_state()
        generator.set_state((key, (offset + 1) % (1 << 64)))
        return random.Random(f"{key} {offset}").getrandbits(63)
    if hasattr(generator, "initial_seed"):
        return int(generator.initial_seed())
    if isinstance(generator, int):
        return generator
    raise TypeError(
        f"generator: expected gt.Generator, random.Random, a NumPy generator or a seed, got {type(generator).__name__}"
    )


def _permutation(n, generator=None):
    order = list(range(n))
    random.Random(_seed(generator)).shuffle(order)
    return order


class Sampler:
    """An order of indices, or of lists of indices."""

    def __init__(self, data_source=None):
        pass

    def __iter__(self):
        raise NotImplementedError("subclasses of Sampler should implement __iter__")


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


class RandomSampler(Sampler):
    """All indices in random order, or `num_samples` of them, with replacement if told so."""

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples <= 0):
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator

    @property
    def num_samples(self):
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self):
        n = len(self.data_source)
        if self.replacement:
            draw = random.Random(_seed(self.generator))
            yield from (draw.randrange(n) for _ in range(self.num_samples))
            return
        left = self.num_samples
        while left > 0 and n > 0:
            order = _permutation(n, self.generator)[:left]
            left -= len(order)
            yield from order

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Given indices in random order."""

    def __init__(self, indices, generator=None):
        self.indices = indices
        self.generator = generator

    def __iter__(self):
        return (self.indices[i] for i in _permutation(len(self.indices), self.generator))

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Places drawn with the given weights."""

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        self.weights = weights.tolist() if hasattr(weights, "tolist") else list(weights)
        if not replacement and num_samples > sum(w > 0 for w in self.weights):
            raise ValueError("WeightedRandomSampler: cannot draw more samples than there are weights above zero")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self):
        chance = random.Random(_seed(self.generator))
        places = range(len(self.weights))
        if self.replacement:
            yield from chance.choices(places, self.weights, k=self.num_samples)
            return
        # The smallest of exponential times, at rates that are the weights, are such a draw.
        times = [(chance.expovariate(w), i) for i, w in zip(places, self.weights) if w > 0]
        yield from (i for _, i in sorted(times)[: self.num_samples])

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler):
    """The indices of another sampler, in lists."""

    def __init__(self, sampler, batch_size, drop_last):
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self):
        batch = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self):
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
