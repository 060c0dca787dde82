"""The finite part of Graph-SVM: maximum-likelihood odds, in their own span."""

import numpy as np
import pytest

from attsvm import next_token as nt


def centred(rows):
    return rows - rows.mean(-1, keepdims=True)


def test_the_finite_part_holds_the_odds_and_lies_in_their_span():
    corpus = nt.noisy_corpus(60, 3, 6, seed=0, copies=True)
    E = nt.random_embeddings(6, 7, seed=0)
    W, found = nt.graph_finite_part(corpus, E), nt.recover(corpus)
    logits = nt.token_logits(W, E).T
    for q in range(6):
        for c in np.unique(found.component[q][found.component[q] >= 0]):
            same = found.component[q] == c
            np.testing.assert_allclose(centred(logits[q, same]), found.logits[q, same], atol=1e-7)
    assert np.sum(W * nt.graph_program(corpus, E).W) == pytest.approx(0, abs=1e-6)


def test_the_finite_part_of_the_toy_is_log_two():
    for W in (nt.graph_finite_part(nt.log2_toy(), np.eye(4)), nt.graph_finite_part(nt.log2_toy())):
        np.testing.assert_allclose(W[:, 3], [np.log(2) / 2, -np.log(2) / 2, 0, 0], atol=1e-12)
        assert not W[:, :3].any()


def test_an_acyclic_corpus_has_no_finite_part():
    assert not nt.graph_finite_part(nt.random_corpus(40, 4, 8), np.eye(8)).any()
