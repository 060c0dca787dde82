"""Lines of docs/law_of_halves_proofs.md, computed; each fails where its hypothesis is broken."""

import numpy as np
import pytest

import attsvm as att

SLOPE = 0.03
"""Relative error of a fitted power: M still moves, and the reduced laws are fitted over a finite window."""
COARSE = 0.2
"""Time after which the midpoint rule resolves a power below one at a start near 0."""
ROUNDING = 1e-6


def logistic(scores):
    return np.logaddexp(0, -scores)


def excess_and_sum(scale, gaps):
    """E, and its expansion Σ c exp(−m), for one input whose first token is selected."""
    scores = np.array([1.0, *(1.0 - gaps)])
    margins = scale * np.array([1.0, 1.3, 2.0])
    weights = np.exp(-np.array([0.0, *margins]))
    excess = logistic(scores @ weights / weights.sum()) - logistic(scores[0])
    slope = 1 / (1 + np.exp(scores[0]))
    return excess, slope * gaps @ np.exp(-margins)


def test_the_loss_is_its_expansion_up_to_a_constant_times_itself():
    for first, holds in ((0.5, True), (-0.5, False)):
        gaps = np.array([first, 1.0, 2.0])
        slope, bend, gap = 1 / (1 + np.exp(1 + max(0, -first))), 0.25, np.abs(gaps).min()
        A = 2 / (slope * gap) * (2 + gap * bend / slope)
        pairs = [excess_and_sum(scale, gaps) for scale in (4.0, 6.0, 8.0)]
        assert all(A * excess < 0.5 for excess, _ in pairs if holds)
        assert all(abs(total / excess - 1) < A * excess for excess, total in pairs) is holds


def log_growth_error(balanced):
    """The largest error of (log σᵢ)' = 2 uᵢᵀMvᵢ under K' = MQ, Q' = MᵀK."""
    rng = np.random.default_rng(0)
    K, M, V, other = (rng.standard_normal((4, 4)) for _ in range(4))
    _, values, rows = np.linalg.svd(K)
    Q = np.linalg.qr(V)[0] @ np.diag(values) @ rows if balanced else other
    step = 1e-7
    u, before, v = np.linalg.svd(K @ Q.T)
    after = np.linalg.svd((K + step * M @ Q) @ (Q + step * M.T @ K).T, compute_uv=False)
    growth = (np.log(after) - np.log(before)) / step
    return np.abs(growth - 2 * np.einsum("ai,ab,ib->i", u, M, v)).max()


def test_singular_values_of_balanced_factors_grow_by_the_exact_formula():
    assert log_growth_error(balanced=True) < 1e3 * ROUNDING
    assert log_growth_error(balanced=False) > 0.1


@pytest.fixture(scope="module")
def stop():
    """Tokens, head and factors of one column at a stop of rank one, its pull, and its spare directions."""
    tokens, v = att.datasets.sphere(4, 4, 8, seed=410)
    rng = np.random.default_rng(410)
    start = {name: np.outer(0.1 * rng.standard_normal(8), np.eye(8)[0]) for name in "KQ"}
    steps = att.steepest(att.frobenius, 0.003)
    run = att.train(
        tokens,
        att.Linear(v),
        weight=att.KeyQuery(),
        optimizer=steps,
        steps=8_000,
        init=start,
        record=[0, 8_000],
    )
    point = att.kkt_point(run, v)
    assert (point.status, point.rank) == ("stop", 1)
    K, Q = run.K[-1], run.Q[-1]
    winners = np.take_along_axis(tokens.keys, run.selected.argmax(1)[:, None, None], 1)
    M = np.einsum("it,itd,ie->de", point.multipliers, winners - tokens.keys, tokens.queries)
    u, v_used = (X[:, 0] / np.linalg.norm(X[:, 0]) for X in (K, Q))
    spare = (np.eye(8) - np.outer(u, u)) @ M @ (np.eye(8) - np.outer(v_used, v_used))
    left, values, right = np.linalg.svd(spare)
    return tokens, v, (K, Q), values[0] / (u @ M @ v_used), (left[:, 0], right[0])


@pytest.mark.parametrize(("sign", "leaves"), [(1, True), (-1, False)])
def test_a_spare_column_grows_along_the_pull_and_shrinks_against_it(stop, sign, leaves):
    tokens, v, (K, Q), pull, (left, right) = stop
    column = 1e-5 * np.eye(8)[1]
    init = {"K": K + np.outer(left, column), "Q": Q + sign * np.outer(right, column)}
    run = att.train(
        tokens,
        att.Linear(v),
        weight=att.KeyQuery(),
        optimizer=att.steepest(att.frobenius, 0.003),
        steps=4_000,
        init=init,
        record=np.arange(0, 4_001, 400),
    )
    length = np.sqrt((run.K**2).sum((1, 2)) + (run.Q**2).sum((1, 2)))
    share = np.abs(run.K[:, :, 1] @ left) / length
    power = np.polyfit(np.log(length), np.log(share), 1)[0]
    assert power == pytest.approx(sign * pull - 1, rel=SLOPE)
    assert bool(power > 0) is leaves


