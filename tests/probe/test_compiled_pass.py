"""The compiled pass over sequences, and numbers of 16 bits in it."""

import numpy as np
import pytest
from numba import njit

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.numbers.compiled import BRAIN, HALF, exponential, log_one_plus, widen
from attsvm.probe import AttentionProbe
from attsvm.probe.fitting.objective import evaluate
from tests.probe.cases import problem


@pytest.mark.parametrize("k", [1, 3])
def test_the_compiled_pass_is_the_same_evaluation(k):
    goal, backend, points, probes = problem(np.float16, k)  # one type: it takes seconds to compile
    points[0, 0] = 300  # one token takes all attention
    plain = evaluate(goal, backend, points, probes)
    backend.block, backend.cached = 64, 32  # several blocks of several pieces
    compiled, other = evaluate(goal, backend, points, probes), evaluate(goal, backend, points + 1e-3, probes)
    for one, same, not_it in zip(plain[:3], compiled[:3], other[:3], strict=True):
        np.testing.assert_allclose(same, one, rtol=1e-5, atol=1e-6)
        assert np.abs(not_it - one).max() > 1e-5


@pytest.mark.parametrize("shift", [HALF, BRAIN])
def test_every_number_of_16_bits_is_widened_exactly(shift):
    bits, out = np.arange(1 << 16, dtype=np.uint16)[None], np.empty((1, 1 << 16), np.float32)
    widen(bits, shift, np.zeros(1 << 16, np.float32), out)
    exact = bits.view(np.float16).astype(np.float32)
    if shift == BRAIN:
        exact = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(out, exact)


def test_elementary_functions_are_those_of_the_library():
    @njit
    def both(x):
        return [(exponential(-each), log_one_plus(each)) for each in x]

    x = np.concatenate([[0.0, 1.0], 10.0 ** -np.linspace(0, 300, 400), np.linspace(0, 1, 400)])
    found = np.array(both(x)).T
    np.testing.assert_allclose(found, [np.exp(-x), np.log1p(x)], rtol=1e-14)
    assert np.abs(found[1] - x).max() > 0.1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_half_precision_that_is_no_number_is_named(bad):
    X, y = np.random.default_rng(0).standard_normal((12, 3, 4)).astype(np.float16), np.arange(12) % 2
    AttentionProbe(head_ridge=1, prompt_ridge=1).fit(X, y)
    X[7, 1, 2] = bad
    with pytest.raises(ValueError, match="sequence 7"):
        AttentionProbe(head_ridge=1, prompt_ridge=1).fit(X, y)
