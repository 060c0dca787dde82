"""The pair of a head and a weight at which a path of both begins."""

import numpy as np
import pytest

import attsvm as att
from attsvm.training.radius import BallProblem
from attsvm.training.regularise import _pair_at_length_one as at_length_one


def problems():
    rng = np.random.default_rng(0)
    keys, labels = rng.standard_normal((6, 4, 3, 6)), rng.choice([-1, 1], (6, 4))
    return att.Tokens(keys, None, labels), rng.standard_normal((6, 6))


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
