"""Laws behind the law of halves, each with a control that breaks it: losses, stops, how stops are left.

Laws whose experiment is a claim of the laboratory are tested in test_waiting.py and test_law_of_halves.py:
conserved differences of diagonals, balanced factors, columns of zero in batches, waits under decay, the
length at which steps oscillate, spectral steps at exactly zero, and the harmonic sum.
"""

import numpy as np
import pytest
from scipy.optimize import linprog, minimize, nnls

import attsvm as att
from attsvm_lab.claims.factor_kkt_points import combined
from attsvm_lab.claims.waiting import from_rank_one, length, spare

SEED, DRAWS = 2, 8
EXPONENT = 0.02  # of the growth, over which the multipliers still move a little
CURVE = 0.06  # the reduced law holds while the spare direction is small
RESIDUAL = 1e-7  # of multipliers at a polished stop


# ---------------------------------------------------------------------- the loss far out


def logistic_excess(tokens, v, selected, W):
    """E = L − L_α, and Σ c e^(−m) (1, and with the slope of the loss left out)."""
    score = att.scores(tokens, v)
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    m = logits[np.arange(tokens.n), selected][:, None] - logits
    attention = np.exp(-m) / np.exp(-m).sum(1, keepdims=True)
    best = score[np.arange(tokens.n), selected]
    gap = best[:, None] - score
    drop = (attention * gap).sum(1)
    excess = np.mean(np.log1p(np.exp(-best + drop)) - np.log1p(np.exp(-best)))
    terms = gap * np.exp(-m) / tokens.n
    return excess, (terms / (1 + np.exp(best))[:, None]).sum(), terms.sum()


def test_the_excess_loss_is_the_sum_of_its_rows_up_to_one_margin():
    tokens, v = att.datasets.sphere(4, 4, 8, seed=3)
    selected = att.scores(tokens, v).argmax(1)
    W = att.max_margin(tokens, selected).W
    errors, wrong = [], []
    for margin in (6, 8, 10):
        excess, first_order, without_slope = logistic_excess(tokens, v, selected, margin * W)
        errors.append(abs(excess / first_order - 1) * np.exp(margin))
        wrong.append(abs(excess / without_slope - 1) * np.exp(margin))
    assert errors[-1] < 10 and abs(errors[2] / errors[1] - 1) < 0.2  # it converges
    assert wrong[-1] > 100 * errors[-1]


def test_the_smoothed_margin_over_the_squared_length_never_falls():
    tokens, v = att.datasets.sphere(4, 4, 8, seed=range(4))
    falls = {}
    for lr, steps in ((0.003, 8_000), (0.08, 3_000)):
        records = np.arange(steps // 4, steps + 1, 10)
        rule = att.steepest(att.frobenius, lr)
        path = att.train(
            tokens, att.Linear(v), weight=att.KeyQuery(), optimizer=rule, steps=steps, record=records
        )
        ρ = np.sqrt((path.K**2).sum((-2, -1)) + (path.Q**2).sum((-2, -1)))
        late = path.index > 0
        u = -path.log_excess[:, late] - 3
        assert (u > 0).all()
        falls[lr] = float(np.diff(np.log(u / ρ[:, late] ** 2), axis=1).min())
    assert falls[0.003] > -1e-9
    assert falls[0.08] < -1e-5  # beyond the edge


# ---------------------------------------------------------------------- a stop of rank one, to rounding


class Stop:
    """A KKT point u vᵀ of rank one: rows of least margin, multipliers, σ/s and the direction of the pull."""

    def __init__(self, run):
        tokens, first = run.tokens, run.selected.argmax(-1)
        winners = tokens.keys[np.arange(tokens.n), first]
        apart = (winners[:, None] - tokens.keys)[~run.selected]
        self.rows = apart[:, :, None] * np.repeat(tokens.queries, tokens.T - 1, 0)[:, None]
        U, _, Vt = np.linalg.svd(run.final)
        start = np.concatenate([U[:, 0], Vt[0], [0.0]])
        margins = lambda x: np.einsum("rde,d,e->r", self.rows, x[:8], x[8:16])  # noqa: E731
        ends = minimize(
            lambda x: -x[16],
            start,
            jac=lambda x: -np.eye(17)[16],
            constraints=[
                {"type": "ineq", "fun": lambda x: margins(x) - x[16]},
                {"type": "eq", "fun": lambda x: [x[:8] @ x[:8] - 1, x[8:16] @ x[8:16] - 1]},
            ],
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 300},
        )
        self.u, self.v, self.margin = ends.x[:8], ends.x[8:16], float(ends.x[16])
        active = margins(ends.x) < self.margin + 1e-7
        gradients = np.hstack([self.rows @ self.v, np.einsum("rde,d->re", self.rows, self.u)])
        wanted = np.concatenate([self.u, self.v])
        weights, self.residual = nnls(gradients[active].T, wanted)
        self.active = self.rows[active]
        M = np.einsum("r,rde->de", weights, self.active)
        P, R = np.eye(8) - np.outer(self.u, self.u), np.eye(8) - np.outer(self.v, self.v)
        left, pulls, right = np.linalg.svd(P @ M @ R)
        self.pull, self.out, self.along = float(pulls[0]), left[:, 0], right[0]


