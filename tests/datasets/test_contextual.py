"""Contextual tokens: relevant ones carry the label, the others oppose it; claims hold, twins do not."""

import numpy as np
import pytest

from attsvm.datasets import contextual
from tests.lab.claims.agreement import check, each_claim

SIZES = (40, 6, 9)


def test_relevant_tokens_carry_the_label_and_the_others_oppose_it():
    tokens, hidden = contextual(*SIZES, share=1 / 3, noise=0.0, opposed=[(0.5, 2.0)], contexts=(0.5, 0.5))
    assert (hidden.relevant.sum(1) == 2).all() and set(hidden.context) == {0, 1}
    own = np.arange(len(tokens.keys))
    for name, wanted in (("prompts", np.ones(40)), ("heads", tokens.labels)):
        along = (tokens.keys @ getattr(hidden, name).T)[own, :, hidden.context]
        opposed = 0.5 if name == "prompts" else 2.0
        expected = np.where(hidden.relevant, 1.0, -opposed) * wanted[:, None]
        np.testing.assert_allclose(along, expected, atol=1e-12)
    basis = np.concatenate([hidden.prompts, hidden.heads])
    np.testing.assert_allclose(basis @ basis.T, np.eye(4), atol=1e-12)


def test_fresh_inputs_have_the_directions_of_training_and_other_draws():
    (train, first), (fresh, second) = (contextual(*SIZES, seed=3, fresh=count) for count in (0, 40))
    np.testing.assert_array_equal(first.heads, second.heads)
    np.testing.assert_array_equal(first.prompts, second.prompts)
    assert not np.isin(fresh.keys[~second.relevant], train.keys[~first.relevant]).any()


def test_a_range_of_seeds_stacks_single_draws():
    options = {"contexts": (0.7, 0.3), "opposed": [(0, 0), (1, 2)]}
    many, hidden = contextual(*SIZES, seed=range(2, 5), **options)
    tokens, single = contextual(*SIZES, seed=3, **options)
    np.testing.assert_array_equal(many.run(1).keys, tokens.keys)
    np.testing.assert_array_equal(hidden.prompts[1], single.prompts)


def test_a_shared_head_is_one_direction():
    assert np.ptp(contextual(*SIZES, contexts=(0.5, 0.5), shared_head=True)[1].heads, axis=0).max() == 0
    assert np.ptp(contextual(*SIZES, contexts=(0.5, 0.5))[1].heads, axis=0).max() > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 0.0}, "Pass a share of 1"),
        ({"share": 1.0}, "Pass a share of 1"),
        ({"noise": -1.0}, "Pass a number of at least 0"),
        ({"opposed": (0.0, 1.0)}, "Pass pairs"),
        ({"contexts": (0.5, 0.2)}, "they add to one"),
        ({"contexts": (0.2,) * 5}, "Pass d ≥ 10"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        contextual(*SIZES, **options)


@each_claim("contextual")
def test_the_claim_holds_and_its_twin_does_not(claim):
    check(claim)
