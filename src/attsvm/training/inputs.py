"""The arguments of train(), checked in one place and kept in one record, which all later steps trust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm._support.validation import as_integer, describe, is_finite, is_integer
from attsvm.data.equal_keys import merged, without_shared_entries
from attsvm.data.path import Path
from attsvm.data.token_checks import sizes
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.norms.layouts import HeadLayout
from attsvm.numbers.stored import COPY_LIMIT, Stored
from attsvm.training import (
    attention as mechanisms,
    batches,
    prediction_heads as heads,
    resume as resuming,
    runs,
    weights,
)
from attsvm.training.attention import Mechanism, Softmax
from attsvm.training.batches import Batches
from attsvm.training.init import starting_point
from attsvm.training.losses import Loss
from attsvm.training.optimizers import adapted, needs_excess, over_heads, per_block
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.rules import Rule, per_run
from attsvm.training.types import AnyArray, Floats, OptimizerLike, Steps, Tree
from attsvm.training.weights import MultiHead, Weight

MOST_STEPS = 2**53
"""Records are log-spaced in float64, which counts no further."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is trained, how, and from where.

    original: the tokens of the path; tokens: the same with equal keys merged, and without entries of the keys
        that all tokens of an example share.
    start: parameters, head and seed of mini-batches, all with the runs axis; runs: its length, or None.
    recorded: steps (k,), among them 0 and the last; taken: steps of the path to resume, −1 without one.
    batch: None where every step takes all examples. description: see resume.described.
    """

    original: Tokens
    tokens: Tokens
    weight: Weight
    attention: Mechanism
    loss: Loss
    rules: tuple[Rule, Rule | None]
    start: tuple[Tree, Head, AnyArray]
    runs: int | None
    recorded: Steps
    batch: Batches | None
    tolerance: float | None
    resume: Path | None
    taken: int
    description: dict[str, str]

    @property
    def trains_head(self) -> bool:
        return self.rules[1] is not None


def checked_inputs(
    tokens: Tokens,
    head: Head,
    *,
    weight: Weight,
    attention: Mechanism,
    loss: Loss | None,
    optimizer: OptimizerLike,
    steps: int,
    init: Any,
    record: int | Sequence[int],
    batch: Batches | None,
    train_head: OptimizerLike,
    tolerance: float | None,
    resume: Path | None,
) -> Inputs:
    """The arguments of train(); raises where they are wrong or do not fit together."""
    original = in_place(as_tokens(tokens))
    steps, record = as_integer(steps), as_integer(record)
    weights.check(weight)
    mechanisms.check(attention)
    tokens = merged(original, weights.reached(weight, original.queries))
    if isinstance(attention, Softmax):  # whose weights stay where all logits of an example move alike
        tokens = without_shared_entries(tokens)
    head = heads.checked(head, tokens, weight.count if isinstance(weight, MultiHead) else None)
    rules = _rules(optimizer, train_head, weight)
    if needs_excess(rules[0]):
        heads.check_best_loss(head, tokens)
    loss = heads.loss_of(head, loss, tokens)
    check_size(tokens, np.asarray(head.v) if isinstance(head, Linear) and train_head is None else None)
    if train_head is not None and not isinstance(head, Linear):
        raise ValueError(f"train_head trains the head Linear(v), got {type(head).__name__}.")
    recorded = record_steps(steps, record)
    taken = -1 if resume is None else resuming.taken_steps(resume, original, steps, init)
    batch = batches.of_examples(batch, tokens.n)
    params = starting_point(weight, init, (tokens.d, tokens.e), tokens.keys.dtype)
    axes = {name: len(shape) for name, shape in weight.shapes(tokens.d, tokens.e).items()}
    head_arrays, head_axes = heads.arrays(head)
    counts = {"tokens": tokens.runs, "resume": None if resume is None else resume.runs}
    counts |= {f"optimizer {name}": n for rule in rules for name, n in per_run(rule).items()}
    counts |= {"batch seed": None if batch is None else batch.runs}
    counts |= {f"init {name}": n for name, n in runs.counts(params, axes).items()}
    counts |= {f"head {name}": n for name, n in runs.counts(head_arrays, head_axes).items()}
    count = runs.common(counts)
    description = resuming.described(weight, loss, head, rules, batch, attention)
    if resume is not None:
        resuming.check_description(resume, description)
    start = (
        runs.repeated(params, axes, count),
        heads.with_arrays(head, runs.repeated(head_arrays, head_axes, count)),
        batches.seeds(batch, count),
    )
    limit = _tolerance(tolerance)
    return Inputs(
        original,
        tokens,
        weight,
        attention,
        loss,
        rules,
        start,
        count,
        recorded,
        batch,
        limit,
        resume,
        taken,
        description,
    )


def in_place(tokens: Tokens) -> Tokens:
    """Tokens as training reads them: large files stay files; small ones, and a GPU's, come into memory."""
    stored = [x for x in (tokens.keys, tokens.values) if isinstance(x, Stored)]
    files = all(type(x) is Stored for x in stored)
    return tokens if files and sum(x.size for x in stored) > COPY_LIMIT else tokens.in_memory()


