"""KKT points of factors in docs/law_of_halves_proofs.md, sections 2, 3 and 4; each line with its control."""

import numpy as np
import pytest

import attsvm as att

PAIRS = [(3, 1.5), (1.2, 6), (4, 4), (6, 2), (np.inf, 3), (np.inf, 1), (np.inf, np.inf)]
"""Exponents of K and Q; one of each case of section 3."""
ROUNDING = 1e-9
CERTIFIED = 1e-4
"""Relative error of a program's multipliers."""


def schatten(p, X):
    return np.linalg.norm(np.linalg.svd(X, compute_uv=False), p)


def harmonic(p_K, p_Q):
    """r of 1/r = 1/p_K + 1/p_Q."""
    total = 1 / p_K + 1 / p_Q
    return 1 / total if total else np.inf


def conjugate(p):
    return 1.0 if p == np.inf else np.inf if p == 1 else p / (p - 1)


def kkt_error(M, K, Q, p_K, p_Q):
    """How far (M Q, Mᵀ K) is from a subgradient of max(‖K‖, ‖Q‖): its dual norm and product must be one."""
    dual_norm = schatten(conjugate(p_K), M @ Q) + schatten(conjugate(p_Q), M.T @ K)
    return max(abs(dual_norm - 1), abs(2 * (M * (K @ Q.T)).sum() - 1), abs(schatten(p_K, K) - 1))


def point(p_K, p_Q, spare=0.4, seed=0):
    """K̄, Q̄ (6, 5) of rank 2 and M of Theorem 2, and a direction that turns the used spaces.

    spare: the length of M_⊥. Factors in the spectral norm have one more column, shorter than one.
    """
    rng = np.random.default_rng(seed)
    U, V, R = (np.linalg.qr(rng.standard_normal((size, size)))[0] for size in (6, 6, 5))
    r, shares = harmonic(p_K, p_Q), np.array([0.7, 0.3])
    K, Q = (X[:, :2] * shares ** (1 / p) @ R[:, :2].T for X, p in ((U, p_K), (V, p_Q)))
    inside = shares if r == np.inf else shares ** (1 - 1 / r)
    M = 0.5 * U[:, :2] * inside @ V[:, :2].T + spare * U[:, 4:] * [1.0, 0.6] @ V[:, 4:].T
    if p_K == np.inf:
        K = K + 0.5 * np.outer(U[:, 2], R[:, 2])
    if p_Q == np.inf:
        Q = Q + 0.8 * np.outer(V[:, 3], R[:, 3])
    return M, K, Q, np.outer(U[:, 0], V[:, 4])


@pytest.mark.parametrize(("p_K", "p_Q"), PAIRS)
def test_the_form_of_theorem_2_is_a_kkt_point_whatever_its_spare_part(p_K, p_Q):
    for spare in (0.0, 0.4, 2.0):
        M, K, Q, turn = point(p_K, p_Q, spare)
        assert kkt_error(M, K, Q, p_K, p_Q) < ROUNDING
        assert kkt_error(M + 0.3 * turn, K, Q, p_K, p_Q) > 1e-3
    if p_K != p_Q:  # factors that are not balanced
        M, K, Q, _ = point(p_Q, p_K)
        assert kkt_error(M, K / schatten(p_K, K), Q / schatten(p_Q, Q), p_K, p_Q) > 1e-3


@pytest.mark.parametrize(("p_K", "p_Q"), PAIRS)
def test_the_multipliers_certify_the_limit_exactly_where_the_condition_holds(p_K, p_Q):
    r = harmonic(p_K, p_Q)
    bounds = {spare: schatten(conjugate(r), point(p_K, p_Q, spare)[0]) for spare in (0.0, 0.4, 0.6)}
    allowed = {spare for spare, bound in bounds.items() if bound < 0.5 + ROUNDING}
    assert allowed == ({0.0, 0.4} if r == 1 else {0.0})


