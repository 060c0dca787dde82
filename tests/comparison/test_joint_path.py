"""The path of head and weight together begins at the pair of the programs, and says when starts disagree."""

import warnings
from functools import cache

import numpy as np
import pytest

import attsvm as att
from attsvm.comparison import joint_path as seeded
from attsvm.training.radius import BallProblem
from attsvm.training.regularise import _pair_at_length_one as at_length_one

RADII, HEAD_RADII = np.array([100.0]), np.array([100.0])


@cache
def problems():
    """Six random problems; random starts miss the best pair of two of them."""
    rng = np.random.default_rng(0)
    keys, labels, v = (
        rng.standard_normal((6, 4, 3, 6)),
        rng.choice([-1, 1], (6, 4)),
        rng.standard_normal((6, 6)),
    )
    return att.Tokens(keys, None, labels), v


@cache
def contradiction():
    """Two copies of an example with opposite labels: no head separates them."""
    keys = np.random.default_rng(0).standard_normal((1, 3, 2)).repeat(2, axis=0)
    keys[:] = keys[:, :1]
    return att.Tokens(keys, None, [1, -1])


@cache
def both():
    tokens, v = problems()
    nothing = (np.full((6, 6), np.nan), np.full((6, 6, 1), np.nan))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", att.StartsDisagree)
        paths = [
            att.regularisation_path(
                tokens, att.Linear(v), radii=RADII, head_radii=HEAD_RADII, starts=4, pair=pair
            )
            for pair in (None, nothing)
        ]
    return *paths, [one for one in told if one.category is att.StartsDisagree]


def log_loss_of_the_pair(tokens, radius, head_radius):
    best = att.joint_margin(tokens)
    W, v = best.prompt.W / np.linalg.norm(best.prompt.W), best.head.W[:, 0] / np.linalg.norm(best.head.W)
    logits = radius * np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s /= s.sum(-1, keepdims=True)
    margins = head_radius * np.einsum("nt,ntd,d->n", s, tokens.values, v) * tokens.labels
    return np.log(np.mean(np.log1p(np.exp(-margins))))


def test_no_path_of_head_and_weight_is_worse_than_the_pair_of_the_programs():
    tokens, _ = problems()
    begun, plain, _ = both()
    pairs = [
        [log_loss_of_the_pair(tokens.run(k), *at) for at in zip(RADII, HEAD_RADII, strict=True)]
        for k in range(6)
    ]
    assert (np.log(begun.loss) <= np.array(pairs) + 1e-6).all()
    assert (np.log(plain.loss) > np.array(pairs) + 1).any()  # random starts alone miss it
    assert (begun.loss <= plain.loss * (1 + 1e-3))[:, -1].all()


def test_runs_without_a_pair_are_searched_as_before():
    tokens = contradiction()
    assert seeded._pair(tokens) is None
    keys = np.stack([tokens.keys, np.random.default_rng(1).standard_normal((2, 3, 2))])
    v, W = seeded._pair(att.Tokens(keys, None, [1, -1]))
    assert np.isnan(v).all(-1).tolist() == np.isnan(W).all((-2, -1)).tolist() == [True, False]


def test_starts_that_disagree_are_told():
    begun, plain, told = both()
    assert (plain.agreed <= 1).any()
    assert "the starts disagree in" in str(told[-1].message) and "starts=16" in str(told[-1].message)
    assert told[-1].filename == __file__
    assert "starts that agree: 0 to " in repr(begun)


def test_the_pair_begins_factors_too():
    rng = np.random.default_rng(0)
    v, W = rng.standard_normal((2, 5)), rng.standard_normal((2, 5, 4))
    for rank in (None, 7, 2):
        problem = BallProblem(att.KeyQuery(rank), att.logistic, att.nuclear, True)
        pair = at_length_one(problem, v, W)
        shapes = att.KeyQuery(rank).shapes(5, 4)
        assert {name: x.shape[1:] for name, x in pair.params.items()} == shapes
        product = np.einsum("kdr,ker->kde", pair.params["K"], pair.params["Q"])
        sizes = sum((x**2).sum((-2, -1)) for x in pair.params.values())
        np.testing.assert_array_less(sizes, 2 + 1e-12)  # the ball ‖K‖² + ‖Q‖² ≤ 2
        if rank != 2:
            np.testing.assert_allclose(product, W / att.nuclear.value(W)[:, None, None], atol=1e-12)
    assert at_length_one(BallProblem(att.DiagonalKeyQuery(), att.logistic, att.l1, True), v, W) is None


@pytest.mark.parametrize(
    ("pair", "options", "message"),
    [
        ((np.ones(6), np.ones((6, 1))), {}, "Pass head_radii, or no pair"),
        ((np.ones(5), np.ones((6, 1))), {"head_radii": [1.0]}, r"shapes \(6,\) and \(6, 1\)"),
        (np.ones(6), {"head_radii": [1.0]}, "pair is not"),
        ((np.zeros(6), np.ones((6, 1))), {"head_radii": [1.0]}, "no direction"),
    ],
)
def test_what_is_no_pair_is_refused_in_words(pair, options, message):
    tokens, v = problems()
    with pytest.raises(ValueError, match=message):
        att.regularisation_path(tokens.run(0), att.Linear(v[0]), radii=[1.0], pair=pair, **options)
