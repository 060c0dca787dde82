"""What is proven: the norm whose max-margin direction a training run tends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from attsvm.norms import Entrywise, Norm, frobenius, l1, nuclear

Standing = Literal["theorem", "regularisation path only", "conjecture"]

TFSVM = "Tarzanagh et al. 2023, Transformers as Support Vector Machines"
FAST = "Vasudeva et al. 2024, Implicit Bias and Fast Convergence Rates for Self-attention"
MIRROR = "Julistiono et al. 2024, Optimizing Attention with Mirror Descent"
FLOW = "Sheen et al. 2024, Implicit Regularization of Gradient Flow on One-Layer Softmax Attention"
SPECTRAL = "Fan et al. 2025, Implicit Bias of Spectral Descent and Muon (proven for linear models)"


class NoTheorem(LookupError):
    """No limit is known for this weight and optimizer; the message names the nearest known case."""


@dataclass(frozen=True)
class Limit:
    """The norm of the program that training tends to, how well that is known, and by whom."""

    norm: Norm
    standing: Standing
    reference: str

    def __str__(self) -> str:
        return f"{self.norm} ({self.standing}: {self.reference})"


def limit_norm(weight: Any, optimizer: Any) -> Limit:
    """The norm N for which W/N(W) tends to a max-margin direction.

    weight: FullWeight(), KeyQuery(), Diagonal(), DiagonalKeyQuery(); optimizer: gd, steepest, mirror,
    polyak. Diagonal weights are compared by the same entrywise norm of their diagonal.
    Raises NoTheorem where nothing is proven or conjectured.
    """
    from attsvm.training.rules import GradientDescent, Mirror, Optimizer, Polyak, Steepest
    from attsvm.training.weights import Diagonal, DiagonalKeyQuery, FullWeight, KeyQuery

    rule = optimizer.rule if isinstance(optimizer, Optimizer) else optimizer
    # Steps along the gradient itself, whatever their length, and without momentum.
    along = isinstance(rule, (GradientDescent, Polyak)) or (
        isinstance(rule, Steepest) and rule.norm.p == 2 and not rule.momentum
    )
    match weight, rule:
        case ((FullWeight() | Diagonal()), GradientDescent()):
            return Limit(frobenius, "theorem", TFSVM)
        case ((FullWeight() | Diagonal()), _) if along:
            return Limit(frobenius, "theorem", FAST)
        case ((FullWeight() | Diagonal()), Mirror()):
            known = not rule.normalised or rule.p == 2
            return Limit(Entrywise(rule.p), "theorem" if known else "conjecture", MIRROR)
        case ((FullWeight() | Diagonal()), Steepest()):
            return Limit(rule.norm, "conjecture", SPECTRAL)
        case KeyQuery(), _ if along:
            return Limit(nuclear, "regularisation path only", TFSVM)
        case DiagonalKeyQuery(), _ if along:
            return Limit(l1, "theorem", FLOW)
    raise NoTheorem(f"no limit known for {weight!r} with {optimizer!r}. Nearest: {_nearest(weight, rule)}.")


def _nearest(weight: Any, rule: Any) -> str:
    from attsvm.training.rules import Mirror, Steepest
    from attsvm.training.weights import DiagonalKeyQuery, KeyQuery

    if isinstance(weight, (KeyQuery, DiagonalKeyQuery)):
        if isinstance(rule, Steepest):
            return f"FullWeight with the same steps → {rule.norm}"
        if isinstance(rule, Mirror):
            return f"FullWeight with the same steps → {Entrywise(rule.p)}"
        return f"{type(weight).__name__} with gd → {'nuclear' if isinstance(weight, KeyQuery) else 'l1'}"
    return "FullWeight with gd or steepest(frobenius) → Frobenius"
