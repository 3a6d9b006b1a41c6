"""Tensor functions that are short compositions of the core's. Those named in METHODS become methods of tensors."""

from gt._function import function
from gt._gt import Tensor
from gt.composed import (
    bessel,
    create,
    dlpack,
    layers,
    matrices,
    names,
    pointwise,
    products,
    search,
    shape,
    special,
    stat,
)
from gt.composed.bessel import *  # noqa: F403
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
    bessel.__all__
    + create.__all__
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
            "argwhere as_strided diag diag_embed diagflat diagonal_scatter dsplit fill_diagonal_ hsplit index_put "
            "is_nonzero is_same_size narrow_copy put rot90 select_scatter slice_scatter split_with_sizes sum_to_size "
            "tensor_split trace unfold unsafe_chunk unsafe_split unsafe_split_with_sizes vsplit",
        ),
        (stat, "aminmax bincount corrcoef cov diff dist histc histogram nanmean nansum"),
        (create, "bernoulli multinomial new"),
    )
    for name in names.split()
}
METHODS.update({name: getattr(search, name) for name in search.METHODS})
for _more in (names, special, bessel, matrices, dlpack):
    METHODS.update(_more.METHODS)

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)

# Functions whose result may go to `out`: of a tensor, and of what need not be one.
for _first, _names in (
    (
        "input",
        "acosh addbmm addmv addr aminmax angle arccosh arcsinh arctanh asinh atanh copysign cross cummax cummin "
        "deg2rad diag diff digamma erfc erfinv fix fmax fmin frexp gcd heaviside histc hypot i0 index_reduce "
        "inner isneginf isposinf kron lcm ldexp lgamma logaddexp logaddexp2 logcumsumexp logit matrix_power mode "
        "mvlgamma nanmean nanmedian nanquantile nansum narrow_copy quantile rad2deg renorm scatter_reduce sgn "
        "signbit sinc slice_scatter svd vdot",
    ),
    (
        None,
        "bitwise_left_shift bitwise_right_shift bucketize column_stack dstack float_power isin logspace normal "
        "polygamma searchsorted xlogy",
    ),
):
    for _name in _names.split():
        globals()[_name] = function(globals()[_name], _first)

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
