"""Functions of `torch.special`."""

from gt import (
    digamma,
    erf,
    erfc,
    erfinv,
    exp2,
    expm1,
    lgamma,
    log1p,
    log_softmax,
    logit,
    logsumexp,
    mvlgamma,
    polygamma,
    round,
    sigmoid,
    sinc,
    softmax,
    xlogy,
)

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "log1p",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
]

expit, gammaln, psi, multigammaln = sigmoid, lgamma, digamma, mvlgamma


def entr(input):
    """`-x log x`, zero at zero and minus infinity below."""
    import gt

    return gt.where(input < 0, -gt.inf, -gt.xlogy(input, input))


def xlog1py(input, other):
    """`x log(1 + y)`, zero where `x` is."""
    return xlogy(input, other + 1)
