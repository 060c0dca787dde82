"""Trained attention also orders tokens that no sentence of the corpus compares.

"Non-asymptotic Convergence of Training Transformers for Next-token Prediction", dataset shift.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREY, label
from attsvm_lab.claims.next_token import corpus_of, ordered_share
from attsvm_lab.figures.accuracy import exactly, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, Arrays, Check, scales
from attsvm_lab.figures.next_token.two_stages import KINDS, embeddings
from attsvm_lab.figures.papers import NEXT_TOKEN

ROLES = (att.next_token.Role.optimal, att.next_token.Role.non_comparable, att.next_token.Role.non_optimal)


@NEXT_TOKEN.figure(
    "extended-order",
    "Attention extends the order of its corpus",
    shows=(
        "Trained attention ranks every token of the vocabulary: optimal above non-comparable above "
        "non-optimal, also pairs that never met in a sentence. With orthonormal tokens the very first "
        "step does so; for random ones a quarter of the order is never found."
    ),
    sizes=scales(corpora=(1, 3, 20), steps=(2_000, 5_000, 200_000)),
    seconds=10,
)
def experiment(corpora: int, steps: int) -> Arrays:
    """Share of pairs in the extended order (corpora, k), for both kinds of embeddings; logits by role."""
    shares: dict[str, list[Float]] = {kind: [] for kind in KINDS}
    ranked: dict[str, list[Float]] = {role.name: [] for role in ROLES}
    for seed in range(corpora):
        corpus = corpus_of(seed)
        for kind, E in embeddings(seed).items():
            path = att.next_token.train_two_stages(corpus, E, steps=(1_000, steps)).attention
            shares[kind].append(np.array([ordered_share(corpus, W, E) for W in path.W]))
            if kind == "orthonormal":
                logits = path.final / np.linalg.norm(path.final)
                for role, values in _by_role(corpus, logits).items():
                    ranked[role].append(values)
    arrays: Arrays = {f"share_{kind}": np.stack(values) for kind, values in shares.items()}
    arrays |= {f"logits_{role}": np.concatenate(values) for role, values in ranked.items()}
    return arrays | {"steps": path.index}


def _by_role(corpus: att.next_token.Corpus, logits: Float) -> dict[str, Float]:
    """Logits xᵀ W q of all tokens of each role under each query of the corpus."""
    roles = att.next_token.Priorities.of(corpus).roles
    return {role.name: logits.T[roles == role] for role in ROLES}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The share of ordered pairs over training, and the logits of each role at its end."""
    figure, ((order, roles),) = grid(1, 2, 3.0)
    steps = arrays["steps"][1:]
    for kind, color in KINDS.items():
        middle = band(order, steps, arrays[f"share_{kind}"][:, 1:], color)
        label_end(order, steps[-1], middle[-1], f"{kind}\ntokens", color)
    order.set(xscale="log", ylim=(None, 1.005))
    describe(order, "pairs in the extended order", "iterations of stage 2", "share of pairs ordered right")
    groups = [arrays[f"logits_{role.name}"] for role in ROLES]
    bodies: Any = roles.violinplot(groups, showextrema=False, widths=0.8)["bodies"]
    for body in bodies:
        body.set(facecolor=BLUE, alpha=0.35, edgecolor=BLUE)
    roles.axhline(0, color=GREY, lw=0.8)
    label(roles, 2, 0, "exactly 0", BLUE, ha="center", va="bottom", textcoords="offset points", xytext=(0, 3))
    roles.set_xticks([1, 2, 3], ["optimal", "non-\ncomparable", "non-\noptimal"])
    logit = "$x^\\top W_{kq}\\,q\\,/\\,\\Vert W_{kq}\\Vert$"
    describe(roles, "logits of all tokens x under a query q", "role of x under q", logit)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The share of pairs in the extended order: all for orthonormal embeddings, not all for random ones."""
    shares = {kind: float(np.median(arrays[f"share_{kind}"][:, -1])) for kind in KINDS}
    zero = float(np.abs(arrays["logits_non_comparable"]).max())
    nearly = within(1e-3, "one pair in a thousand may still be crossing")
    no_gradient = within(1e-9, "orthonormal tokens that no sentence compares get no gradient")
    broken = float(shares["random"] < 1 - nearly.tolerance)
    statement = "share of pairs ordered right, orthonormal tokens"
    return [
        Check(statement, CONJECTURED, SOURCE, 1.0, shares["orthonormal"], nearly),
        Check("random tokens break the extended order", DERIVED, CONTROL, 1.0, broken, exactly("yes or no")),
        Check("largest logit of a non-comparable token", DERIVED, "closed form", 0.0, zero, no_gradient),
    ]


SOURCE = "Huang et al. 2024, generalisation under dataset shift"
CONTROL = "the theorem asks for (nearly) orthonormal tokens"
