"""Switches of CUDA workers. They belong to this process and travel with what it records."""

from gt._gt import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = ["matmul"]


class _Matmul:
    """How matrices are multiplied."""

    __slots__ = ()

    @property
    def allow_tf32(self):
        """True if float32 operands may be rounded to TF32; as `gt.set_float32_matmul_precision('high')`."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allow):
        set_float32_matmul_precision("high" if allow else "highest")


matmul = _Matmul()
