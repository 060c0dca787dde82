"""attsvm solves, trains, checks and applies attention as max-margin token selection."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The public names in README order, and the module each comes from. Modules load at first use, so that
# `import attsvm` is instant and pulls in neither JAX nor numba nor matplotlib.
_HOME = {
    "Tokens": "tokens",
    "Entrywise": "norms",
    "Schatten": "norms",
    "l1": "norms",
    "linf": "norms",
    "frobenius": "norms",
    "nuclear": "norms",
    "spectral": "norms",
    "scores": "selection",
    "best_tokens": "selection",
    "attended_tokens": "selection",
    "soft_sparsity": "selection",
    "TiedScores": "selection",
}
_MODULES = ("datasets",)

__all__ = [*_HOME, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"attsvm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'attsvm' has no attribute {name!r}")
    return getattr(import_module(f"attsvm.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if TYPE_CHECKING:
    from attsvm import datasets
    from attsvm.norms import Entrywise, Schatten, frobenius, l1, linf, nuclear, spectral
    from attsvm.selection import (
        TiedScores,
        attended_tokens,
        best_tokens,
        scores,
        soft_sparsity,
    )
    from attsvm.tokens import Tokens