@pytest.fixture(scope="module")
def stops():
    """Runs of gradient descent from one column exactly, and their stops; those that pull by 1.2 or more."""
    runs = from_rank_one(SEED, DRAWS, 0.0, 2.0, 20_000, record=[10_000, 20_000])
    found = []
    for k in range(DRAWS):
        run = runs.path.run(k)
        stop = Stop(run)
        gaps = att.scores(run.tokens, runs.v[k])
        best = gaps[np.arange(4), run.selected.argmax(-1)]
        if stop.residual < RESIDUAL and stop.pull > 1.2 and (gaps[~run.selected] < best.repeat(3)).all():
            found.append((k, run, stop))
    assert len(found) >= 2
    return found


def gain(stop, out, along):
    """The linear program of Theorem 3: the largest gain of the least margin from Z and used directions."""
    count = len(stop.active)
    used = np.hstack(
        [
            stop.active @ stop.v - stop.margin * stop.u,
            np.einsum("rde,d->re", stop.active, stop.u) - stop.margin * stop.v,
        ]
    )
    spare_part = np.einsum("rde,d,e->r", stop.active, out, along) - stop.margin
    solved = linprog(
        np.append(np.zeros(16), -1.0),
        A_ub=np.hstack([-used, np.ones((count, 1))]),
        b_ub=spare_part,
        bounds=[(None, None)] * 17,
    )
    return -solved.fun if solved.status == 0 else np.inf


def test_a_spare_direction_gains_the_pull_less_one_at_a_stop(stops):
    for _, run, stop in stops:
        assert gain(stop, stop.out, stop.along) / stop.margin == pytest.approx(stop.pull - 1, abs=1e-5)
        assert gain(stop, -stop.out, stop.along) < 0  # the other sign costs margin
        best = att.max_margin(run.tokens, run.selected, att.nuclear).margin
        assert stop.margin / best >= 1 / stop.pull - 1e-9
        wrong = Stop.__new__(Stop)
        wrong.__dict__ |= stop.__dict__ | {"u": stop.along}
        assert gain(wrong, stop.out, stop.along) > 10  # at no KKT point the program has no bound


def beside(found, ε, sign=1.0, *, Q=None):
    """A start from the stop's run, with a spare column of length ε (of Q: Q) in the direction of the pull."""
    _, run, stop = found
    K0, Q0 = run.K[-1].copy(), run.Q[-1].copy()
    size = np.linalg.norm(K0)
    turn = np.sign(K0[:, 0] @ stop.u)
    K0[:, 1], Q0[:, 1] = ε * size * turn * stop.out, sign * (ε if Q is None else Q) * size * turn * stop.along
    return {"K": K0, "Q": Q0}