@pytest.mark.parametrize(("p_K", "p_Q"), [(np.inf, np.inf), (4, 4), (np.inf, 2), (3, 6)])
def test_a_solution_of_the_program_is_a_kkt_point_of_its_factors(p_K, p_Q):
    r = harmonic(p_K, p_Q)
    tokens, v = att.datasets.sphere(4, 4, 8, seed=7)
    selected, errors = att.scores(tokens, v).argmax(1), {}
    winners = tokens.keys[np.arange(tokens.n), selected]
    for norm in {att.Schatten(r), att.Schatten(5.0)}:
        solution = att.max_margin(tokens, selected, norm)
        weights = solution.token_multipliers
        M = np.einsum("nt,ntd,ne->de", weights, winners[:, None] - tokens.keys, tokens.queries)
        U, sizes, Vt = np.linalg.svd(solution.W / norm.value(solution.W))
        R = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0]
        splits = (0.2, 0.5, 0.9) if r == np.inf else (r / p_K,)
        used = sizes > 1e-6  # the program has four queries, and W no more rank
        factors = [
            ((U * sizes**a)[:, used] @ R[used], (Vt.T * sizes ** (1 - a))[:, used] @ R[used]) for a in splits
        ]
        M = M / (2 * (M * (factors[0][0] @ factors[0][1].T)).sum())
        errors[norm] = max(kkt_error(M, K, Q, p_K, p_Q) for K, Q in factors)
    assert errors.pop(att.Schatten(r)) < CERTIFIED
    assert min(errors.values()) > 1e-2


def two_inputs(degrees):
    """Token differences and queries, both (cos φ, ± sin φ): diag(1, 0) is a KKT point of pull tan² φ."""
    φ = np.radians(degrees)
    x = np.array([[np.cos(φ), np.sin(φ)], [np.cos(φ), -np.sin(φ)]])
    return np.einsum("id,ie->ide", x, x)


def gain(degrees, p_K, p_Q, ε, width=2):
    """Change of the least margin over ‖K‖ ‖Q‖ at diag(1, 0), by a spare part of W of length ε.

    The second singular value of K is ε^a and that of Q ε^(1 − a), divided as in the proof of Theorem 3.
    """
    a = 0.5 if p_K == p_Q else p_Q / (p_K + p_Q)
    if p_Q < p_K == np.inf:
        a = (1 - 1 / p_Q) / 2 if p_Q > 1 else 0.3
    K, Q = (np.diag([1.0, ε**power if width > 1 else 0.0]) for power in (a, 1 - a))
    rows = two_inputs(degrees)
    margins = np.einsum("ide,de->i", rows, K @ Q.T) / (schatten(p_K, K) * schatten(p_Q, Q))
    return margins.min() - rows[0, 0, 0]


@pytest.mark.parametrize("ε", [1e-3, 1e-5])
def test_no_stop_is_a_local_maximum_of_the_margin_and_a_limit_is(ε):
    steep = [(2, 2), (3, 1.5), (4, 4), (3, 8), (np.inf, np.inf), (np.inf, 1.5), (np.inf, 4)]
    assert all(gain(60, p_K, p_Q, ε) > 0.1 * ε for p_K, p_Q in steep)
    assert all(gain(40, p_K, p_Q, ε) < 0 for p_K, p_Q in ((2, 2), (3, 1.5)))  # pull 0.7, and r = 1
    assert all(gain(60, p_K, p_Q, ε) < 0 for p_K, p_Q in ((1.5, 1.5), (np.inf, 1)))  # r < 1; p_Q = 1
    assert gain(60, 4, 4, ε, width=1) == 0  # no spare column


def test_rows_are_optimal_in_the_max_norm_if_and_only_if_their_matrix_is_semidefinite():
    square, half = np.array([[1.0, 1], [1, -1]]), np.sqrt(0.5)
    cases = {
        "turned": (square / (4 * np.sqrt(2)), np.eye(2), half * square, True),
        "of one column": (np.array([[2.0, -1], [-1, 2]]) / 4, np.ones((2, 1)), np.ones((2, 1)), False),
    }
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, 20_000, 2, 3))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    for M, K, Q, optimal in cases.values():
        a, b = (M @ Q * K).sum(1), (M.T @ K * Q).sum(1)  # rows have length one
        assert np.allclose(M @ Q, np.diag(a) @ K) and np.allclose(M.T @ K, np.diag(b) @ Q)
        assert a.sum() == pytest.approx(0.5) and b.sum() == pytest.approx(0.5)
        least = np.linalg.eigvalsh(np.block([[np.diag(a), -M], [-M.T, np.diag(b)]]))[0]
        best = np.einsum("de,sdm,sem->s", M, *rows).max()
        assert bool(least > -ROUNDING) is optimal
        assert bool(best <= 0.5 + ROUNDING) is optimal


def excess_over_terms(margins, gaps, scale):
    """E over the sum of the terms of tokens that score lower, and E, of one input with logistic loss."""
    scores, m = np.array([1.0, *(1.0 - gaps)]), scale * np.array(margins)
    weights = np.exp(-np.array([0.0, *m]))
    drop = 1.0 - scores @ weights / weights.sum()
    slope = 1 / (1 + np.e)
    excess = np.log1p(np.exp(drop - 1)) - np.log1p(np.exp(-1.0))
    lower = gaps > 0
    return excess / (slope * gaps[lower] @ np.exp(-m[lower])), excess


