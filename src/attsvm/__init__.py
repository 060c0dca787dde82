"""attsvm solves, trains, checks and applies attention as max-margin token selection."""

import sys
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
    "Norm": "norms",
    "scores": "selection",
    "best_tokens": "selection",
    "attended_tokens": "selection",
    "soft_sparsity": "selection",
    "TiedScores": "selection",
    "locally_optimal": "selection",
    "equal_losing_scores": "selection",
    "max_margin": "program.max_margin",
    "separate": "program.max_margin",
    "separable": "program.max_margin",
    "finite_part": "program.finite_part",
    "selections": "program.selections",
    "all_tokens_support": "program.assumptions",
    "label_svm": "program.assumptions",
    "label_support": "program.assumptions",
    "leakage_cost": "program.assumptions",
    "in_cone": "program.assumptions",
    "in_margin_cone": "program.assumptions",
    "Solution": "program.solution",
    "Certificate": "program.solution",
    "NotSeparable": "program.solution",
    "train": "training.train",
    "regularisation_path": "training.regularise",
    "Batches": "training.batches",
    "Interrupted": "training.segments",
    "Path": "path",
    "FullWeight": "training.weights",
    "KeyQuery": "training.weights",
    "Diagonal": "training.weights",
    "DiagonalKeyQuery": "training.weights",
    "Weight": "training.weights",
    "Linear": "training.heads",
    "ReLUNetwork": "training.heads",
    "QuadraticPenalty": "training.heads",
    "LogOdds": "training.heads",
    "Head": "training.heads",
    "logistic": "training.losses",
    "exponential": "training.losses",
    "correlation": "training.losses",
    "log_loss": "training.losses",
    "Loss": "training.losses",
    "steepest": "training.optimizers",
    "gd": "training.optimizers",
    "mirror": "training.optimizers",
    "polyak": "training.optimizers",
    "adam": "training.optimizers",
    "scale_free": "training.optimizers",
    "Optimizer": "training.rules",
    "gaussian": "training.init",
    "uniform": "training.init",
    "limit_norm": "theory",
    "Factored": "theory",
    "NoTheorem": "theory",
    "compare": "verdict",
    "classify": "verdict",
    "fit_rate": "verdict",
    "Verdict": "verdict",
    "margin_ratio": "verdict",
    "cosine": "verdict",
    "divergence": "verdict",
    "judge": "verdict",
    "at_least": "verdict",
    "at_most": "verdict",
    "told": "verdict",
    "Evidence": "verdict",
    "explore": "explorer.show",
    "sweep": "sweeps.sweep",
}
_MODULES = ("claims", "datasets", "next_token")

# Reached by name, but not by `from attsvm import *`: they need an extra, or matplotlib.
_APART = {"AttentionProbe": "probe"}
_MODULES_APART = ("figures", "heads", "probe", "torch")

__all__ = [*_HOME, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _APART or name in _MODULES_APART:
        return _apart(name)
    if name in _MODULES:
        return import_module(f"attsvm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'attsvm' has no attribute {name!r}")
    return getattr(import_module(f"attsvm.{_HOME[name]}"), name)


def _apart(name: str) -> Any:
    """What needs an extra. Without it the name does not exist, so that help() and hasattr() work."""
    try:
        home = import_module(f"attsvm.{_APART.get(name, name)}")
    except ImportError as missing:
        # `from attsvm import name` would answer an AttributeError with "cannot import name": it asks from
        # here, and is told which extra to install.
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":
            raise
        raise AttributeError(str(missing), name=name, obj=sys.modules[__name__]) from missing
    return getattr(home, name) if name in _APART else home


def __dir__() -> list[str]:
    return sorted([*__all__, *_APART, *_MODULES_APART, "__version__"])


if TYPE_CHECKING:
    from attsvm import (
        claims as claims,
        datasets as datasets,
        next_token as next_token,
    )
    from attsvm.explorer.show import explore as explore
    from attsvm.norms import (
        Entrywise as Entrywise,
        Norm as Norm,
        Schatten as Schatten,
        frobenius as frobenius,
        l1 as l1,
        linf as linf,
        nuclear as nuclear,
        spectral as spectral,
    )
    from attsvm.path import Path as Path
    from attsvm.probe import AttentionProbe as AttentionProbe
    from attsvm.program.assumptions import (
        all_tokens_support as all_tokens_support,
        in_cone as in_cone,
        in_margin_cone as in_margin_cone,
        label_support as label_support,
        label_svm as label_svm,
        leakage_cost as leakage_cost,
    )
    from attsvm.program.finite_part import finite_part as finite_part
    from attsvm.program.max_margin import (
        max_margin as max_margin,
        separable as separable,
        separate as separate,
    )
    from attsvm.program.selections import selections as selections
    from attsvm.program.solution import (
        Certificate as Certificate,
        NotSeparable as NotSeparable,
        Solution as Solution,
    )
    from attsvm.selection import (
        TiedScores as TiedScores,
        attended_tokens as attended_tokens,
        best_tokens as best_tokens,
        equal_losing_scores as equal_losing_scores,
        locally_optimal as locally_optimal,
        scores as scores,
        soft_sparsity as soft_sparsity,
    )
    from attsvm.sweeps.sweep import sweep as sweep
    from attsvm.theory import (
        Factored as Factored,
        NoTheorem as NoTheorem,
        limit_norm as limit_norm,
    )
    from attsvm.tokens import Tokens as Tokens
    from attsvm.training.batches import Batches as Batches
    from attsvm.training.heads import (
        Head as Head,
        Linear as Linear,
        LogOdds as LogOdds,
        QuadraticPenalty as QuadraticPenalty,
        ReLUNetwork as ReLUNetwork,
    )
    from attsvm.training.init import (
        gaussian as gaussian,
        uniform as uniform,
    )
    from attsvm.training.losses import (
        Loss as Loss,
        correlation as correlation,
        exponential as exponential,
        log_loss as log_loss,
        logistic as logistic,
    )
    from attsvm.training.optimizers import (
        adam as adam,
        gd as gd,
        mirror as mirror,
        polyak as polyak,
        scale_free as scale_free,
        steepest as steepest,
    )
    from attsvm.training.regularise import regularisation_path as regularisation_path
    from attsvm.training.rules import Optimizer as Optimizer
    from attsvm.training.segments import Interrupted as Interrupted
    from attsvm.training.train import train as train
    from attsvm.training.weights import (
        Diagonal as Diagonal,
        DiagonalKeyQuery as DiagonalKeyQuery,
        FullWeight as FullWeight,
        KeyQuery as KeyQuery,
        Weight as Weight,
    )
    from attsvm.verdict import (
        Evidence as Evidence,
        Verdict as Verdict,
        at_least as at_least,
        at_most as at_most,
        classify as classify,
        compare as compare,
        cosine as cosine,
        divergence as divergence,
        fit_rate as fit_rate,
        judge as judge,
        margin_ratio as margin_ratio,
        told as told,
    )
