"""What statements about a limit need, and whether it holds on given tokens, a head and a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from attsvm.comparison.kkt import kkt_point
from attsvm.data.path import Path
from attsvm.data.selection import equal_losing_scores, locally_optimal, scores
from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable

SHORT = 1.0
"""lr² t up to which steps follow the flow: Muon on K and Q has 99 percent of the margin at 1, 83 at 20."""

MOST = 4000
"""Tokens of all examples up to which their products are computed."""


class Facts(NamedTuple):
    """What hypotheses are tested on; v is the linear head, and None stands for what is not known."""

    weight: Any
    rule: Any
    tokens: Tokens | None = None
    v: Any = None
    run: Path | None = None


@dataclass(frozen=True)
class Hypothesis:
    """One hypothesis of a limit; as a string with the answer, or with how to check it.

    how: how to check it.
    holds: whether it holds on the tokens, the head and the run of `limit_norm`; None where that is not known.
    """

    statement: str
    how: str
    test: Callable[[Facts], bool | None] | None = field(default=None, repr=False, compare=False)
    holds: bool | None = None

    def on(self, facts: Facts) -> Hypothesis:
        """The hypothesis with its answer."""
        return self if self.test is None else replace(self, holds=self.test(facts))

    def __str__(self) -> str:
        answer = {True: "holds", False: "does not hold", None: self.how}[self.holds]
        return f"{self.statement} ({answer})"


# ---------------------------------------------------------------------- tests


def _starts_in_a_cone(facts: Facts) -> bool | None:
    """False if the run starts at zero, at other tokens than it ends at, or at no locally optimal ones."""
    run, v = facts.run, facts.v
    if run is None:
        return None
    start = run.W[..., :1, :, :]
    if not start.any((-2, -1)).all() or (run.changed(W=start).selected != run.selected).any():
        return False
    try:
        solution = max_margin(run.tokens, run.selected)
    except NotSeparable:
        return False
    local = v is None or np.all(locally_optimal(run.tokens, v, solution))
    return None if local else False  # the radius of the theorem is not known


def _has_equal_losing_scores(facts: Facts) -> bool | None:
    if facts.tokens is None or facts.v is None:
        return None
    return bool(np.all(equal_losing_scores(facts.tokens, facts.v)))


def _is_nearly_orthogonal(facts: Facts) -> bool | None:
    """False if the products of a token with all others sum to more than its square."""
    if facts.tokens is None or facts.tokens.n * facts.tokens.T > MOST:
        return None
    tokens = facts.tokens.in_memory()
    keys = np.where(tokens.mask[..., None], tokens.keys, 0.0)
    flat = keys.reshape(*keys.shape[:-3], -1, keys.shape[-1])
    products = np.abs(flat @ np.swapaxes(flat, -1, -2))
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    # The factor of the theorem, above one, is not known.
    return False if (products.sum(-1) - squares > squares).any() else None


def _losers_score_lower(facts: Facts) -> bool | None:
    run, v = facts.run, facts.v
    if run is None or v is None:
        return None
    gamma, selected = scores(run.tokens, v), run.selected
    lowest = np.where(selected, gamma, np.inf).min(-1)
    highest = np.where(selected, -np.inf, gamma).max(-1)
    return bool((highest < lowest).all())


def _is_wide(facts: Facts) -> bool | None:
    rank, tokens = getattr(facts.weight, "rank", None), facts.tokens
    if rank is None:  # max(d, e)
        return True
    return None if tokens is None else rank >= min(tokens.n, tokens.d, tokens.e)


def _spans_d_and_e(facts: Facts) -> bool | None:
    rank, tokens = getattr(facts.weight, "rank", None), facts.tokens
    return None if tokens is None else rank is not None and rank >= tokens.d + tokens.e


def _ends_at_a_limit(facts: Facts) -> bool | None:
    run = facts.run
    if run is None or run.runs is not None or facts.v is None or facts.rule is None:
        return None
    weight = facts.weight if hasattr(facts.weight, "depth") else None
    try:
        point = kkt_point(run, facts.v, steps=getattr(facts.rule, "norm", frobenius), weight=weight)
    except ValueError:  # no program for these steps
        return None
    return {"limit": True, "stop": False}.get(point.status)


def _has_short_steps(facts: Facts) -> bool | None:
    lr = getattr(facts.rule, "lr", None)
    if facts.run is None or not isinstance(lr, float):
        return None
    return bool(lr**2 * facts.run.index[-1] <= SHORT)


# ---------------------------------------------------------------------- the hypotheses

Hypotheses = tuple[Hypothesis, ...]

CONE: Hypotheses = (
    Hypothesis(
        "a start in a cone around a locally optimal direction, far from the origin",
        "a run that starts at zero or at other tokens refutes it; the theorem's radius is not known",
        _starts_in_a_cone,
    ),
    Hypothesis("small steps", "lr at most one over the Lipschitz constant of the gradient"),
)
ORTHOGONAL: Hypotheses = (
    Hypothesis("equal losing scores", "equal_losing_scores(tokens, v)", _has_equal_losing_scores),
    Hypothesis(
        "nearly orthogonal tokens",
        "products of a token with all others that sum to more than its square refute it",
        _is_nearly_orthogonal,
    ),
)
ARRIVED: Hypotheses = (
    Hypothesis(
        "losing tokens that score lower than the selected ones", "scores(tokens, v)", _losers_score_lower
    ),
    Hypothesis("a loss that is small at one time", "docs/law_of_halves_proofs.md says how small"),
)
WIDE: Hypotheses = (
    Hypothesis(
        "rank at least min(n, d, e): below, the program bounds the margin from above only",
        "weight.rank",
        _is_wide,
    ),
)
WIDE_FOR_ROWS: Hypotheses = (Hypothesis("rank at least d + e", "weight.rank", _spans_d_and_e),)
STARTS: Hypotheses = (
    Hypothesis("a converging direction with unique multipliers", "the path's last records; kkt_point"),
    Hypothesis("no |k_j| = |q_j| at the start", "the init of the run"),
)
FULL: Hypotheses = (
    Hypothesis(
        "condition (*) at the limit, which holds at full rank: the multipliers have no part outside the used "
        "directions, or for the nuclear norm and l1 none that is larger than inside",
        "kkt_point(run, head, steps=norm)",
        _ends_at_a_limit,
    ),
)
MAJORISED: Hypotheses = (
    Hypothesis(
        "diag(a) and diag(b) of the KKT point majorise the multipliers: [[diag a, M], [Mᵀ, diag b]] ⪰ 0",
        "kkt_point(run, head, steps=norm)",
        _ends_at_a_limit,
    ),
)
SMALL: Hypotheses = (
    Hypothesis(
        "steps so short that lr² t stays small: a step moves W by lr times the length of the factors",
        f"lr² steps ≤ {SHORT:g}",
        _has_short_steps,
    ),
)
LOOKED_AT = "at some hundred steps up to 2^27 it does: what shows later is not seen"
SQUARES: Hypotheses = (Hypothesis("the squares of the steps sum to a finite number", LOOKED_AT),)
SCHEDULE: Hypotheses = (
    Hypothesis("steps lr(k) > 0 that do not sum to a finite number", LOOKED_AT),
    Hypothesis("steps that are small against the sum before them", "lr(k)"),
)
FALLING: Hypotheses = (
    Hypothesis("b1 ≤ b2", "limit_norm raises NoTheorem otherwise", lambda facts: True),
    Hypothesis("steps that fall to zero and do not sum to a finite number", "lr(k)"),
)
FIRST_ORDER: Hypotheses = (Hypothesis("steps of W itself to first order", "short steps"),)
IN_BATCHES: Hypotheses = (
    Hypothesis("momentum near 1", "the momentum of the rule"),
    Hypothesis("small steps", "the lr of the rule"),
    Hypothesis("every example once per epoch", 'Batches(order="shuffled"), the default'),
)
JOINT: Hypotheses = (
    Hypothesis(
        "the margin is that of all heads, in one norm of all",
        "max_margin_of_heads of attsvm_lab.programs solves its program, with norm "
        "HeadsNorm(limit.layout, steps)",
    ),
)
WIDE_HEADS: Hypotheses = (
    Hypothesis("factors as wide as the heads' ranks, stacked ones as their sum", "the ranks of the heads"),
)
RANKS: Hypotheses = (
    Hypothesis(
        "sums of Gram matrices of full rank, and heads of the rank of their multipliers",
        "kkt_point(run, head, of_head=h)",
    ),
)
EACH: Hypotheses = (
    Hypothesis(
        "every head reaches its own program, with a length in the ratio of 1/margin",
        "run.norm(), run.head(h)",
    ),
)
EQUAL: Hypotheses = (
    Hypothesis("every head reaches its own program, all with the same length", "run.norm(), run.head(h)"),
)
OFFSETS: Hypotheses = (
    Hypothesis(
        "the margin is that of the offset program, in which each example has its label margin over N(W)",
        "offset_program of attsvm_lab.programs",
    ),
    Hypothesis("exponential or logistic loss", "the loss of train()"),
    Hypothesis("attention saturates", "run.least_attention()"),
    Hypothesis("the labels of the selected tokens are separable", "max_margin of the labels"),
)
MEASURED: Hypotheses = (
    Hypothesis(
        "the same steps at every weight, and at every gradient however small",
        "measured on random gradients of length one, and at two weights",
    ),
)
