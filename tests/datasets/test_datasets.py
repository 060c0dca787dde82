"""The instances are the papers' own, and the same on every platform."""

import numpy as np
import pytest

import attsvm
from attsvm import best_tokens, datasets, scores

pytestmark = pytest.mark.quick

SIZES = (3, 4, 5)
RANDOM = [datasets.sphere, datasets.prompt_sphere, datasets.orthogonal]
SEEDED = [*(lambda seed, f=f: f(*SIZES, seed=seed) for f in RANDOM), datasets.several_inputs]
SEEDED += [datasets.two_clouds, datasets.two_fans]


@pytest.mark.parametrize("draw", SEEDED)
def test_a_range_of_seeds_stacks_single_draws(draw):
    tokens, _ = draw(seed=range(2, 5))
    assert tokens.runs == 3
    np.testing.assert_array_equal(tokens.run(1).keys, draw(seed=3)[0].keys)
    np.testing.assert_array_equal(tokens.run(1).queries, draw(seed=3)[0].queries)


@pytest.mark.parametrize("draw", SEEDED)
def test_different_seeds_give_different_data(draw):
    assert not np.array_equal(draw(seed=0)[0].keys, draw(seed=1)[0].keys)


PINNED_HEAD = [0.1865168763949313, -0.19597346002732666]
PINNED_KEY = [0.6018802281751746, 0.43713902335923954]


def test_seed_zero_is_the_same_on_every_platform():
    tokens, v = datasets.sphere(2, 3, 4, seed=0)
    np.testing.assert_allclose(v[:2], PINNED_HEAD, rtol=1e-12)
    np.testing.assert_allclose(tokens.keys[0, 0, :2], PINNED_KEY, rtol=1e-12)


def test_sphere_tokens_queries_and_head_have_length_one():
    tokens, v = datasets.sphere(*SIZES, seed=0)
    for array in (tokens.keys, tokens.queries, v):
        np.testing.assert_allclose(np.linalg.norm(array, axis=-1), 1)
    assert set(np.unique(datasets.sphere(50, 2, 3)[0].labels)) == {-1.0, 1.0}


def test_orthogonal_data_has_equal_scores_except_the_best():
    tokens, v = datasets.orthogonal(seed=range(3))
    gamma = np.sort(scores(tokens, v), axis=-1)
    np.testing.assert_allclose(gamma[..., -1], 1, atol=1e-12)
    np.testing.assert_allclose(gamma[..., :-1], 0, atol=1e-12)


def test_single_input_ranks_token_zero_first_whatever_the_third_score():
    for third in (0.9, 0.0):
        tokens, v = datasets.single_input(third)
        assert scores(tokens, v).tolist() == [[1.0, 0.9, third]]


def test_joint_training_has_the_papers_tokens():
    tokens, v = datasets.joint_training((0.5, 1.5))
    assert tokens.keys[:, 1].tolist() == [[1, 1], [1, -1], [0.5, 1.5]]
    assert tokens.labels.tolist() == [1, -1, 1]
    assert v.tolist() == [-1, 0]
    with pytest.raises(ValueError, match="two coordinates"):
        datasets.joint_training((1.0, 2.0, 3.0))


def test_joint_mirror_queries_are_the_first_tokens():
    tokens, _ = datasets.joint_mirror()
    np.testing.assert_array_equal(tokens.queries, tokens.keys[:, 0])


def test_the_published_several_inputs_favour_token_zero():
    tokens, v = datasets.several_inputs()
    assert best_tokens(tokens, v)[:, 0].all()


@pytest.mark.parametrize("seed", [-1, range(0), 1.5, [1.7], "12", True, [0, -1]])
def test_bad_seeds_are_refused(seed):
    for drawn in (lambda: datasets.sphere(*SIZES, seed=seed), lambda: attsvm.uniform(seed)):
        with pytest.raises(ValueError, match="seed is"):
            drawn()


def test_two_scores_differ_only_in_the_best_score():
    tokens, v = datasets.two_scores(7.0)
    assert scores(tokens, v).tolist() == [[0, 7], [0, 1]]


@pytest.mark.parametrize("draw", [datasets.sphere, datasets.prompt_sphere])
def test_an_iterator_gives_its_seeds_to_every_draw(draw):
    once, again = draw(*SIZES, seed=iter(np.arange(2)))[0], draw(*SIZES, seed=range(2))[0]
    np.testing.assert_array_equal(once.keys, again.keys)
