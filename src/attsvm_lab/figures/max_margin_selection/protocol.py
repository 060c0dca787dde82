"""Shared by the experiments of the paper: training of prompts by normalised steps, and the published loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import attsvm as att
from attsvm.numbers import Float
from attsvm_lab.figures.accuracy import digits
from attsvm_lab.figures.figure import RUN, Check
from attsvm_lab.figures.textbook import joint_gradient

PAPER = "Max-Margin Token Selection"
COST = f"{PAPER}, printed solver cost"
SCRIPT = "independent script of the published loop"
FROZEN = "the published loop adds a constant to the gradient's length and freezes; ours goes on"
RATE = 0.1


NORMALISED = att.steepest(att.frobenius, RATE)


def descend(
    tokens: att.Tokens,
    v: Float,
    record: Sequence[int],
    init: Any = None,
    loss: att.Loss = att.logistic,
    optimizer: Any = NORMALISED,
) -> att.Path:
    """Train the prompt, by default with normalised steps of 0.1, and record it at the steps of `record`."""
    head, steps = att.Linear(v), max(record)
    return att.train(tokens, head, loss=loss, optimizer=optimizer, steps=steps, init=init, record=record)


def with_and_without_constants(
    quantity: str, published: float, pair: tuple[Any, Any], decimals: int
) -> list[Check]:
    """A number of the published loop: ours with its constants, pair[0], and ours without them, pair[1]."""
    accuracy = digits(decimals)
    loop = Check(f"{quantity}, published loop", RUN, SCRIPT, published, pair[0], accuracy, item=quantity)
    return [loop, Check(quantity, RUN, SCRIPT, published, pair[1], accuracy, FROZEN, recipe=loop)]


def stack(problems: Sequence[att.Tokens]) -> att.Tokens:
    """Problems of one shape as the runs of one problem, so that one compiled program trains them."""
    arrays = {
        name: np.stack([getattr(problem, name) for problem in problems])
        for name in ("keys", "labels", "values")
    }
    return att.Tokens(arrays["keys"], labels=arrays["labels"], values=arrays["values"])


def published_loop(
    tokens: att.Tokens, head: Float, start: Float, steps: int, added: tuple[float, float | None]
) -> tuple[Float, Float]:
    """The loop of the published notebooks with the logistic loss: prompts and heads at every step.

        p ← p − 0.1 ∇_p/(‖∇_p‖ + a),     v ← v − 0.1 ∇_v/(‖∇_v‖ + b),     added = (a, b)

    b = None keeps the head. A parameter freezes once its gradient is smaller than its constant, so that its
    length stops growing. Tokens, head and start (…, d) may have a leading runs axis.
    Returns p (steps + 1, …, d) and v (steps + 1, …, c).
    """
    p, v = np.array(start, dtype=float), np.array(head, dtype=float)
    prompts, heads = [p], [v]
    for _ in range(steps):
        of_prompt, of_head = joint_gradient(tokens, p[..., None], v)
        p = p - _step(of_prompt[..., 0], added[0])
        v = v if added[1] is None else v - _step(of_head, added[1])
        prompts.append(p)
        heads.append(v)
    return np.array(prompts), np.array(heads)


def _step(slope: Float, added: float) -> Float:
    return np.asarray(RATE * slope / (np.linalg.norm(slope, axis=-1, keepdims=True) + added))
