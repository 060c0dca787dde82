"""What the theory promises of long runs, against independent programs and closed forms."""

import numpy as np
import pytest

from attsvm import Entrywise, Tokens, frobenius, l1, linf, nuclear, spectral
from attsvm.datasets import sphere
from attsvm.training.heads import Linear
from attsvm.training.init import gaussian, uniform
from attsvm.training.losses import correlation, exponential, logistic
from attsvm.training.optimizers import gd, mirror, polyak, steepest
from attsvm.training.train import train
from attsvm.training.weights import FullWeight, KeyQuery
from tests.conftest import all_optimisations

NGD = steepest(frobenius, 0.1)


def run(tokens, v, optimizer=NGD, steps=1_000, loss=logistic, **options):
    settings = {"weight": FullWeight(), "record": 2} | options
    return train(tokens, Linear(v), optimizer=optimizer, steps=steps, loss=loss, **settings)


@pytest.fixture(scope="module")
def long_runs():
    """Three problems, their heads, and 30,000 normalised steps on each."""
    tokens, v = sphere(6, 8, 10, seed=range(3))
    with all_optimisations():
        return tokens, v, run(tokens, v, steps=30_000, record=[3_000, 10_000])


def test_normalised_gd_reaches_the_frobenius_program_like_one_over_steps_squared(
    long_runs, rows, frobenius_program, angle
):
    tokens, _, path = long_runs
    limits = [frobenius_program(rows(tokens.run(r), path.selected[r])) for r in range(3)]
    error = np.median([[angle(W, limits[r]) for W in path.W[r, 1:]] for r in range(3)], axis=0)
    slope = np.polyfit(np.log(path.index[1:]), np.log(error), 1)[0]
    assert error[-1] <= 2e-5
    assert -2.2 <= slope <= -1.8
    assert np.median(path.norm()[:, -1]) >= 2_950


@pytest.mark.usefixtures("long_programs")
def test_key_and_query_find_the_nuclear_margin_and_the_full_weight_does_not(long_runs, margin_ratio):
    tokens, v, full = long_runs
    pair = run(tokens, v, steps=20_000, weight=KeyQuery(), init=uniform(range(3)))
    for r in range(3):
        one = tokens.run(r)
        assert margin_ratio(one, pair.selected[r], pair.final[r], nuclear) >= 0.97
        assert margin_ratio(one, full.selected[r], full.final[r], nuclear) <= 0.93


@pytest.mark.parametrize(("norm", "enough"), [(linf, 0.99), (spectral, 0.99), (l1, 0.95)], ids=str)
def test_steepest_descent_maximises_the_margin_of_its_own_norm(norm, enough, margin_ratio):
    tokens, v = sphere(6, 8, 10, seed=range(3))
    path = run(tokens, v, steepest(norm, 0.1), steps=10_000)
    ratios = [margin_ratio(tokens.run(r), path.selected[r], path.final[r], norm) for r in range(3)]
    assert np.median(ratios) >= enough


@pytest.mark.parametrize(("p", "steps"), [(1.75, 1_500), (2, 2_000), (3, 20_000)])
def test_mirror_descent_is_closest_to_the_program_of_its_own_p(p, steps, rows, program):
    tokens, v = sphere(6, 8, 10, seed=range(1, 4))
    path = run(tokens, v, mirror(p, 0.1), steps, init=gaussian(range(3)))
    for r in range(3):
        W = path.final[r] / Entrywise(p).value(path.final[r])
        constraints = rows(tokens.run(r), path.selected[r])
        limits = {q: program(constraints, Entrywise(q)) for q in (1.75, 2, 3)}
        dual = np.sign(W) * np.abs(W) ** (p - 1)
        divergence = {q: 1 - (dual * L).sum() / Entrywise(p).value(L) for q, L in limits.items()}
        assert min(divergence, key=divergence.get) == p


