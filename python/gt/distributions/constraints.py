"""What values distributions take and transforms give, for those who write their own."""

import math

__all__ = [
    "Constraint",
    "boolean",
    "greater_than",
    "interval",
    "less_than",
    "nonnegative",
    "nonnegative_integer",
    "positive",
    "positive_definite",
    "real",
    "real_vector",
    "simplex",
    "unit_interval",
]


class Constraint:
    """Numbers between two bounds. `check` says which of some are."""

    is_discrete, event_dim = False, 0

    def __init__(self, lower=-math.inf, upper=math.inf, event_dim=0, strict=False):
        self.lower_bound, self.upper_bound, self.event_dim, self._strict = lower, upper, event_dim, strict

    def check(self, value):
        inside = (value > self.lower_bound) if self._strict else (value >= self.lower_bound)
        inside = inside & (value <= self.upper_bound)
        return inside.flatten(-self.event_dim).all(-1) if self.event_dim else inside


def interval(lower_bound, upper_bound):
    return Constraint(lower_bound, upper_bound)


def greater_than(lower_bound):
    return Constraint(lower_bound, strict=True)


def less_than(upper_bound):
    return Constraint(upper=upper_bound)


class _Integers(Constraint):
    is_discrete = True

    def check(self, value):
        return super().check(value) & (value % 1 == 0)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value):
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _PositiveDefinite(Constraint):
    event_dim = 2

    def check(self, value):
        from gt.linalg import eigvalsh

        return (eigvalsh(value) > 0).all(-1)


real, real_vector = Constraint(), Constraint(event_dim=1)
positive, nonnegative = greater_than(0.0), Constraint(0.0)
unit_interval, simplex, positive_definite = interval(0.0, 1.0), _Simplex(), _PositiveDefinite()
boolean, nonnegative_integer = _Integers(0, 1), _Integers(0)