def reduced(p_K, p_Q, pull, start, time, count=5_000):
    """Times and sizes of a spare direction: x_K' = (σ x_Q/s)^α − x_K and its counterpart, midpoint rule."""
    powers, step = np.array([1 / (p_K - 1), 1 / (p_Q - 1)]), time / count
    sizes = [np.array(start, float)]
    for _ in range(count):
        half = sizes[-1] + step / 2 * ((pull * sizes[-1][::-1]) ** powers - sizes[-1])
        sizes.append(sizes[-1] + step * ((pull * half[::-1]) ** powers - half))
    return np.linspace(0, time, count + 1), np.array(sizes)


@pytest.mark.parametrize(("p_K", "p_Q"), [(1.5, 1.5), (4, 1.2), (1.2, 4)])
def test_small_factors_decay_by_their_exponents_for_r_below_one(p_K, p_Q):
    times, sizes = reduced(p_K, p_Q, 1.3, (1e-3, 1e-3), 20)
    slopes = np.polyfit(times[len(times) // 2 :], np.log(sizes[len(times) // 2 :]), 1)[0]
    assert slopes == pytest.approx([-min(1, 1 / (p_K - 1)), -min(1, 1 / (p_Q - 1))], rel=SLOPE)
    growing = reduced(4, 4, 1.3, (1e-3, 1e-3), 20)[1]
    assert (growing[-1] > 0.5).all()


def test_for_r_above_one_the_size_after_a_time_has_a_bound_without_the_start():
    pull, alpha, b = 1.4, 1 / 2, 1 / 1.5
    kappa, omega = (1 + alpha) / (1 - alpha * b), (1 + b) / (1 - alpha * b)
    factor = pull ** ((b - alpha) / (1 + alpha))
    for start in (1e-4, 1e-8, 1e-12):
        times, sizes = reduced(3, 2.5, pull, (start, start), 15)
        y = (pull * factor) ** alpha * (1 - np.exp(-times / max(kappa, omega)))
        bounds = np.stack([y**kappa, factor * y**omega], axis=1)
        assert (sizes * (1 + SLOPE) >= bounds)[times > COARSE].all()
    at_r_one = reduced(2, 2, pull, (1e-12, 1e-12), 15)[1]
    assert (at_r_one[-1] < 1e-8).all()


@pytest.mark.parametrize("exponents", [(3, 3, 3), (2, 4, 4)])
def test_any_number_of_factors_with_r_of_one_grows_by_the_power_of_their_equation(exponents):
    p, pull, step, count = np.array(exponents), 1.7, 4e-3, 8_000
    sizes, logs = np.full(len(p), 1e-9), []
    for _ in range(count):
        sizes = sizes + step * ((pull * sizes.prod() / sizes) ** (1 / (p - 1)) - sizes)
        logs.append(np.log(sizes).sum())
    growth = (logs[-1] - logs[count // 2]) / (step * (count - 1 - count // 2))
    assert np.prod((1 + growth / p) ** (1 - 1 / p)) == pytest.approx(pull, rel=SLOPE)
    assert np.prod((1 + growth / p) ** (1 / p)) != pytest.approx(pull, rel=2 * SLOPE)


def test_the_share_of_the_growing_mode_has_its_differential_inequality():
    rng = np.random.default_rng(1)
    violations = {"proven": 0, "without the perturbation": 0}
    for _ in range(200):
        values = np.sort(rng.standard_normal(6))[::-1]
        B = rng.standard_normal((6, 6))
        B, gap = (B + B.T) / 2, values[0] - values[1]
        c = rng.standard_normal(6)
        c[0] = np.linalg.norm(c[1:]) * (1 + rng.random())

        def share(c):
            return (c[0] ** 2 - (c[1:] ** 2).sum()) / (c**2).sum()

        move = 1e-6 * (np.diag(values) + B) @ c
        slope = (share(c + move) - share(c - move)) / 2e-6
        bound = gap * (1 - share(c) ** 2)
        violations["proven"] += slope < bound - 5 * np.linalg.norm(B, 2) - ROUNDING
        violations["without the perturbation"] += slope < bound - ROUNDING
    assert violations["proven"] == 0
    assert violations["without the perturbation"] > 20


def spare_block(p, steps=5_000, time=25.0):
    """Size after a time, and h at all times, of a spare block that begins almost against its pull."""
    rng = np.random.default_rng(2)
    pull = np.linalg.qr(rng.standard_normal((3, 3)))[0] @ np.diag([0.3, 0.2, 0.1])
    of_K = 1e-3 * rng.standard_normal((3, 3))
    of_Q = -5 * pull.T @ of_K + 1e-5 * rng.standard_normal((3, 3))

    def steepest(gradient):
        u, values, rows = np.linalg.svd(gradient)
        return u @ np.diag(values ** (1 / (p - 1))) @ rows

    step, products = time / steps, []
    for _ in range(steps):
        products.append((pull * (of_K @ of_Q.T)).sum())
        of_K, of_Q = (
            of_K + step * (steepest(pull @ of_Q) - of_K),
            of_Q + step * (steepest(pull.T @ of_K) - of_Q),
        )
    return np.linalg.norm(of_K), np.array(products)


def test_a_spare_block_leaves_even_against_a_weak_pull_for_p_above_two_only():
    size, products = spare_block(3.0)
    assert products[0] < 0 < products[-1]
    assert (np.diff(products) > -1e-16).all()
    assert size > 0.1
    assert spare_block(2.0)[0] < 1e-10
