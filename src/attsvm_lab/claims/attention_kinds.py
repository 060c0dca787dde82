"""Kinds of attention: which keep a max-margin direction, where nothing diverges, and what becomes of sinks.

A gate and a learnt sink are softmax attention on other tokens, and sigmoid attention is one linear classifier
of tokens: each has a program. Entmax stops at a finite weight. Normalised queries and keys diverge by their
gain alone, and not at all where it is fixed.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab.attention_kinds import (
    Entmax,
    Gated,
    LearntSink,
    QueryKeyNorm,
    Sigmoid,
    gain,
    log_weights,
    open_and_closed,
    train,
    weights as weights_of,
    with_sink,
)
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import equal_losers, first_tokens
from attsvm_lab.experiment import solved

N, T, D = 4, 5, 10
STEPS = 5_000
LR, ADAM_LR = 0.1, 0.02
KINDS: dict[str, Any] = {
    "softmax": None,
    "learnt sink": LearntSink(),
    "gated": Gated(),
    "sigmoid": Sigmoid(),
    "entmax 1.5": Entmax(),
    "QK-norm": QueryKeyNorm(),
    "QK-norm, gain 8": QueryKeyNorm(8.0),
}
RULES: dict[str, tuple[Any, Any]] = {
    "GD": (att.steepest(att.frobenius, LR), att.frobenius),
    "Muon": (att.steepest(att.spectral, LR), att.spectral),
    "Adam": (att.adam(ADAM_LR, eps=0.0), att.linf),
    "Adam, b2 0.9": (att.adam(ADAM_LR, b2=0.9, eps=0.0), att.linf),
}
"""Each optimizer and the norm in which it is judged. GD is normalised, Muon has the exact polar factor."""
ours = partial(claim, "attsvm", "derived")
_NORM = "the optimizer's own norm: judged in l∞"


def trained(kind: str, rule: str, tokens: att.Tokens, v: Float, steps: int = STEPS) -> att.Path:
    """A run of one kind of attention from zero, or K and Q from uniform(0)."""
    weight = att.KeyQuery() if kind.startswith("QK") else att.FullWeight()
    optimizer = RULES[rule][0]
    head, record = att.Linear(v), [steps // 2]
    return train(
        tokens, head, attention=KINDS[kind], weight=weight, optimizer=optimizer, steps=steps, record=record
    )


def share(kind: str, tokens: att.Tokens, path: att.Path, norm: att.Norm, program: str = "") -> float:
    """The margin of the last weight over the best of the kind's program, in a norm of all that is trained.

    program: another kind's program in place of its own.
    """
    W, kind = path.final, program or kind
    if kind in ("softmax", "entmax 1.5"):
        return float(att.margin_ratio(path, solved(tokens, first_tokens(tokens), norm))[-1])
    if kind == "learnt sink":
        both = with_sink(tokens, both_signs=True)
        best_margin = float(solved(both, first_tokens(both), norm).margin)
        return _least(both, first_tokens(both), W) / float(norm.value(W)) / best_margin
    if kind == "gated":
        # Open best over closed best asks u alone, open best over open others W alone: two programs.
        attention = solved(tokens, first_tokens(tokens), norm)
        gate = solved(_against_zero(tokens.queries), [0] * tokens.n, norm)
        best = _joined(norm, 1 / float(attention.margin), 1 / float(gate.margin))
        size = _joined(norm, float(norm.value(W[:-1])), float(norm.value(W[-1:].T)))
        doubled = open_and_closed(tokens)
        return _least(doubled, first_tokens(doubled), W) / size * best
    rows = each_token(tokens)
    solution = solved(rows, (rows.values[..., 0] > 0).argmax(1), norm)
    return _least(rows, rows.values[..., 0] > 0, W) / float(norm.value(W)) / float(solution.margin)


def each_token(tokens: att.Tokens) -> att.Tokens:
    """Examples {x_t, 0} with the query of the token's example: x_t wins where its score is positive."""
    keys = np.stack([tokens.keys, np.zeros_like(tokens.keys)], -2).reshape(-1, 2, tokens.d)
    scores = np.where(tokens.values[..., 0] > 0, 1.0, -1.0)
    values = np.stack([scores, -scores], -1).reshape(-1, 2, 1)
    return att.Tokens(keys, np.repeat(tokens.queries, tokens.T, 0), values=values)


def _against_zero(vectors: Float) -> att.Tokens:
    return att.Tokens(np.stack([vectors, np.zeros_like(vectors)], 1))


def _joined(norm: att.Norm, *sizes: float) -> float:
    """The norm of a block-diagonal matrix, or of a vector of entries, from those of its parts."""
    return float(np.linalg.norm(sizes) if norm == att.frobenius else max(sizes))


