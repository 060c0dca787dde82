"""The soft-margin program: its price C brought to the units of the rows, and solved per run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.norms import Norm, frobenius, is_frobenius
from attsvm.numbers import Float
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.program import working_set
from attsvm.program.certificate import proportional
from attsvm.program.constraints import Constraints, in_range
from attsvm.program.engine import Answer, on_vectors
from attsvm.program.runs import each_run, joined
from attsvm.program.second_look import second_look_soft
from attsvm.program.working_set import few_of_each

WHOLE_KEYS = 1 << 18
"""Entries of the keys up to which the first pool has every row (2 MB)."""

PROBE = 2
"""Rows per unknown in the first pool of others."""

RANGE = 200
"""Binary exponent of C, in the units of the rows, above which a margin that can be had is had."""


def solve_soft(program: Constraints, norm: Norm, slack: Float) -> Answer:
    """The answer of the soft-margin program, of all runs, in the units of the tokens; slack (…, n): C."""
    if not is_frobenius(on_vectors(program, norm)):
        raise ValueError(f"slack needs the Frobenius (l2) norm but norm is {norm}. Pass norm=frobenius.")
    if program.runs is None:
        return _solve_one(program, slack)
    return joined(in_threads(lambda run: _solve_one(*run).as_batch(), list(each_run(program, slack))))


def _solve_one(program: Constraints, slack: Float) -> Answer:
    """In the units of the rows C and the multipliers are 2^(exponent − unit) times those of the tokens."""
    from attsvm.program.frobenius.soft_margin import SoftMargin

    up = program.exponent - program.unit
    raised = int(proportional(program, slack))
    scaled = np.minimum(np.ldexp(slack, np.clip(up + raised, -2000, 2000)), 2.0**RANGE)
    priced = replace(program, price=scaled)
    with single_thread(), np.errstate(all="ignore"):
        chosen = program.active if program.keys.size <= WHOLE_KEYS else few_of_each(program, PROBE)
        engine = SoftMargin(int(program.m))
        found = working_set.solve_on_pools(priced, frobenius, engine, chosen).finite()
    W = in_range("W", found.W, program.unit - raised)
    answer = Answer(W, in_range("multipliers", found.multipliers, -(up + raised)[:, None]))
    return answer if raised else second_look_soft(priced, slack, answer)
