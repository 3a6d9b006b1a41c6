"""The framework the model runs on: GT, or PyTorch with GT_EXAMPLE_FRAMEWORK=pytorch.

`train.py --pytorch` and `generate.py --pytorch` set the variable before they import the model.
"""

import argparse
import math
import os
import pathlib
import sys

PYTORCH = os.environ.get("GT_EXAMPLE_FRAMEWORK", "gt") == "pytorch"


def choose(pytorch):
    """Chooses the framework; to be called before the model is imported."""
    global PYTORCH
    PYTORCH = pytorch
    os.environ["GT_EXAMPLE_FRAMEWORK"] = "pytorch" if pytorch else "gt"
    assert "model" not in sys.modules, "the framework is chosen before the model is imported"


def __getattr__(name):
    if name == "lib":
        if PYTORCH:
            import torch as lib
        else:
            import gt as lib
        return lib
    if name == "nn":
        return __getattr__("lib").nn
    if name == "F":
        return __getattr__("lib").nn.functional
    raise AttributeError(name)


DTYPES = ["float32", "bfloat16", "float16", "float64"]


def _checked(kind, fits, expected):
    """A number of the command line that fits."""

    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return read


positive = _checked(int, lambda n: n >= 1, "a whole number from 1 on")
count = _checked(int, lambda n: n >= 0, "a whole number from 0 on")
amount = _checked(float, lambda x: 0 <= x < math.inf, "a number from 0 on")
above_zero = _checked(float, lambda x: 0 < x < math.inf, "a number above 0")
share = _checked(float, lambda x: 0 <= x <= 1, "a number from 0 to 1")
share_above_zero = _checked(float, lambda x: 0 < x <= 1, "a number above 0 and at most 1")
existing_file = _checked(pathlib.Path, pathlib.Path.is_file, "a file")
model_folder = _checked(pathlib.Path, lambda path: (path / "config.json").is_file(), "a folder with config.json")


def use_gpu():
    """PyTorch makes its tensors on the GPU where there is one; GT's workers have theirs already."""
    lib = __getattr__("lib")
    if PYTORCH and lib.cuda.is_available():
        lib.set_default_device("cuda")


def upload(array):
    """A tensor of a NumPy array, where the model computes."""
    lib = __getattr__("lib")
    tensor = lib.from_numpy(array)
    return tensor.to(lib.get_default_device()) if PYTORCH else tensor


def synchronize():
    """Waits for the device, so that a clock may be read."""
    if not PYTORCH:
        __getattr__("lib").synchronize()
    elif __getattr__("lib").cuda.is_available():
        __getattr__("lib").cuda.synchronize()
