"""The two bounds on the best norm, and the one formula of their gap."""

import numpy as np
import pytest

from attsvm import Tokens, frobenius, l1, max_margin, nuclear
from attsvm.numbers.compiled import compiled
from attsvm.program import bounds
from attsvm.program.rows import Rows
from tests.program.test_rows import program


@pytest.mark.parametrize("norm", [frobenius, nuclear, l1])
def test_bounds_enclose_the_best_norm_and_meet_there(norm):
    whole = program(tied=True)
    best = max_margin(Tokens(whole.keys, whole.queries), whole.selected, norm)
    lam = np.zeros(whole.active.shape)
    lam[whole.active] = best.multipliers
    rows = Rows.of(whole)
    for some, multipliers in ((whole, lam), (rows, rows.pick(lam) * rows.length)):
        assert bounds.gap(some, norm, best.W, multipliers) < 1e-8
        other = best.W + 0.01 * best.W[::-1]
        upper = float(norm.value(other)) / bounds.least_margin(some, some.margins(other))
        assert upper > float(norm.value(best.W)) > 0
        assert bounds.lower(some, norm, np.maximum(multipliers, 0.0) + 0.1) < float(norm.value(best.W))
        assert bounds.gap(some, norm, other, multipliers) > 1e-4
        assert bounds.gap(some, norm, -best.W, multipliers) == 1.0


CASES = [
    ((1.0, 1.0, 2.0, 0.0), 0.5),
    ((1.0, 1.0, 2.0, 0.7), 0.7),
    ((2.0, 1.0, 1.0, 0.0), 1.0),  # bounds that cross are rounding, and no better than bounds apart
    ((1.0, -1.0, 2.0, 0.0), 1.0),
    ((np.nan, 1.0, 2.0, 0.0), np.inf),
    ((1.0, np.nan, 2.0, 0.0), np.inf),
    ((1.0, np.inf, 2.0, 0.0), np.inf),
    ((0.0, np.inf, 2.0, 0.0), np.inf),
    ((-np.inf, 1.0, 2.0, 0.0), np.inf),
    ((1.0, 1.0, 2.0, np.nan), np.inf),
]
"""lower, least, size, missed, and the gap."""


@compiled
def in_a_loop(parts, out):
    for k in range(len(out)):
        out[k] = bounds.relative_gap(parts[k, 0], parts[k, 1], parts[k, 2], parts[k, 3])


def test_the_gap_is_one_formula_and_what_is_no_number_is_no_gap():
    parts, expected = np.array([case for case, _ in CASES]), np.array([gap for _, gap in CASES])
    out = np.empty(len(CASES))
    in_a_loop(parts, out)
    with np.errstate(all="ignore"):
        assert np.array_equal(bounds.relative_gap(*parts.T), expected)
    assert np.array_equal(out, expected)
