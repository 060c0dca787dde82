"""What the experiments of the paper share: the prompt model, normalised steps of 0.1, and its loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import attsvm as att
from attsvm.figures.accuracy import digits
from attsvm.figures.figure import RUN, Check
from attsvm.figures.textbook import joint_gradient
from attsvm.numbers import Float

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
    """Train the prompt, by default with normalised steps of 0.1, and keep it at the steps of `record`."""
    head, steps = att.Linear(v), max(record)
    return att.train(tokens, head, loss=loss, optimizer=optimizer, steps=steps, init=init, record=record)


def beside(what: str, given: float, pair: tuple[Any, Any], decimals: int) -> list[Check]:
    """A number of the published loop, which we find with its constants, and what it is without them."""
    known = digits(decimals)
    loop = Check(f"{what}, published loop", RUN, SCRIPT, given, pair[0], known, item=what)
    return [loop, Check(what, RUN, SCRIPT, given, pair[1], known, FROZEN, recipe=loop)]


def stack(problems: Sequence[att.Tokens]) -> att.Tokens:
    """Problems of one shape as the runs of one, so that they train in one compiled program."""
    parts = {
        name: np.stack([getattr(one, name) for one in problems]) for name in ("keys", "labels", "values")
    }
    return att.Tokens(parts["keys"], labels=parts["labels"], values=parts["values"])


def published_loop(
    tokens: att.Tokens, head: Float, start: Float, steps: int, added: tuple[float, float | None]
) -> tuple[Float, Float]:
    """The loop of the published notebooks with the logistic loss: prompts and heads at every step.

        p ← p − 0.1 ∇_p/(‖∇_p‖ + a),     v ← v − 0.1 ∇_v/(‖∇_v‖ + b),     added = (a, b)

    b = None keeps the head. The constants freeze a parameter once its gradient falls below them, which
    is why these lengths stop growing. A runs axis may lead everywhere: tokens, head and start (…, d).
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