def continued(found, steps, start, count, lr=0.02):
    k, run, _ = found
    return att.train(
        run.tokens,
        att.Linear(from_rank_one(SEED, DRAWS, 0.0, 2.0, 1).v[k]),
        weight=att.KeyQuery(),
        optimizer=att.steepest(steps, lr),
        steps=count,
        init=start,
        record=np.arange(0, count + 1, 50),
    )


def slope(run, until=1.0):
    """Of log σ₂(K)/σ₁(K) against log ‖(K, Q)‖."""
    sizes = np.linalg.svd(run.K, compute_uv=False)
    early = np.arange(len(sizes)) <= until * len(sizes)
    return np.polyfit(np.log(length(run))[early], np.log(sizes[:, 1] / sizes[:, 0])[early], 1)[0]


def test_gradient_descent_leaves_along_the_pull_and_decays_against_it(stops):
    for found in stops[:2]:
        pull = found[2].pull
        grows = slope(continued(found, att.frobenius, beside(found, 1e-7), 4_000))
        decays = slope(continued(found, att.frobenius, beside(found, 1e-3, -1.0), 400, 0.05))
        assert grows == pytest.approx(pull - 1, rel=EXPONENT)
        assert decays == pytest.approx(-(pull + 1), rel=EXPONENT)


def test_steps_above_p_2_leave_by_the_curve_of_the_reduced_law(stops):
    p, a = 4.0, 2 / 3
    for found in stops[:2]:
        run = continued(found, att.Schatten(p), beside(found, 1e-12), 2_000)
        sizes = np.linalg.svd(run.K, compute_uv=False)
        x, τ = sizes[:, 1] / sizes[:, 0], np.log(length(run) / length(run)[0])
        small = (x < 0.1) & (τ > 0.05)
        predicted = found[2].pull ** (1 / (p - 1)) * -np.expm1(-a * τ[small])
        assert small.sum() >= 5
        assert x[small] ** a == pytest.approx(predicted, rel=CURVE)
        without_pull = -np.expm1(-a * τ[small])
        assert not np.allclose(x[small] ** a, without_pull, rtol=CURVE)


def growth(pull, p_K, p_Q):
    """ν of x_Q ~ ρ^ν in the reduced law with r = 1."""
    α, b = 1 / (p_K - 1), 1 / (p_Q - 1)
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        over = (1 + middle) * (1 + α * middle) ** b > pull ** (1 + b)
        low, high = (low, middle) if over else (middle, high)
    return low, α


def test_two_exponents_with_r_of_one_leave_with_the_power_of_their_equation(stops):
    p_K, p_Q = 3.0, 1.5
    for found in stops[:2]:
        pull = found[2].pull
        ν, α = growth(pull, p_K, p_Q)
        x_Q = 1e-6
        x_K = (pull * x_Q) ** α / (1 + α * ν)  # on the growing ray
        run = continued(found, (att.Schatten(p_K), att.Schatten(p_Q)), beside(found, x_K, Q=x_Q), 400)
        sizes = np.linalg.svd(run.Q, compute_uv=False)
        observed = np.polyfit(np.log(length(run)), np.log(sizes[:, 1] / sizes[:, 0]), 1)[0]
        assert observed == pytest.approx(ν, rel=0.03)
        assert abs(observed / (pull - 1) - 1) > 0.03  # that of two equal exponents


def test_steps_of_a_quasi_norm_let_every_spare_direction_decay(stops):
    for found in stops[:2]:
        decays = slope(continued(found, att.Schatten(1.5), beside(found, 1e-5), 1_000))
        assert decays == pytest.approx(-1, abs=0.02)
        assert slope(continued(found, att.frobenius, beside(found, 1e-5), 1_000)) > 0