def test_tokens_of_higher_score_do_not_matter_where_they_keep_away_from_the_border():
    gaps, power = np.array([-0.5, 1.0, 2.0]), 0.25  # η = 1/2, and η' its half
    for border, holds in ((1.5, True), (1.0, False)):
        pairs = [excess_over_terms([border, 1.0, 1.4], gaps, scale) for scale in (6.0, 12.0, 24.0)]
        assert all(abs(ratio - 1) < excess**power for ratio, excess in pairs) is holds


def test_the_least_margin_is_the_log_of_the_excess_loss_up_to_a_constant():
    slope = 1 / (1 + np.e)
    for first, holds in ((0.5, True), (-0.5, False)):
        gaps = np.array([first, 1.0, 2.0])
        c = slope * np.abs(gaps)
        scale = 8.0
        margins = np.array([1.0, 1.0 + np.log(2) / scale + 1e-4, 2.0])  # the first two terms nearly cancel
        excess = excess_over_terms(margins, gaps, scale)[1]
        u = np.log(1 / excess) - np.log(2 / c.min()) if excess > 0 else np.inf
        bound = u + np.log(4 * len(gaps) * c.max() / c.min())
        assert bool(u <= scale * margins.min() <= bound) is holds


def test_an_entry_of_unequal_diagonals_leaves_zero_and_one_of_equal_diagonals_does_not():
    p, M, time, steps = 4.0, 0.7, 12.0, 8_000
    power, step, ends = 1 / (p - 1), time / steps, {}
    for apart in (0.01, 0.0):
        k, q = 0.1 + apart, -0.1  # against the pull M > 0, relative to ρ: ρ' = 1
        conserved = abs(k) ** (1 + power) - abs(q) ** (1 + power)
        for _ in range(steps):
            forces = (np.sign(M * x) * abs(M * x) ** power for x in (q, k))
            k, q = (x + step * (force - x) for x, force in zip((k, q), forces, strict=True))
            if apart == 0 and k * q > 0:
                k = q = 0.0  # the solution that stays
        ends[apart] = float(k * q)
        now = (abs(k) ** (1 + power) - abs(q) ** (1 + power)) * np.exp((1 + power) * time)
        assert now == pytest.approx(conserved, rel=0.5, abs=1e-12)
    assert ends[0.01] > 0.1 and abs(ends[0.0]) < 1e-6


def growth_beside(σ, columns):
    """The largest growth exponent in τ of columns under (2), with M(τ) = diag(1, σ) + e^(−τ) B."""
    rng = np.random.default_rng(3)
    B, step, time = 0.3 * rng.standard_normal((2, 2)), 1.5e-2, 12.0
    flow = np.eye(4)
    for k in range(round(time / step)):
        M = np.diag([1.0, σ]) + np.exp(-k * step) * B
        A = np.block([[np.zeros((2, 2)), M], [M.T, np.zeros((2, 2))]])
        flow = flow + step * A @ (flow + step / 2 * A @ flow)
    directions = np.linalg.svd(flow)[2]
    start = directions[1:].T if columns < 4 else rng.standard_normal((4, 4))
    return np.log(np.linalg.norm(flow @ start, 2)) / time


def test_wide_factors_grow_with_the_pull_and_those_of_a_proper_subspace_do_not():
    assert growth_beside(1.6, columns=4) == pytest.approx(1.6, abs=0.15)
    assert growth_beside(1.6, columns=3) < 1.15
    assert growth_beside(0.6, columns=4) < 1.15  # no stop


def descent(lr, count=40):
    """Whether E falls by half of lr ‖∇L‖² in each step of plain gradient descent on two inputs."""
    rows, K, Q = two_inputs(30), 0.9 * np.eye(2), 0.9 * np.eye(2)
    falls = []
    for _ in range(count):
        margins = np.einsum("ide,de->i", rows, K @ Q.T)
        excess, slopes = np.logaddexp(0, -margins).mean(), 1 / (1 + np.exp(margins)) / 2
        G = np.einsum("i,ide->de", slopes, rows)
        squares = ((G @ Q) ** 2).sum() + ((G.T @ K) ** 2).sum()
        K, Q = K + lr * G @ Q, Q + lr * G.T @ K
        after = np.logaddexp(0, -np.einsum("ide,de->i", rows, K @ Q.T)).mean()
        falls.append(after <= excess - lr * squares / 2)
    return all(falls)


def test_short_constant_steps_lose_at_most_half_of_the_first_order():
    assert descent(0.1)
    assert not descent(60.0)
