"""The Markov view: the chain, its maximum likelihood, what cannot be known, and collapse."""

import numpy as np
import pytest

from attsvm import next_token as nt
from attsvm.training.optimizers import gd
from attsvm_lab import programs


def random_chain(V, seed=0):
    return programs.ContextChain(np.random.default_rng(seed).standard_normal((V, V)))


def centred(rows):
    return rows - rows.mean(-1, keepdims=True)


def test_probabilities_weigh_the_base_chain_by_counts():
    chain = programs.ContextChain(np.log([[0.5, 0.3, 0.2]] * 3))
    p = chain.probabilities([[0, 1, 1, -1], [2, 2, 2, 2]])
    np.testing.assert_allclose(p, [[0.5 / 1.1, 0.6 / 1.1, 0], [0, 0, 1]], rtol=1e-12)


def test_attention_with_tied_weights_is_the_chain():
    W, E = np.random.default_rng(0).standard_normal((5, 5)), np.eye(5)
    ids = np.array([[0, 3, 3, 1], [4, 2, 1, -1]])
    attention = nt.OneLayer(E, E, W).attention(ids)
    masses = [[attention[i][ids[i] == j].sum() for j in range(5)] for i in range(2)]
    np.testing.assert_allclose(programs.ContextChain.of(W, E).probabilities(ids), masses, atol=1e-14)


def test_maximum_likelihood_approaches_the_chain_that_spoke():
    chain, rng = random_chain(5), np.random.default_rng(1)
    errors = []
    for n in (2_000, 32_000):
        found = nt.recover(chain.logs(rng.integers(5, size=(n, 4))))
        errors.append(np.abs(found.logits - centred(chain.log_base)).max())
        assert found.residual < 1e-12
    assert errors[1] < 0.5 * errors[0] < 0.5


@pytest.mark.usefixtures("long_programs")
def test_maximum_likelihood_is_where_training_ends():
    corpus = random_chain(4).logs(np.random.default_rng(2).integers(4, size=(400, 4)))
    W = nt.train_choice(corpus, steps=20_000, optimizer=gd(4.0)).final
    np.testing.assert_allclose(centred(W.T), nt.recover(corpus).logits, atol=1e-6)


def test_tokens_that_never_meet_are_reported():
    prompts = np.array([[0, 1], [1, 0], [2, 3], [3, 2]] * 50)
    corpus = random_chain(4).logs(prompts, queries=np.zeros(200, int))
    met = programs.CoOccurrence.of(corpus)
    assert not met.connected.any()
    assert met.unidentified(0) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert "under '0' unidentified: (0, 2), (0, 3), (1, 2) and 1 more" in repr(met)


def test_prompts_of_all_tokens_are_connected():
    corpus = random_chain(4).logs(np.random.default_rng(0).integers(4, size=(300, 4)))
    assert programs.CoOccurrence.of(corpus).connected.all()


@pytest.mark.parametrize("p", [0.7, 0.6])
def test_the_weak_token_fades_with_the_predicted_exponent(p):
    chain = programs.ContextChain(np.log([[p, 1 - p]] * 2))
    lengths, counts = chain.simulate([0, 1], steps=20_000, chains=200, seed=0)
    assert (counts.sum(-1) == lengths).all()
    assert programs.collapse_exponent(counts, weak=1, strong=0) == pytest.approx((1 - p) / p, rel=0.05)


def test_draws_that_ignore_the_text_do_not_collapse():
    drawn = (np.random.default_rng(0).random((200, 20_000)) < 0.3).cumsum(-1)[:, 99::500] + 1
    counts = np.stack([np.arange(99, 20_000, 500) + 3 - drawn, drawn], axis=-1)
    assert programs.collapse_exponent(counts, weak=1, strong=0) == pytest.approx(1, rel=0.02)


def test_bad_prompts_are_refused():
    chain = random_chain(3)
    with pytest.raises(ValueError, match="unknown token 7"):
        chain.probabilities([[0, 1], [0, 7]])
    with pytest.raises(ValueError, match="square matrix"):
        programs.ContextChain(np.zeros((2, 3)))
    for wrong in ({"steps": 0}, {"steps": 9, "record": 0}):
        with pytest.raises(ValueError, match="Pass positive numbers"):
            chain.simulate([0], **wrong)
    with pytest.raises(ValueError, match="Simulate more steps"):
        programs.collapse_exponent(chain.simulate([0, 1], steps=20)[1], 1, 0)


def test_a_token_far_less_likely_than_all_others_is_drawn_where_it_is_alone():
    chain = programs.ContextChain([[0.0, -1_000.0]] * 2)  # e^−1000 is 0 in double precision
    lengths, counts = chain.simulate([1, 1, -1], steps=5)
    assert (counts[0, :, 1] == lengths).all() and lengths[0] == 3
    with pytest.raises(ValueError, match=r"tokens \[1\] holds none that its query 1 can choose"):
        programs.ContextChain([[0.0, -np.inf]] * 2).simulate([1], steps=5)


@pytest.mark.parametrize(
    ("ids", "queries", "told"),
    [
        ([[0, 1], [0, 99]], None, "unknown token 99"),
        ([[-1, -1]], None, "sentence 0 is empty"),
        ([[0, 1]], [-1], "unknown token -1"),
    ],
)
def test_bad_sentences_are_refused(ids, queries, told):
    with pytest.raises(ValueError, match=told):
        random_chain(4).probabilities(ids, queries)