def least_gap(path: att.Path, selected: Bool) -> float:
    """The least gap of log-weights of selected tokens to the others at the end; infinite at weight zero."""
    last = log_weights(path)[-1]
    winner = np.where(selected, last, -np.inf).max(1, keepdims=True)
    return float((winner - last)[~selected].min())


def _least(tokens: att.Tokens, selected: Bool, W: Float) -> float:
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    winner = np.where(selected, logits, -np.inf).max(1)
    return float((winner[:, None] - logits)[~selected].min())


@lru_cache(maxsize=32)
def _run(kind: str, rule: str, seed: int) -> tuple[att.Tokens, att.Path]:
    tokens, v = equal_losers(N, T, D, seed)
    if kind == "sigmoid":  # a token of score zero pulls nothing
        tokens = att.Tokens(tokens.keys, tokens.queries, values=2 * tokens.values - 1)
    return tokens, trained(kind, rule, tokens, v)


# ---------------------------------------------------------------------- which keep a direction


@ours(removed=_NORM, twin={"norm": att.linf})
def a_gate_joins_the_max_margin_program_of_attention(
    seed: int, norm: Any = None, rule: str = "GD"
) -> Verdict:
    """Attention with a gate on its output, σ(uᵀz) Σ s_t value_t, is softmax attention on every token open and
    closed: gradient descent maximises the joint margin of W and u.

    Equal losing scores 0, best score 1, so that every gate shall open. Normalised GD on W and u together,
    5,000 steps of 0.1. Wanted: share of the best joint margin ≥ 0.98, where the program splits into that of W
    and that of u. The twin judges the run in l∞.
    """
    return _judged("gated", rule, norm, seed, 0.98)


@ours(removed=_NORM, twin={"norm": att.linf})
def a_learnt_sink_is_one_more_token_of_the_program(seed: int, norm: Any = None, rule: str = "GD") -> Verdict:
    """With a learnt sink, softmax over the tokens and a logit b that is trained, gradient descent maximises
    the margin over all losing tokens and the sink, in the norm of W and b together.

    Setting as for the gate. Wanted: share ≥ 0.98. The twin judges the run in l∞.
    """
    return _judged("learnt sink", rule, norm, seed, 0.98)


@ours(
    removed="the program of tokens one by one: that of softmax, best token against the others",
    twin={"program": "softmax"},
)
def sigmoid_attention_maximises_the_margin_of_every_token_alone(
    seed: int, norm: Any = None, rule: str = "GD", program: str = ""
) -> Verdict:
    """With sigmoid weights σ(x_tᵀWz), gradient descent maximises min_it sign(γ_it) x_tᵀWz: every token is
    pushed away from the logit zero, and none is compared with another.

    Best score 1, the others −1. Normalised GD, 5,000 steps of 0.1. Wanted: share of the best margin ≥ 0.98.
    The twin takes softmax's program in place of this one.
    """
    return _judged("sigmoid", rule, norm, seed, 0.98, program)


@ours(removed="Muon's norm: judged in l∞", twin={"norm": att.linf})
def muon_keeps_its_norm_under_a_gate_and_a_sink(seed: int, norm: Any = None) -> Verdict:
    """Under a gate, a learnt sink and sigmoid weights, Muon maximises the margin in the spectral norm of all
    that is trained, as it does under softmax.

    Exact polar factors, W and gate or sink as one block-diagonal matrix, 5,000 steps of 0.1. Wanted: share of
    each ≥ 0.95. The twin judges all in l∞.
    """
    shares = [
        share(kind, *_run(kind, "Muon", seed), norm or att.spectral)
        for kind in ("gated", "learnt sink", "sigmoid")
    ]
    return judge(
        "Muon keeps its norm",
        *(
            at_least(f"share, {kind}", x, 0.95)
            for kind, x in zip(("gate", "sink", "sigmoid"), shares, strict=True)
        ),
    )


def _judged(kind: str, rule: str, norm: Any, seed: int, least: float, program: str = "") -> Verdict:
    tokens, path = _run(kind, rule, seed)
    norm = norm or RULES[rule][1]
    ratio = share(kind, tokens, path, norm, program)
    return judge(f"{kind}: the margin is the best", at_least(f"{norm} share", ratio, least))


# ---------------------------------------------------------------------- where nothing diverges


