"""The soft-margin program: its price C checked, brought to the units of the rows, and solved per run."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.norms import Norm
from attsvm.numbers import Float
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.program import working_set
from attsvm.program.constraints import Constraints, in_range
from attsvm.program.engine import Answer, on_vectors
from attsvm.program.runs import each_run
from attsvm.program.second_look import second_look_soft
from attsvm.tokens import Tokens, per_example

PROBE = 2
"""Rows per unknown in the first pool of keys that are stored elsewhere."""

RANGE = 200
"""Binary exponents of C, in the units of the rows, between which the algorithm works.

Below, all examples fall short and W is proportional to C; above, a margin that can be had is had.
"""


def as_slack(tokens: Tokens, slack: ArrayLike | None) -> Float | None:
    """Check the price C of falling short: one number, or one per example (n,); ∞ for all is None."""
    if slack is None:
        return None
    checked = per_example(tokens, "slack", slack)
    if np.isnan(checked).any() or (checked < 0).any():
        raise ValueError("slack must be ≥ 0: the price C of one unit that an example falls short.")
    if np.isposinf(checked).all():
        return None
    if np.isposinf(checked).any():
        raise ValueError(
            "slack is infinite for some examples only. Pass a finite C for each, or slack=None "
            "for the program without slack."
        )
    return checked


def solve_soft(program: Constraints, norm: Norm, slack: Float) -> tuple[Float, Float]:
    """W (…, d, e) and multipliers (…, n, T) of the soft-margin program, in the units of the tokens."""
    if on_vectors(program, norm).p != 2:
        raise ValueError(f"slack needs the Frobenius (l2) norm but norm is {norm}. Pass norm=frobenius.")
    if program.runs is None:
        return _solve_one(program, slack)
    each = in_threads(lambda run: _solve_one(*run), list(each_run(program, slack)))
    W, multipliers = zip(*each, strict=True)
    return np.stack(W), np.stack(multipliers)


def _solve_one(program: Constraints, slack: Float) -> tuple[Float, Float]:
    """In the units of the rows C and the multipliers are 2^(exponent − unit) times those of the tokens."""
    from attsvm.program.frobenius import soft_margin

    up = program.exponent - program.unit
    # Where C is out of range its exponent is moved there: the weight below is exactly proportional.
    size = int((np.frexp(slack)[1] + up)[slack > 0].max(initial=0))
    raised = max(-RANGE - size, 0)
    scaled = np.minimum(np.ldexp(slack, np.clip(up + raised, -2000, 2000)), 2.0**RANGE)
    with single_thread(), np.errstate(all="ignore"):
        answer = (
            _on_pools(program, scaled) if program.stored else soft_margin.solve(program, scaled)
        ).finite()
    W, multipliers = answer.W, answer.multipliers
    W = in_range("W", W, program.unit - raised)
    answer = Answer(W, in_range("multipliers", multipliers, -(up + raised)[:, None]))
    if not raised:
        answer = second_look_soft(program, slack, scaled, answer)
    return answer.W, answer.multipliers


def _on_pools(program: Constraints, slack: Float) -> Answer:
    """The answer where the keys stay elsewhere, from pools of rows in memory; slack in units of the rows.

    What an example falls short in the pool is paid for, and no violation of its other rows.
    """
    from attsvm.program.frobenius import soft_margin

    slacks, chosen = working_set.Slacks(program), program.tied | working_set.first(program, PROBE)
    answer = Answer(np.zeros((program.d, program.e)), np.zeros(chosen.shape))
    for _ in range(working_set.ROUNDS):
        pool, example, token = program.some(chosen)
        found = soft_margin.solve(pool, slack[example])
        multipliers, live = np.zeros(chosen.shape), pool.active
        multipliers[example.repeat(live.sum(1)), token[live]] = found.multipliers[live]
        answer, allowed = Answer(found.W, multipliers), np.zeros(program.n)
        short = np.where(pool.separating, pool.bound - pool.margins(found.W), 0.0)
        allowed[example] = short.max(1, initial=0.0)
        new = slacks.worst(found.W, allowed=allowed).outside(chosen, program.n)
        if not len(new.example):
            break
        chosen[new.example, new.token] = True
    return answer
