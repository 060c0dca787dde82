"""What is known: the norm whose max-margin direction a training run tends to, and how well it is known."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal

import numpy as np

from attsvm.factored import Factored
from attsvm.max_norm import MaxNorm
from attsvm.norms import (
    Entrywise,
    Norm,
    RowWise,
    Schatten,
    frobenius,
    is_frobenius,
    l1,
    linf,
    nuclear,
    spectral,
)

Standing = Literal["theorem", "regularisation path only", "conjecture", "ours"]

TFSVM = "Tarzanagh et al. 2023, Transformers as Support Vector Machines"
FAST = "Vasudeva et al. 2024, Implicit Bias and Fast Convergence Rates for Self-attention"
MIRROR = "Julistiono et al. 2024, Optimizing Attention with Mirror Descent"
FLOW = "Sheen et al. 2024, Implicit Regularization of Gradient Flow on One-Layer Softmax Attention"
SPECTRAL = "Fan et al. 2025, Implicit Bias of Spectral Descent and Muon (proven for linear models)"
STEEPEST = "Gunasekar et al. 2018, Implicit Bias in Terms of Optimization Geometry (proven for linear models)"
HALVES = (
    "docs/law_of_halves.md, after Tsilivis et al. 2024, Flavors of Margin (proven for homogeneous models)"
)

ADAM = "Zhang et al. 2024, The Implicit Bias of Adam on Separable Data (proven for linear models, no eps)"
BATCHES = "Baek et al. 2025, arXiv 2510.26303 (proven for linear models)"
COMPOSED = "docs/choosing.md, three draws measured here, after docs/law_of_halves.md"
HEADS = "docs/choosing.md, several heads: measured here, a sum of programs"

CONE = "from a cone around a locally optimal direction, far from the origin, with small steps"
ORTHOGONAL = "equal losing scores and nearly orthogonal tokens"
FLOWING = "gradient flow, exponential loss, equal losing scores, a start aligned with the data"
WIDE = "rank at least min(n, d, e); below, the program bounds the margin from above only"
SMALL = "steps so short that lr² t stays small: a step moves W by lr times the length of the factors"

EACH = "every head reaches its own program, with a length in the ratio of 1/margin"
EQUAL = "every head reaches its own program, all with the same length"

HALF = "factors_reach_the"
TESTED: dict[Norm, str] = {
    frobenius: "momentum_keeps_the_frobenius_margin",
    linf: "sign_descent_maximises_the_max_norm_margin",
    spectral: "spectral_descent_maximises_the_spectral_margin",
    l1: "coordinate_descent_maximises_the_l1_margin",
}
"""The claims that test a conjecture of others, by the norm of the steps."""


class NoTheorem(LookupError):
    """No limit is known for this weight and optimizer; the message names the nearest known case."""


@dataclass(frozen=True)
class Limit:
    """The norm of the program that training tends to, how well that is known, and by whom.

    standing: "theorem"; "regularisation path only", a theorem on paths that says nothing on descent;
        "conjecture", of others; "ours", a conjecture of this package.
    hypotheses: what the statement needs besides separable tokens; claim: the claim that tests it, by name.
    """

    norm: Norm
    standing: Standing
    reference: str
    hypotheses: str = ""
    claim: str = ""

    def __str__(self) -> str:
        return f"{self.norm} ({self.standing}: {self.reference})"


def limit_norm(weight: Any, optimizer: Any, batch: Any = None) -> Limit:
    """The norm N for which W/N(W) tends to a max-margin direction.

    weight: FullWeight(), KeyQuery(), Diagonal(), DiagonalKeyQuery(), or Heads(count, weight), of which every
    head is compared by itself; optimizer: gd, steepest, mirror, polyak, adam; batch: as of train(), None for
    all examples. Diagonal weights are compared by the entrywise norm of their diagonal. Factors that are
    normalised together and apart (`separate`) have the same limit.
    `hypotheses` says what the statement needs, `claim` what tests it here.
    Raises NoTheorem where nothing is proven or conjectured.
    """
    from attsvm.training.compositional import Compositional
    from attsvm.training.holding import PerBlock
    from attsvm.training.optimizers import adapted
    from attsvm.training.rule import Optimizer
    from attsvm.training.rules import Adam, GradientDescent, Mirror, Polyak, Steepest
    from attsvm.training.weights import Diagonal, FullWeight, Heads, KeyQuery, check

    check(weight)
    if not is_dataclass(optimizer):  # a rule; what is neither that nor an optimizer is refused here
        adapted(optimizer)
    rule = optimizer.rule if isinstance(optimizer, Optimizer) else optimizer
    if isinstance(rule, PerBlock):  # factors apart: the same limit
        rule = rule.rule
    if batch is not None:
        return _of_batches(weight, rule)
    # Steps along the gradient itself, whatever their length, and without momentum.
    along = isinstance(rule, (GradientDescent, Polyak)) or (
        isinstance(rule, Steepest) and is_frobenius(rule.norm) and not np.any(rule.momentum)
    )
    if isinstance(rule, (Steepest, Adam, Compositional)) and np.any(rule.decay):
        raise NoTheorem(_bounded(weight, rule))
    match weight, rule:
        case Heads(), _:
            return _of_heads(weight, rule)
        case ((FullWeight() | Diagonal(depth=1)), Adam(eps=0.0)):
            return Limit(linf, "conjecture", ADAM)
        case ((FullWeight() | Diagonal(depth=1)), GradientDescent()):
            return Limit(frobenius, "theorem", TFSVM, CONE)
        case ((FullWeight() | Diagonal(depth=1)), _) if along:
            return Limit(frobenius, "theorem", FAST, ORTHOGONAL)
        case ((FullWeight() | Diagonal(depth=1)), Mirror()):
            known = not rule.normalised or rule.p == 2
            return Limit(Entrywise(rule.p), "theorem" if known else "conjecture", MIRROR, CONE)
        case Diagonal(depth=1), Steepest(norm=Schatten()):  # of a vector it is the length
            return Limit(frobenius, "conjecture", SPECTRAL)
        case Diagonal(depth=1), Steepest(norm=MaxNorm()):  # its largest entry
            return Limit(linf, "conjecture", SPECTRAL)
        case Diagonal(depth=1), Steepest(norm=RowWise()):  # whose rows are its entries
            return Limit(Entrywise(rule.norm.p), "conjecture", SPECTRAL)
        case ((FullWeight() | Diagonal(depth=1)), Steepest()):
            reference = SPECTRAL if isinstance(rule.norm, (Entrywise, Schatten)) else STEEPEST
            return Limit(rule.norm, "conjecture", reference, claim=TESTED.get(rule.norm, ""))
        case KeyQuery(), Compositional():
            return Limit(rule.norm, "ours", COMPOSED, f"{WIDE}; steps of W itself to first order")
        case KeyQuery(), _ if along:
            return Limit(nuclear, "regularisation path only", TFSVM, WIDE, f"{HALF}_nuclear_margin")
        case Diagonal(depth=2), _ if along:
            return Limit(l1, "theorem", FLOW, FLOWING, "diagonal_key_query_descent_tends_to_the_l1_direction")
        case ((KeyQuery() | Diagonal()), Steepest()) if not np.any(rule.momentum):
            limit = _halved(_factored(weight, rule.norm))
            if limit is not None:
                return limit
    steps = repr(rule) if is_dataclass(rule) else "an optimizer of optax"
    raise NoTheorem(f"no limit known for {weight!r} with {steps}. Nearest: {_nearest(weight, rule)}.")


def _of_batches(weight: Any, rule: Any) -> Limit:
    """Of mini-batches: Signum keeps its norm, Adam need not; of all others nothing is known."""
    from attsvm.training.rules import Steepest
    from attsvm.training.weights import FullWeight

    signs = isinstance(rule, Steepest) and rule.norm == linf
    if isinstance(weight, FullWeight) and signs and np.all(rule.momentum):
        return Limit(
            linf, "conjecture", BATCHES, "momentum near 1, small steps, every example once per epoch"
        )
    known = f"all examples at once → {limit_norm(weight, rule).norm}"
    raise NoTheorem(
        f"no limit known for mini-batches with {rule!r}. Nearest: {known}; of linear models, Adam at batch 1 "
        f"may tend to the Frobenius margin instead of l∞, while Signum keeps l∞ ({BATCHES})."
    )


def _of_heads(weight: Any, rule: Any) -> Limit:
    """Of several heads: a sum over heads is least where every term is; a maximum says of the hardest only."""
    from attsvm.training.compositional import Compositional
    from attsvm.training.rules import Adam, GradientDescent, Mirror, Steepest
    from attsvm.training.weights import Diagonal

    norm = frobenius
    if isinstance(rule, (Adam, Compositional, Steepest)):
        norm = getattr(rule, "norm", linf)  # Adam's steps are of one length in every entry, as those of l∞
    rows = isinstance(norm, RowWise) and isinstance(weight.weight, Diagonal)  # whose rows are its entries
    sums = isinstance(norm, Entrywise) or is_frobenius(norm) or rows
    if weight.norm == "concatenated" and not sums:
        raise NoTheorem(
            f"the {norm} norm of matrices side by side is no sum over heads: no program of one head is known "
            f'for {weight!r}. Nearest: norm="apart" → {limit_norm(weight.weight, rule).norm}.'
        )
    if weight.norm != "apart" and not norm.p < np.inf:
        raise NoTheorem(
            f"the {norm} norm over all heads is that of the longest: of the others no direction is known. "
            f'Nearest: norm="apart" → {limit_norm(weight.weight, rule).norm}.'
        )
    one = limit_norm(weight.weight, rule)
    # Where a step is not normalised, heads apart take those of heads together.
    free = isinstance(rule, GradientDescent) or (isinstance(rule, Mirror) and not rule.normalised)
    own = EACH if weight.norm != "apart" or free else EQUAL
    return Limit(one.norm, "ours", HEADS, "; ".join(filter(None, (own, one.hypotheses))))


def _factored(weight: Any, norm: Norm) -> Factored:
    """The norm of W = K Qᵀ, or of a product of diagonals, that one of its factors implies."""
    from attsvm.training.weights import Diagonal

    diagonal = isinstance(weight, Diagonal)
    return Factored(norm, weight.depth if diagonal else 2, diagonal)


def _halved(factored: Factored) -> Limit | None:
    """The law of halves, where the norm that it names is convex and known."""
    implied = factored.closed
    if implied is None:
        return None
    if factored.diagonal:
        claim = "lp_steps_on_diagonals_maximise_the_margin_of_half_p" if factored.factors == 2 else ""
        return Limit(implied, "ours", HALVES, SMALL, claim)
    if isinstance(implied, MaxNorm):
        return Limit(implied, "ours", HALVES, f"rank at least d + e; {SMALL}")
    named = {2: f"{HALF}_frobenius_margin", np.inf: f"{HALF}_spectral_margin"}
    return Limit(implied, "ours", HALVES, f"{WIDE}; {SMALL}", named.get(implied.p, ""))


def _bounded(weight: Any, rule: Any) -> str:
    """Why a weight that decays has no limit of its direction, and what is nearest."""
    from attsvm.training.weights import FullWeight

    nearest = f"without decay → {limit_norm(weight, replace(rule, decay=0.0)).norm}"
    if isinstance(weight, FullWeight) and not isinstance(rule.decay, tuple):
        norm = getattr(rule, "norm", linf)
        nearest += f"; the path of regularisation in {norm} at radius 1/decay = {1 / rule.decay:g}"
    return f"decay {rule.decay} bounds the weight: no limit of its direction is known. Nearest: {nearest}."


def _nearest(weight: Any, rule: Any) -> str:
    from attsvm.training.rules import Adam, Mirror, Steepest
    from attsvm.training.weights import Diagonal, KeyQuery

    if isinstance(rule, Adam):
        return "FullWeight with adam(lr, eps=0) → l∞; below eps its steps are those of gradient descent"
    if isinstance(weight, KeyQuery) or (isinstance(weight, Diagonal) and weight.depth > 1):
        if isinstance(rule, Steepest):
            implied = _factored(weight, rule.norm)
            # With momentum nothing is known of factors; without, a limit or why there is none.
            return f"FullWeight with the same steps → {rule.norm}; on the factors {implied.words}"
        if isinstance(rule, Mirror):
            return f"FullWeight with the same steps → {Entrywise(rule.p)}"
        if isinstance(weight, Diagonal) and weight.depth > 2:
            return f"on the factors {_factored(weight, frobenius).words}"
        return f"{type(weight).__name__} with gd → {'nuclear' if isinstance(weight, KeyQuery) else 'l1'}"
    return "FullWeight with gd or steepest(frobenius) → Frobenius"
