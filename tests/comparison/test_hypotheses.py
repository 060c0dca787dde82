"""A limit says which of its hypotheses hold on given tokens, a head and a run: both answers occur."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.comparison.theory import limit_norm
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.norms import Schatten, frobenius, linf, spectral
from attsvm.program.max_margin import max_margin
from attsvm.training.optimizers import gd, mirror, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import FullWeight, KeyQuery, MultiHead

pytestmark = pytest.mark.quick

ALONG = steepest(frobenius, 0.1)


def answers(limit):
    return {hypothesis.statement: hypothesis.holds for hypothesis in limit.hypotheses}


def answer(words, *arguments, **on):
    (found,) = [holds for text, holds in answers(limit_norm(*arguments, **on)).items() if words in text]
    return found


def orthogonal_tokens():
    """Orthonormal keys; one value scores 1, the others 0."""
    keys = np.eye(6).reshape(2, 3, 6)
    values = np.zeros((2, 3, 6))
    values[:, 0, 0] = 1
    return Tokens(keys, np.eye(6)[:2], values=values), np.eye(6)[0]


def test_without_data_nothing_is_said_to_hold():
    for weight, rule in [(FullWeight(), ALONG), (FullWeight(), gd(0.1)), (KeyQuery(2), gd(0.1))]:
        limit = limit_norm(weight, rule)
        assert limit.hypotheses and set(answers(limit).values()) == {None}
        assert all(hypothesis.how in str(hypothesis) for hypothesis in limit.hypotheses)
        assert "does not hold" not in str(limit)


def test_a_theorem_beside_data_that_violate_it_says_so():
    """Of 24 draws of sphere none has equal losing scores."""
    for seed in range(24):
        tokens, v = datasets.sphere(4, 5, 10, seed=seed)
        assert answer("equal losing", FullWeight(), ALONG, tokens=tokens, head=Linear(v)) is False
    limit = limit_norm(FullWeight(), ALONG, tokens=tokens, head=v)
    assert limit.standing == "theorem" and "does not hold here: equal losing scores" in str(limit)
    tokens, v = orthogonal_tokens()
    assert answer("equal losing", FullWeight(), ALONG, tokens=tokens, head=v) is True
    assert "does not hold" not in str(limit_norm(FullWeight(), ALONG, tokens=tokens, head=v))


def test_nearly_orthogonal_tokens_can_be_refuted_only():
    crowded, _ = datasets.sphere(4, 5, 3, seed=0)
    assert answer("nearly orthogonal", FullWeight(), ALONG, tokens=crowded) is False
    assert answer("nearly orthogonal", FullWeight(), ALONG, tokens=orthogonal_tokens()[0]) is None


@pytest.mark.parametrize("rule", [gd(0.1), mirror(3, 0.1, normalised=False)], ids=repr)
def test_a_run_from_zero_does_not_start_far_from_the_origin(rule):
    tokens, v = datasets.sphere(3, 4, 5, seed=0)
    zero = train(tokens, Linear(v), optimizer=rule, steps=500)
    best = max_margin(tokens, best_tokens(tokens, v)).W
    far = train(tokens, Linear(v), optimizer=rule, steps=5, init=20 * best)
    across = train(tokens, Linear(v), optimizer=steepest(linf, 0.5), steps=500, init=-0.1 * best)
    assert [answer("in a cone", FullWeight(), rule, run=run, head=v) for run in (zero, far, across)] == [
        False,
        None,
        False,
    ]


def test_losing_tokens_that_score_higher_are_seen():
    tokens, v = datasets.single_input(0.0)
    rule = steepest(spectral, 0.1)
    best, local = (
        train(tokens, Linear(v), optimizer=rule, steps=300, init=np.array([[0.0], [y]])) for y in (1.0, -1.5)
    )
    assert answer("score lower", FullWeight(), rule, run=best, head=v) is True
    assert answer("score lower", FullWeight(), rule, run=local, head=v) is False


def test_widths_and_lengths_of_steps_are_compared_with_their_bounds():
    tokens, v = datasets.sphere(4, 4, 5, seed=0)
    narrow, wide = (answer("min(n, d, e)", KeyQuery(r), ALONG, tokens=tokens) for r in (3, 4))
    assert (narrow, wide, answer("min(n, d, e)", KeyQuery(), ALONG, tokens=tokens)) == (False, True, True)
    for lr, short in ((0.1, False), (0.01, True)):
        rule = steepest(spectral, lr)
        run = train(tokens, Linear(v), weight=KeyQuery(), optimizer=rule, steps=2000, record=2)
        assert answer("lr² t", KeyQuery(), rule, run=run) is short


def test_condition_star_is_read_from_the_end_of_the_run():
    tokens, v = datasets.sphere(4, 4, 8, seed=410)
    rng, column = np.random.default_rng(0), np.eye(8)[:1]
    narrow = {
        name: 0.3 * rng.standard_normal((8, 1)) @ column + 1e-7 * rng.standard_normal((8, 8)) for name in "KQ"
    }
    holds = []
    for p, steps in ((2, 6000), (4, 20_000)):  # gradient descent waits at a stop of rank one
        rule = steepest(Schatten(p), 0.01 if p == 2 else 0.003)
        run = train(tokens, Linear(v), weight=KeyQuery(), optimizer=rule, steps=steps, init=narrow)
        holds.append(answer("condition (*)", KeyQuery(), rule, run=run, head=v))
    assert holds == [False, True]


def test_several_heads_are_asked_without_a_run():
    tokens, v = datasets.sphere(2, 3, 4, seed=0)
    rule = steepest(linf, 0.1)
    run = train(tokens, Linear(np.stack([v, v])), weight=MultiHead(2), optimizer=ALONG, steps=5)
    limit = limit_norm(MultiHead(2, norm="apart"), rule, run=run, head=np.stack([v, v]))
    assert (
        "score lower" in str(limit.hypotheses) and answers(limit)["a loss that is small at one time"] is None
    )