@pytest.mark.parametrize(
    ("p", "steps", "selected"), [(1.75, 1_500, [1, 0]), (2, 2_000, [1, 0]), (3, 20_000, [0, 0])]
)
def test_joint_mirror_descent_selects_the_published_tokens(p, steps, selected):
    keys = [[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]]
    tokens = Tokens.self_attention(keys, 0, [1, -1])
    path = run(tokens, [0.0, 0.0], mirror(p, 0.1), steps, train_head=mirror(p, 0.1))
    assert path.selected.argmax(-1).tolist() == selected


def orthogonal_tokens(n=10, T=6, d=60):
    """Orthogonal class tokens, near-orthogonal noise of score zero, the query a noise token."""
    keys = np.random.default_rng(0).standard_normal((n, T, d)) / np.sqrt(d)
    labels = np.where(np.arange(n) % 2, -1.0, 1.0)
    keys[:, 1:, :2] = 0
    keys[:, 0] = np.where(labels[:, None] > 0, np.eye(d)[0], np.eye(d)[1])
    return Tokens(keys, keys[:, 1], labels), np.eye(d)[0] - np.eye(d)[1]


@pytest.mark.usefixtures("long_programs")
def test_polyak_and_normalised_gd_beat_gd_on_orthogonal_tokens(rows, frobenius_program, angle):
    tokens, v = orthogonal_tokens()
    record = [10, 30, 100, 300, 1_000, 3_000]
    limit, errors = frobenius_program(rows(tokens, np.eye(6, dtype=bool)[[0] * 10])), {}
    rules = {"gd": gd(1.0), "normalised": steepest(frobenius, 0.05), "polyak": polyak()}
    for name, optimizer in rules.items():
        path = run(tokens, v, optimizer, 3_000, exponential, record=record)
        errors[name] = np.array([angle(W, limit) for W in path.W[1:]])
    assert errors["polyak"][-1] <= 1e-5
    first = {name: np.argmax(np.append(e, 0) <= 1e-3) for name, e in errors.items()}
    assert first["polyak"] < first["normalised"] < first["gd"]
    assert errors["polyak"][-1] / errors["polyak"][-2] == pytest.approx(1 / 9, rel=0.2)


def test_training_the_prompt_is_training_a_weight_on_one_fixed_query():
    # Prompt and weight are one: W with step lr/‖u‖² stays p uᵀ/‖u‖² of the prompt p with step lr.
    prompt, v = sphere(3, 4, 5, seed=1)
    u = np.array([0.5, -1.0, 2.0])
    prompt = Tokens(prompt.keys, None, prompt.labels)
    weight = Tokens(prompt.keys, np.tile(u, (3, 1)), prompt.labels)
    p = run(prompt, v, gd(0.5), record=10).W
    W = run(weight, v, gd(0.5 / (u @ u)), record=10).W
    np.testing.assert_allclose(W, p * u / (u @ u), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "offset"),
    [
        (correlation, lambda C: np.log(C) / 2),
        (exponential, lambda C: (np.log(C) - C + 1) / 2),
        (logistic, lambda C: np.log(C * (1 + np.e) / (1 + np.exp(C))) / 2),
    ],
    ids=["correlation", "exponential", "logistic"],
)
def test_the_transient_bias_of_a_loss_has_its_closed_form(loss, offset):
    scores = np.array([2.0, 5.0, 10.0])
    keys = np.zeros((3, 2, 2, 3))  # attention sees two coordinates, the head reads the third
    keys[:, 0, 1, :2], keys[:, 1, 1, :2] = (1, 1), (1, -1)
    keys[:, 0, 1, 2], keys[:, 1, 1, 2] = scores, 1
    tokens = Tokens(keys[..., :2], values=keys[..., 2:])
    final = run(tokens, [1.0], steps=1_000, loss=loss).final[..., 0]
    np.testing.assert_allclose(final[:, 1], offset(scores), rtol=0, atol=1e-3)
    assert (final[:, 0] > 40).all()
