"""The instances are the papers' own, and the same on every platform."""

import numpy as np
import pytest

import attsvm
from attsvm import best_tokens, datasets, scores

pytestmark = pytest.mark.quick

SIZES = (3, 4, 5)
RANDOM = [datasets.sphere, datasets.prompt_sphere, datasets.orthogonal]
SEEDED = [*(lambda seed, f=f: f(*SIZES, seed=seed) for f in RANDOM), datasets.several_inputs]
SEEDED += [datasets.two_clouds, datasets.two_fans, lambda seed: datasets.trigger_means(*SIZES, seed=seed)]


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


# ---------------------------------------------------------------------- even pairs and parity


def spelled(tokens):
    """The strings, read off the keys."""
    symbols = tokens.keys.argmax(-1) % 2
    return ["".join(map(str, row[:length])) for row, length in zip(symbols, tokens.lengths, strict=True)]


def test_every_string_occurs_and_every_length_equally_often():
    strings = spelled(datasets.even_pairs(4)[0])
    assert set(strings) == {f"{k:0{n}b}" for n in range(1, 5) for k in range(2**n)}
    assert {strings.count(string) for string in strings if len(string) == 2} == {4}
    assert {sum(len(s) == n for s in strings) for n in range(1, 5)} == {16}


def test_labels_of_even_pairs_compare_the_ends_and_those_of_parity_count():
    pairs, parity = datasets.even_pairs(4)[0], datasets.parity(4)[0]
    strings = spelled(pairs)
    assert strings == spelled(parity)
    changes = [s.count("01") + s.count("10") for s in strings]
    np.testing.assert_array_equal(pairs.labels > 0, [c % 2 == 0 for c in changes])
    np.testing.assert_array_equal(parity.labels > 0, [s.count("1") % 2 == 0 for s in strings])
    assert not np.array_equal(pairs.labels, parity.labels)


def test_the_query_of_a_string_is_its_last_token_and_tokens_are_orthonormal():
    tokens, _ = datasets.even_pairs(3)
    last = tokens.keys[np.arange(tokens.n), tokens.lengths - 1]
    np.testing.assert_array_equal(tokens.queries, last)
    seen = np.unique(tokens.keys[tokens.mask], axis=0)
    np.testing.assert_array_equal(np.sort(seen @ seen.T), np.sort(np.eye(6)))


def test_too_long_strings_are_refused():
    with pytest.raises(ValueError, match="L is 13"):
        datasets.even_pairs(13)


# ---------------------------------------------------------------------- triggers


def test_selected_tokens_alone_answer_the_task():
    tokens, selected = datasets.trigger_means(4, 6, 6, seed=0)
    uniform = selected / selected.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.einsum("nt,ntc->nc", uniform, tokens.values), 0, atol=1e-15)
    everywhere = tokens.mask / tokens.lengths[:, None]
    assert (np.abs(np.einsum("nt,ntc->nc", everywhere, tokens.values)).max(-1) > 1e-3).all()


def test_the_trigger_is_where_all_tokens_but_the_first_are_selected():
    tokens, selected = datasets.trigger_means(50, 6, 6, seed=0)
    triggers = tokens.queries[:, 1] == 1
    np.testing.assert_array_equal(~selected[:, 0], triggers)
    assert triggers.sum() == 50
    assert set(tokens.lengths[triggers]) == {3, 4, 5, 6}
    np.testing.assert_array_equal(selected[triggers], (tokens.mask & (np.arange(6) > 0))[triggers])


def test_fresh_sequences_share_no_draw_with_those_of_training():
    train, test = (datasets.trigger_means(9, 6, 6, seed=0, fresh=fresh)[0] for fresh in (0, 9))
    drawn = (set(tokens.queries[:, 2:-1].ravel()) for tokens in (train, test))
    assert not set.intersection(*drawn)
    assert set(train.queries[:, 2:-1].ravel()) == set(
        datasets.trigger_means(9, 6, 6)[0].queries[:, 2:-1].ravel()
    )


@pytest.mark.parametrize("draw", [datasets.sphere, datasets.sparse_signals, datasets.one_location])
def test_an_iterator_gives_its_seeds_to_every_draw(draw):
    once, again = draw(*SIZES, seed=iter(np.arange(2)))[0], draw(*SIZES, seed=range(2))[0]
    np.testing.assert_array_equal(once.keys, again.keys)
