"""From items to a batch."""

import gt


def _is_array(x):
    return type(x).__module__ == "numpy" and hasattr(x, "dtype")


def default_convert(data):
    """NumPy arrays inside any containers become tensors; all else stays as it is."""
    if _is_array(data):
        return data if data.dtype.kind in "SUO" else gt.as_tensor(data)
    if isinstance(data, dict):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(x) for x in data))
    if isinstance(data, (list, tuple)):
        return [default_convert(x) for x in data]
    return data


def default_collate(batch):
    """Stacks items: tensors, arrays and numbers to tensors, containers member by member, text as lists."""
    first = batch[0]
    if isinstance(first, gt.Tensor):
        return gt.stack(list(batch), 0)
    if _is_array(first):
        if first.dtype.kind in "SUO":
            raise TypeError(f"default_collate: cannot make a batch of arrays of {first.dtype}")
        return gt.stack([gt.as_tensor(x) for x in batch], 0)
    if isinstance(first, float):
        return gt.tensor(list(batch), dtype=gt.float64)
    if isinstance(first, (bool, int)):
        return gt.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, dict):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(list(members)) for members in zip(*batch)))
    if isinstance(first, (list, tuple)):
        if any(len(item) != len(first) for item in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        members = [default_collate(list(members)) for members in zip(*batch)]
        return members
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        f"{type(first).__name__}: pass a collate_fn"
    )
