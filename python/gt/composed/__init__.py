"""Tensor functions that are short compositions of the core's. Those named in METHODS become methods of tensors."""

from gt._gt import Tensor
from gt.composed import create, dlpack, layers, matrices, names, pointwise, products, search, shape, special, stat
from gt.composed.create import *  # noqa: F403
from gt.composed.dlpack import *  # noqa: F403
from gt.composed.layers import *  # noqa: F403
from gt.composed.matrices import *  # noqa: F403
from gt.composed.names import *  # noqa: F403
from gt.composed.pointwise import *  # noqa: F403
from gt.composed.products import *  # noqa: F403
from gt.composed.search import *  # noqa: F403
from gt.composed.shape import *  # noqa: F403
from gt.composed.special import *  # noqa: F403
from gt.composed.stat import *  # noqa: F403

__all__ = (
    create.__all__
    + dlpack.__all__
    + layers.__all__
    + matrices.__all__
    + names.__all__
    + pointwise.__all__
    + products.__all__
    + search.__all__
    + shape.__all__
    + special.__all__
    + stat.__all__
)

# Method: function. The tensor is the first argument.
METHODS = {
    name: getattr(module, name)
    for module, names in (
        (
            pointwise,
            "acosh angle arccosh arcsinh arctanh asinh atanh bitwise_left_shift bitwise_right_shift "
            "copysign deg2rad fix float_power fmax fmin frexp gcd hardshrink heaviside hypot isneginf isposinf isreal "
            "lcm ldexp logaddexp logaddexp2 logit positive rad2deg sgn signbit sinc threshold xlogy",
        ),
        (products, "addbmm addmv addr cross ger inner kron matrix_power renorm vdot"),
        (
            shape,
            "argwhere diag diag_embed diagflat diagonal_scatter dsplit fill_diagonal_ hsplit index_put is_nonzero "
            "is_same_size narrow_copy put rot90 select_scatter slice_scatter split_with_sizes sum_to_size tensor_split "
            "trace unfold unsafe_chunk unsafe_split unsafe_split_with_sizes vsplit",
        ),
        (stat, "aminmax bincount corrcoef cov diff dist histc nanmean nansum"),
        (create, "bernoulli multinomial new"),
    )
    for name in names.split()
}
METHODS.update({name: getattr(search, name) for name in search.METHODS})
for _more in (names, special, matrices, dlpack):
    METHODS.update(_more.METHODS)

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)

# Written with the methods above.
from gt.composed import inplace  # noqa: E402

METHODS.update(inplace.METHODS)
for _name, _function in inplace.METHODS.items():
    setattr(Tensor, _name, _function)
for _name, _value in names.PROPERTIES.items():
    setattr(Tensor, _name, names.constant(_value))
for _name, _function in names.DERIVED.items():
    setattr(Tensor, _name, property(_function))
for _name, _function in {**pointwise.OPERATORS, **inplace.OPERATORS}.items():
    setattr(Tensor, _name, _function)
