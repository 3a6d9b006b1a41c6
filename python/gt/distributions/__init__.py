"""Probability distributions: samples, with gradients where they have some, and the logarithms of their densities."""

from gt._places import places as _places
from gt.distributions import basic, constraints, counts, kl, normals, shares, transforms
from gt.distributions.basic import *  # noqa: F403
from gt.distributions.counts import *  # noqa: F403
from gt.distributions.kl import *  # noqa: F403
from gt.distributions.normals import *  # noqa: F403
from gt.distributions.shares import *  # noqa: F403
from gt.distributions.transforms import *  # noqa: F403

__all__ = basic.__all__ + counts.__all__ + kl.__all__ + normals.__all__ + shares.__all__ + transforms.__all__
__all__ += ["constraints", "kl", "transforms"]

_places(
    __name__,
    dict.fromkeys(
        (
            *("bernoulli", "beta", "categorical", "cauchy", "dirichlet", "distribution", "exponential", "gamma"),
            *("geometric", "gumbel", "half_normal", "independent", "laplace", "log_normal", "mixture_same_family"),
            *("multivariate_normal", "normal", "one_hot_categorical", "relaxed_bernoulli", "relaxed_categorical"),
            *("studentT", "transformed_distribution", "uniform"),
        ),
        __name__,
    ),
)