def check_size(tokens: Tokens, v: Floats | None, units: Any = None) -> None:
    """Refuse tokens whose gradient, a product of keys, queries and scores, no number can hold.

    It would be zero, and the run "saturated", or infinite and "diverged". v: of a linear head; units: powers
    of two by which keys and queries are divided before, in float64.
    """
    values, limits = tokens.key_size, np.finfo(tokens.keys.dtype if units is None else np.float64)
    if tokens.values is not tokens.keys:  # stored values are not read for this check
        values = np.ones(1) if isinstance(tokens.values, Stored) else sizes(tokens.values, tokens.mask)
    key_unit, query_unit = (0, 0) if units is None else units
    with np.errstate(divide="ignore"):
        head = 0.0 if v is None else np.log2(np.abs(v).max())
        keys, queries, scores = (
            np.log2(x.astype(float)) for x in (tokens.key_size, tokens.query_size, values)
        )
    exponents = [keys - key_unit, queries - query_unit, scores + head]
    power = sum(exponents).max()  # −∞ where all are zero, which has no gradient at any scale
    smallest = min(x.max() for x in (*exponents, scores))  # devices flush subnormal numbers to zero
    small = power < limits.minexp + limits.nmant or smallest < limits.minexp
    if power >= limits.maxexp or (-np.inf < power and small):
        reached = ", ".join(f"2^{x.max():.0f}" for x in exponents)
        raise ValueError(
            f"keys, queries and scores reach {reached}: they or their product, as a gradient has it, are "
            f"beyond {limits.dtype}. Divide each of them by its size."
        )


def record_steps(steps: int, record: int | Sequence[int]) -> Steps:
    """The recorded steps: 0, the last one, and log-spaced or given ones between."""
    if not (is_integer(steps) and 1 <= steps <= MOST_STEPS):
        raise ValueError(f"steps is {describe(steps)}. Pass a positive integer, 2⁵³ at most.")
    if isinstance(record, (int, np.integer)):
        if isinstance(record, bool) or record < 1:
            raise ValueError(f"record is {record}. Pass a positive count, or a sequence of steps.")
        inner = np.geomspace(steps, 1, max(int(record) - 1, 1)).round()
    else:
        inner = np.asarray(record)
        if inner.ndim != 1 or (inner.size and not np.issubdtype(inner.dtype, np.integer)):
            raise ValueError("record is neither a count nor a sequence of integer steps.")
        if inner.size and not (inner.min() >= 0 and inner.max() <= steps):
            raise ValueError(f"record asks for steps {inner.min()}…{inner.max()}. Pass steps in 0…{steps}.")
    return np.unique(np.concatenate([[0, steps], inner]).astype(np.int64))


# ---------------------------------------------------------------------- details


def _tolerance(tolerance: object) -> float | None:
    if tolerance is None:
        return None
    if not (is_finite(tolerance) and 0 < tolerance < 1):
        raise ValueError(f"tolerance is {tolerance!r}. Pass a number in (0, 1), such as 1e-8, or None.")
    return float(tolerance)


def _rules(optimizer: OptimizerLike, train_head: OptimizerLike, weight: Weight) -> tuple[Rule, Rule | None]:
    """The rules of the weight and of the head, if that is trained."""
    of_weight = adapted(optimizer)
    of_head = None if train_head is None else adapted(train_head)
    if isinstance(weight, MultiHead):
        of_weight = over_heads(of_weight, weight.norm)
        of_head = None if of_head is None else over_heads(of_head, "joint")
    one_norm = not isinstance(getattr(of_weight.rule, "norm", None), tuple)  # several normalise apart anyway
    by_matrix = isinstance(getattr(weight, "norm", None), HeadLayout)  # each is normalised by itself
    if getattr(weight, "separate", False) and one_norm and not by_matrix:
        of_weight = per_block(of_weight)
    return of_weight.rule, None if of_head is None else of_head.rule
