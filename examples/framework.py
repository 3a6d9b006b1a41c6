"""The framework the model runs on: GT, or PyTorch with GT_EXAMPLE_FRAMEWORK=pytorch.

`train.py --pytorch` and `generate.py --pytorch` set the variable before they import the model.
"""

import os
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


def positive(text):
    """A number of the command line that is at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


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
