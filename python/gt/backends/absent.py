"""Libraries that GT does without."""

from types import SimpleNamespace

__all__ = ["mkl", "mkldnn", "openmp"]


def _not():
    return False


mkl, openmp = SimpleNamespace(is_available=_not), SimpleNamespace(is_available=_not)
mkldnn = SimpleNamespace(is_available=_not, enabled=False)