@ours(removed="entmax: softmax attention", twin={"kind": "softmax"})
def entmax_attention_stops_at_a_finite_weight(seed: int, kind: str = "entmax 1.5") -> Verdict:
    """With entmax of exponent 1.5 a run ends at a finite W, where every best token leads by two or more: no
    gradient is left, and no margin is maximised after that.

    Equal losing scores, normalised GD, at most 5,000 steps of 0.1. Wanted: the last step changes nothing
    ("saturated"), the least gap is at least 2 and at most 2.5. The twin is softmax.
    """
    tokens, path = _run(kind, "GD", seed)
    gap = _least(tokens, first_tokens(tokens), path.final)
    return judge(
        "entmax stops",
        at_least("1 where the run is saturated", float(path.stopped == "saturated"), 1),
        at_least("least gap of logits", gap, 2),
        at_most("least gap of logits", gap, 2.5),
        reported("share of the best margin", share(kind, tokens, path, att.frobenius)),
    )


@ours(removed="a gain that is trained: it is 8", twin={"kind": "QK-norm, gain 8"})
def normalised_queries_and_keys_diverge_by_their_gain(seed: int, kind: str = "QK-norm") -> Verdict:
    """Where queries and keys are divided by their lengths, the loss falls to its infimum only by a gain that
    grows; with a fixed gain g logits stay below g, and the loss stays above it by e^(−2g) at least.

    Equal losing scores, K and Q from uniform(0), normalised GD, 5,000 steps of 0.1. Wanted: the gain ends
    above 30, and log(L − L*) below −30. The twin fixes the gain at 8.
    """
    _, path = _run(kind, "GD", seed)
    return judge(
        "the gain diverges",
        at_least("gain", gain(path)[-1], 30),
        at_most("log(L − L*)", path.log_excess[-1], -30),
    )


# ---------------------------------------------------------------------- sinks

SILENT = 4
"""Rows that shall say nothing; as many others have a token that helps."""


def silent_rows(seed: int) -> tuple[att.Tokens, Float]:
    """Rows whose tokens all harm but the first, BOS, which has the same key in all rows and value zero.

    In the other rows token 1 helps, and BOS and the others have score zero.
    """
    drawn, _ = att.datasets.sphere(2 * SILENT, T, D, seed=seed)
    keys = drawn.keys.copy()
    keys[:, 0] = np.eye(D)[0]
    scores = np.zeros((2 * SILENT, T))
    scores[:SILENT, 1:], scores[SILENT:, 1] = -1, 1
    return att.Tokens(keys, drawn.queries, values=scores[..., None]), np.ones(1)


def sinks(kind: str, path: att.Path) -> dict[str, float]:
    """Mean weights in silent rows: of BOS, of the tokens that harm, and of what the kind has besides."""
    weights = weights_of(path)[-1, :SILENT]
    if kind == "gated":
        open_, closed = weights[:, :T], weights[:, T:]
        inside = (open_ + closed)[:, 0]  # the softmax before the gate
        return {"BOS": inside.mean(), "harm": open_[:, 1:].sum(1).mean(), "besides": closed.sum(1).mean()}
    besides = weights[:, T:].sum(1).mean() if kind == "learnt sink" else 0.0
    return {"BOS": weights[:, 0].mean(), "harm": weights[:, 1:T].sum(1).mean(), "besides": float(besides)}


@lru_cache(maxsize=32)
def silent_run(kind: str, rule: str, seed: int) -> att.Path:
    return trained(kind, rule, *silent_rows(seed))


@ours(removed="sigmoid weights: softmax, whose weights add up to one", twin={"kind": "softmax"})
def sigmoid_attention_needs_no_sink(seed: int, kind: str = "sigmoid") -> Verdict:
    """Rows that shall say nothing turn all their harmful tokens off and leave BOS where it was, at ½; under
    softmax BOS takes everything.

    Eight rows, four silent, normalised GD, 5,000 steps of 0.1. Wanted: harmful weight ≤ 0.01 in silent rows,
    weight of BOS ≤ 0.9. The twin is softmax.
    """
    weights = sinks(kind, silent_run(kind, "GD", seed))
    return judge(
        "no sink",
        at_most("weight of the tokens that harm", weights["harm"], 0.01),
        at_most("weight of BOS", weights["BOS"], 0.9),
    )


@ours(removed="entmax: softmax, which never reaches one", twin={"kind": "softmax"})
def an_entmax_sink_is_whole(seed: int, kind: str = "entmax 1.5") -> Verdict:
    """Under entmax BOS has weight one exactly in silent rows, at a finite weight: a sink without divergence.

    Wanted: 1 − weight of BOS = 0, ‖W‖ ≤ 60. The twin is softmax.
    """
    path = silent_run(kind, "GD", seed)
    weights = sinks(kind, path)
    return judge(
        "BOS is all",
        at_most("1 − weight of BOS", 1 - weights["BOS"], 1e-12),
        at_most("‖W‖", float(np.linalg.norm(path.final)), 60),
    )
