"""Saving and loading: what comes back, files of and for others, files that are broken."""

import importlib.util
import io
import json
import struct

import numpy as np
import pytest
from helpers import DTYPES, check, draw

import gt

needs_safetensors = pytest.mark.skipif(not importlib.util.find_spec("safetensors"), reason="no safetensors")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_every_type_comes_back(dtype, shape, tmp_path):
    t = gt.tensor(draw(shape, dtype), dtype=dtype)
    gt.save({"t": t, "view": t.flatten()[: t.numel() // 2]}, tmp_path / "file")
    back = gt.load(tmp_path / "file")
    check(back["t"], t, (0, 0))
    check(back["view"], t.flatten()[: t.numel() // 2], (0, 0))


def test_structures_come_back():
    t = gt.arange(3)
    thing = {
        "list": [t, 1, 2.5, None, True, "text"],
        "tuple": (t * 2, (), []),
        3: {"inner": {}, "inf": float("inf"), "nothing": None},
        "number": np.float32(0.5),
    }
    file = io.BytesIO()
    gt.save(thing, file)
    file.seek(0)
    back = gt.load(file)
    assert list(back) == ["list", "tuple", 3, "number"] and back["number"] == 0.5
    assert back["list"][0].tolist() == [0, 1, 2] and back["list"][1:] == [1, 2.5, None, True, "text"]
    assert isinstance(back["tuple"], tuple) and back["tuple"][0].tolist() == [0, 2, 4] and back["tuple"][1:] == ((), [])
    assert back[3] == thing[3]
    with pytest.raises(TypeError, match=r"got Linear at obj\['a'\]\[0\].*state_dict"):
        gt.save({"a": [gt.nn.Linear(1, 1)]}, io.BytesIO())
    with pytest.raises(TypeError, match="keys"):
        gt.save({(1, 2): 3}, io.BytesIO())


def test_arrays_and_types_come_back():
    drawn = np.random.RandomState(3).get_state()
    thing = {
        "state": drawn,
        "wide": np.arange(6, dtype=np.uint16).reshape(2, 3).T,
        "none": np.zeros((0, 2)),
        "one": np.array(1 + 2j),
        "dtype": gt.bfloat16,
        "device": gt.device("cuda:1"),
    }
    file = io.BytesIO()
    gt.save(thing, file)
    file.seek(0)
    back = gt.load(file)
    for name in ("wide", "none", "one"):
        assert back[name].dtype == thing[name].dtype and back[name].shape == thing[name].shape
        np.testing.assert_array_equal(back[name], thing[name])
    again, fresh = np.random.RandomState(0), np.random.RandomState(3)
    again.set_state(back["state"])
    assert again.rand() == fresh.rand()
    back["wide"][0, 0] = 9
    assert back["dtype"] is gt.bfloat16 and back["device"] == gt.device("cuda:1")
    with pytest.raises(TypeError, match="got ndarray"):
        gt.save([np.array([None])], io.BytesIO())


def test_a_module_comes_back(tmp_path):
    net, other = gt.nn.Linear(3, 2), gt.nn.Linear(3, 2)
    gt.save(net.state_dict(), tmp_path / "net")
    other.load_state_dict(gt.load(tmp_path / "net", map_location="cpu", weights_only=True))
    check(list(other.parameters()), list(net.parameters()), (0, 0))
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


@needs_safetensors
def test_others_read_our_files_and_we_theirs(tmp_path):
    from safetensors.numpy import load_file, save_file

    arrays = {"a": draw((3, 4), "float32"), "b.weight": draw((5,), "int64"), "c": draw((2, 2), "bool")}
    gt.save({name: gt.from_numpy(a) for name, a in arrays.items()}, tmp_path / "ours")
    for name, array in load_file(tmp_path / "ours").items():
        np.testing.assert_array_equal(array, arrays[name])
    save_file(arrays, tmp_path / "theirs", metadata={"format": "np"})
    back = gt.load(tmp_path / "theirs")
    assert sorted(back) == sorted(arrays)
    for name, t in back.items():
        np.testing.assert_array_equal(t.numpy(), arrays[name])


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes):
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


BROKEN = {
    "empty": b"",
    "short": b"\1\2\3",
    "no header": struct.pack("<Q", 1 << 60),
    "not json": file_of(b"{{{"),
    "not a dictionary": file_of([1, 2]),
    "no offsets": file_of({"t": {"dtype": "F32", "shape": [2]}}),
    "bytes missing": file_of(entry(), b"\0" * 7),
    "negative": file_of(entry(data_offsets=[-8, 0]), b"\0" * 8),
    "backwards": file_of(entry(data_offsets=[8, 0]), b"\0" * 8),
    "wrong size": file_of(entry(shape=[3]), b"\0" * 8),
    "negative shape": file_of(entry(shape=[-2]), b"\0" * 8),
    "unknown type": file_of(entry(dtype="F8_E4M3"), b"\0" * 8),
    "not text": file_of(b"\xff\xfe\xfd"),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_refused(kind, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(BROKEN[kind])
    for mapped in (True, False):
        with pytest.raises(ValueError, match="load: "):
            gt.load(path, mmap=mapped)
