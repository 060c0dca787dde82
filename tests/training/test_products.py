"""Products of factors: diagonals of any depth, and steps of K and Q that are steps of W."""

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power

from attsvm import frobenius, spectral
from attsvm.training.init import gaussian
from attsvm.training.optimizers import compositional, gd, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, KeyQuery, MultiHead

LR, RIDGE = 0.1, 0.01
CLOSE = 1e-9  # a few steps in float64 against mpmath's gradients; another rule shows at 1e-2


def run(problem, rule, steps=3, **options):
    tokens, v = problem
    return train(tokens, Linear(v), optimizer=rule, steps=steps, record=[steps], **options)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("scale", [1.0, 8.0], ids=["soft", "saturated"])
def test_a_step_of_three_diagonals_goes_along_the_exact_gradient(separate, scale, problem, exact_gradient):
    factors = start = tuple(scale * np.random.default_rng(2).standard_normal((3, 5)))
    for _ in range(3):
        g = np.diag(exact_gradient(*problem, np.diag(np.prod(factors, axis=0)))[0])
        steps = [g * np.prod([b for k, b in enumerate(factors) if k != j], axis=0) for j in range(3)]
        sizes = np.array([np.linalg.norm(step) for step in steps])
        sizes = sizes if separate else np.full(3, np.linalg.norm(sizes))
        factors = [a - LR * s / size for a, s, size in zip(factors, steps, sizes, strict=True)]
    rule = steepest(frobenius, LR)
    found = run(problem, rule, weight=Diagonal(3, separate), init=start).final
    wanted = np.diag(np.prod(factors, axis=0))
    np.testing.assert_allclose(found, wanted, atol=CLOSE * scale**2)
    other = run(problem, rule, weight=Diagonal(3, not separate), init=start).final
    assert np.abs(other - wanted).max() > 1e-2


def test_two_diagonals_are_those_of_key_and_query(problem):
    keys, queries = np.random.default_rng(1).standard_normal((2, 5))
    factors = {"K": np.diag(keys), "Q": np.diag(queries)}
    two = run(problem, gd(LR), weight=Diagonal(2), init={"k": keys, "q": queries}, steps=1).final
    whole = run(problem, gd(LR), weight=KeyQuery(5), init=factors, steps=1)
    np.testing.assert_allclose(np.diag(two), np.diag(whole.K[-1]) * np.diag(whole.Q[-1]), rtol=0, atol=CLOSE)
    with pytest.raises(ValueError, match=r"depth is 0\. Pass how many factors"):
        Diagonal(0)


def polar(matrix):
    U, sigma, Vt = np.linalg.svd(matrix, full_matrices=False)
    return U[:, sigma > 1e-9] @ Vt[sigma > 1e-9]


def test_compositional_steps_are_their_formula_and_move_the_product_by_a_unit(problem, exact_gradient):
    K, Q = 5 * np.random.default_rng(0).standard_normal((2, 5, 4))
    G = exact_gradient(*problem, K @ Q.T)[0]

    def step(grad, other):
        inverse = fractional_matrix_power(other.T @ other + RIDGE * np.eye(4), -0.5)
        return -LR / 2 * polar(grad @ inverse) @ inverse

    dK, dQ = step(G @ Q, Q), step(G.T @ K, K)
    path = run(problem, compositional(LR, RIDGE), 1, weight=KeyQuery(4), init=(K, Q))
    np.testing.assert_allclose(path.K[-1] - K, dK, atol=1e-8)
    np.testing.assert_allclose(path.Q[-1] - Q, dQ, atol=1e-8)
    assert spectral.value(dK @ Q.T + K @ dQ.T) <= LR * (1 + 1e-9)
    muon = run(problem, steepest(spectral, LR), 1, weight=KeyQuery(4), init=(K, Q)).final
    assert spectral.value(muon - K @ Q.T) > 3 * LR  # as long as K and Q are


def test_compositional_steps_in_lanes_and_of_heads_are_those_of_one(problem):
    rule, several = compositional(LR), KeyQuery(4)
    lanes = run(problem, rule, 10, weight=several, init=gaussian(range(9)))
    alone = run(problem, rule, 10, weight=several, init=gaussian(3))
    np.testing.assert_allclose(lanes.final[3], alone.final, atol=1e-8)
    one = run(problem, rule, 10, weight=MultiHead(1, several, "apart"), init=gaussian(3))
    np.testing.assert_allclose(one.final[0], alone.final, atol=1e-8)


@pytest.mark.parametrize(
    "weight", [None, KeyQuery(separate=True), MultiHead(2, KeyQuery())], ids=["full", "separate", "heads"]
)
def test_compositional_steps_need_key_and_query_of_one_head(weight, problem):
    with pytest.raises(ValueError, match="K and Q of one head together"):
        run(problem, compositional(LR), 1, **{} if weight is None else {"weight": weight})
    with pytest.raises(ValueError, match="ridge is 0"):
        compositional(LR, ridge=0)
