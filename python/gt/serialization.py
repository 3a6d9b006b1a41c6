"""Saving and loading: tensors in the safetensors format, what holds them together as JSON. Data only, never code.

A dictionary of tensors by name becomes a plain safetensors file, which other programs read too. Anything else that is
made of tensors, numbers, strings, lists, tuples and dictionaries is described in the file's metadata.
"""

import json
import math
import mmap
import os
import struct

import numpy as np

from gt import _gt
from gt._gt import Tensor
from gt._progress import Bar

__all__ = ["load", "save"]

# Types under their names in the file.
_TYPES = {
    "F64": _gt.float64,
    "F32": _gt.float32,
    "F16": _gt.float16,
    "BF16": _gt.bfloat16,
    "I64": _gt.int64,
    "I32": _gt.int32,
    "I16": _gt.int16,
    "I8": _gt.int8,
    "U8": _gt.uint8,
    "BOOL": _gt.bool,
}
_NAMES = {dtype.name: name for name, dtype in _TYPES.items()}
_TREE = "gt"
_HEADER_LIMIT = 100 << 20


def save(obj, f):
    """Writes tensors, and what numbers, strings, arrays, lists, tuples and dictionaries make of them, to a path or
    file."""
    tensors, metadata = {}, {}
    if isinstance(obj, dict) and obj and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in obj.items()):
        tensors = dict(obj)
    else:
        metadata[_TREE] = json.dumps(_describe(obj, tensors, "obj"))
    if isinstance(f, (str, os.PathLike)):
        # A file that is only half written never stands under the name.
        part = f"{os.fspath(f)}.part"
        with open(part, "wb") as file:
            _write(file, tensors, metadata)
        os.replace(part, f)
    else:
        _write(f, tensors, metadata)


def load(f, map_location=None, *, weights_only=True, mmap=True):
    """Reads what `save` wrote, or any safetensors file as a dictionary of tensors by name."""
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            tensors, metadata = _read(_mapped(file) if mmap else file.read())
    else:
        tensors, metadata = _read(f.read())
    if map_location is not None:
        tensors = {name: t.to(map_location) for name, t in tensors.items()}
    return _rebuild(json.loads(metadata[_TREE]), tensors) if _TREE in metadata else tensors


def _mapped(file):
    size = os.fstat(file.fileno()).st_size
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


# Structure: every container is a list that starts with its kind; tensors stand by their name in the file.


def _describe(obj, tensors, path):
    if obj is None or isinstance(obj, (bool, int, float, str)):
        return obj
    if isinstance(obj, Tensor):
        name = str(len(tensors))
        tensors[name] = obj
        return ["tensor", name]
    if isinstance(obj, dict):
        for key in obj:
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise TypeError(f"save: expected strings or numbers as keys, got {type(key).__name__} in {path}")
        return ["dict", *([key, _describe(value, tensors, f"{path}[{key!r}]")] for key, value in obj.items())]
    if isinstance(obj, (list, tuple)):
        kind = "list" if isinstance(obj, list) else "tuple"
        return [kind, *(_describe(item, tensors, f"{path}[{i}]") for i, item in enumerate(obj))]
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, np.ndarray) and obj.dtype.kind in "biufc":
        # Its bytes: NumPy has types that tensors have not.
        name = str(len(tensors))
        tensors[name] = _gt.from_numpy(np.frombuffer(obj.tobytes(), np.uint8))
        return ["array", name, obj.dtype.str, list(obj.shape)]
    if isinstance(obj, _gt.dtype):
        return ["dtype", obj.name]
    if isinstance(obj, _gt.device):
        return ["device", str(obj)]
    raise TypeError(
        "save: expected tensors, arrays, numbers, strings, lists, tuples and dictionaries, got "
        f"{type(obj).__name__} at {path}; save the state_dict() of a module, and vars() of a namespace"
    )


def _rebuild(tree, tensors):
    if not isinstance(tree, list):
        return tree
    kind, items = tree[0], tree[1:]
    if kind == "tensor":
        return tensors[items[0]]
    if kind == "array":
        return np.frombuffer(tensors[items[0]].numpy().tobytes(), np.dtype(items[1])).reshape(items[2]).copy()
    if kind in ("dtype", "device"):
        return getattr(_gt, items[0]) if kind == "dtype" else _gt.device(items[0])
    if kind == "dict":
        return {key: _rebuild(value, tensors) for key, value in items}
    rebuilt = [_rebuild(item, tensors) for item in items]
    return rebuilt if kind == "list" else tuple(rebuilt)


# Bytes: the length of the header, the header as JSON, the elements one tensor after the other.


def _bytes(t):
    t = t.detach()
    if t.dtype is not _gt.bfloat16:
        return np.ascontiguousarray(t.numpy()).tobytes()
    return (t.float().numpy().view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _write(file, tensors, metadata):
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = {"dtype": _NAMES[t.dtype.name], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    with Bar("saving", at) as bar:
        for t in tensors.values():
            data = _bytes(t)
            file.write(data)
            bar.add(len(data))


def _read(data):
    if len(data) < 8:
        raise ValueError(f"load: expected a safetensors file, got {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(_HEADER_LIMIT, len(data) - 8):
        raise ValueError(f"load: expected a safetensors file, got a header of {length} bytes in {len(data)}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        tensors = {}
        with Bar("loading", len(data)) as bar:
            for name, entry in header.items():
                tensors[name] = _tensor(name, entry, data, 8 + length)
                bar.add(tensors[name].numel() * tensors[name].element_size())
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"load: expected a safetensors file, got a header that does not parse: {error!r}") from None
    return tensors, metadata


def _tensor(name, entry, data, base):
    dtype = _TYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"load: {name} has the type {entry['dtype']}, which GT does not have")
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    count = math.prod(shape)
    if not 0 <= start <= end <= len(data) - base or end - start != count * dtype.itemsize:
        raise ValueError(f"load: {name} of shape {shape} does not fit its bytes {start} to {end}")
    if count == 0:
        return _gt.empty(shape, dtype=dtype)
    return _gt.frombuffer(data, dtype=dtype, count=count, offset=base + start).reshape(shape)
