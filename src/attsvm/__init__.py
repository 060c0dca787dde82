"""attsvm solves, trains, checks and applies attention as max-margin token selection."""

import sys
from typing import TYPE_CHECKING, Any

from attsvm._support.lazy import defining_modules, load

__version__ = "0.3.0"

# The public names and their modules are those below. Modules load at first use, so that `import attsvm` is
# instant and pulls in neither JAX nor numba nor matplotlib.
_HOME = defining_modules(__name__)

# Reached by name, but not by `from attsvm import *`: they need an extra, or would hide the library JAX.
_APART = ("heads", "jax", "probe", "torch")

__all__ = [name for name in _HOME if name not in _APART]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    try:
        return load(__name__, name, _HOME)
    except ImportError as missing:
        # Without an extra its names do not exist, so that help() and hasattr() work. But
        # `from attsvm import name` would answer an AttributeError with "cannot import name": it asks from
        # here, and is told which extra to install.
        if name not in _APART or sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise
        raise AttributeError(str(missing), name=name, obj=sys.modules[__name__]) from missing


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])


if TYPE_CHECKING:
    from attsvm import (
        datasets as datasets,
        heads as heads,
        jax as jax,
        next_token as next_token,
        probe as probe,
        torch as torch,
    )
    from attsvm.comparison.kkt import (
        kkt_point as kkt_point,
    )
    from attsvm.comparison.theory import (
        NoTheorem as NoTheorem,
        limit_norm as limit_norm,
    )
    from attsvm.comparison.verdict import (
        classify as classify,
        compare as compare,
        cosine as cosine,
        margin_ratio as margin_ratio,
    )
    from attsvm.data.path import Path as Path
    from attsvm.data.selection import (
        attended_tokens as attended_tokens,
        best_tokens as best_tokens,
        locally_optimal as locally_optimal,
        scores as scores,
        soft_sparsity as soft_sparsity,
    )
    from attsvm.data.tokens import Tokens as Tokens
    from attsvm.explorer.page import explore as explore
    from attsvm.norms import (
        Capabilities as Capabilities,
        Entrywise as Entrywise,
        LongestRow as LongestRow,
        Norm as Norm,
        Schatten as Schatten,
        capabilities_of as capabilities_of,
        frobenius as frobenius,
        l1 as l1,
        linf as linf,
        nuclear as nuclear,
        spectral as spectral,
    )
    from attsvm.norms.factored import Factored as Factored
    from attsvm.norms.layouts import HeadLayout as HeadLayout
    from attsvm.program.finite_part import finite_part as finite_part
    from attsvm.program.max_margin import (
        label_support as label_support,
        label_svm as label_svm,
        max_margin as max_margin,
        separable as separable,
        separate as separate,
    )
    from attsvm.program.selections import (
        selections as selections,
    )
    from attsvm.program.sensitivity import sensitivity as sensitivity
    from attsvm.program.solution import (
        NotCertified as NotCertified,
        NotSeparable as NotSeparable,
        Solution as Solution,
    )
    from attsvm.training.batches import Batches as Batches
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
        compositional as compositional,
        gd as gd,
        mirror as mirror,
        polyak as polyak,
        scale_free as scale_free,
        steepest as steepest,
    )
    from attsvm.training.prediction_heads import (
        Head as Head,
        Linear as Linear,
        LogOdds as LogOdds,
        QuadraticPenalty as QuadraticPenalty,
        ReLUNetwork as ReLUNetwork,
        SquaredError as SquaredError,
    )
    from attsvm.training.regularise import (
        regularisation_path as regularisation_path,
    )
    from attsvm.training.rules import Optimizer as Optimizer
    from attsvm.training.segments import Interrupted as Interrupted
    from attsvm.training.train import train as train
    from attsvm.training.weights import (
        Diagonal as Diagonal,
        FullWeight as FullWeight,
        KeyQuery as KeyQuery,
        MultiHead as MultiHead,
        Weight as Weight,
    )
