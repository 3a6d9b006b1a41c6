"""Tensor functions that are short compositions of the core's. Those named in METHODS become methods of tensors."""

from gt._gt import Tensor
from gt.composed import create, inplace, pointwise, products, shape, stat
from gt.composed.create import *  # noqa: F403
from gt.composed.pointwise import *  # noqa: F403
from gt.composed.products import *  # noqa: F403
from gt.composed.shape import *  # noqa: F403
from gt.composed.stat import *  # noqa: F403

__all__ = create.__all__ + pointwise.__all__ + products.__all__ + shape.__all__ + stat.__all__

# Method: function. The tensor is the first argument.
METHODS = {
    name: getattr(module, name)
    for module, names in (
        (
            pointwise,
            "copysign deg2rad fix float_power fmax fmin heaviside hypot isneginf isposinf isreal ldexp logaddexp "
            "logaddexp2 logit positive rad2deg sgn signbit sinc",
        ),
        (products, "addbmm addmv addr cross ger inner kron matrix_power vdot"),
        (
            shape,
            "argwhere diag diag_embed diagflat diagonal_scatter dsplit fill_diagonal_ hsplit index_put is_nonzero "
            "is_same_size rot90 select_scatter slice_scatter split_with_sizes sum_to_size tensor_split trace unfold "
            "vsplit",
        ),
        (stat, "aminmax bincount corrcoef cov diff dist histc nanmean nansum"),
        (create, "bernoulli multinomial"),
    )
    for name in names.split()
}
METHODS.update(inplace.METHODS)

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
