"""limit_norm(): the norm whose max-margin direction a training run tends to, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attsvm.comparison.hypotheses import (
    ARRIVED,
    CONE,
    EACH,
    EQUAL,
    FALLING,
    FIRST_ORDER,
    FULL,
    IN_BATCHES,
    JOINT,
    MAJORISED,
    MEASURED,
    OFFSETS,
    ORTHOGONAL,
    RANKS,
    SCHEDULE,
    SMALL,
    SQUARES,
    STARTS,
    WIDE,
    WIDE_FOR_ROWS,
    WIDE_HEADS,
    Facts,
    Hypotheses,
)
from attsvm.comparison.likeness import NEAR, is_torch, likeness
from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm, capabilities_of, frobenius, l1, linf, nuclear, spectral
from attsvm.norms.capabilities import changes_a_rule
from attsvm.norms.factored import Factored
from attsvm.norms.layouts import HeadLayout
from attsvm.norms.names import as_norm

Standing = Literal["theorem", "theorem for flows", "conjecture"]

TFSVM = "Tarzanagh et al. 2023, Transformers as Support Vector Machines"
FAST = "Vasudeva et al. 2024, Implicit Bias and Fast Convergence Rates for Self-attention"
MIRROR = "Julistiono et al. 2024, Optimizing Attention with Mirror Descent"
FLOW = "Sheen et al. 2024, Implicit Regularization of Gradient Flow on One-Layer Softmax Attention"
SPECTRAL = "Fan et al. 2025, Implicit Bias of Spectral Descent and Muon (proven for linear models)"
STEEPEST = "Gunasekar et al. 2018, Implicit Bias in Terms of Optimization Geometry (proven for linear models)"
PROOFS = "docs/law_of_halves_proofs.md"
HALVES = (
    "docs/law_of_halves.md, after Tsilivis et al. 2024, Flavors of Margin (proven for homogeneous models)"
)

ADAM = "Zhang et al. 2024, The Implicit Bias of Adam on Separable Data (proven for linear models, no eps)"
BATCHES = "Baek et al. 2025, arXiv 2510.26303 (proven for linear models)"
COMPOSED = "docs/choosing.md, a claim on fresh seeds, after docs/law_of_halves.md"
HEADS = "docs/choosing.md, several heads: measured here, a sum of programs"

PROOFS_OF_HEADS = "docs/heads_proofs.md"
HEADS_CLAIM = "muon_on_fused_heads_maximises_their_joint_margin"
"""The claim that tests the joint program."""

VALUES = "docs/lab/values_and_outputs.md"
OFFSET_CLAIM = "attention_beside_a_trained_head_follows_the_offset_program"

NEAREST = "FullWeight with gd or steepest(frobenius) → Frobenius"

CLAIMS: dict[Norm, str] = {
    frobenius: "momentum_keeps_the_frobenius_margin",
    linf: "sign_descent_maximises_the_max_norm_margin",
    spectral: "spectral_descent_maximises_the_spectral_margin",
    l1: "coordinate_descent_maximises_the_l1_margin",
}
"""The claims that test a conjecture of others, by the norm of the steps."""

CLAIMS_OF_FACTORS = {
    1: "factors_reach_the_nuclear_margin",
    2: "factors_reach_the_frobenius_margin",
    np.inf: "factors_reach_the_spectral_margin",
}
"""The claims that test the limits of K Qᵀ, by the p of the Schatten norm."""

ROWS_CLAIM = "row_steps_on_factors_maximise_the_max_norm_margin"


class NoTheorem(LookupError):
    """No limit is known for this weight and optimizer. The message names the nearest case with a limit."""


@dataclass(frozen=True)
class Limit:
    """The norm of the program that training tends to, how well that is known, and by whom.

    norm: or the name of one whose program is in attsvm_lab.programs.

    standing: "theorem", of the steps as they are; "theorem for flows", of steps that tend to zero in length;
        "conjecture", of others or of this package. A theorem may be proven by this package (`reference`).
    hypotheses: what the statement needs besides separable tokens, and how to check each. Their `holds` is
        filled for the tokens, the head and the run that limit_norm has.
    claim: the name of the claim that tests it.
    layout: of heads that a matrix of the optimizer joins, whose norm is a joint one.
    """

    norm: Norm | str
    standing: Standing
    reference: str
    hypotheses: Hypotheses = ()
    claim: str = ""
    layout: HeadLayout | None = None

    def __str__(self) -> str:
        false = [h.statement for h in self.hypotheses if h.holds is False]
        here = f"; does not hold here: {', '.join(false)}" if false else ""
        return f"{self.norm} ({self.standing}: {self.reference}{here})"


def limit_norm(
    weight: Any,
    optimizer: Any,
    batch: Any = None,
    *,
    train_head: Any = None,
    tokens: Tokens | None = None,
    head: Any = None,
    run: Path | None = None,
) -> Limit:
    """The norm N for which W/N(W) tends to a max-margin direction.

    weight: FullWeight(), KeyQuery(), Diagonal(depth), or MultiHead(count, weight). Heads that
        a matrix of the optimizer joins have one norm; others are compared each by itself.
    optimizer: gd, steepest, mirror, polyak, adam or compositional. One of optax or torch takes some steps on
        random gradients: if they are those of one of ours, its limit is stated as a conjecture.
    batch: as of train(), None for all examples.
    train_head: the optimizer of the head, as of train(). Then the norm is that of the offset program, whose
        label margins a path has: `attsvm_lab.programs.offset_program`.
    tokens, head, run: on which the hypotheses are tested: `limit.hypotheses` says which hold. The head is
        Linear(v) or v; the tokens are by default those of the run.

    Diagonal weights are compared by the entrywise norm of their diagonal. Factors that are normalised
    together and apart (`separate`) have the same limit.
    A schedule of the learning rate is evaluated at some hundred steps up to 2^27: a finite sum that shows
    later is not seen.
    `claim` says what tests the statement here.
    Raises NoTheorem where nothing is proven or conjectured; it names the nearest case.
    """
    from attsvm.training.optimizers import adapted
    from attsvm.training.schedules import no_limit
    from attsvm.training.weights import check

    check(weight)
    rule = _rule_of(optimizer)
    if rule is None and not (is_torch(optimizer) or hasattr(optimizer, "update")):
        adapted(optimizer)  # raises TypeError: it is no optimizer
    if rule is None:
        limit = _limit_by_likeness(weight, optimizer, batch)
    else:
        rule = _canonical_rule(weight, rule)
        if not _unmodified(weight, rule):
            raise NoTheorem(
                f"no limit known for {weight!r} with {rule!r}. Nearest: {_nearest(weight, rule)}."
            )
        lr = getattr(rule, "lr", 1.0)
        fault = no_limit(lr)
        if fault:
            nearest = _with_its_limit("constant steps", weight, replace(rule, lr=0.1))
            raise NoTheorem(f"{fault}: no limit is known. Nearest: {nearest}.")
        limit = _limit(weight, rule) if batch is None else _limit_of_batches(weight, rule)
        if callable(lr) and SCHEDULE[0] not in limit.hypotheses:  # of several heads one has stated it already
            limit = replace(limit, hypotheses=limit.hypotheses + SCHEDULE)
    if train_head is not None:
        limit = _beside_a_head(limit, weight, train_head)
    tokens = run.tokens if tokens is None and run is not None else tokens
    facts = Facts(weight, rule, tokens, getattr(head, "v", head), run)
    if run is not None and run.heads is not None:  # each head has hypotheses of its own
        facts = Facts(weight, rule, tokens)
    return replace(limit, hypotheses=tuple(hypothesis.on(facts) for hypothesis in limit.hypotheses))


def _rule_of(optimizer: Any) -> Any:
    """The rule of an optimizer of ours; None of any other, and of a class made from ours."""
    from attsvm.training import rules

    ours = (
        rules.Adam,
        rules.Compositional,
        rules.GradientDescent,
        rules.Mirror,
        rules.Polyak,
        rules.Steepest,
    )
    if type(optimizer) is rules.Optimizer:
        return _rule_of(optimizer.rule)
    if type(optimizer) is rules.PerBlock:  # every array by itself: the same rule
        return _rule_of(optimizer.rule)
    if type(optimizer) is rules.Foreign:
        return _rule_of(optimizer.optimizer)
    return optimizer if type(optimizer) in ours else None


def _limit_by_likeness(weight: Any, optimizer: Any, batch: Any) -> Limit:
    """The limit of the known optimizer that takes the same steps on random gradients."""
    from attsvm.training.rules import Adam, GradientDescent, Steepest

    name = type(optimizer).__name__
    try:
        measured = likeness(optimizer)
    except ValueError as error:
        raise NoTheorem(
            f"no limit known for {weight!r} with {name}: {error}. Nearest: {_nearest(weight, optimizer)}."
        ) from None
    rule: Any = Adam(0.1, measured.momentum, measured.squares or 0.0, 0.0)
    if measured.squares is None:
        rule = Steepest(as_norm(measured.steps), 0.1, measured.momentum)
        if measured.call == "gd(lr)":
            rule = GradientDescent(0.1)
    if not measured.same:
        near = _with_its_limit(measured.call, weight, rule)
        nearest = near if measured.cosine >= NEAR else _nearest(weight, optimizer)
        raise NoTheorem(f"no limit known for {weight!r} with {name}: it {measured}. Nearest: {nearest}.")
    limit = limit_norm(weight, rule, batch)
    reference = f"{name} {measured}; twin: {measured.call}; {limit.reference}"
    hypotheses = (*MEASURED, *limit.hypotheses, *SCHEDULE)
    return replace(limit, standing="conjecture", reference=reference, hypotheses=hypotheses)


def _beside_a_head(limit: Limit, weight: Any, train_head: Any) -> Limit:
    """The limit where the head is trained along, by normalised steps of its own: the offset program."""
    from attsvm.training.rules import Steepest
    from attsvm.training.weights import FullWeight

    rule = _rule_of(train_head)
    steps = rule if isinstance(rule, Steepest) and not isinstance(rule.norm, tuple) else None
    if steps is None or np.any(steps.momentum) or np.any(steps.decay) or limit.layout is not None:
        raise NoTheorem(
            f"no limit known for {weight!r} with a head trained by {train_head!r}: label margins and margins "
            "of attention must grow alike. Nearest: train_head=steepest(frobenius, lr) → the offset program "
            f"in {limit.norm}."
        )
    proven = isinstance(weight, FullWeight) and steps.norm == frobenius and limit.standing != "conjecture"
    standing: Standing = "theorem for flows" if proven else "conjecture"
    hypotheses = OFFSETS + limit.hypotheses
    return replace(limit, standing=standing, reference=VALUES, hypotheses=hypotheses, claim=OFFSET_CLAIM)


def _limit(weight: Any, rule: Any) -> Limit:
    """The table of limits, for a weight and a rule that are exactly ours."""
    from attsvm.training.rules import Adam, Compositional, GradientDescent, Mirror, Polyak, Steepest
    from attsvm.training.weights import Diagonal, FullWeight, KeyQuery, MultiHead

    # Steps along the gradient itself, whatever their length, and without momentum.
    along_gradient = isinstance(rule, (GradientDescent, Polyak)) or (
        isinstance(rule, Steepest) and rule.norm == frobenius and not np.any(rule.momentum)
    )
    if isinstance(rule, (Steepest, Adam, Compositional)) and np.any(rule.decay):
        raise NoTheorem(_why_decay_has_no_limit(weight, rule))
    if isinstance(rule, Polyak) and np.any(np.greater_equal(rule.factor, 2)):
        raise NoTheorem(
            f"Polyak's step with factor {rule.factor} may ascend: no limit is known from 2 on. "
            f"Nearest: {_with_its_limit('polyak()', weight, Polyak())}."
        )
    norms: Any = getattr(rule, "norm", None)
    factors = 2 if isinstance(weight, KeyQuery) else getattr(weight, "depth", 0)
    if isinstance(norms, tuple) and len(norms) != factors:
        raise NoTheorem(
            f"{len(norms)} norms are for {len(norms)} factors, which {weight!r} has not. Pass one norm."
        )
    match weight, rule:
        case MultiHead(), _:
            return _limit_of_heads(weight, rule)
        case ((FullWeight() | Diagonal(depth=1)), Adam(eps=0.0)):
            if np.any(np.greater(rule.b1, rule.b2)):
                raise NoTheorem(
                    f"Adam with b1 = {rule.b1} above b2 = {rule.b2}: {ADAM} needs b1 ≤ b2. "
                    "Nearest: adam(lr, b1, b2, eps=0) with b1 ≤ b2 → l∞."
                )
            return Limit(linf, "conjecture", ADAM, FALLING)
        case ((FullWeight() | Diagonal(depth=1)), GradientDescent()):
            return Limit(frobenius, "theorem", TFSVM, CONE)
        case ((FullWeight() | Diagonal(depth=1)), _) if along_gradient:
            return Limit(frobenius, "theorem", FAST, ORTHOGONAL)
        case ((FullWeight() | Diagonal(depth=1)), Mirror()):
            standing: Standing = "conjecture" if rule.normalised else "theorem"
            return Limit(Entrywise(rule.p), standing, MIRROR, CONE)
        case FullWeight(), Steepest() if capabilities_of(norms).acts_on == "rows":
            raise NoTheorem(
                f"steps in the {norms} norm on W maximise the margin in it ({PROOFS}, Theorem 1), but it has "
                f"no program here: no limit is named. Nearest: {NEAREST}; on K and Q LongestRow() → max-norm."
            )
        case ((FullWeight() | Diagonal(depth=1)), Steepest()) if not np.any(rule.momentum):
            return _proven(rule, norms, "Theorem 1", (), CLAIMS.get(norms, ""))
        case ((FullWeight() | Diagonal(depth=1)), Steepest()):
            proven_linear = capabilities_of(norms).acts_on in ("entries", "singular values")
            return Limit(norms, "conjecture", SPECTRAL if proven_linear else STEEPEST)
        case KeyQuery(), Compositional():
            return Limit(rule.norm, "conjecture", COMPOSED, WIDE + FIRST_ORDER)
        case KeyQuery(), _ if along_gradient:
            return _proven(rule, nuclear, "Theorems 1 and 2", FULL + WIDE, CLAIMS_OF_FACTORS[1])
        case Diagonal(depth=2), _ if along_gradient and not (isinstance(rule, Steepest) and weight.separate):
            claim = "diagonal_key_query_descent_tends_to_the_l1_direction"
            return _for_flows(l1, f"Theorem 4; for aligned starts {FLOW}", STARTS, claim)
        case ((KeyQuery() | Diagonal()), Steepest()) if not np.any(rule.momentum):
            limit = _law_of_halves(weight, rule)
            if limit is not None:
                return limit
    raise NoTheorem(f"no limit known for {weight!r} with {rule!r}. Nearest: {_nearest(weight, rule)}.")


# ---------------------------------------------------------------------- which rule it is


def _canonical_rule(weight: Any, rule: Any) -> Any:
    """One rule for all rules that take the same steps, so that one algorithm has one limit."""
    from attsvm.training.rules import Adam, GradientDescent, Mirror, Steepest
    from attsvm.training.weights import Diagonal

    if type(rule) is Mirror and rule.p == 2:  # the potential ‖W‖²/2, whose gradient is W
        rule = Steepest(frobenius, rule.lr) if rule.normalised else GradientDescent(rule.lr)
    if type(rule) is Adam and not (np.any(rule.b1) or np.any(rule.b2) or np.any(rule.eps)):
        rule = Steepest(linf, rule.lr, 0.0, rule.decay)
    if type(rule) is Steepest:
        rule = replace(rule, norm=_canonical_norm(rule.norm, type(weight) is Diagonal and weight.depth == 1))
    return rule


def _canonical_norm(norm: Any, vector: bool) -> Any:
    """One norm for all norms that are equal, on matrices or on a single vector."""
    if isinstance(norm, tuple):
        return tuple(_canonical_norm(one, vector) for one in norm)
    traits = capabilities_of(norm)
    if vector and traits.on_column is not None:
        return traits.on_column
    return frobenius if traits.euclidean else norm


def _unmodified(weight: Any, rule: Any) -> bool:
    """Whether the weight is ours, and the norm no class that changes one of ours."""
    from attsvm.training.weights import OURS, MultiHead

    inner = weight.weight if type(weight) is MultiHead else weight
    norm = getattr(rule, "norm", frobenius)
    return type(inner) in OURS and not changes_a_rule(norm)


def _with_its_limit(words: str, weight: Any, rule: Any) -> str:
    """What words describe and its limit, or the reason why it has none."""
    try:
        return f"{words} → {limit_norm(weight, rule).norm}"
    except NoTheorem as reason:
        return f"{words}, of which: {str(reason).removesuffix('.')}"


# ---------------------------------------------------------------------- batches, heads, factors


def _limit_of_batches(weight: Any, rule: Any) -> Limit:
    """The limit with mini-batches. Signum keeps its norm, Adam may not; for other rules nothing is known."""
    from attsvm.training.rules import Steepest
    from attsvm.training.weights import FullWeight

    signs = isinstance(rule, Steepest) and rule.norm == linf
    if isinstance(weight, FullWeight) and signs and np.all(rule.momentum) and not np.any(rule.decay):
        return Limit(linf, "conjecture", BATCHES, IN_BATCHES)
    nearest = f"all examples at once → {limit_norm(weight, rule).norm}"
    raise NoTheorem(
        f"no limit known for mini-batches with {rule!r}. Nearest: {nearest}; of linear models, Adam in "
        f"batches tends to adam_margin of attsvm_lab.programs on W, while Signum keeps l∞ ({BATCHES})."
    )


def _limit_of_heads(weight: Any, rule: Any) -> Limit:
    """The limit of several heads.

    A norm that is a sum over heads is least where every head solves its own program. A norm that is the
    maximum over heads determines only the head of the largest norm.
    """
    from attsvm.training.rules import Adam, Compositional, GradientDescent, Mirror, Steepest
    from attsvm.training.weights import Diagonal

    norm = frobenius
    if isinstance(rule, (Adam, Compositional, Steepest)):
        norm = getattr(rule, "norm", linf)  # Adam's steps have one length in every entry, as those of l∞
    traits = capabilities_of(norm)
    rows_are_entries = traits.acts_on == "rows" and isinstance(weight.weight, Diagonal)
    is_sum = traits.acts_on == "entries" or traits.euclidean or rows_are_entries
    if isinstance(weight.norm, HeadLayout) or (weight.norm == "concatenated" and not is_sum):
        return _limit_of_layout(weight, rule)
    if weight.norm != "apart" and not norm.p < np.inf:
        if isinstance(rule, Steepest) and traits.acts_on == "singular values":
            return _limit_of_layout(weight, rule)
        raise NoTheorem(
            f"the {norm} norm over all heads is that of the longest: of the others no direction is known. "
            f'Nearest: norm="apart" → {limit_norm(weight.weight, rule).norm}.'
        )
    of_one_head = limit_norm(weight.weight, rule)
    # Steps that are not normalised are the same for heads apart and for heads together.
    unnormalised = isinstance(rule, GradientDescent) or (isinstance(rule, Mirror) and not rule.normalised)
    lengths = EACH if weight.norm != "apart" or unnormalised else EQUAL
    return Limit(of_one_head.norm, "conjecture", HEADS, lengths + of_one_head.hypotheses)


def _limit_of_layout(weight: Any, rule: Any) -> Limit:
    """The limit of heads that the optimizer takes in matrices: the joint program of all of them."""
    from attsvm.training.rules import GradientDescent, Polyak, Steepest

    of_one_head = limit_norm(weight.weight, rule)  # raises for decay, and for momentum on factors
    steps: Any = frobenius if isinstance(rule, (GradientDescent, Polyak)) else None
    if isinstance(rule, Steepest):
        steps = rule.norm
    layout = _layout_of(weight)
    if layout is None or not _joins_heads(layout, steps):
        raise NoTheorem(
            f"no norm of all heads is known for {weight!r} with {rule!r}. "
            f'Nearest: norm="apart" → {of_one_head.norm}.'
        )
    norm = f"norm of heads under {steps} steps on {layout}"
    if not layout.of_factors:
        stated = JOINT + of_one_head.hypotheses
        return Limit(
            norm, of_one_head.standing, f"{PROOFS_OF_HEADS}, Theorems 2 and 3", stated, layout=layout
        )
    conditions = ARRIVED + JOINT + WIDE_HEADS + SMALL
    if steps.p < np.inf and layout == HeadLayout.fused(layout.heads):
        conditions += RANKS
        proofs = f"{PROOFS_OF_HEADS}, Theorems 2 and 4"
        return Limit(norm, "theorem for flows", proofs, conditions, HEADS_CLAIM, layout)
    proofs = f"{PROOFS_OF_HEADS}, Theorem 2: KKT points"
    return Limit(norm, "conjecture", proofs, conditions, HEADS_CLAIM, layout)


def _joins_heads(layout: HeadLayout, steps: Any) -> bool:
    """Whether a joint norm is known: on factors for Schatten(p) steps from p = 2 on, on W for every norm."""
    if not isinstance(steps, Norm):
        return False
    traits = capabilities_of(steps)
    return not layout.of_factors or traits.euclidean or (traits.acts_on == "singular values" and steps.p >= 2)


def _layout_of(weight: Any) -> HeadLayout | None:
    """The layout of the matrices that the optimizer of several heads takes as one."""
    from attsvm.training.weights import FullWeight, KeyQuery

    if isinstance(weight.norm, HeadLayout):
        return weight.norm
    heads, factors = weight.count, isinstance(weight.weight, KeyQuery)
    if not factors and not isinstance(weight.weight, FullWeight):
        return None
    if weight.norm == "concatenated":
        return HeadLayout.fused(heads) if factors else HeadLayout.weights(heads)
    return HeadLayout.stacked(heads) if factors else HeadLayout(tuple(((f"W{h}",),) for h in range(heads)))


def _implied_norm(weight: Any, norm: Norm | tuple[Norm, ...]) -> Factored:
    """The norm of W = K Qᵀ, or of a product of diagonals, that a norm of the factors implies."""
    from attsvm.training.weights import Diagonal

    diagonal = isinstance(weight, Diagonal)
    return Factored(norm, weight.depth if diagonal else 2, diagonal)


def _law_of_halves(weight: Any, rule: Any) -> Limit | None:
    """The limit by the law of halves; None where the implied norm is unknown or not convex."""
    factored = _implied_norm(weight, rule.norm)
    if factored.named:
        return _proven(rule, factored.named, "Theorems 1 and 2", MAJORISED + WIDE_FOR_ROWS, ROWS_CLAIM)
    implied = factored.closed
    if implied is None:
        return None
    traits = capabilities_of(implied)
    if factored.diagonal:
        claim = "lp_steps_on_diagonals_maximise_the_margin_of_half_p" if factored.factors == 2 else ""
        if _is_lp_of_two_diagonals(weight, rule.norm):
            return _for_flows(implied, "Theorem 4", STARTS, claim)
        if (
            factored.factors > 2
        ):  # Theorem 8 is about two factors: the error of a step grows with their number
            return _for_flows(implied, "Theorems 1 and 2", FULL, claim)
        return _proven(rule, implied, "Theorems 1 and 2", FULL, claim)
    if traits.acts_on != "singular values":  # a norm that somebody states: its KKT points are not known
        return Limit(implied, "conjecture", HALVES, WIDE + SMALL)
    if isinstance(factored.norm, tuple):
        claim = "two_norms_of_the_factors_lead_to_their_harmonic_sum"
    else:
        claim = CLAIMS_OF_FACTORS.get(implied.p, "") if implied.p in (2, np.inf) else ""
    return _proven(rule, implied, "Theorems 1 and 2", FULL + WIDE, claim)


def _is_lp_of_two_diagonals(weight: Any, norm: Any) -> bool:
    """Whether steps on k and q together are steepest in lp, p < ∞: Theorem 4 conserves |k|^p* − |q|^p*."""
    lp = not isinstance(norm, tuple) and capabilities_of(norm).acts_on == "entries" and norm.p < np.inf
    return lp and weight.depth == 2 and not weight.separate


def _for_flows(norm: Norm | str, theorems: str, hypotheses: Hypotheses, claim: str = "") -> Limit:
    """A limit that is proven for the flow only."""
    stated = ARRIVED + hypotheses + SMALL
    return Limit(norm, "theorem for flows", f"{PROOFS}, {theorems}", stated, claim)


def _proven(rule: Any, norm: Norm | str, theorems: str, hypotheses: Hypotheses, claim: str = "") -> Limit:
    """A limit that is proven for the flow, and by Theorem 8 for shrinking steps and for plain descent."""
    from attsvm.training.rules import GradientDescent
    from attsvm.training.schedules import squares_sum

    plain = isinstance(rule, GradientDescent)
    if not plain and not squares_sum(getattr(rule, "lr", None)):
        return _for_flows(norm, theorems, hypotheses, claim)
    stated = ARRIVED + hypotheses + (() if plain else SQUARES)
    return Limit(norm, "theorem", f"{PROOFS}, {theorems}, for steps Theorem 8", stated, claim)


def _why_decay_has_no_limit(weight: Any, rule: Any) -> str:
    """The message for a weight that decays: its direction has no limit, and what is nearest."""
    from attsvm.training.weights import FullWeight

    try:
        nearest = f"without decay → {limit_norm(weight, replace(rule, decay=0.0)).norm}"
    except NoTheorem as reason:
        nearest = f"without decay, of which: {str(reason).removesuffix('.')}"
    if isinstance(weight, FullWeight) and not isinstance(rule.decay, tuple):
        norm = getattr(rule, "norm", linf)
        nearest += f"; the path of regularisation in {norm} at radius 1/decay = {1 / rule.decay:g}"
    return f"decay {rule.decay} bounds the weight: no limit of its direction is known. Nearest: {nearest}."


def _nearest(weight: Any, rule: Any) -> str:
    """The nearest case with a limit, as words of a message."""
    from attsvm.training.rules import Adam, Mirror, Steepest
    from attsvm.training.weights import Diagonal, KeyQuery

    if isinstance(rule, Adam):
        return "FullWeight with adam(lr, eps=0) → l∞; below eps its steps are those of gradient descent"
    if isinstance(weight, KeyQuery) or (isinstance(weight, Diagonal) and weight.depth > 1):
        if isinstance(rule, Steepest):
            # No limit of factors is known with momentum: the words are those of the steps without it.
            implied = _implied_norm(weight, rule.norm)
            return f"FullWeight with the same steps → {rule.norm}; on the factors {implied.words}"
        if isinstance(rule, Mirror):
            return f"FullWeight with the same steps → {Entrywise(rule.p)}"
        if isinstance(weight, Diagonal) and weight.depth > 2:
            return f"on the factors {_implied_norm(weight, frobenius).words}"
        return "KeyQuery with gd → nuclear" if isinstance(weight, KeyQuery) else "Diagonal(2) with gd → l1"
    return NEAREST
