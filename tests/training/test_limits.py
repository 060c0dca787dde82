"""What the theory promises of long runs, against independent programs and closed forms; more in claims."""

import numpy as np
import pytest

from attsvm import Entrywise, Tokens, frobenius, l1, linf, spectral
from attsvm.datasets import sphere
from attsvm.training.init import gaussian
from attsvm.training.losses import correlation, exponential, logistic
from attsvm.training.optimizers import gd, mirror, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train

NGD = steepest(frobenius, 0.1)


def run(tokens, v, optimizer=NGD, steps=1_000, loss=logistic, **options):
    return train(tokens, Linear(v), optimizer=optimizer, steps=steps, loss=loss, **{"record": 2} | options)


@pytest.mark.usefixtures("long_programs")
def test_normalised_gd_reaches_the_frobenius_program_like_one_over_steps_squared(
    rows, frobenius_program, angle
):
    tokens, v = sphere(6, 8, 10, seed=range(3))
    path = run(tokens, v, steps=30_000, record=[3_000, 10_000])
    limits = [frobenius_program(rows(tokens.run(r), path.selected[r])) for r in range(3)]
    error = np.median([[angle(W, limits[r]) for W in path.W[r, 1:]] for r in range(3)], axis=0)
    slope = np.polyfit(np.log(path.index[1:]), np.log(error), 1)[0]
    assert error[-1] <= 2e-5
    assert -2.2 <= slope <= -1.8
    assert np.median(path.norm()[:, -1]) >= 2_950


@pytest.mark.parametrize(("norm", "enough"), [(linf, 0.99), (spectral, 0.99), (l1, 0.95)], ids=str)
def test_steepest_descent_maximises_the_margin_of_its_own_norm(norm, enough, margin_ratio):
    tokens, v = sphere(4, 5, 6, seed=range(3))
    path = run(tokens, v, steepest(norm, 0.1), steps=5_000)
    ratios = [margin_ratio(tokens.run(r), path.selected[r], path.final[r], norm) for r in range(3)]
    assert np.median(ratios) >= enough


@pytest.mark.parametrize(("p", "steps"), [(1.75, 1_500), (3, 8_000)])
def test_mirror_descent_is_closest_to_the_program_of_its_own_p(p, steps, rows, program):
    tokens, v = sphere(4, 5, 6, seed=range(1, 4))
    path = run(tokens, v, mirror(p, 0.1), steps, init=gaussian(range(3)))
    for r in range(3):
        W = path.final[r] / Entrywise(p).value(path.final[r])
        constraints = rows(tokens.run(r), path.selected[r])
        limits = {q: program(constraints, Entrywise(q)) for q in (1.75, 2, 3)}
        dual = np.sign(W) * np.abs(W) ** (p - 1)
        divergence = {q: 1 - (dual * L).sum() / Entrywise(p).value(L) for q, L in limits.items()}
        assert min(divergence, key=divergence.get) == p


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
