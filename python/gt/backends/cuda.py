"""Switches of CUDA workers. They belong to this process and travel with what it records."""

from contextlib import contextmanager

from gt._gt import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = [
    "enable_cudnn_sdp",
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "flash_sdp_enabled",
    "is_built",
    "math_sdp_enabled",
    "matmul",
    "mem_efficient_sdp_enabled",
    "sdp_kernel",
]


class _Matmul:
    """How matrices are multiplied."""

    # Half types are summed in float32, whatever is allowed.
    __slots__ = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")

    @property
    def allow_tf32(self):
        """True if float32 operands may be rounded to TF32; as `gt.set_float32_matmul_precision('high')`."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allow):
        set_float32_matmul_precision("high" if allow else "highest")


matmul = _Matmul()


def _choice(name):
    def enable(enabled):
        """Taken, and changes nothing: how attention is computed is the compiler's choice."""

    enable.__name__ = name
    return enable


enable_flash_sdp, enable_math_sdp = _choice("enable_flash_sdp"), _choice("enable_math_sdp")
enable_mem_efficient_sdp, enable_cudnn_sdp = _choice("enable_mem_efficient_sdp"), _choice("enable_cudnn_sdp")


def flash_sdp_enabled():
    """True: the compiler may take any way."""
    return True


math_sdp_enabled = mem_efficient_sdp_enabled = flash_sdp_enabled


def is_built():
    """True: GT loads CUDA where a worker has it."""
    return True


@contextmanager
def sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True):
    """Changes nothing, as `gt.nn.attention.sdpa_kernel`."""
    yield {}
