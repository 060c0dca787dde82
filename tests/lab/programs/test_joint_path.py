"""The path of head and weight together begins at the pair of the programs, and says when starts disagree."""

import warnings
from functools import cache

import numpy as np

import attsvm as att
from attsvm.training.regularise import StartsDisagree
from attsvm_lab import programs
from attsvm_lab.programs.joint_paths import best_pair

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
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", StartsDisagree)
        paths = [
            path(tokens, att.Linear(v), radii=RADII, head_radii=HEAD_RADII, starts=4)
            for path in (programs.joint_path, att.regularisation_path)
        ]
    return *paths, [one for one in told if one.category is StartsDisagree]


def log_loss_of_the_pair(tokens, radius, head_radius):
    best = programs.joint_margin(tokens)
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


def test_the_pair_is_chosen_where_every_loss_underflows():
    tokens, v = problems()
    far = {"radii": [100.0], "head_radii": [1e5], "starts": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StartsDisagree)
        begun = programs.joint_path(tokens, att.Linear(v), **far)
        plain = att.regularisation_path(tokens, att.Linear(v), **far)
    assert not plain.loss[:, 0].all() and not begun.loss.any()

    def margins(path):
        pooled = np.einsum("rnt,rntd->rnd", path.attention[:, 0], tokens.values)
        return (np.einsum("rnd,rd->rn", pooled, path.v[:, 0]) * tokens.labels).min(-1)

    assert (margins(begun) >= margins(plain) * (1 - 1e-6)).all()
    assert (margins(begun) > 1.1 * margins(plain)).any()  # one random start misses it


def test_runs_without_a_pair_are_searched_as_before():
    tokens = contradiction()
    assert best_pair(tokens) is None
    keys = np.stack([tokens.keys, np.random.default_rng(1).standard_normal((2, 3, 2))])
    v, W = best_pair(att.Tokens(keys, None, [1, -1]))
    assert np.isnan(v).all(-1).tolist() == np.isnan(W).all((-2, -1)).tolist() == [True, False]


def test_starts_that_disagree_are_told():
    begun, plain, told = both()
    assert (plain.agreed <= 1).any()
    assert "the starts disagree in" in str(told[-1].message) and "starts=16" in str(told[-1].message)
    assert told[-1].filename == __file__
    assert "starts that agree: 0 to " in repr(begun)