def test_the_gradient_of_spectral_steps_has_a_spare_part_that_no_factor_sees():
    tokens, v = att.datasets.sphere(4, 4, 8, seed=1)
    off = {}
    for norm in (att.spectral, att.frobenius):
        rule = att.steepest(norm, lambda k: 0.2 * (k + 1.0) ** -0.6)
        run = att.train(tokens, att.Linear(v), weight=att.KeyQuery(), optimizer=rule, steps=4_000)
        M = combined(run, att.kkt_point(run, v, steps=norm).multipliers)
        K, Q = (X[-1] / np.linalg.norm(X[-1], 2) for X in (run.K, run.Q))
        spare_part = M - K @ (K.T @ M @ Q) @ Q.T  # K P Qᵀ with P = Kᵀ M Q
        seen = max(np.linalg.norm(spare_part @ Q), np.linalg.norm(spare_part.T @ K))
        off[norm] = seen / np.linalg.norm(M)
    assert off[att.spectral] < 0.12 < 0.25 < off[att.frobenius]  # 0.09 falls like t^−0.4, and 0.39


def test_the_second_singular_value_of_a_run_beside_a_stop_is_what_its_factors_say(stops):
    found = stops[0]
    run = continued(found, att.frobenius, beside(found, 1e-4), 200)
    sizes = np.linalg.svd(run.final, compute_uv=False)
    assert spare(run)[-1] == pytest.approx(sizes[1] / sizes[0], rel=1e-3)


# ---------------------------------------------------------------------- where factors end, in one norm or two


def test_both_factors_end_with_one_length_and_one_shape():
    """Joint steps end at ‖K‖ = ‖Q‖ and (KᵀK)^(p/2) = (QᵀQ)^(p/2), though Q begins ten times as long."""
    tokens, v = att.datasets.sphere(4, 4, 8, seed=400)
    rng = np.random.default_rng(400)
    start = {name: size * rng.standard_normal((8, 8)) for name, size in (("K", 0.01), ("Q", 0.1))}
    off = []
    for p in (3.0, 6.0):
        run = att.train(
            tokens,
            att.Linear(v),
            weight=att.KeyQuery(),
            optimizer=att.steepest(att.Schatten(p), 0.01),
            steps=3_000,
            record=[0, 3_000],
            init=start,
        )
        lengths = [[att.Schatten(p).value(X) for X in factor] for factor in (run.K, run.Q)]
        off.append(np.abs(np.log(np.divide(*lengths))))
        shapes = []
        for factor, sizes in zip((run.K, run.Q), lengths, strict=True):
            _, values, rows = np.linalg.svd(factor[-1] / sizes[-1])
            shapes.append((rows.T * values**p) @ rows)
            assert np.trace(shapes[-1]) == pytest.approx(1)
        assert np.linalg.norm(shapes[0] - shapes[1]) < 0.2 * np.linalg.norm(shapes[0])
        _, values, rows = np.linalg.svd(run.K[-1] / lengths[0][-1])
        other = (rows.T * values ** (p / 2)) @ rows  # another power is no shape of Q's
        assert np.linalg.norm(other - shapes[1]) > 0.3 * np.linalg.norm(shapes[1])
    assert max(both[-1] for both in off) < 0.1 < 1 < min(both[0] for both in off)


@pytest.mark.parametrize(("p_K", "p_Q", "r"), [(np.inf, 2.0, 2.0), (2.0, 4.0, 4 / 3), (8 / 3, 8.0, 2.0)])
def test_of_all_norms_the_harmonic_one_has_the_largest_share(p_K, p_Q, r):
    arithmetic = (p_K + p_Q) / 4  # half of the mean
    grid = (1.0, 4 / 3, 2.0, 4.0, np.inf, arithmetic)
    tokens, v = att.datasets.sphere(4, 4, 8, seed=range(420, 424))
    path = att.train(
        tokens,
        att.Linear(v),
        weight=att.KeyQuery(),
        optimizer=att.steepest((att.Schatten(p_K), att.Schatten(p_Q)), 0.01),
        steps=4_000,
        record=[4_000],
    )
    shares = [
        att.margin_ratio(path, att.max_margin(path.tokens, path.selected, att.Schatten(q)))[:, -1]
        for q in grid
    ]
    leaders = {grid[k] for k in np.argmax(shares, axis=0)}  # each draw by its own selection
    assert leaders == {r}  # and not the arithmetic one
