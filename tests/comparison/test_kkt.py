"""Where a trained pair K, Q stands: the limit, a stop of low rank, or on the way."""

import numpy as np
import pytest

import attsvm as att

STEPS = 20_000
EXPONENT = 0.03  # M still moves a little while the exponent is measured
ROUNDING = 1e-9


def trained(seed, steps, weight=None, count=STEPS, **options):
    tokens, v = att.datasets.sphere(4, 4, 8, seed=seed)
    options.setdefault("optimizer", att.steepest(steps, 0.003))
    run = att.train(
        tokens, att.Linear(v), weight=weight or att.KeyQuery(separate=True), steps=count, **options
    )
    return run, v


def rank_one(noise, seed=410):
    """Factors of one column, and noise in all others."""
    rng = np.random.default_rng(seed)
    start = {}
    for name in "KQ":
        column = rng.standard_normal(8)
        start[name] = noise * rng.standard_normal((8, 8))
        start[name][:, 0] += 0.3 * column / np.linalg.norm(column)
    return start


def length(run):
    return np.sqrt((run.K**2).sum((1, 2)) + (run.Q**2).sum((1, 2)))


@pytest.fixture(scope="module")
def waiting():
    """Gradient descent on K and Q that stands beside a stop of rank one."""
    records = np.arange(0, STEPS + 1, 200)
    return trained(410, att.frobenius, att.KeyQuery(), init=rank_one(1e-7), record=records)


@pytest.mark.parametrize(
    ("steps", "weight"),
    [
        (att.Schatten(4), att.KeyQuery(separate=True)),
        (att.Schatten(3), att.KeyQuery()),
        (att.spectral, att.KeyQuery(separate=True)),
        (att.linf, att.FullWeight()),
    ],
    ids=lambda part: str(part),
)
def test_a_certified_share_is_below_the_true_one_and_near_it(steps, weight):
    run, v = trained(1, steps, weight)
    point = att.kkt_point(run, v, steps=steps)
    true = att.margin_ratio(run, att.max_margin(run.tokens, run.selected, point.norm))[-1]
    assert true - 0.02 <= point.share <= true + ROUNDING
    assert (point.status, "limit:" in str(point)) == ("limit", True)


def test_the_share_in_another_norm_is_not_certified():
    run, v = trained(1, att.Schatten(4))
    assert att.kkt_point(run, v, steps=att.Schatten(4)).share > 0.99
    for steps in (att.spectral, att.Schatten(3)):
        point = att.kkt_point(run, v, steps=steps)
        true = att.margin_ratio(run, att.max_margin(run.tokens, run.selected, point.norm))[-1]
        assert point.share <= true + ROUNDING
        assert point.status == "on the way"


def test_factors_are_balanced_at_a_kkt_point_and_not_before():
    run, v = trained(3, att.Schatten(4))
    early = run.changed(W=run.W[:12], K=run.K[:12], Q=run.Q[:12], index=run.index[:12])
    first, last = (att.kkt_point(path, v, steps=att.Schatten(4)) for path in (early, run))
    assert last.balance < 0.05 < first.balance
    assert last.alignment > 0.999 > first.alignment
    assert (first.status, last.status) == ("on the way", "limit")


def test_a_stop_of_rank_one_is_told_from_a_limit(waiting):
    run, v = waiting
    point = att.kkt_point(run, v)
    assert (point.status, point.rank) == ("stop", 1)
    assert point.pull > 1.5 and point.alignment > 0.999
    true = att.margin_ratio(run, att.max_margin(run.tokens, run.selected, att.nuclear))[-1]
    assert 1 / point.pull - 0.01 <= true < 0.95  # a stop has at least the share s/σ


def test_a_stop_is_left_with_the_predicted_exponent(waiting):
    run, v = waiting
    point = att.kkt_point(run, v)
    late = run.index >= 4_000
    shares = point.singular_values[late, 1] / point.singular_values[late, 0]
    observed = np.polyfit(np.log(length(run)[late]), np.log(shares), 1)[0]
    assert observed == pytest.approx(point.exponent, rel=EXPONENT)
    assert point.steps_to_leave == pytest.approx(run.index[-1] * (shares[-1] ** (-1 / point.exponent) - 1))
    wrong = att.kkt_point(run.changed(tokens=att.datasets.sphere(4, 4, 8, seed=411)[0]), v)
    assert abs(observed - wrong.exponent) > 0.5


def test_a_stop_of_exactly_one_column_is_never_left():
    run, v = trained(410, att.frobenius, att.KeyQuery(), init=rank_one(0.0), count=5_000)
    point = att.kkt_point(run, v)
    assert (point.status, point.rank) == ("stop", 1)
    assert point.steps_to_leave > 1e9


def test_two_norms_of_the_factors_imply_their_harmonic_mean():
    run, v = trained(1, att.Schatten(4))
    assert att.kkt_point(run, v, steps=(att.Schatten(3), att.Schatten(6))).norm == att.Schatten(2)
    assert att.kkt_point(run, v, steps=(att.spectral, att.frobenius)).norm == att.Schatten(2)
    with pytest.raises(ValueError, match="no norm of W with a program"):
        att.kkt_point(run, v, steps=(att.nuclear, att.Schatten(3)))


def test_what_has_no_answer_is_refused():
    tokens, v = att.datasets.sphere(3, 4, 5, seed=0)
    runs = att.train(tokens, att.Linear(v), optimizer=att.gd(0.1), steps=5, init=np.zeros((2, 5, 5)))
    with pytest.raises(ValueError, match=r"path.run\(index\)"):
        att.kkt_point(runs, v)
    with pytest.raises(ValueError, match="no trained head"):
        att.kkt_point(runs.run(0))


def test_a_selection_of_lower_score_is_neither_limit_nor_stop(waiting):
    run, v = waiting
    wrong = att.kkt_point(run, -v)
    assert (att.kkt_point(run, v).status, wrong.status, wrong.share) == ("stop", "on the way", 0.0)


def test_it_is_drawn(waiting, tmp_path):
    figure = att.kkt_point(*waiting).plot()
    figure.savefig(tmp_path / "stop.png")
    assert len(figure.axes[0].lines) == 9  # eight singular values, and the predicted slope
